"""The agent behind a FIFO queue of SQS, as in infra/template.yaml: the handler is `from_queue.handler`.

Send an event as a message's body, with the thread as message group: {"thread_id": "anna", "message": "book Oslo"}.
The id of the message is the event's, unless the body has one: it stays the same however often it is delivered.
"""

import json
from datetime import timedelta
from typing import Any

import handler as turns


def handler(event: dict[str, Any], context: Any) -> list[dict[str, str]]:
    """Run the turn of each message; what is answered goes to whoever waits for it (here nobody does).

    An error, `ThreadBusy` among them, makes the queue deliver the message again.
    """
    # A message group comes one message at a time; the lease also holds off whoever invokes the function directly. It
    # lasts longer than this invocation can.
    ttl = timedelta(milliseconds=context.get_remaining_time_in_millis() + 10_000)
    answers = []
    for record in event["Records"]:
        turn = {"event_id": record["messageId"], **json.loads(record["body"])}
        with turns.saver.lease(turn["thread_id"], ttl):
            answers.append(turns.handler(turn, context))
    return answers

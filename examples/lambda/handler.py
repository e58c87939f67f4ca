"""An agent as an AWS Lambda function: the handler is `handler.handler`, the bucket is named in BUCKET.

Whatever invokes it may deliver an event twice, or again after a crash. Each is one turn of its thread all the same.
"""

import os
from typing import Any

from agent import answer_to, config_of, input_of, make_agent

from langgraph.checkpoint.s3 import S3Saver

# At module level, so that warm invocations find the saver with its connections and what it remembers. It asks for
# nothing yet: its client is made on first use, of boto3's own variables (AWS_REGION, AWS_ENDPOINT_URL_S3, ...).
saver = S3Saver(os.environ["BUCKET"], os.environ.get("PREFIX", "agents"))
graph = make_agent(saver)


def handler(event: dict[str, str], context: Any) -> dict[str, str]:
    """Take an event to its end, wherever an earlier delivery of it stopped."""
    config = config_of(event)
    known = graph.get_state(config).values.get("messages", [])
    # "sync" stores a step before the next begins, so that a tool's call is known before the tool runs. LangGraph's
    # default stores it meanwhile: killed then, the model would be asked again, and might call something else.
    state = graph.invoke(input_of(event, known), config, durability="sync")
    return answer_to(event, state["messages"])

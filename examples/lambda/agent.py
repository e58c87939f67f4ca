"""What both handlers share: the agent, and how an event becomes a turn of its thread.

An event is {"thread_id": "anna", "event_id": "e1", "message": "book Oslo Rome"}. Its id is the same each time it is
delivered: a `messageId` of SQS, the id of a webhook, or one that whoever sends it has made up.
"""

import os
from collections.abc import Sequence
from itertools import dropwhile
from typing import Annotated, Any
from uuid import uuid4

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import InjectedToolCallId

# -- the agent -------------------------------------------------------------------------------------


def book(city: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> str:
    """Book a flight."""
    # A line in a file stands for what a tool does to the world. It may be killed between doing it and saying so, and
    # is then run again. The id of the call is stored before the tool runs and is the same both times: give it as the
    # idempotency key to whatever you call.
    with open(os.environ.get("BOOKINGS", "/tmp/bookings"), "a") as bookings:
        bookings.write(f"{tool_call_id}\n")
    return f"a flight to {city}"


class PlayedModel(BaseChatModel):
    """Needs no network: calls the tool that a question begins with, for each city in it; then tells what it found."""

    @property
    def _llm_type(self) -> str:
        return "played"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> "PlayedModel":
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        if isinstance(messages[-1], HumanMessage):
            tool, *cities = messages[-1].text.split()
            calls = [{"name": tool, "args": {"city": it}, "id": f"call-{uuid4()}"} for it in cities]
            answer = AIMessage("", tool_calls=calls)
        else:
            found = [it.text for it in messages if it.type == "tool"]
            answer = AIMessage(f"So far you have {', '.join(found)}.")
        return ChatResult(generations=[ChatGeneration(message=answer)])


def make_agent(saver: Any) -> Any:
    """The agent. Your model goes here: `create_agent("bedrock_converse:...", [book], checkpointer=saver)`."""
    return create_agent(PlayedModel(), [book], checkpointer=saver)


# -- events ----------------------------------------------------------------------------------------


def config_of(event: dict[str, str]) -> Any:
    """The thread that an event belongs to."""
    return {"configurable": {"thread_id": event["thread_id"]}}


def input_of(event: dict[str, str], messages: list[AnyMessage]) -> Any:
    """What to invoke the agent with, given the messages of the thread so far.

    The event's id is that of its message, so the thread itself tells which events it has seen, and a message is never
    in it without its id. For one that it has seen there is nothing to add: None goes on where the turn stopped, and
    does nothing if it is finished. Do not look at the snapshot's `next` for that: just after a crash it may be empty
    although there is work left.

    If you trim the messages of a thread, keep the ids in a channel of their own instead.
    """
    if any(it.id == event["event_id"] for it in messages):
        return None
    return {"messages": [HumanMessage(event["message"], id=event["event_id"])]}


def answer_to(event: dict[str, str], messages: list[AnyMessage]) -> dict[str, str]:
    """The last that was said in the turn of an event, which need not be the last turn if it was delivered again."""
    _, *rest = dropwhile(lambda it: it.id != event["event_id"], messages)
    answer = ""
    for it in rest:
        if it.type == "human":
            break
        answer = it.text
    return {"answer": answer}

"""An agent that needs no network: it books cities, one after the other, each once a human has agreed."""

import asyncio
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import interrupt


class State(TypedDict, total=False):
    """A conversation, and what is still to be booked."""

    messages: Annotated[list[AnyMessage], add_messages]
    todo: list[str]


async def understand(state: State) -> dict[str, Any]:
    """Read what was asked: "book Oslo Rome" wants two bookings, "wait 5" takes five seconds."""
    verb, *words = state["messages"][-1].text.split()
    if verb == "wait":
        await asyncio.sleep(float(words[0]))
    return {"todo": words if verb == "book" else []}


async def book(state: State) -> dict[str, Any]:
    """Ask for one booking, and make it."""
    city, *rest = state["todo"]
    agreed = interrupt({"book": city})
    return {"messages": [AIMessage(f"{city} is {'booked' if agreed else 'left out'}.")], "todo": rest}


async def say(state: State) -> dict[str, Any]:
    """End the turn."""
    return {"messages": [AIMessage(f"That makes {len(state['messages'])} messages.")]}


def what_next(state: State) -> str:
    """Book what is left, one by one."""
    return "book" if state["todo"] else "say"


builder = StateGraph(State)
builder.add_node("understand", understand)
builder.add_node("book", book)
builder.add_node("say", say)
builder.add_edge(START, "understand")
builder.add_conditional_edges("understand", what_next)
builder.add_conditional_edges("book", what_next)
builder.add_edge("say", END)
graph = builder.compile()

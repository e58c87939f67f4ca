"""What the savers are given: threads of an agent that talks, calls tools and looks things up; the same for all of them.

Long threads are made by direct calls, with what a graph would have stored: a turn has twelve checkpoints and eleven
write batches. `agent` is the real graph; it takes its turns on top of such a thread. The state is bounded, as that of a
long-lived agent has to be: the last twenty messages (about 8 KB) and a document that changes with every turn (12 KB).
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, Checkpoint, CheckpointMetadata
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.graph.state import CompiledStateGraph
from typing_extensions import TypedDict

WINDOW = 20
TURN = 12
SYLLABLES = [a + b for a in "bdfgklmnprstvz" for b in ("a", "e", "i", "o", "u", "an", "er", "is")]


class Words:
    """Text that compresses as text does."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)
        vocabulary = random.Random("vocabulary")
        self._words = ["".join(vocabulary.choices(SYLLABLES, k=vocabulary.randint(1, 4))) for _ in range(2_000)]
        self._weights = [1 / (rank + 10) for rank in range(2_000)]

    def __call__(self, count: int) -> str:
        """So many words."""
        return " ".join(self._random.choices(self._words, self._weights, k=count))


def recent(left: list[AnyMessage], right: list[AnyMessage]) -> list[AnyMessage]:
    """Add messages and forget the oldest."""
    added: Any = add_messages(left, right)  # type: ignore[arg-type]
    return list(added)[-WINDOW:]


class State(TypedDict):
    """What the agent remembers."""

    messages: Annotated[list[AnyMessage], recent]
    document: str


def message(position: int, number: int, words: Words) -> AnyMessage:
    """The message that the position-th checkpoint of a turn adds: question, tool calls, their results, answer."""
    name = f"message-{number}"
    if position <= 1:
        return HumanMessage(words(40), id=name)
    if position == TURN - 1:
        return AIMessage(words(120), id=name, response_metadata={"model_name": "scripted", "finish_reason": "stop"})
    if position % 2:
        call = {"name": "search", "args": {"query": words(8)}, "id": f"call-{number}", "type": "tool_call"}
        return AIMessage(words(15), id=name, tool_calls=[call])
    return ToolMessage(words(150), id=name, tool_call_id=f"call-{number - 1}", name="search")


def agent(saver: BaseCheckpointSaver[Any], turn: int) -> CompiledStateGraph[Any, Any, Any, Any]:
    """A graph that answers in ten super-steps: it retrieves, calls a tool four times, and answers."""
    words, step = Words(f"turn {turn}"), iter(range(3, 3 + TURN))

    def retrieve(state: State) -> dict[str, Any]:
        return {"document": words(1_700)}

    def speak(state: State) -> dict[str, Any]:
        position = next(step)
        return {"messages": [message(position, turn * 1_000_000 + position, words)]}

    def chosen(state: State) -> str:
        last = state["messages"][-1]
        return "tools" if isinstance(last, AIMessage) and last.tool_calls else END

    builder = StateGraph(State)
    builder.add_node("retrieve", retrieve)
    builder.add_node("agent", speak)
    builder.add_node("tools", speak)
    builder.add_edge(START, "retrieve")
    builder.add_edge("retrieve", "agent")
    builder.add_conditional_edges("agent", chosen, ["tools", END])
    builder.add_edge("tools", "agent")
    return builder.compile(checkpointer=saver)


def question(turn: int) -> dict[str, Any]:
    """What the user says in a turn."""
    return {"messages": [message(0, turn * 1_000_000, Words(f"question {turn}"))]}


def uuid_of(number: int) -> str:
    """The number-th id; older than any that is made now."""
    return f"1e000000-0000-6000-8000-{number:012x}"


def config_for(thread: str, checkpoint_id: str | None = None) -> RunnableConfig:
    """A config as LangGraph passes it."""
    configurable = {"thread_id": thread, "checkpoint_ns": ""}
    return {"configurable": configurable if checkpoint_id is None else {**configurable, "checkpoint_id": checkpoint_id}}


@dataclass(frozen=True)
class Put:
    """The arguments of a `put`, without the config."""

    checkpoint: Checkpoint
    metadata: CheckpointMetadata
    new_versions: dict[str, Any]


@dataclass(frozen=True)
class Writes:
    """The arguments of a `put_writes`, without the config."""

    writes: Sequence[tuple[str, Any]]
    task_id: str


@dataclass
class Script:
    """Makes one thread, checkpoint after checkpoint.

    Attributes:
        thread: Its id.
        next_version: How the saver counts versions.
        number: Of the next checkpoint.
        values: All channels' values.
        versions: All channels' versions.
    """

    thread: str
    next_version: Any
    number: int = 1
    values: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._words = Words(self.thread.rpartition("/")[2])

    def step(self, last: bool = False) -> tuple[Writes | None, Put]:
        """The next super-step of a conversation: the writes of its task, and the checkpoint it leads to.

        Args:
            last: Whether the turn ends here.
        """
        position = TURN - 1 if last else (self.number - 1) % TURN
        values, source = self._changes(position), "update" if self.number % 20 == 0 else "loop"
        if not last and position < TURN - 1:
            values["branch:to:agent" if position % 2 else "branch:to:tools"] = None
        messages = values["messages"][-1:] if "messages" in values else []
        writes: list[tuple[str, Any]] = [("messages", messages), ("branch:to:agent", None)]
        task = Writes(writes, f"00000000-0000-4000-8000-{self.number:012x}")
        return None if position == 0 else task, self.put(values, source=source)

    def _changes(self, position: int) -> dict[str, Any]:
        if position == 2:
            return {"document": self._words(1_700)}
        messages = [*self.values.get("messages", []), message(position, self.number, self._words)]
        return {"messages": messages[-WINDOW:]}

    def put(
        self,
        values: Mapping[str, Any],
        *,
        touch: Sequence[str] = (),
        source: str = "loop",
        **metadata: Any,
    ) -> Put:
        """The next checkpoint: some channels have a new value, and `touch` names some with a new version and none."""
        emptied = {*touch, *(name for name in self.values if name.startswith("branch:"))} - values.keys()
        new = {name: self.next_version(self.versions.get(name), None) for name in [*values, *sorted(emptied)]}
        self.values = {name: it for name, it in self.values.items() if name not in emptied} | dict(values)
        self.versions = self.versions | new
        checkpoint = Checkpoint(
            v=4,
            id=uuid_of(self.number),
            ts="2026-01-01T00:00:00+00:00",
            channel_values=dict(self.values),
            channel_versions=dict(self.versions),
            versions_seen={"__input__": {}, **{n: dict(self.versions) for n in ("agent", "tools", "retrieve")}},
            updated_channels=sorted(values),
        )
        described: Any = {"source": source, "step": self.number - 2, "parents": {}, **metadata}
        self.number += 1
        return Put(checkpoint, described, new)


def noise(size: int, seed: int = 0) -> bytes:
    """Bytes that do not compress, such as an image."""
    return random.Random(seed).randbytes(size)

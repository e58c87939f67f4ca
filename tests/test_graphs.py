"""Real graphs: whatever they do with this saver, they do with LangGraph's own InMemorySaver.

A *story* runs a graph at a place and returns all that was seen on the way. It is told twice, here and in
memory, and has to be the same. A new saver at a place is another process: it knows what is stored, no more.
"""

from __future__ import annotations

import asyncio
import operator
import os
import random
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypedDict

import pytest
import zstandard
from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableConfig
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Durability, Interrupt, Overwrite, Send, StateSnapshot, interrupt

from langgraph.checkpoint.s3 import S3Saver
from tests.support.fake_s3 import FakeS3
from tests.support.savers import PREFIX, AioStore, BotoStore, FakeStore, Memory, Place

Story: TypeAlias = Callable[[Place], list[Any]]
Saver: TypeAlias = BaseCheckpointSaver[str]
Graph: TypeAlias = Any  # CompiledStateGraph, whose parameters say nothing here

ANNA: RunnableConfig = {"configurable": {"thread_id": "anna"}}
FORK: RunnableConfig = {"configurable": {"thread_id": "fork"}}


def check(store: Place, story: Story) -> None:
    assert story(store) == story(Memory())


def plain(it: Any) -> Any:
    """A value without what differs from run to run: ids, and the order of what is parallel."""
    if isinstance(it, BaseMessage):
        return it.type, it.content, [(call["name"], call["args"]) for call in getattr(it, "tool_calls", [])]
    if isinstance(it, Interrupt):
        return "interrupt", it.value
    if isinstance(it, StateSnapshot):
        return seen(it)
    if isinstance(it, Mapping):
        # Parallel tasks interrupt in whatever order they get there.
        return {
            key: plain(sorted(value, key=lambda it: repr(it.value)) if key == "__interrupt__" else value)
            for key, value in it.items()
        }
    if isinstance(it, (list, tuple)):
        return [plain(value) for value in it]
    return it


def seen(it: StateSnapshot) -> dict[str, Any]:
    """What a snapshot shows, without ids and times."""
    metadata: Mapping[str, Any] = it.metadata or {}
    return {
        "values": plain(it.values),
        "next": it.next,
        "interrupts": plain(it.interrupts),
        "metadata": {key: metadata.get(key) for key in ("source", "step", "counters_since_delta_snapshot")},
        "parent": it.parent_config is not None,
        "tasks": [
            (task.name, plain(task.result), repr(task.error), plain(task.interrupts), plain(task.state))
            if isinstance(task.state, StateSnapshot)
            else (task.name, plain(task.result), repr(task.error), plain(task.interrupts))
            for task in it.tasks
        ],
    }


def history(graph: Graph, config: RunnableConfig) -> list[dict[str, Any]]:
    return [seen(it) for it in graph.get_state_history(config)]


def earlier(graph: Graph, config: RunnableConfig, step: int) -> RunnableConfig:
    """The newest checkpoint of a step."""
    found: RunnableConfig = next(it.config for it in graph.get_state_history(config) if it.metadata["step"] == step)
    return found


# -- agents ----------------------------------------------------------------------------------------


def weather(city: str) -> str:
    """Tell the weather."""
    return f"sunny in {city}"


def book(city: str) -> str:
    """Book a flight, if a human agrees."""
    return f"{city}: {interrupt({'book': city})}"


class PlayedModel(BaseChatModel):
    """Calls the tool that the question begins with, for every city in it at once; then repeats what it is told."""

    @property
    def _llm_type(self) -> str:
        return "played"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> PlayedModel:
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        tool, *cities = str(messages[-1].content).split()
        if isinstance(messages[-1], ToolMessage):
            answer = AIMessage(f"I have {len(messages)} messages, the last is {messages[-1].content!r}.")
        else:
            calls = [{"name": tool, "args": {"city": city}, "id": f"{len(messages)}-{city}"} for city in cities]
            answer = AIMessage("", tool_calls=calls)
        return ChatResult(generations=[ChatGeneration(message=answer)])


def agent(saver: Saver) -> Graph:
    return create_agent(PlayedModel(), [weather, book], checkpointer=saver)


def ask(graph: Graph, text: str, config: RunnableConfig = ANNA) -> Any:
    return plain(graph.invoke({"messages": [("user", text)]}, config))


def test_an_agent_talks_for_several_turns(store: Place) -> None:
    def story(place: Place) -> list[Any]:
        graph = agent(place.saver())
        told = [ask(graph, text) for text in ("weather Oslo", "weather Rome Lima", "weather Bern")]
        return [*told, *history(graph, ANNA)]

    check(store, story)


def test_an_agent_waits_for_a_human_and_another_process_resumes_it(store: Place) -> None:
    def story(place: Place) -> list[Any]:
        told = [ask(agent(place.saver()), "book Oslo"), seen(agent(place.saver()).get_state(ANNA))]
        told.append(plain(agent(place.saver()).invoke(Command(resume="yes"), ANNA)))
        waiting = agent(place.saver())
        told.append(ask(waiting, "book Rome Lima"))  # two questions at once, answered one after the other
        for answer in ("no", "maybe"):
            waiting = agent(place.saver())
            first = waiting.get_state(ANNA).interrupts[0]
            told.append(plain(waiting.invoke(Command(resume={first.id: answer}), ANNA)))
        return [*told, *history(waiting, ANNA)]

    check(store, story)


# -- small graphs ----------------------------------------------------------------------------------


def append(state: list[str], writes: Sequence[list[str]]) -> list[str]:
    return [*state, *chain.from_iterable(writes)]


class Log(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    last: str


class Inner(TypedDict, total=False):
    last: str
    count: Annotated[int, operator.add]


class Large(Log, total=False):
    text: str


class Rich(Large, total=False):
    delta: Annotated[list[str], DeltaChannel(append, snapshot_frequency=3)]


def says(name: str) -> Callable[[Log], Log]:
    """A node that writes its name, and how much it saw."""
    return lambda state: {"log": [f"{name} {len(state['log'])}"], "last": name}


def asks(name: str) -> Callable[[Log], Log]:
    """A node that asks two questions, one after the other."""
    return lambda state: {"log": [f"{name}: {interrupt(f'{name} 1')} {interrupt(f'{name} 2')}"]}


def line(saver: Any, state: type = Log, **nodes: Any) -> Graph:
    """A graph of nodes one after the other."""
    builder: Any = StateGraph(state)
    builder.add_sequence(list(nodes.items()))
    builder.add_edge(START, next(iter(nodes)))
    return builder.compile(checkpointer=saver)


def test_a_node_asks_twice_and_is_resumed_twice(store: Place) -> None:
    def story(place: Place) -> list[Any]:
        def graph() -> Graph:
            return line(place.saver(), first=says("first"), asking=asks("asking"), last=says("last"))

        told = [plain(graph().invoke({"log": ["hello"]}, ANNA))]
        for answer in ("one", "two"):
            told += [seen(graph().get_state(ANNA)), plain(graph().invoke(Command(resume=answer), ANNA))]
        return [*told, *history(graph(), ANNA)]

    check(store, story)


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_parallel_tasks_that_finished_are_not_run_again_after_a_failure(store: Place, durability: Durability) -> None:
    def story(place: Place) -> list[Any]:
        runs: Counter[str] = Counter()

        def node(name: str) -> Callable[[Log], Log]:
            def run(state: Log) -> Log:
                runs[name] += 1
                if name == "fails" and runs[name] == 1:
                    time.sleep(0.05)  # let the others finish
                    raise ConnectionError("once")
                return {"log": [name]}

            return run

        def graph() -> Graph:
            builder: Any = StateGraph(Log)
            for name in ("one", "two", "fails"):
                builder.add_node(name, node(name))
                builder.add_edge(START, name)
            builder.add_node("end", node("end"))
            builder.add_edge(["one", "two", "fails"], "end")
            return builder.compile(checkpointer=place.saver())

        with pytest.raises(ConnectionError):
            graph().invoke({"log": []}, ANNA, durability=durability)
        told = [seen(graph().get_state(ANNA))]
        told.append(plain(graph().invoke(None, ANNA, durability=durability)))
        assert runs == {"one": 1, "two": 1, "fails": 2, "end": 1}
        return [*told, *history(graph(), ANNA)]

    check(store, story)


def test_a_fan_out_gathers_what_all_tasks_sent(store: Place) -> None:
    def story(place: Place) -> list[Any]:
        def graph() -> Graph:
            builder: Any = StateGraph(Log)
            builder.add_node("plan", says("plan"))
            builder.add_node("work", lambda it: {"log": [f"work {it}" if it != 7 else f"7: {interrupt('7?')}"]})
            builder.add_node("end", says("end"))
            builder.add_edge(START, "plan")
            builder.add_conditional_edges("plan", lambda state: [Send("work", n) for n in range(20)], ["work"])
            builder.add_edge("work", "end")
            return builder.compile(checkpointer=place.saver())

        told = [plain(graph().invoke({"log": []}, ANNA)), seen(graph().get_state(ANNA))]
        told.append(plain(graph().invoke(Command(resume="seven"), ANNA)))
        return [*told, *history(graph(), ANNA)]

    check(store, story)


def nested(saver: Saver, depth: int, inner: Any = None) -> Graph:
    """A graph in a graph in a graph, whose innermost node asks; only the outermost knows the saver."""
    graph = line(inner, asking=asks("asking"))
    for level in range(depth - 1):
        graph = line(
            inner, **{f"before_{level}": says(f"before {level}"), f"a_rather_long_name_of_level_{level}": graph}
        )
    return line(saver, before=says("before"), inside=graph, after=says("after"))


@pytest.mark.parametrize("depth", [1, 5])
@pytest.mark.parametrize("pruned", [False, True], ids=["", "pruned"])
def test_a_nested_subgraph_waits_and_is_resumed(store: Place, depth: int, pruned: bool) -> None:
    def story(place: Place) -> list[Any]:
        told = [plain(nested(place.saver(), depth).invoke({"log": ["hello"]}, ANNA, subgraphs=True))]
        for answer in ("one", "two"):
            if pruned:
                place.saver().prune(["anna"])
            told.append(seen(nested(place.saver(), depth).get_state(ANNA, subgraphs=True)))
            told.append(plain(nested(place.saver(), depth).invoke(Command(resume=answer), ANNA)))
        return told if pruned else [*told, *history(nested(place.saver(), depth), ANNA)]

    check(store, story)


@pytest.mark.parametrize("own", [True, False, None], ids=["with a memory of its own", "stateless", "inheriting"])
def test_a_subgraph_keeps_its_own_state_or_none(store: Place, own: bool | None) -> None:
    def story(place: Place) -> list[Any]:
        def graph() -> Graph:
            def count(state: Inner) -> dict[str, Any]:
                return {"count": 1, "last": f"seen {state.get('count', 0)}"}

            return line(place.saver(), outer=says("outer"), inner=line(own, Inner, count=count), end=says("end"))

        told: list[Any] = []
        for turn in range(3):
            stream = graph().stream({"log": [f"turn {turn}"]}, ANNA, subgraphs=True, stream_mode="values")
            told += [values for _, values in stream]
        return [*told, *history(graph(), ANNA)]

    check(store, story)


# -- time travel and forks -------------------------------------------------------------------------


def three(saver: Saver) -> Graph:
    return line(saver, one=says("one"), two=says("two"), three=says("three"))


def test_time_travel(store: Place) -> None:
    def story(place: Place) -> list[Any]:
        graph = three(place.saver())
        for turn in range(2):
            graph.invoke({"log": [f"turn {turn}"]}, ANNA)
        past = earlier(graph, ANNA, 1)
        told: list[Any] = [history(graph, ANNA), seen(graph.get_state(past))]
        told.append(plain(graph.invoke(None, past)))  # runs on from there
        told.append(plain(three(place.saver()).invoke({"log": ["another"]}, past)))  # another question from there
        changed = graph.update_state(past, {"log": ["by hand"]}, as_node="one")
        told += [seen(graph.get_state(changed)), plain(graph.invoke(None, changed))]
        told.append(plain(graph.invoke(None, graph.update_state(ANNA, {"log": ["at the end"]}))))
        return [*told, history(graph, ANNA)]

    check(store, story)


def test_a_checkpoint_is_copied_with_and_without_changes(store: Place) -> None:
    def story(place: Place) -> list[Any]:
        graph = three(place.saver())
        graph.invoke({"log": ["hello"]}, ANNA)
        past = earlier(graph, ANNA, 1)
        told = []
        for update in (None, [({"log": ["by hand"]}, "two")]):
            copied = three(place.saver()).update_state(past, update, as_node="__copy__")
            told += [seen(graph.get_state(copied)), plain(graph.invoke(None, copied))]
        graph.update_state(ANNA, None, as_node=END)
        return [*told, *history(graph, ANNA)]

    check(store, story)


def rich(saver: Any) -> Graph:
    """A graph with all that a thread can hold: large values, delta channels, a subgraph that waits, an agent's talk."""

    def grow(state: Rich) -> Rich:
        return {"text": noise(len(state["log"])), "delta": [f"grown {len(state['delta'])}"]}

    return line(saver, Rich, first=says("first"), grow=grow, inside=line(None, asking=asks("asking")))


def noise(seed: int, size: int = 3000) -> str:
    """Text that does not compress."""
    return random.Random(seed).randbytes(size // 2).hex()


def live(place: Place, turns: int, config: RunnableConfig = ANNA, **options: Any) -> list[Any]:
    """Some turns of the rich graph. The last is left waiting."""
    told = []
    for turn in range(turns):
        graph = rich(place.saver(**options))
        told.append(plain(graph.invoke({"log": [f"turn {turn}"], "delta": [f"turn {turn}"]}, config)))
        if turn < turns - 1:
            told.append(plain(graph.invoke(Command(resume="one"), config)))
            told.append(plain(rich(place.saver(**options)).invoke(Command(resume="two"), config)))
    return told


def go_on(place: Place, config: RunnableConfig, *answers: str, **options: Any) -> list[Any]:
    """Answer what a rich graph waits for."""
    return [plain(rich(place.saver(**options)).invoke(Command(resume=it), config)) for it in answers]


def state(place: Place, config: RunnableConfig) -> dict[str, Any]:
    return seen(rich(place.saver()).get_state(config, subgraphs=True))


def test_a_copied_thread_goes_its_own_way(store: Place) -> None:
    def story(place: Place) -> list[Any]:
        told = live(place, 2, inline_threshold=500)
        place.saver().copy_thread("anna", "fork")
        assert state(place, FORK) == state(place, ANNA)
        told += [history(rich(place.saver()), FORK), *go_on(place, FORK, "fork 1", "fork 2")]
        told += [state(place, ANNA), *go_on(place, ANNA, "anna 1", "anna 2")]
        return [*told, state(place, FORK), history(rich(place.saver()), ANNA), history(rich(place.saver()), FORK)]

    check(store, story)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("pruned", [False, True], ids=["", "pruned"])
def test_a_plain_copy_of_all_objects_is_a_fork(seed: int, pruned: bool) -> None:
    store, memory = FakeStore(), Memory()
    source, target = f"{PREFIX}/anna/", f"{PREFIX}/fork/"
    for place in (store, memory):
        live(place, 3, inline_threshold=500)
        if pruned:
            place.saver().prune(["anna"])
            go_on(place, ANNA, "one", inline_threshold=500)
    memory.copy_thread("anna", "fork")
    keys = store.s3.keys(source)
    random.Random(seed).shuffle(keys)
    for key in keys:
        store.s3[target + key[len(source) :]] = store.s3[key]

    before = below(store.s3, source)
    assert state(store, FORK) == state(store, ANNA) == state(memory, ANNA)
    assert go_on(store, FORK, "f1", "f2", inline_threshold=500) == go_on(memory, FORK, "f1", "f2")
    store.saver().prune(["fork"])
    assert state(store, FORK)["values"] == state(memory, FORK)["values"]
    assert below(store.s3, source) == before
    store.saver().delete_thread("fork")
    assert below(store.s3, source) == before
    assert go_on(store, ANNA, "a1", "a2", inline_threshold=500) == go_on(memory, ANNA, "a1", "a2")


def below(s3: FakeS3, prefix: str) -> dict[str, bytes]:
    return {key: s3[key] for key in s3.keys(prefix)}


# -- delta channels --------------------------------------------------------------------------------


def delta(saver: Saver, frequency: int) -> Graph:
    deltas: Any = TypedDict(
        "deltas",
        {
            "log": Annotated[list[str], DeltaChannel(append, snapshot_frequency=frequency)],
            "rare": Annotated[list[str], DeltaChannel(append, snapshot_frequency=frequency + 1)],
            "last": str,
        },
        total=False,
    )

    def left(state: Any) -> Any:
        return {"log": [f"left {len(state['log'])}"], "last": "left"}

    def right(state: Any) -> Any:
        return {"log": ["right"], "rare": [f"right {len(state['log'])}"]} if len(state["log"]) % 4 else {"log": ["r"]}

    builder: Any = StateGraph(deltas)
    builder.add_node("left", left)
    builder.add_node("right", right)
    builder.add_node("end", lambda state: {"log": ["end"]})
    builder.add_edge(START, "left")
    builder.add_edge(START, "right")
    builder.add_edge(["left", "right"], "end")
    return builder.compile(checkpointer=saver)


def delta_story(frequency: int, durability: Durability) -> Story:
    def story(place: Place) -> list[Any]:
        told: list[Any] = []

        def graph() -> Graph:
            return delta(place.saver(), frequency)

        def turn(text: str, config: RunnableConfig = ANNA) -> None:
            told.append(graph().invoke({"log": [text]}, config, durability=durability))
            told.append(seen(graph().get_state(ANNA)))

        turn("one")
        turn("two")
        graph().update_state(ANNA, {"log": ["by hand"], "rare": ["by hand"]}, as_node="left")
        turn("three")
        told.append(history(graph(), ANNA))
        turn("fork", list(graph().get_state_history(ANNA))[3].config)
        turn("four")
        told.append(history(graph(), ANNA))
        place.saver().prune(["anna"])
        told.append(seen(graph().get_state(ANNA)))
        turn("five")
        graph().update_state(ANNA, {"log": Overwrite(["all new"])}, as_node="end")
        turn("six")
        place.saver().prune(["anna"])
        place.saver().prune(["anna"])
        told.append(seen(graph().get_state(ANNA)))
        turn("seven")
        place.saver().copy_thread("anna", "fork")
        turn("eight", FORK)
        turn("nine")
        return told

    return story


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("frequency", [1, 2, 3, 5, 1000])
def test_delta_channels_give_the_same_state_at_every_turn(frequency: int, durability: Durability) -> None:
    check(FakeStore(), delta_story(frequency, durability))


@pytest.mark.parametrize("kind", [BotoStore, AioStore])
def test_delta_channels_over_the_real_client(kind: type[BotoStore | AioStore], s3_endpoint: str) -> None:
    def story(place: Place) -> list[Any]:
        told = []
        for turn in range(3):
            told.append(delta(place.saver(), 4).invoke({"log": [f"turn {turn}"]}, ANNA))
            place.saver().prune(["anna"])
            told.append(seen(delta(place.saver(), 4).get_state(ANNA)))
        return told

    store = kind(s3_endpoint)
    check(store, story)
    store.close()


@pytest.fixture
def boto_store(s3_endpoint: str) -> Any:
    store = BotoStore(s3_endpoint)
    yield store
    store.close()


# -- the async methods -----------------------------------------------------------------------------


@pytest.mark.skipif(
    sys.version_info < (3, 11), reason="LangGraph's interrupt() in asynchronous graphs needs Python 3.11"
)
def test_the_async_methods_tell_the_same(store: Place) -> None:
    async def tell(place: Place) -> list[Any]:
        graph = rich(place.saver(inline_threshold=500))
        told: list[Any] = [
            [plain(it) async for it in graph.astream({"log": ["hi"], "delta": []}, ANNA, stream_mode="updates")]
        ]
        told.append(plain(await graph.ainvoke(Command(resume="one"), ANNA)))
        graph = rich(place.saver(inline_threshold=500))
        told.append([plain(it) async for it in graph.astream(Command(resume="two"), ANNA, stream_mode="values")])
        await graph.aupdate_state(ANNA, {"log": ["by hand"], "delta": ["by hand"]}, as_node="first")
        told.append(seen(await graph.aget_state(ANNA)))
        told.append([seen(it) async for it in graph.aget_state_history(ANNA)])
        await asyncio.gather(
            *(graph.ainvoke({"log": [f"{n}"], "delta": []}, {"configurable": {"thread_id": f"{n}"}}) for n in range(8))
        )
        for n in range(8):
            told.append(seen(await graph.aget_state({"configurable": {"thread_id": f"{n}"}})))
        return told

    check(store, lambda place: asyncio.run(tell(place)))


# -- serializers and large values ------------------------------------------------------------------


class Odd:
    """Something that only pickle can store."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Odd) and other.value == self.value

    __hash__ = None  # type: ignore[assignment]


class WithOdd(Log, total=False):
    odd: Odd


@pytest.mark.parametrize(
    ("serde", "readable"),
    [
        (EncryptedSerializer.from_pycryptodome_aes(key=b"0123456789abcdef"), False),
        (JsonPlusSerializer(pickle_fallback=True), True),
        (EncryptedSerializer.from_pycryptodome_aes(JsonPlusSerializer(pickle_fallback=True), key=b"k" * 32), False),
    ],
    ids=["encrypted", "pickle", "encrypted pickle"],
)
def test_a_thread_is_stored_by_the_serializer_that_was_given(serde: SerializerProtocol, readable: bool) -> None:
    store, memory = FakeStore(), Memory()
    secret = noise(0, 100)
    for place in (store, memory):
        graph = line(place.saver(serde=serde), agreed=says("agreed"), asking=asks("asking"))
        graph.invoke({"log": [secret]}, ANNA)
    story = [line(it.saver(serde=serde), a=says("a"), asking=asks("asking")).get_state(ANNA) for it in (store, memory)]
    assert seen(story[0]) == seen(story[1])
    assert any(secret.encode() in readable_part(store.s3[key]) for key in store.s3.keys(PREFIX)) == readable


def readable_part(data: bytes) -> bytes:
    """An object, uncompressed as far as it is compressed."""
    at = data.find(zstandard.MAGIC_NUMBER.to_bytes(4, "little"))
    return (
        data
        if at < 0
        else data[:at] + readable_part(zstandard.ZstdDecompressor().decompressobj().decompress(data[at:]))
    )


def test_a_value_that_only_pickle_knows(store: Place) -> None:
    def story(place: Place) -> list[Any]:
        saver = place.saver(serde=JsonPlusSerializer(pickle_fallback=True))
        saver.serde = JsonPlusSerializer(pickle_fallback=True)  # which Memory does not take at its making
        graph = line(saver, WithOdd, odd=lambda state: {"odd": Odd(len(state["log"]))}, end=says("end"))
        return [graph.invoke({"log": ["hello"]}, ANNA), *history(graph, ANNA)]

    check(store, story)


@pytest.mark.parametrize("threshold", [0, 500, 1 << 20])
def test_large_values_are_inherited_and_outlive_a_prune(store: Place, threshold: int) -> None:
    def story(place: Place) -> list[Any]:
        def graph() -> Graph:
            return line(place.saver(inline_threshold=threshold), Large, one=says("one"), two=says("two"))

        told = [graph().invoke({"log": ["first"], "text": noise(1)}, ANNA)]
        told += [graph().invoke({"log": [f"turn {turn}"]}, ANNA) for turn in range(2)]
        told += [history(graph(), ANNA)]
        for turn in range(2):
            place.saver().prune(["anna"])
            told += [seen(graph().get_state(ANNA)), graph().invoke({"log": [f"after {turn}"]}, ANNA)]
        told += [graph().invoke({"text": noise(2), "log": []}, ANNA)]
        place.saver().prune(["anna"])
        return [*told, seen(graph().get_state(ANNA))]

    check(store, story)


def test_an_unchanged_large_value_is_stored_once() -> None:
    store = FakeStore()
    graph = line(store.saver(), Large, one=says("one"), two=says("two"))
    graph.invoke({"log": [], "text": noise(1, 100_000)}, ANNA)
    for _ in range(5):
        graph.invoke({"log": ["more"]}, ANNA)
    assert len([key for key in store.s3.keys(PREFIX) if "/blob/text." in key]) == 1
    store.saver().prune(["anna"])
    assert len([key for key in store.s3.keys(PREFIX) if "/blob/" in key]) == 1
    assert graph.get_state(ANNA).values["text"] == noise(1, 100_000)


# -- processes -------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_saver_survives_a_fork_of_the_process(boto_store: BotoStore) -> None:
    graph = three(boto_store.saver(client=None))
    graph.invoke({"log": ["parent"]}, ANNA)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # this process has threads, as many have
        child = os.fork()
    if child == 0:
        try:
            graph.invoke({"log": ["child"]}, ANNA)
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    log = graph.invoke({"log": ["parent again"]}, ANNA)["log"]
    assert [it for it in log if not it.startswith(("one", "two", "three"))] == ["parent", "child", "parent again"]


WORKER = """
import sys
from tests.test_graphs import ANNA, S3Saver, three
name, url = sys.argv[1:]
with S3Saver.from_conn_string(url) as saver:
    print("ready", flush=True)
    sys.stdin.readline()
    for turn in range(5):
        three(saver).invoke({"log": [f"{name} {turn}"]}, ANNA)
"""

ASYNC_WORKER = """
import asyncio, sys
from langgraph.checkpoint.s3.aio import AsyncS3Saver
from tests.test_graphs import ANNA, three
name, url = sys.argv[1:]
async def main():
    async with AsyncS3Saver.from_conn_string(url) as saver:
        print("ready", flush=True)
        sys.stdin.readline()
        for turn in range(5):
            await three(saver).ainvoke({"log": [f"{name} {turn}"]}, ANNA)
asyncio.run(main())
"""


def test_two_processes_on_one_thread_do_not_harm_each_other(boto_store: BotoStore) -> None:
    three(boto_store.saver()).invoke({"log": ["start"]}, ANNA)
    root = Path(__file__).parents[1]
    url = f"s3://{boto_store.bucket}/{PREFIX}?endpoint_url={boto_store.endpoint}"
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", worker, name, url],
            env={**os.environ, "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name, worker in (("left", WORKER), ("right", ASYNC_WORKER))
    ]
    for worker in workers:  # both are ready before either begins
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    for worker in workers:
        worker.communicate("go\n", timeout=60)
        assert worker.returncode == 0

    with S3Saver(boto_store.bucket, PREFIX, endpoint_url=boto_store.endpoint) as saver:
        logs = {it.config["configurable"]["checkpoint_id"]: it for it in three(saver).get_state_history(ANNA)}
        assert len(logs) == 5 + 2 * 5 * 5  # an input and three nodes each, and where it begins
        for it in logs.values():
            if it.parent_config is not None:  # every checkpoint is whole and goes on from its parent
                parent = logs[it.parent_config["configurable"]["checkpoint_id"]]
                log = parent.values.get("log", [])
                assert it.values.get("log", [])[: len(log)] == log
        assert "end" in three(saver).invoke({"log": ["end"]}, ANNA)["log"]

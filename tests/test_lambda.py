"""The agent of `examples/lambda` as it runs on Lambda: under AWS's own runtime client, in processes that are killed.

A relay stands before moto's server, so that a process can be stopped at any of its requests.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from langchain_core.messages import BaseMessage, ToolMessage
from langchain_core.runnables import RunnableConfig

from tests.support.lambda_runtime import TIMEOUT, Exited, Function, FunctionError
from tests.support.relay import Relay
from tests.support.savers import PREFIX, MotoStore

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="awslambdaric has wheels for Linux only")

EXAMPLE = Path(__file__).parents[1] / "examples" / "lambda"

SYNC, ASYNC, KEPT = "handler.handler", "async_handler.handler", "kept_loop.handler"

KEPT_LOOP = """
import asyncio
from async_handler import main
loop = asyncio.new_event_loop()
def handler(event, context):
    return loop.run_until_complete(main(event))
"""

Event: TypeAlias = dict[str, str]


class Bench:
    """A bucket behind a relay, functions that work on it, and what their tools have done."""

    def __init__(self, store: MotoStore, relay: Relay, scratch: Path) -> None:
        self.store, self.relay = store, relay
        self._scratch, self._bookings = scratch, scratch / "bookings"
        self._bookings.touch()
        self._open = ExitStack()

    def start(self, handler: str, **environment: str) -> Function:
        """A function of the example's; `KEPT` is the asynchronous one on a loop of its own."""
        path = [Path(__file__).parents[1] / "src", self._scratch, EXAMPLE, *sys.path]
        environment = {
            "AWS_ENDPOINT_URL_S3": self.relay.endpoint,
            "BOOKINGS": str(self._bookings),
            "BUCKET": self.store.bucket,
            "LANGSMITH_TRACING": "false",
            "PREFIX": PREFIX,
            "PYTHONPATH": ":".join(map(str, path)),
            **environment,
        }
        (self._scratch / "kept_loop.py").write_text(KEPT_LOOP)
        return self._open.enter_context(Function(EXAMPLE, handler, environment))

    def close(self) -> None:
        self._open.close()

    def bookings(self) -> Counter[str]:
        """How often each call of the tool was carried out."""
        return Counter(self._bookings.read_text().split())

    def messages(self, thread: str) -> list[BaseMessage]:
        """The messages in the newest checkpoint of a thread."""
        it = self.store.saver().get_tuple(config_of(thread))
        return it.checkpoint["channel_values"].get("messages", []) if it else []

    def said(self, thread: str) -> list[Any]:
        """The same, without ids that differ from thread to thread."""
        return [
            (it.type, it.content, [(call["name"], call["args"]) for call in getattr(it, "tool_calls", [])])
            for it in self.messages(thread)
        ]

    def carried_out(self, thread: str) -> set[str]:
        """The calls of the tool whose results are stored, as messages or as writes of a task."""
        it = self.store.saver().get_tuple(config_of(thread))
        writes = [value for _, channel, value in (it and it.pending_writes) or () if channel == "messages"]
        stored = self.messages(thread) + [message for value in writes for message in value]
        return {message.tool_call_id for message in stored if isinstance(message, ToolMessage)}

    def stored(self) -> list[str]:
        """The keys that were put since `relay.answered` was cleared, as far as they are acknowledged."""
        start = f"/{self.store.bucket}/"
        return [it.path.removeprefix(start) for it in self.relay.answered if it.method == "PUT"]

    def check_nothing_lost(self, thread: str, acknowledged: list[str]) -> None:
        """What was acknowledged lies there, and every checkpoint of it is in the history that readers see."""
        saver = self.store.saver()
        seen = {it.config["configurable"]["checkpoint_id"] for it in saver.list(config_of(thread))}
        assert {key.split(".")[-1].split("/")[0] for key in acknowledged if key.endswith("/checkpoint")} <= seen
        client: Any = saver._driver._client
        for key in acknowledged:
            client.head_object(Bucket=self.store.bucket, Key=key)

    def check_finished(self, function: Function, event: Event, answer: Any) -> None:
        """Delivered once more, an event is answered alike; nothing is done and nothing stored."""
        before = self.bookings()
        self.relay.answered.clear()
        assert function.invoke(event) == answer
        assert (self.bookings(), self.stored()) == (before, [])


def config_of(thread: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}


def event_of(thread: str, number: int) -> Event:
    message = ("book Oslo Rome", "book Lima Bern")[number - 1]
    return {"thread_id": thread, "event_id": f"{thread}-{number}", "message": message}


ANSWERS = [
    {"answer": "So far you have a flight to Oslo, a flight to Rome."},
    {"answer": "So far you have a flight to Oslo, a flight to Rome, a flight to Lima, a flight to Bern."},
]

SAID = [
    ("human", "book Oslo Rome", []),
    ("ai", "", [("book", {"city": "Oslo"}), ("book", {"city": "Rome"})]),
    ("tool", "a flight to Oslo", []),
    ("tool", "a flight to Rome", []),
    ("ai", ANSWERS[0]["answer"], []),
    ("human", "book Lima Bern", []),
    ("ai", "", [("book", {"city": "Lima"}), ("book", {"city": "Bern"})]),
    ("tool", "a flight to Lima", []),
    ("tool", "a flight to Bern", []),
    ("ai", ANSWERS[1]["answer"], []),
]
"""What a thread holds after two undisturbed turns."""


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.fixture
def bench(moto_endpoint: str, tmp_path: Path) -> Iterator[Bench]:
    store = MotoStore(moto_endpoint)
    with Relay(moto_endpoint) as relay:
        it = Bench(store, relay, tmp_path)
        yield it
        it.close()
    store.close()


@pytest.mark.parametrize("handler", [SYNC, ASYNC])
def test_a_cold_start_and_warm_invocations(bench: Bench, handler: str) -> None:
    function = bench.start(handler)
    for thread in ("anna", "bert"):
        assert [function.invoke(event_of(thread, number)) for number in (1, 2)] == ANSWERS
        assert bench.said(thread) == SAID
    for number in (1, 2):  # an older event too has its own answer
        bench.check_finished(function, event_of("anna", number), ANSWERS[number - 1])
    other = bench.start(handler)
    bench.check_finished(other, event_of("anna", 2), ANSWERS[1])
    assert bench.said("anna") == SAID
    assert len(bench.bookings()) == bench.bookings().total() == 8
    assert function.log() == other.log() == ""


def test_errors_name_what_is_wrong(bench: Bench) -> None:
    function = bench.start(SYNC, BUCKET="no-such-bucket")
    for _ in range(2):  # the process outlives an error
        with pytest.raises(FunctionError, match=r"^invocation/.*: StorageError: .*no-such-bucket.* does not exist"):
            function.invoke(event_of("anna", 1))
    broken = bench.start("no_handler.handler")
    with pytest.raises(FunctionError, match=r"^init/error: Runtime.ImportModuleError: "):
        broken.result()
    with pytest.raises(Exited, match="status 1: "):
        broken.result()


# -- frozen ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("handler", [SYNC, ASYNC, KEPT])
@pytest.mark.parametrize("cut", [Relay.close_connections, Relay.forget_connections])
def test_a_frozen_function_thaws_although_its_connections_are_dead(
    bench: Bench, handler: str, cut: Callable[[Relay], None]
) -> None:
    function = bench.start(handler)
    function.invoke(event_of("anna", 1))
    function.freeze()
    assert bench.relay.connections() or handler == ASYNC  # whose loop has ended, and with it its client
    cut(bench.relay)
    function.send(event_of("anna", 2))
    time.sleep(0.1)
    assert not function.answered()
    function.thaw()
    assert function.result() == ANSWERS[1]
    assert bench.said("anna") == SAID
    bench.check_finished(function, event_of("anna", 2), ANSWERS[1])
    assert bench.bookings().total() == 4
    assert function.log() == ""


# -- killed ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("handler", "turn"), [(SYNC, 1), (SYNC, 2), (ASYNC, 2)])
def test_killed_at_any_request_a_turn_is_finished_by_the_next_delivery(bench: Bench, handler: str, turn: int) -> None:
    """A call whose result is stored is not carried out again; one that was under way is, once."""
    spared = repeated = 0
    function = bench.start(handler)
    for allowed in count():
        thread = f"thread-{allowed}"
        event = event_of(thread, turn)
        for number in range(1, turn):
            function.invoke(event_of(thread, number))
        bench.relay.answered.clear()
        bench.relay.hold_after(allowed)
        function.send(event)
        wait_for(lambda it=function: bench.relay.holds() or it.answered())  # type: ignore[misc]
        if function.answered():
            break
        function.kill()
        assert function.log() == ""
        bench.relay.drop()

        acknowledged, before, done = bench.stored(), bench.bookings(), bench.carried_out(thread)
        function = bench.start(handler)
        assert function.invoke(event) == ANSWERS[turn - 1]
        assert bench.said(thread) == SAID[: 5 * turn]
        bench.check_nothing_lost(thread, acknowledged)
        calls = bench.carried_out(thread)
        assert len(calls) == 2 * turn
        assert bench.bookings() - before == Counter(calls - done)
        spared += len(done) - 2 * (turn - 1)
        repeated += sum(before[it] for it in calls - done)
        bench.check_finished(function, event, ANSWERS[turn - 1])
        assert function.log() == ""
    assert allowed > 10
    assert spared
    assert repeated


# -- twice at once ---------------------------------------------------------------------------------


def test_two_processes_with_the_same_event_at_once_do_not_harm_the_thread(bench: Bench) -> None:
    """The second begins when the first has made so many requests; each does its work, as LangGraph has it."""
    functions = [bench.start(handler) for handler in (SYNC, ASYNC)]
    for head_start in (0, 3, 6, 9):
        thread = f"thread-{head_start}"
        for turn in (1, 2):
            event = event_of(thread, turn)
            bench.relay.answered.clear()
            bench.relay.hold_after(head_start)
            functions[0].send(event)
            wait_for(bench.relay.holds)
            functions[1].send(event)
            wait_for(lambda: bench.relay.holds(2))
            bench.relay.release()
            assert [it.result() for it in functions] == [ANSWERS[turn - 1]] * 2
            assert bench.said(thread) == SAID[: 5 * turn]
            bench.check_nothing_lost(thread, bench.stored())
            calls = bench.carried_out(thread)
            assert len(calls) == 2 * turn
            assert all(1 <= bench.bookings()[it] <= 2 for it in calls)
            for it in functions:
                bench.check_finished(it, event, ANSWERS[turn - 1])
    assert [it.log() for it in functions] == ["", ""]

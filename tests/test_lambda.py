"""The agent of `examples/lambda` as it runs on Lambda: under AWS's own runtime client, in processes that are killed.

Before each process stands a relay to the server, so that it can be stopped at any of its requests.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from itertools import count, product
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from langchain_core.messages import BaseMessage, ToolMessage
from langchain_core.runnables import RunnableConfig

from tests.support.lambda_runtime import TIMEOUT, Exited, Function, FunctionError
from tests.support.relay import Relay
from tests.support.savers import PREFIX, BotoStore, shared_client

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="awslambdaric has wheels for Linux only")

EXAMPLE = Path(__file__).parents[1] / "examples" / "lambda"

SYNC, ASYNC, KEPT = "handler.handler", "async_handler.handler", "kept_loop.handler"

Event: TypeAlias = dict[str, str]


class Agent(Function):
    """A function of the example's, with a relay to the bucket that is its own."""

    def __init__(self, relay: Relay, handler: str, environment: Mapping[str, str]) -> None:
        self.relay = relay
        super().__init__(EXAMPLE, handler, {**environment, "AWS_ENDPOINT_URL_S3": relay.endpoint})

    def kill(self) -> None:
        """End it; what it has sent and nobody has read is lost too."""
        super().kill()
        self.relay.drop()

    def puts(self) -> list[str]:
        """The paths that were put since `relay.answered` was cleared, each beginning with the bucket."""
        return [it.path for it in self.relay.answered if it.method == "PUT"]


class Deployment:
    """A bucket, agents that work on it, and what their tools have done."""

    def __init__(self, store: BotoStore, scratch: Path) -> None:
        self.store = store
        self._bookings = scratch / "bookings"
        self._bookings.touch()
        path = [Path(__file__).parents[1] / "src", EXAMPLE, *sys.path]
        self._environment = {
            "BOOKINGS": str(self._bookings),
            "BUCKET": store.bucket,
            "LANGSMITH_TRACING": "false",
            "PREFIX": PREFIX,
            "PYTHONPATH": os.pathsep.join(map(str, path)),
        }
        self._open = ExitStack()

    def start(self, handler: str, **environment: str) -> Agent:
        """Another process; it starts while the test goes on."""
        relay = self._open.enter_context(Relay(self.store.endpoint))
        agent = Agent(relay, handler, self._environment | environment)
        self._open.push(agent)
        return agent

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

    def check_nothing_lost(self, thread: str, acknowledged: list[str]) -> None:
        """What was put lies there, and every checkpoint of it is in the history that readers see."""
        saver = self.store.saver()
        seen = {it.config["configurable"]["checkpoint_id"] for it in saver.list(config_of(thread))}
        assert {path.split(".")[-1].split("/")[0] for path in acknowledged if path.endswith("/checkpoint")} <= seen
        for path in acknowledged:
            bucket, key = path[1:].split("/", 1)
            shared_client(self.store.endpoint).head_object(Bucket=bucket, Key=key)

    def check_finished(self, agent: Agent, event: Event, answer: Any) -> None:
        """Delivered once more, an event is answered alike; nothing is done and nothing stored."""
        before = self.bookings()
        agent.relay.answered.clear()
        assert agent.invoke(event) == answer
        assert (self.bookings(), agent.puts()) == (before, [])


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
def deployment(s3_endpoint: str, tmp_path: Path) -> Iterator[Deployment]:
    store = BotoStore(s3_endpoint)
    it = Deployment(store, tmp_path)
    yield it
    it.close()
    store.close()


@pytest.mark.parametrize("handler", [SYNC, ASYNC])
def test_a_cold_start_and_warm_invocations(deployment: Deployment, handler: str) -> None:
    agent = deployment.start(handler)
    for thread in ("anna", "bert"):
        assert [agent.invoke(event_of(thread, turn)) for turn in (1, 2)] == ANSWERS
        assert deployment.said(thread) == SAID
    for turn in (1, 2):  # an older event too has its own answer
        deployment.check_finished(agent, event_of("anna", turn), ANSWERS[turn - 1])
    other = deployment.start(handler)
    deployment.check_finished(other, event_of("anna", 2), ANSWERS[1])
    assert deployment.said("anna") == SAID
    assert len(deployment.bookings()) == deployment.bookings().total() == 8
    assert agent.log() == other.log() == ""


def test_errors_name_what_is_wrong(deployment: Deployment) -> None:
    agent = deployment.start(SYNC, BUCKET="no-such-bucket")
    for _ in range(2):  # the process outlives an error
        with pytest.raises(FunctionError, match=r"^invocation/.*: BucketNotFound: .*s3://no-such-bucket/"):
            agent.invoke(event_of("anna", 1))
    broken = deployment.start("no_handler.handler")
    with pytest.raises(FunctionError, match=r"^init/error: Runtime.ImportModuleError: "):
        broken.result()
    with pytest.raises(Exited, match="status 1: "):
        broken.result()


# -- frozen ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("handler", [SYNC, ASYNC, KEPT])
@pytest.mark.parametrize("cut", [Relay.close_connections, Relay.forget_connections])
def test_a_frozen_function_thaws_although_its_connections_are_dead(
    deployment: Deployment, handler: str, cut: Callable[[Relay], None]
) -> None:
    agent = deployment.start(handler)
    agent.invoke(event_of("anna", 1))
    agent.freeze()
    assert agent.relay.connections() or handler == ASYNC  # whose loop has ended, and with it its client
    cut(agent.relay)
    agent.send(event_of("anna", 2))
    time.sleep(0.1)
    assert not agent.answered()
    agent.thaw()
    assert agent.result() == ANSWERS[1]
    assert deployment.said("anna") == SAID
    deployment.check_finished(agent, event_of("anna", 2), ANSWERS[1])
    assert deployment.bookings().total() == 4
    assert agent.log() == ""


# -- killed ----------------------------------------------------------------------------------------


def killed(agent: Agent, event: Event, allowed: int) -> bool:
    """Send an event, and kill the process when it asks for more than so many requests; False if it never does."""
    agent.relay.answered.clear()
    agent.relay.hold_after(allowed)
    agent.send(event)
    wait_for(lambda: agent.relay.holds() or agent.answered())
    if agent.answered():
        return False
    agent.kill()
    return True


@pytest.mark.parametrize(("handler", "turn"), [(SYNC, 1), (SYNC, 2), (ASYNC, 2)])
def test_killed_at_any_request_a_turn_is_finished_by_the_next_delivery(
    deployment: Deployment, handler: str, turn: int
) -> None:
    """A call whose result is stored is not carried out again; one that was under way is, once, under the same id."""
    spared = repeated = 0
    agent = deployment.start(handler)
    calls: set[str] = set()
    for allowed in count():
        thread = f"thread-{allowed}"
        event = event_of(thread, turn)
        for earlier in range(1, turn):
            agent.invoke(event_of(thread, earlier))
        if not killed(agent, event, allowed):
            break
        assert agent.log() == ""
        acknowledged, before, done = agent.puts(), deployment.bookings(), deployment.carried_out(thread)

        agent = deployment.start(handler)
        assert agent.invoke(event) == ANSWERS[turn - 1]
        assert deployment.said(thread) == SAID[: 5 * turn]
        deployment.check_nothing_lost(thread, acknowledged)
        again = deployment.carried_out(thread) - done
        assert deployment.bookings() - before == Counter(again)
        deployment.check_finished(agent, event, ANSWERS[turn - 1])
        assert agent.log() == ""
        calls |= done | again
        assert deployment.bookings().keys() == calls
        spared += len(done) - 2 * (turn - 1)
        repeated += sum(before[it] for it in again)
    assert allowed > 10
    assert spared
    assert repeated


# -- twice at once ---------------------------------------------------------------------------------


def test_two_processes_with_the_same_event_at_once_do_not_harm_the_thread(deployment: Deployment) -> None:
    """The second begins when the first has made so many requests; each does its work, as LangGraph has it."""
    one, other = deployment.start(SYNC), deployment.start(ASYNC)
    for head_start, turn in product((0, 3, 6, 9), (1, 2)):
        thread = f"thread-{head_start}"
        event = event_of(thread, turn)
        for agent, allowed in ((one, head_start), (other, 0)):
            agent.relay.answered.clear()
            agent.relay.hold_after(allowed)
            agent.send(event)
            wait_for(agent.relay.holds)
        one.relay.release()
        other.relay.release()
        assert [one.result(), other.result()] == [ANSWERS[turn - 1]] * 2
        assert deployment.said(thread) == SAID[: 5 * turn]
        deployment.check_nothing_lost(thread, one.puts() + other.puts())
        assert deployment.carried_out(thread) <= deployment.bookings().keys()
        for agent in (one, other):
            deployment.check_finished(agent, event, ANSWERS[turn - 1])
    assert deployment.bookings().total() <= 2 * 4 * 2 * 2  # agents, threads, turns, calls
    assert one.log() == other.log() == ""

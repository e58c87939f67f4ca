"""Every operation, stopped after each of its requests, or with the answer to one of them lost.

A new saver, which remembers nothing, then reads the old state or the new one, and never anything in between.
The operation repeated ends in the new state.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeAlias

import pytest
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.types import INTERRUPT

from langgraph.checkpoint.s3 import MissingObject, S3Saver, StorageError, _requests
from langgraph.checkpoint.s3.retention import RetentionPolicy
from tests.support.fake_s3 import FakeDriver, FakeS3, Order, crash_states
from tests.support.threads import Script, config_for, noise, saver_on, uuid_of

Operation: TypeAlias = Callable[[S3Saver], Generator[Any, Any, Any]]
State: TypeAlias = dict[str, Any]

OPTIONS: dict[str, Any] = {"inline_threshold": 100}
HEAD = 4
SPACES = ("", "child:1")
ORDERS = pytest.mark.parametrize("order", ["forward", "backward", 1, 2])


# -- the bucket --------------------------------------------------------------------------------------


def bucket() -> FakeS3:
    """A thread of two namespaces and a bystander: large values, a delta channel, pending writes and three runs."""
    s3 = FakeS3()
    for thread in ("thread", "bystander"):
        for ns in SPACES:
            _ = build(s3, thread, ns, HEAD)
    return s3


def build(s3: FakeS3, thread: str, ns: str, length: int) -> Script:
    """`large` is inherited from the first checkpoint, `larger` from the third; the delta log begins with the first."""
    script = Script(saver_on(s3, **OPTIONS), thread, ns)
    _ = script.put({"large": noise(300, 1), "log": ["seed"]}, run_id=f"{thread} early")
    for depth in range(1, length):
        script.write("log", depth)
        values = {"n": depth} | ({"larger": noise(400, 2)} if depth == 2 else {})
        run = "middle" if depth in (1, 2) else "late"
        _ = script.put(values, touch=("log",), run_id=f"{thread} {run}", **counters(depth))
    if length == HEAD:
        script.write("n", "pending")
        script.saver.put_writes(script.config, [(INTERRUPT, "wait")], "task")
    return script


def counters(depth: int) -> dict[str, Any]:
    return {"counters_since_delta_snapshot": {"log": [depth, depth]}}


# -- the operations ----------------------------------------------------------------------------------


def putting(values: dict[str, Any], parent: int = HEAD, know: bool = True, **options: Any) -> Operation:
    """The put of a child of some checkpoint, by a saver that has read that one, or not."""

    def plan(saver: S3Saver) -> Generator[Any, Any, Any]:
        script = build(FakeS3(), "thread", "", parent)
        caught: list[Any] = []

        class Catcher:
            def put(self, *arguments: Any) -> None:
                caught.append(arguments)

        if know:
            assert saver.get_tuple(script.config) is not None
        script.saver = Catcher()  # type: ignore[assignment]
        _ = script.put(values, id=uuid_of(9), **options)
        return saver._put_plan(*caught[0])

    return plan


def writing(*writes: tuple[str, Any], task: str = "task 2") -> Operation:
    return lambda saver: saver._put_writes_plan(config_for("thread", uuid_of(HEAD)), writes, task, "")


def retaining(**policy: Any) -> Operation:
    """Applying a policy, where what fails is raised and not only reported. The clock is far ahead."""

    def plan(saver: S3Saver) -> Generator[Any, Any, Any]:
        work = saver._application(RetentionPolicy(**policy), ["thread"], False, None, None, None)
        yield from work.next_plan()
        if work.report.failed:
            raise StorageError(str(work.report.problems))

    return plan


RUNS = ("early", "middle", "late")
OPERATIONS: dict[str, Operation] = {
    "put small": putting({"n": 9, "large": 1, "larger": 2, "log": ["all"]}),
    "put large": putting({"a": noise(300, 3), "b": noise(300, 4), "large": 1, "larger": 2}),
    "put inheriting large": putting({"n": 9}),
    "put not held": putting({"n": 9}, hold=False),
    "put unread": putting({"n": 9}, know=False),
    "put delta": putting({}, touch=("log",), **counters(HEAD)),
    "put delta and large": putting({"a": noise(300, 3)}, touch=("log",), **counters(HEAD)),
    "put of a run": putting({"a": noise(300, 3)}, run_id="new"),
    "put fork": putting({"n": 9}, parent=2, touch=("log",), **counters(2)),
    "put_writes regular": writing(("n", 1), ("log", 2)),
    "put_writes special": writing((INTERRUPT, "again"), task="task"),
    "put_writes mixed": writing((INTERRUPT, "again"), ("n", 1)),
    "put_writes repeated and longer": writing(("n", "no"), ("log", "yes"), (INTERRUPT, "again"), task="task"),
    "delete_thread": lambda saver: saver._delete_thread_plan("thread"),
    "delete_for_runs, the newest": lambda saver: saver._delete_for_runs_plan(["thread late"]),
    "delete_for_runs, in the middle": lambda saver: saver._delete_for_runs_plan(["thread middle"]),
    "delete_for_runs, the oldest": lambda saver: saver._delete_for_runs_plan(["thread early"]),
    "delete_for_runs, all": lambda saver: saver._delete_for_runs_plan([f"thread {it}" for it in RUNS]),
    "copy_thread": lambda saver: saver._copy_thread_plan("thread", "fork"),
    "prune keep_latest": lambda saver: saver._prune_plan(["thread"], "keep_latest"),
    "prune delete": lambda saver: saver._prune_plan(["thread"], "delete"),
    "retention, the last two": retaining(keep_last=2),
    "retention, an idle thread": retaining(thread_idle=timedelta(0), keep_interrupted=False),
}
NAMES = pytest.mark.parametrize("name", OPERATIONS)


def start(name: str, base: FakeS3, attempt: int = 1) -> Generator[Any, Any, Any]:
    """The plan of an operation, by a saver that has read the thread in `base` if it has to."""
    saver = saver_on(base.copy(), **OPTIONS)
    saver._clock = lambda: (1 << 62) + attempt  # later than what the bucket was built with
    saver._random = lambda: 0.1 * attempt
    return OPERATIONS[name](saver)


# -- what can be seen --------------------------------------------------------------------------------


def observe(s3: FakeS3, thread: str) -> State:
    """All that a new saver can read of a thread, by namespace: every checkpoint, the latest, the heads' histories."""
    saver = saver_on(s3, **OPTIONS)
    listed = list(saver.list({"configurable": {"thread_id": thread}}))
    return {ns: observe_space(saver, thread, ns, listed) for ns in SPACES}


def observe_space(saver: S3Saver, thread: str, ns: str, listed: Sequence[CheckpointTuple]) -> State:
    here = [it for it in listed if it.config["configurable"]["checkpoint_ns"] == ns]
    latest = saver.get_tuple(config_for(thread, None, ns))
    assert latest == (here[0] if here else None)
    return {"checkpoints": here, "histories": [history_of(saver, it) for it in here]}


def history_of(saver: S3Saver, it: CheckpointTuple) -> Any:
    if not it.metadata.get("counters_since_delta_snapshot"):
        return None
    try:
        return saver.get_delta_channel_history(config=it.config, channels=["log"])
    except MissingObject:
        return MissingObject


def is_old_or_new(state: State, old: State, new: State) -> None:
    """Each namespace has a commit point of its own."""
    for ns in SPACES:
        assert state[ns] in (old[ns], new[ns])


def is_part_of(state: State, whole: State) -> None:
    """Each checkpoint that can be seen is whole, and in its order; of its history no part is wrong."""
    for ns in SPACES:
        known = {it.checkpoint["id"]: number for number, it in enumerate(whole[ns]["checkpoints"])}
        for it, history in zip(state[ns]["checkpoints"], state[ns]["histories"], strict=True):
            number = known[it.checkpoint["id"]]
            assert it == whole[ns]["checkpoints"][number]
            assert history in (whole[ns]["histories"][number], MissingObject)


def check_between(name: str, s3: FakeS3, old: State, new: State) -> None:
    if name == "copy_thread":
        is_part_of(observe(s3, "fork"), new)
    else:
        is_old_or_new(observe(s3, "thread"), old, new)


def distinct(states: Iterable[FakeS3]) -> Iterator[FakeS3]:
    """Those that differ from the one before: reading changes nothing."""
    last = None
    for s3 in states:
        if s3.snapshot() != last:
            yield s3
        last = s3.snapshot()


def target(name: str) -> str:
    return "fork" if name == "copy_thread" else "thread"


def run_again(name: str, s3: FakeS3, base: FakeS3) -> State:
    """What is to be seen after a new process has repeated the operation."""
    again = FakeDriver(s3.copy())
    _ = again.run(start(name, base, 2))
    return observe(again.s3, target(name))


def states_of(name: str) -> tuple[FakeS3, State, State, int]:
    """The bucket, what is to be seen before and after, and how many requests there are between."""
    base = bucket()
    driver = FakeDriver(base.copy())
    _ = driver.run(start(name, base))
    old, new = observe(base, target(name)), observe(driver.s3, target(name))
    assert old != new
    assert MissingObject not in [it for ns in SPACES for it in new[ns]["histories"][:1]]
    return base, old, new, driver.applied


# -- the tests ---------------------------------------------------------------------------------------


@NAMES
@ORDERS
def test_stopped_after_each_request(name: str, order: Order) -> None:
    base, old, new, requests = states_of(name)
    bystander = observe(base, "bystander") if order == "forward" else None
    source = observe(base, "thread")
    states = list(crash_states(base, lambda: start(name, base), order))
    assert len(states) == requests + 1
    for s3 in distinct(states):
        check_between(name, s3, old, new)
        assert run_again(name, s3, base) == new
        assert name != "copy_thread" or observe(s3, "thread") == source
        assert bystander is None or observe(s3, "bystander") == bystander
    assert observe(states[-1], target(name)) == new


@pytest.mark.parametrize(
    "name", ["delete_thread", *[it for it in OPERATIONS if it.startswith(("prune", "retention")) or "_for_runs" in it]]
)
def test_stopped_between_any_two_deletions(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a thread of many thousands of objects, or where DeleteObjects itself stops halfway."""
    base, old, new, _ = states_of(name)
    monkeypatch.setattr(_requests, "MAX_DELETE", 1)
    for s3 in distinct(crash_states(base, lambda: start(name, base))):
        state = observe(s3, "thread")
        is_part_of(state, old)
        for ns in SPACES:  # what is to stay is there, and reads as before
            for it, history in zip(new[ns]["checkpoints"], new[ns]["histories"], strict=True):
                assert it in state[ns]["checkpoints"]
                assert history == state[ns]["histories"][state[ns]["checkpoints"].index(it)]
        assert run_again(name, s3, base) == new


@NAMES
def test_lost_answers(name: str) -> None:
    """The request took effect and the client sent it again, as botocore does."""
    base, _, new, requests = states_of(name)
    states = []
    undisturbed = FakeDriver(base.copy()).run(start(name, base))
    for number in range(1, requests + 1):
        driver = FakeDriver(base.copy())
        driver.lose_answer(number)
        assert driver.run(start(name, base)) == undisturbed
        states.append(driver.s3)
    for s3 in distinct(states):
        assert observe(s3, target(name)) == new


@NAMES
@pytest.mark.parametrize("took_effect", [True, False])
def test_answers_that_never_come(name: str, took_effect: bool) -> None:
    """The caller is told that it failed, and repeats it."""
    base, old, new, requests = states_of(name)
    states = []
    for number in range(1, requests + 1):
        driver = FakeDriver(base.copy())
        (driver.fail_answer if took_effect else driver.fail_before)(number)
        with pytest.raises(StorageError):
            _ = driver.run(start(name, base))
        states.append(driver.s3)
    for s3 in distinct(states):
        check_between(name, s3, old, new)
        assert run_again(name, s3, base) == new

"""Every operation, stopped after each of its requests: a new saver then reads the old state or the new one.

And repeated after that, it ends in the new state. The same where an answer is lost, and the client or the
caller tries again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import pytest
from langgraph.checkpoint.serde.types import INTERRUPT

from langgraph.checkpoint.s3 import MissingObject, S3Saver, StorageError
from tests.support.fake_s3 import FakeDriver, FakeS3, crash_states
from tests.support.threads import Script, config_for, noise, saver_on, uuid_of

OPTIONS: dict[str, Any] = {"inline_threshold": 100}
LENGTH = 4
Step = Callable[[S3Saver], Generator[Any, Any, Any]]
HEAD = config_for("thread", uuid_of(LENGTH))


def bucket() -> FakeS3:
    """A thread with two namespaces, large values, a delta channel, pending writes and three runs; and a bystander."""
    s3 = FakeS3()
    for thread in ("thread", "bystander"):
        for ns in ("", "child:1"):
            script = Script(saver_on(s3, **OPTIONS), thread, ns)
            _ = script.put({"large": noise(300), "log": ["seed"]}, run_id=f"{thread} early")
            for depth in range(1, LENGTH):
                script.write("log", depth)
                counters: dict[str, Any] = {"counters_since_delta_snapshot": {"log": [depth, depth]}}
                run = "middle" if depth == 1 else "late"
                large = {"blob": noise(300, depth)} if depth > 1 else {}
                _ = script.put({"n": depth, **large}, touch=("log",), run_id=f"{thread} {run}", **counters)
            script.write("n", "pending")
            script.saver.put_writes(script.config, [(INTERRUPT, "wait")], "task")
    return s3


def script_on(saver: S3Saver) -> Script:
    """Goes on from the thread's head."""
    it = saver.get_tuple(HEAD)
    assert it is not None
    script = Script(saver, first=LENGTH + 1)
    script.head = uuid_of(LENGTH)
    script.values = dict(it.checkpoint["channel_values"])
    script.versions = {name: str(version) for name, version in it.checkpoint["channel_versions"].items()}
    return script


def plan_of(saver: S3Saver, act: Callable[[Script], Any]) -> Generator[Any, Any, Any]:
    """The plan that a put would run, after the thread was read."""
    script = script_on(saver)
    caught: list[Any] = []

    class Catcher:
        def put(self, *arguments: Any) -> None:
            caught.append(arguments)

    script.saver = Catcher()  # type: ignore[assignment]
    act(script)
    return saver._put_plan(*caught[0])


def writing(*writes: tuple[str, Any], task: str = "task 2") -> Step:
    return lambda saver: saver._put_writes_plan(HEAD, writes, task, "")


COUNTERS: dict[str, Any] = {"counters_since_delta_snapshot": {"log": [LENGTH, LENGTH]}}
OPERATIONS: dict[str, Step] = {
    "put": lambda saver: plan_of(saver, lambda script: script.put({"n": 9, "large": 1, "blob": 2, "log": ["all"]})),
    "put that inherits": lambda saver: plan_of(saver, lambda script: script.put({"n": 9})),
    "put of large values": lambda saver: plan_of(
        saver, lambda script: script.put({"a": noise(300), "b": noise(300, 2)})
    ),
    "put of a delta channel": lambda saver: plan_of(saver, lambda script: script.put({}, touch=("log",), **COUNTERS)),
    "put of a run": lambda saver: plan_of(saver, lambda script: script.put({"blob": noise(300, 9)}, run_id="new")),
    "put_writes": writing(("n", 1), ("log", 2)),
    "put_writes, special": writing((INTERRUPT, "again"), task="task"),
    "put_writes, mixed": writing((INTERRUPT, "again"), ("n", 1)),
    "put_writes, longer": writing(("n", "not this"), ("log", "but this"), (INTERRUPT, "and this"), task="task"),
    "delete_thread": lambda saver: saver._delete_thread_plan("thread"),
    "delete_for_runs, late": lambda saver: saver._delete_for_runs_plan(["thread late"]),
    "delete_for_runs, middle": lambda saver: saver._delete_for_runs_plan(["thread middle"]),
    "copy_thread": lambda saver: saver._copy_thread_plan("thread", "fork"),
    "prune": lambda saver: saver._prune_plan(["thread"], "keep_latest"),
    "prune, delete": lambda saver: saver._prune_plan(["thread"], "delete"),
}


def observe(s3: FakeS3) -> dict[str, Any]:
    """All that can be read: every checkpoint with its delta history. The latest one is looked up too."""
    saver = saver_on(s3, **OPTIONS)
    seen: dict[str, Any] = {}
    for it in saver.list(None):
        at = it.config["configurable"]
        seen[f"{at['thread_id']} {at['checkpoint_ns']} {at['checkpoint_id']}"] = it, history(saver, it)
    for thread in ("thread", "bystander", "fork"):
        for ns in ("", "child:1"):
            latest = saver.get_tuple(config_for(thread, None, ns))
            visible = sorted(key for key in seen if key.startswith(f"{thread} {ns} 1f"))
            assert (latest is None) == (not visible)
            assert latest is None or latest == seen[visible[-1]][0]
    return seen


def history(saver: S3Saver, it: Any) -> Any:
    if not it.metadata.get("counters_since_delta_snapshot"):
        return None
    return saver.get_delta_channel_history(config=it.config, channels=["log"])


def run_again(s3: FakeS3, name: str) -> dict[str, Any]:
    """The state after the operation was repeated by a new process, which may find that nothing is left to do."""
    s3 = s3.copy()
    driver = FakeDriver(s3)
    saver = saver_on(driver, **OPTIONS)
    _ = driver.run(OPERATIONS[name](saver))
    return observe(s3)


def is_whole(name: str, state: dict[str, Any], old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Each namespace is as before or as after. A copy may have brought some of its checkpoints, each as it will be."""
    if name == "copy_thread":
        return all(it in (old.get(key), new.get(key)) for key, it in state.items()) and old.keys() <= state.keys()
    spaces = {key.rpartition(" ")[0] for key in [*old, *new]}
    return all(part(state, space) in (part(old, space), part(new, space)) for space in spaces)


def part(state: dict[str, Any], space: str) -> dict[str, Any]:
    """What of a state is in one namespace of a thread."""
    return {key: it for key, it in state.items() if key.rpartition(" ")[0] == space}


@pytest.mark.parametrize("order", ["forward", "backward", 1, 2])
@pytest.mark.parametrize("name", OPERATIONS)
def test_stopped_after_each_request(name: str, order: Any) -> None:
    base = bucket()
    old = observe(base)
    states = list(crash_states(base, lambda: OPERATIONS[name](saver_on(base.copy(), **OPTIONS)), order))
    new = observe(states[-1])
    assert new != old
    assert len(states) > 1
    for s3 in states:
        try:
            state = observe(s3)
        except MissingObject:
            # A copy is complete only with its last checkpoint; until then a delta channel may lack ancestors.
            assert name == "copy_thread"
            continue
        assert is_whole(name, state, old, new)
    for s3 in states[:: max(1, len(states) // 12)]:
        assert run_again(s3, name) == new


@pytest.mark.parametrize("name", OPERATIONS)
def test_lost_answers(name: str) -> None:
    """The request took effect, the answer did not arrive, and the client sent it again."""
    base = bucket()
    counting = FakeDriver(base.copy())
    _ = counting.run(OPERATIONS[name](saver_on(base.copy(), **OPTIONS)))
    new = observe(counting.s3)
    for number in range(1, counting.applied + 1):
        driver = FakeDriver(base.copy())
        driver.lose_answer(number)
        _ = driver.run(OPERATIONS[name](saver_on(base.copy(), **OPTIONS)))
        assert observe(driver.s3) == new


@pytest.mark.parametrize("name", OPERATIONS)
def test_answers_that_never_come(name: str) -> None:
    """The request took effect, but all that is known is an error: the caller is told, and tries again."""
    base = bucket()
    counting = FakeDriver(base.copy())
    _ = counting.run(OPERATIONS[name](saver_on(base.copy(), **OPTIONS)))
    new = observe(counting.s3)
    for number in range(1, counting.applied + 1, max(1, counting.applied // 12)):
        driver = FakeDriver(base.copy())
        driver.fail_answer(number)
        with pytest.raises(StorageError):
            _ = driver.run(OPERATIONS[name](saver_on(base.copy(), **OPTIONS)))
        assert run_again(driver.s3, name) == new

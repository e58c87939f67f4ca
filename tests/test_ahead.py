"""Reading ahead of a walk along a chain, as Agent Server walks: few round trips, and what separate reads would give."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from langgraph.checkpoint.base import CheckpointTuple

from langgraph.checkpoint.s3 import S3Saver
from langgraph.checkpoint.s3._ahead import SECONDS, WINDOWS, ReadAhead
from langgraph.checkpoint.s3._plans import ahead as ahead_plan
from tests.support.fake_s3 import FakeDriver, FakeS3
from tests.support.threads import Script, config_for, noise, saver_on, uuid_of

LENGTH = 100


def thread(length: int = LENGTH, *, deltas: bool = True, large: bool = False, name: str = "thread") -> FakeS3:
    """A chain of checkpoints, each with a pending write."""
    s3 = FakeS3()
    script = Script(saver_on(s3), name)
    _ = script.put({"log": ["seed"], "document": noise(50_000, 0) if large else "small"})
    for depth in range(1, length):
        counters: dict[str, Any] = {"counters_since_delta_snapshot": {"log": [depth, depth]}} if deltas else {}
        script.write("log", [depth])
        values = {"document": noise(50_000, depth)} if large and depth % 5 == 0 else {}
        _ = script.put(values, touch=("log",), **counters)
    script.write("log", ["pending"])
    return s3


class Clock:
    """Two clocks to set by hand."""

    def __init__(self) -> None:
        self.now = [100.0, 1_000.0]

    def __call__(self) -> tuple[float, float]:
        return self.now[0], self.now[1]

    def pass_by(self, seconds: float) -> None:
        self.now = [it + seconds for it in self.now]


class Walker:
    """A process that reads the newest checkpoint, and then its ancestors one after the other."""

    def __init__(self, s3: FakeS3, **options: Any) -> None:
        self.driver, self.clock = FakeDriver(s3), Clock()
        self.saver = saver_on(self.driver, **options)
        self.saver._ahead = ReadAhead(self.clock)

    def walk(self, steps: int, at: CheckpointTuple | None = None) -> list[CheckpointTuple]:
        """The newest and its ancestors, or the ancestors of some checkpoint."""
        found: list[CheckpointTuple] = []
        if at is None:
            at = self.saver.get_tuple(config_for("thread"))
            assert at is not None
            found.append(at)
        for _ in range(steps):
            assert at is not None
            assert at.parent_config is not None
            at = self.saver.get_tuple(at.parent_config)
            assert at is not None
            found.append(at)
        return found


def one_by_one(s3: FakeS3, found: list[CheckpointTuple]) -> list[CheckpointTuple | None]:
    """The same by savers that know nothing."""
    return [saver_on(s3).get_tuple(it.config) for it in found]


@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
@pytest.mark.parametrize("cache_bytes", [32 << 20, 0], ids=["cache", "no cache"])
def test_fifty_ancestors_in_few_round_trips(large: bool, cache_bytes: int) -> None:
    s3 = thread(large=large)
    walker = Walker(s3, cache_bytes=cache_bytes)
    with walker.driver.measure() as cost:
        found = walker.walk(50)
    assert cost.round_trips <= (7 if large else 6)  # the oldest large value was stored further back
    assert cost.lists == 3
    assert found == one_by_one(s3, found)
    with walker.driver.measure() as cost:
        found = walker.walk(40, found[-1])
    assert cost.round_trips <= 3
    assert found == one_by_one(s3, found)


def test_who_takes_one_step_back_does_not_walk() -> None:
    walker = Walker(thread())
    with walker.driver.measure() as cost:
        _ = walker.walk(1)
    assert (cost.lists, cost.gets) == (2, 4)


def test_without_delta_channels_nobody_walks() -> None:
    walker = Walker(thread(deltas=False))
    with walker.driver.measure() as cost:
        _ = walker.walk(10)
    assert cost.lists == 11


def test_no_further_than_the_chain_reaches() -> None:
    s3 = thread(10)
    walker = Walker(s3)
    with walker.driver.measure() as cost:
        found = walker.walk(9)
    assert cost.gets == 2 + 2 * 9
    assert found == one_by_one(s3, found)


def test_a_fork_is_walked_along_its_own_branch() -> None:
    s3 = thread(20)
    saver = saver_on(s3)
    script = Script(saver, first=200)
    script.head = uuid_of(10)
    for depth in range(10, 20):
        _ = script.delta_step("log", ["fork", depth], depth)
        other = Script(saver, first=script.number)
        other.head, script.number = uuid_of(20), script.number + 1
        _ = other.delta_step("log", ["other"], 20)
    walker = Walker(s3)
    at = saver.get_tuple(config_for("thread", script.head))
    found = walker.walk(19, at)
    assert found == one_by_one(s3, found)


def test_many_keys_beside_one_checkpoint() -> None:
    s3 = thread(20)
    for number in range(900):
        saver_on(s3).put_writes(config_for("thread", uuid_of(15)), [("log", number)], f"task-{number}")
    walker = Walker(s3)
    found = walker.walk(19)
    assert found == one_by_one(s3, found)


def test_writes_without_their_checkpoint_on_the_way() -> None:
    s3 = thread(20)
    saver_on(s3).put_writes(config_for("thread", uuid_of(14)[:-12] + "0000000e0000"), [("log", "orphan")], "task")
    for number in (5, 9):
        del s3[next(key for key in s3.keys("") if key.endswith(f"{uuid_of(number)}/checkpoint"))]
    walker = Walker(s3)
    found = walker.walk(10)
    assert found == one_by_one(s3, found)
    assert walker.saver.get_tuple(config_for("thread", uuid_of(9))) is None


def test_a_walk_to_a_checkpoint_that_is_gone() -> None:
    s3 = thread(20)
    walker = Walker(s3)
    last = walker.walk(1)[-1]
    saver_on(s3).prune(["thread"])
    assert last.parent_config is not None
    assert walker.saver.get_tuple(last.parent_config) is None


@pytest.mark.parametrize("page_size", [1, 7])
def test_short_pages(page_size: int) -> None:
    s3 = thread(20)
    s3.page_size = page_size
    found = Walker(s3).walk(19)
    assert found == one_by_one(s3, found)


def test_too_much_to_hold_is_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead_plan, "WINDOW_BYTES", 100_000)
    s3 = thread(40, large=True)
    walker = Walker(s3)
    with walker.driver.measure() as cost:
        found = walker.walk(39)
    assert found == one_by_one(s3, found)
    assert 4 < cost.lists < 20


def writes_to(saver: S3Saver) -> None:
    saver.put_writes(config_for("thread", uuid_of(50)), [("log", "late")], "late")


OWN: dict[str, Callable[[S3Saver], None]] = {
    "put_writes": writes_to,
    "delete_thread": lambda saver: saver.delete_thread("thread"),
    "prune": lambda saver: saver.prune(["thread"]),
    "prune delete": lambda saver: saver.prune(["thread"], strategy="delete"),
    "delete_for_runs": lambda saver: saver.delete_for_runs(["run"]),
    "copy_thread": lambda saver: saver.copy_thread("other", "thread"),
}


def prepared() -> FakeS3:
    """The thread, with a run that wrote its fiftieth checkpoint, and another thread that has it otherwise."""
    s3 = thread()
    saver = saver_on(s3)
    script = Script(saver, first=50)
    script.head = uuid_of(49)
    counters: Any = {"counters_since_delta_snapshot": {"log": [49, 49]}}
    _ = script.put({}, touch=("log",), run_id="run", **counters)
    saver.copy_thread("thread", "other")
    saver.put_writes(config_for("other", uuid_of(50)), [("log", "copied")], "copied")
    return s3


@pytest.mark.parametrize("name", list(OWN))
def test_what_this_saver_does_is_seen_at_once(name: str) -> None:
    s3 = prepared()
    walker = Walker(s3)
    _ = walker.walk(4)  # has read ahead down to the fiftieth
    config = config_for("thread", uuid_of(50))
    before = walker.saver.get_tuple(config)
    OWN[name](walker.saver)
    after = walker.saver.get_tuple(config)
    assert after == saver_on(s3).get_tuple(config)
    assert after != before


@pytest.mark.parametrize("name", list(OWN))
def test_what_this_saver_does_while_it_reads_ahead_is_seen_at_once(name: str) -> None:
    """Whatever the moment: a read that began before must not leave behind what it found."""
    config = config_for("thread", uuid_of(50))
    for moment in range(4):  # before the first request, after the listing, after the reads; after all
        s3 = prepared()
        walker = Walker(s3)
        last = walker.walk(1)[-1]
        assert last.parent_config is not None
        plan = walker.saver._get_plan(last.parent_config)
        requests: Any = ()
        with contextlib.suppress(StopIteration):
            for step in range(10):
                if step == moment:
                    OWN[name](walker.saver)
                replies: Any = [s3.apply(it) for it in requests] if step else None
                requests = plan.send(replies)
        if moment > step:
            OWN[name](walker.saver)
        assert walker.saver.get_tuple(config) == saver_on(s3).get_tuple(config)


def test_what_others_do_is_seen_after_two_seconds() -> None:
    s3 = thread()
    walker = Walker(s3)
    _ = walker.walk(4)
    config = config_for("thread", uuid_of(50))
    writes_to(saver_on(s3))
    walker.clock.pass_by(SECONDS + 0.1)
    assert walker.saver.get_tuple(config) == saver_on(s3).get_tuple(config)


@pytest.mark.parametrize("clock", [0, 1], ids=["monotonic", "wall"])
@pytest.mark.parametrize("by", [SECONDS + 0.1, -0.1], ids=["late", "set back"])
def test_either_clock_tells_that_it_is_too_late(clock: int, by: float) -> None:
    """A frozen machine may stop the one, and somebody may set the other."""
    s3 = thread()
    walker = Walker(s3)
    _ = walker.walk(4)
    config = config_for("thread", uuid_of(50))
    with walker.driver.measure() as cost:
        _ = walker.saver.get_tuple(config)
    assert cost.requests == 0
    walker.clock.now[clock] += by
    with walker.driver.measure() as cost:
        _ = walker.saver.get_tuple(config)
    assert cost.requests


def test_the_newest_is_always_read() -> None:
    s3 = thread()
    walker = Walker(s3)
    _ = walker.walk(10)
    newest = config_for("thread", uuid_of(LENGTH))
    saver_on(s3).put_writes(newest, [("log", "late")], "late")
    for config in (newest, config_for("thread")):
        it = walker.saver.get_tuple(config)
        assert it is not None
        assert ("late", "log", "late") in (it.pending_writes or [])


def test_memory_is_bounded() -> None:
    s3 = thread(5)
    saver = saver_on(s3)
    for number in range(WINDOWS + 10):
        saver.copy_thread("thread", f"thread-{number}")
    clock = Clock()
    saver._ahead = ReadAhead(clock)
    for number in range(WINDOWS + 10):
        at = saver.get_tuple(config_for(f"thread-{number}"))
        while at is not None and at.parent_config is not None:
            at = saver.get_tuple(at.parent_config)
    assert len(saver._ahead._windows) == WINDOWS

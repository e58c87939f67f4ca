"""`expire_after`: years of use on a store whose lifecycle rule deletes everything of twice that age, the same moment.

The store's clock is simulated, and with it the rule. `InMemorySaver`, which forgets nothing, tells what has to be read.
"""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, Checkpoint, CheckpointTuple
from langgraph.checkpoint.serde.types import INTERRUPT

from langgraph.checkpoint.s3 import MissingObject, S3Saver
from langgraph.checkpoint.s3._keys import namespace, time_of
from langgraph.checkpoint.s3._plans import renew
from langgraph.checkpoint.s3._plans.renew import Life
from langgraph.checkpoint.s3._requests import Put
from langgraph.checkpoint.s3.retention import EXPIRED, RetentionPolicy
from tests.support.fake_s3 import FakeS3
from tests.support.savers import Memory
from tests.support.threads import config_for, eager, noise, saver_on

HOUR, DAY = 3600.0, 86_400.0
LIFE = timedelta(days=30)
T = LIFE.total_seconds()
SNAPSHOT = 40
"""Super-steps after which a delta channel is stored whole, if the run asks for that at all."""


def id_at(seconds: float, number: int) -> str:
    """A UUID of version 6, as LangGraph makes them."""
    ticks = int((seconds + 12_219_292_800) * 10_000_000)
    digits = f"{ticks:015x}"
    return f"{digits[:8]}-{digits[8:12]}-6{digits[12:]}-8000-{number:012x}"


def test_the_time_of_an_id() -> None:
    assert time_of(id_at(1_700_000_000.25, 7)) == pytest.approx(1_700_000_000.25)
    assert time_of("1f000000-0000-4000-8000-000000000001") is None
    assert time_of("named") is None


class World:
    """A bucket with its rule, threads in it, and what they have to read as."""

    def __init__(self, seed: int = 0, snapshots: bool = True, delta: bool = True, **options: Any) -> None:
        self.s3 = FakeS3()
        self.snapshots = snapshots
        self.delta = delta  # whether there is a delta channel
        self.random = random.Random(seed)
        self.mirror = Memory()
        self.options = {"expire_after": LIFE, "inline_threshold": 300, **options}
        self.born: dict[tuple[str, str], float] = {}
        self.number = 0

    def saver(self) -> S3Saver:
        """A new process."""
        saver = eager(saver_on(self.s3, **self.options))
        saver._clock = lambda: int(self.s3.now * 1e9)
        return saver

    def wait(self, seconds: float) -> None:
        """Let time pass, and the rule be applied."""
        self.s3.now += seconds
        for key in self.s3.keys("prefix/"):
            if self.s3.now - self.s3.modified(key) >= 2 * T:
                del self.s3[key]

    def use(self, thread: str, steps: int, saver: S3Saver | None = None, pause: float = 60.0) -> None:
        """A run that goes on from the newest checkpoint, as a new process does unless it is given a saver."""
        saver = saver or self.saver()
        head = saver.get_tuple(config_for(thread))
        self.check_head(thread, head)
        for _ in range(steps):
            head = self.step(saver, thread, head)
            self.wait(pause)

    def fork(self, thread: str) -> None:
        """A run that goes on from some older checkpoint."""
        saver = self.saver()
        there = list(saver.list(config_for(thread)))
        if there:
            # Its write is to another channel: on a delta channel it would show in the other branch too, unless a pack
            # was made there before.
            _ = self.step(saver, thread, self.random.choice(there), "n")

    def copy(self, source: str, target: str) -> None:
        """Copy a thread, in the place of another: the copy is young."""
        for both in (self.saver(), self.mirror):
            both.delete_thread(target)
        self.born = {key: born for key, born in self.born.items() if key[0] != target}
        self.saver().copy_thread(source, target)
        self.mirror.copy_thread(source, target)
        copied = namespace("prefix/", target, "")
        promised = self.promised(source)
        for thread, checkpoint_id in list(self.born):
            if thread == source and copied.checkpoint(checkpoint_id) in self.s3:
                self.born[target, checkpoint_id] = self.s3.now
        assert set(promised) <= set(self.promised(target))
        assert promised or not self.promised(target)

    def step(
        self, saver: S3Saver, thread: str, parent: CheckpointTuple | None, written: str = "log"
    ) -> CheckpointTuple:
        """One super-step: writes on the parent, then the checkpoint that has consumed them."""
        self.number += 1
        draw = self.random.random
        before: Mapping[str, Any] = parent.checkpoint["channel_values"] if parent else {}
        versions = dict(parent.checkpoint["channel_versions"]) if parent else {}
        counters = (parent.metadata.get("counters_since_delta_snapshot") or {}) if parent else {}
        depth = counters.get("log", [0, 0])[1] + 1 if parent else 0
        values: dict[str, Any] = {"n": self.number}
        touched = ["n"]
        if parent is None or draw() < 0.15:
            values["large"] = noise(500, self.number)
        if not self.delta:
            depth = 0
        elif parent is None or (self.snapshots and depth > SNAPSHOT and draw() < 0.2):
            values["log"], depth = [noise(400, self.number)], 0
        elif draw() < 0.7:
            touched.append("log")
        if parent is not None:
            for both in (saver, self.mirror):
                both.put_writes(parent.config, [(written, self.number)], f"task-{self.number}")
        versions |= dict.fromkeys([*values, *touched], f"{self.number:032}.x")
        held = {name: it for name, it in before.items() if name not in ("log", "n")} if draw() < 0.8 else {}
        checkpoint = Checkpoint(
            v=4,
            id=id_at(self.s3.now, self.number),
            ts="",
            channel_values={**held, **values},
            channel_versions=dict(versions),
            versions_seen={},
            updated_channels=None,
        )
        metadata: Any = {"step": self.number}
        if depth:
            metadata["counters_since_delta_snapshot"] = {"log": [depth, depth]}
        config = parent.config if parent else config_for(thread)
        new = {name: versions[name] for name in dict.fromkeys([*values, *touched])}
        stored = config
        for both in (self.mirror, saver):
            stored = both.put(config, checkpoint, metadata, dict(new))
        if draw() < 0.1:
            for both in (self.mirror, saver):
                both.put_writes(stored, [(INTERRUPT, "wait"), ("n", "late")], "pending")
        self.born[thread, checkpoint["id"]] = self.s3.now
        found = self.mirror.get_tuple(stored)
        assert found is not None
        return found

    # What has to hold.

    def promised(self, thread: str) -> list[str]:
        """The checkpoints that can be read for sure, newest first."""
        ids = [it for (name, it), born in self.born.items() if name == thread and self.s3.now - born <= T]
        return sorted(ids, reverse=True)

    def check_head(self, thread: str, head: CheckpointTuple | None) -> None:
        """The newest is what was put last, as long as it is within the promise, and then nothing."""
        promised = self.promised(thread)
        assert (head.checkpoint["id"] if head else None) == (promised[0] if promised else None)
        if head:
            assert head == self.mirror.get_tuple(head.config)

    def check(self, thread: str) -> None:
        """All that can be read is right, and all that was promised can be."""
        saver = self.saver()
        self.check_head(thread, saver.get_tuple(config_for(thread)))
        found = list(saver.list(config_for(thread)))
        ids = [it.checkpoint["id"] for it in found]
        assert set(self.promised(thread)) <= set(ids)
        for it in found:
            assert it == self.mirror.get_tuple(it.config) == saver.get_tuple(it.config)
            if it.metadata.get("counters_since_delta_snapshot"):
                assert log_of(saver, it.config) == log_of(self.mirror, it.config)


def log_of(saver: BaseCheckpointSaver[str], config: RunnableConfig) -> Any:
    history: Any = saver.get_delta_channel_history(config=config, channels=["log"])["log"]
    return [*history.get("seed", ["nothing"]), *(value for _, _, value in history["writes"])]


THREADS = ("a", "b", "c")
waits = st.sampled_from([HOUR, DAY, 3 * DAY, 7 * DAY, 14 * DAY, 16 * DAY, T - HOUR, T + HOUR, 1.4 * T, 1.9 * T])
actions = st.one_of(
    st.tuples(st.just("wait"), waits),
    st.tuples(st.just("use"), st.sampled_from(THREADS), st.integers(1, 12), st.sampled_from([1.0, HOUR, DAY])),
    st.tuples(st.just("fork"), st.sampled_from(THREADS)),
    st.tuples(st.just("copy"), st.sampled_from(THREADS), st.sampled_from(THREADS)),
    st.tuples(st.just("check"), st.sampled_from(THREADS)),
)


@settings(max_examples=int(os.environ.get("LIVES", "100")))
@given(st.integers(0, 1_000), st.lists(actions, min_size=10, max_size=40))
def test_no_read_within_the_promise_ever_fails(seed: int, plan: list[tuple[Any, ...]]) -> None:
    """Years of active, idle, forked and copied threads with large values and delta chains."""
    world = World(seed)
    for action, *arguments in plan:
        if action == "copy" and arguments[0] == arguments[1]:
            continue
        if action == "use":
            thread, steps, pause = arguments
            world.use(thread, steps, pause=pause)
        else:
            getattr(world, action)(*arguments)
    for thread in THREADS:
        world.check(thread)


@pytest.mark.parametrize("pause", [12 * HOUR, DAY, 5 * DAY, 20 * DAY, T - HOUR], ids=lambda it: f"{it / DAY:.2f}d")
@pytest.mark.parametrize("process", ["one", "many"])
def test_a_thread_in_use_for_years_stays_whole_and_bounded(pause: float, process: str) -> None:
    """With a delta log that is never stored whole but at the very start."""
    world = World(1, snapshots=False)
    saver = world.saver() if process == "one" else None
    sizes: list[tuple[int, int]] = []
    steps = min(300, int(3 * 365 * DAY / pause))
    for number in range(steps):
        world.use("thread", 1, saver, pause)
        if number % 100 == 50:
            world.check("thread")
        if world.s3.now - 1_700_000_000 > 5 * T:
            keys = world.s3.keys("prefix/")
            sizes.append((len(keys), sum(map(world.s3.size, keys))))
    world.check("thread")
    per_life = 2 * T / pause + 2
    if sizes:
        assert max(count for count, _ in sizes) < 12 * per_life + 40
        early, late = sizes[: len(sizes) // 3], sizes[-len(sizes) // 3 :]
        assert max(late)[0] <= 1.5 * max(early)[0] + 20


def test_an_idle_thread_vanishes_as_a_whole() -> None:
    world = World()
    world.use("thread", 30)
    world.wait(T + 1)
    assert world.saver().get_tuple(config_for("thread")) is None
    assert list(world.saver().list(config_for("thread"))) == []
    assert world.s3.keys()  # for S3 to delete
    head = world.promised("thread")
    assert not head
    world.use("thread", 3)  # begun anew
    assert len(list(world.saver().list(config_for("thread")))) == 3
    world.wait(2 * T)
    assert not world.s3.keys()


def test_the_time_to_live_is_exact() -> None:
    world = World()
    world.use("thread", 1, pause=0)
    (checkpoint_id,) = world.promised("thread")
    config = config_for("thread", checkpoint_id)
    for seconds, there in ((T, True), (0.5, False)):
        world.s3.now += seconds
        saver = world.saver()
        assert (saver.get_tuple(config_for("thread")) is not None) is there
        assert (saver.get_tuple(config) is not None) is there
        assert len(list(saver.list(config_for("thread")))) == there
        assert len(list(saver.list(config))) == there
    world.saver().copy_thread("thread", "copy")
    assert world.saver().get_tuple(config_for("copy")) is None


# -- what it costs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("expire_after", [LIFE, None])
def test_a_put_costs_no_more_while_nothing_is_old(expire_after: timedelta | None) -> None:
    world = World(3, expire_after=expire_after)
    saver = world.saver()
    world.use("thread", 100, saver, pause=600)
    spent = saver._driver.stats()
    assert (spent.round_trips, spent.requests) == (326, 519)


def test_a_chain_is_cut_once_in_a_quarter() -> None:
    """In a month of hourly steps, with T a month: a few packs, and a few large values stored again."""
    world = World(3, snapshots=False)
    saver = world.saver()
    world.use("thread", 720, saver, pause=HOUR)
    log = [it for it in world.s3.log if isinstance(it, Put)]
    packs = [it.key for it in log if it.key.endswith("/history")]
    assert 2 <= len(packs) <= 5
    assert len(set(packs)) == len(packs)


def test_the_writes_of_a_run_under_way_are_never_packed() -> None:
    """A pack lies beside an ancestor that is settled: what may still arrive on a younger one is read from there."""
    world = World(5, snapshots=False)
    saver = world.saver()
    world.use("thread", 300, saver, pause=2 * HOUR)
    packs = [key for key in world.s3.keys("prefix/") if key.endswith("/history")]
    assert packs
    for key in packs:
        checkpoint_id = key.split("/")[-2].partition(".")[2]
        made = world.s3.modified(key)
        stored = time_of(checkpoint_id)
        assert stored is not None
        assert Life(made, T).is_settled(stored)


def test_a_prune_lets_what_cannot_be_read_go() -> None:
    world = World(2)
    world.use("thread", 10)
    world.wait(1.2 * T)
    world.use("thread", 5)  # a new beginning, by newer ids
    for key in [it for it in world.s3.keys("prefix/") if "/blob/" in it][-1:]:
        del world.s3[key]  # the rule has begun with the old ones
    report = world.saver().apply_retention(RetentionPolicy(keep_last=12), ["thread"])
    assert not report.failed, report.problems
    (plan,) = report.plans
    assert [it.reason for it in plan.verdicts if it.goes] == [EXPIRED] * 10
    world.check("thread")
    world.saver().prune(["thread"])
    world.check_head("thread", world.saver().get_tuple(config_for("thread")))


# -- teeth: without the renewal the same use breaks ------------------------------------------------


@pytest.mark.parametrize("what", ["values", "chain"])
def test_without_renewal_the_rule_breaks_threads(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_chain(*_: Any) -> Any:
        return 0.0
        yield

    if what == "values":
        monkeypatch.setattr(renew, "old_values", lambda *_: set())
    else:
        monkeypatch.setattr(renew, "renew_chain_plan", no_chain)
    failed = 0
    for seed in range(20):
        world = World(seed, delta=what == "chain")
        try:
            for _ in range(12):
                world.use("thread", 2)
                world.wait(20 * DAY)
                world.check("thread")
        except MissingObject:
            failed += 1
    assert failed

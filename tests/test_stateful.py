"""A random life of some threads, on S3Saver and on InMemorySaver side by side: equal answers always.

InMemorySaver has no prune, copy or deletion of runs; the model does them to its dictionaries. It also keeps
an archive from which nothing is ever pruned: the delta channels of what stays still rebuild as there.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, CheckpointTuple
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, RESUME, SCHEDULED, _DeltaSnapshot

from langgraph.checkpoint.s3 import CheckpointPruned, S3Saver
from langgraph.checkpoint.s3.aio import AsyncS3Saver
from tests.support.fake_s3 import FakeDriver, FakeS3
from tests.support.savers import AioStore, BotoStore
from tests.support.threads import config_for, eager, noise, saver_on, uuid_of

THREADS = ("a", "ab", "a/b")
NAMESPACES = ("", "child:1|grand:2")
PLAIN = ("small", "large", "list")
DELTA = ("log", "events")
RUNS = ("run-1", "run-2", "run-3")
TASKS = ("task-1", "task-2")


@dataclass
class Known:
    """A checkpoint as the graph that stored it knows it."""

    thread: str
    ns: str
    id: str
    parent: str | None
    values: dict[str, Any]
    versions: dict[str, str]
    depths: dict[str, int] = field(default_factory=dict)

    @property
    def config(self) -> RunnableConfig:
        return config_for(self.thread, self.id, self.ns)


class Model:
    """InMemorySaver with what it lacks, and an archive."""

    def __init__(self) -> None:
        self.saver, self.archive = InMemorySaver(), InMemorySaver()
        self.alive: dict[tuple[str, str, str], Known] = {}
        # Runs are known by where they wrote. A copy is of no run, unless it comes to lie where one wrote.
        self.runs: dict[str, set[tuple[str, str, str]]] = {run: set() for run in RUNS}

    def threads(self) -> list[str]:
        return sorted({thread for thread, _, _ in self.alive})

    def remove(self, keys: Iterator[tuple[str, str, str]]) -> None:
        for thread, ns, checkpoint_id in list(keys):
            del self.alive[thread, ns, checkpoint_id]
            del self.saver.storage[thread][ns][checkpoint_id]
            self.saver.writes.pop((thread, ns, checkpoint_id), None)

    def newest(self, thread: str, ns: str) -> Known | None:
        ids = [key[2] for key in self.alive if key[:2] == (thread, ns)]
        return self.alive[thread, ns, max(ids)] if ids else None

    def prune(self, thread: str) -> None:
        stay = {(thread, ns, it.id) for ns in NAMESPACES if (it := self.newest(thread, ns))}
        self.remove(key for key in self.alive if key[0] == thread and key not in stay)

    def delete_run(self, run: str) -> None:
        self.remove(key for key in self.alive if key in self.runs[run])
        self.runs[run].clear()

    def delete_thread(self, thread: str) -> None:
        self.saver.delete_thread(thread)
        self.archive.delete_thread(thread)
        self.alive = {key: it for key, it in self.alive.items() if key[0] != thread}

    def copy_thread(self, source: str, target: str) -> None:
        for saver in (self.saver, self.archive):
            for ns, checkpoints in copy.deepcopy(dict(saver.storage[source])).items():
                saver.storage[target][ns].update(checkpoints)
            for (thread, ns, checkpoint_id), writes in list(saver.writes.items()):
                if thread == source:
                    saver.writes[target, ns, checkpoint_id] = {**saver.writes[target, ns, checkpoint_id], **writes}
            for (thread, ns, channel, version), blob in list(saver.blobs.items()):
                if thread == source:
                    saver.blobs[target, ns, channel, version] = blob
        for (thread, ns, checkpoint_id), it in list(self.alive.items()):
            if thread == source:
                copied = Known(target, ns, it.id, it.parent, it.values, it.versions, it.depths)
                self.alive[target, ns, checkpoint_id] = copied


class Life(RuleBasedStateMachine):
    """The rules."""

    def make_saver(self) -> S3Saver | AsyncS3Saver:
        saver = saver_on(FakeDriver(self.s3), inline_threshold=200)
        return eager(saver) if self.packs else saver

    @initialize(page_size=st.sampled_from([1, 3, 1000]), conditional=st.booleans(), packs=st.booleans())
    def begin(self, page_size: int, conditional: bool, packs: bool) -> None:
        self.packs = packs
        self.s3 = FakeS3(page_size=page_size, conditional=conditional)
        self.saver = self.make_saver()
        self.model = Model()
        self.number = 0
        self.gone: list[Known] = []

    # -- choosing ----------------------------------------------------------------------------------

    def some(self, data: st.DataObject, head_first: bool = True) -> Known:
        """A checkpoint that is there, mostly a newest one."""
        keys = sorted(self.model.alive)
        if head_first and data.draw(st.integers(0, 3), label="head?"):
            thread, ns, _ = data.draw(st.sampled_from(keys), label="space")
            newest = self.model.newest(thread, ns)
            assert newest is not None
            return newest
        return self.model.alive[data.draw(st.sampled_from(keys), label="checkpoint")]

    def next_id(self) -> str:
        self.number += 1
        return uuid_of(self.number)

    # -- writing -----------------------------------------------------------------------------------

    @rule(thread=st.sampled_from(THREADS), ns=st.sampled_from(NAMESPACES), data=st.data())
    def put_first(self, thread: str, ns: str, data: st.DataObject) -> None:
        if self.model.newest(thread, ns) is None:
            _ = self.put(Known(thread, ns, "", None, {}, {}), data)

    @precondition(lambda self: self.model.alive)
    @rule(data=st.data(), times=st.integers(1, 4))
    def put_children(self, data: st.DataObject, times: int) -> None:
        parent = self.some(data)
        for _ in range(times):
            parent = self.put(parent, data) or parent

    @precondition(lambda self: self.gone)
    @rule(data=st.data())
    def put_on_what_is_gone(self, data: st.DataObject) -> None:
        """A run that began before a prune goes on: refused if delta channels need what is gone, whole otherwise."""
        parent = data.draw(st.sampled_from(self.gone))
        _ = self.put(parent, data)

    def put(self, parent: Known, data: st.DataObject) -> Known | None:
        checkpoint_id = self.next_id()
        changed = data.draw(st.sets(st.sampled_from(PLAIN)), label="changed")
        deltas = {
            name: data.draw(st.sampled_from(["write", "snapshot", "nothing"]), label=name)
            for name in DELTA
            if parent.id
        }
        run = data.draw(st.sampled_from([None, *RUNS]), label="run")
        values = {**parent.values, **{name: self.value(name, data) for name in changed}}
        fresh = [
            *changed,
            *(
                name
                for name, kind in deltas.items()
                if kind != "nothing" and (kind == "write" or name in parent.versions)
            ),
        ]
        versions = {**parent.versions, **{name: f"{self.number:032}.{name}" for name in fresh}}
        depths = {name: parent.depths.get(name, 0) + 1 for name in DELTA if name in versions}
        snapshots = {}
        for name, kind in deltas.items():
            if kind == "snapshot" and name in fresh:
                snapshots[name] = _DeltaSnapshot(
                    [f"{name} at {self.number}", noise(data.draw(st.sampled_from([10, 400])), self.number)]
                )
                depths[name] = 0
        leans = {name: [depth, depth] for name, depth in depths.items() if depth}
        checkpoint = Checkpoint(
            v=4,
            id=checkpoint_id,
            ts=f"2026-01-01T00:00:{self.number:06}",
            channel_values={**values, **snapshots},
            channel_versions=dict(versions),
            versions_seen={"node": dict(parent.versions)},
            updated_channels=sorted(fresh),
        )
        metadata: Any = {"source": "loop", "step": self.number, "parity": self.number % 2}
        metadata |= {"run_id": run} if run else {}
        metadata |= {"counters_since_delta_snapshot": leans} if leans else {}
        config = config_for(parent.thread, parent.id or None, parent.ns)
        new_versions = {name: versions[name] for name in fresh}
        arguments: Any = (config, checkpoint, metadata, new_versions)
        gone = bool(parent.id) and (parent.thread, parent.ns, parent.id) not in self.model.alive
        try:
            stored = self.saver.put(*copy.deepcopy(arguments))
        except CheckpointPruned:
            assert gone
            assert leans
            event("put refused: its parent was pruned")
            return None
        assert stored == config_for(parent.thread, checkpoint_id, parent.ns)
        assert not (gone and leans), "stored although delta channels lean on what is gone"
        for model in (self.model.saver, self.model.archive):
            _ = model.put(*copy.deepcopy(arguments))
        it = Known(parent.thread, parent.ns, checkpoint_id, parent.id or None, values, versions, depths)
        self.model.alive[it.thread, it.ns, it.id] = it
        if run:
            self.model.runs[run].add((it.thread, it.ns, it.id))
        if data.draw(st.integers(0, 9), label="again?") == 0:
            _ = self.saver.put(*copy.deepcopy(arguments))  # a retry
        kind = "first" if not parent.id else "on what is gone" if gone else "child"
        event(f"put, {'leaning' if leans else 'whole'}, {kind}")
        return it

    def value(self, name: str, data: st.DataObject) -> Any:
        number = data.draw(st.integers(0, 5), label=f"{name}'s value")
        return {"small": number, "large": noise(500, number), "list": [number, "x", None]}[name]

    @precondition(lambda self: self.model.alive)
    @rule(
        data=st.data(),
        task=st.sampled_from(TASKS),
        path=st.sampled_from(["", "~b", "~a"]),
        channels=st.lists(st.sampled_from([*DELTA, "small", ERROR, INTERRUPT, RESUME, SCHEDULED]), max_size=4),
        times=st.sampled_from([1, 1, 2]),
    )
    def write(self, data: st.DataObject, task: str, path: str, channels: list[str], times: int) -> None:
        at = self.some(data)
        self.number += 1
        # LangGraph gives a channel a version with the first child that takes a write to it. A write that no child ever
        # took would be replayed from an ancestor that is still there, and cannot be from one that was pruned.
        channels = [name for name in channels if name not in DELTA or name in at.versions]
        writes = [(channel, f"{channel} {position} {self.number}") for position, channel in enumerate(channels)]
        for _ in range(times):
            self.saver.put_writes(at.config, writes, task, path)
            for model in (self.model.saver, self.model.archive):
                model.put_writes(at.config, writes, task, path)
        event(f"wrote {'nothing' if not writes else 'again' if times > 1 else 'once'}")

    @rule(thread=st.sampled_from(THREADS), ns=st.sampled_from(NAMESPACES), data=st.data())
    def write_before_the_checkpoint(self, thread: str, ns: str, data: st.DataObject) -> None:
        """As happens when checkpoints are stored in the background: writes overtake their checkpoint."""
        parent = self.model.newest(thread, ns) or Known(thread, ns, "", None, {}, {})
        config = config_for(thread, uuid_of(self.number + 1), ns)
        for saver in (self.saver, self.model.saver, self.model.archive):
            saver.put_writes(config, [("small", "early"), (INTERRUPT, "early")], "task-1")
        assert self.saver.get_tuple(config) is None
        _ = self.put(parent, data)

    # -- whole threads -----------------------------------------------------------------------------

    @precondition(lambda self: self.model.alive)
    @rule(data=st.data(), onto=st.sampled_from(THREADS))
    def copy_thread(self, data: st.DataObject, onto: str) -> None:
        source = data.draw(st.sampled_from(self.model.threads()))
        if source != onto:
            # What a target has stays, which the model cannot do: begin with a new thread.
            self.forget(onto)
            self.saver.copy_thread(source, onto)
            self.model.copy_thread(source, onto)
            event("copied")

    def forget(self, thread: str) -> None:
        self.saver.delete_thread(thread)
        self.model.delete_thread(thread)
        self.gone = [it for it in self.gone if it.thread != thread]

    @rule(thread=st.sampled_from(THREADS), strategy=st.sampled_from(["keep_latest"] * 6 + ["delete", "delete_all", ""]))
    def prune(self, thread: str, strategy: str) -> None:
        before = [it for key, it in sorted(self.model.alive.items()) if key[0] == thread]
        if strategy:
            self.saver.prune([thread], strategy=strategy)
        if strategy == "keep_latest":
            self.model.prune(thread)
            self.gone += [it for it in before if (it.thread, it.ns, it.id) not in self.model.alive]
        else:
            self.forget(thread)
        event(f"pruned ({strategy}) {'something' if before else 'nothing'}")

    @rule(runs=st.sets(st.sampled_from(RUNS), max_size=2))
    def delete_runs(self, runs: set[str]) -> None:
        doomed = [it for key, it in self.model.alive.items() if any(key in self.model.runs[run] for run in runs)]
        self.saver.delete_for_runs(sorted(runs))
        for run in runs:
            self.model.delete_run(run)
        self.gone += doomed
        event(f"deleted {'some' if doomed else 'no'} checkpoints of runs")

    @rule()
    def another_process(self) -> None:
        self.saver = self.make_saver()

    # -- reading -----------------------------------------------------------------------------------

    @rule(thread=st.sampled_from(THREADS), ns=st.sampled_from(NAMESPACES))
    def get_latest(self, thread: str, ns: str) -> None:
        config = config_for(thread, None, ns)
        assert self.saver.get_tuple(config) == self.model.saver.get_tuple(config)

    @precondition(lambda self: self.model.alive)
    @rule(data=st.data())
    def get_exact(self, data: st.DataObject) -> None:
        at = self.some(data, head_first=False)
        assert self.saver.get_tuple(at.config) == self.model.saver.get_tuple(at.config)

    @precondition(lambda self: self.model.alive)
    @rule(data=st.data())
    def walk_along_a_chain(self, data: st.DataObject) -> None:
        config: RunnableConfig | None = self.some(data).config
        while config is not None:
            it = self.saver.get_tuple(config)
            assert it == self.model.saver.get_tuple(config)
            config = it.parent_config if it is not None else None

    @precondition(lambda self: self.gone)
    @rule(data=st.data())
    def get_what_is_gone(self, data: st.DataObject) -> None:
        at = data.draw(st.sampled_from(self.gone))
        if (at.thread, at.ns, at.id) not in self.model.alive:
            assert self.saver.get_tuple(at.config) is None

    @precondition(lambda self: self.model.alive)
    @rule(data=st.data())
    def get_history(self, data: st.DataObject) -> None:
        at = self.some(data)
        channels = sorted(name for name, depth in at.depths.items() if depth)
        if channels:
            expected = self.model.archive.get_delta_channel_history(config=at.config, channels=channels)
            assert self.saver.get_delta_channel_history(config=at.config, channels=channels) == expected
            event("rebuilt delta channels")

    @rule(
        data=st.data(),
        thread=st.sampled_from([None, *THREADS]),
        ns=st.sampled_from([None, *NAMESPACES]),
        filter=st.sampled_from(
            [None, {"parity": 1}, {"parity": 0, "source": "loop"}, {"unknown": None}, {"run_id": "run-1"}]
        ),
        limit=st.sampled_from([None, 0, 1, 2, 5]),
        before=st.one_of(st.none(), st.integers(0, 40)),
    )
    def list_some(
        self,
        data: st.DataObject,
        thread: str | None,
        ns: str | None,
        filter: Any,
        limit: int | None,
        before: int | None,
    ) -> None:
        config: RunnableConfig | None = None
        if thread is not None:
            config = {"configurable": {"thread_id": thread, **({} if ns is None else {"checkpoint_ns": ns})}}
        earlier = None if before is None else {"configurable": {"checkpoint_id": uuid_of(before)}}
        found = list(self.saver.list(config, filter=filter, before=earlier, limit=limit))  # type: ignore[arg-type]
        every = list(self.model.saver.list(config, filter=filter, before=earlier))  # type: ignore[arg-type]
        if filter and "unknown" in filter:
            every = []  # InMemorySaver takes a key that is not there for None
        every.sort(key=place, reverse=True)
        expected = every if limit is None else every[:limit]
        assert [id_of(it) for it in found] == [id_of(it) for it in expected]
        assert all(it in every for it in found)
        assert len({place(it) for it in found}) == len(found)
        event(f"listed {'none' if not found else 'some'}")

    @invariant()
    def nothing_refers_to_what_is_gone(self) -> None:
        """Every blob that is referred to is there: each read of everything succeeds."""
        for it in self.saver.list(None):
            assert it.checkpoint["channel_values"].keys() <= set(PLAIN + DELTA)


def id_of(it: CheckpointTuple) -> str:
    return str(it.config["configurable"]["checkpoint_id"])


def place(it: CheckpointTuple) -> tuple[str, str, str]:
    at = it.config["configurable"]
    return at["checkpoint_id"], at["thread_id"], at["checkpoint_ns"]


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize("kind", [BotoStore, AioStore])
def test_on_a_server(kind: type[BotoStore | AioStore], s3_endpoint: str) -> None:
    """A short one through each driver, each life in a bucket of its own."""

    class OnServer(Life):
        store: BotoStore | AioStore | None = None

        def make_saver(self) -> S3Saver | AsyncS3Saver:
            self.store = self.store or kind(s3_endpoint)
            return self.store.saver(inline_threshold=200)

        def teardown(self) -> None:
            if self.store is not None:
                self.store.close()

    run_state_machine_as_test(OnServer, settings=settings(max_examples=4, stateful_step_count=12, deadline=None))


class LongLife(Life):
    """The same for longer."""


TestLongLife = pytest.mark.campaign(LongLife.TestCase)
TestLongLife.settings = settings(
    max_examples=int(os.environ.get("LIVES", "600")), stateful_step_count=60, deadline=None
)

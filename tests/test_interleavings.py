"""Every interleaving, request by request, of two operations on one thread.

Each operation has its own saver, which has read the thread before: as two processes would be. Afterwards a
new saver reads. No checkpoint that was acknowledged and is the latest, or whose parent was there, is unreadable;
none is silently empty.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, CheckpointTuple
from langgraph.checkpoint.serde.types import INTERRUPT

from langgraph.checkpoint.s3 import CheckpointPruned, Contended, S3Saver, S3SaverError
from tests.support.fake_s3 import FakeS3
from tests.support.interleave import Outcome, check_interleavings
from tests.support.threads import Script, config_for, noise, saver_on, uuid_of

LARGE = noise(300, 1)
OPTIONS: dict[str, Any] = {"inline_threshold": 100}
LENGTH = 3
NEW, OTHER = uuid_of(100), uuid_of(101)
THREAD = config_for("thread")
ORDERS = pytest.mark.parametrize("order", ["forward", "backward"])
KINDS = pytest.mark.parametrize("kind", ["large", "delta"])

SAMPLE = int(os.environ.get("RACES", "200"))
"""Of races with too many schedules for every test run, so many are drawn. `make campaign` draws more, and
runs those of a put and a prune in full."""

Operation = Callable[[S3Saver], Generator[Any, Any, Any]]


def bucket(run: str | None = None) -> FakeS3:
    """A thread of three checkpoints: a large value from the first one on, a delta channel since the first one."""
    s3 = FakeS3()
    script = Script(saver_on(s3, **OPTIONS))
    _ = script.put({"large": LARGE, "log": ["seed"]})
    for depth in range(1, LENGTH):
        script.write("log", depth)
        metadata: dict[str, Any] = {"counters_since_delta_snapshot": {"log": [depth, depth]}}
        if run is not None and depth > 1:
            metadata["run_id"] = run
        _ = script.put({"number": depth}, touch=("log",), **metadata)
    script.write("number", "pending")
    return s3


def child(checkpoint_id: str, parent: int, kind: str) -> tuple[RunnableConfig, Checkpoint, Any, dict[str, Any]]:
    """The arguments of a put on the parent-th checkpoint: it inherits a large value or leans on a delta chain."""
    versions: dict[str, Any] = {"number": f"{checkpoint_id}"}
    values: dict[str, Any] = {"number": checkpoint_id}
    metadata: dict[str, Any] = {"source": "loop", "step": 9}
    if kind == "large":
        versions["large"] = version_of("large", 1)
        values["large"] = LARGE
    else:
        versions["log"] = version_of("log", parent)
        metadata["counters_since_delta_snapshot"] = {"log": [parent - 1, parent]}
    checkpoint = Checkpoint(
        v=4,
        id=checkpoint_id,
        ts="2026-01-01T00:00:00+00:00",
        channel_values=values,
        channel_versions=versions,
        versions_seen={},
        updated_channels=None,
    )
    return config_for("thread", uuid_of(parent)), checkpoint, metadata, {"number": versions["number"]}


def version_of(channel: str, number: int) -> str:
    """The version that the script gave a channel with its number-th checkpoint."""
    return f"{number:032}.{uuid_of(number)[-4:]}"


def putting(checkpoint_id: str, parent: int, kind: str) -> Operation:
    return lambda saver: saver._put_plan(*child(checkpoint_id, parent, kind))


def pruning(saver: S3Saver) -> Generator[Any, Any, Any]:
    return saver._prune_plan(["thread"], "keep_latest")


def race(
    check: Callable[[Outcome], None],
    *operations: Operation,
    start: Callable[[], FakeS3] = bucket,
    reads: Sequence[int] = range(1, LENGTH + 1),
    order: Any = "forward",
    limit: int | None = SAMPLE,
    page_size: int = 1000,
) -> int:
    """Run operations in every order. Each saver has read the checkpoints that a put of its may build on."""
    template = start()

    def make() -> Any:
        s3 = template.copy()
        savers = [saver_on(s3, **OPTIONS) for _ in operations]
        for saver in savers:
            for number in reads:
                _ = saver.get_tuple(config_for("thread", uuid_of(number)))
        s3.page_size = page_size
        return s3, [operation(saver) for operation, saver in zip(operations, savers, strict=True)]

    def look(outcome: Outcome) -> None:
        outcome.s3.page_size = 1000
        everything_is_whole(outcome.s3)
        check(outcome)

    return check_interleavings(make, look, order=order, limit=limit)


def everything_is_whole(s3: FakeS3) -> None:
    """Each checkpoint that can be seen has its values, and the latest one's delta channel rebuilds."""
    saver = saver_on(s3, **OPTIONS)
    for it in saver.list(THREAD):
        values = it.checkpoint["channel_values"]
        if "large" in it.checkpoint["channel_versions"]:
            assert values["large"] == LARGE
    latest = saver.get_tuple(THREAD)
    if latest is not None and latest.metadata.get("counters_since_delta_snapshot"):
        assert log_of(s3, latest.config)


def log_of(s3: FakeS3, config: RunnableConfig) -> list[Any]:
    """The delta channel of a checkpoint, rebuilt."""
    history = saver_on(s3, **OPTIONS).get_delta_channel_history(config=config, channels=["log"])["log"]
    return [*history["seed"], *(value for _, _, value in history["writes"])]


def at(s3: FakeS3, checkpoint_id: str) -> CheckpointTuple | None:
    return saver_on(s3, **OPTIONS).get_tuple(config_for("thread", checkpoint_id))


def expect_stored(s3: FakeS3, checkpoint_id: str, parent: int, kind: str) -> None:
    it = at(s3, checkpoint_id)
    assert it is not None
    assert it.checkpoint["channel_values"]["number"] == checkpoint_id
    if kind == "large":
        assert it.checkpoint["channel_values"]["large"] == LARGE
    else:
        assert log_of(s3, it.config) == ["seed", *range(1, min(parent, LENGTH - 1) + 1)]


def stored_or_refused(outcome: Outcome, index: int, checkpoint_id: str, parent: int, kind: str) -> bool:
    """An acknowledged put is there and whole; one that was told it came too late has left nothing."""
    result = outcome.results[index]
    if isinstance(result, S3SaverError):
        assert isinstance(result, CheckpointPruned)
        assert kind == "delta"
        assert at(outcome.s3, checkpoint_id) is None
        return False
    expect_stored(outcome.s3, checkpoint_id, parent, kind)
    return True


def latest_id(s3: FakeS3) -> str:
    it = saver_on(s3, **OPTIONS).get_tuple(THREAD)
    assert it is not None
    return str(it.config["configurable"]["checkpoint_id"])


def none_failed(outcome: Outcome) -> None:
    for result in outcome.results:
        assert not isinstance(result, Exception), result


@ORDERS
@KINDS
def test_put_and_put(kind: str, order: str) -> None:
    def check(outcome: Outcome) -> None:
        none_failed(outcome)
        expect_stored(outcome.s3, NEW, LENGTH, kind)
        expect_stored(outcome.s3, OTHER, LENGTH, kind)
        assert latest_id(outcome.s3) == OTHER

    assert race(check, putting(NEW, LENGTH, kind), putting(OTHER, LENGTH, kind), order=order) > 10


@ORDERS
@KINDS
@pytest.mark.parametrize("page_size", [1, 1000])
def test_put_on_the_head_and_prune(kind: str, page_size: int, order: str) -> None:
    def check(outcome: Outcome) -> None:
        none_failed(outcome)  # the head stays, so nothing is lost that it leans on
        assert stored_or_refused(outcome, 0, NEW, LENGTH, kind)
        assert latest_id(outcome.s3) == NEW

    whole = page_size == 1000 and order == "forward" and (kind == "large" or SAMPLE >= 600)
    limit = None if whole else SAMPLE
    assert race(check, putting(NEW, LENGTH, kind), pruning, order=order, page_size=page_size, limit=limit) > 20


@ORDERS
@KINDS
@pytest.mark.parametrize("page_size", [1, 1000])
def test_a_fork_from_an_old_checkpoint_and_prune(kind: str, page_size: int, order: str) -> None:
    seen = set()

    def check(outcome: Outcome) -> None:
        assert not isinstance(outcome.results[1], Exception), outcome.results[1]
        stored = stored_or_refused(outcome, 0, NEW, 2, kind)
        assert latest_id(outcome.s3) == (NEW if stored else uuid_of(LENGTH))
        seen.add(stored)

    whole = page_size == 1000 and order == "forward" and (kind == "large" or SAMPLE >= 600)
    limit = None if whole else SAMPLE
    assert race(check, putting(NEW, 2, kind), pruning, order=order, page_size=page_size, limit=limit) > 20
    assert True in seen
    assert kind == "delta" or False not in seen
    if limit is None:
        assert (False in seen) == (kind == "delta")


@KINDS
def test_a_fork_and_two_prunes(kind: str) -> None:
    def check(outcome: Outcome) -> None:
        for result in outcome.results[1:]:
            assert not isinstance(result, Exception) or isinstance(result, Contended), result
        _ = stored_or_refused(outcome, 0, NEW, 2, kind)

    assert race(check, putting(NEW, 2, kind), pruning, pruning, limit=SAMPLE) == SAMPLE


@ORDERS
@KINDS
def test_put_and_the_deletion_of_its_parents_run(kind: str, order: str) -> None:
    def delete(saver: S3Saver) -> Generator[Any, Any, Any]:
        return saver._delete_for_runs_plan(["run"])

    def check(outcome: Outcome) -> None:
        assert not isinstance(outcome.results[1], Exception), outcome.results[1]
        _ = stored_or_refused(outcome, 0, NEW, LENGTH, kind)
        left = {it.config["configurable"]["checkpoint_id"] for it in saver_on(outcome.s3, **OPTIONS).list(THREAD)}
        assert left - {NEW} == {uuid_of(1)} | {uuid_of(2)}

    assert race(check, putting(NEW, LENGTH, kind), delete, start=lambda: bucket("run"), order=order) > 20


@ORDERS
@KINDS
@pytest.mark.parametrize("page_size", [1, 1000])
def test_put_and_copy(kind: str, page_size: int, order: str) -> None:
    def new(saver: S3Saver) -> Generator[Any, Any, Any]:
        """A put with a large value of its own, so that its blob may be listed apart from it."""
        config, checkpoint, metadata, versions = child(NEW, LENGTH, kind)
        for name in ("a blob", "b blob"):
            checkpoint["channel_values"][name] = noise(300, 2)
            checkpoint["channel_versions"][name] = versions[name] = "1"
        return saver._put_plan(config, checkpoint, metadata, versions)

    def copying(saver: S3Saver) -> Generator[Any, Any, Any]:
        return saver._copy_thread_plan("thread", "fork")

    def check(outcome: Outcome) -> None:
        none_failed(outcome)
        expect_stored(outcome.s3, NEW, LENGTH, kind)
        fork = list(saver_on(outcome.s3, **OPTIONS).list(config_for("fork")))
        assert [it.config["configurable"]["checkpoint_id"] for it in fork][-LENGTH:] == [
            uuid_of(n) for n in range(LENGTH, 0, -1)
        ]
        assert len(fork) in (LENGTH, LENGTH + 1)
        if len(fork) > LENGTH:
            assert fork[0].checkpoint["channel_values"].keys() >= {"a blob", "b blob"}

    assert race(check, new, copying, order=order, page_size=page_size, limit=SAMPLE) == SAMPLE


@ORDERS
def test_two_batches_of_one_task(order: str) -> None:
    """The first one wins, and whoever read the winner once will always read it."""

    def writing(*values: str) -> Operation:
        writes = [("number", value) for value in values]
        return lambda saver: saver._put_writes_plan(config_for("thread", uuid_of(LENGTH)), writes, "new task", "")

    def reading(saver: S3Saver) -> Generator[Any, Any, Any]:
        return saver._get_plan(config_for("thread", uuid_of(LENGTH)))

    def values(it: CheckpointTuple) -> list[Any]:
        assert it.pending_writes is not None
        return [value for task, _, value in it.pending_writes if task == "new task"]

    def check(outcome: Outcome) -> None:
        none_failed(outcome)
        it = at(outcome.s3, uuid_of(LENGTH))
        assert it is not None
        final = values(it)
        assert final in (["a1", "b2"], ["b1", "b2"])
        assert values(outcome.results[2]) in ([], final[:1], final)

    assert race(check, writing("a1"), writing("b1", "b2"), reading, order=order) > 10


@ORDERS
@pytest.mark.parametrize("number", [2, LENGTH])
def test_writes_and_prune(number: int, order: str) -> None:
    """Writes of the head stay. Those of a checkpoint that goes are gone with it."""

    def writing(saver: S3Saver) -> Generator[Any, Any, Any]:
        writes = [("number", "late"), (INTERRUPT, "late")]
        return saver._put_writes_plan(config_for("thread", uuid_of(number)), writes, "late task", "")

    def check(outcome: Outcome) -> None:
        none_failed(outcome)
        it = at(outcome.s3, uuid_of(LENGTH))
        assert it is not None
        assert log_of(outcome.s3, it.config) == ["seed", *range(1, LENGTH)]
        assert it.pending_writes is not None
        late = [value for task, _, value in it.pending_writes if task == "late task"]
        assert late == (["late", "late"] if number == LENGTH else [])

    assert race(check, writing, pruning, order=order) > 5


@ORDERS
def test_reads_and_prune(order: str) -> None:
    """A reader sees what was or what is, never a part, however long it takes."""

    def getting(saver: S3Saver) -> Generator[Any, Any, Any]:
        return saver._get_plan(config_for("thread", uuid_of(2)))

    def listing(saver: S3Saver) -> Generator[Any, Any, Any]:
        walk = saver._walk(THREAD, None, None, None)
        found = []
        while not walk.done:
            found += yield from saver._page_plan(walk)
        return found

    def check(outcome: Outcome) -> None:
        none_failed(outcome)
        got, listed, _ = outcome.results
        for it in [*([got] if got is not None else []), *listed]:
            assert it.checkpoint["channel_values"]["large"] == LARGE
        assert listed[0].config["configurable"]["checkpoint_id"] == uuid_of(LENGTH)

    assert race(check, getting, listing, pruning, order=order, limit=SAMPLE) == SAMPLE


@ORDERS
@pytest.mark.parametrize("number", [None, LENGTH])
def test_a_delta_history_and_prune(number: int | None, order: str) -> None:
    config = THREAD if number is None else config_for("thread", uuid_of(number))

    def reading(saver: S3Saver) -> Generator[Any, Any, Any]:
        return saver._delta_plan(config, ["log"])

    def check(outcome: Outcome) -> None:
        none_failed(outcome)
        history = outcome.results[0]["log"]
        assert [*history["seed"], *(value for _, _, value in history["writes"])] == ["seed", *range(1, LENGTH)]

    assert race(check, reading, pruning, order=order, limit=2 * SAMPLE) > 20


@ORDERS
def test_get_latest_and_put(order: str) -> None:
    def check(outcome: Outcome) -> None:
        none_failed(outcome)
        got = outcome.results[0]
        assert got is not None
        assert got.config["configurable"]["checkpoint_id"] in (NEW, uuid_of(LENGTH))
        assert got.checkpoint["channel_values"]["large"] == LARGE

    assert race(check, lambda saver: saver._get_plan(THREAD), putting(NEW, LENGTH, "large"), order=order) > 10


@ORDERS
def test_prune_and_prune(order: str) -> None:
    def check(outcome: Outcome) -> None:
        for result in outcome.results:
            assert result is None or isinstance(result, Contended), result
        found = list(saver_on(outcome.s3, **OPTIONS).list(THREAD))
        assert [it.config["configurable"]["checkpoint_id"] for it in found] == [uuid_of(LENGTH)]
        assert log_of(outcome.s3, found[0].config) == ["seed", *range(1, LENGTH)]

    assert race(check, pruning, pruning, order=order, limit=SAMPLE) == SAMPLE

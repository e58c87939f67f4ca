"""Every interleaving, request by request, of a put and of what deletes what it builds on: the dangerous pairs.

Other pairs, and more processes, are in `test_races.py`, with schedules drawn at random.

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

from langgraph.checkpoint.s3 import CheckpointPruned, S3Saver, S3SaverError
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

"""The rules: writes merge as in InMemorySaver, what a fence condemns stays condemned, marks cover a chain."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import WRITES_IDX_MAP, empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver

from langgraph.checkpoint.s3 import S3Saver
from langgraph.checkpoint.s3._keys import namespace, numbered_batch
from langgraph.checkpoint.s3._objects import BlobRef, Body, CheckpointObject, Fence, Value, WriteBatch
from langgraph.checkpoint.s3._rules import (
    MARK_EVERY,
    Live,
    chain_marks,
    dooms,
    fence_dooming,
    fence_keeping,
    has_regular,
    lacking,
    live,
    matches,
    merge_writes,
    write_index,
)
from tests.support.fake_s3 import FakeDriver, FakeS3

# -- writes ----------------------------------------------------------------------------------------

Call: TypeAlias = tuple[str, str, list[tuple[str, int]]]
"""Task, path and writes of one `put_writes` call."""

channels = st.sampled_from(["a", "b", *WRITES_IDX_MAP])
calls: st.SearchStrategy[Call] = st.tuples(
    st.sampled_from(["t1", "t2", "T", "t/1", "x" * 200]),
    st.sampled_from(["", "~__pregel_pull, n", "~__pregel_push, 10", "~__pregel_push, 9"]),
    st.lists(st.tuples(channels, st.integers(0, 99)), max_size=5),
)


def make_saver(s3: FakeS3) -> S3Saver:
    saver = S3Saver("bucket", "p")
    saver._driver = FakeDriver(s3)  # type: ignore[assignment]
    saver._clock = lambda: 0  # stands still: order must not hang on it
    return saver


@given(st.lists(calls, max_size=8), st.integers(0, 8), st.booleans(), st.sampled_from([1, 2, 1000]))
def test_writes_merge_as_in_memory(history: Sequence[Call], turn: int, conditional: bool, page_size: int) -> None:
    """The checkpoint is stored after `turn` calls: writes may come before it."""
    saver, model = make_saver(FakeS3(conditional=conditional, page_size=page_size)), InMemorySaver()
    checkpoint = empty_checkpoint()
    parent: RunnableConfig = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    config: RunnableConfig = {"configurable": {**parent["configurable"], "checkpoint_id": checkpoint["id"]}}
    both: tuple[S3Saver, InMemorySaver] = saver, model
    for one in both:
        for position, (task, path, writes) in enumerate(history):
            if position == turn:
                one.put(parent, checkpoint, {}, {})
            one.put_writes(config, writes, task, path)
        if turn >= len(history):
            one.put(parent, checkpoint, {}, {})
    expected = model.get_tuple(config)
    assert expected is not None
    for found in (saver.get_tuple(config), saver.get_tuple(parent), *saver.list(parent)):
        assert found is not None
        assert found.pending_writes == expected.pending_writes


def batch(task: str, stamp: int, *writes: tuple[str, object]) -> WriteBatch:
    return WriteBatch(
        thread="t",
        ns="",
        checkpoint="c",
        task=task,
        path="",
        stamp=stamp,
        nonce="00000000",
        writes=[(write_index(n, channel), channel, ("s", repr(it).encode())) for n, (channel, it) in enumerate(writes)],
    )


@given(st.lists(calls, min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_merging_knows_no_order_of_arrival(history: Sequence[Call], rng: random.Random) -> None:
    batches = {numbered_batch(task, n): batch(task, n, *writes) for n, (task, _, writes) in enumerate(history)}
    shuffled = list(batches.items())
    rng.shuffle(shuffled)
    assert merge_writes(dict(shuffled)) == merge_writes(batches)
    assert merge_writes({**batches, "~": shuffled[0][1]}) == merge_writes(batches)  # a duplicate changes nothing


@given(calls, st.lists(calls, max_size=4))
def test_only_what_is_lacking_is_written(call: Call, before: Sequence[Call]) -> None:
    task, _, writes = call
    mine = batch(task, 100, *writes)
    stored = [batch(task, stamp, *others) for stamp, (_, _, others) in enumerate(before)]
    rest = lacking(mine, stored)
    there = {index for it in stored for index, _, _ in it.writes if index >= 0}
    assert (rest.writes if rest else []) == [it for it in mine.writes if it[0] not in there]
    assert rest is None or (rest.writes and replace(rest, writes=mine.writes) == mine)
    assert has_regular(mine) == any(channel not in WRITES_IDX_MAP for channel, _ in writes)
    assert lacking(mine, [*stored, mine]) is None  # this very call, whose answer was lost
    assert lacking(mine, [*stored, replace(mine, writes=[])]) is None
    if rest is not None:
        name = numbered_batch(task, 9)
        batches = {numbered_batch(task, n): it for n, it in enumerate(stored)}
        assert merge_writes({**batches, name: rest}) == merge_writes({**batches, name: mine})


# -- filters ---------------------------------------------------------------------------------------

values = st.none() | st.booleans() | st.integers(0, 2) | st.sampled_from(["", "a"]) | st.lists(st.integers(0, 1))
mappings = st.dictionaries(st.sampled_from("abc"), values)


@given(mappings, mappings)
def test_a_filter_is_a_part_of_the_metadata(filter: dict[str, Any], metadata: dict[str, Any]) -> None:
    assert matches(filter, metadata) == ({**metadata, **filter} == metadata)
    assert matches(None, metadata)
    assert matches({}, metadata)
    assert matches(metadata, metadata)


def test_an_unknown_key_matches_nothing() -> None:
    assert not matches({"gone": None}, {})
    assert not matches({"gone": None, "a": 1}, {"a": 1})
    assert matches({"here": None}, {"here": None})


# -- fences ----------------------------------------------------------------------------------------

IDS, NAMES = "abcdefg", "xy"
BLOBS = [(owner, name) for owner in IDS for name in NAMES]

ids = st.frozensets(st.sampled_from(IDS))
lives = st.builds(Live, ids, st.frozensets(st.sampled_from(BLOBS)))
horizons = st.sampled_from(["", *IDS])
steps = st.tuples(st.just("keep"), horizons, lives) | st.tuples(st.just("doom"), ids, lives)


def moved(old: Fence, step: Any) -> Fence:
    sort, what, keep = step
    return fence_keeping(old, what, keep) if sort == "keep" else fence_dooming(old, what, keep)


def fence_of(history: Sequence[Any]) -> Fence:
    fence = Fence()
    for step in history:
        fence = moved(fence, step)
    return fence


histories = st.lists(steps, max_size=5).map(fence_of)


def condemned(fence: Fence) -> tuple[set[str], set[tuple[str, str]]]:
    return {it for it in IDS if dooms(fence, it)}, {it for it in BLOBS if dooms(fence, *it)}


@given(histories, steps)
def test_what_is_condemned_stays_condemned(old: Fence, step: Any) -> None:
    ids_before, blobs_before = condemned(old)
    ids_after, blobs_after = condemned(moved(old, step))
    assert ids_before <= ids_after
    assert blobs_before <= blobs_after


@given(histories, horizons, lives)
def test_keeping_condemns_the_rest(old: Fence, horizon: str, keep: Live) -> None:
    ids_before, blobs_before = condemned(old)
    ids_after, blobs_after = condemned(fence_keeping(old, horizon, keep))
    old_ids = {it for it in IDS if it <= horizon}
    assert ids_after == ids_before | (old_ids - keep.ids)
    gone = {it for it in BLOBS if it[0] in ids_after and it[0] <= horizon}
    assert blobs_after == blobs_before | (gone - keep.blobs)


@given(histories, ids, lives)
def test_dooming_condemns_nothing_else(old: Fence, doomed: frozenset[str], keep: Live) -> None:
    ids_before, blobs_before = condemned(old)
    ids_after, blobs_after = condemned(fence_dooming(old, doomed, keep))
    assert ids_after == ids_before | doomed
    assert blobs_after == blobs_before | ({it for it in BLOBS if it[0] in doomed} - keep.blobs)


def test_a_slower_prune_does_not_condemn_what_a_later_one_kept() -> None:
    """Prune A lists; checkpoint b is put; prune B lists and raises its fence, then A does."""
    by_b = fence_keeping(Fence(), "b", Live(frozenset("b"), frozenset({("b", "x")})))
    by_both = fence_keeping(by_b, "a", Live(frozenset("a"), frozenset()))
    assert dooms(by_both, "a")
    assert not dooms(by_both, "b")
    assert not dooms(by_both, "b", "x")


def checkpoint(number: int, parent: CheckpointObject | None, depth: int, **refs: BlobRef) -> CheckpointObject:
    marks, since = chain_marks(parent, depth)
    return CheckpointObject(
        thread="t",
        ns="",
        id=f"{number:05}",
        parent=parent.id if parent else None,
        state=("", b""),
        metadata=("", b""),
        values={name: Value("1", ref) for name, ref in refs.items()} | {"inline": Value("1", ("s", b""))},
        deltas={"log": depth} if depth else {},
        marks=marks,
        steps=since,
    )


def test_what_stays_is_live() -> None:
    mine, inherited = BlobRef("00002", "x.1", 9), BlobRef("00001", "y.1", 9)
    both = [checkpoint(2, None, 0, x=mine, y=inherited), checkpoint(3, None, 0, y=inherited)]
    assert live(iter(both)) == Live(frozenset({"00002", "00003"}), frozenset({("00002", "x.1"), ("00001", "y.1")}))
    assert live([]) == Live(frozenset(), frozenset())


# -- chains ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("snapshot_every", [1, 2, MARK_EVERY, MARK_EVERY + 1, 1000, 10_000])
def test_marks_cover_a_chain(snapshot_every: int) -> None:
    it = None
    for number in range(3 * MARK_EVERY + 1000):
        depth = number % snapshot_every
        it = checkpoint(number, it, depth)
        marks = [int(mark) for mark in it.marks]
        assert all(newer - older == MARK_EVERY for newer, older in pairwise(marks))
        if marks:
            assert 1 <= number - marks[0] == it.steps <= MARK_EVERY
        assert (marks or [number])[-1] - MARK_EVERY <= number - depth  # what is left is one stretch
        assert len(marks) <= depth // MARK_EVERY + 1


SNAPSHOTS = [0, 1, 140, 1 << 30, 1 << 30]
"""How far back a chain may reach after its channels stored some snapshots."""


@given(st.lists(st.sampled_from(range(len(SNAPSHOTS))), max_size=40))
def test_marks_are_ancestors(resets: Sequence[int]) -> None:
    """Whatever a graph's channels do: every mark is an ancestor, the newest one `steps` back."""
    it, depth, number = None, 0, 0
    for reset in resets:
        for _ in range(40):
            depth = min(depth, SNAPSHOTS[reset]) if number % 40 == 7 else depth + 1
            it = checkpoint(number, it, depth)
            marks = [int(mark) for mark in it.marks]
            assert marks == sorted(set(marks), reverse=True)
            assert all(0 <= mark < number for mark in marks)
            assert not marks or marks[0] == number - it.steps
            assert len(marks) <= (depth // MARK_EVERY + 1 if depth > 1 else 0)
            number += 1


def test_batches_of_one_name_agree_with_their_objects() -> None:
    """What `merge_writes` is given went through the codec; here once, so that the two fit together."""
    saver = make_saver(FakeS3())
    ns, codec = namespace("p/", "t", ""), saver._codec
    first, second = batch("t", 1, ("a", 1), ("b", 2)), batch("t", 2, ("a", 3), ("b", 4), ("a", 5))
    names = [numbered_batch("t", n) for n in range(2)]
    stored = {
        name: codec.read_writes(ns, "c", name)(Body("k", codec.writes(it), ""))
        for name, it in zip(names, (first, second), strict=True)
    }
    assert [write.value[1] for write in merge_writes(stored)] == [b"1", b"2", b"5"]

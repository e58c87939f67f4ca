"""The rules of the saver's state, without I/O.

Which write wins, and in which order; what matches a filter; what depends on what; what a fence condemns.

Writes merge as in LangGraph's InMemorySaver. For a regular index of a task the first write wins and
stays; for the special channels (errors, interrupts, resume values) the last one does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any

from langgraph.checkpoint.base import WRITES_IDX_MAP, writes_sort_key
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, TASKS

from langgraph.checkpoint.s3._objects import CheckpointObject, Fence, Link, WriteBatch
from langgraph.checkpoint.s3._values import Typed

_START = "__start__"
"""LangGraph's channel of a run's input, which is always followed by a first super-step."""

MARK_EVERY = 128
"""Super-steps between two marks of a delta chain. One listing of 1,000 keys then spans a stretch
in which each super-step left up to seven objects."""


@dataclass(frozen=True)
class PendingWrite:
    """One write as a reader sees it."""

    task: str
    path: str
    index: int
    channel: str
    value: Typed = field(repr=False)


def write_index(position: int, channel: str) -> int:
    """The index of a write in its `put_writes` call: its position, or the special channel's own."""
    return WRITES_IDX_MAP.get(channel, position)


def run_goes_on(updated_channels: Sequence[str] | None) -> bool:
    """Whether a checkpoint is followed by another of the same run, as far as its updated channels tell.

    They name the tasks of the next super-step: `branch:to:{node}` for a node, and pending sends. Only a
    checkpoint made by hand says nothing of them, and that is the end of what was asked for.
    """
    return any(name in (_START, TASKS) or name.startswith("branch:to:") for name in updated_channels or ())


def stops_run(channels: Iterable[str]) -> bool:
    """Whether writes to these channels say that the run waits or has failed at their checkpoint."""
    return any(name in (INTERRUPT, ERROR) for name in channels)


def merge_writes(batches: Mapping[str, WriteBatch]) -> list[PendingWrite]:
    """Merge the write batches of one checkpoint, given by their names, in the order of `writes_sort_key`."""
    winners: dict[tuple[str, int], PendingWrite] = {}
    # A task's numbered batches come before its stamped ones, each in their own order: so do their names.
    for _, batch in sorted(batches.items()):
        for index, channel, value in batch.writes:
            if index >= 0:
                _ = winners.setdefault((batch.task, index), PendingWrite(batch.task, batch.path, index, channel, value))
    for batch in sorted(batches.values(), key=lambda it: (it.stamp, it.nonce)):
        for index, channel, value in batch.writes:
            if index < 0:
                winners[batch.task, index] = PendingWrite(batch.task, batch.path, index, channel, value)
    return sorted(winners.values(), key=lambda it: writes_sort_key(it.path, it.task, it.index))


def lacking(batch: WriteBatch, stored: Sequence[WriteBatch]) -> WriteBatch | None:
    """What of a batch is still to be written when `stored` came first; None if nothing is.

    Regular writes that are there already stay as they are. Special ones are written again, as they
    win, unless one of the stored batches is this very call, whose answer was lost.
    """
    if any((it.stamp, it.nonce) == (batch.stamp, batch.nonce) for it in stored):
        return None
    there = {index for it in stored for index, _, _ in it.writes if index >= 0}
    rest = [write for write in batch.writes if write[0] not in there]
    return replace(batch, writes=rest) if rest else None


def has_regular(batch: WriteBatch) -> bool:
    """Whether a batch has a write for which the first one wins."""
    return any(index >= 0 for index, _, _ in batch.writes)


def matches(filter: Mapping[str, Any] | None, metadata: Mapping[str, Any]) -> bool:
    """Whether metadata has every key of the filter, with an equal value. An unknown key matches nothing."""
    return all(key in metadata and metadata[key] == value for key, value in (filter or {}).items())


def chain_marks(parent: CheckpointObject | None, depth: int) -> tuple[Sequence[str], int]:
    """The marks and the steps since the newest one, for a child whose delta channels reach `depth` back."""
    if depth <= 1 or parent is None:
        return (), 1
    if parent.steps < MARK_EVERY:
        marks, steps = parent.marks, parent.steps + 1
    else:
        marks, steps = (parent.id, *parent.marks), 1
    return tuple(marks[: depth // MARK_EVERY + 1]), steps


def link_of(
    it: CheckpointObject,
    batches: Mapping[str, WriteBatch] | None = None,
    sizes: Mapping[str, int] | None = None,
    size: int = 0,
    packed: int = 0,
) -> Link:
    """A checkpoint as a link of its delta chain, with the write batches that lie beside it."""
    blank = sorted({*it.blank, *it.deltas})
    return Link(it.id, it.parent, list(it.values), blank, batches or {}, sizes or {}, size, packed)


def dooms(fence: Fence, owner: str, blob: str | None = None) -> bool:
    """Whether a fence condemns a checkpoint, or one of its blobs."""
    if blob is not None and (owner, blob) in fence.blobs:
        return False
    return owner in fence.doomed or (owner <= fence.horizon and owner not in fence.kept)


@dataclass(frozen=True)
class Live:
    """What the checkpoints that stay depend on."""

    ids: frozenset[str]
    blobs: frozenset[tuple[str, str]]


def live(staying: Iterable[CheckpointObject]) -> Live:
    """The checkpoints that stay, and every blob they refer to, whoever owns it."""
    objects = list(staying)
    return Live(
        frozenset(it.id for it in objects),
        frozenset((ref.owner, ref.name) for it in objects for ref in it.refs.values()),
    )


def fence_keeping(old: Fence, horizon: str, keep: Live) -> Fence:
    """The fence of a prune that lets only `keep` stay, up to `horizon`.

    What an older fence condemned stays condemned: its prune may still be deleting.
    """
    return Fence(
        horizon=max(horizon, old.horizon),
        # A prune that listed later may have raised its fence first: what it kept above this horizon stays kept.
        kept=frozenset(it for it in keep.ids if not dooms(old, it)) | frozenset(it for it in old.kept if it > horizon),
        doomed=frozenset(it for it in old.doomed if it > horizon),
        blobs=_still_safe(old, keep) | frozenset(it for it in old.blobs if it[0] > horizon),
    )


def fence_dooming(old: Fence, doomed: Iterable[str], keep: Live) -> Fence:
    """The fence of a deletion of some checkpoints, while `keep` still depends on some of their blobs."""
    gone = frozenset(doomed)
    blobs = _still_safe(old, keep)
    return replace(
        old,
        kept=old.kept - gone,
        doomed=old.doomed | gone,
        blobs=frozenset(it for it in old.blobs if it[0] not in gone) | frozenset(it for it in blobs if it[0] in gone),
    )


def fence_sparing(old: Fence, back: AbstractSet[str]) -> Fence:
    """The fence after some checkpoints were brought back: they may be leaned on again."""
    return replace(
        old, kept=old.kept | frozenset(it for it in back if it <= old.horizon), doomed=old.doomed - frozenset(back)
    )


def _still_safe(old: Fence, keep: Live) -> frozenset[tuple[str, str]]:
    return frozenset((owner, name) for owner, name in keep.blobs if not dooms(old, owner, name))

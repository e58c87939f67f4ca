"""Bringing back what was pruned: from the trash, or from the versions that a versioned bucket keeps.

1. **Lift the fence.** Puts may lean again on what comes back, and no prune takes it for a leftover of its own.
2. **Bring back** what checkpoints point to, then the checkpoints, the oldest first: each that can be seen is whole.
3. **Empty the trash** of it.

Stopped anywhere it can be repeated. What was pruned at one time comes back as a whole as long as all of it is there,
and rules let the checkpoints go first: they were copied, or deleted, before what they point to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from langgraph.checkpoint.s3._keys import Namespace, in_trash, is_checkpoint, is_folder_part, is_ours
from langgraph.checkpoint.s3._objects import Codec, Fence
from langgraph.checkpoint.s3._plans.sweep import COPIES, raise_fence_plan
from langgraph.checkpoint.s3._requests import (
    Get,
    Plan,
    Version,
    copy_all,
    delete_all,
    delete_versions,
    each,
    list_all,
    list_versions,
)
from langgraph.checkpoint.s3._rules import fence_sparing
from langgraph.checkpoint.s3.errors import Contended
from langgraph.checkpoint.s3.retention import Restored

TOGETHER = 32
"""Namespaces to lift the fence of together."""


@dataclass(frozen=True)
class Thread:
    """The thread to bring back, by its folder; only what went at `since` or later, in seconds since 1970."""

    root: str
    part: str
    since: float = 0.0

    @property
    def prefix(self) -> str:
        """The prefix of all that belongs to it."""
        return f"{self.root}{self.part}/"

    def space_of(self, key: str) -> Namespace | None:
        """The namespace that a key belongs to, if it is one of ours and can come back; fences do not."""
        ns_part = key[len(self.prefix) :].partition("/")[0]
        if not is_ours(self.root, self.part, key) or not is_folder_part(ns_part) or key.endswith("/fence"):
            return None
        return Namespace(self.root, self.part, ns_part)


class _Lost(NamedTuple):
    """A key that can come back."""

    ns: Namespace
    key: str
    id: str | None  # of the checkpoint that it belongs to; None for a manifest


def undo_trash_plan(codec: Codec, thread: Thread, trash: str) -> Plan[Restored]:
    """Copy back what lies in the trash. A LIST and a COPY for each 1,000 and each object, and the fences.

    Raises:
        Contended: Something vanished from the trash meanwhile. What came back is whole; nothing was deleted.
    """
    entries, _ = yield from list_all(in_trash(thread.root, trash, thread.prefix))
    keys = [thread.root + it.key[len(trash) :] for it in entries if it.modified >= thread.since]
    lost = _lost(thread, keys)
    yield from _lift_plan(codec, lost)
    for some in _in_order(lost):
        for start in range(0, len(some), COPIES):
            pairs = [(in_trash(thread.root, trash, it.key), it.key) for it in some[start : start + COPIES]]
            gone = yield from copy_all(pairs)
            if gone:
                raise Contended(
                    f"s3://{codec.bucket}/{gone[0]} vanished from the trash while the thread was being brought back. "
                    "Try again; what has expired cannot come back."
                )
    yield from delete_all([in_trash(thread.root, trash, it.key) for it in lost])
    return _restored(lost)


def undo_versions_plan(codec: Codec, thread: Thread) -> Plan[Restored]:
    """Remove the delete markers of a versioned bucket. A LIST per 1,000 versions, and a request for as many markers.

    What whole runs were rolled back with `delete_for_runs` does not come back: their ids stand in a fence, or in an
    earlier version of it.
    """
    versions = yield from list_versions(thread.prefix)
    by_key = {key: list(its) for key, its in groupby(sorted(versions, key=lambda it: it.key), lambda it: it.key)}
    markers = {key: _markers(its) for key, its in by_key.items()}
    found = _lost(thread, [key for key, its in markers.items() if its and its[0].modified >= thread.since])
    dropped = yield from _rolled_back_plan(codec, by_key, {it.ns for it in found})
    lost = [it for it in found if it.id not in dropped[it.ns]]
    yield from _lift_plan(codec, lost)
    for some in _in_order(lost):
        yield from delete_versions([(it.key, marker.id) for it in some for marker in markers[it.key]])
    return _restored(lost)


def _markers(versions: Sequence[Version]) -> list[Version]:
    """The delete markers that hide a key, newest first; none if it is there, or if nothing is left below them."""
    newest = max((it.modified for it in versions if not it.marker), default=None)
    if newest is None or not any(it.latest and it.marker for it in versions):
        return []
    hiding = [it for it in versions if it.marker and it.modified >= newest]
    return sorted(hiding, key=lambda it: (it.latest, it.modified), reverse=True)


def _rolled_back_plan(
    codec: Codec, versions: Mapping[str, Sequence[Version]], spaces: Iterable[Namespace]
) -> Plan[dict[Namespace, set[str]]]:
    """The ids of each namespace that some version of its fence condemns by name, as the deletion of runs does."""
    dropped: dict[Namespace, set[str]] = {ns: set() for ns in spaces}
    wanted = [(ns, it) for ns in dropped for it in versions.get(ns.fence, ()) if not it.marker]
    for start in range(0, len(wanted), COPIES):
        some = wanted[start : start + COPIES]
        fences = yield [Get(ns.fence, codec.read_fence(ns), version=it.id) for ns, it in some]
        for (ns, _), reply in zip(some, fences, strict=True):
            if reply is not None:
                fence: Fence = reply[0]
                dropped[ns] |= fence.doomed
    return dropped


def _lost(thread: Thread, keys: Sequence[str]) -> list[_Lost]:
    lost: list[_Lost] = []
    for key in keys:
        ns = thread.space_of(key)
        if ns is not None:
            located = ns.locate(key)
            lost.append(_Lost(ns, key, located.checkpoint_id if located else None))
    return lost


def _in_order(lost: Sequence[_Lost]) -> list[list[_Lost]]:
    """What comes back one after the other: what checkpoints point to; they, the oldest first; the manifests."""
    manifests = [it for it in lost if it.id is None]
    checkpoints = sorted((it for it in lost if is_checkpoint(it.key)), key=lambda it: it.id or "")
    rest = [it for it in lost if it.id is not None and not is_checkpoint(it.key)]
    return [rest, checkpoints, manifests]


def _lift_plan(codec: Codec, lost: Sequence[_Lost]) -> Plan[None]:
    ids: dict[Namespace, set[str]] = {}
    for it in lost:
        if it.id is not None:
            ids.setdefault(it.ns, set()).add(it.id)
    work = list(ids.items())
    for start in range(0, len(work), TOGETHER):
        some = work[start : start + TOGETHER]
        _ = yield from each([raise_fence_plan(codec, ns, _sparing(known)) for ns, known in some])


def _sparing(ids: AbstractSet[str]) -> Callable[[Fence], Fence]:
    return lambda old: fence_sparing(old, ids)


def _restored(lost: Sequence[_Lost]) -> Restored:
    return Restored(checkpoints=sum(is_checkpoint(it.key) for it in lost), objects=len(lost))

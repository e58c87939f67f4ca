"""Prune to the newest checkpoint of each namespace, and the deletion of whole runs: two ways to use `sweep`."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from langgraph.checkpoint.s3._keys import (
    Namespace,
    has_descending_key,
    in_trash,
    is_folder_part,
    parse_marker,
    runs_prefix,
    thread_prefix,
)
from langgraph.checkpoint.s3._objects import Codec, Fence
from langgraph.checkpoint.s3._plans.folders import Folder, group
from langgraph.checkpoint.s3._plans.sweep import Sweep, raise_fence_plan, sweep_plan
from langgraph.checkpoint.s3._requests import Entry, List, Plan, delete_all, each, list_all, list_folders, list_page
from langgraph.checkpoint.s3._rules import Live, dooms, fence_dooming, fence_keeping, live

NAMESPACES = 16
"""Namespaces to work on together."""


def prune_thread_plan(
    codec: Codec, root: str, thread_id: str, trash: str | None = None, expired: float = 0.0
) -> Plan[None]:
    """Keep only the newest checkpoint of each namespace of a thread, with all that it depends on."""
    prefix = thread_prefix(root, thread_id)
    parts = [part for part in (yield from list_folders(prefix)) if is_folder_part(part)]
    spaces = [Namespace(root, prefix[len(root) : -1], part) for part in parts]
    for start in range(0, len(spaces), NAMESPACES):
        _ = yield from each(
            [sweep_plan(codec, ns, _keep_latest(ns, trash, expired)) for ns in spaces[start : start + NAMESPACES]]
        )


def _keep_latest(ns: Namespace, trash: str | None, expired: float) -> Sweep:
    def listing() -> Plan[list[Folder]]:
        entries, _ = yield from list_all(ns.checkpoints)
        return group(ns, entries)

    def condemned(folders: Sequence[Folder], fence: Fence) -> AbstractSet[str]:
        newest = max((it.id for it in folders if it.committed), default=None)
        if newest is None:
            return frozenset()
        # A folder without its checkpoint may belong to one that is still to come, unless it was condemned before.
        return {it.id for it in folders if it.id != newest and (it.committed or dooms(fence, it.id))}

    def fence(old: Fence, doomed: AbstractSet[str], keep: Live) -> Fence:
        return fence_keeping(old, max(keep.ids | doomed), keep)

    return Sweep(listing, "", condemned, fence, trash, expired)


def delete_runs_plan(
    codec: Codec, root: str, run_ids: Sequence[str], trash: str | None = None, expired: float = 0.0
) -> Plan[None]:
    """Delete the checkpoints that some runs wrote, in whatever threads, with their writes and values.

    The runs' markers tell which. Of each namespace concerned, only the part from its newest checkpoint
    down to the oldest one that goes is listed and read, as only newer checkpoints can depend on it.
    What a prune has left of them in the `trash` goes too: it must not come back.
    """
    spaces: dict[Namespace, set[str]] = {}
    markers: list[str] = []
    for run_id in dict.fromkeys(run_ids):
        entries, _ = yield from list_all(runs_prefix(root, run_id))
        for entry in entries:
            found = parse_marker(root, run_id, entry.key)
            if found is not None:
                markers.append(entry.key)
                spaces.setdefault(found[0], set()).add(found[1])
    work = list(spaces.items())
    for start in range(0, len(work), NAMESPACES):
        some = work[start : start + NAMESPACES]
        _ = yield from each([_roll_back_plan(codec, ns, ids, expired) for ns, ids in some])
        if trash is not None:
            _ = yield from each([_empty_trash_plan(ns, ids, trash) for ns, ids in some])
    yield from delete_all(markers)


def _roll_back_plan(codec: Codec, ns: Namespace, ids: AbstractSet[str], expired: float) -> Plan[None]:
    swept = yield from sweep_plan(codec, ns, _without(ns, ids, expired))
    if not swept:  # a prune was here before: an undo must know all the same
        yield from raise_fence_plan(codec, ns, lambda old: fence_dooming(old, ids, live([])))


def _empty_trash_plan(ns: Namespace, ids: AbstractSet[str], trash: str) -> Plan[None]:
    entries, _ = yield from list_all(in_trash(ns.root, trash, ns.checkpoints))
    found = [(it.key, ns.locate(ns.root + it.key[len(trash) :])) for it in entries]
    yield from delete_all([key for key, it in found if it is not None and it.checkpoint_id in ids])


def _without(ns: Namespace, ids: AbstractSet[str], expired: float) -> Sweep:
    def condemned(folders: Sequence[Folder], _: Fence) -> AbstractSet[str]:
        return {folder.id for folder in folders} & ids

    def fence(old: Fence, doomed: AbstractSet[str], keep: Live) -> Fence:
        # Those too that a prune has taken before: by this an undo knows that they are not to come back.
        return fence_dooming(old, doomed | ids, keep)

    return Sweep(lambda: _down_to_plan(ns, min(ids)), min(ids), condemned, fence, expired=expired)


def _down_to_plan(ns: Namespace, oldest: str) -> Plan[list[Folder]]:
    """List a namespace from its newest checkpoint down to one id. One round trip per 1,000 objects."""
    entries: list[Entry] = []
    token: str | None = None
    while True:
        page = yield from list_page(List(ns.checkpoints, token=token))
        entries += page.entries
        token = page.token
        folders = group(ns, entries)
        in_order = has_descending_key(oldest) and bool(folders) and has_descending_key(folders[0].id)
        if token is None or (in_order and folders[-1].id < oldest):
            return [folder for folder in folders if folder.id >= oldest or not in_order]

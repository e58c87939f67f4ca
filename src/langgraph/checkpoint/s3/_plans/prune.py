"""Deleting some checkpoints of a thread while others stay: prune, and the deletion of whole runs.

Both work out what stays, and what that depends on, and then go the same way for each namespace:

1. **Pack.** Beside each checkpoint that stays and whose parent goes, its delta histories are packed.
   From then on it depends on no ancestor.
2. **Fence.** Word is left of what is condemned. A put that leans on it and commits from now on sees it.
3. **List again.** What has been put since stays too, with its blobs, and is packed as well.
4. **Delete**, checkpoint objects first and then the rest.

So a put either commits before step 3, and is spared, or reads its fence after step 2, and stores again
what it inherited. Whatever cannot be read on the way ends the operation before anything is deleted: what
goes may be the last that can be read. Large values of what stays are not read for that; they have to be
there, in their size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from langgraph.checkpoint.s3._keys import (
    Namespace,
    has_descending_key,
    is_checkpoint,
    is_folder_part,
    parse_marker,
    runs_prefix,
    thread_prefix,
)
from langgraph.checkpoint.s3._objects import Body, CheckpointObject, Codec, Fence, HistoryPack, Value
from langgraph.checkpoint.s3._plans.delta import history_plan
from langgraph.checkpoint.s3._plans.folders import Folder, group
from langgraph.checkpoint.s3._plans.read import ATTEMPTS, missing
from langgraph.checkpoint.s3._requests import (
    ABSENT,
    Entry,
    Get,
    List,
    Plan,
    Stored,
    delete_all,
    each,
    get,
    list_all,
    list_folders,
    list_page,
    put,
    put_all,
)
from langgraph.checkpoint.s3._rules import Live, dooms, fence_dooming, fence_keeping, live
from langgraph.checkpoint.s3.errors import Contended, CorruptObject, MissingObject

NAMESPACES = 16
"""Namespaces to work on together."""

HEADERS = 256
"""Checkpoint objects to read in one batch, of which only the headers are kept."""

FENCE_ATTEMPTS = 8


@dataclass(frozen=True)
class _Sweep:
    """How one namespace is swept: what to list and down to which id, what goes, and what the fence says then."""

    listing: Callable[[], Plan[list[Folder]]]
    oldest: str
    condemned: Callable[[Sequence[Folder], Fence], AbstractSet[str]]
    fence: Callable[[Fence, AbstractSet[str], Live], Fence]


def prune_thread_plan(codec: Codec, root: str, thread_id: str) -> Plan[None]:
    """Keep only the newest checkpoint of each namespace of a thread, with all that it depends on."""
    prefix = thread_prefix(root, thread_id)
    parts = [part for part in (yield from list_folders(prefix)) if is_folder_part(part)]
    spaces = [Namespace(root, prefix[len(root) : -1], part) for part in parts]
    for start in range(0, len(spaces), NAMESPACES):
        _ = yield from each([_sweep_plan(codec, ns, _keep_latest(ns)) for ns in spaces[start : start + NAMESPACES]])


def _keep_latest(ns: Namespace) -> _Sweep:
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

    return _Sweep(listing, "", condemned, fence)


def delete_runs_plan(codec: Codec, root: str, run_ids: Sequence[str]) -> Plan[None]:
    """Delete the checkpoints that some runs wrote, in whatever threads, with their writes and values.

    The runs' markers tell which. Of each namespace concerned, only the part from its newest checkpoint
    down to the oldest one that goes is listed and read, as only newer checkpoints can depend on it.
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
        _ = yield from each([_sweep_plan(codec, ns, _without(ns, ids)) for ns, ids in some])
    yield from delete_all(markers)


def _without(ns: Namespace, ids: AbstractSet[str]) -> _Sweep:
    def condemned(folders: Sequence[Folder], _: Fence) -> AbstractSet[str]:
        return {folder.id for folder in folders} & ids

    return _Sweep(lambda: _down_to_plan(ns, min(ids)), min(ids), condemned, fence_dooming)


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


def _sweep_plan(codec: Codec, ns: Namespace, sweep: _Sweep) -> Plan[None]:
    """Delete what a sweep condemns of one namespace: pack, fence, list again, delete."""
    found = yield from get(ns.fence, codec.read_fence(ns))
    folders, doomed, staying = yield from _survey_plan(codec, ns, sweep, found[0] if found else Fence())
    if not doomed:
        return
    yield from _pack_plan(codec, ns, folders, staying, doomed)
    yield from _raise_fence_plan(codec, ns, lambda old: sweep.fence(old, doomed, live(staying)))
    again = yield from sweep.listing()
    known = {folder.id for folder in folders if folder.committed}
    late = yield from _read_plan(codec, ns, [it for it in again if it.id not in known])
    yield from _pack_plan(codec, ns, again, late, doomed)
    spared = {ns.blob(owner, name) for owner, name in live([*staying, *late]).blobs}
    late_ids = {it.id for it in late}
    gone = doomed - late_ids
    going = [key for it in again if it.id in gone for key in it.keys if key not in spared]
    going += _stretches_over(ns, again, gone)
    # Two steps: S3 deletes the keys of one request in any order, and a reader that follows the chain must
    # not meet an ancestor that is still there while its writes are not.
    yield from delete_all([key for key in going if is_checkpoint(key)])
    yield from delete_all([key for key in going if not is_checkpoint(key)])
    if not staying and not late:
        yield from delete_all([ns.latest])  # else it would speak of a checkpoint for ever that is gone


def _stretches_over(ns: Namespace, folders: Sequence[Folder], gone: AbstractSet[str]) -> list[str]:
    """The packed stretches beside checkpoints that stay in which there may be something of those that go."""
    return [
        ns.stretch(it.id, str(name))
        for it in folders
        if it.id not in gone
        for name in it.stretches
        if any(name.oldest <= checkpoint_id <= it.id for checkpoint_id in gone)
    ]


def _survey_plan(
    codec: Codec, ns: Namespace, sweep: _Sweep, fence: Fence
) -> Plan[tuple[list[Folder], AbstractSet[str], list[CheckpointObject]]]:
    """List a namespace; returns its folders, the ids that go, and the checkpoints that stay, all of them whole.

    A put that heeds an earlier fence replaces its checkpoint, and what is listed and what is read differ for
    a moment: so it looks again before it says that something is missing.

    Raises:
        MissingObject, CorruptObject: Something that stays is not whole.
    """
    for attempt in range(ATTEMPTS):
        folders = yield from sweep.listing()
        doomed = sweep.condemned(folders, fence)
        try:
            staying = yield from _read_plan(codec, ns, [it for it in folders if doomed and it.id not in doomed])
            _check_blobs(codec, ns, folders, sweep.oldest, staying)
        except (MissingObject, CorruptObject):
            if attempt == ATTEMPTS - 1:
                raise
        else:
            break
    return folders, doomed, staying


def _read_plan(codec: Codec, ns: Namespace, folders: Sequence[Folder]) -> Plan[list[CheckpointObject]]:
    """Read checkpoints and what lies beside them but for large values, and keep what they refer to.

    One that was deleted since depends on nothing.
    """
    committed = [folder for folder in folders if folder.committed]
    staying: list[CheckpointObject] = []
    for start in range(0, len(committed), HEADERS):
        some = committed[start : start + HEADERS]
        read = yield from each([_read_one_plan(codec, ns, folder) for folder in some])
        staying += [it for it in read if it is not None]
    return staying


def _read_one_plan(codec: Codec, ns: Namespace, folder: Folder) -> Plan[CheckpointObject | None]:
    beside = [Get(ns.writes(folder.id, name), codec.read_writes(ns, folder.id, name)) for name in folder.writes]
    if folder.history:
        beside.append(Get(ns.history(folder.id), codec.read_history(ns, folder.id)))
    replies = yield [Get(ns.checkpoint(folder.id), _header(codec, ns, folder.id)), *beside]
    it: CheckpointObject | None = replies[0]
    if it is not None:
        for request, reply in zip(beside, replies[1:], strict=True):
            if reply is None:
                raise missing(codec, request.key, f"checkpoint {folder.id}, which stays, depends on it")
    return it


def _check_blobs(
    codec: Codec, ns: Namespace, folders: Sequence[Folder], oldest: str, staying: Sequence[CheckpointObject]
) -> None:
    """See that the large values of those that stay lie there, down to the oldest id that was listed."""
    sizes = {(folder.id, name): size for folder in folders for name, size in folder.blobs.items()}
    for it in staying:
        for ref in it.refs.values():
            size = sizes.get((ref.owner, ref.name))
            key = ns.blob(ref.owner, ref.name)
            if size is None and ref.owner >= oldest:
                raise missing(codec, key, f"checkpoint {it.id}, which stays, depends on it; nothing was deleted")
            if size not in (None, ref.size):
                raise CorruptObject(
                    f"s3://{codec.bucket}/{key}: it has {size} bytes, not the {ref.size} that checkpoint {it.id} "
                    "refers to, which stays; nothing was deleted. Restore it from an earlier version."
                )


def _header(codec: Codec, ns: Namespace, checkpoint_id: str) -> Callable[[Body], CheckpointObject]:
    """Read a checkpoint and drop its contents."""
    read = codec.read_checkpoint(ns, checkpoint_id)

    def decode(body: Body) -> CheckpointObject:
        it = read(body)
        refs = {name: Value(it.values[name].version, ref) for name, ref in it.refs.items()}
        return replace(it, state=("", b""), metadata=("", b""), values=refs)

    return decode


def _pack_plan(
    codec: Codec,
    ns: Namespace,
    folders: Sequence[Folder],
    staying: Sequence[CheckpointObject],
    doomed: AbstractSet[str],
) -> Plan[None]:
    """Pack the delta histories of those that stay and whose parent goes. A pack that lies there is whole already."""
    packed = {folder.id for folder in folders if folder.history}
    there = {it.id for it in staying}

    def is_cut_off(it: CheckpointObject) -> bool:
        if it.parent is None or not it.deltas or it.id in packed:
            return False
        # A parent that is missing while older ones go may have leaned on them: trying to pack tells.
        return it.parent in doomed or (it.parent not in there and it.parent > min(doomed))

    for it in filter(is_cut_off, staying):
        try:
            channels, _ = yield from history_plan(codec, ns, it, list(it.deltas))
        except MissingObject:
            there_still, packed_since = yield [
                Get(ns.checkpoint(it.id), _header(codec, ns, it.id)),
                Get(ns.history(it.id), codec.read_history(ns, it.id)),
            ]
            if there_still is None or packed_since is not None:
                continue  # its own put has taken it back, or another prune has packed it
            raise
        pack = HistoryPack(it.thread, it.ns, it.id, channels)
        yield from put_all([(ns.history(it.id), codec.history(pack))])


def _raise_fence_plan(codec: Codec, ns: Namespace, change: Callable[[Fence], Fence]) -> Plan[None]:
    """Replace the fence, never losing what another prune has condemned meanwhile (where conditions are known)."""
    tried: str | None = None
    for _ in range(FENCE_ATTEMPTS):
        found = yield from get(ns.fence, codec.read_fence(ns))
        old, etag = found if found is not None else (Fence(), ABSENT)
        new = change(old)
        if new == old:
            return
        # Refused with the ETag that is there: this store does not compare ETags as it should.
        condition = None if tried == etag else etag
        outcome = yield from put(ns.fence, codec.fence(ns, new), condition)
        if outcome is Stored.UNSUPPORTED:
            outcome = yield from put(ns.fence, codec.fence(ns, new))
        if outcome is Stored.DONE:
            return
        tried = etag
    raise Contended(f"s3://{codec.bucket}/{ns.fence} kept changing: other prunes are at work. Try again.")

"""Deleting some checkpoints of a namespace while others stay. Every deletion but that of a whole thread goes this way.

Liveness is worked out here and nowhere else: what stays, and what that depends on.

1. **Pack.** Beside each checkpoint that stays and whose parent goes, its delta histories are packed.
   From then on it depends on no ancestor.
2. **Fence.** Word is left of what is condemned. A put that leans on it and commits from now on sees it.
3. **List again.** What has been put since stays too, with its blobs, and is packed as well.
4. **Delete**, checkpoint objects first and then the rest; or copy below the trash prefix first.

So a put either commits before step 3, and is spared, or reads its fence after step 2, and stores again
what it inherited. Whatever cannot be read on the way ends the operation before anything is deleted: what
goes may be the last that can be read. Large values of what stays are not read for that; they have to be
there, in their size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from langgraph.checkpoint.s3._keys import Namespace, in_trash, is_checkpoint
from langgraph.checkpoint.s3._objects import Body, CheckpointObject, Codec, Fence, HistoryPack, Value
from langgraph.checkpoint.s3._plans.delta import history_plan
from langgraph.checkpoint.s3._plans.folders import Folder
from langgraph.checkpoint.s3._plans.read import ATTEMPTS, missing
from langgraph.checkpoint.s3._requests import ABSENT, Get, Plan, Stored, copy_all, delete_all, each, get, put, put_all
from langgraph.checkpoint.s3._rules import Live, live
from langgraph.checkpoint.s3.errors import Contended, CorruptObject, MissingObject

HEADERS = 256
"""Checkpoint objects to read in one batch, of which only the headers are kept."""

COPIES = 256
"""Objects to copy in one batch."""

FENCE_ATTEMPTS = 8


@dataclass(frozen=True)
class Sweep:
    """How one namespace is swept: what to list and down to which id, what goes, and what the fence says then.

    `trash` is the prefix below which a copy of what goes is left, if any. What was stored before `expired`, in seconds
    since 1970, cannot be read any more, nor need it be whole: it goes too.
    """

    listing: Callable[[], Plan[list[Folder]]]
    oldest: str
    condemned: Callable[[Sequence[Folder], Fence], AbstractSet[str]]
    fence: Callable[[Fence, AbstractSet[str], Live], Fence]
    trash: str | None = None
    expired: float = 0.0


@dataclass(frozen=True)
class Survey:
    """What a sweep finds of a namespace: its folders, the ids that go, and the checkpoints that stay, all whole."""

    folders: Sequence[Folder]
    doomed: AbstractSet[str]
    staying: Sequence[CheckpointObject]

    def going(self, ns: Namespace) -> dict[str, int]:
        """The keys that go with those ids, with their sizes.

        Values that others refer to stay; packed stretches beside others go, if there may be something in them of
        those that go.
        """
        spared = {ns.blob(owner, name) for owner, name in live(self.staying).blobs}
        going = {
            key: size
            for it in self.folders
            if it.id in self.doomed
            for key, size in it.sizes.items()
            if key not in spared
        }
        return going | self._stretches_over(ns)

    def _stretches_over(self, ns: Namespace) -> dict[str, int]:
        over: dict[str, int] = {}
        for it in self.folders:
            if it.id in self.doomed:
                continue
            for name in it.stretches:
                if any(name.oldest <= checkpoint_id <= it.id for checkpoint_id in self.doomed):
                    key = ns.stretch(it.id, str(name))
                    over[key] = it.sizes[key]
        return over


def sweep_plan(codec: Codec, ns: Namespace, sweep: Sweep) -> Plan[bool]:
    """Delete what a sweep condemns of one namespace: pack, fence, list again, delete. Tells whether anything was."""
    first = yield from survey_plan(codec, ns, sweep)
    if not first.doomed:
        return False
    yield from _pack_plan(codec, ns, first.folders, first.staying, first.doomed)
    yield from raise_fence_plan(codec, ns, lambda old: sweep.fence(old, first.doomed, live(first.staying)))
    again = yield from sweep.listing()
    known = {folder.id for folder in first.folders if folder.committed}
    late = yield from _read_plan(codec, ns, [it for it in again if it.id not in known])
    yield from _pack_plan(codec, ns, again, late, first.doomed)
    last = Survey(again, first.doomed - {it.id for it in late}, [*first.staying, *late])
    going = list(last.going(ns))
    if not last.staying:
        going.append(ns.latest)  # else it would speak of a checkpoint for ever that is gone
    yield from _dispose_plan(ns.root, going, sweep.trash)
    return True


def _dispose_plan(root: str, keys: Sequence[str], trash: str | None) -> Plan[None]:
    """Delete keys; with `trash`, once there is a copy of each of them below it."""
    # Two steps: S3 deletes the keys of one request in any order, and a reader that follows the chain must
    # not meet an ancestor that is still there while its writes are not. The copies are made in this order too:
    # a rule that empties the trash by age must not leave a checkpoint there without what it points to.
    steps = [key for key in keys if is_checkpoint(key)], [key for key in keys if not is_checkpoint(key)]
    if trash is not None:
        for some in steps:
            for start in range(0, len(some), COPIES):
                _ = yield from copy_all([(key, in_trash(root, trash, key)) for key in some[start : start + COPIES]])
    for some in steps:
        yield from delete_all(some)


def survey_plan(codec: Codec, ns: Namespace, sweep: Sweep) -> Plan[Survey]:
    """List a namespace, and read of what stays everything but large values.

    A put that heeds an earlier fence replaces its checkpoint, and what is listed and what is read differ for
    a moment: so it looks again before it says that something is missing.

    Raises:
        MissingObject, CorruptObject: Something that stays is not whole.
    """
    found = yield from get(ns.fence, codec.read_fence(ns))
    for attempt in range(ATTEMPTS):
        folders = yield from sweep.listing()
        doomed = sweep.condemned(folders, found[0] if found else Fence())
        if doomed:
            doomed = doomed | {it.id for it in folders if it.committed and it.modified < sweep.expired}
        try:
            staying = yield from _read_plan(codec, ns, [it for it in folders if doomed and it.id not in doomed])
            _check_blobs(codec, ns, folders, sweep.oldest, staying)
        except (MissingObject, CorruptObject):
            if attempt == ATTEMPTS - 1:
                raise
        else:
            break
    return Survey(folders, doomed, staying)


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


def raise_fence_plan(codec: Codec, ns: Namespace, change: Callable[[Fence], Fence]) -> Plan[None]:
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

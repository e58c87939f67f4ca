"""Reading one checkpoint: the newest of a namespace, or one by its id.

The newest is found by a listing, which is the truth. The manifest, read at the same time, is believed
only when it holds a copy of the very checkpoint that the listing shows; otherwise it costs one more
round trip and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from langgraph.checkpoint.s3._keys import Namespace, has_descending_key
from langgraph.checkpoint.s3._objects import BlobRef, Body, CheckpointObject, Codec, Link
from langgraph.checkpoint.s3._plans.folders import Folder, group
from langgraph.checkpoint.s3._requests import ANY_VERSION, Get, List, Page, Plan, Request, get, list_all, list_page
from langgraph.checkpoint.s3._rules import PendingWrite, link_of, merge_writes
from langgraph.checkpoint.s3._values import Typed
from langgraph.checkpoint.s3.errors import Contended, CorruptObject, MissingObject, ObjectTooLarge

HEAD_KEYS = 24
"""Keys to ask for when looking for the newest checkpoint: its object, a fan-out of some twenty write
batches, and the key that shows that there are no more. Each key costs the client parsing time."""

ATTEMPTS = 3
"""How often a read starts again when what it was reading is deleted under it."""


@dataclass(frozen=True)
class Loaded:
    """A checkpoint with everything that belongs to it."""

    checkpoint: CheckpointObject
    values: dict[str, Typed] = field(repr=False)
    writes: list[PendingWrite]
    stamp: int  # the newest stamp among its write batches
    link: Link  # the same as a link of its delta chain
    body: Body | None = field(repr=False)  # the checkpoint object, if only its copy was read


def get_latest_plan(codec: Codec, ns: Namespace, warm: bool = False, oldest: float = 0.0) -> Plan[Loaded | None]:
    """Read the newest checkpoint of a namespace. One round trip, two with pending writes or large values.

    One that was stored before `oldest` (in seconds since 1970) is gone already.
    """
    for attempt in range(ATTEMPTS):
        head = yield from find_head_plan(codec, ns, warm)
        if head is None or head[1].modified < oldest:
            return None
        checkpoint, folder = head
        try:
            return (yield from load_plan(codec, ns, checkpoint, folder))
        except MissingObject:
            if attempt == ATTEMPTS - 1:
                raise
    return None


def get_exact_plan(
    codec: Codec, ns: Namespace, checkpoint_id: str, warm: bool = False, oldest: float = 0.0
) -> Plan[Loaded | None]:
    """Read one checkpoint by its id. One round trip, two with pending writes or large values.

    One that was stored before `oldest` (in seconds since 1970) is gone already.
    """
    key, read = ns.checkpoint(checkpoint_id), codec.read_checkpoint(ns, checkpoint_id)
    for attempt in range(ATTEMPTS):
        page, *got = yield [List(ns.folder(checkpoint_id)), *([] if warm and not attempt else [Get(key, read)])]
        folder = yield from _folder_plan(ns, checkpoint_id, page)
        if folder.committed and folder.modified < oldest:
            return None
        checkpoint = got[0] if got else (yield from get(key, read, folder.keys.get(key, "")))
        if checkpoint is not None and page.token is not None:
            checkpoint = yield from get(key, read)  # still there after the last page, so no page came too late
        if checkpoint is None:
            return None
        if not folder.committed:
            continue  # it came or went between the two requests: its writes may have come or gone too
        try:
            return (yield from load_plan(codec, ns, checkpoint, folder))
        except MissingObject:
            if attempt == ATTEMPTS - 1:
                raise
    raise contended(codec, key)


def _folder_plan(ns: Namespace, checkpoint_id: str, page: Page) -> Plan[Folder]:
    """What lies beside a checkpoint, from the first page of its folder's listing on."""
    entries = list(page.entries)
    while page.token is not None:
        page = yield from list_page(List(ns.folder(checkpoint_id), token=page.token))
        entries += page.entries
    return next(iter(group(ns, entries)), Folder(checkpoint_id))


def find_head_plan(codec: Codec, ns: Namespace, warm: bool = False) -> Plan[tuple[CheckpointObject, Folder] | None]:
    """Find the newest checkpoint of a namespace and what lies beside it. One round trip if the manifest is right.

    `warm` says that the newest checkpoint is likely to be in the cache: then the listing will do.

    Raises:
        Contended: each time it looked, what it had found was deleted, and a newer one put, before it could read it.
    """
    seen: list[str] | None = None
    for attempt in range(ATTEMPTS):
        page, *hints = yield [
            List(ns.checkpoints, max_keys=HEAD_KEYS),
            *([] if warm and not attempt else [Get(ns.latest, _hint(codec.read_checkpoint(ns)))]),
        ]
        manifest = hints[0] if hints else None
        folder, keys, whole = yield from _newest_folder_plan(ns, page)
        if folder is None:
            # One page shows one moment. While several were read, a newer checkpoint may have come on a page that was
            # read before, and the older one gone from a page that was not: look again, until nothing changes.
            if whole or keys == seen:
                return None
            seen = keys
            continue
        key = ns.checkpoint(folder.id)
        if whole and manifest is not None and (manifest[0].id, len(manifest[1].data)) == (folder.id, folder.size):
            checkpoint, body = manifest
            if body.etag == folder.keys[key]:
                folder.body = replace(body, key=key)
            return checkpoint, folder
        checkpoint = yield from get(key, codec.read_checkpoint(ns, folder.id), folder.keys[key] if not attempt else "")
        if checkpoint is not None:  # else it was deleted since the listing: look again
            return checkpoint, folder
    raise contended(codec, ns.checkpoints)


def _hint(read: Callable[[Body], CheckpointObject]) -> Callable[[Body], tuple[CheckpointObject, Body] | None]:
    """Read a manifest. A damaged one is no worse than none: the checkpoint itself will tell."""

    def decode(body: Body) -> tuple[CheckpointObject, Body] | None:
        try:
            return read(body), body
        except (CorruptObject, ObjectTooLarge):
            return None

    return decode


def _newest_folder_plan(ns: Namespace, page: Page) -> Plan[tuple[Folder | None, list[str], bool]]:
    """The newest folder that has a checkpoint, complete, from the first page of a listing on.

    Also returns the keys that were listed, and whether they came in one page.
    """
    entries, whole = list(page.entries), True
    while True:
        folders = group(ns, entries)
        if folders and not has_descending_key(folders[0].id):
            return (yield from _newest_by_id_plan(ns))
        complete = folders[:-1] if page.token is not None else folders
        newest = next((folder for folder in complete if folder.committed), None)
        if newest is not None or page.token is None:
            return newest, [entry.key for entry in entries], whole
        page = yield from list_page(List(ns.checkpoints, token=page.token))
        entries += page.entries
        whole = False


def _newest_by_id_plan(ns: Namespace) -> Plan[tuple[Folder | None, list[str], bool]]:
    """The same where some ids are not UUIDs: keys do not sort by id there, so look at all of them."""
    entries, pages = yield from list_all(ns.checkpoints)
    committed = [folder for folder in group(ns, entries) if folder.committed]
    newest = max(committed, key=lambda folder: folder.id, default=None)
    return newest, [entry.key for entry in entries], pages == 1


def load_plan(codec: Codec, ns: Namespace, checkpoint: CheckpointObject, folder: Folder) -> Plan[Loaded]:
    """Fetch a checkpoint's large values and write batches, all together. At most one round trip.

    Raises:
        MissingObject: one of them is gone.
    """
    refs = list(checkpoint.refs.items())
    requests: list[Request] = [blob_request(codec, ns, channel, ref) for channel, ref in refs]
    requests += [writes_request(codec, ns, folder, name) for name in folder.writes]
    replies = (yield requests) if requests else []
    for request, reply in zip(requests, replies, strict=True):
        if reply is None:
            assert isinstance(request, Get)
            raise missing(codec, request.key, f"checkpoint {checkpoint.id} depends on it")
    values = {name: it.content for name, it in checkpoint.values.items() if not isinstance(it.content, BlobRef)}
    values.update(zip((channel for channel, _ in refs), replies[: len(refs)], strict=True))
    batches = dict(zip(folder.writes, replies[len(refs) :], strict=True))
    stamp = max((it.stamp for it in batches.values()), default=0)
    link = link_of(checkpoint, batches, folder.writes, folder.size or 0, folder.packed)
    return Loaded(checkpoint, values, merge_writes(batches), stamp, link, folder.body)


def blob_request(codec: Codec, ns: Namespace, channel: str, ref: BlobRef) -> Get:
    """Read a large value."""
    return Get(ns.blob(ref.owner, ref.name), codec.read_blob(ns, ref, channel), ANY_VERSION)


def writes_request(codec: Codec, ns: Namespace, folder: Folder, name: str) -> Get:
    """Read a write batch."""
    key = ns.writes(folder.id, name)
    return Get(key, codec.read_writes(ns, folder.id, name), folder.keys.get(key, ""))


def missing(codec: Codec, key: str, why: str) -> MissingObject:
    """The error for an object that should be there and is not."""
    return MissingObject(
        f"s3://{codec.bucket}/{key} is missing, and {why}. Was it deleted by hand or by a lifecycle rule? "
        "Restore it from an earlier version, or see 'A thread that cannot be read' in docs/operations.md."
    )


def contended(codec: Codec, key: str) -> Contended:
    """The error for a read that others overtook each time it was tried."""
    return Contended(
        f"s3://{codec.bucket}/{key} kept changing while it was read: others put and prune here. Read it again."
    )

"""Reading ahead for a caller that walks along a chain, one ancestor after another by its id.

Agent Server rebuilds delta channels so. The listing shows what lies behind the checkpoint that was asked for;
all of that is fetched together, and each checkpoint then read as it would be alone.
"""

from __future__ import annotations

from langgraph.checkpoint.s3._keys import Namespace
from langgraph.checkpoint.s3._objects import Codec
from langgraph.checkpoint.s3._plans.folders import Folder, group
from langgraph.checkpoint.s3._plans.read import Loaded, load_plan
from langgraph.checkpoint.s3._requests import MAX_LIST, Get, List, Plan, each, get, list_page
from langgraph.checkpoint.s3.errors import MissingObject

WINDOW = 64
"""Ancestors to read ahead at most."""

WINDOW_BYTES = 8 << 20
"""Stored bytes to read ahead, roughly."""

KEYS_EACH = 6
"""Keys to ask for per ancestor."""


def read_ahead_plan(
    codec: Codec, ns: Namespace, checkpoint_id: str, count: int, oldest: float = 0.0
) -> Plan[list[Loaded]]:
    """Read a checkpoint and some that lie behind it, as far as they are there and were not stored before `oldest`.

    To be run through a cache, which keeps what is fetched until it is decoded: two round trips then, and one more
    if there are large values that were stored further back.
    """
    count = min(count, WINDOW)
    keys = min(MAX_LIST, KEYS_EACH * (count + 2))
    page = yield from list_page(List(ns.checkpoints, start_after=ns.folder(checkpoint_id)[:-1], max_keys=keys))
    folders = group(ns, page.entries)
    if page.token is not None and folders:
        _ = folders.pop()  # it may go on
    window = _window([it for it in folders if it.committed and it.modified >= oldest], count)
    if not window:
        return []
    needed = [(ns.checkpoint(it.id), ns.blob(it.id, ""), ns.writes(it.id)) for it in window]
    _ = yield [
        Get(key, etag=etag)
        for it, prefixes in zip(window, needed, strict=True)
        for key, etag in it.keys.items()
        if key.startswith(prefixes)
    ]
    loaded = yield from each([_load_plan(codec, ns, folder) for folder in window])
    return [it for it in loaded if it is not None]


def _window(folders: list[Folder], count: int) -> list[Folder]:
    """The first of some folders, as far as they can be held."""
    stored = 0
    for position, folder in enumerate(folders[: count + 1]):
        stored += folder.stored
        if stored > WINDOW_BYTES and position:
            return folders[:position]
    return folders[: count + 1]


def _load_plan(codec: Codec, ns: Namespace, folder: Folder) -> Plan[Loaded | None]:
    """Load a listed checkpoint; None if something of it was deleted since."""
    key = ns.checkpoint(folder.id)
    checkpoint = yield from get(key, codec.read_checkpoint(ns, folder.id), folder.keys[key])
    if checkpoint is None:
        return None
    try:
        return (yield from load_plan(codec, ns, checkpoint, folder))
    except MissingObject:
        return None

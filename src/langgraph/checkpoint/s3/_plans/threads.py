"""Whole threads: deleting one, copying one.

A checkpoint that is visible is whole, at every moment. So deletion takes checkpoint objects first and
what they pointed to afterwards; copying brings them last, the oldest first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from langgraph.checkpoint.s3._keys import (
    THREAD_LIMIT,
    Namespace,
    encode_part,
    in_trash,
    is_checkpoint,
    is_ours,
    thread_name,
    thread_prefix,
)
from langgraph.checkpoint.s3._objects import Body, Codec
from langgraph.checkpoint.s3._requests import Entry, Get, Plan, copy_all, delete_all, list_all, put_all
from langgraph.checkpoint.s3.errors import Contended

COPIES = 256
"""Objects to copy in one batch. The server copies; the driver's pool bounds how many at a time."""


def delete_thread_plan(root: str, thread_id: str, trash: str | None = None) -> Plan[None]:
    """Delete everything that this saver stored of a thread, and what prunes have left of it in the `trash`.

    One round trip per 1,000 objects listed and one per 1,000 deleted. Stopped halfway, a thread of more
    than 1,000 checkpoints is left without its oldest ones.
    """
    entries, _ = yield from list_all(thread_prefix(root, thread_id))
    part = encode_part(thread_id, THREAD_LIMIT)
    keys = [entry.key for entry in entries if is_ours(root, part, entry.key)]
    yield from delete_all(checkpoints_first(keys))
    if trash is not None:
        entries, _ = yield from list_all(in_trash(root, trash, thread_prefix(root, thread_id)))
        yield from delete_all(checkpoints_first([entry.key for entry in entries]))


def checkpoints_first(keys: Sequence[str]) -> list[str]:
    """The order to delete in: checkpoint objects, the oldest first, then all the rest."""
    checkpoints = [key for key in keys if is_checkpoint(key)]
    return checkpoints[::-1] + [key for key in keys if not is_checkpoint(key)]


def copy_thread_plan(
    codec: Codec, root: str, source_id: str, target_id: str, oldest: float = 0.0, reach: float = 0.0
) -> Plan[None]:
    """Copy all checkpoints and writes of a thread to another one, on the server.

    One round trip per 1,000 objects listed (twice if there are more) and one per 256 copied. What the
    target has already stays, unless the source has the same checkpoint. Only fences stay behind: they
    speak of deletions in the source.

    A copy is young. So what was stored before `oldest`, in seconds since 1970, and is gone for readers, is only copied
    where a checkpoint that is not leans on it, as one may that was stored less than `reach` seconds later. To know,
    checkpoints of that time are read.

    Raises:
        Contended: something of the source was deleted meanwhile. What was copied is whole.
    """
    source, target = thread_prefix(root, source_id), thread_prefix(root, target_id)
    if source == target:
        return
    part = encode_part(source_id, THREAD_LIMIT)
    entries, pages = yield from list_all(source)
    gone = yield from _gone_plan(codec, root, part, entries, oldest, reach)
    checkpoints = [entry.key for entry in entries if is_checkpoint(entry.key) and entry.key not in gone]
    if pages > 1:
        # A checkpoint may have been put between two pages, with what it points to on the one already read.
        # All that the checkpoints seen so far point to is there by now.
        entries, _ = yield from list_all(source)
    rest = [entry.key for entry in entries if not is_checkpoint(entry.key) and not entry.key.endswith("/fence")]
    name = encode_part(target_id, THREAD_LIMIT)
    if checkpoints and name.startswith("_"):
        yield from put_all([(thread_name(root, name), target_id.encode())])
    for keys in (rest, checkpoints[::-1]):
        ours = [key for key in keys if is_ours(root, part, key) and key != thread_name(root, part)]
        for start in range(0, len(ours), COPIES):
            pairs = [(key, target + key[len(source) :]) for key in ours[start : start + COPIES]]
            lost = yield from copy_all(pairs)
            if lost:
                raise Contended(
                    f"s3://{codec.bucket}/{lost[0]} was deleted while thread {source_id!r} was being copied to "
                    f"{target_id!r}. Copy it again, or delete the target."
                )


def _gone_plan(
    codec: Codec, root: str, part: str, entries: Sequence[Entry], oldest: float, reach: float
) -> Plan[set[str]]:
    """The keys of checkpoints that are gone for readers, but for those that the delta chains of others lean on."""
    gone = {it.key for it in entries if is_checkpoint(it.key) and it.modified < oldest}
    if not gone:
        return gone
    packed = {_folder(it.key) for it in entries if it.key.endswith("/history")}
    there = [it for it in entries if is_checkpoint(it.key) and is_ours(root, part, it.key)]
    near = [it.key for it in there if oldest <= it.modified < oldest + reach]
    while near:
        following: list[str] = []
        for start in range(0, len(near), COPIES):
            some = near[start : start + COPIES]
            parents = yield [Get(key, _leans_on(codec, root, part, key)) for key in some if _folder(key) not in packed]
            following += [key for key in parents if key in gone]
        gone -= set(following)
        near = list(dict.fromkeys(following))
    return gone


def _folder(key: str) -> str:
    return key.rpartition("/")[0]


def _leans_on(codec: Codec, root: str, part: str, key: str) -> Callable[[Body], str | None]:
    """Read the key of the parent that a checkpoint leans on, if it leans on one."""
    ns = Namespace(root, part, key[len(root) + len(part) + 1 :].partition("/")[0])
    located = ns.locate(key)
    assert located is not None
    read = codec.read_checkpoint(ns, located.checkpoint_id)

    def decode(body: Body) -> str | None:
        it = read(body)
        return ns.checkpoint(it.parent) if it.deltas and it.parent is not None else None

    return decode

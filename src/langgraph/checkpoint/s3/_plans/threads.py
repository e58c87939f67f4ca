"""Whole threads: deleting one, copying one.

A checkpoint that is visible is whole, at every moment. So deletion takes checkpoint objects first and
what they pointed to afterwards; copying brings them last, the oldest first.
"""

from __future__ import annotations

from collections.abc import Sequence

from langgraph.checkpoint.s3._keys import (
    THREAD_LIMIT,
    encode_part,
    in_trash,
    is_checkpoint,
    is_ours,
    thread_name,
    thread_prefix,
)
from langgraph.checkpoint.s3._requests import Plan, copy_all, delete_all, list_all, put_all
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


def copy_thread_plan(bucket: str, root: str, source_id: str, target_id: str) -> Plan[None]:
    """Copy all checkpoints and writes of a thread to another one, on the server.

    One round trip per 1,000 objects listed (twice if there are more) and one per 256 copied. What the
    target has already stays, unless the source has the same checkpoint. Only fences stay behind: they
    speak of deletions in the source.

    Raises:
        Contended: something of the source was deleted meanwhile. What was copied is whole.
    """
    source, target = thread_prefix(root, source_id), thread_prefix(root, target_id)
    if source == target:
        return
    part = encode_part(source_id, THREAD_LIMIT)
    entries, pages = yield from list_all(source)
    checkpoints = [entry.key for entry in entries if is_checkpoint(entry.key)]
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
            gone = yield from copy_all(pairs)
            if gone:
                raise Contended(
                    f"s3://{bucket}/{gone[0]} was deleted while thread {source_id!r} was being copied to "
                    f"{target_id!r}. Copy it again, or delete the target."
                )

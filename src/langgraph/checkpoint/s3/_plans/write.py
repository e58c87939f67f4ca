"""Storing a checkpoint, and storing the writes of a task.

Order is everything. Large values and the run's marker first; then the checkpoint object, which is the
commit point (the manifest, a mere hint, goes with it). Last, a checkpoint that leans on older objects
reads the fence: a prune that condemned one of them before seeing this checkpoint has left word there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from langgraph.checkpoint.s3._keys import (
    Namespace,
    blob_name,
    is_checkpoint,
    numbered_batch,
    stamped_batch,
)
from langgraph.checkpoint.s3._objects import (
    BlobRef,
    CheckpointObject,
    Codec,
    Fence,
    Link,
    Value,
    Version,
    WriteBatch,
)
from langgraph.checkpoint.s3._requests import ABSENT, Plan, Put, Stored, delete_all, get, put_all
from langgraph.checkpoint.s3._rules import chain_marks, dooms, has_regular, lacking, link_of
from langgraph.checkpoint.s3._stretch import Packing, pack_stretch
from langgraph.checkpoint.s3._values import Typed
from langgraph.checkpoint.s3.errors import CheckpointPruned, Contended

if TYPE_CHECKING:
    from langgraph.checkpoint.s3._plans.renew import Life

MAX_BATCHES = 10_000
"""Batches of regular writes that one task may have. Only a caller that repeats itself has more than one."""


@dataclass(frozen=True)
class Draft:
    """A checkpoint that is to be stored.

    `stored` are the values to store with it; `inherited` the channels (with their versions) that it takes
    from its parent. `in_hand` serialises an inherited value that the caller holds too; None if it does not.
    """

    thread: str
    ns: str
    id: str
    parent: str | None
    run: str | None
    state: Typed = field(repr=False)
    metadata: Typed = field(repr=False)
    stored: Mapping[str, tuple[Version, Typed]] = field(repr=False)
    inherited: Mapping[str, Version]
    channels: Sequence[str]  # all that have a version
    in_hand: Callable[[str], Typed | None] = field(repr=False)
    deltas: Mapping[str, int]
    manifest: bool  # whether to write the manifest with it


@dataclass(frozen=True)
class Settings:
    """How a saver stores things."""

    inline_threshold: int  # bytes, compressed
    packing: Packing = field(default_factory=Packing)


@dataclass(frozen=True)
class PutResult:
    """A checkpoint as stored, and as a link of its chain."""

    checkpoint: CheckpointObject
    link: Link


def put_plan(
    codec: Codec,
    ns: Namespace,
    draft: Draft,
    parent: CheckpointObject | None,
    settings: Settings,
    stretch: Sequence[Link] = (),
    life: Life | None = None,
) -> Plan[PutResult]:
    """Store a checkpoint. With it goes a pack of a stretch of its delta chain, if one is due.

    With `life`, what it depends on is renewed where it is getting old: that takes more round trips now and then, and
    the parent has to be known if delta channels lean on it.

    One round trip; one before it for new large values or a run's marker, one after it to read the fence
    if it inherits large values or its delta channels lean on ancestors, and one at first if `parent` is
    not given and something of it has to be known.

    Raises:
        CheckpointPruned: a prune has condemned ancestors that its delta channels need. It was not stored.
    """
    if parent is None and draft.parent is not None and _needs_parent(draft, settings, life):
        parent = yield from get(ns.checkpoint(draft.parent), codec.read_checkpoint(ns, draft.parent))
        if parent is None and any(draft.in_hand(channel) is None for channel in draft.inherited):
            yield from _refuse_if_pruned_plan(codec, ns, draft)
    taken = _taken(draft, parent)
    since = 0.0
    if life is not None and parent is not None:
        from langgraph.checkpoint.s3._plans.renew import renew_inherited_plan

        draft, taken, since = yield from renew_inherited_plan(codec, ns, draft, parent, taken, life)
    values, blobs = _place(codec, ns, draft.thread, draft.ns, draft.id, _own(draft, taken), settings)
    values |= taken
    marks, steps = chain_marks(parent, max(draft.deltas.values(), default=0))
    it = CheckpointObject(
        thread=draft.thread,
        ns=draft.ns,
        id=draft.id,
        parent=draft.parent,
        state=draft.state,
        metadata=draft.metadata,
        values=values,
        deltas=draft.deltas,
        blank=[name for name in draft.channels if name not in values],
        marks=marks,
        steps=steps,
        since=since if parent is not None or life is None else life.now,
    )
    markers = [(ns.marker(draft.run, draft.id), b"")] if draft.run is not None else []
    commit = _commit(codec, ns, it, draft.manifest)  # packed now: what cannot be stored is refused before anything is
    pack = pack_stretch(codec, ns, draft.thread, draft.ns, stretch, draft.deltas, settings.packing)
    if blobs or markers:
        _ = yield [*(Put(key, body, keep=True) for key, body in blobs), *(Put(key, body) for key, body in markers)]
    yield from _commit_plan(ns, [*commit, *pack])
    if it.parent is not None and (it.depth or any(ref.owner != it.id for ref in it.refs.values())):
        it = yield from _heed_fence_plan(codec, ns, draft, it, settings)
    return PutResult(it, link_of(it, size=len(commit[0][1])))


def _refuse_if_pruned_plan(codec: Codec, ns: Namespace, draft: Draft) -> Plan[None]:
    """Refuse a checkpoint of which something unknown is lost: its parent was pruned before anything of it was read."""
    found = yield from get(ns.fence, codec.read_fence(ns))
    if found is not None and draft.parent is not None and dooms(found[0], draft.parent):
        raise _too_late(codec, ns, draft)


def _too_late(codec: Codec, ns: Namespace, draft: Draft) -> CheckpointPruned:
    return CheckpointPruned(
        f"checkpoint {draft.parent} of thread {draft.thread!r} in s3://{codec.bucket}/{ns.base} was pruned while a new "
        "checkpoint was being built on it; nothing was stored. Read the thread again and continue from its latest."
    )


def _needs_parent(draft: Draft, settings: Settings, life: Life | None) -> bool:
    """Whether something is inherited that the caller does not hold, or that is too large to store again."""
    if life is not None and draft.deltas:
        return True  # how old its chain is
    held = [draft.in_hand(channel) for channel in draft.inherited]
    return any(value is None or len(value[1]) > settings.inline_threshold for value in held)


def _taken(draft: Draft, parent: CheckpointObject | None) -> dict[str, Value]:
    """The inherited values as the parent has them, byte for byte or by reference."""
    taken = {}
    for channel, version in draft.inherited.items():
        value = parent.values.get(channel) if parent is not None else None
        if value is not None and value.version == version and _refers_back(value, draft.id):
            taken[channel] = value
    return taken


def _refers_back(value: Value, checkpoint_id: str) -> bool:
    """Whether a value may be referred to from here.

    Blobs are only ever those of older ids, so that what comes after a checkpoint in the listing can
    never depend on it.
    """
    return not isinstance(value.content, BlobRef) or value.content.owner < checkpoint_id


def _own(draft: Draft, taken: Mapping[str, Value]) -> dict[str, tuple[Version, Typed]]:
    """The values to store with this checkpoint: the new ones, and inherited ones that are not taken from the parent."""
    own = dict(draft.stored)
    for channel, version in draft.inherited.items():
        value = draft.in_hand(channel) if channel not in taken else None
        if value is not None:
            own[channel] = version, value
    return own


def _place(
    codec: Codec,
    ns: Namespace,
    thread: str,
    ns_text: str,
    checkpoint_id: str,
    own: Mapping[str, tuple[Version, Typed]],
    settings: Settings,
) -> tuple[dict[str, Value], list[tuple[str, bytes]]]:
    """Decide for each value whether it goes inline or into a blob; returns the values and the blobs to write."""
    values: dict[str, Value] = {}
    blobs: list[tuple[str, bytes]] = []
    for channel, (version, content) in own.items():
        packed = b""
        if len(content[1]) > settings.inline_threshold:
            packed = codec.blob(thread, ns_text, checkpoint_id, channel, content)
        if len(packed) > settings.inline_threshold:
            name = blob_name(channel, content[1])
            values[channel] = Value(version, BlobRef(checkpoint_id, name, len(packed)))
            blobs.append((ns.blob(checkpoint_id, name), packed))
        else:
            values[channel] = Value(version, content)
    return values, blobs


def _commit(codec: Codec, ns: Namespace, it: CheckpointObject, manifest: bool) -> list[tuple[str, bytes]]:
    packed = codec.checkpoint(it)
    return [(ns.checkpoint(it.id), packed), *([(ns.latest, packed)] if manifest else [])]


def _commit_plan(ns: Namespace, objects: Sequence[tuple[str, bytes]]) -> Plan[None]:
    _ = yield [Put(key, body, keep=is_checkpoint(key)) for key, body in objects]


def put_manifest_plan(codec: Codec, ns: Namespace, it: CheckpointObject) -> Plan[None]:
    """Write the manifest of a checkpoint that is stored already. One round trip, one PUT."""
    yield from put_all([(ns.latest, codec.checkpoint(it))])


def _heed_fence_plan(
    codec: Codec, ns: Namespace, draft: Draft, it: CheckpointObject, settings: Settings
) -> Plan[CheckpointObject]:
    """After the commit: is anything that this checkpoint leans on condemned?

    A prune writes its fence, then lists again and spares what it sees referred to. So either it has seen
    this checkpoint, or this read sees its fence.
    """
    found = yield from get(ns.fence, codec.read_fence(ns))
    if found is None:
        return it
    fence, _ = found
    lost = [name for name, ref in it.refs.items() if ref.owner != it.id and dooms(fence, ref.owner, ref.name)]
    again = {name: (it.values[name].version, value) for name in lost if (value := draft.in_hand(name)) is not None}
    if len(again) < len(lost) or _chain_broken(fence, it):
        yield from delete_all([ns.checkpoint(it.id)])
        raise _too_late(codec, ns, draft)
    if again:
        values, blobs = _place(codec, ns, it.thread, it.ns, it.id, again, settings)
        it = replace(it, values={**it.values, **values})
        yield from put_all(blobs, keep=True)
        yield from _commit_plan(ns, _commit(codec, ns, it, draft.manifest))
    return it


def _chain_broken(fence: Fence, it: CheckpointObject) -> bool:
    """Whether its delta channels lean on what is condemned.

    A prune that keeps this very checkpoint has packed them beside it. It may have let the former newest
    one go for it, so taking it back then would leave the thread with nothing.
    """
    return bool(it.depth) and it.parent is not None and dooms(fence, it.parent) and it.id not in fence.kept


def put_writes_plan(
    codec: Codec, ns: Namespace, batch: WriteBatch, manifest: CheckpointObject | None = None
) -> Plan[tuple[str, WriteBatch, int] | None]:
    """Store the writes of one `put_writes` call, as one object. One round trip, one PUT.

    Returns the name, the batch and its size in bytes as they were stored; None if there was nothing to store.

    A repeated call takes two more: it is refused its name, and reads what is there. An empty one takes none.
    With `manifest`, the checkpoint at which a run stops, the manifest is written beside it.
    """
    hint = [Put(ns.latest, codec.checkpoint(manifest))] if manifest is not None else []
    rest: WriteBatch | None = batch if batch.writes else None
    stored: list[WriteBatch] = []
    while rest is not None and has_regular(rest):
        name, body = numbered_batch(batch.task, len(stored)), codec.writes(rest)
        outcome, *_ = yield [Put(ns.writes(batch.checkpoint, name), body, ABSENT, keep=True), *hint]
        hint = []
        if outcome is Stored.DONE:
            return name, rest, len(body)
        if outcome is Stored.UNSUPPORTED:
            break  # every batch gets a name of its own then, and readers let the first one win
        there = yield from get(ns.writes(batch.checkpoint, name), codec.read_writes(ns, batch.checkpoint, name))
        if there is not None:  # else it was deleted since: the name is free again
            stored.append(there)
            rest = lacking(batch, stored)
        if len(stored) == MAX_BATCHES:
            raise Contended(f"task {batch.task!r} has {MAX_BATCHES:,} write batches on checkpoint {batch.checkpoint}.")
    if rest is None:
        return None
    name, body = stamped_batch(batch.task, batch.stamp, batch.nonce), codec.writes(rest)
    _ = yield [Put(ns.writes(batch.checkpoint, name), body, keep=True), *hint]
    return name, rest, len(body)

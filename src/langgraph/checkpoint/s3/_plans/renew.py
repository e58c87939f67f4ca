"""Keeping up with a lifecycle rule that deletes whatever is twice as old as `expire_after`, T.

A checkpoint is read for T after it was put, so that nothing it depends on may be older than T/2 then: with that it is
at most 1.5 T old when the checkpoint is read last, and clocks may differ by T/2. What is older than T/4 is renewed, as
what a checkpoint inherits from its delta chain may itself have been inherited, and be as much older again.

* A large value that is inherited is stored again, beside the new checkpoint.
* A delta chain is cut: its history is packed beside an ancestor. Not beside the parent of a run that is under way, as
  the writes of its tasks may still be arriving: beside the nearest ancestor that is *settled*, old enough for nothing
  to be on its way to those behind it. That ancestor, if it is old, and large values that the chain begins with are
  stored again where they are, by the same contents.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from langgraph.checkpoint.s3._keys import Namespace, time_of
from langgraph.checkpoint.s3._objects import BlobRef, CheckpointObject, Codec, HistoryPack, Link, Value
from langgraph.checkpoint.s3._plans.delta import history_plan
from langgraph.checkpoint.s3._plans.read import blob_request, missing
from langgraph.checkpoint.s3._requests import Get, Plan, Put, Stored, as_read, each, get, list_all, put_all
from langgraph.checkpoint.s3._values import Typed

if TYPE_CHECKING:
    from langgraph.checkpoint.s3._plans.write import Draft

DAY = 86_400.0

TOGETHER = 64
"""Objects to renew together."""


@dataclass(frozen=True)
class Life:
    """How long things live. All in seconds; `now` since 1970.

    Attributes:
        now: The moment of a put.
        span: `expire_after`.
    """

    now: float
    span: float

    def is_old(self, stored: float | None) -> bool:
        """Whether something is to be renewed. What is of unknown age is."""
        return stored is None or stored < self.now - self.span / 4

    def is_settled(self, stored: float | None) -> bool:
        """Whether nothing can still be on its way to what is behind this."""
        return stored is None or stored < self.now - min(self.span / 8, DAY)


def old_values(values: Mapping[str, Value], life: Life) -> set[str]:
    """The channels whose large value is to be stored again."""
    refs = {name: value.content for name, value in values.items() if isinstance(value.content, BlobRef)}
    return {name for name, ref in refs.items() if life.is_old(time_of(ref.owner))}


def renew_inherited_plan(
    codec: Codec, ns: Namespace, draft: Draft, parent: CheckpointObject, taken: dict[str, Value], life: Life
) -> Plan[tuple[Draft, dict[str, Value], float]]:
    """Take nothing of the parent that is getting old; tells how old the rest is.

    Large values are stored again with this checkpoint: the caller mostly holds them, else they are read.
    """
    old = old_values(taken, life)
    lacking = [name for name in old if draft.in_hand(name) is None]
    read = yield from fetch_values_plan(codec, ns, parent, lacking)
    taken = {name: value for name, value in taken.items() if name not in old}
    owners = [value.content.owner for value in taken.values() if isinstance(value.content, BlobRef)]
    times = [time_of(owner) or 0.0 for owner in owners]
    if draft.deltas:
        times.append((yield from renew_chain_plan(codec, ns, parent, list(draft.deltas), life)))
    held = draft.in_hand
    return replace(draft, in_hand=lambda name: read.get(name) or held(name)), taken, min([*times, life.now])


def fetch_values_plan(
    codec: Codec, ns: Namespace, it: CheckpointObject, channels: Collection[str]
) -> Plan[dict[str, Typed]]:
    """Read large values of a checkpoint. One round trip, a GET each.

    Raises:
        MissingObject: One of them is gone.
    """
    if not channels:
        return {}
    requests = {name: blob_request(codec, ns, name, it.refs[name]) for name in channels}
    values = yield list(requests.values())
    for request, value in zip(requests.values(), values, strict=True):
        if value is None:
            raise missing(codec, request.key, f"checkpoint {it.id} depends on it")
    return dict(zip(requests, values, strict=True))


def renew_chain_plan(
    codec: Codec, ns: Namespace, parent: CheckpointObject, channels: Collection[str], life: Life
) -> Plan[float]:
    """Cut the delta chain behind a checkpoint that is being put, if it is getting old.

    No round trip if it is not. Else about eight, with a GET for each checkpoint and write batch of the chain.

    Returns:
        When the oldest of what the chain now is was stored, in seconds since 1970.

    Raises:
        MissingObject: An ancestor that is needed is gone.
    """
    if parent.since and not life.is_old(parent.since):
        return parent.since
    _, links = yield from history_plan(codec, ns, parent, list(channels))
    path = _path(parent, links)
    young = [it for it in path if not life.is_settled(time_of(it))]
    base = path[len(young)] if len(young) < len(path) else None
    seeds = [link.id for link in links if link.id in young and set(link.stored) & set(channels)]
    oldest = [time_of(it) or life.now for it in young]
    if base is not None:
        oldest.append((yield from _cut_plan(codec, ns, base, life)))
    begins = yield from _checkpoints_plan(codec, ns, [*seeds, *([parent.id] if parent.id in young else [])])
    yield from _renew_values_plan(codec, ns, begins, life)
    return min([*oldest, life.now])


def _path(parent: CheckpointObject, links: Sequence[Link]) -> list[str]:
    """The ids of a chain that are young at first and then are not: the parent, and its ancestors as far as known."""
    parents = {link.id: link.parent for link in links}
    path: list[str] = []
    following: str | None = parent.id
    parents[parent.id] = parent.parent
    while following is not None and following in parents:
        path.append(following)
        following = parents[following]
    return path


def _cut_plan(codec: Codec, ns: Namespace, checkpoint_id: str, life: Life) -> Plan[float]:
    """Pack the history of an ancestor beside it, and renew the ancestor if it is old; tells how old it then is."""
    (base,) = yield from _checkpoints_plan(codec, ns, [checkpoint_id])
    entries, _ = yield from list_all(ns.folder(checkpoint_id))
    if base.deltas and not any(it.key == ns.history(checkpoint_id) for it in entries):
        histories, _ = yield from history_plan(codec, ns, base, list(base.deltas))
        pack = HistoryPack(base.thread, base.ns, base.id, histories)
        yield from put_all([(ns.history(checkpoint_id), codec.history(pack))])
    yield from _renew_values_plan(codec, ns, [base], life)
    stored = time_of(checkpoint_id)
    if stored is not None and not life.is_old(stored):
        return stored
    wanted = [it for it in entries if "/blob/" not in it.key and "/stretch/" not in it.key]
    yield from _renew_plan([it.key for it in wanted if life.is_old(it.modified)])
    return life.now


def _checkpoints_plan(codec: Codec, ns: Namespace, ids: Sequence[str]) -> Plan[list[CheckpointObject]]:
    found: list[CheckpointObject] = []
    unique = list(dict.fromkeys(ids))
    for start in range(0, len(unique), TOGETHER):
        some = unique[start : start + TOGETHER]
        replies = yield [Get(ns.checkpoint(it), codec.read_checkpoint(ns, it)) for it in some]
        for checkpoint_id, reply in zip(some, replies, strict=True):
            if reply is None:
                raise missing(codec, ns.checkpoint(checkpoint_id), "a delta chain depends on it")
            found.append(reply)
    return found


def _renew_values_plan(codec: Codec, ns: Namespace, begins: Sequence[CheckpointObject], life: Life) -> Plan[None]:
    """Store again, where they are, large values that a chain may begin with."""
    keys = {
        ns.blob(ref.owner, ref.name) for it in begins for ref in it.refs.values() if life.is_old(time_of(ref.owner))
    }
    yield from _renew_plan(sorted(keys))


def _renew_plan(keys: Sequence[str]) -> Plan[None]:
    for start in range(0, len(keys), TOGETHER):
        _ = yield from each([_renew_one_plan(key) for key in keys[start : start + TOGETHER]])


def _renew_one_plan(key: str) -> Plan[None]:
    """Store an object again by its own contents, and so that one which a prune deletes meanwhile stays deleted."""
    body = yield from get(key, as_read)
    if body is None:
        return  # by a prune: the fence will tell
    (outcome,) = yield [Put(key, body.data, body.etag)]
    if outcome is Stored.DONE:
        return
    if outcome is Stored.REFUSED and (yield from get(key, as_read)) is None:
        return
    _ = yield [Put(key, body.data)]  # this store does not compare ETags as it should

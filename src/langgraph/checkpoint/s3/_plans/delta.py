"""The history of delta channels: what their ancestors stored, back to the nearest value.

The walk follows parent pointers, so forks do not mix. It knows how far it has to go (the head's
`deltas`), so it lists that stretch (in parallel, between the head's `marks`), fetches it in one batch
and then walks through it in memory. A history pack stands for all ancestors of its checkpoint.

Packed stretches spare it most of that: of what they hold, only what the listing shows in the same size is
taken, and what they lack is fetched. So they are hints, as the manifest is one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from langgraph.checkpoint.s3._keys import Namespace, StretchName, blob_start, has_descending_key
from langgraph.checkpoint.s3._objects import (
    BlobRef,
    Body,
    ChannelHistory,
    CheckpointObject,
    Codec,
    HistoryPack,
    Link,
    Stretch,
    Value,
    WriteBatch,
)
from langgraph.checkpoint.s3._plans.folders import Folder, group
from langgraph.checkpoint.s3._plans.read import ATTEMPTS, blob_request, find_head_plan, missing, writes_request
from langgraph.checkpoint.s3._requests import MAX_LIST, Entry, Get, List, Plan, each, get, list_all, list_page
from langgraph.checkpoint.s3._rules import MARK_EVERY, dooms, link_of, merge_writes
from langgraph.checkpoint.s3._values import Typed
from langgraph.checkpoint.s3.errors import (
    CheckpointPruned,
    CorruptObject,
    MissingObject,
    ObjectTooLarge,
    UnsupportedFormat,
)

FETCH = 4096
"""Objects to fetch in one batch: a chain of 1,000 super-steps with some write batches each."""

FETCH_BYTES = 64 << 20
"""Stored bytes to fetch in one batch; a chain of larger checkpoints takes more round trips."""

FIRST_STRETCH = 32
"""Ancestors to fetch at first when the head does not tell how far its history goes; then twice as many."""

KEYS_EACH = 6
"""Keys to ask for per ancestor, so that a stretch fits in its first page."""


@dataclass
class _Node:
    """An ancestor, fetched. `values` are those of the wanted channels, if its checkpoint object was read."""

    link: Link
    values: Mapping[str, Value] | None
    history: HistoryPack | None


@dataclass
class _Chain:
    """What is known of the stretch of ancestors behind a head."""

    ns: Namespace
    channels: Collection[str]
    head: CheckpointObject
    folders: deque[Folder] = field(default_factory=deque)  # listed and not yet fetched, newest first
    skipped: dict[str, Folder] = field(default_factory=dict)  # listed, and said to be in a packed stretch
    cut: list[Entry] = field(default_factory=list)  # of the last folder listed: it may go on
    last: str = ""  # the last key listed
    exhausted: bool = False  # nothing older is to be listed
    distance: int = 0  # checkpoints taken from `folders`: how far back the next one is, if there are no forks
    nodes: dict[str, _Node] = field(default_factory=dict)
    blobs: dict[str, Typed] = field(default_factory=dict)  # by key

    @property
    def counted(self) -> bool:
        """Whether the head tells how far back the wanted channels reach."""
        return self.head.deltas.keys() >= set(self.channels)

    @property
    def reach(self) -> int:
        """How many ancestors the walk will need; 0 if the head does not tell."""
        return max(self.head.deltas[channel] for channel in self.channels) if self.counted else 0

    def take(self, entries: Sequence[Entry], exhausted: bool) -> None:
        """Take the next keys of the listing."""
        entries = [*self.cut, *entries]
        folders = group(self.ns, entries)
        self.exhausted = exhausted
        self.last = entries[-1].key if entries else self.last
        unfinished = set(folders.pop().keys) if folders and not exhausted else set()
        self.cut = [entry for entry in entries if entry.key in unfinished]
        self.folders += folders

    def goes_on_to(self, checkpoint_id: str) -> bool:
        """Whether the listing, read on, may still show this checkpoint."""
        return not self.exhausted and self.last < self.ns.after(checkpoint_id)

    def next_folders(self, stretch: int) -> list[Folder]:
        """Take the next listed folder and `stretch` more, as far as they can be fetched together."""
        some, objects, stored = list[Folder](), 0, 0
        while self.folders and len(some) <= stretch and objects < FETCH and stored < FETCH_BYTES:
            some.append(self.folders.popleft())
            objects += len(some[-1].keys)
            stored += some[-1].stored
        return some

    def packs_over(self, folders: Sequence[Folder]) -> tuple[dict[str, StretchName], list[tuple[str, str]]]:
        """The packed stretch that is likely to hold each of some folders, and the (checkpoint, name) of all these.

        Where a value is expected the checkpoint itself has to be read. On a fork, folders of the other branch lie
        between, and packs of the other branch seem to hold ours: then these are read later.
        """
        ends = set(self.head.deltas.values())
        pack: StretchName | None = None
        over: dict[str, StretchName] = {}
        used: list[tuple[str, str]] = []
        for folder in folders:
            if pack is not None and folder.id < pack.oldest:
                pack = None
            if pack is None and folder.stretches:
                pack = max(folder.stretches, key=lambda it: it.length)
                used.append((self.ns.stretch(folder.id, str(pack)), folder.id))
            if pack is not None and self.distance not in ends and not folder.history:
                over[folder.id] = pack
            self.distance += folder.committed
        return over, used


def get_history_plan(
    codec: Codec, ns: Namespace, checkpoint_id: str | None, channels: Sequence[str], oldest: float = 0.0
) -> Plan[tuple[dict[str, ChannelHistory], Sequence[Link]]]:
    """The same for a checkpoint by its id, or the newest one. One round trip more, to read it.

    Also returns the links of its chain that were read, for whoever packs them. It starts again if a prune deletes
    ancestors under it: their histories lie in a pack then.

    Raises:
        CheckpointPruned: the checkpoint itself was pruned, so that its history cannot be told.
        MissingObject: an ancestor that is needed is gone.
    """
    lost: MissingObject | None = None
    for _ in range(ATTEMPTS):
        if checkpoint_id is None:
            found = yield from find_head_plan(codec, ns)
            head = found[0] if found is not None and found[1].modified >= oldest else None
        else:
            head = yield from get(ns.checkpoint(checkpoint_id), codec.read_checkpoint(ns, checkpoint_id))
        if head is None:
            if checkpoint_id is not None:
                yield from _refuse_if_pruned_plan(codec, ns, checkpoint_id)
            break
        try:
            return (yield from history_plan(codec, ns, head, channels))
        except MissingObject as error:
            lost = error
    if lost is not None:
        raise lost
    return {channel: ChannelHistory(None, []) for channel in channels}, []


def _refuse_if_pruned_plan(codec: Codec, ns: Namespace, checkpoint_id: str) -> Plan[None]:
    """An id that never was has no history. One that is condemned had one, which must not read as empty."""
    found = yield from get(ns.fence, codec.read_fence(ns))
    if found is not None and dooms(found[0], checkpoint_id):
        raise CheckpointPruned(
            f"checkpoint {checkpoint_id} in s3://{codec.bucket}/{ns.base} was pruned, and the history of its delta "
            "channels with it. Read the thread again and continue from its latest checkpoint."
        )


def history_plan(
    codec: Codec, ns: Namespace, head: CheckpointObject, channels: Sequence[str]
) -> Plan[tuple[dict[str, ChannelHistory], Sequence[Link]]]:
    """What the ancestors of a checkpoint hold of some channels: the nearest value and the writes since.

    Also returns the links that were read. Two round trips for a chain of up to a thousand super-steps whose length
    the head tells; one more if the value is a large one that was inherited from further back.

    Raises:
        MissingObject: an ancestor that is needed is gone.
    """
    chain = _Chain(ns, channels, head)
    reach = chain.reach
    yield from _list_plan(chain)
    wanted = set(channels)
    seeds: dict[str, Typed] = {}
    writes: dict[str, list[tuple[str, Typed]]] = {channel: [] for channel in channels}  # newest first
    stretch = reach or FIRST_STRETCH
    node = yield from _node_plan(codec, chain, head.id, stretch)
    while wanted:
        if node.history is not None:
            wanted -= _unpack(node.history, wanted, seeds, writes)
        parent = node.link.parent
        if parent is None or not wanted:
            break
        stretch = reach or stretch * 2
        try:
            node = yield from _node_plan(codec, chain, parent, stretch, child=node.link.id)
        except MissingObject:
            if wanted & set(node.link.blank):
                raise
            break  # pruned; and a channel that had no version here yet has no history before
        for write in reversed(merge_writes(node.link.batches)):
            if write.channel in wanted:
                writes[write.channel].append((write.task, write.value))
        for channel in wanted & set(node.link.stored):
            seeds[channel] = yield from _seed_plan(codec, chain, node, channel)
        wanted -= seeds.keys()
    histories = {channel: ChannelHistory(seeds.get(channel), writes[channel][::-1]) for channel in channels}
    return histories, [it.link for it in chain.nodes.values() if it.link.id != head.id]


def _unpack(
    pack: HistoryPack,
    wanted: Collection[str],
    seeds: dict[str, Typed],
    writes: dict[str, list[tuple[str, Typed]]],
) -> set[str]:
    """Take from a pack what the ancestors of its checkpoint had; tells which channels it covers."""
    covered = set(wanted) & pack.channels.keys()
    for channel in covered:
        packed = pack.channels[channel]
        if packed.seed is not None:
            seeds[channel] = packed.seed
        writes[channel] += reversed(packed.writes)
    return covered


def _list_plan(chain: _Chain) -> Plan[None]:
    """List the head's folder and those behind it, as far as the head reaches. One round trip if its marks are whole."""
    ns, head, reach = chain.ns, chain.head, chain.reach
    if not has_descending_key(head.id):
        chain.exhausted = True  # keys do not sort here: ancestors are looked up one by one
        return
    marks = [it for it in head.marks if has_descending_key(it)] if reach else []
    rest = reach - head.steps - MARK_EVERY * (len(marks) - 1) if marks else reach or FIRST_STRETCH
    steps = [max(MARK_EVERY, head.steps)] * len(marks) + [max(rest, 1)]
    stretches = yield from each(
        [
            _stretch_plan(ns, start, end, min(MAX_LIST, KEYS_EACH * (count + 2)))
            for start, end, count in zip([head.id, *marks], [*marks, None], steps, strict=True)
        ]
    )
    entries = [entry for stretch, _ in stretches for entry in stretch]
    chain.take(entries, exhausted=stretches[-1][1])


def _stretch_plan(ns: Namespace, start: str, end: str | None, keys: int) -> Plan[tuple[list[Entry], bool]]:
    """List the folders from one checkpoint up to another, or one page of them; tells whether nothing follows."""
    page = yield from list_page(List(ns.checkpoints, start_after=ns.folder(start)[:-1], max_keys=keys))
    entries = list(page.entries)
    if end is None:
        return entries, page.token is None
    stop = ns.folder(end)
    while page.token is not None and (not entries or entries[-1].key < stop):
        page = yield from list_page(List(ns.checkpoints, token=page.token))
        entries += page.entries
    return [entry for entry in entries if entry.key < stop], False


def _node_plan(codec: Codec, chain: _Chain, checkpoint_id: str, stretch: int, child: str = "") -> Plan[_Node]:
    """The ancestor of an id; if it is not there yet, the next `stretch` of ancestors are fetched with it."""
    while checkpoint_id not in chain.nodes:
        if checkpoint_id in chain.skipped:
            skipped, chain.skipped = chain.skipped, {}
            yield from _fetch_folders_plan(codec, chain, list(skipped.values()), {}, [])
        elif any(folder.id == checkpoint_id for folder in chain.folders):
            yield from _fetch_plan(codec, chain, stretch)
        elif chain.goes_on_to(checkpoint_id):
            page = yield from list_page(List(chain.ns.checkpoints, start_after=chain.last))
            chain.take(page.entries, exhausted=page.token is None)
        else:
            yield from _look_up_plan(codec, chain, checkpoint_id, child)
    return chain.nodes[checkpoint_id]


def _look_up_plan(codec: Codec, chain: _Chain, checkpoint_id: str, child: str) -> Plan[None]:
    """Fetch an ancestor that does not lie behind its child in the listing: its id is newer, or is not a UUID."""
    entries, _ = yield from list_all(chain.ns.folder(checkpoint_id))
    folders = group(chain.ns, entries)
    if not folders or not folders[0].committed:
        why = f"checkpoint {child or checkpoint_id} depends on it for its delta channels"
        raise missing(codec, chain.ns.checkpoint(checkpoint_id), why)
    chain.folders.appendleft(folders[0])
    yield from _fetch_plan(codec, chain, 0)


def _fetch_plan(codec: Codec, chain: _Chain, stretch: int) -> Plan[None]:
    """Fetch the next listed folder and `stretch` more: checkpoints, writes, packs, and the wanted channels' blobs."""
    some = chain.next_folders(stretch)
    over, used = chain.packs_over(some) if chain.counted else ({}, [])
    packs = [Get(key, _hint(codec.read_stretch(chain.ns, owner))) for key, owner in used]
    yield from _fetch_folders_plan(codec, chain, some, over, packs)


def _fetch_folders_plan(
    codec: Codec, chain: _Chain, folders: Sequence[Folder], over: Mapping[str, StretchName], packs: Sequence[Get]
) -> Plan[None]:
    """Fetch folders, some of them from packed stretches. One round trip; one more for what those lack."""
    blobs, others = list[Get](), list[Get]()
    for folder in folders:
        if folder.id in over:
            others += _batch_requests(codec, chain, folder, above=over[folder.id].limit)
        else:
            blobs += _blob_requests(codec, chain, folder)
            others += _other_requests(codec, chain, folder)
    replies: dict[str, Any] = {}
    yield from _gather_plan([*packs, *blobs, *others], replies)
    chain.blobs.update((request.key, replies[request.key]) for request in blobs)
    held = _links_of([replies[request.key] for request in packs], chain.channels)
    packed = [(folder, held[folder.id]) for folder in folders if folder.id in over and folder.id in held]
    lacking = [it for folder, link in packed for it in _lacking_requests(codec, chain, folder, link)]
    yield from _gather_plan([it for it in lacking if it.key not in replies], replies)
    for folder, link in packed:
        _add_packed(codec, chain, folder, link, replies)
    for folder in folders:
        if folder.id not in over:
            _add_read(codec, chain, folder, replies)
        elif folder.id not in held:
            chain.skipped[folder.id] = folder


def _gather_plan(requests: Sequence[Get], replies: dict[str, Any]) -> Plan[None]:
    """Add the replies by their keys. One round trip, none if there is nothing to ask."""
    if requests:
        replies.update(zip((request.key for request in requests), (yield requests), strict=True))


def _add_packed(codec: Codec, chain: _Chain, folder: Folder, link: Link, replies: Mapping[str, Any]) -> None:
    """Take a link from a pack, with those of its batches that had to be read."""
    if not folder.committed:
        return
    ns = chain.ns
    batches = {name: replies.get(ns.writes(folder.id, name), link.batches.get(name)) for name in folder.writes}
    whole = _whole(codec, ns, folder, batches)
    link = replace(link, batches=whole, sizes=folder.writes, size=folder.size or 0, packed=folder.packed)
    chain.nodes[folder.id] = _Node(link, None, None)


def _add_read(codec: Codec, chain: _Chain, folder: Folder, replies: Mapping[str, Any]) -> None:
    """Take a folder that was fetched. Without its checkpoint object it is not there."""
    ns = chain.ns
    checkpoint = chain.head if folder.id == chain.head.id else replies[ns.checkpoint(folder.id)]
    if checkpoint is None:
        return
    names = folder.writes if folder.id != chain.head.id else ()
    batches = _whole(codec, ns, folder, {name: replies[ns.writes(folder.id, name)] for name in names})
    link = link_of(checkpoint, batches, folder.writes, folder.size or 0, folder.packed)
    chain.nodes[folder.id] = _Node(link, checkpoint.values, replies.get(ns.history(folder.id)))


def _whole(
    codec: Codec, ns: Namespace, folder: Folder, batches: Mapping[str, WriteBatch | None]
) -> dict[str, WriteBatch]:
    """The batches of a folder, all of which are there."""
    whole: dict[str, WriteBatch] = {}
    for name, batch in batches.items():
        if batch is None:  # a prune is deleting it, and has packed it before
            raise missing(codec, ns.writes(folder.id, name), "it was listed a moment ago")
        whole[name] = batch
    return whole


def _links_of(stretches: Sequence[Stretch | None], channels: Collection[str]) -> dict[str, Link]:
    """The links that packed stretches hold of all these channels."""
    whole = [it for it in stretches if it is not None and set(it.channels) >= set(channels)]
    return {link.id: link for it in whole for link in it.links}


def _lacking_requests(codec: Codec, chain: _Chain, folder: Folder, link: Link) -> list[Get]:
    """Read the batches of a folder that its link from a pack has not, or has otherwise."""
    requests = zip(_batch_requests(codec, chain, folder), folder.writes.items(), strict=True)
    return [request for request, (name, size) in requests if link.sizes.get(name) != size]


def _hint(read: Callable[[Body], Stretch]) -> Callable[[Body], Stretch | None]:
    """Read a packed stretch. A damaged one is no worse than none."""

    def decode(body: Body) -> Stretch | None:
        try:
            return read(body)
        except (CorruptObject, ObjectTooLarge, UnsupportedFormat):
            return None

    return decode


def _batch_requests(codec: Codec, chain: _Chain, folder: Folder, above: int = -1) -> list[Get]:
    """Read the write batches of a folder, or those above a size."""
    return [writes_request(codec, chain.ns, folder, name) for name, size in folder.writes.items() if size > above]


def _other_requests(codec: Codec, chain: _Chain, folder: Folder) -> list[Get]:
    """Read the checkpoint, write batches and history pack of a folder; of the head's, only the latter."""
    ns = chain.ns
    requests: list[Get] = []
    if folder.id != chain.head.id:
        key = ns.checkpoint(folder.id)
        requests.append(Get(key, _slim(codec, ns, folder.id, chain.channels), folder.keys.get(key, "")))
        requests += _batch_requests(codec, chain, folder)
    if folder.history:
        requests.append(Get(ns.history(folder.id), codec.read_history(ns, folder.id)))
    return requests


def _blob_requests(codec: Codec, chain: _Chain, folder: Folder) -> list[Get]:
    refs = [
        (channel, BlobRef(folder.id, name, 0))
        for channel in chain.channels
        for name in folder.blobs
        if name.startswith(blob_start(channel))
    ]
    return [blob_request(codec, chain.ns, channel, ref) for channel, ref in refs]


def _slim(
    codec: Codec, ns: Namespace, checkpoint_id: str, channels: Collection[str]
) -> Callable[[Body], CheckpointObject]:
    """Read a checkpoint and keep of its values only some channels', so that a long chain fits in memory."""
    read = codec.read_checkpoint(ns, checkpoint_id)

    def decode(body: Body) -> CheckpointObject:
        it = read(body)
        return replace(it, values={name: value for name, value in it.values.items() if name in channels})

    return decode


def _seed_plan(codec: Codec, chain: _Chain, node: _Node, channel: str) -> Plan[Typed]:
    """The value that ends the walk for a channel. A large one was fetched along if it lies in the stretch."""
    values = node.values
    if values is None:
        checkpoint = yield from get(chain.ns.checkpoint(node.link.id), codec.read_checkpoint(chain.ns, node.link.id))
        if checkpoint is None:
            raise missing(codec, chain.ns.checkpoint(node.link.id), "it was listed a moment ago")
        values = checkpoint.values
    content = values[channel].content
    if not isinstance(content, BlobRef):
        return content
    key = chain.ns.blob(content.owner, content.name)
    value = chain.blobs.get(key)
    if value is None:
        value = yield from get(key, codec.read_blob(chain.ns, content, channel))
    if value is None:
        raise missing(codec, key, f"checkpoint {node.link.id} depends on it")
    return value

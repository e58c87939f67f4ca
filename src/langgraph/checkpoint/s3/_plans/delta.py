"""The history of delta channels: what their ancestors stored, back to the nearest value.

The walk follows parent pointers, so forks do not mix. It knows how far it has to go (the head's
`deltas`), so it lists that stretch (in parallel, between the head's `marks`), fetches it in one batch
and then walks through it in memory. A history pack stands for all ancestors of its checkpoint.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from langgraph.checkpoint.s3._keys import Namespace, blob_start, has_descending_key
from langgraph.checkpoint.s3._objects import (
    BlobRef,
    Body,
    ChannelHistory,
    CheckpointObject,
    Codec,
    HistoryPack,
    WriteBatch,
)
from langgraph.checkpoint.s3._plans.folders import Folder, group
from langgraph.checkpoint.s3._plans.read import ATTEMPTS, blob_request, find_head_plan, missing, writes_request
from langgraph.checkpoint.s3._requests import MAX_LIST, Entry, Get, List, Plan, each, get, list_all, list_page
from langgraph.checkpoint.s3._rules import MARK_EVERY, dooms, merge_writes
from langgraph.checkpoint.s3._values import Typed
from langgraph.checkpoint.s3.errors import CheckpointPruned, MissingObject

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
    """An ancestor, fetched: its checkpoint (with the wanted channels only), its writes, its pack."""

    checkpoint: CheckpointObject
    batches: dict[str, WriteBatch]
    pack: HistoryPack | None


@dataclass
class _Chain:
    """What is known of the stretch of ancestors behind a head."""

    ns: Namespace
    channels: Collection[str]
    folders: deque[Folder] = field(default_factory=deque)  # listed and not yet fetched, newest first
    cut: list[Entry] = field(default_factory=list)  # of the last folder listed: it may go on
    last: str = ""  # the last key listed
    exhausted: bool = False  # nothing older is to be listed
    nodes: dict[str, _Node] = field(default_factory=dict)
    blobs: dict[str, Typed] = field(default_factory=dict)  # by key

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


def get_history_plan(
    codec: Codec, ns: Namespace, checkpoint_id: str | None, channels: Sequence[str]
) -> Plan[dict[str, ChannelHistory]]:
    """The same for a checkpoint by its id, or the newest one. One round trip more, to read it.

    It starts again if a prune deletes ancestors under it: their histories lie in a pack then.

    Raises:
        CheckpointPruned: the checkpoint itself was pruned, so that its history cannot be told.
        MissingObject: an ancestor that is needed is gone.
    """
    lost: MissingObject | None = None
    for _ in range(ATTEMPTS):
        if checkpoint_id is None:
            found = yield from find_head_plan(codec, ns)
            head = found[0] if found is not None else None
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
    return {channel: ChannelHistory(None, []) for channel in channels}


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
) -> Plan[dict[str, ChannelHistory]]:
    """What the ancestors of a checkpoint hold of some channels: the nearest value and the writes since.

    Two round trips for a chain of up to a thousand super-steps whose length the head tells; one more if
    the value is a large one that was inherited from further back.

    Raises:
        MissingObject: an ancestor that is needed is gone.
    """
    chain = _Chain(ns, channels)
    reach = _reach(head, channels)
    yield from _list_plan(chain, head, reach)
    wanted = set(channels)
    seeds: dict[str, Typed] = {}
    writes: dict[str, list[tuple[str, Typed]]] = {channel: [] for channel in channels}  # newest first
    stretch = reach or FIRST_STRETCH
    node = yield from _node_plan(codec, chain, head.id, stretch)
    while wanted:
        if node.pack is not None:
            wanted -= _unpack(node.pack, wanted, seeds, writes)
        parent = node.checkpoint.parent
        if parent is None or not wanted:
            break
        stretch = reach or stretch * 2
        try:
            node = yield from _node_plan(codec, chain, parent, stretch, child=node.checkpoint.id)
        except MissingObject:
            if wanted & {*node.checkpoint.blank, *node.checkpoint.deltas}:
                raise
            break  # pruned; and a channel that had no version here yet has no history before
        for write in reversed(merge_writes(node.batches)):
            if write.channel in wanted:
                writes[write.channel].append((write.task, write.value))
        for channel in wanted & node.checkpoint.values.keys():
            seeds[channel] = yield from _seed_plan(codec, chain, node, channel)
        wanted -= seeds.keys()
    return {channel: ChannelHistory(seeds.get(channel), writes[channel][::-1]) for channel in channels}


def _reach(head: CheckpointObject, channels: Collection[str]) -> int:
    """How many ancestors the walk will need; 0 if the head does not tell."""
    if any(channel not in head.deltas for channel in channels):
        return 0
    return max(head.deltas[channel] for channel in channels)


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


def _list_plan(chain: _Chain, head: CheckpointObject, reach: int) -> Plan[None]:
    """List the head's folder and those behind it, as far as the head reaches. One round trip if its marks are whole."""
    ns = chain.ns
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
        if any(folder.id == checkpoint_id for folder in chain.folders):
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
    ns, some, objects, stored = chain.ns, list[Folder](), 0, 0
    while chain.folders and len(some) <= stretch and objects < FETCH and stored < FETCH_BYTES:
        some.append(chain.folders.popleft())
        objects += len(some[-1].keys)
        stored += some[-1].stored
    blobs = [request for folder in some for request in _blob_requests(codec, chain, folder)]
    others = [request for folder in some for request in _other_requests(codec, chain, folder)]
    requests = [*blobs, *others]
    replies = dict(zip((request.key for request in requests), (yield requests), strict=True))
    chain.blobs.update((request.key, replies[request.key]) for request in blobs)
    for folder in some:
        checkpoint = replies[ns.checkpoint(folder.id)]
        if checkpoint is None:  # without its checkpoint object it is not there
            continue
        batches = {name: replies[ns.writes(folder.id, name)] for name in folder.writes}
        for name, batch in batches.items():
            if batch is None:  # a prune is deleting it, and has packed it before
                raise missing(codec, ns.writes(folder.id, name), "it was listed a moment ago")
        chain.nodes[folder.id] = _Node(checkpoint, batches, replies.get(ns.history(folder.id)))


def _other_requests(codec: Codec, chain: _Chain, folder: Folder) -> list[Get]:
    ns = chain.ns
    key = ns.checkpoint(folder.id)
    requests = [Get(key, _slim(codec, ns, folder.id, chain.channels), folder.keys.get(key, ""))]
    requests += [writes_request(codec, ns, folder, name) for name in folder.writes]
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
    content = node.checkpoint.values[channel].content
    if not isinstance(content, BlobRef):
        return content
    key = chain.ns.blob(content.owner, content.name)
    value = chain.blobs.get(key)
    if value is None:
        value = yield from get(key, codec.read_blob(chain.ns, content, channel))
    if value is None:
        raise missing(codec, key, f"checkpoint {node.checkpoint.id} depends on it")
    return value

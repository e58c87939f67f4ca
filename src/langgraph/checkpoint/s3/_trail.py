"""The delta chains that this process has read or written, link by link: what is known need not be read to be packed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from langgraph.checkpoint.s3._keys import Namespace, has_descending_key
from langgraph.checkpoint.s3._locks import ForkSafeLock
from langgraph.checkpoint.s3._objects import Link, WriteBatch
from langgraph.checkpoint.s3._stretch import Packing

TRAIL_BYTES = 8 << 20

LARGEST = Packing().largest
"""Bytes of the largest write batch to remember: larger ones are not packed."""

LINK_BYTES = 1_000
"""What a link takes besides its writes, roughly."""


@dataclass
class _Known:
    """What is known of one checkpoint. Its writes may come before it."""

    link: Link | None = None
    plain: bool = False  # it has no delta channel that leans on ancestors: nothing of it is ever packed
    packed: int = 0  # links in the longest pack that ends here
    batches: dict[str, WriteBatch] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)

    def as_link(self) -> Link:
        """The link as it is known now."""
        assert self.link is not None
        return replace(self.link, batches=dict(self.batches), sizes=dict(self.sizes))

    @property
    def bytes(self) -> int:
        return LINK_BYTES + sum(self.sizes[name] for name in self.batches)


class Trail:
    """Links by namespace and id, least recently used out first. May be used from many threads at once."""

    def __init__(self, limit: int = TRAIL_BYTES) -> None:
        self._limit = limit
        self._items: OrderedDict[tuple[str, str], _Known] = OrderedDict()
        self._size = 0
        self._lock = ForkSafeLock()

    @property
    def bytes(self) -> int:
        """Bytes that are taken, roughly."""
        return self._size

    def note(self, ns: Namespace, link: Link, leans: bool) -> None:
        """Take a link that was just read or written; `leans` says whether its delta channels need ancestors."""
        with self._lock:
            known = self._take(ns, link.id)
            known.link, known.plain = (link, False) if leans else (None, True)
            known.packed = max(known.packed, link.packed)
            self._add(known, link.batches, link.sizes)
            self._put(ns, link.id, known)

    def wrote(self, ns: Namespace, checkpoint_id: str, name: str, batch: WriteBatch, size: int) -> None:
        """Take a write batch that was just stored."""
        with self._lock:
            known = self._take(ns, checkpoint_id)
            self._add(known, {name: batch}, {name: size})
            self._put(ns, checkpoint_id, known)

    def packed(self, ns: Namespace, checkpoint_id: str, count: int) -> None:
        """Note that a pack of so many links ends at a checkpoint."""
        with self._lock:
            known = self._items.get((ns.base, checkpoint_id))
            if known is not None:
                known.packed = max(known.packed, count)

    def due(self, ns: Namespace, parent: str | None, deltas: Mapping[str, int], packing: Packing) -> Sequence[Link]:
        """The stretch to pack with a child of `parent`, newest first; empty if none is due.

        It begins behind the parent, whose writes may be on their way still, and ends before the value that the
        delta channels of the child reach back to.
        """
        most = min(packing.longest, max(deltas.values(), default=0) - 2)
        with self._lock:
            short, known = 0, list[_Known]()
            for it in self._behind(ns, parent or "", frozenset(deltas)):
                if len(known) >= most or it.packed >= packing.long:
                    break
                if short == len(known) and not it.packed:
                    short += 1
                known.append(it)
            count = len(known) if len(known) >= packing.long else short if short >= packing.short else 0
            return [it.as_link() for it in known[:count]]

    def _behind(self, ns: Namespace, checkpoint_id: str, channels: frozenset[str]) -> Iterator[_Known]:
        """The known ancestors of a checkpoint of which enough is known to pack some channels, the nearest first."""
        child = self._items.get((ns.base, checkpoint_id))
        while child is not None and child.link is not None and child.link.parent is not None:
            parent = child.link.parent
            if not has_descending_key(parent) or parent > child.link.id:
                return  # a listing does not show it behind its child
            child = self._items.get((ns.base, parent))
            if child is None or child.link is None or not channels <= (child.link.channels or channels):
                return
            yield child

    def forget(self, prefix: str) -> None:
        """Forget what lies below a thread's prefix."""
        with self._lock:
            for key in [key for key in self._items if key[0].startswith(prefix)]:
                self._size -= self._items.pop(key).bytes

    @staticmethod
    def _add(known: _Known, batches: Mapping[str, WriteBatch], sizes: Mapping[str, int]) -> None:
        if known.plain:
            known.batches, known.sizes = {}, {}
            return
        known.sizes.update(sizes)
        known.batches.update((name, it) for name, it in batches.items() if sizes[name] <= LARGEST)

    def _take(self, ns: Namespace, checkpoint_id: str) -> _Known:
        known = self._items.pop((ns.base, checkpoint_id), None)
        if known is None:
            return _Known()
        self._size -= known.bytes
        return known

    def _put(self, ns: Namespace, checkpoint_id: str, known: _Known) -> None:
        self._items[ns.base, checkpoint_id] = known
        self._size += known.bytes
        while self._size > self._limit:
            self._size -= self._items.popitem(last=False)[1].bytes

"""What a saver remembers between operations: it makes a `put` cheap and is never needed for it to be right.

Checkpoints that were just read or written, so that their children know what they inherit without
reading them again; which of them is the newest, and whether a manifest has announced it; and the newest
stamp seen, so that a slow clock cannot put a write behind one that its writer had read.
"""

from __future__ import annotations

from collections import OrderedDict

from langgraph.checkpoint.s3._keys import Namespace
from langgraph.checkpoint.s3._locks import ForkSafeLock
from langgraph.checkpoint.s3._objects import BlobRef, CheckpointObject

MEMORY_BYTES = 32 << 20
MEMORY_STOPS = 1_000
"""Stops of runs to remember before their checkpoints are put. One that is forgotten costs a reader a round trip."""


class Memory:
    """A small cache of immutable checkpoints by namespace and id, least recently used out first, and a clock."""

    def __init__(self, limit: int = MEMORY_BYTES) -> None:
        self._limit = limit
        self._items: OrderedDict[tuple[str, str], CheckpointObject] = OrderedDict()
        self._size = 0
        self._unannounced: dict[str, str] = {}  # by namespace: the checkpoint put last, if without a manifest
        self._newest: dict[str, str] = {}  # by namespace
        self._stopped: dict[str, str] = {}  # by namespace: a checkpoint still to be put, that a run stops at
        self._stamp = 0
        self._lock = ForkSafeLock()

    def recall(self, ns: Namespace, checkpoint_id: str | None) -> CheckpointObject | None:
        """The checkpoint as it was last read or written here, if it is remembered."""
        if checkpoint_id is None:
            return None
        with self._lock:
            it = self._items.get((ns.base, checkpoint_id))
            if it is not None:
                self._items.move_to_end((ns.base, checkpoint_id))
            return it

    def remember(self, ns: Namespace, it: CheckpointObject, stamp: int = 0) -> None:
        """Remember a checkpoint, and the newest stamp among the writes read with it."""
        with self._lock:
            self._stamp = max(self._stamp, stamp)
            self._drop((ns.base, it.id))
            self._items[ns.base, it.id] = it
            self._newest[ns.base] = max(it.id, self._newest.get(ns.base, ""))
            self._size += _size(it)
            while self._size > self._limit and self._items:
                self._drop(next(iter(self._items)))

    def newest(self, ns: Namespace) -> str | None:
        """The newest checkpoint of a namespace that is remembered."""
        with self._lock:
            return self._newest.get(ns.base)

    def withhold(self, ns: Namespace, it: CheckpointObject, announced: bool) -> bool:
        """Note whether the checkpoint put last in its namespace has been announced by a manifest.

        Returns whether it is to be announced now, because the run has stopped there meanwhile.
        """
        with self._lock:
            stop = self._stopped.get(ns.base)
            stopped = stop == it.id
            if stop is not None and stop <= it.id:  # a later one's put is still to come
                del self._stopped[ns.base]
            _ = self._unannounced.pop(ns.base, None)
            if not announced and not stopped:
                self._unannounced[ns.base] = it.id
            return stopped and not announced

    def announce(self, ns: Namespace, checkpoint_id: str) -> CheckpointObject | None:
        """The checkpoint that a run stops at, if it was put last here and has no manifest yet.

        The caller is to write that. If it is still to be put, `withhold` will tell.
        """
        with self._lock:
            if self._unannounced.get(ns.base) == checkpoint_id:
                del self._unannounced[ns.base]
                return self._items.get((ns.base, checkpoint_id))
            # Whether or not it is remembered: between being stored and being withheld it is.
            if len(self._stopped) >= MEMORY_STOPS:
                self._stopped.clear()
            self._stopped[ns.base] = checkpoint_id
            return None

    def stops_at(self, ns: Namespace, checkpoint_id: str) -> bool:
        """Whether a run is known to stop at a checkpoint that is about to be put."""
        with self._lock:
            return self._stopped.get(ns.base) == checkpoint_id

    def forget(self, prefix: str) -> None:
        """Forget what lies below a thread's prefix."""
        with self._lock:
            for key in [key for key in self._items if key[0].startswith(prefix)]:
                self._drop(key)

    def next_stamp(self, now: int) -> int:
        """A stamp later than every one seen: `now` (nanoseconds) if that is."""
        with self._lock:
            self._stamp = max(now, self._stamp + 1)
            return self._stamp

    def _drop(self, key: tuple[str, str]) -> None:
        it = self._items.pop(key, None)
        if it is not None:
            self._size -= _size(it)
            for last in (self._unannounced, self._newest):
                if last.get(key[0]) == key[1]:
                    del last[key[0]]


def _size(it: CheckpointObject) -> int:
    inline = sum(len(value.content[1]) for value in it.values.values() if not isinstance(value.content, BlobRef))
    return inline + len(it.state[1]) + len(it.metadata[1]) + 1024

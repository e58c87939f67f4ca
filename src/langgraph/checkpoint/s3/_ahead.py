"""What was read ahead of a caller that walks along a chain, and who walks.

It is served for two seconds at most, and not after this saver has written to the same thread: so a walk gets what
separate reads would have given it, and sees another process's writes to old checkpoints a moment later.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from langgraph.checkpoint.s3._keys import Namespace, has_descending_key
from langgraph.checkpoint.s3._locks import ForkSafeLock
from langgraph.checkpoint.s3._plans.read import Loaded

SECONDS = 2
"""How long it may be served."""

WINDOWS = 64
"""Namespaces to hold something of at most. Each holds up to 64 checkpoints, or 8 MiB as stored."""

WALKERS = 1024
"""Walks to follow at most. One that is forgotten goes on with single reads, until it is known again."""


def clocks() -> tuple[float, float]:
    """A clock that is never set, and one that does not stop with a frozen machine."""
    return time.monotonic(), time.time()


class Ticket:
    """A read ahead that is under way; `valid` until somebody writes to its thread."""

    def __init__(self, base: str, started: tuple[float, float]) -> None:
        self.base, self.started, self.valid = base, started, True


class _Window(NamedTuple):
    """What one read ahead has brought, by checkpoint id."""

    loaded: Mapping[str, Loaded]
    started: tuple[float, float]


class ReadAhead:
    """Checkpoints that were read ahead, by namespace and id. May be used from many threads at once."""

    def __init__(self, now: Callable[[], tuple[float, float]] = clocks) -> None:
        self._now = now
        self._windows: OrderedDict[str, _Window] = OrderedDict()  # by namespace
        self._tickets: set[Ticket] = set()
        # By namespace and id: the ancestor that a walk reads next, how far it has come, and how far it goes.
        self._next: OrderedDict[tuple[str, str], tuple[int, int]] = OrderedDict()
        self._lock = ForkSafeLock()

    def find(self, ns: Namespace, checkpoint_id: str) -> Loaded | None:
        """A checkpoint that was read ahead a moment ago."""
        with self._lock:
            window = self._windows.get(ns.base)
            return window.loaded.get(checkpoint_id) if window is not None and self._fresh(window.started) else None

    def distance(self, ns: Namespace, checkpoint_id: str) -> int:
        """How many ancestors a walk is likely to ask for after this one; 0 if nobody is seen to walk.

        One step back is no walk yet, the second one is.
        """
        with self._lock:
            steps, depth = self._next.get((ns.base, checkpoint_id), (0, 0))
            return depth if steps > 1 and has_descending_key(checkpoint_id) else 0

    def saw(self, ns: Namespace, loaded: Loaded, asked: str | None) -> None:
        """Note that a checkpoint was read, by its id if that was `asked` for."""
        it = loaded.checkpoint
        with self._lock:
            steps, _ = self._next.get((ns.base, asked or ""), (0, 0))
            if it.parent is not None and it.depth:
                self._next[ns.base, it.parent] = steps + 1, it.depth
                self._next.move_to_end((ns.base, it.parent))
            if len(self._next) > WALKERS:
                _ = self._next.popitem(last=False)

    def begin(self, ns: Namespace) -> Ticket:
        """Before anything is read ahead."""
        with self._lock:
            ticket = Ticket(ns.base, self._now())
            self._tickets.add(ticket)
            return ticket

    def end(self, ticket: Ticket, ahead: Sequence[Loaded]) -> None:
        """Take what was read ahead, unless somebody has written to the thread since."""
        with self._lock:
            self._tickets.discard(ticket)
            if ticket.valid and ahead:
                self._windows[ticket.base] = _Window({it.checkpoint.id: it for it in ahead}, ticket.started)
                self._windows.move_to_end(ticket.base)
            while self._windows and (len(self._windows) > WINDOWS or not self._fresh(self._oldest.started)):
                _ = self._windows.popitem(last=False)

    def drop(self, prefix: str) -> None:
        """Drop what lies below a prefix: it was written to."""
        with self._lock:
            for base in [base for base in self._windows if base.startswith(prefix)]:
                del self._windows[base]
            for ticket in self._tickets:
                ticket.valid = ticket.valid and not ticket.base.startswith(prefix)

    @property
    def _oldest(self) -> _Window:
        return next(iter(self._windows.values()))

    def _fresh(self, started: tuple[float, float]) -> bool:
        return all(0 <= now - then <= SECONDS for now, then in zip(self._now(), started, strict=True))

"""A guess at how long it takes to serialise something, far cheaper than doing it.

An event loop must not stand still while a large state is packed, and a small one is not worth a thread.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Mapping
from typing import Any

LARGE = 256 * 1024
"""Bytes that take about a millisecond to pack or unpack."""

MANY = 2_000
"""Parts that take about as long, however small they are."""

_TEXTS = (str, bytes, bytearray)
_COLLECTIONS = (list, tuple, set, frozenset, deque)


def is_large(value: Any) -> bool:
    """Whether packing a value is likely to take more than a millisecond or two.

    Looks into collections and objects until it knows, and at no more than `MANY` parts.
    """
    weight = visited = 0
    waiting = [value]
    while waiting:
        it = waiting.pop()
        visited += 1
        parts: Any = ()
        if isinstance(it, _TEXTS):  # most are, and the other questions take longer
            weight += len(it)
        elif isinstance(it, Mapping):
            parts = (*it.keys(), *it.values()) if len(it) <= MANY else it
        elif isinstance(it, _COLLECTIONS):
            parts = it
        else:
            parts = _parts(it)
            weight += _weight(it)
        if weight > LARGE or visited + len(waiting) + len(parts) > MANY:
            return True
        waiting += parts
    return False


def _parts(it: object) -> Any:
    return () if isinstance(it, type) else tuple(getattr(it, "__dict__", ()) and vars(it).values())


def _weight(it: object) -> int:
    size = getattr(it, "nbytes", None)  # of arrays, and of views whose own size says nothing
    return size if isinstance(size, int) else sys.getsizeof(it, 0)

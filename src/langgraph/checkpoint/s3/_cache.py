"""Objects that this process has read or written, for reads that a listing has just vouched for.

Objects are immutable, so one that a listing names with the ETag that was seen here need not be read again.
The cache keeps them as they are stored: compressed, and decoded anew each time, so that nobody shares a value.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, cast

from langgraph.checkpoint.s3._locks import ForkSafeLock
from langgraph.checkpoint.s3._requests import ANY_VERSION, Body, Get, Plan, Put, Request
from langgraph.checkpoint.s3._weight import LARGE

T = TypeVar("T")

CACHE_BYTES = 32 << 20

SHARE = 8
"""No object may take more than this part of the cache: one would drive out all the others."""


ENTRY_BYTES = 500
"""What the objects of an entry take besides its data and its key, roughly."""


class Cache:
    """Bodies by key, least recently used out first. May be used from many threads at once."""

    def __init__(self, limit: int = CACHE_BYTES) -> None:
        self._limit = limit
        self._items: OrderedDict[str, Body] = OrderedDict()
        self._size = 0
        self._large = 0
        self._lock = ForkSafeLock()

    def __contains__(self, key: str) -> bool:
        """Whether there is some version of an object."""
        with self._lock:
            return key in self._items

    @property
    def has_large(self) -> bool:
        """Whether there is an object that takes long to decode."""
        return self._large > 0

    def find(self, request: Get) -> Body | None:
        """The body that a request asks for, if this very version of it is here."""
        with self._lock:
            body = self._items.get(request.key)
            if body is None or request.etag not in (body.etag, ANY_VERSION):
                return None
            self._items.move_to_end(request.key)
            return body

    def add(self, body: Body) -> None:
        """Keep an object, in the place of an earlier version of it."""
        with self._lock:
            self._drop(body.key)
            if _size(body) * SHARE > self._limit:
                return
            self._items[body.key] = body
            self._size += _size(body)
            self._large += len(body.data) > LARGE
            while self._size > self._limit:
                self._drop(next(iter(self._items)))

    def _drop(self, key: str) -> None:
        body = self._items.pop(key, None)
        if body is not None:
            self._size -= _size(body)
            self._large -= len(body.data) > LARGE


def _size(body: Body) -> int:
    """Bytes that an object takes here: most are so small that their key and its bookkeeping count."""
    return len(body.data) + len(body.key) + ENTRY_BYTES


def through_cache(plan: Plan[T], cache: Cache) -> Plan[T]:
    """Run a plan with the answers that the cache has. A batch that it answers alone is no round trip."""
    resume: Callable[[], Sequence[Request]] = partial(next, plan)
    try:
        while True:
            try:
                batch = resume()
            except StopIteration as stop:
                result: T = stop.value
                return result
            resume = yield from _answer_plan(plan, cache, batch)
    finally:
        plan.close()


def _answer_plan(plan: Plan[Any], cache: Cache, batch: Sequence[Request]) -> Plan[Callable[[], Sequence[Request]]]:
    """Answer a batch, from the cache as far as it goes; returns how the plan is to go on."""
    known = [_known(it, cache) for it in batch]
    asked = [_noticed(it, cache) for it, answer in zip(batch, known, strict=True) if answer is None]
    try:
        answers = iter((yield asked) if asked or not batch else ())
        replies = [next(answers) if answer is None else answer() for answer in known]
    except Exception as error:  # as a driver does: the plan is told, whatever it is
        return partial(plan.throw, error)
    return partial(plan.send, replies)


def _known(request: Request, cache: Cache) -> Callable[[], Any] | None:
    """How to make the reply, if the cache has what it is made of."""
    body = cache.find(request) if isinstance(request, Get) and request.etag else None
    return None if body is None else partial(cast(Get, request).decode, body)


def _noticed(request: Request, cache: Cache) -> Request:
    """A request whose object will be kept."""
    if isinstance(request, Get) and request.etag:
        decode = request.decode

        def keep(body: Body) -> Any:
            cache.add(body)
            return decode(body)

        return replace(request, decode=keep)
    if isinstance(request, Put) and request.keep:
        return replace(request, noted=lambda etag: cache.add(Body(request.key, request.body, etag)))
    return request

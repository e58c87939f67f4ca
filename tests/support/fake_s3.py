"""A bucket in memory, and a driver that runs plans on it, counts what they cost and breaks on demand."""

from __future__ import annotations

import base64
import hashlib
import random
import threading
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from email.utils import formatdate
from typing import Any, Literal, TypeAlias, TypeVar

from langgraph.checkpoint.s3._requests import (
    ABSENT,
    MAX_DELETE,
    MAX_LIST,
    Body,
    Copy,
    CreateBucket,
    Delete,
    DeleteVersions,
    Entry,
    Get,
    GetLifecycle,
    GetVersioning,
    Lifecycle,
    List,
    ListVersions,
    Page,
    Plan,
    Put,
    PutLifecycle,
    Request,
    Stored,
    Version,
    VersionPage,
)
from langgraph.checkpoint.s3.errors import BucketNotFound, StorageError

T = TypeVar("T")

MAX_KEY_BYTES = 1024


@dataclass(frozen=True)
class Snapshot:
    """What a bucket held at one moment."""

    objects: Mapping[str, Body]
    modified: Mapping[str, float] = field(compare=False)
    exists: bool
    versions: Sequence[tuple[Version, Body | None]] = field(default=(), compare=False)


class FakeS3:
    """One bucket with the semantics of S3: strongly consistent, ETags, conditional puts, paged listings.

    `str` compares by code point, which is the order of UTF-8 bytes, so a sorted list of keys is S3's order.

    Attributes:
        page_size: Caps every page of a listing. S3 may return short pages at any time; 1 is the hardest case.
        conditional: Whether the store knows conditional puts.
        exists: Whether the bucket exists.
        versioned: Whether what is replaced or deleted stays as a noncurrent version. May be set before anything is.
        lifecycle: The bucket's rules, which nobody follows here.
        now: The store's clock, in seconds since 1970. It stands still unless a test moves it.
        log: Every request that took effect, in that order. Helpers that are not requests leave no trace.
    """

    def __init__(
        self,
        objects: Mapping[str, bytes] | None = None,
        *,
        page_size: int = MAX_LIST,
        conditional: bool = True,
        exists: bool = True,
    ) -> None:
        self.page_size = page_size
        self.conditional = conditional
        self.exists = exists
        self.versioned = False
        self.lifecycle = Lifecycle(())
        self.now = 1_700_000_000.0
        self.log: list[Request] = []
        self.lock = threading.RLock()
        self._objects = {key: _body(key, data) for key, data in (objects or {}).items()}
        self._modified = dict.fromkeys(self._objects, self.now)
        self._keys = sorted(self._objects)
        self._versions: list[tuple[Version, Body | None]] = []  # all of them, oldest first
        self._made = 0

    # What a test may do behind the saver's back.

    def keys(self, prefix: str = "") -> list[str]:
        """All keys below a prefix, ascending."""
        with self.lock:
            return self._keys[bisect_left(self._keys, prefix) : self._end(prefix)]

    def modified(self, key: str) -> float:
        """When one object was stored."""
        with self.lock:
            return self._modified[key]

    def size(self, key: str) -> int:
        """The length of one object, 0 if there is none."""
        with self.lock:
            body = self._objects.get(key)
            return len(body.data) if body else 0

    def __getitem__(self, key: str) -> bytes:
        return self._objects[key].data

    def __setitem__(self, key: str, data: bytes) -> None:
        with self.lock:
            self._store(_body(key, data))

    def __delitem__(self, key: str) -> None:
        with self.lock:
            self._add_version(key, None)
            self._remove(key)

    def _remove(self, key: str) -> None:
        if key in self._objects:
            del self._objects[key]
            del self._modified[key]
            del self._keys[bisect_left(self._keys, key)]

    def versions(self, prefix: str = "") -> list[Version]:
        """All versions and delete markers below a prefix, oldest first."""
        with self.lock:
            return [it for it, _ in self._versions if it.key.startswith(prefix)]

    def __contains__(self, key: str) -> bool:
        return key in self._objects

    def __len__(self) -> int:
        return len(self._objects)

    def snapshot(self) -> Snapshot:
        """Remember the contents. Two snapshots are equal if the buckets hold the same."""
        with self.lock:
            return Snapshot(dict(self._objects), dict(self._modified), self.exists, tuple(self._versions))

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to remembered contents. The log goes on."""
        with self.lock:
            self._objects = dict(snapshot.objects)
            self._modified = dict(snapshot.modified)
            self._keys = sorted(self._objects)
            self._versions = list(snapshot.versions)
            self.exists = snapshot.exists

    def copy(self) -> FakeS3:
        """An independent bucket with the same contents and options, and an empty log."""
        twin = FakeS3(page_size=self.page_size, conditional=self.conditional, exists=self.exists)
        with self.lock:
            twin.now, twin.versioned, twin.lifecycle = self.now, self.versioned, self.lifecycle
            twin._versions, twin._made = self._versions.copy(), self._made
            twin._objects = self._objects.copy()
            twin._modified = self._modified.copy()
            twin._keys = self._keys.copy()
        return twin

    # What S3 does.

    def apply(self, request: Request) -> Any:
        """Let one request take effect and return its reply."""
        with self.lock:
            if not self.exists and not isinstance(request, CreateBucket):
                raise BucketNotFound(f"no bucket for {request}")
            self.log.append(request)
            if isinstance(request, Get):
                body = self._version(request) if request.version else self._objects.get(request.key)
                return request.decode(body) if body else None
            if isinstance(request, ListVersions):
                return self._list_versions(request)
            if isinstance(request, DeleteVersions):
                return self._delete_versions(request)
            if isinstance(request, GetVersioning):
                return self.versioned
            if isinstance(request, GetLifecycle):
                return self.lifecycle
            if isinstance(request, PutLifecycle):
                self.lifecycle = deepcopy(request.lifecycle)
                return None
            if isinstance(request, Put):
                return self._put(request)
            if isinstance(request, List):
                return self._list(request)
            if isinstance(request, Delete):
                return self._delete(request)
            if isinstance(request, Copy):
                return self._copy(request)
            assert isinstance(request, CreateBucket), request
            self.exists = True
            return None

    def _put(self, request: Put) -> Stored:
        if request.if_match is not None:
            if not self.conditional:
                return Stored.UNSUPPORTED
            current = self._objects.get(request.key)
            if (current.etag if current else ABSENT) != request.if_match:
                return Stored.REFUSED
        body = _body(request.key, request.body)
        self._store(body)
        if request.noted is not None:
            request.noted(body.etag)
        return Stored.DONE

    def _list(self, request: List) -> Page:
        if not 1 <= request.max_keys <= MAX_LIST:
            raise StorageError(f"max_keys out of range: {request}")
        prefix, keys = request.prefix, self._keys
        room = min(request.max_keys, self.page_size)
        entries: list[Entry] = []
        folders: list[str] = []
        if request.token is not None:
            last = base64.urlsafe_b64decode(request.token).decode()
            rolled_up = request.folders and last.endswith("/") and last != prefix
            start = self._end(last) if rolled_up else bisect_right(keys, last)
        else:
            last = ""
            start = max(bisect_left(keys, prefix), bisect_right(keys, request.start_after))
        end = self._end(prefix)
        while start < end and len(entries) + len(folders) < room:
            last = keys[start]
            slash = last.find("/", len(prefix)) if request.folders else -1
            if slash < 0:
                body = self._objects[last]
                entries.append(Entry(last, len(body.data), body.etag, self._modified[last]))
                start += 1
            else:
                last = last[: slash + 1]
                folders.append(last)
                start = self._end(last)
        token = base64.urlsafe_b64encode(last.encode()).decode() if start < end else None
        return Page(entries, folders, token, formatdate(self.now, usegmt=True))

    def _delete(self, request: Delete) -> None:
        if not 1 <= len(request.keys) <= MAX_DELETE:
            raise StorageError(f"MalformedXML: DeleteObjects of {len(request.keys)} keys")
        for key in request.keys:
            self._add_version(key, None)
            self._remove(key)

    def _copy(self, request: Copy) -> bool:
        body = self._objects.get(request.source)
        if body:
            self._store(_body(request.target, body.data))
        return body is not None

    # Versions.

    def _add_version(self, key: str, body: Body | None) -> None:
        if not self.versioned:
            return
        self._made += 1
        self._versions = [(it._replace(latest=it.latest and it.key != key), old) for it, old in self._versions]
        self._versions.append((Version(key, f"v{self._made}", True, body is None, self.now), body))

    def _version(self, request: Get) -> Body | None:
        return next((body for it, body in self._versions if (it.key, it.id) == (request.key, request.version)), None)

    def _list_versions(self, request: ListVersions) -> VersionPage:
        found = sorted(self.versions(request.prefix), key=lambda it: it.key)
        start = 0 if request.token is None else int(request.token[1])
        end = start + self.page_size
        return VersionPage(found[start:end], ("", str(end)) if end < len(found) else None)

    def _delete_versions(self, request: DeleteVersions) -> None:
        if not 1 <= len(request.versions) <= MAX_DELETE:
            raise StorageError(f"MalformedXML: DeleteObjects of {len(request.versions)} versions")
        for key, version in request.versions:
            self._versions = [(it, body) for it, body in self._versions if (it.key, it.id) != (key, version)]
            self._reveal(key)

    def _reveal(self, key: str) -> None:
        """Make the newest version that is left of a key the current one."""
        mine = [index for index, (it, _) in enumerate(self._versions) if it.key == key]
        self._remove(key)
        if mine:
            it, body = self._versions[mine[-1]]
            self._versions[mine[-1]] = (it._replace(latest=True), body)
            if body is not None:
                insort(self._keys, key)
                self._objects[key], self._modified[key] = body, it.modified

    def _store(self, body: Body) -> None:
        self._add_version(body.key, body)
        if body.key not in self._objects:
            insort(self._keys, body.key)
        self._objects[body.key] = body
        self._modified[body.key] = self.now

    def _end(self, prefix: str) -> int:
        """The index after the last key below a prefix."""
        return bisect_right(self._keys, prefix, key=lambda key: key[: len(prefix)])


def _body(key: str, data: bytes) -> Body:
    if not 1 <= len(key.encode()) <= MAX_KEY_BYTES:
        raise StorageError(f"KeyTooLongError or empty: {key!r}")
    return Body(key, data, f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"')


@dataclass
class Cost:
    """What was asked of S3. Bytes are those of object bodies."""

    round_trips: int = 0
    requests: int = 0
    gets: int = 0
    puts: int = 0
    lists: int = 0
    deletes: int = 0
    copies: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0


COUNTERS: dict[type[Any], str] = {
    Get: "gets",
    Put: "puts",
    List: "lists",
    ListVersions: "lists",
    Delete: "deletes",
    DeleteVersions: "deletes",
    Copy: "copies",
}

Order: TypeAlias = Literal["forward", "backward"] | int
"""How the requests of one batch follow each other. An int is the seed of a shuffle."""


class Crash(Exception):
    """The process died here. Never thrown into a plan: a dead process runs no handlers."""


class FakeDriver:
    """Runs plans on a `FakeS3`.

    Faults are placed by number: the n-th request of this driver, counted from 1, in order of effect.

    Attributes:
        s3: The bucket.
        crash_after: After so many requests have taken effect the next one raises `Crash`, and so does everything later.
        order: In which order the requests of a batch take effect.
        applied: How many requests this driver has issued so far.
    """

    def __init__(self, s3: FakeS3 | None = None, *, crash_after: int | None = None, order: Order = "forward") -> None:
        self.s3 = FakeS3() if s3 is None else s3
        self.crash_after = crash_after
        self.order = order
        self.applied = 0
        self.closed = False
        self._total = Cost()
        self._costs = [self._total]
        self._before: dict[int, Exception] = {}
        self._after: dict[int, Exception] = {}
        self._lost: set[int] = set()

    # Faults.

    def lose_answer(self, n: int) -> None:
        """The n-th request takes effect, its answer is lost, and it is sent again as botocore would do."""
        self._lost.add(n)

    def fail_answer(self, n: int, error: Exception | None = None) -> None:
        """The n-th request takes effect, but the plan is told that it failed."""
        self._after[n] = error or StorageError(f"no answer to request {n}")

    def fail_before(self, n: int, error: Exception | None = None) -> None:
        """The n-th request fails and takes no effect."""
        self._before[n] = error or StorageError(f"request {n} failed")

    # Costs.

    def stats(self) -> Cost:
        """What was asked so far."""
        with self.s3.lock:
            return replace(self._total)

    @contextmanager
    def measure(self) -> Iterator[Cost]:
        """Count what is asked inside the `with` block, by all threads."""
        cost = Cost()
        with self.s3.lock:
            self._costs.append(cost)
        try:
            yield cost
        finally:
            with self.s3.lock:
                self._costs = [other for other in self._costs if other is not cost]

    # The driver's face.

    def run(self, plan: Plan[T], name: str = "", thread: str | None = None) -> T:
        """Run a plan to its end. A batch is finished before its first failure is thrown into the plan."""
        try:
            try:
                batch = next(plan)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
            while True:
                replies, error = self._issue(batch)
                try:
                    batch = plan.throw(error) if error else plan.send(replies)
                except StopIteration as stop:
                    return stop.value  # type: ignore[no-any-return]
        finally:
            plan.close()

    def close(self) -> None:
        """Note that the driver was closed."""
        self.closed = True

    def _issue(self, batch: Sequence[Request]) -> tuple[list[Any], Exception | None]:
        self._count(round_trips=1 if batch else 0)
        replies: dict[int, Any] = {}
        errors: dict[int, Exception] = {}
        for index in in_order(len(batch), self.order, self.applied):
            try:
                replies[index] = self._apply(batch[index])
            except Crash:
                raise
            except Exception as error:
                errors[index] = error
        if errors:
            return [], errors[min(errors)]
        return [replies[index] for index in range(len(batch))], None

    def _apply(self, request: Request) -> Any:
        with self.s3.lock:
            if self.crash_after is not None and self.applied >= self.crash_after:
                raise Crash(f"after {self.applied} requests, before {request}")
            self.applied += 1
            n = self.applied
            self._count(
                requests=1,
                bytes_sent=len(request.body) if isinstance(request, Put) else 0,
                bytes_received=self.s3.size(request.key) if isinstance(request, Get) else 0,
                **({COUNTERS[type(request)]: 1} if type(request) in COUNTERS else {}),
            )
            if n in self._before:
                raise self._before[n]
            if n in self._lost:
                self.s3.apply(request)
            reply = self.s3.apply(request)
            if n in self._after:
                raise self._after[n]
            return reply

    def _count(self, **amounts: int) -> None:
        with self.s3.lock:
            for cost in self._costs:
                for name, amount in amounts.items():
                    setattr(cost, name, getattr(cost, name) + amount)


def in_order(size: int, order: Order, turn: int = 0) -> list[int]:
    """The indices of a batch in the order of their effect; `turn` varies the shuffle from batch to batch."""
    indices = list(range(size))
    if order == "backward":
        indices.reverse()
    elif order != "forward":
        random.Random(f"{order} {turn}").shuffle(indices)
    return indices


def crash_states(s3: FakeS3, make_plan: Callable[[], Plan[Any]], order: Order = "forward") -> Iterator[FakeS3]:
    """Run a plan on copies of a bucket, crashing after 0, 1, 2… requests.

    Yields the bucket after each crash, and last the bucket after the run that came through. `s3` stays as it is.
    """
    crash_after, alive = 0, False
    while not alive:
        driver = FakeDriver(s3.copy(), crash_after=crash_after, order=order)
        try:
            driver.run(make_plan())
            alive = True
        except Crash:
            crash_after += 1
        yield driver.s3

"""What a plan may ask of S3, what it is told, and the few leaf helpers that see raw replies.

A *plan* is one storage operation written once, as a generator: it yields a batch of requests that
are to be issued together and is sent their replies in the same order. **Every yield is one round
trip.** A driver (`_boto`, the tests' fake) runs plans; plans know no client, clock, thread or loop.

Rules that drivers and plans keep:

* an expected outcome (404, a refused condition) is a reply; an exception thrown into a plan only aborts it;
* a driver waits for all requests of a batch before it raises, and closes the plan when it is done;
* a plan may be dropped after any request: every prefix of its requests leaves a legal state.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, TypeAlias, TypeVar

from langgraph.checkpoint.s3._objects import Body as Body

T = TypeVar("T")

MAX_DELETE = 1000
"""Keys in one DeleteObjects call (S3 API reference)."""

MAX_LIST = 1000
"""Keys in one page of ListObjectsV2 (S3 API reference)."""

PART = 8 << 20
"""Bytes of one part of a large object (S3 allows 5 MiB to 5 GiB, and 10,000 parts: S3 User Guide, multipart limits)."""

IN_PARTS_FROM = 2 * PART
"""Bytes of a body above which it is uploaded in parallel parts."""

ABSENT = ""
"""As `Put.if_match`: the key must not exist yet (`If-None-Match: *`)."""


ANY_VERSION = "*"
"""As `Get.etag`: whatever has this key has these contents."""


def as_read(body: Body) -> Any:
    """The default `Get.decode`: the body itself."""
    return body


@dataclass(frozen=True)
class Get:
    """GetObject. Reply: `decode(body)`, or None if there is no such key.

    `decode` runs where the body arrives (a pool thread), so that unpacking is spread over threads.
    `etag` is that of a listing which has just named the object, or ANY_VERSION where the key is a digest of
    the contents: the reply may then come from a cache. `version` asks for one that is not the current one any more.
    """

    key: str
    decode: Callable[[Body], Any] = field(default=as_read, repr=False)
    etag: str = field(default="", repr=False)
    version: str = field(default="", repr=False)


class Stored(Enum):
    """How a `Put` ended."""

    DONE = "done"
    REFUSED = "refused"  # the condition did not hold (412)
    UNSUPPORTED = "unsupported"  # this store does not know conditional requests (501)


@dataclass(frozen=True)
class Put:
    """PutObject, or a multipart upload. Reply: a `Stored`. `if_match` is None, ABSENT or an ETag.

    `keep` says that the object is immutable and likely to be read soon. `noted` may be told the ETag once it is stored.
    """

    key: str
    body: bytes = field(repr=False)
    if_match: str | None = None
    keep: bool = False
    noted: Callable[[str], None] | None = field(default=None, repr=False, compare=False)

    @property
    def parts(self) -> int:
        """How many parts a driver sends the body in. With a condition it goes whole: not every store knows more."""
        size = len(self.body)
        return 1 if size <= IN_PARTS_FROM or self.if_match is not None else -(-size // PART)

    @property
    def requests(self) -> int:
        """What S3 charges for: parts need one request more to begin and one to end."""
        return 1 if self.parts == 1 else self.parts + 2


@dataclass(frozen=True)
class List:
    """ListObjectsV2, one page. Reply: a `Page`.

    With `folders`, keys are rolled up at the first "/" after the prefix (`Delimiter`).
    """

    prefix: str
    start_after: str = ""
    token: str | None = None
    folders: bool = False
    max_keys: int = MAX_LIST


class Entry(NamedTuple):
    """One key of a listing. `modified` is when it was stored, by the store's clock, in seconds since 1970."""

    key: str
    size: int
    etag: str
    modified: float = 0.0


class Page(NamedTuple):
    """One page of a listing, in ascending key order; `token` is None on the last one.

    `date` is the time of the answer by the store's clock, as HTTP has it.
    """

    entries: Sequence[Entry]
    folders: Sequence[str]
    token: str | None
    date: str = ""


@dataclass(frozen=True)
class Delete:
    """DeleteObjects of at most `MAX_DELETE` keys. Reply: None; a key that is absent is fine."""

    keys: Sequence[str]


@dataclass(frozen=True)
class ListVersions:
    """ListObjectVersions, one page. Reply: a `VersionPage`."""

    prefix: str
    token: tuple[str, str] | None = None


class Version(NamedTuple):
    """One version of a key, or a delete marker, which makes the key absent while it is the latest."""

    key: str
    id: str
    latest: bool
    marker: bool
    modified: float  # when it was stored or the key deleted, in seconds since 1970


class VersionPage(NamedTuple):
    """One page of versions and delete markers, in no particular order; `token` is None on the last one."""

    versions: Sequence[Version]
    token: tuple[str, str] | None


@dataclass(frozen=True)
class DeleteVersions:
    """DeleteObjects of at most `MAX_DELETE` versions, by key and version id. Reply: None; one that is absent is fine.

    A delete marker that is deleted so brings the version before it back.
    """

    versions: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Copy:
    """CopyObject within the bucket. Reply: False if the source does not exist."""

    source: str
    target: str


@dataclass(frozen=True)
class CreateBucket:
    """CreateBucket, in the client's region. Reply: None; a bucket that is already ours is fine."""


@dataclass(frozen=True)
class GetVersioning:
    """GetBucketVersioning. Reply: whether each deletion leaves a version behind."""


@dataclass(frozen=True)
class Lifecycle:
    """A bucket's lifecycle configuration: its rules as S3 has them, and what else it says, by botocore's names."""

    rules: Sequence[Mapping[str, Any]]
    rest: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class GetLifecycle:
    """GetBucketLifecycleConfiguration. Reply: a `Lifecycle`, without rules if there is none."""


@dataclass(frozen=True)
class PutLifecycle:
    """PutBucketLifecycleConfiguration, which replaces all rules. Reply: None."""

    lifecycle: Lifecycle = field(repr=False)


Request: TypeAlias = (
    Get
    | Put
    | List
    | Delete
    | Copy
    | ListVersions
    | DeleteVersions
    | CreateBucket
    | GetVersioning
    | GetLifecycle
    | PutLifecycle
)
Plan: TypeAlias = Generator[Sequence[Request], Sequence[Any], T]


def get(key: str, decode: Callable[[Body], T], etag: str = "") -> Plan[T | None]:
    """Read one object, decoded; None if it does not exist. One round trip."""
    (reply,) = yield [Get(key, decode, etag)]
    return reply  # type: ignore[no-any-return]


def put(key: str, body: bytes, if_match: str | None = None) -> Plan[Stored]:
    """Write one object. One round trip."""
    (reply,) = yield [Put(key, body, if_match)]
    assert isinstance(reply, Stored)
    return reply


def put_all(objects: Sequence[tuple[str, bytes]], keep: bool = False) -> Plan[None]:
    """Write objects unconditionally and together. One round trip, none for an empty sequence."""
    if objects:
        _ = yield [Put(key, body, keep=keep) for key, body in objects]


def list_page(request: List) -> Plan[Page]:
    """Read one page of a listing. One round trip."""
    (reply,) = yield [request]
    assert isinstance(reply, Page)
    return reply


def list_all(prefix: str) -> Plan[tuple[list[Entry], int]]:
    """List every key below a prefix, ascending; also tells the number of pages. One round trip per 1,000 keys."""
    entries: list[Entry] = []
    pages, token = 0, None
    while True:
        page = yield from list_page(List(prefix, token=token))
        entries += page.entries
        pages += 1
        if page.token is None:
            return entries, pages
        token = page.token


def list_folders(prefix: str) -> Plan[list[str]]:
    """List the names directly below a prefix, without the prefix and the closing slash."""
    folders: list[str] = []
    token = None
    while True:
        page = yield from list_page(List(prefix, token=token, folders=True))
        folders += [name[len(prefix) : -1] for name in page.folders]
        if page.token is None:
            return folders
        token = page.token


def delete_all(keys: Sequence[str]) -> Plan[None]:
    """Delete keys in the order given, 1,000 a request, one request after the other."""
    for start in range(0, len(keys), MAX_DELETE):
        _ = yield [Delete(keys[start : start + MAX_DELETE])]


def list_versions(prefix: str) -> Plan[list[Version]]:
    """List every version of every key below a prefix. One round trip per 1,000 versions."""
    versions: list[Version] = []
    token: tuple[str, str] | None = None
    while True:
        (page,) = yield [ListVersions(prefix, token)]
        assert isinstance(page, VersionPage)
        versions += page.versions
        if page.token is None:
            return versions
        token = page.token


def delete_versions(versions: Sequence[tuple[str, str]]) -> Plan[None]:
    """Delete versions in the order given, 1,000 a request, one request after the other."""
    for start in range(0, len(versions), MAX_DELETE):
        _ = yield [DeleteVersions(versions[start : start + MAX_DELETE])]


def copy_all(pairs: Sequence[tuple[str, str]]) -> Plan[list[str]]:
    """Copy (source, target) pairs together, on the server. One round trip.

    Returns the sources that did not exist any more.
    """
    if not pairs:
        return []
    replies = yield [Copy(source, target) for source, target in pairs]
    return [source for (source, _), copied in zip(pairs, replies, strict=True) if not copied]


def each(plans: Sequence[Plan[T]]) -> Plan[list[T]]:
    """Run plans in lockstep: one yield carries the next batch of each of them.

    Takes as many round trips as the longest of them. Returns their results in order. A batch holds
    what all plans ask for, so the caller bounds their number.
    """
    results: dict[int, T] = {}
    asked: dict[int, Sequence[Request]] = {}

    def step(index: int, replies: Sequence[Any] | None) -> None:
        try:
            asked[index] = next(plans[index]) if replies is None else plans[index].send(replies)
        except StopIteration as stop:
            results[index] = stop.value

    try:
        for index in range(len(plans)):
            step(index, None)
        while asked:
            turn = dict(asked)
            asked.clear()
            replies = iter((yield [request for batch in turn.values() for request in batch]))
            for index, batch in turn.items():
                step(index, [next(replies) for _ in batch])
    finally:
        for plan in plans:
            plan.close()
    return [results[index] for index in range(len(plans))]

"""The format of every object, and the only code that packs or unpacks one.

    "LGS3"  format version (1 byte)  header length (4)  CRC-32 of the rest (4)  header  zstd frame

The header is plain msgpack: what the object is (thread and namespace in full, ids, references) and, per
section of the body, the type that the user's serializer gave it and its length. The frame holds the
sections one after the other and a checksum. Nothing in the header is of the user's content.

A reader refuses versions it does not know, bounds what it unpacks, and compares the header with the
key in everything but the thread (a fork is a copy), so a swapped or planted object is an error.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from io import SEEK_END, BytesIO
from typing import Any, TypeAlias, TypeVar

import ormsgpack

from langgraph.checkpoint.s3._keys import (
    NS_LIMIT,
    Namespace,
    blob_name,
    encode_part,
    numbered_batch,
    stamped_batch,
)
from langgraph.checkpoint.s3._values import Typed, compress_to, decompress
from langgraph.checkpoint.s3.errors import CorruptObject, InvalidInput, ObjectTooLarge, UnsupportedFormat

MAGIC = b"LGS3"
FORMAT = 1
_LEAD = struct.Struct(">4sBII")

Version: TypeAlias = str | int | float
T = TypeVar("T")


@dataclass(frozen=True)
class Body:
    """One stored object as read."""

    key: str
    data: bytes = field(repr=False)
    etag: str


@dataclass(frozen=True)
class BlobRef:
    """Where a large value lies: beside the checkpoint that stored it."""

    owner: str
    name: str
    size: int


@dataclass(frozen=True)
class Value:
    """A channel's value in one version: inline, or a reference to a blob."""

    version: Version
    content: Typed | BlobRef = field(repr=False)


@dataclass(frozen=True)
class CheckpointObject:
    """One checkpoint.

    `deltas` maps each delta channel that has no snapshot here to the super-steps since its last one: so
    far back does this checkpoint depend on its ancestors. `blank` names all channels that have a version
    and no value; one that has not even a version has no history. `marks` names some of the ancestors,
    newest first, each `MARK_EVERY` super-steps or more from the next, so that a long chain can be listed
    in parallel; `steps` counts from the newest mark. `since` is when the oldest of what this checkpoint
    depends on was stored, in seconds since 1970; 0 where nobody has to know.
    """

    thread: str
    ns: str
    id: str
    parent: str | None
    state: Typed = field(repr=False)  # the checkpoint without its channel values
    metadata: Typed = field(repr=False)
    values: Mapping[str, Value] = field(repr=False)
    deltas: Mapping[str, int] = field(default_factory=dict)
    blank: Sequence[str] = ()
    marks: Sequence[str] = ()
    steps: int = 0
    since: float = 0.0

    @property
    def depth(self) -> int:
        """How many ancestors back its delta channels reach at most."""
        return max(self.deltas.values(), default=0)

    @property
    def refs(self) -> dict[str, BlobRef]:
        """The large values, by channel."""
        return {name: value.content for name, value in self.values.items() if isinstance(value.content, BlobRef)}


@dataclass(frozen=True)
class WriteBatch:
    """One `put_writes` call. `writes` are (index, channel, value); special channels have negative indexes.

    `stamp` (nanoseconds, never behind one that the writer had read) and `nonce` order the batches of a task.
    """

    thread: str
    ns: str
    checkpoint: str
    task: str
    path: str
    stamp: int
    nonce: str
    writes: Sequence[tuple[int, str, Typed]] = field(repr=False)


@dataclass(frozen=True)
class ChannelHistory:
    """What a delta channel needs of its ancestors: the nearest stored value and the writes since, oldest first."""

    seed: Typed | None = field(repr=False)
    writes: Sequence[tuple[str, Typed]] = field(repr=False)


@dataclass(frozen=True)
class HistoryPack:
    """Delta histories packed beside a checkpoint whose ancestors were deleted. From here on nothing older is needed."""

    thread: str
    ns: str
    checkpoint: str
    channels: Mapping[str, ChannelHistory]


@dataclass(frozen=True)
class Link:
    """One checkpoint as a link of a delta chain: what lies beside it, as far as it is known.

    `stored` and `blank` name channels that have a value there, and those that have a version and none.
    """

    id: str
    parent: str | None
    stored: Sequence[str]
    blank: Sequence[str]
    batches: Mapping[str, WriteBatch] = field(repr=False)  # by name
    sizes: Mapping[str, int] = field(repr=False)  # of the batches, in bytes as stored; also of those left out
    size: int = 0  # of the checkpoint object, in bytes as stored
    packed: int = 0  # links in the longest packed stretch that ends here
    channels: frozenset[str] | None = None  # those of which the rest is known; None if it is of all


@dataclass(frozen=True)
class Stretch:
    """A stretch of a delta chain, packed: `links` newest first, of which only some channels were kept.

    It is a copy, and a hint: what a listing does not show is not there.
    """

    thread: str
    ns: str
    checkpoint: str  # the newest of them
    channels: Sequence[str]
    links: Sequence[Link]


@dataclass(frozen=True)
class Fence:
    """What has been condemned in a namespace: never to be relied on again, even while it still lies there.

    Condemned are all checkpoints up to `horizon` but those `kept`, and the ids in `doomed`; blobs of a
    condemned checkpoint are condemned with it, but for those in `blobs` (owner, name).
    """

    horizon: str = ""
    kept: frozenset[str] = frozenset()
    doomed: frozenset[str] = frozenset()
    blobs: frozenset[tuple[str, str]] = frozenset()


class Codec:
    """Packs and unpacks objects of one bucket (whose name is in every error)."""

    def __init__(self, bucket: str, level: int, limit: int) -> None:
        self.bucket, self.level, self.limit = bucket, level, limit

    # -- packing -----------------------------------------------------------------------------------

    def checkpoint(self, it: CheckpointObject) -> bytes:
        """Pack a checkpoint object; also the content of the manifest."""
        inline = {name: value for name, value in it.values.items() if not isinstance(value.content, BlobRef)}
        header = {
            "thread": it.thread,
            "ns": it.ns,
            "checkpoint": it.id,
            "parent": it.parent,
            "values": [[name, value.version] for name, value in inline.items()],
            "refs": [[name, it.values[name].version, ref.owner, ref.name, ref.size] for name, ref in it.refs.items()],
            "deltas": dict(it.deltas),
            "blank": list(it.blank),
            "marks": list(it.marks),
            "steps": it.steps,
            **({"since": it.since} if it.since else {}),
        }
        contents: list[Any] = [value.content for value in inline.values()]
        return self._pack("checkpoint", header, [it.state, it.metadata, *contents])

    def blob(self, thread: str, ns: str, checkpoint_id: str, channel: str, value: Typed) -> bytes:
        """Pack one large channel value."""
        header = {"thread": thread, "ns": ns, "checkpoint": checkpoint_id, "channel": channel}
        return self._pack("blob", header, [value])

    def writes(self, it: WriteBatch) -> bytes:
        """Pack a write batch."""
        header = {
            "thread": it.thread,
            "ns": it.ns,
            "checkpoint": it.checkpoint,
            "task": it.task,
            "path": it.path,
            "stamp": it.stamp,
            "nonce": it.nonce,
            "writes": [[index, channel] for index, channel, _ in it.writes],
        }
        return self._pack("writes", header, [value for _, _, value in it.writes])

    def history(self, it: HistoryPack) -> bytes:
        """Pack delta histories."""
        channels = [[name, one.seed is not None, [task for task, _ in one.writes]] for name, one in it.channels.items()]
        sections: list[Typed] = []
        for one in it.channels.values():
            sections += [one.seed] if one.seed is not None else []
            sections += [value for _, value in one.writes]
        header = {"thread": it.thread, "ns": it.ns, "checkpoint": it.checkpoint, "channels": channels}
        return self._pack("history", header, sections)

    def stretch(self, it: Stretch) -> bytes:
        """Pack a stretch of a delta chain.

        All of it is one section: links are small, and alike, so they compress together.
        """
        links = [
            [
                link.id,
                list(link.stored),
                list(link.blank),
                [
                    [name, link.sizes[name], batch.task, batch.path, [[i, c, *value] for i, c, value in batch.writes]]
                    for name, batch in link.batches.items()
                ],
            ]
            for link in it.links
        ]
        header = {"thread": it.thread, "ns": it.ns, "checkpoint": it.checkpoint, "channels": list(it.channels)}
        return self._pack("stretch", header, [("", ormsgpack.packb([it.links[-1].parent, links]))])

    def fence(self, ns: Namespace, it: Fence) -> bytes:
        """Pack a fence."""
        header = {
            "part": ns.ns_part,
            "horizon": it.horizon,
            "kept": sorted(it.kept),
            "doomed": sorted(it.doomed),
            "blobs": sorted(map(list, it.blobs)),
        }
        return self._pack("fence", header, [])

    def _pack(self, kind: str, header: Mapping[str, Any], sections: Sequence[Typed]) -> bytes:
        size = sum(len(data) for _, data in sections)
        if size > self.limit:
            raise ObjectTooLarge(
                f"a {kind} object of {size:,} bytes is over max_object_bytes={self.limit:,}; nothing was stored. "
                "Keep such data outside the graph's state, or raise the option for every reader too."
            )
        told = {"kind": kind, **header, "sections": [[name, len(data)] for name, data in sections]}
        try:
            packed = ormsgpack.packb(told)
        except (TypeError, ormsgpack.MsgpackEncodeError) as error:
            raise InvalidInput(
                f"cannot store a {kind} object: {error}; ids, channels and versions are text or numbers."
            ) from None
        target = BytesIO(bytes(_LEAD.size) + packed)
        _ = target.seek(0, SEEK_END)
        compress_to(target, [data for _, data in sections], self.level)
        with target.getbuffer() as view:
            _LEAD.pack_into(view, 0, MAGIC, FORMAT, len(packed), zlib.crc32(view[_LEAD.size :]))
        return target.getvalue()

    # -- unpacking: each of these returns a `decode` for a `Get` -----------------------------------

    def read_checkpoint(self, ns: Namespace, checkpoint_id: str | None = None) -> Callable[[Body], CheckpointObject]:
        """Read a checkpoint object; the manifest, which may be any checkpoint's copy, without an id."""

        def decode(header: dict[str, Any], sections: list[Typed]) -> CheckpointObject:
            values = {
                name: Value(version, it) for (name, version), it in zip(header["values"], sections[2:], strict=True)
            }
            for name, version, owner, blob, size in header["refs"]:
                values[name] = Value(version, BlobRef(owner, blob, size))
            return CheckpointObject(
                thread=header["thread"],
                ns=header["ns"],
                id=header["checkpoint"],
                parent=header["parent"],
                state=sections[0],
                metadata=sections[1],
                values=values,
                deltas=header["deltas"],
                blank=header["blank"],
                marks=header["marks"],
                steps=header["steps"],
                since=header.get("since", 0.0),
            )

        return self._reader("checkpoint", ns, checkpoint_id, decode)

    def read_blob(self, ns: Namespace, ref: BlobRef, channel: str) -> Callable[[Body], Typed]:
        """Read one large value."""

        def decode(header: dict[str, Any], sections: list[Typed]) -> Typed:
            if header["channel"] != channel:
                raise CorruptObject(f"it holds channel {header['channel']!r}, not {channel!r}")
            (value,) = sections
            if blob_name(channel, value[1]) != ref.name:
                raise CorruptObject("it holds another value of its channel than its name tells")
            return value

        return self._reader("blob", ns, ref.owner, decode)

    def read_writes(self, ns: Namespace, checkpoint_id: str, name: str) -> Callable[[Body], WriteBatch]:
        """Read a write batch."""

        def decode(header: dict[str, Any], sections: list[Typed]) -> WriteBatch:
            batch = WriteBatch(
                thread=header["thread"],
                ns=header["ns"],
                checkpoint=header["checkpoint"],
                task=header["task"],
                path=header["path"],
                stamp=header["stamp"],
                nonce=header["nonce"],
                writes=[(index, name, it) for (index, name), it in zip(header["writes"], sections, strict=True)],
            )
            if name not in (stamped_batch(batch.task, batch.stamp, batch.nonce), _numbered_like(name, batch.task)):
                raise CorruptObject(f"it holds writes of task {batch.task!r}, not those that its name tells")
            return batch

        return self._reader("writes", ns, checkpoint_id, decode)

    def read_history(self, ns: Namespace, checkpoint_id: str) -> Callable[[Body], HistoryPack]:
        """Read delta histories."""

        def decode(header: dict[str, Any], sections: list[Typed]) -> HistoryPack:
            rest = iter(sections)
            channels = {
                name: ChannelHistory(next(rest) if seeded else None, [(task, next(rest)) for task in tasks])
                for name, seeded, tasks in header["channels"]
            }
            return HistoryPack(header["thread"], header["ns"], header["checkpoint"], channels)

        return self._reader("history", ns, checkpoint_id, decode)

    def read_stretch(self, ns: Namespace, checkpoint_id: str) -> Callable[[Body], Stretch]:
        """Read a packed stretch."""

        def decode(header: dict[str, Any], sections: list[Typed]) -> Stretch:
            parent, told = ormsgpack.unpackb(sections[0][1])
            links, channels = list[Link](), frozenset(header["channels"])
            for link_id, stored, blank, batches in reversed(told):
                read = {
                    name: WriteBatch(
                        header["thread"],
                        header["ns"],
                        link_id,
                        task,
                        path,
                        stamp=0,
                        nonce="",
                        writes=[(index, channel, (kind, data)) for index, channel, kind, data in writes],
                    )
                    for name, _, task, path, writes in batches
                }
                sizes = {name: size for name, size, *_ in batches}
                links.append(Link(link_id, parent, stored, blank, read, sizes, channels=channels))
                parent = link_id
            return Stretch(header["thread"], header["ns"], header["checkpoint"], header["channels"], links[::-1])

        return self._reader("stretch", ns, checkpoint_id, decode)

    def read_fence(self, ns: Namespace) -> Callable[[Body], tuple[Fence, str]]:
        """Read a fence, with its ETag."""

        def decode(header: dict[str, Any], _: list[Typed]) -> Fence:
            return Fence(
                horizon=header["horizon"],
                kept=frozenset(header["kept"]),
                doomed=frozenset(header["doomed"]),
                blobs=frozenset((owner, name) for owner, name in header["blobs"]),
            )

        read = self._reader("fence", ns, None, decode)
        return lambda body: (read(body), body.etag)

    def _reader(
        self, kind: str, ns: Namespace, checkpoint_id: str | None, decode: Callable[[dict[str, Any], list[Typed]], T]
    ) -> Callable[[Body], T]:
        def read(body: Body) -> T:
            try:
                header, sections = self._unpack(body.data)
                self._compare(header, kind, ns, checkpoint_id)
                return decode(header, sections)
            except (CorruptObject, ObjectTooLarge) as error:
                raise type(error)(f"s3://{self.bucket}/{body.key}: {error}. {_ADVICE[type(error)]}") from None
            except (ValueError, KeyError, TypeError, IndexError, StopIteration, AttributeError) as error:
                detail = f"its header is not that of a {kind} object ({error!r})"
                raise CorruptObject(f"s3://{self.bucket}/{body.key}: {detail}. {_ADVICE[CorruptObject]}") from None

        return read

    def _unpack(self, data: bytes) -> tuple[dict[str, Any], list[Typed]]:
        if len(data) < _LEAD.size or not data.startswith(MAGIC):
            raise CorruptObject("it is not an object of this saver")
        _, version, length, checksum = _LEAD.unpack_from(data)
        if version != FORMAT:
            raise UnsupportedFormat(f"it has format {version}, this release reads format {FORMAT}")
        # zstd's own checksum says nothing of an empty frame, nor of bits that its decoder ignores.
        rest = memoryview(data)[_LEAD.size :]  # a large body is not copied
        if zlib.crc32(rest) != checksum:
            raise CorruptObject("it is truncated or altered")
        header = ormsgpack.unpackb(rest[:length])
        content = decompress(rest[length:], self.limit)
        sections, start = [], 0
        for name, size in header["sections"]:
            sections.append((name, content[start : start + size]))
            start += size
        if start != len(content):
            raise CorruptObject("its sections do not fill its body")
        return header, sections

    def _compare(self, header: dict[str, Any], kind: str, ns: Namespace, checkpoint_id: str | None) -> None:
        if header["kind"] != kind:
            raise CorruptObject(f"it is a {header['kind']} object where a {kind} object belongs")
        part = header["part"] if kind == "fence" else encode_part(header["ns"], NS_LIMIT)
        if part != ns.ns_part:
            raise CorruptObject(f"it belongs to namespace {part!r}")
        if checkpoint_id is not None and header["checkpoint"] != checkpoint_id:
            raise CorruptObject(f"it belongs to checkpoint {header['checkpoint']!r}")


_ADVICE: Mapping[type[Exception], str] = {
    CorruptObject: "Restore an earlier version of it, or see 'A thread that cannot be read' in docs/operations.md.",
    UnsupportedFormat: "Upgrade langgraph-checkpoint-s3saver to read it.",
    ObjectTooLarge: "If it is wanted, raise max_object_bytes.",
}


def _numbered_like(name: str, task_id: str) -> str:
    """The numbered name that `name` would be if it were one of this task's."""
    suffix = name.rpartition(".r")[2]
    return numbered_batch(task_id, int(suffix)) if suffix.isascii() and suffix.isdigit() else ""

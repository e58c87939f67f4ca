"""Objects: read as they were written, or refused. Nothing in between, whatever happened to their bytes."""

from __future__ import annotations

import struct
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import ormsgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, empty_checkpoint

from langgraph.checkpoint.s3 import S3Saver
from langgraph.checkpoint.s3._keys import blob_name, namespace, numbered_batch, stamped_batch
from langgraph.checkpoint.s3._objects import (
    BlobRef,
    Body,
    ChannelHistory,
    CheckpointObject,
    Codec,
    Fence,
    HistoryPack,
    Value,
    WriteBatch,
)
from langgraph.checkpoint.s3._values import compress, decompress
from langgraph.checkpoint.s3.errors import (
    CorruptObject,
    InvalidInput,
    ObjectTooLarge,
    S3SaverError,
    UnsupportedFormat,
)
from tests.golden import make_v1 as golden
from tests.support.fake_s3 import FakeDriver, FakeS3

LIMIT = 1 << 20
CODEC = Codec("bucket", 3, LIMIT)
NS, ID, KEY = golden.NS, golden.ID, "agents/some/key"

Decode = Callable[[Body], Any]

READERS: dict[str, tuple[Decode, Any]] = {
    "checkpoint": (CODEC.read_checkpoint(NS, ID), golden.CHECKPOINT),
    "aging_checkpoint": (CODEC.read_checkpoint(NS, ID), golden.AGING),
    "root": (CODEC.read_checkpoint(NS, golden.OLD), golden.ROOT),
    "blob": (CODEC.read_blob(NS, golden.REF, "messages/all"), golden.BLOB),
    "writes": (CODEC.read_writes(NS, ID, golden.NUMBERED), golden.WRITES),
    "history": (CODEC.read_history(NS, ID), golden.HISTORY),
    "stretch": (CODEC.read_stretch(NS, golden.PARENT), golden.STRETCH),
    "fence": (CODEC.read_fence(NS), (golden.FENCE, "etag")),
    "empty_fence": (CODEC.read_fence(NS), (Fence(), "etag")),
}
SAMPLES = golden.pack(CODEC)
KINDS = list(SAMPLES)


def read(decode: Decode, data: bytes) -> Any:
    return plain(decode(Body(KEY, data, "etag")))


def plain(it: Any) -> Any:
    """Sequences as lists, so that what was read equals what was written."""
    if isinstance(it, CheckpointObject):
        return replace(it, marks=list(it.marks), blank=list(it.blank))
    if isinstance(it, WriteBatch):
        return replace(it, writes=list(it.writes))
    return it


def refused(decode: Decode, data: bytes, kind: type[S3SaverError] = CorruptObject, match: str | None = None) -> None:
    with pytest.raises(kind, match=match) as caught:
        decode(Body(KEY, data, "etag"))
    assert f"s3://bucket/{KEY}: " in str(caught.value)


def planted(header: object, frame: bytes, *, length: int | None = None, version: int = 1) -> bytes:
    """An object whose checksum is right, whatever it holds."""
    packed = header if isinstance(header, bytes) else ormsgpack.packb(header)
    rest = packed + frame
    return struct.pack(">4sBII", b"LGS3", version, len(packed) if length is None else length, zlib.crc32(rest)) + rest


def taken_apart(data: bytes) -> tuple[dict[str, Any], bytes]:
    (length,) = struct.unpack_from(">I", data, 5)
    return ormsgpack.unpackb(data[13 : 13 + length]), data[13 + length :]


# -- round trip ------------------------------------------------------------------------------------

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
typed = st.tuples(texts, st.binary(max_size=40))
versions = texts | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats(allow_nan=False)
refs = st.builds(BlobRef, texts, texts, st.integers(0, 1 << 40))
checkpoints = st.builds(
    CheckpointObject,
    thread=texts,
    ns=texts,
    id=texts,
    parent=st.none() | texts,
    state=typed,
    metadata=typed,
    values=st.dictionaries(texts, st.builds(Value, versions, typed | refs), max_size=6),
    deltas=st.dictionaries(texts, st.integers(1, 10_000), max_size=3),
    blank=st.lists(texts, max_size=4),
    marks=st.lists(texts, max_size=4),
    steps=st.integers(0, 128),
    since=st.just(0.0) | st.floats(1e9, 2e9),
)
batches = st.builds(
    WriteBatch,
    thread=texts,
    ns=texts,
    checkpoint=texts,
    task=texts,
    path=texts,
    stamp=st.integers(0, (1 << 63) - 1),
    nonce=st.text("0123456789abcdef", min_size=8, max_size=8),
    writes=st.lists(st.tuples(st.integers(-4, 1000), texts, typed), max_size=6),
)
histories = st.builds(ChannelHistory, st.none() | typed, st.lists(st.tuples(texts, typed), max_size=4))
packs = st.builds(HistoryPack, texts, texts, texts, st.dictionaries(texts, histories, max_size=4))
fences = st.builds(
    Fence, texts, st.frozensets(texts), st.frozensets(texts), st.frozensets(st.tuples(texts, texts), max_size=5)
)
codecs = st.sampled_from([Codec("bucket", level, LIMIT) for level in (1, 3, 12)])


@given(checkpoints, codecs)
def test_checkpoints_are_read_as_written(it: CheckpointObject, codec: Codec) -> None:
    ns = namespace("", it.thread, it.ns)
    assert read(CODEC.read_checkpoint(ns, it.id), codec.checkpoint(it)) == it
    assert read(CODEC.read_checkpoint(ns), codec.checkpoint(it)) == it  # as the manifest


@given(texts, texts, texts, texts, typed, codecs)
def test_blobs_are_read_as_written(
    thread: str, ns_text: str, owner: str, channel: str, value: tuple[str, bytes], codec: Codec
) -> None:
    ref = BlobRef(owner, blob_name(channel, value[1]), 0)
    data = codec.blob(thread, ns_text, owner, channel, value)
    assert read(CODEC.read_blob(namespace("", thread, ns_text), ref, channel), data) == value


@given(batches, codecs, st.integers(0, 9_999))
def test_writes_are_read_as_written(it: WriteBatch, codec: Codec, number: int) -> None:
    ns = namespace("", it.thread, it.ns)
    for name in (numbered_batch(it.task, number), stamped_batch(it.task, it.stamp, it.nonce)):
        assert read(CODEC.read_writes(ns, it.checkpoint, name), codec.writes(it)) == it


@given(packs, codecs)
def test_histories_are_read_as_written(it: HistoryPack, codec: Codec) -> None:
    assert read(CODEC.read_history(namespace("", it.thread, it.ns), it.checkpoint), codec.history(it)) == it


@given(fences, texts, codecs)
def test_fences_are_read_as_written(it: Fence, ns_text: str, codec: Codec) -> None:
    ns = namespace("", "t", ns_text)
    assert read(CODEC.read_fence(ns), codec.fence(ns, it)) == (it, "etag")


@pytest.mark.parametrize("kind", KINDS)
def test_golden_objects_are_read(kind: str) -> None:
    decode, expected = READERS[kind]
    data = (golden.FOLDER / kind).read_bytes()
    assert data[:5] == b"LGS3\x01"
    assert read(decode, data) == plain(expected)


def test_every_golden_object_is_known() -> None:
    assert {path.name for path in golden.FOLDER.iterdir()} == set(KINDS)


# -- damage ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_every_altered_byte_is_noticed(kind: str) -> None:
    decode, _ = READERS[kind]
    sample = SAMPLES[kind]
    silent = []
    for position in range(len(sample)):
        for difference in range(1, 256):
            altered = bytearray(sample)
            altered[position] ^= difference
            try:
                decode(Body(KEY, bytes(altered), "etag"))
            except (CorruptObject, ObjectTooLarge):
                continue
            silent.append((position, difference))
    assert silent == []


@pytest.mark.parametrize("kind", KINDS)
def test_every_truncation_is_noticed(kind: str) -> None:
    for length in range(len(SAMPLES[kind])):
        refused(READERS[kind][0], SAMPLES[kind][:length])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("more", [b"\0", b"\n", compress(b"", 3), compress(b"x", 3), b"\x50\x2a\x4d\x18\0\0\0\0"])
def test_appended_bytes_are_noticed(kind: str, more: bytes) -> None:
    """Even another zstd frame, or one that zstd would skip, and a checksum that was made to fit."""
    refused(READERS[kind][0], SAMPLES[kind] + more)
    header, frame = taken_apart(SAMPLES[kind])
    if any(size for _, size in header["sections"]):  # of an empty frame zstd checks nothing
        refused(READERS[kind][0], planted(header, frame + more))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("version", [0, 2, 255])
def test_another_format_is_named(kind: str, version: int) -> None:
    data = SAMPLES[kind]
    refused(READERS[kind][0], data[:4] + bytes([version]) + data[5:], UnsupportedFormat, f"format {version}, .*Upgrade")
    refused(READERS[kind][0], data[:4] + bytes([version]) + b"\0" * 8, UnsupportedFormat)


@pytest.mark.parametrize("foreign", [b"", b"LGS3", b"{}", b"<html>404</html>", b"\0" * 1000, b"lgs3" + b"\1" * 100])
@pytest.mark.parametrize("kind", KINDS)
def test_foreign_bytes_are_refused(kind: str, foreign: bytes) -> None:
    refused(READERS[kind][0], foreign, match="not an object of this saver")


# -- objects in another's place --------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", KINDS)
def test_one_kind_does_not_pass_for_another(kind: str, place: str) -> None:
    if kind.split("_")[-1] != place.split("_")[-1]:
        refused(READERS[place][0], SAMPLES[kind])


OTHER_ID = "1f0a5b6c-0d1e-6f2a-8003-000000000009"
OTHER_NS = namespace("agents/", golden.THREAD, "outer:1|inner:3")
OTHER_REF = replace(golden.REF, name=blob_name("messages/all", b"another"))


@pytest.mark.parametrize(
    ("kind", "decode"),
    [
        ("checkpoint", CODEC.read_checkpoint(NS, OTHER_ID)),
        ("checkpoint", CODEC.read_checkpoint(NS, ID.upper())),
        ("checkpoint", CODEC.read_checkpoint(OTHER_NS, ID)),
        ("checkpoint", CODEC.read_checkpoint(OTHER_NS)),
        ("blob", CODEC.read_blob(NS, golden.REF, "messages")),
        ("blob", CODEC.read_blob(NS, replace(golden.REF, owner=ID), "messages/all")),
        ("blob", CODEC.read_blob(OTHER_NS, golden.REF, "messages/all")),
        ("blob", CODEC.read_blob(NS, OTHER_REF, "messages/all")),
        ("writes", CODEC.read_writes(NS, OTHER_ID, golden.NUMBERED)),
        ("writes", CODEC.read_writes(OTHER_NS, ID, golden.NUMBERED)),
        ("writes", CODEC.read_writes(NS, ID, numbered_batch("task/2", 0))),
        ("writes", CODEC.read_writes(NS, ID, stamped_batch("task/2", golden.WRITES.stamp, golden.WRITES.nonce))),
        ("writes", CODEC.read_writes(NS, ID, stamped_batch("task/1", golden.WRITES.stamp + 1, golden.WRITES.nonce))),
        ("writes", CODEC.read_writes(NS, ID, stamped_batch("task/1", golden.WRITES.stamp, "00000000"))),
        ("writes", CODEC.read_writes(NS, ID, golden.NUMBERED + "x")),
        ("history", CODEC.read_history(NS, OTHER_ID)),
        ("history", CODEC.read_history(OTHER_NS, ID)),
        ("stretch", CODEC.read_stretch(NS, ID)),
        ("stretch", CODEC.read_stretch(OTHER_NS, golden.PARENT)),
        ("fence", CODEC.read_fence(OTHER_NS)),
    ],
)
def test_a_swapped_object_is_refused(kind: str, decode: Decode) -> None:
    refused(decode, SAMPLES[kind])


def test_an_object_of_another_thread_is_taken() -> None:
    """A fork is a copy: whoever copies objects from thread to thread has a working one."""
    fork = namespace("elsewhere/", "fork", golden.NS_TEXT)
    assert read(CODEC.read_checkpoint(fork, ID), SAMPLES["checkpoint"]) == plain(golden.CHECKPOINT)
    assert read(CODEC.read_checkpoint(fork), SAMPLES["checkpoint"]) == plain(golden.CHECKPOINT)
    assert read(CODEC.read_blob(fork, golden.REF, "messages/all"), SAMPLES["blob"]) == golden.BLOB
    assert read(CODEC.read_writes(fork, ID, golden.NUMBERED), SAMPLES["writes"]) == golden.WRITES
    assert read(CODEC.read_writes(fork, ID, golden.STAMPED), SAMPLES["writes"]) == golden.WRITES
    assert read(CODEC.read_history(fork, ID), SAMPLES["history"]) == golden.HISTORY
    assert read(CODEC.read_stretch(fork, golden.PARENT), SAMPLES["stretch"]) == golden.STRETCH
    assert read(CODEC.read_fence(fork), SAMPLES["fence"]) == (golden.FENCE, "etag")


# -- planted objects: right checksums, wrong contents ----------------------------------------------

JUNK: list[object] = [None, True, -1, 1.5, "x", b"x", [], {}, [[]], [[[], []]], [None], {"x": None}, [["", -1]]]


@pytest.mark.parametrize("kind", KINDS)
def test_a_planted_header_raises_nothing_else(kind: str) -> None:
    decode, _ = READERS[kind]
    header, frame = taken_apart(SAMPLES[kind])
    for name in header:
        if name not in ("thread", "since"):  # a fork is a copy, so readers ignore the one; the other may be left out
            refused(decode, planted({key: value for key, value in header.items() if key != name}, frame))
        for junk in JUNK:
            with suppress(CorruptObject, ObjectTooLarge):
                decode(Body(KEY, planted({**header, name: junk}, frame), "etag"))
    for instead in [*JUNK, b"\xc1", b"", b"\x91" * 100_000, b"\xdd\xff\xff\xff\xff", b"\x81\xa4kind"]:
        refused(decode, planted(instead, frame))


@pytest.mark.parametrize("sizes", [[], [5], [3, 3], [1, 1], [1 << 40, 5], [5, 0, 1], [2, 1, 3]])
def test_sections_have_to_fill_the_body(sizes: list[int]) -> None:
    header, _ = taken_apart(SAMPLES["root"])
    header["sections"] = [["null", size] for size in sizes]
    refused(READERS["root"][0], planted(header, compress(b"xxxxx", 3)))


# -- bombs -----------------------------------------------------------------------------------------

FRAME, ZEROS = b"\x28\xb5\x2f\xfd", 128 * 1024


def bomb(claimed: int | None, real: int) -> bytes:
    """A zstd frame of zeros that says it holds `claimed` bytes and unpacks to `real`: 4 bytes for each 128 KiB."""
    head = b"\x04\x60" if claimed is None else b"\xe4" + claimed.to_bytes(8, "little")  # "\x60": a window of 4 MB
    blocks = (1 << 1 | ZEROS << 3).to_bytes(3, "little") + b"\0"
    return FRAME + head + blocks * (real // ZEROS) + b"\1\0\0" + b"\0\0\0\0"


@contextmanager
def little_memory() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20


@pytest.mark.parametrize(
    ("claimed", "real", "kind"),
    [
        (100 << 30, 0, ObjectTooLarge),
        (1 << 63, 0, ObjectTooLarge),
        ((1 << 64) - 3, 0, ObjectTooLarge),
        (2 << 30, 2 << 30, ObjectTooLarge),
        (LIMIT + 1, 2 << 30, ObjectTooLarge),
        (LIMIT, 2 << 30, CorruptObject),
        (1, 2 << 30, CorruptObject),
        (LIMIT, 0, CorruptObject),
        (None, 2 << 30, CorruptObject),
    ],
)
def test_a_bomb_does_not_go_off(claimed: int | None, real: int, kind: type[S3SaverError]) -> None:
    frame = bomb(claimed, real)
    header, _ = taken_apart(SAMPLES["blob"])
    data = planted(header, frame)
    with little_memory():
        with pytest.raises(kind):
            decompress(frame, LIMIT)
        refused(READERS["blob"][0], data, kind)


def test_an_honest_frame_may_fill_the_limit() -> None:
    assert decompress(compress(b"x" * LIMIT, 3), LIMIT) == b"x" * LIMIT
    with pytest.raises(ObjectTooLarge, match="1,048,577 bytes"):
        decompress(compress(b"x" * (LIMIT + 1), 3), LIMIT)


@pytest.mark.parametrize("length", [0, 1, 1 << 20, (1 << 32) - 1])
def test_a_lying_header_length_is_refused(length: int) -> None:
    header, frame = taken_apart(SAMPLES["blob"])
    data = planted(header, frame, length=length)
    with little_memory():
        refused(READERS["blob"][0], data)


# -- writing ---------------------------------------------------------------------------------------


def test_what_cannot_be_packed_is_refused() -> None:
    large = ("bytes", b"x" * (LIMIT + 1))
    half = ("bytes", b"x" * (LIMIT // 2 + 1))
    packs: list[Callable[[], bytes]] = [
        lambda: CODEC.blob("t", "", ID, "c", large),
        lambda: CODEC.checkpoint(replace(golden.ROOT, state=large)),
        lambda: CODEC.checkpoint(replace(golden.ROOT, values={"a": Value("1", half), "b": Value("1", half)})),
        lambda: CODEC.writes(replace(golden.WRITES, writes=[(0, "a", half), (1, "b", half)])),
        lambda: CODEC.history(HistoryPack("t", "", ID, {"a": ChannelHistory(half, [("task", half)])})),
    ]
    for pack in packs:
        with pytest.raises(ObjectTooLarge, match="max_object_bytes=1,048,576; nothing was stored"):
            pack()
    for version in ("\ud800", 1 << 64, object()):
        with pytest.raises(InvalidInput, match="cannot store a checkpoint"):
            CODEC.checkpoint(replace(golden.ROOT, values={"a": Value(version, half)}))  # type: ignore[arg-type]


def checkpoint_with(values: dict[str, Any]) -> Checkpoint:
    return {**empty_checkpoint(), "channel_values": values, "channel_versions": dict.fromkeys(values, "1")}


@pytest.mark.parametrize("values", [{"a": "x" * 1001}, dict.fromkeys("abcdefghijkl", "x" * 90)])
def test_nothing_is_stored_of_what_is_too_large(values: dict[str, str]) -> None:
    """Not even the blobs and the marker that would have gone first."""
    s3 = FakeS3()
    saver = S3Saver("bucket", "p", max_object_bytes=1000, inline_threshold=100)
    saver._driver = FakeDriver(s3)  # type: ignore[assignment]
    config: RunnableConfig = {"configurable": {"thread_id": "t", "checkpoint_id": ID}}
    blob = "".join(map(chr, range(256, 500)))  # stays large when compressed
    with pytest.raises(ObjectTooLarge, match="nothing was stored"):
        saver.put(
            config, checkpoint_with({"blob": blob, **values}), {"run_id": "r"}, dict.fromkeys(["blob", *values], "1")
        )
    with pytest.raises(ObjectTooLarge, match="nothing was stored"):
        saver.put_writes(config, list(values.items()), "task")
    assert len(s3) == 0
    saver.put_writes(config, [("a", "x" * 900)], "task")
    assert len(s3) == 1

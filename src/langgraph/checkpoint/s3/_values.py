"""The user's values, serialised by the user's serializer and by nothing else.

Ciphertext does not compress. So with LangGraph's own `EncryptedSerializer` we slip compression
between its inner serializer and its cipher; the type's name says so ("zstd:msgpack+aes").
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from typing import Any, TypeAlias, TypeVar

import zstandard
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

from langgraph.checkpoint.s3.errors import CorruptObject, ObjectTooLarge

T = TypeVar("T")

Typed: TypeAlias = tuple[str, bytes]
"""What `dumps_typed` returns: a type's name and bytes."""

_COMPRESSED = "zstd:"


FREE = 4
"""Contexts kept for the next use. A large one takes some megabytes, and more than a few are seldom at work at once."""

_compressors: defaultdict[int, deque[zstandard.ZstdCompressor]] = defaultdict(lambda: deque(maxlen=FREE))
_decompressors: deque[zstandard.ZstdDecompressor] = deque(maxlen=FREE)


@contextmanager
def _borrowed(free: deque[T], make: Callable[[], T]) -> Iterator[T]:
    """A context that nobody else uses meanwhile: making one takes longer than packing a kilobyte with it.

    One whose work was broken off is not used again.
    """
    try:
        it = free.pop()  # one step, so no two threads get the same
    except IndexError:
        it = make()
    yield it
    free.append(it)


def compress_to(target: BytesIO, parts: Sequence[bytes], level: int) -> None:
    """Append one zstd frame, of all parts together, that carries its content's size and checksum.

    Neither the parts nor the frame are ever copied as a whole.
    """

    def make() -> zstandard.ZstdCompressor:
        return zstandard.ZstdCompressor(level=level, write_checksum=True, write_content_size=True)

    size = sum(map(len, parts))
    with (
        _borrowed(_compressors[level], make) as compressor,
        compressor.stream_writer(target, size=size, closefd=False) as frame,
    ):
        for part in parts:
            _ = frame.write(part)


def compress(data: bytes, level: int) -> bytes:
    """One zstd frame that carries its content's size and checksum."""
    target = BytesIO()
    compress_to(target, [data], level)
    return target.getvalue()


def decompress(frame: bytes | memoryview, limit: int) -> bytes:
    """Unpack a frame made by `compress`, using memory for at most `limit` bytes.

    Raises:
        CorruptObject: not such a frame, or its content does not match its checksum.
        ObjectTooLarge: it says that it holds more than `limit` bytes.
    """
    try:
        told = zstandard.get_frame_parameters(frame)
        if told.content_size in (zstandard.CONTENTSIZE_UNKNOWN, zstandard.CONTENTSIZE_ERROR) or not told.has_checksum:
            raise CorruptObject("its compressed part has no size or no checksum")
        if told.content_size > limit:
            raise ObjectTooLarge(f"it unpacks to {told.content_size:,} bytes, more than the {limit:,} allowed")
        with _borrowed(_decompressors, zstandard.ZstdDecompressor) as decompressor:
            return decompressor.decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise CorruptObject(f"its compressed part is damaged ({error})") from None


class _CompressedSerializer(SerializerProtocol):
    """Compresses what an inner serializer makes, for use below a cipher."""

    def __init__(self, inner: SerializerProtocol, level: int, limit: int) -> None:
        self.inner, self.level, self.limit = inner, level, limit

    def dumps_typed(self, obj: Any) -> Typed:
        name, data = self.inner.dumps_typed(obj)
        return f"{_COMPRESSED}{name}", compress(data, self.level)

    def loads_typed(self, data: Typed) -> Any:
        name, content = data
        if not name.startswith(_COMPRESSED):
            return self.inner.loads_typed(data)
        return self.inner.loads_typed((name.removeprefix(_COMPRESSED), decompress(content, self.limit)))


def compressing(serde: SerializerProtocol, level: int, limit: int) -> SerializerProtocol:
    """The serializer to use in the place of `serde`: itself, or with compression below its cipher."""
    plainly_encrypted = (
        isinstance(serde, EncryptedSerializer)
        and type(serde).dumps_typed is EncryptedSerializer.dumps_typed
        and type(serde).loads_typed is EncryptedSerializer.loads_typed
    )
    if not plainly_encrypted:
        return serde
    assert isinstance(serde, EncryptedSerializer)
    return EncryptedSerializer(serde.cipher, _CompressedSerializer(serde.serde, level, limit))

"""Values: the user's serializer alone touches them, and what it encrypts was compressed before."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, CheckpointTuple, empty_checkpoint
from langgraph.checkpoint.serde.base import CipherProtocol, SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from langgraph.checkpoint.s3 import S3Saver
from langgraph.checkpoint.s3._values import compress, compressing, decompress
from langgraph.checkpoint.s3.errors import CorruptObject, ObjectTooLarge
from tests.support.fake_s3 import FakeDriver, FakeS3

LIMIT = 1 << 20
CONFIG: RunnableConfig = {"configurable": {"thread_id": "t"}}


def aes(key: bytes = b"k" * 16, serde: SerializerProtocol | None = None) -> EncryptedSerializer:
    return EncryptedSerializer.from_pycryptodome_aes(serde or JsonPlusSerializer(), key=key)


def make_saver(s3: FakeS3, serde: Any = None, **options: Any) -> S3Saver:
    saver = S3Saver("bucket", "p", serde=serde, **options)
    saver._driver = FakeDriver(s3)  # type: ignore[assignment]
    return saver


def put(saver: S3Saver, values: dict[str, Any], *, writes: dict[str, Any] | None = None, **metadata: Any) -> None:
    versions: dict[str, str | int | float] = dict.fromkeys(values, "1")
    checkpoint: Checkpoint = {**empty_checkpoint(), "channel_values": values, "channel_versions": versions}
    config = saver.put(CONFIG, checkpoint, metadata, versions)  # type: ignore[arg-type]
    saver.put_writes(config, list((writes or {}).items()), "task")


def read(saver: S3Saver) -> CheckpointTuple:
    found = saver.get_tuple(CONFIG)
    assert found is not None
    return found


# -- compression -----------------------------------------------------------------------------------


@given(st.binary(max_size=2000), st.integers(1, 22))
def test_compression_is_undone(data: bytes, level: int) -> None:
    assert decompress(compress(data, level), len(data)) == data


def test_a_frame_of_another_sort_is_refused() -> None:
    with pytest.raises(CorruptObject, match="damaged"):
        decompress(b"", LIMIT)
    with pytest.raises(CorruptObject, match="damaged"):
        decompress(b"plain", LIMIT)
    with pytest.raises(ObjectTooLarge):
        decompress(compress(b"xx", 3), 1)


@given(st.recursive(st.none() | st.integers(-9, 9) | st.text() | st.binary(), lambda it: st.lists(it, max_size=4)))
def test_compression_below_a_cipher_is_undone(value: Any) -> None:
    expected = aes().dumps_typed(value)
    serde = compressing(aes(), 3, LIMIT)
    name, data = serde.dumps_typed(value)
    assert name == f"zstd:{expected[0]}"
    assert serde.loads_typed((name, data)) == aes().loads_typed(expected)
    assert serde.loads_typed(expected) == aes().loads_typed(expected)  # written without compression


def test_a_bomb_below_a_cipher_does_not_go_off() -> None:
    """A key that leaked, or a saver with a higher limit."""
    written = compressing(aes(), 3, 1 << 30).dumps_typed(b"\0" * (LIMIT + 1))
    assert len(written[1]) < 1000
    with pytest.raises(ObjectTooLarge):
        compressing(aes(), 3, LIMIT).loads_typed(written)


# -- encryption ------------------------------------------------------------------------------------

SECRET = "the quick brown fox jumps over the lazy dog "


def unpacked(data: bytes) -> bytes:
    """The body of an object, which the compression of the whole object might make hard to recognise."""
    return decompress(data[data.index(b"\x28\xb5\x2f\xfd") :], LIMIT)


@pytest.mark.parametrize("threshold", [0, 1 << 20])
def test_encrypted_values_are_small_and_secret(threshold: int) -> None:
    s3 = FakeS3()
    saver = make_saver(s3, aes(), inline_threshold=threshold)
    large = SECRET * 10_000
    put(saver, {"doc": large, "list": [large, {SECRET: 1}]}, writes={"c": large, "__interrupt__": SECRET}, note=SECRET)
    keys = s3.keys()
    assert sum(map(s3.size, keys)) < len(large) / 50
    for key in keys:
        for words in SECRET, SECRET[:9], "note", "channel_versions":
            assert words.encode() not in s3[key] + unpacked(s3[key]), key
            assert words not in key
    found = read(saver)
    assert found.checkpoint["channel_values"] == {"doc": large, "list": [large, {SECRET: 1}]}
    assert found.metadata["note"] == SECRET  # type: ignore[typeddict-item]
    assert found.pending_writes == [("task", "__interrupt__", SECRET), ("task", "c", large)]


@pytest.mark.parametrize("threshold", [0, 1 << 20])
def test_a_wrong_key_is_an_error(threshold: int) -> None:
    s3 = FakeS3()
    put(make_saver(s3, aes(), inline_threshold=threshold), {"doc": SECRET}, writes={"c": SECRET}, note="n")
    other = make_saver(s3, aes(b"z" * 16))
    with pytest.raises(ValueError, match="MAC"):
        other.get_tuple(CONFIG)
    with pytest.raises(ValueError, match="MAC"):
        list(other.list(CONFIG))
    with pytest.raises(ValueError, match="MAC"):
        list(other.list(CONFIG, filter={"note": "n"}))


def test_the_serializer_may_be_replaced() -> None:
    s3 = FakeS3()
    saver = make_saver(s3)
    put(saver, {"doc": SECRET}, writes={"c": SECRET}, note="plain")
    plain = read(saver)
    saver.serde = aes()
    assert read(saver) == plain
    put(saver, {"doc": SECRET * 2}, note="encrypted")
    assert [it.metadata["note"] for it in saver.list(CONFIG)] == ["encrypted", "plain"]  # type: ignore[typeddict-item]
    saver.serde = JsonPlusSerializer()
    with pytest.raises(NotImplementedError, match="zstd:msgpack\\+aes"):
        saver.get_tuple(CONFIG)


class Reversing(CipherProtocol):
    """A cipher that is easy to see through."""

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "reversed", plaintext[::-1]

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        assert ciphername == "reversed"
        return ciphertext[::-1]


class Overriding(EncryptedSerializer):
    """Encrypts in its own way; what it does inside is its own business."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        name, data = super().dumps_typed(obj)
        return f"{name}+mine", data

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        return super().loads_typed((data[0].removesuffix("+mine"), data[1]))


class Inheriting(EncryptedSerializer):
    """Overrides nothing that matters."""

    label = "mine"


def test_a_subclass_with_its_own_way_is_left_alone() -> None:
    serde = Overriding(Reversing())
    assert compressing(serde, 3, LIMIT) is serde
    saver = make_saver(FakeS3(), serde)
    put(saver, {"doc": SECRET}, writes={"c": SECRET}, note="n")
    assert read(saver).checkpoint["channel_values"] == {"doc": SECRET}


def test_a_subclass_without_one_is_compressed() -> None:
    name, data = compressing(Inheriting(Reversing()), 3, LIMIT).dumps_typed(SECRET * 100)
    assert name == "zstd:msgpack+reversed"
    assert len(data) < 200


# -- other serializers -----------------------------------------------------------------------------


class Json:
    """A SerializerProtocol that has nothing of LangGraph's."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        return "json/é+x", json.dumps(obj).encode()

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        assert data[0] == "json/é+x"
        return json.loads(data[1])


class Untyped:
    """The old protocol, without types."""

    def dumps(self, obj: Any) -> bytes:
        return pickle.dumps(obj)

    def loads(self, data: bytes) -> Any:
        return pickle.loads(data)


@pytest.mark.parametrize("serde", [Json(), Untyped(), pickle, aes(serde=JsonPlusSerializer(pickle_fallback=True))])
@pytest.mark.parametrize("threshold", [0, 1 << 20])
def test_any_serializer_will_do(serde: Any, threshold: int) -> None:
    saver = make_saver(FakeS3(), serde, inline_threshold=threshold)
    values = {"doc": SECRET * 10, "none": None, "list": [1, {"a": []}]}
    put(saver, values, writes={"c": values, "n": None}, note="n")
    found = read(saver)
    assert found.checkpoint["channel_values"] == values
    assert found.pending_writes == [("task", "c", values), ("task", "n", None)]
    assert len(list(saver.list(CONFIG, filter={"note": "n"}))) == 1


def local_function() -> None:
    """Cannot be written as msgpack, but can be pickled by its name."""


def test_pickle_only_if_asked_for() -> None:
    s3 = FakeS3()
    with pytest.raises(TypeError):
        put(make_saver(s3), {"f": local_function})
    assert len(s3) == 0
    saver = make_saver(s3, JsonPlusSerializer(pickle_fallback=True))
    put(saver, {"f": local_function})
    assert read(saver).checkpoint["channel_values"]["f"] is local_function


@dataclass(frozen=True)
class Allowed:
    """A type of the user's, which is read only if it is allowed."""

    text: str


@pytest.mark.parametrize("wrap", [lambda serde: serde, lambda serde: aes(serde=serde)], ids=["plain", "encrypted"])
def test_a_clone_with_an_allowlist(wrap: Callable[[SerializerProtocol], SerializerProtocol]) -> None:
    """LangGraph makes such clones of the saver it is given; they are the same saver in all but that."""
    saver = make_saver(FakeS3(), wrap(JsonPlusSerializer(allowed_msgpack_modules=None)))
    allowed = ("decimal", "Decimal"), (Allowed.__module__, "Allowed")
    clone = saver.with_allowlist(allowed)
    assert isinstance(clone, S3Saver)
    assert clone is not saver
    assert clone._driver is saver._driver
    assert clone._memory is saver._memory
    put(clone, {"it": Allowed(text="x"), "number": Decimal("1.5")})
    assert read(clone).checkpoint["channel_values"] == {"it": Allowed(text="x"), "number": Decimal("1.5")}
    blocked = read(saver).checkpoint["channel_values"]["it"]
    assert not isinstance(blocked, Allowed)
    assert saver.with_allowlist(()) is saver

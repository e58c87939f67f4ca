"""Whatever is wrong with a call or with the bucket: a clear error, an unchanged bucket, never an empty answer."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from botocore.exceptions import ClientError, NoCredentialsError
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, empty_checkpoint

from langgraph.checkpoint.s3 import S3Saver
from langgraph.checkpoint.s3._keys import encode_id, namespace
from langgraph.checkpoint.s3._objects import Codec
from langgraph.checkpoint.s3._requests import GetLifecycle, List
from langgraph.checkpoint.s3.errors import (
    AccessDenied,
    BucketNotFound,
    CorruptObject,
    InvalidInput,
    MissingObject,
    ObjectTooLarge,
    S3SaverError,
    StorageError,
    UnsupportedFormat,
)
from tests.golden import make_v1 as golden
from tests.support.drivers import Scripted
from tests.support.fake_s3 import FakeDriver, FakeS3

IDS = [f"1f0a5b6c-0d1e-6f2a-8003-00000000000{n}" for n in range(10)]
LARGE = "".join(map(chr, range(0x4E00, 0x4E00 + 400)))  # stays large when compressed
LATEST: RunnableConfig = {"configurable": {"thread_id": "t"}}


T = TypeVar("T")


def make_saver(s3: FakeS3, **options: Any) -> S3Saver:
    saver = S3Saver("bucket", "p", inline_threshold=200, **options)
    saver._driver = FakeDriver(s3)  # type: ignore[assignment]
    return saver


def at(id: object, thread: object = "t", ns: object = "") -> RunnableConfig:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ns, "checkpoint_id": id}}


def checkpoint(id: str, values: Mapping[str, Any], versions: Mapping[str, str | int | float]) -> Checkpoint:
    return {**empty_checkpoint(), "id": id, "channel_values": dict(values), "channel_versions": dict(versions)}


def put(saver: S3Saver, number: int, values: Mapping[str, Any], new: Sequence[str], depth: int, thread: str) -> None:
    """Store checkpoint `number` as the child of the one before; the delta channel "log" reaches `depth` back."""
    config: RunnableConfig = at(IDS[number - 1] if number else None, thread)
    metadata: Any = {"step": number, "run_id": "late" if number == 6 else "early"}
    if depth:
        metadata["counters_since_delta_snapshot"] = {"log": [depth, depth]}
    versions = dict.fromkeys(values, "1")
    saver.put(config, checkpoint(IDS[number], values, versions), metadata, dict.fromkeys(new, "1"))


def fill(s3: FakeS3) -> None:
    """A thread with an object of every kind: pruned once, so with a history and a fence, and grown since."""
    saver = make_saver(s3)
    put(saver, 0, {"doc": LARGE, "log": ["seed"]}, ["doc", "log"], 0, "t")
    for number in range(1, 8):
        saver.put_writes(at(IDS[number - 1]), [("log", [number]), ("doc", number)], f"task{number}")
        put(saver, number, {"doc": LARGE, "n": number}, ["n"], number, "t")
        if number == 4:
            saver.prune(["t"])
    saver.put_writes(at(IDS[7]), [("log", [8])], "task8")
    put(saver, 0, {"doc": LARGE}, ["doc"], 0, "bystander")


@pytest.fixture(scope="module")
def filled() -> FakeS3:
    s3 = FakeS3()
    fill(s3)
    return s3


READS: dict[str, Callable[[S3Saver], Any]] = {
    "get_tuple": lambda saver: saver.get_tuple(LATEST),
    "get_tuple by id": lambda saver: saver.get_tuple(at(IDS[5])),
    "list": lambda saver: list(saver.list({"configurable": {"thread_id": "t", "checkpoint_ns": ""}})),
    "list thread": lambda saver: list(saver.list(LATEST, filter={"step": 7}, limit=2)),
    "list all": lambda saver: list(saver.list(None)),
    "list one": lambda saver: list(saver.list(at(IDS[5]))),
    "list before": lambda saver: list(saver.list(LATEST, before=at(IDS[6]))),
    "history": lambda saver: saver.get_delta_channel_history(config=LATEST, channels=["log"]),
    "history by id": lambda saver: saver.get_delta_channel_history(config=at(IDS[7]), channels=["log", "doc"]),
}
WRITES: dict[str, Callable[[S3Saver], Any]] = {
    "put": lambda saver: put(saver, 8, {"doc": LARGE, "new": LARGE[::-1]}, ["new"], 8, "t"),
    "put_writes": lambda saver: saver.put_writes(at(IDS[7]), [("log", [9])], "task9"),
    "put_writes again": lambda saver: saver.put_writes(at(IDS[7]), [("log", [8]), ("doc", 1)], "task8"),
    "delete_thread": lambda saver: saver.delete_thread("t"),
    "delete_for_runs": lambda saver: saver.delete_for_runs(["late"]),
    "copy_thread": lambda saver: saver.copy_thread("t", "fork"),
    "prune": lambda saver: saver.prune(["t", "bystander"]),
}
OPERATIONS = {**READS, **WRITES}


def attempt(call: Callable[..., T], *arguments: Any) -> T | S3SaverError:
    """What a call answers, or the error that it ends with."""
    try:
        return call(*arguments)
    except S3SaverError as error:
        return error


# -- the caller's mistakes -------------------------------------------------------------------------


@pytest.fixture
def s3(filled: FakeS3) -> Iterator[FakeS3]:
    """A filled bucket that has to stay as it is."""
    s3 = filled.copy()
    before = s3.snapshot()
    yield s3
    assert s3.snapshot() == before
    assert not any(type(request).__name__ in ("Put", "Delete", "Copy") for request in s3.log)


def calls(saver: S3Saver, config: RunnableConfig) -> dict[str, Callable[[], Any]]:
    """Every method that takes a config, with this one."""
    it = checkpoint(IDS[9], {"a": LARGE}, {"a": "1"})
    return {
        "get_tuple": lambda: saver.get_tuple(config),
        "get": lambda: saver.get(config),
        "list": lambda: list(saver.list(config)),
        "put": lambda: saver.put(config, it, {"run_id": "r"}, {"a": "1"}),
        "put_writes": lambda: saver.put_writes(config, [("a", 1)], "task"),
        "history": lambda: saver.get_delta_channel_history(config=config, channels=["log"]),
    }


METHODS = ["get_tuple", "get", "list", "put", "put_writes", "history"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "config", [{}, {"configurable": {}}, at(IDS[0], thread=None), {"metadata": {"thread_id": "t"}}]
)
def test_a_config_without_thread_is_refused(s3: FakeS3, method: str, config: RunnableConfig) -> None:
    with pytest.raises(InvalidInput, match="thread_id"):
        calls(make_saver(s3), config)[method]()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("bad", [b"t", bytearray(b"t"), ["t"], ("t",), {"t"}, {"t": 1}, [], 1.5, True])
def test_ids_that_are_no_text_are_refused(s3: FakeS3, method: str, bad: object) -> None:
    with pytest.raises(InvalidInput, match="thread_id is a"):
        calls(make_saver(s3), at(IDS[0], thread=bad))[method]()
    if bad:
        with pytest.raises(InvalidInput, match="checkpoint_id is a"):
            calls(make_saver(s3), at(bad))[method]()
        with pytest.raises(InvalidInput, match="checkpoint_ns is a"):
            calls(make_saver(s3), at(IDS[0], ns=bad))[method]()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("config", [at(IDS[0], thread="\ud800"), at("\udfff"), at(IDS[0], ns="a\ud800b")])
def test_lone_surrogates_in_ids_are_refused(s3: FakeS3, method: str, config: RunnableConfig) -> None:
    with pytest.raises(InvalidInput, match="surrogates"):
        calls(make_saver(s3), config)[method]()


@pytest.mark.parametrize(
    "method", [method for method in METHODS if method != "put"]
)  # there it is only the parent's name
@pytest.mark.parametrize("id", ["x" * 129, "é" * 40])
def test_an_overlong_checkpoint_id_is_refused(s3: FakeS3, method: str, id: str) -> None:
    with pytest.raises(InvalidInput, match="longer than 128"):
        calls(make_saver(s3), at(id))[method]()


@pytest.mark.parametrize("bad", [None, b"t", ["t"], 1.5, "\ud800"])
def test_thread_and_run_ids_are_checked(s3: FakeS3, bad: Any) -> None:
    saver = make_saver(s3)
    refused: list[Callable[[], None]] = [
        lambda: saver.delete_thread(bad),
        lambda: saver.copy_thread(bad, "u"),
        lambda: saver.copy_thread("t", bad),
        lambda: saver.prune([bad]),
        lambda: saver.prune([bad], strategy="delete"),
        lambda: saver.delete_for_runs([bad]),
    ]
    for call in refused:
        with pytest.raises(InvalidInput, match=r"thread_id|run_id|surrogates"):
            call()


def test_lists_of_ids_are_lists(s3: FakeS3) -> None:
    saver = make_saver(s3)
    for bad in ("t", b"t"):
        with pytest.raises(InvalidInput, match="thread_ids is a single"):
            saver.prune(bad)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="run_ids is a single"):
            saver.delete_for_runs(bad)  # type: ignore[arg-type]
    saver.prune([])
    saver.delete_for_runs([])


@pytest.mark.parametrize("strategy", ["", "keep", "KEEP_LATEST", "all", None])
def test_an_unknown_strategy_is_refused(s3: FakeS3, strategy: Any) -> None:
    with pytest.raises(InvalidInput, match=r"strategy .*'keep_latest', 'delete'"):
        make_saver(s3).prune(["t"], strategy=strategy)


@pytest.mark.parametrize("limit", ["2", 2.0, b"2"])
def test_a_limit_is_a_whole_number(s3: FakeS3, limit: Any) -> None:
    with pytest.raises(InvalidInput, match="limit has to be a whole number"):
        list(make_saver(s3).list(LATEST, limit=limit))


@pytest.mark.parametrize("config", [LATEST, at(None), at("")])
def test_writes_belong_to_a_checkpoint(s3: FakeS3, config: RunnableConfig) -> None:
    with pytest.raises(InvalidInput, match="checkpoint_id"):
        make_saver(s3).put_writes(config, [("a", 1)], "task")


def test_lone_surrogates_in_names_are_refused(s3: FakeS3) -> None:
    """In a value they are the serializer's business."""
    saver, bad = make_saver(s3), "a\ud800"
    for content in (1, LARGE):
        with pytest.raises((InvalidInput, TypeError)):  # channels' names are also in what the serializer is given
            saver.put(at(None), checkpoint(IDS[9], {bad: content}, {bad: "1"}), {}, {bad: "1"})
        with pytest.raises(InvalidInput):
            saver.put_writes(at(IDS[7]), [(bad, content)], "task")
    with pytest.raises(InvalidInput):
        saver.put(at(None), checkpoint(IDS[9], {"a": LARGE}, {"a": "1"}), {"run_id": bad}, {"a": "1"})
    for task, path in ((bad, ""), ("task", bad)):
        with pytest.raises(InvalidInput):
            saver.put_writes(at(IDS[7]), [("a", 1)], task, path)


@pytest.mark.parametrize("id", ["", None, b"x", ["x"], "x" * 129, "\ud800"])
def test_a_checkpoint_without_a_proper_id_is_refused(s3: FakeS3, id: Any) -> None:
    with pytest.raises(InvalidInput, match=r"checkpoint|surrogates"):
        make_saver(s3).put(LATEST, checkpoint(id, {"a": LARGE}, {"a": "1"}), {}, {"a": "1"})


def test_values_that_cannot_be_serialised_are_refused(s3: FakeS3) -> None:
    saver = make_saver(s3)
    versions: dict[str, str | int | float] = {"a": "1", "b": "1"}
    with pytest.raises(TypeError, match=r"^channel 'b' of thread 't' cannot be stored \(.*function\); keep it out"):
        saver.put(LATEST, checkpoint(IDS[9], {"a": LARGE, "b": make_saver}, versions), {}, versions)
    metadata: Any = {"tool": make_saver}
    with pytest.raises(TypeError, match=r"^the metadata of a checkpoint of thread 't' cannot be stored"):
        saver.put(LATEST, checkpoint(IDS[9], {"a": LARGE}, {"a": "1"}), metadata, {"a": "1"})
    with pytest.raises(TypeError, match=r"^the write to channel 'b' of thread 't' cannot be stored"):
        saver.put_writes(at(IDS[7]), [("a", LARGE), ("b", make_saver)], "task")


@pytest.mark.parametrize("thread", [42, 0, uuid.UUID(IDS[0])])
def test_ids_that_have_a_text_are_taken_by_it(thread: Any) -> None:
    saver = make_saver(FakeS3())
    id = uuid.UUID(IDS[0])
    stored = saver.put(at(None, thread), checkpoint(IDS[0], {"a": 1}, {"a": "1"}), {}, {"a": "1"})
    assert stored == at(IDS[0], str(thread))
    saver.put_writes(at(id, thread), [("a", 2)], "task")
    for config in (at(None, thread), at(None, str(thread)), at(id, thread), at(IDS[0], str(thread))):
        found = saver.get_tuple(config)
        assert found is not None
        assert found.config == stored
        assert found.pending_writes == [("task", "a", 2)]
    assert [it.config for it in saver.list({"configurable": {"thread_id": thread}})] == [stored]
    assert list(saver.list(at(None, thread), before={"configurable": {"checkpoint_id": id}})) == []
    saver.copy_thread(thread, "fork")
    saver.prune([thread])
    saver.delete_thread(thread)
    assert [it.config for it in saver.list(None)] == [at(IDS[0], "fork")]


# -- options ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("bucket", ["", "a/b", "/", "bucket/", "a b", "b:1", "arn:aws:s3:::b", "é", "b\n", 5, None])
def test_strange_buckets_are_refused(bucket: Any) -> None:
    with pytest.raises(InvalidInput, match="bucket"):
        S3Saver(bucket)


@pytest.mark.parametrize("prefix", ["a//b", ".", "a/../b", "x" * 201, "\ud800", None, b"p", ["p"]])
def test_strange_prefixes_are_refused(prefix: Any) -> None:
    with pytest.raises(InvalidInput, match="prefix"):
        S3Saver("bucket", prefix)


@pytest.mark.parametrize(
    "options",
    [
        {"inline_threshold": -1},
        {"inline_threshold": "1"},
        {"max_object_bytes": 0},
        {"max_object_bytes": 1.5},
        {"compression_level": "3"},
        {"max_concurrency": "8"},
        {"max_object_bytes": -1},
        {"compression_level": 0},
        {"compression_level": 23},
        {"max_concurrency": 0},
        {"addressing_style": "auto!"},
        {"put_object_args": {"Body": b""}},
        {"put_object_args": {"Metadata": {"a": "b"}}},
        {"put_object_args": {"IfNoneMatch": "*"}},
    ],
)
def test_bad_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        S3Saver("bucket", **options)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "bucket",
        "bucket/prefix",
        "s3:bucket",
        "s3://",
        "s3:///prefix",
        "https://bucket/prefix",
        "s3://bucket/p#x",
        "s3://bucket/p?serde=x",
        "s3://bucket/p?region=eu-west-1",
        "s3://bucket/a//b",
        "s3://bucket/../p",
        None,
        5,
    ],
)
def test_bad_connection_strings_are_refused(text: Any) -> None:
    with pytest.raises(InvalidInput), S3Saver.from_conn_string(text):
        pass


@pytest.mark.parametrize(
    "text",
    [
        "s3://key:secret@bucket/p",
        "s3://secret@bucket",
        "s3://bucket:9000/p",
        "s3://key:se/cret@bucket",
        "s3://key:se#cret@bucket",
        "postgresql://user:secret@host/db",
    ],
)
def test_a_password_in_a_connection_string_is_refused_and_not_told(text: str) -> None:
    with pytest.raises(InvalidInput, match="connection string") as caught, S3Saver.from_conn_string(text):
        pass
    assert not any(part in str(caught.value) for part in ("secret", "cret", "9000"))


@pytest.mark.parametrize(
    ("text", "prefix"),
    [
        ("s3://bucket", ""),
        ("s3://bucket/", ""),
        ("s3://bucket/a/b/", "a/b"),
        ("s3://bucket/a?region_name=eu-west-1", "a"),
    ],
)
def test_connection_strings_are_read(text: str, prefix: str) -> None:
    with S3Saver.from_conn_string(text, manifest=False) as saver:
        assert (saver.bucket, saver.prefix) == ("bucket", prefix)
        assert saver._manifest == "never"


# -- what S3 says ----------------------------------------------------------------------------------


class Refusing:
    """A boto3 client to whom S3 always says the same."""

    def __init__(self, error: Exception) -> None:
        self.meta = SimpleNamespace(region_name="eu-west-1")
        self.calls = 0
        self._error = error

    def __getattr__(self, method: str) -> Callable[..., Any]:
        def call(**_: Any) -> Any:
            self.calls += 1
            raise self._error

        return call


def client_error(code: str, status: int) -> ClientError:
    return ClientError(
        {"Error": {"Code": code, "Message": "m"}, "ResponseMetadata": {"HTTPStatusCode": status, "RequestId": "1"}},  # type: ignore[typeddict-item]
        "Any",
    )


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (client_error("NoSuchBucket", 404), BucketNotFound),
        (client_error("AccessDenied", 403), AccessDenied),
        (client_error("InvalidAccessKeyId", 403), AccessDenied),
        (client_error("SignatureDoesNotMatch", 403), AccessDenied),
        (client_error("ExpiredToken", 400), AccessDenied),
        (client_error("403", 403), AccessDenied),
        (NoCredentialsError(), AccessDenied),
        (client_error("SlowDown", 503), StorageError),
        (client_error("InternalError", 500), StorageError),
        (client_error("PermanentRedirect", 301), StorageError),
    ],
)
@pytest.mark.parametrize("name", [*OPERATIONS, "setup", "setup create"])
def test_what_s3_refuses_is_an_error(name: str, error: Exception, kind: type[StorageError]) -> None:
    client = Refusing(error)
    setups: dict[str, Callable[[S3Saver], Any]] = {
        "setup": lambda saver: saver.setup(),
        "setup create": lambda saver: saver.setup(create_bucket=True),
    }
    with S3Saver("bucket", "p", client=client) as saver:
        with pytest.raises(kind, match=r"s3://bucket|bucket 'bucket'") as caught:
            {**OPERATIONS, **setups}[name](saver)
        assert type(caught.value) is kind or kind is BucketNotFound
        assert client.calls > 0


def test_setup_tells_of_a_missing_bucket() -> None:
    s3 = FakeS3(exists=False)
    saver = make_saver(s3)
    with pytest.raises(BucketNotFound):
        saver.setup()
    assert not s3.exists
    for call in OPERATIONS.values():
        with pytest.raises(BucketNotFound):
            call(saver)
    saver.setup(create_bucket=True)
    saver.setup()
    assert s3.exists


def test_setup_lists_one_key_below_the_prefix_and_reads_the_lifecycle(filled: FakeS3) -> None:
    """The list is all that a policy for the prefix allows, and more than a server gives that is not S3."""
    s3 = filled.copy()
    saver = make_saver(s3)
    saver.setup()
    saver.setup(create_bucket=True)
    assert s3.log == [List("p/", max_keys=1), GetLifecycle()] * 2


@pytest.mark.parametrize("answer", [{}, {"ResponseMetadata": {"HTTPStatusCode": 200}}])
def test_setup_is_not_content_with_any_answer(answer: dict[str, Any]) -> None:
    with (
        S3Saver("bucket", "p", client=Scripted(answer)) as saver,
        pytest.raises(StorageError, match=r"ListObjectsV2 s3://bucket/p/: .*check endpoint"),
    ):
        saver.setup(create_bucket=True)


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_failed_request_is_never_an_answer(filled: FakeS3, name: str) -> None:
    """Whichever request it is: an error, and not an empty or a shorter answer."""
    for order in ("forward", "backward"):
        n = 0
        while True:
            n += 1
            s3 = filled.copy()
            before = s3.snapshot()
            saver = make_saver(s3)
            saver._driver = driver = FakeDriver(s3, order=order)  # type: ignore[assignment]
            error = StorageError(f"no luck with request {n}")
            driver.fail_before(n, error)
            raised = attempt(OPERATIONS[name], saver)
            if driver.applied < n:  # there is no such request
                break
            assert raised is error
            if name in READS:
                assert s3.snapshot() == before
        assert n > 1


# -- what lies in the bucket -----------------------------------------------------------------------


def damage(data: bytes) -> Iterator[tuple[bytes, type[CorruptObject]]]:
    middle = len(data) // 2
    yield data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :], CorruptObject
    yield data[:-1] + bytes([data[-1] ^ 0x80]), CorruptObject
    yield data[:-1], CorruptObject
    yield data[:20], CorruptObject
    yield b"", CorruptObject
    yield data + b"\n", CorruptObject
    yield b'{"not": "ours"}', CorruptObject
    yield data[:4] + b"\x02" + data[5:], UnsupportedFormat


def sort_of(key: str) -> str:
    return next(sort for sort in ("checkpoint", "/blob/", "/writes/", "history", "fence", "latest") if sort in key)


def outcome(call: Callable[[S3Saver], Any], s3: FakeS3) -> Any:
    """What a call answers and leaves behind; the contents of what it wrote, as far as time has no part in them."""
    saver = make_saver(s3)
    saver._clock, saver._random = (lambda: 10**18), (lambda: 0.5)
    answer = call(saver)
    return answer, s3.keys()


def test_the_bucket_holds_every_kind(filled: FakeS3) -> None:
    kinds = {sort_of(key) for key in filled.keys("p/t/")}
    assert kinds == {"checkpoint", "/blob/", "/writes/", "history", "fence", "latest"}


@pytest.mark.parametrize("name", OPERATIONS)
def test_damage_is_an_error_that_names_the_object(filled: FakeS3, name: str) -> None:
    """The damaged object is either not needed, and the answer is the same as ever, or named by the error."""
    call = OPERATIONS[name]
    whole = outcome(call, filled.copy())
    noticed = set()
    for key in filled.keys("p/t/"):
        for data, kind in damage(filled[key]):
            s3 = filled.copy()
            s3[key] = data
            before = s3.snapshot()
            answer = attempt(outcome, call, s3)
            if not isinstance(answer, S3SaverError):
                assert answer == whole, key
                continue
            # A prune does not read large values, only their sizes.
            assert type(answer) is (CorruptObject if (name, sort_of(key)) == ("prune", "/blob/") else kind)
            assert f"s3://bucket/{key}: " in str(answer)
            noticed.add(sort_of(key))
            if name in ("put", "prune", "delete_for_runs"):
                assert set(s3.keys()) >= set(before.objects)  # nothing was deleted
            else:
                assert s3.snapshot() == before
    assert noticed == NEEDED[name]


NEEDED: dict[str, set[str]] = {
    "get_tuple": {"checkpoint", "/blob/", "/writes/"},
    "get_tuple by id": {"checkpoint", "/blob/", "/writes/"},
    "list": {"checkpoint", "/blob/", "/writes/"},
    "list thread": {"checkpoint", "/blob/", "/writes/"},
    "list all": {"checkpoint", "/blob/", "/writes/"},
    "list one": {"checkpoint", "/blob/", "/writes/"},
    "list before": {"checkpoint", "/blob/", "/writes/"},
    "history": {"checkpoint", "/writes/", "history"},
    "history by id": {"checkpoint", "/blob/", "/writes/", "history"},
    "put": {"checkpoint", "fence"},
    "put_writes": set(),
    "put_writes again": {"/writes/"},
    "delete_thread": set(),
    "delete_for_runs": {"checkpoint", "/writes/", "history", "fence"},
    "copy_thread": set(),
    "prune": {"checkpoint", "/blob/", "/writes/", "fence", "history"},
}


@pytest.mark.parametrize("name", READS)
def test_a_damaged_manifest_costs_a_round_trip_and_nothing_else(filled: FakeS3, name: str) -> None:
    whole = READS[name](make_saver(filled.copy()))
    elsewhere = filled["p/bystander/_/latest"]
    for data in [data for data, _ in damage(filled["p/t/_/latest"])] + [elsewhere, b"x" * 10_000]:
        s3 = filled.copy()
        s3["p/t/_/latest"] = data
        assert READS[name](make_saver(s3)) == whole
        del s3["p/t/_/latest"]
        assert READS[name](make_saver(s3)) == whole


def test_a_missing_value_is_named(filled: FakeS3) -> None:
    (blob,) = [key for key in filled.keys("p/t/") if "/blob/" in key]
    for name in ("get_tuple", "get_tuple by id", "list", "list all", "list one"):
        s3 = filled.copy()
        del s3[blob]
        before = s3.snapshot()
        with pytest.raises(MissingObject, match="is missing") as caught:
            READS[name](make_saver(s3))
        assert f"s3://bucket/{blob} " in str(caught.value)
        assert s3.snapshot() == before


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("history", 5),
        ("history", 6),
        ("history by id", 5),
        ("history by id", 6),
        ("prune", 5),
        ("prune", 6),
    ],
)
def test_a_missing_ancestor_is_named(filled: FakeS3, name: str, number: int) -> None:
    s3 = filled.copy()
    key = namespace("p/", "t", "").checkpoint(IDS[number])
    del s3[key]
    before = s3.snapshot()
    with pytest.raises(MissingObject) as caught:
        OPERATIONS[name](make_saver(s3))
    assert f"s3://bucket/{key} " in str(caught.value)
    assert s3.snapshot() == before


def test_without_its_newest_checkpoint_a_thread_goes_on_from_the_one_before(filled: FakeS3) -> None:
    """What docs/operations.md tells to do with a thread that cannot be read."""
    s3 = filled.copy()
    for key in s3.keys(namespace("p/", "t", "").folder(IDS[7])):
        del s3[key]
    saver = make_saver(s3)
    before = make_saver(filled.copy()).list(LATEST, before=at(IDS[7]))
    found = saver.get_tuple(LATEST)
    assert found is not None
    assert found == next(before)
    put(saver, 7, {"doc": LARGE, "n": 7}, ["n"], 7, "t")
    saver.prune(["t"])
    assert [it.config for it in saver.list(LATEST)] == [at(IDS[7])]
    assert saver.get_delta_channel_history(config=LATEST, channels=["log"])["log"]["writes"]


@pytest.mark.parametrize("name", ["get_tuple", "list"])
def test_without_a_damaged_write_batch_its_checkpoint_is_whole(filled: FakeS3, name: str) -> None:
    s3 = filled.copy()
    (batch,) = s3.keys(namespace("p/", "t", "").writes(IDS[7]))
    s3[batch] = b"damaged"
    with pytest.raises(CorruptObject, match=r"docs/operations\.md"):
        READS[name](make_saver(s3))
    del s3[batch]
    assert READS["get_tuple"](make_saver(s3)) == READS["get_tuple"](make_saver(filled.copy()))._replace(
        pending_writes=[]
    )


def test_a_manifest_too_large_to_read_does_not_matter(filled: FakeS3) -> None:
    """A saver with a higher limit left it, and the checkpoint it is a copy of is no longer the newest."""
    s3 = filled.copy()
    large = replace(golden.ROOT, state=("bytes", b"x" * 10_000))
    s3["p/t/_/latest"] = Codec("bucket", 3, 1 << 30).checkpoint(large)
    assert READS["get_tuple"](make_saver(s3, max_object_bytes=5_000)) == READS["get_tuple"](make_saver(filled.copy()))


def test_a_value_too_large_to_read_is_named(filled: FakeS3) -> None:
    s3 = filled.copy()
    small = make_saver(s3, max_object_bytes=500)
    with pytest.raises(ObjectTooLarge, match=r"s3://bucket/p/t/.*raise max_object_bytes"):
        small.get_tuple(LATEST)


FOREIGN = [
    "readme.txt",
    "t",
    "_runs/late/x",
    "_runs/late/t/_/x",
    "_x/_/c/x",
    ".41/_/latest",
    "t/readme.txt",
    "t/_/",
    "t/_/readme",
    "t/_/latest.bak",
    "t/_/c/",
    "t/_/c/x/checkpoint",
    f"t/_/c/{encode_id(IDS[9])}/",
    f"t/_/c/{encode_id(IDS[9])}/checkpoint/",
    f"t/_/c/{encode_id(IDS[9])}/checkpoint.bak",
    f"t/_/c/{encode_id(IDS[7])}/writes/",
    f"t/_/c/{encode_id(IDS[7])}/writes/notes.txt",
    f"t/_/c/{encode_id(IDS[7])}/writes/a.b/c",
    f"t/_/c/{encode_id(IDS[7])}/blob/log.old",
    f"t/_/d/{encode_id(IDS[9])}/checkpoint",
    "t/_x/latest",
    "t/x/y/z",
]


@pytest.mark.parametrize("name", OPERATIONS)
def test_foreign_objects_are_left_alone(filled: FakeS3, name: str) -> None:
    mixed, foreign = filled.copy(), {f"p/{key}": b"foreign" for key in FOREIGN}
    for key, data in foreign.items():
        mixed[key] = data
    answer, keys = outcome(OPERATIONS[name], mixed)
    expected_answer, expected_keys = outcome(OPERATIONS[name], filled.copy())
    assert answer == expected_answer
    assert set(keys) == {*expected_keys, *foreign}
    assert all(mixed[key] == data for key, data in foreign.items())


def test_swapped_objects_are_refused(filled: FakeS3) -> None:
    """Two objects of one kind that change places: each reader of either notices."""
    by_sort: dict[str, list[str]] = {}
    for key in filled.keys("p/t/"):
        by_sort.setdefault(sort_of(key), []).append(key)
    for sort in ("checkpoint", "/writes/"):
        one, other = by_sort[sort][0], by_sort[sort][-1]
        s3 = filled.copy()
        s3[one], s3[other] = s3[other], s3[one]
        with pytest.raises(CorruptObject, match="it belongs to checkpoint"):
            READS["list"](make_saver(s3))


def test_every_error_has_a_stable_kind() -> None:
    def below(base: type[S3SaverError]) -> Iterator[type[S3SaverError]]:
        yield base
        for kind in base.__subclasses__():
            yield from below(kind)

    kinds = [it.kind for it in below(S3SaverError)]
    assert len(kinds) == len(set(kinds))
    assert issubclass(InvalidInput, ValueError)

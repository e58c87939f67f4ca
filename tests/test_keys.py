"""Keys: every text is safe in one, no two things share one, and they are read back as they were built."""

from __future__ import annotations

import re
import string
from itertools import permutations
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, empty_checkpoint

from langgraph.checkpoint.s3 import S3Saver
from langgraph.checkpoint.s3._keys import (
    ID_LIMIT,
    MAX_KEY,
    NAME_LIMIT,
    NS_LIMIT,
    PREFIX_LIMIT,
    THREAD_LIMIT,
    Located,
    Namespace,
    StretchName,
    blob_name,
    blob_start,
    decode_id,
    decode_part,
    encode_id,
    encode_part,
    has_descending_key,
    is_folder_part,
    is_ours,
    namespace,
    numbered_batch,
    parse_marker,
    parse_stretch_name,
    root_of,
    runs_prefix,
    stamped_batch,
    thread_name,
    thread_prefix,
)
from langgraph.checkpoint.s3.errors import InvalidInput
from tests.support.fake_s3 import FakeDriver, FakeS3

THREADS = ["a", "a/b", "A", "ab", "", "_", "_runs", "_name", "..", ".", "-", "a.2Fb", "latest", "c", "x" * 10_000]
THREADS += ["x" * 9_999 + "y", "é" * 10_000, "é", "e\u0301", "😀", "a\nb", "a\x00", " ", "%2F", "a|b", "-trash"]

_any_text = st.text(st.characters(exclude_categories=["Cs"]))
_nasty_text = st.text("_-./%aAB05F \n\x00é😀", max_size=12)
_long_text = st.builds(lambda text, n, end: text * n + end, _nasty_text, st.integers(1, 60), _nasty_text)
texts = st.sampled_from(THREADS) | _nasty_text | _long_text | _any_text
limits = st.sampled_from([NAME_LIMIT, ID_LIMIT, THREAD_LIMIT, NS_LIMIT])
uuids = st.uuids().map(str)

UUID_ID = "1f0a5b6c-0d1e-6f2a-8003-0123456789ab"
ODD_IDS = [
    "1",
    "10",
    "9",
    "zzz",
    "ZZZ",
    "-",
    "a/b",
    "é",
    UUID_ID.upper(),
    UUID_ID[:-2] + "AB",
    UUID_ID.replace("-", ""),
    f"{{{UUID_ID}}}",
]
ODD_IDS += [UUID_ID.replace("0", "\u0660"), UUID_ID + "\n", ".", ".."]


# -- parts -----------------------------------------------------------------------------------------


@given(texts, limits)
def test_a_part_is_safe_and_read_back(text: str, limit: int) -> None:
    part = encode_part(text, limit)
    assert re.fullmatch(r"[A-Za-z0-9._-]+", part)
    assert part not in (".", "..")
    assert len(part) <= limit
    hashed = len(encode_part(text, 1 << 20)) > limit
    assert decode_part(part) == (None if hashed else text)
    assert part.startswith("_") == (hashed or text == "")
    assert is_folder_part(part)


@given(texts, texts, limits)
def test_no_two_texts_share_a_part(text: str, other: str, limit: int) -> None:
    part = encode_part(text, limit)
    for near in (
        other,
        part,
        f"_{text}",
        f"{text}_",
        text + text,
        text[:-1],
        text.swapcase(),
        text.replace("/", ".2F"),
    ):
        assert (encode_part(near, limit) == part) == (near == text)


@given(st.text("._-/aAF25é", max_size=8) | _any_text)
@example(".41")  # "A", which needs no escape
@example("a.5F")
@example(".2f")
@example(".FF")  # not UTF-8
@example("_runs")
@example(".")
@example("a\n")
def test_a_part_that_no_text_has_is_foreign(part: str) -> None:
    try:
        text = decode_part(part)
    except ValueError:
        assert not is_folder_part(part)
        return
    assert text is None or encode_part(text, 1 << 20) == part


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "x" * 10_000 + "\udc00"])
def test_lone_surrogates_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="surrogates"):
        encode_part(text, THREAD_LIMIT)
    with pytest.raises(InvalidInput, match="surrogates"):
        root_of(text[-10:])


def test_an_overlong_part_is_a_readable_start_and_a_hash() -> None:
    assert re.fullmatch(r"_customer-42-x+-[0-9a-f]{32}", encode_part("customer-42-" + "x" * 10_000, THREAD_LIMIT))
    for length in range(THREAD_LIMIT):  # wherever it is cut, never within an escape
        part = encode_part("x" * length + "é" * 200, THREAD_LIMIT)
        assert re.fullmatch(r"_x*(\.[0-9A-F]{2})*-[0-9a-f]{32}", part)


# -- threads do not mix ----------------------------------------------------------------------------


@given(texts, texts)
def test_no_prefix_is_the_start_of_another(text: str, other: str) -> None:
    if text != other:
        assert not thread_prefix("p/", text).startswith(thread_prefix("p/", other))
        assert not namespace("p/", "t", text).base.startswith(namespace("p/", "t", other).base)
        assert not runs_prefix("p/", text).startswith(runs_prefix("p/", other))
        assert not blob_name(text, b"").startswith(blob_start(other))


@given(texts, texts)
def test_no_thread_lies_among_the_markers(thread: str, run: str) -> None:
    assert not thread_prefix("", thread).startswith("_runs/")
    assert not namespace("", thread, "").marker(run, UUID_ID).startswith(thread_prefix("", thread))


def make_saver(s3: FakeS3, prefix: str = "p") -> S3Saver:
    saver = S3Saver("bucket", prefix, inline_threshold=100)
    saver._driver = FakeDriver(s3)  # type: ignore[assignment]
    return saver


def put(saver: S3Saver, thread: str, ns: str = "", id: str = UUID_ID, parent: str | None = None, **values: str) -> None:
    config: RunnableConfig = {"configurable": {"thread_id": thread, "checkpoint_ns": ns}}
    if parent is not None:
        config["configurable"]["checkpoint_id"] = parent
    versions: dict[str, str | int | float] = dict.fromkeys(values, "1")
    it: Checkpoint = {**empty_checkpoint(), "id": id, "channel_values": dict(values), "channel_versions": versions}
    saver.put(config, it, {}, versions)


def threads_listed(saver: S3Saver, config: RunnableConfig | None) -> set[tuple[str, str]]:
    found = [it.config["configurable"] for it in saver.list(config)]
    assert len(found) == len({(it["thread_id"], it["checkpoint_ns"]) for it in found})
    return {(it["thread_id"], it["checkpoint_ns"]) for it in found}


@pytest.mark.parametrize("prefix", ["", "p"])
def test_threads_never_mix(prefix: str) -> None:
    s3 = FakeS3()
    saver = make_saver(s3, prefix)
    spaces = {(thread, ns) for thread in THREADS for ns in ("", "a|b", "a")}
    for thread, ns in spaces:
        put(saver, thread, ns, x="y" * 200)
        saver.put_writes(
            {"configurable": {"thread_id": thread, "checkpoint_ns": ns, "checkpoint_id": UUID_ID}}, [("c", thread)], "t"
        )
    assert threads_listed(saver, None) == spaces
    for thread in THREADS:
        mine = {(thread, ns) for ns in ("", "a|b", "a")}
        assert threads_listed(saver, {"configurable": {"thread_id": thread}}) == mine
        assert threads_listed(saver, {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}) == {(thread, "")}
        saver.delete_thread(thread)
        spaces -= mine
        assert threads_listed(saver, None) == spaces
    assert len(s3) == 0


def test_a_channel_does_not_meet_the_blobs_of_another() -> None:
    """Channel "a" has nothing to do with "a/b", though "a.2Fb" begins with "a."."""
    saver = make_saver(FakeS3())
    put(saver, "t", id="00000000-0000-0000-0000-000000000001", **{"a": "small", "a/b": "large " * 1000 + str(THREADS)})
    put(saver, "t", id="00000000-0000-0000-0000-000000000002", parent="00000000-0000-0000-0000-000000000001")
    history = saver.get_delta_channel_history(config={"configurable": {"thread_id": "t"}}, channels=["a"])
    assert dict(history["a"]) == {"seed": "small", "writes": []}


# -- length ----------------------------------------------------------------------------------------


def keys_of(ns: Namespace, checkpoint_id: str, channel: str, task: str, run: str) -> list[str]:
    """Every sort of key of one checkpoint. Stretches are packed of those whose ids are UUIDs."""
    stretch = str(StretchName(checkpoint_id, 0xFFFF, 0xFFFFFFFF))
    return [
        *([ns.stretch(checkpoint_id, stretch)] if has_descending_key(checkpoint_id) else []),
        ns.latest,
        ns.fence,
        ns.checkpoint(checkpoint_id),
        ns.history(checkpoint_id),
        ns.blob(checkpoint_id, blob_name(channel, b"")),
        ns.writes(checkpoint_id, numbered_batch(task, 9_999)),
        ns.writes(checkpoint_id, stamped_batch(task, (1 << 63) - 1, "f" * 8)),
        ns.marker(run, checkpoint_id),
        thread_name(ns.root, ns.thread_part),
    ]


def test_the_longest_key_fits() -> None:
    prefix, long = "é" * (PREFIX_LIMIT // 2), "é" * 10_000
    for root in (root_of(prefix), f"{prefix}-trash/"):
        sizes = [
            len(key.encode())
            for checkpoint_id in (UUID_ID, "x" * ID_LIMIT)
            for key in keys_of(namespace(root, long, long), checkpoint_id, long, long, long)
        ]
        assert max(sizes) <= MAX_KEY
        assert max(sizes) > MAX_KEY - 100  # the limits are used up: this is the worst case


@given(texts, texts, texts, texts, texts, uuids | st.text(string.printable, min_size=1, max_size=ID_LIMIT // 3))
def test_every_key_fits(thread: str, ns: str, channel: str, task: str, run: str, checkpoint_id: str) -> None:
    for key in keys_of(namespace("p" * PREFIX_LIMIT + "/", thread, ns), checkpoint_id, channel, task, run):
        assert len(key.encode()) <= MAX_KEY - len("-trash")


@given(st.lists(st.text(string.ascii_letters + "_", min_size=20, max_size=20), min_size=5, max_size=5), st.uuids())
def test_five_nested_subgraphs_stay_readable(names: list[str], task: UUID) -> None:
    text = "|".join(f"{name}:{task}" for name in names)
    assert decode_part(namespace("", "t", text).ns_part) == text


@pytest.mark.parametrize("prefix", ["a//b", "a/./b", "..", "a/..", "p" * 201, "é" * 101, "/a//b/"])
def test_prefixes_that_are_refused(prefix: str) -> None:
    with pytest.raises(InvalidInput, match="prefix"):
        root_of(prefix)


@pytest.mark.parametrize(
    ("prefix", "root"), [("", ""), ("/", ""), ("a", "a/"), ("/a/b/", "a/b/"), ("p" * 200, "p" * 200 + "/"), (" ", " /")]
)
def test_prefixes_that_are_taken(prefix: str, root: str) -> None:
    assert root_of(prefix) == root


# -- checkpoint ids --------------------------------------------------------------------------------


@given(st.lists(uuids | st.integers(0, 300).map(lambda n: str(UUID(int=n))), unique=True))
def test_keys_descend_as_ids_do(ids: list[str]) -> None:
    newest_first = sorted(ids, reverse=True)
    assert sorted(ids, key=encode_id) == newest_first
    ns = namespace("", "t", "")
    keys = [ns.checkpoint(it) for it in newest_first]
    for position, it in enumerate(newest_first):
        assert decode_id(encode_id(it)) == it
        assert [key for key in keys if key > ns.after(it)] == keys[position + 1 :]


@pytest.mark.parametrize("odd", ODD_IDS)
def test_an_odd_id_shows_at_the_top(odd: str) -> None:
    assert not has_descending_key(odd)
    assert decode_id(encode_id(odd)) == odd
    assert encode_id(odd) < encode_id("ffffffff-ffff-ffff-ffff-ffffffffffff")


@pytest.mark.parametrize("bad", ["", "x" * 129, "é" * 22, "/" * 43])
def test_an_id_that_cannot_be_named_is_refused(bad: str) -> None:
    with pytest.raises(InvalidInput, match="checkpoint_id"):
        encode_id(bad)


@pytest.mark.parametrize("page_size", [1, 1000])
def test_odd_ids_are_sorted_by_themselves(page_size: int) -> None:
    saver = make_saver(FakeS3(page_size=page_size))
    ids = [*ODD_IDS, UUID_ID, "00000000-0000-0000-0000-000000000000"]
    config: RunnableConfig = {"configurable": {"thread_id": "t"}}
    for it in ids:
        put(saver, "t", id=it)
        newest = saver.get_tuple(config)
        assert newest is not None
        assert newest.checkpoint["id"] == max(ids[: ids.index(it) + 1])
    assert [it.checkpoint["id"] for it in saver.list(config)] == sorted(ids, reverse=True)
    for it in ids:
        listed = saver.list(config, before={"configurable": {"checkpoint_id": it}})
        assert [found.checkpoint["id"] for found in listed] == sorted((a for a in ids if a < it), reverse=True)


# -- reading keys back -----------------------------------------------------------------------------


@given(texts, texts, texts, texts, texts, uuids | st.sampled_from(ODD_IDS))
def test_keys_are_told_apart(thread: str, ns_text: str, channel: str, task: str, run: str, id: str) -> None:
    ns = namespace("p/", thread, ns_text)
    blob, first, other = blob_name(channel, b"x"), numbered_batch(task, 0), stamped_batch(task, 1, "00000000")
    assert ns.locate(ns.checkpoint(id)) == Located(id, "checkpoint", "")
    assert ns.locate(ns.history(id)) == Located(id, "history", "")
    assert ns.locate(ns.blob(id, blob)) == Located(id, "blob", blob)
    assert ns.locate(ns.writes(id, first)) == Located(id, "writes", first)
    assert ns.locate(ns.writes(id, other)) == Located(id, "writes", other)
    stretch = str(StretchName(UUID_ID, 16, 321))
    assert ns.locate(ns.stretch(UUID_ID, stretch)) == Located(UUID_ID, "stretch", stretch)
    assert parse_stretch_name(stretch) == StretchName(UUID_ID, 16, 321)
    assert parse_marker("p/", run, ns.marker(run, id)) == (ns, id)
    for key in keys_of(ns, id, channel, task, run):
        assert is_ours("p/", ns.thread_part, key) == key.startswith(thread_prefix("p/", thread))


NS = namespace("p/", "a/b", "n")
OURS = keys_of(NS, UUID_ID, "x/y", "task", "run") + keys_of(NS, "odd", "", "_", "run")


def rebuilt(found: Located) -> str:
    build = {"checkpoint": NS.checkpoint, "history": NS.history}
    if found.kind in build:
        return build[found.kind](found.checkpoint_id)
    return {"blob": NS.blob, "stretch": NS.stretch, "writes": NS.writes}[found.kind](found.checkpoint_id, found.name)


def check_canonical(key: str) -> None:
    """Whatever is read from a key builds that key: there is no second way to write it."""
    if (found := NS.locate(key)) is not None:
        assert rebuilt(found) == key
    if key.startswith(runs_prefix("p/", "run")) and (marked := parse_marker("p/", "run", key)) is not None:
        assert marked[0].marker("run", marked[1]) == key


@pytest.mark.parametrize("key", OURS)
def test_a_mutated_key_is_refused_or_another_of_ours(key: str) -> None:
    start = len("p/")
    for position in range(start, len(key) + 1):
        check_canonical(key[:position])
        check_canonical(key[:position] + key[position + 1 :])
        for text in "/._-0aAgG\n\u0660é":
            check_canonical(key[:position] + text + key[position:])
            check_canonical(key[:position] + text + key[position + 1 :])
    for one, other in permutations(range(start, len(key)), 2):
        if other - one == 1:
            check_canonical(key[:one] + key[other] + key[one] + key[other + 1 :])


@given(st.text("._-/0aAfr5svc", max_size=30) | _any_text)
def test_a_foreign_key_is_refused_or_one_of_ours(rest: str) -> None:
    for start in (NS.base, NS.checkpoints, NS.folder(UUID_ID), NS.writes(UUID_ID), runs_prefix("p/", "run")):
        check_canonical(start + rest)


FOLDER = f"c/{encode_id(UUID_ID)}"
FOREIGN = [
    "",
    "notes.txt",
    "latest/",
    "latest.bak",
    "fence/x",
    "_name",
    "c",
    "c/",
    FOLDER,
    f"{FOLDER}/",
    f"{FOLDER}/checkpoint/",
    f"{FOLDER}/checkpoint/x",
    f"{FOLDER}/checkpoint.bak",
    f"{FOLDER}/Checkpoint",
    f"{FOLDER}/history/",
    f"{FOLDER}/blob",
    f"{FOLDER}/blob/",
    f"{FOLDER}/blob/x",
    f"{FOLDER}/blob/x.",
    f"{FOLDER}/blob/x.bak",
    f"{FOLDER}/blob/.v{'0' * 32}",
    f"{FOLDER}/blob/x.r0000",
    f"{FOLDER}/blob/x.v{'0' * 32}/",
    f"{FOLDER}/blob/x.v{'0' * 32}.tmp",
    f"{FOLDER}/blob/a/x.v{'0' * 32}",
    f"{FOLDER}/writes",
    f"{FOLDER}/writes/",
    f"{FOLDER}/writes/x.txt",
    f"{FOLDER}/writes/x.r0000/",
    f"{FOLDER}/writes/x.r00",
    f"{FOLDER}/writes/x.r000\u0660",
    f"{FOLDER}/writes/x.s00",
    f"{FOLDER}/other/x",
    f"d{FOLDER[1:]}/checkpoint",
    "c/checkpoint",
    "c//checkpoint",
    "c/-./checkpoint",
    f"c/-.{UUID_ID}/checkpoint",
    f"c/{'0' * 32}.{UUID_ID}/checkpoint",
    f"c/{encode_id(UUID_ID).upper()}/checkpoint",
    f"c/{encode_id(UUID_ID)}\n/checkpoint",
]


@pytest.mark.parametrize("rest", FOREIGN)
def test_foreign_keys_are_not_ours(rest: str) -> None:
    assert NS.locate(NS.base + rest) is None
    assert not is_ours("p/", NS.thread_part, NS.base + rest)


@pytest.mark.parametrize("rest", ["", "_name/", "_name/x", "name", "n", "_x/latest", ".41/latest", "n//latest"])
def test_foreign_keys_of_a_thread_are_not_ours(rest: str) -> None:
    assert not is_ours("p/", NS.thread_part, thread_prefix("p/", "a/b") + rest)


@pytest.mark.parametrize(
    "rest",
    ["", "a", "a/n", "a/n/", f"a/n/{UUID_ID}", f"a/n/{FOLDER[2:]}/", f"a/n/x/{FOLDER[2:]}", f"_a/n/{FOLDER[2:]}"],
)
def test_foreign_markers_are_skipped(rest: str) -> None:
    assert parse_marker("p/", "run", runs_prefix("p/", "run") + rest) is None

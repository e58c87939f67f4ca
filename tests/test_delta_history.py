"""get_delta_channel_history, by direct calls: whatever InMemorySaver answers, this saver answers."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langgraph.checkpoint.base import Checkpoint
from langgraph.checkpoint.serde.types import _DeltaSnapshot as Snapshot

from langgraph.checkpoint.s3 import MissingObject, S3Saver
from langgraph.checkpoint.s3._keys import namespace
from langgraph.checkpoint.s3._objects import Body, Codec
from langgraph.checkpoint.s3.aio import AsyncS3Saver
from tests.support.fake_s3 import FakeDriver
from tests.support.savers import PREFIX, FakeStore, Memory, Store
from tests.support.threads import Script, config_for, eager, noise, uuid_of

THREAD = "thread"


class Twins:
    """The same thread here and in memory.

    A checkpoint has, for each channel that it changes, a value, or a write on its parent and no value.
    """

    def __init__(self, store: Store, packs: bool = True, **options: Any) -> None:
        self.store, self.packs, self.options = store, packs, options
        self.saver = self.fresh()
        self.memory = Memory()
        self.ids: list[str] = []
        self.states: dict[str | None, tuple[dict[str, Any], dict[str, str], dict[str, list[int]]]] = {
            None: ({}, {}, {})
        }

    def fresh(self) -> S3Saver | AsyncS3Saver:
        """A saver that remembers nothing."""
        saver = self.store.saver(**self.options)
        return eager(saver) if self.packs else saver

    def write(self, on: str, writes: Sequence[tuple[str, Any]], task: str = "task", path: str = "") -> None:
        for saver in (self.saver, self.memory):
            saver.put_writes(config_for(THREAD, on), writes, task, path)

    def put(
        self,
        parent: str | None,
        values: Mapping[str, Any] | None = None,
        *,
        touch: Sequence[str] = (),
        id: str = "",
        counted: bool = True,
    ) -> str:
        """Store a checkpoint: some channels get a value, and some a new version and none."""
        values, checkpoint_id = values or {}, id or uuid_of(len(self.ids) + 1)
        held, versions, counters = self.states[parent]
        new = {name: f"{len(self.ids):032}.{checkpoint_id}" for name in [*values, *touch]}
        held = {name: it for name, it in held.items() if name not in touch} | dict(values)
        versions = {**versions, **new}
        leaning = {*counters, *touch} - set(values)
        counters = {name: [a + (name in touch), b + 1] for name in leaning for a, b in [counters.get(name, [0, 0])]}
        checkpoint = Checkpoint(
            v=4,
            id=checkpoint_id,
            ts="2026-01-01T00:00:00+00:00",
            channel_values=held,
            channel_versions=dict(versions),
            versions_seen={},
            updated_channels=None,
        )
        metadata: Any = {"counters_since_delta_snapshot": counters} if counted and counters else {}
        for saver in (self.saver, self.memory):
            saver.put(config_for(THREAD, parent), checkpoint, metadata, dict(new))
        self.states[checkpoint_id] = held, versions, counters
        self.ids.append(checkpoint_id)
        return checkpoint_id

    def step(self, parent: str, *channels: str, counted: bool = True) -> str:
        """A super-step that writes to some channels."""
        for channel in channels:
            self.write(parent, [(channel, [f"{channel} on {parent[-4:]}"])], task=f"task-{channel}")
        return self.put(parent, touch=channels, counted=counted)

    def check(self, head: str | None, *channels: str) -> Mapping[str, Any]:
        """Compare the answers, also by a saver that remembers nothing; returns them."""
        config = config_for(THREAD, head)
        expected = self.memory.get_delta_channel_history(config=config, channels=channels)
        for saver in (self.saver, self.fresh()):
            assert saver.get_delta_channel_history(config=config, channels=channels) == expected
        return expected


@pytest.fixture(params=[False, True], ids=["", "packed"])
def twins(store: Store, request: pytest.FixtureRequest) -> Twins:
    return Twins(store, packs=request.param)


@pytest.fixture
def small() -> tuple[Twins, FakeStore]:
    store = FakeStore()
    return Twins(store, inline_threshold=500), store


# -- what is asked of a chain ----------------------------------------------------------------------


def test_writes_come_oldest_first_from_the_nearest_value(twins: Twins) -> None:
    head = twins.put(None, {"log": Snapshot(["old"])})
    for _ in range(3):
        head = twins.step(head, "log")
    middle = head
    head = twins.put(head, {"log": Snapshot(["new"])})
    for _ in range(3):
        head = twins.step(head, "log")
    answer = twins.check(head, "log")["log"]
    assert answer["seed"] == Snapshot(["new"])
    assert [value for _, _, value in answer["writes"]] == [[f"log on {n:04x}"] for n in (5, 6, 7)]
    assert twins.check(middle, "log")["log"]["seed"] == Snapshot(["old"])
    assert twins.check(None, "log")["log"] == answer  # the newest, if none is named


def test_what_the_head_holds_itself_is_not_asked_for(twins: Twins) -> None:
    root = twins.put(None, {"log": ["at the root"]})
    head = twins.put(root, {"log": ["at the head"]})
    twins.write(head, [("log", ["pending"])])
    assert twins.check(head, "log") == {"log": {"seed": ["at the root"], "writes": []}}
    assert twins.check(root, "log") == {"log": {"writes": []}}


@pytest.mark.parametrize("counted", [True, False], ids=["counted", "not counted"])
def test_each_channel_ends_at_its_own_ancestor(twins: Twins, counted: bool) -> None:
    head = twins.put(None, {"far": Snapshot(["far"]), "never": "asked"}, counted=counted)
    head = twins.step(head, "far", "none", counted=counted)
    head = twins.put(head, {"near": Snapshot(["near"])}, counted=counted)
    head = twins.step(head, "far", "near", counted=counted)
    head = twins.step(head, "near", "none", counted=counted)
    answer = twins.check(head, "far", "near", "none", "unknown")
    assert [len(answer[name]["writes"]) for name in answer] == [2, 2, 2, 0]
    assert [answer[name].get("seed") for name in answer] == [Snapshot(["far"]), Snapshot(["near"]), None, None]
    for channel in answer:
        twins.check(head, channel)


def test_a_plain_value_is_a_seed_and_so_is_none(twins: Twins) -> None:
    head = twins.put(None, {"plain": ["migrated"], "none": None, "zero": 0})
    head = twins.step(head, "plain", "none", "zero")
    answer = twins.check(head, "plain", "none", "zero")
    assert [answer[name]["seed"] for name in answer] == [["migrated"], None, 0]


def test_forks_do_not_mix(twins: Twins) -> None:
    root = twins.put(None, {"log": Snapshot(["root"])})
    shared = twins.step(root, "log")
    left, right = twins.step(shared, "log"), twins.put(shared, touch=["log"])
    for _ in range(3):  # their keys alternate in the listing
        left, right = twins.step(left, "log"), twins.step(right, "log")
    aside = twins.put(right, {"log": Snapshot(["aside"])})
    for head in (left, right, aside, twins.step(shared, "log")):
        twins.check(head, "log")


def test_writes_come_in_the_order_of_path_task_and_number(twins: Twins) -> None:
    root = twins.put(None, {"log": Snapshot([])})
    paths = {"b": "~__pregel_pull, z", "a": "~__pregel_pull, z", "d": "~__pregel_push, 0", "c": ""}
    for task, path in paths.items():
        twins.write(root, [("log" if n % 2 else "other", f"{task} {n}") for n in range(12)], task, path)
    twins.write(root, [("log", "b again")] * 14, "b", "~__pregel_pull, z")  # the first wins, two are new
    answer = twins.check(twins.put(root, touch=["log", "other"]), "log", "other")
    assert [value.split()[0] for _, _, value in answer["log"]["writes"]] == [
        *"cccccc",
        *"aaaaaa",
        *"bbbbbb",
        *"bb",
        *"dddddd",
    ]


def test_special_channels_keep_the_last_write(twins: Twins) -> None:
    root = twins.put(None, {"log": Snapshot([])})
    for turn in range(2):
        twins.write(root, [("__interrupt__", f"asked {turn}"), ("log", f"log {turn}"), ("__resume__", [turn])])
        twins.write(root, [("__error__", f"failed {turn}")], "other")
    answer = twins.check(twins.put(root, touch=["log"]), "log", "__interrupt__", "__resume__", "__error__")
    assert answer["__interrupt__"]["writes"] == [("task", "__interrupt__", "asked 1")]
    assert answer["log"]["writes"] == [("task", "log", "log 0")]


def test_nothing_asked_nothing_there(twins: Twins) -> None:
    assert twins.check(None) == {}
    assert twins.check(None, "log") == {"log": {"writes": []}}
    assert twins.check(uuid_of(9), "log", "log") == {"log": {"writes": []}}


# -- large values, odd ids, long chains ------------------------------------------------------------


def test_a_large_seed_is_found_wherever_it_lies() -> None:
    twins = Twins(FakeStore(), inline_threshold=500)
    large = Snapshot([noise(3000)])
    head = twins.put(None, {"large": large, "small": 1})
    for _ in range(3):
        head = twins.step(head, "small")  # inherits the large value by reference
    head = twins.step(head, "large", "small")
    head = twins.step(head, "large")
    assert twins.check(head, "large")["large"] == {
        "seed": large,
        "writes": [("task-large", "large", [f"large on {n:04x}"]) for n in (4, 5)],
    }
    twins.check(head, "small", "large")


ODD_IDS = ["1", "10", "9", "a/b", "é", " ", "ZZZ", "00000000-0000-0000-0000-00000000000G", uuid_of(5), "~" * 40]


@pytest.mark.parametrize("seed", range(5))
def test_ids_of_any_form(seed: int) -> None:
    twins = Twins(FakeStore(), inline_threshold=500)
    ids = random.Random(seed).sample(ODD_IDS, len(ODD_IDS))
    head = twins.put(None, {"log": Snapshot(["root"])}, id=ids[0])
    for checkpoint_id in ids[1:]:
        twins.write(head, [("log", f"on {head}")])
        head = twins.put(head, touch=["log"], id=checkpoint_id)
    for it in ids:
        twins.check(it, "log")
    twins.check(None, "log")


@pytest.mark.parametrize("counted", [True, False], ids=["counted", "not counted"])
@pytest.mark.parametrize("threshold", [10, 1 << 20], ids=["large", "small"])
def test_a_long_chain(counted: bool, threshold: int) -> None:
    twins = Twins(FakeStore(), inline_threshold=threshold)
    head = twins.put(None, {"log": Snapshot([noise(200)]), "other": 1}, counted=counted)
    for n in range(300):
        head = twins.step(head, *(["log", "rare"] if n % 7 == 0 else ["log"]), counted=counted)
    assert len(twins.check(head, "log")["log"]["writes"]) == 300
    assert len(twins.check(head, "rare", "log", "other")["rare"]["writes"]) == 43
    twins.check(twins.ids[150], "log", "rare")
    if counted:
        saver = twins.fresh()
        driver: Any = saver._driver
        assert isinstance(driver, FakeDriver)
        with driver.measure() as cost:
            _ = saver.get_delta_channel_history(config=config_for(THREAD, head), channels=["log"])
        assert cost.round_trips == 3


# -- what is missing, and what was pruned ----------------------------------------------------------


def keys(store: FakeStore, checkpoint_id: str, kind: str) -> list[str]:
    return [key for key in store.s3.keys(PREFIX) if f".{checkpoint_id}/{kind}" in key]


@pytest.mark.parametrize("counted", [True, False], ids=["counted", "not counted"])
def test_a_missing_ancestor_is_an_error_and_never_an_empty_channel(counted: bool) -> None:
    store = FakeStore()
    twins = Twins(store, inline_threshold=500)
    ids = [twins.put(None, {"log": Snapshot(["oldest"])}, counted=counted)]
    ids.append(twins.step(ids[-1], "log", counted=counted))
    ids.append(twins.put(ids[-1], {"log": Snapshot([noise(3000)])}, counted=counted))
    for _ in range(5):
        ids.append(twins.step(ids[-1], "log", counted=counted))
    whole = store.s3.snapshot()
    for lost in (key for it in ids[2:-1] for kind in ("checkpoint", "blob") for key in keys(store, it, kind)):
        store.s3.restore(whole)
        del store.s3[lost]
        with pytest.raises(MissingObject, match=lost.replace(".", r"\.")):
            _ = twins.fresh().get_delta_channel_history(config=config_for(THREAD, ids[-1]), channels=["log"])
    store.s3.restore(whole)
    for it in ids[:2]:  # what lies behind the value is not needed
        del store.s3[keys(store, it, "checkpoint")[0]]
    twins.check(ids[-1], "log")


@pytest.mark.parametrize("size", [10, 3000], ids=["small", "large"])
def test_a_pruned_thread_answers_as_before_and_goes_on(store: Store, size: int) -> None:
    twins = Twins(store, inline_threshold=500)
    head = twins.put(None, {"log": Snapshot([noise(size)]), "kept": noise(3000, 1)})
    for _ in range(4):
        head = twins.step(head, "log", "other")
    twins.write(head, [("log", ["pending"])])
    twins.saver.prune([THREAD])
    before = twins.check(head, "log", "other")
    twins.fresh().prune([THREAD])  # again, and nothing to do
    assert twins.check(None, "other", "log") == before
    assert len(list(twins.saver.list(config_for(THREAD)))) == 1

    for _ in range(2):  # on top of the pack, and then of a pack of packs
        for _ in range(3):
            head = twins.step(head, "log")
            twins.check(head, "log", "other")
        twins.fresh().prune([THREAD])
        twins.check(head, "log", "other")

    twins.put(head, {"log": Snapshot(["all"])})
    head = twins.step(twins.ids[-1], "log", "other")
    twins.saver.prune([THREAD])
    assert twins.check(head, "log", "other")["log"]["seed"] == Snapshot(["all"])


def test_a_fork_that_goes_on_from_a_pruned_branch_is_refused() -> None:
    twins = Twins(FakeStore())
    root = twins.put(None, {"log": Snapshot(["root"])})
    left, right = twins.step(root, "log"), twins.step(root, "log")
    twins.saver.prune([THREAD])
    twins.check(right, "log")
    assert twins.saver.get_tuple(config_for(THREAD, left)) is None


# -- any tree --------------------------------------------------------------------------------------

CHANNELS = ("a", "b", "c")
STEPS = st.lists(
    st.tuples(
        st.integers(0, 99),  # the parent, by how far back it lies
        st.dictionaries(st.sampled_from(CHANNELS), st.sampled_from(["write", "touch", "value", "large"])),
    ),
    min_size=1,
    max_size=12,
)


@given(STEPS, st.booleans(), st.randoms(use_true_random=False))
@settings(max_examples=60)
def test_any_tree_of_checkpoints(steps: list[tuple[int, dict[str, str]]], sorted_ids: bool, rng: random.Random) -> None:
    """Also where children have smaller ids than their parents, as with clocks that differ."""
    numbers = list(range(1, len(steps) + 1))
    if not sorted_ids:
        rng.shuffle(numbers)
    twins = Twins(FakeStore(), inline_threshold=500)
    parent: str | None = None
    for number, (back, changes) in zip(numbers, steps, strict=True):
        if twins.ids:
            parent = twins.ids[-1 - min(back // 30, len(twins.ids) - 1)]
        values: dict[str, Any] = {}
        for channel, change in changes.items():
            if change == "write" and parent is not None:
                twins.write(parent, [(channel, f"{channel} {number}")], task=f"task-{number}")
            if change in ("value", "large"):
                values[channel] = noise(3000, number) if change == "large" else number
        touch = [channel for channel in changes if channel not in values]
        twins.put(parent, values, touch=touch, id=uuid_of(number))
    for head in twins.ids:
        twins.check(head, *CHANNELS)
    newest = max(twins.ids)
    twins.saver.prune([THREAD])
    twins.check(newest, *sorted(twins.states[newest][2]))


# -- packed stretches --------------------------------------------------------------------------------


def packs(store: FakeStore) -> list[str]:
    return [key for key in store.s3.keys(PREFIX) if "/stretch/" in key]


def chain(twins: Twins, length: int) -> list[str]:
    """Checkpoints that each write to a delta channel."""
    head = twins.put(None, {"log": Snapshot(["seed"])})
    for _ in range(length):
        head = twins.step(head, "log")
    return twins.ids


def test_short_stretches_are_packed_and_then_long_ones() -> None:
    store = FakeStore()
    ids = chain(Twins(store), 8)
    lengths = [(key.partition("/stretch/")[0][-4:], int(key[-12:-8], 16)) for key in packs(store)]
    # A put packs what lies behind its parent, and a long stretch takes what short ones have packed already.
    assert lengths == [(it[-4:], length) for it, length in zip(ids[6:0:-1], [3, 1, 1, 3, 1, 1], strict=True)]


def test_a_write_that_comes_after_its_checkpoint_was_packed(twins: Twins) -> None:
    ids = chain(twins, 8)
    twins.write(ids[3], [("log", ["late"])], task="late")
    answer = twins.check(ids[-1], "log")["log"]
    assert [value for _, _, value in answer["writes"]].count(["late"]) == 1
    other = twins.fresh()
    other.put_writes(config_for(THREAD, ids[4]), [("log", ["from elsewhere"])], "elsewhere")
    twins.memory.put_writes(config_for(THREAD, ids[4]), [("log", ["from elsewhere"])], "elsewhere")
    twins.check(ids[-1], "log")


def test_a_large_write_batch_is_not_packed_and_read_in_the_same_round_trip() -> None:
    store = FakeStore()
    twins = Twins(store)
    head = twins.put(None, {"log": Snapshot([])})
    for number in range(12):
        twins.write(head, [("log", noise(9_000, number) if number % 3 else number)])
        head = twins.put(head, touch=["log"])
    saver = twins.fresh()
    driver: Any = saver._driver
    with driver.measure() as cost:
        _ = saver.get_delta_channel_history(config=config_for(THREAD, head), channels=["log"])
    assert cost.round_trips == 3
    assert sum(len(store.s3[key]) for key in packs(store)) < 9_000
    twins.check(head, "log")


def test_packs_hold_the_channels_that_lean_and_no_others() -> None:
    twins = Twins(FakeStore())
    head = twins.put(None, {"log": Snapshot(["seed"]), "plain": "old"})
    for number in range(8):
        twins.write(head, [("plain", number), ("log", [number])])
        head = twins.put(head, {"plain": number} if number % 3 == 0 else {}, touch=["log"])
    for asked in (["log"], ["plain"], ["plain", "log"], ["log", "unknown"]):
        twins.check(head, *asked)


def test_a_fork_reads_its_own_branch_however_the_other_was_packed() -> None:
    twins = Twins(FakeStore())
    ids = list(chain(twins, 3))
    left = right = ids[-1]
    for number in range(9):  # one branch gets three checkpoints to each of the other's
        left = twins.step(left, "log")
        if number % 3 == 0:
            right = twins.step(right, "log")
    twins.check(left, "log")
    twins.check(right, "log")
    for head in list(twins.ids):
        twins.check(head, "log")


@pytest.mark.parametrize("damage", ["lost", "cut", "foreign", "swapped"])
def test_a_damaged_pack_is_no_worse_than_none(damage: str) -> None:
    store = FakeStore()
    twins = Twins(store)
    ids = chain(twins, 10)
    bodies = {key: store.s3[key] for key in packs(store)}
    others = [*bodies.values()][1:] + [*bodies.values()][:1]
    for (key, body), other in zip(bodies.items(), others, strict=True):
        if damage == "lost":
            del store.s3[key]
        else:
            store.s3[key] = {"cut": body[:-5], "foreign": b"not ours", "swapped": other}[damage]
    twins.saver = twins.fresh()
    twins.check(ids[-1], "log")


def test_a_process_that_has_only_read_the_history_packs_it() -> None:
    store = FakeStore()
    twins = Twins(store, packs=False)
    ids = list(chain(twins, 12))
    assert packs(store) == []
    twins.packs, twins.saver = True, eager(twins.saver)
    twins.saver = twins.fresh()
    assert twins.saver.get_tuple(config_for(THREAD)) is not None
    twins.check(ids[-1], "log")
    twins.step(ids[-1], "log")
    assert [int(key[-12:-8], 16) for key in packs(store)] == [5]  # the longest that is packed at a time
    twins.check(twins.ids[-1], "log")


def test_what_is_deleted_does_not_live_on_in_a_pack() -> None:
    store = FakeStore()
    script = Script(eager(store.saver()))
    _ = script.put({"log": ["seed"]})
    gone = []
    for depth in range(1, 10):
        run: dict[str, Any] = {"run_id": "run"} if depth in (4, 5) else {}
        script.write("log", [depth])
        _ = script.put({}, touch=("log",), counters_since_delta_snapshot={"log": [depth, depth]}, **run)
        gone += [str(script.head)] if run else []

    def in_packs() -> set[str]:
        ns, codec = namespace(f"{PREFIX}/", "thread", ""), Codec("bucket", 3, 1 << 20)
        found = [(str(ns.locate(key).checkpoint_id), key) for key in packs(store)]  # type: ignore[union-attr]
        read = [codec.read_stretch(ns, owner)(Body(key, store.s3[key], "")) for owner, key in found]
        return {link.id for pack in read for link in pack.links}

    assert set(gone) <= in_packs()
    script.saver.delete_for_runs(["run"])
    assert in_packs()
    assert not set(gone) & in_packs()
    answer = store.saver().get_delta_channel_history(config=script.config, channels=["log"])["log"]
    assert [value for _, _, value in answer["writes"]] == [[depth] for depth in range(1, 10)]

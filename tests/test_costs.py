"""What each operation costs: round trips and requests, for threads of 10 and of 10,000 checkpoints alike."""

from __future__ import annotations

import contextlib
import operator
from itertools import pairwise
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt

from langgraph.checkpoint.s3 import S3Saver
from langgraph.checkpoint.s3._requests import Put
from tests.support.fake_s3 import Cost, FakeDriver, FakeS3
from tests.support.threads import Script, config_for, noise, saver_on, uuid_of

LARGE = 100_000
LENGTHS = (10, 10_000)


@pytest.fixture(scope="module")
def long_threads() -> dict[int, FakeS3]:
    """Buckets with one thread of 10 or 10,000 checkpoints, each with a write batch, every tenth with a tag."""
    buckets = {}
    for length in LENGTHS:
        s3 = FakeS3()
        script = Script(saver_on(s3))
        for number in range(length):
            _ = script.put({"messages": f"message {number}"}, tag="tenth" if number % 10 == 0 else "other")
            script.write("messages", "write")
        buckets[length] = s3
    return buckets


@pytest.fixture(params=LENGTHS, ids=str)
def scene(request: pytest.FixtureRequest, long_threads: dict[int, FakeS3]) -> Scene:
    return Scene(long_threads[request.param].copy(), request.param)


class Scene:
    def __init__(self, s3: FakeS3, length: int) -> None:
        self.s3, self.length = s3, length
        self.driver = FakeDriver(s3)
        self.saver = saver_on(self.driver, cache_bytes=0)

    @property
    def head(self) -> str:
        return uuid_of(self.length)

    def go_on(self) -> Script:
        """A run that goes on from the head, as a new process does: read first."""
        it = self.saver.get_tuple(config_for("thread"))
        assert it is not None
        script = Script(self.saver, first=self.length + 1)
        script.head = self.head
        script.values = dict(it.checkpoint["channel_values"])
        script.versions = {name: str(version) for name, version in it.checkpoint["channel_versions"].items()}
        return script


def spent(cost: Cost) -> dict[str, int]:
    """The part of a cost that is not zero, without bytes."""
    names = ("round_trips", "gets", "puts", "lists", "deletes", "copies")
    return {name: getattr(cost, name) for name in names if getattr(cost, name)}


def measured(driver: FakeDriver, call: Any) -> dict[str, int]:
    with driver.measure() as cost:
        call()
    return spent(cost)


def test_put(scene: Scene) -> None:
    script = scene.go_on()
    assert measured(scene.driver, lambda: script.put({"messages": "new"})) == {"round_trips": 1, "puts": 2}


def test_put_without_manifest(scene: Scene) -> None:
    scene.saver = saver_on(scene.driver, manifest=False, cache_bytes=0)
    script = scene.go_on()
    assert measured(scene.driver, lambda: script.put({"messages": "new"})) == {"round_trips": 1, "puts": 1}


class Log(TypedDict):
    log: Annotated[list[str], operator.add]


def graph_of(saver: Any, **nodes: Any) -> Any:
    builder = StateGraph(Log)
    for source, name in pairwise([START, *nodes]):
        builder.add_node(name, nodes[name])
        builder.add_edge(source, name)
    return builder.compile(checkpointer=saver)


ANNA: Any = {"configurable": {"thread_id": "anna"}}
STEPS = {f"step {number}": lambda state: {"log": ["done"]} for number in range(10)}


@pytest.mark.parametrize("durability", ["sync", "async"])
@pytest.mark.parametrize(("manifest", "manifests"), [("auto", 1), ("always", 12), ("never", 0)])
def test_a_turn_of_ten_super_steps(manifest: Any, manifests: int, durability: Any) -> None:
    """A PUT for each of 12 checkpoints and of 11 write batches; and the manifest where the run ends."""
    driver = FakeDriver()
    graph = graph_of(saver_on(driver, manifest=manifest, cache_bytes=0), **STEPS)
    _ = graph.invoke({"log": ["first"]}, ANNA, durability=durability)
    with driver.measure() as cost:
        _ = graph.invoke({"log": ["second"]}, ANNA, durability=durability)
    assert (cost.puts, cost.lists, cost.gets) == (23 + manifests, 1, 2 if manifest == "never" else 1)
    reading = {"round_trips": 1, "lists": 1, "gets": 1} | ({"round_trips": 2, "gets": 2} if not manifests else {})
    assert measured(driver, lambda: saver_on(driver).get_tuple(ANNA)) == reading


def asks(state: Log) -> Log:
    return Log(log=[interrupt("what?")])


def fails(state: Log) -> Log:
    raise ZeroDivisionError


@pytest.mark.parametrize("stop", [asks, fails])
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_a_run_that_stops_amid_its_steps_leaves_a_manifest(stop: Any, durability: Any) -> None:
    """It goes with the write that says so, in the same round trip: the next read finds the head at once."""
    driver = FakeDriver()
    graph = graph_of(
        saver_on(driver), one=lambda state: {"log": ["one"]}, stop=stop, two=lambda state: {"log": ["two"]}
    )
    with contextlib.suppress(ZeroDivisionError):
        _ = graph.invoke({"log": ["in"]}, ANNA, durability=durability)
    latest = saver_on(driver)
    with driver.measure() as cost:
        told = latest.get_tuple(ANNA)
    assert told is not None
    assert told.pending_writes is not None
    assert graph.get_state(ANNA).next == ("stop",)
    # A LIST with the manifest, and one more round trip for the write of the interrupt or the error.
    assert (cost.round_trips, cost.lists, cost.gets) == (2, 1, 1 + len({write[0] for write in told.pending_writes}))
    manifests = [it for it in driver.s3.log if isinstance(it, Put) and it.key.endswith("/latest")]
    assert len(manifests) == 1


def test_a_checkpoint_made_by_hand_has_its_manifest() -> None:
    driver = FakeDriver()
    graph = graph_of(saver_on(driver), **STEPS)
    _ = graph.update_state(ANNA, {"log": ["by hand"]}, as_node="step 3")
    assert measured(driver, lambda: saver_on(driver).get_tuple(ANNA)) == {"round_trips": 1, "lists": 1, "gets": 1}


def test_put_of_an_unknown_parent_that_holds_all_it_inherits(scene: Scene) -> None:
    script = scene.go_on()
    script.saver = saver_on(scene.driver)  # another process, which has not read the thread
    assert measured(scene.driver, lambda: script.put({"other": 1})) == {"round_trips": 1, "puts": 2}


def test_put_of_large_values(scene: Scene) -> None:
    script = scene.go_on()
    large = {"a": noise(LARGE, 1), "b": noise(LARGE, 2)}
    assert measured(scene.driver, lambda: script.put(large)) == {"round_trips": 2, "puts": 4}
    # Inherited ones are not stored again; one GET looks at the fence.
    with scene.driver.measure() as cost:
        _ = script.put({"messages": "more"})
    assert spent(cost) == {"round_trips": 2, "puts": 2, "gets": 1}
    assert cost.bytes_sent < LARGE / 10


def test_put_of_a_run(scene: Scene) -> None:
    script = scene.go_on()
    with_marker = {"round_trips": 2, "puts": 3}
    assert measured(scene.driver, lambda: script.put({"messages": "new"}, run_id="run")) == with_marker


def test_put_writes(scene: Scene) -> None:
    config = config_for("thread", scene.head)
    writes = [("messages", 1), ("branch:to:x", None), ("__interrupt__", 2)]
    call = lambda: scene.saver.put_writes(config, writes, "another task")  # noqa: E731
    assert measured(scene.driver, call) == {"round_trips": 1, "puts": 1}
    assert measured(scene.driver, lambda: scene.saver.put_writes(config, [], "third task")) == {}


def test_get_latest(scene: Scene) -> None:
    script = scene.go_on()
    _ = script.put({"messages": "new"})
    fresh = saver_on(scene.driver)
    latest = {"round_trips": 1, "lists": 1, "gets": 1}
    assert measured(scene.driver, lambda: fresh.get_tuple(config_for("thread"))) == latest


def test_get_latest_with_pending_writes_and_large_values(scene: Scene) -> None:
    script = scene.go_on()
    _ = script.put({"large": noise(LARGE)})
    for task in range(3):
        script.write("messages", "x", task=f"task {task}")
    fresh = saver_on(scene.driver)
    expected = {"round_trips": 2, "lists": 1, "gets": 1 + 3 + 1}
    assert measured(scene.driver, lambda: fresh.get_tuple(config_for("thread"))) == expected
    fresh = saver_on(scene.driver)
    assert measured(scene.driver, lambda: fresh.get_tuple(script.config)) == expected


def test_get_latest_reads_few_keys(scene: Scene) -> None:
    _ = scene.saver.get_tuple(config_for("thread"))
    (listing,) = [request for request in scene.s3.log if type(request).__name__ == "List"]
    assert listing.max_keys <= 32  # type: ignore[union-attr]


def test_get_by_id(scene: Scene) -> None:
    script = scene.go_on()
    _ = script.put({"messages": "new"})
    exact = {"round_trips": 1, "lists": 1, "gets": 1}
    assert measured(scene.driver, lambda: scene.saver.get_tuple(script.config)) == exact
    with_writes = {"round_trips": 2, "lists": 1, "gets": 2}
    assert measured(scene.driver, lambda: scene.saver.get_tuple(config_for("thread", uuid_of(5)))) == with_writes


def test_a_stale_or_lost_manifest_costs_one_round_trip(scene: Scene) -> None:
    script = scene.go_on()
    before = scene.s3["prefix/thread/_/latest"]
    _ = script.put({"messages": "new"})
    one_more = {"round_trips": 2, "lists": 1, "gets": 2}
    scene.s3["prefix/thread/_/latest"] = before
    assert measured(scene.driver, lambda: scene.saver.get_tuple(config_for("thread"))) == one_more
    del scene.s3["prefix/thread/_/latest"]
    assert measured(scene.driver, lambda: scene.saver.get_tuple(config_for("thread"))) == one_more


@pytest.mark.parametrize("before", [None, 8])
def test_list(scene: Scene, before: int | None) -> None:
    options: dict[str, Any] = {} if before is None else {"before": config_for("thread", uuid_of(before))}
    first = scene.length if before is None else before - 1
    with scene.driver.measure() as cost:
        found = list(scene.saver.list(config_for("thread"), limit=5, **options))
    assert [it.config["configurable"]["checkpoint_id"] for it in found] == [uuid_of(first - n) for n in range(5)]
    # A listing that starts further down also looks at the top, in the same round trip.
    assert spent(cost) == {"round_trips": 3, "lists": 1 if before is None else 2, "gets": 5 + 5}


def test_list_without_writes_takes_two_round_trips() -> None:
    driver = FakeDriver()
    script = Script(saver_on(driver, cache_bytes=0))
    for number in range(20):
        _ = script.put({"messages": number})
    expected = {"round_trips": 2, "lists": 1, "gets": 10}
    assert measured(driver, lambda: list(script.saver.list(config_for("thread"), limit=10))) == expected


def test_list_with_a_filter_does_not_read_what_it_does_not_need(scene: Scene) -> None:
    with scene.driver.measure() as cost:
        found = list(scene.saver.list(config_for("thread"), filter={"tag": "tenth"}, limit=1))
    assert [it.metadata["tag"] for it in found] == ["tenth"]  # type: ignore[typeddict-item]
    assert cost.round_trips == 3
    assert cost.gets <= 34


def test_limit_zero_and_unknown_threads(scene: Scene) -> None:
    assert measured(scene.driver, lambda: list(scene.saver.list(config_for("thread"), limit=0))) == {}
    unknown = config_for("unknown")
    assert measured(scene.driver, lambda: scene.saver.get_tuple(unknown)) == {"round_trips": 1, "lists": 1, "gets": 1}
    assert measured(scene.driver, lambda: list(scene.saver.list(unknown))) == {"round_trips": 1, "lists": 1}
    assert measured(scene.driver, lambda: scene.saver.delete_thread("unknown")) == {"round_trips": 1, "lists": 1}
    assert measured(scene.driver, lambda: scene.saver.copy_thread("unknown", "other")) == {"round_trips": 1, "lists": 1}
    assert measured(scene.driver, lambda: scene.saver.prune(["unknown"])) == {"round_trips": 1, "lists": 1}


@pytest.mark.parametrize("length", [10, 100, 1_000])
@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
def test_delta_history(length: int, large: bool) -> None:
    """Three round trips; and what grows with the chain is packed, so that there is little to get."""
    driver = FakeDriver()
    script = Script(saver_on(driver))
    _ = script.put({"messages": noise(LARGE) if large else ["seed"]})
    for depth in range(1, length + 1):
        with driver.measure() as cost:
            script.write("messages", f"write {depth}")
            _ = script.put({}, touch=("messages",), counters_since_delta_snapshot={"messages": [depth, depth]})
        assert cost.round_trips == 3  # the writes, the checkpoint with its pack, the fence
        assert cost.puts <= 4
        if length - depth < 128 and (length - depth) % 9 == 0:  # wherever packs end
            with driver.measure() as cost:
                history = saver_on(driver).get_delta_channel_history(config=script.config, channels=["messages"])
            assert [value for _, _, value in history["messages"]["writes"]] == [
                f"write {n}" for n in range(1, depth + 1)
            ]
            assert history["messages"]["seed"] == (noise(LARGE) if large else ["seed"])
            assert cost.round_trips == 3
            assert cost.gets <= 60
            assert cost.lists <= 1 + depth // 100
    sizes = {key: len(driver.s3[key]) for key in driver.s3.keys("")}
    packed = sum(size for key, size in sizes.items() if "/stretch/" in key)
    assert packed <= sum(sizes.values()) / 10
    assert bool(packed) == (length > 16)


def test_delta_history_of_channels_that_end_at_different_ancestors() -> None:
    """The value of one lies within the packed stretches of the other."""
    driver = FakeDriver()
    script = Script(saver_on(driver))
    _ = script.put({"far": ["seed"], "near": ["seed"]})
    for depth in range(1, 101):
        near = {"near": [depth]} if depth == 60 else {}
        counts = {"far": [depth, depth]} | ({} if near else {"near": [depth % 60, depth % 60]})
        script.write("far", depth)
        touch = ("far",) if near else ("far", "near")
        _ = script.put(near, touch=touch, counters_since_delta_snapshot=counts)
    with driver.measure() as cost:
        history = saver_on(driver).get_delta_channel_history(config=script.config, channels=["far", "near"])
    assert (history["near"]["seed"], len(history["far"]["writes"])) == ([60], 100)
    assert (cost.round_trips, cost.gets <= 40) == (3, True)


def test_delta_history_of_writes_that_do_not_compress() -> None:
    """Packs would be too large with them: so packs spare only the checkpoints, and the bytes stay within bounds."""
    driver = FakeDriver()
    script = Script(saver_on(driver))
    _ = script.put({"messages": ["seed"]})
    for depth in range(1, 301):
        _ = script.delta_step("messages", noise(500, depth), depth)
    with driver.measure() as cost:
        _ = saver_on(driver).get_delta_channel_history(config=script.config, channels=["messages"])
    assert cost.round_trips == 3
    assert cost.gets <= 300 + 40
    sizes = {key: len(driver.s3[key]) for key in driver.s3.keys("")}
    assert sum(size for key, size in sizes.items() if "/stretch/" in key) <= sum(sizes.values()) / 10


def test_delete_thread(scene: Scene) -> None:
    objects = 2 * scene.length + 1
    pages = -(-objects // 1000)
    expected = {"round_trips": 2 * pages, "lists": pages, "deletes": pages}
    assert measured(scene.driver, lambda: scene.saver.delete_thread("thread")) == expected
    assert scene.s3.keys() == []


def test_copy_thread(scene: Scene) -> None:
    objects = 2 * scene.length + 1
    pages = -(-objects // 1000)
    with scene.driver.measure() as cost:
        scene.saver.copy_thread("thread", "fork")
    assert cost.copies == objects
    assert cost.lists == (pages if pages == 1 else 2 * pages)
    assert cost.bytes_sent == cost.bytes_received == 0
    assert cost.round_trips - cost.lists <= objects // 256 + 2


@pytest.mark.parametrize("long", LENGTHS)
def test_to_roll_back_a_run_costs_what_it_wrote(long_threads: dict[int, FakeS3], long: int) -> None:
    scene = Scene(long_threads[long].copy(), long)
    script = scene.go_on()
    for number in range(5):
        _ = script.put({"messages": f"of the run {number}"}, run_id="run")
        script.write("messages", "write")
    with scene.driver.measure() as cost:
        saver_on(scene.driver).delete_for_runs(["run"])
    assert spent(cost)["lists"] <= 3
    assert spent(cost)["gets"] <= 3
    # Marker, fence, list, fence again and its PUT, list; then checkpoints, the rest, and markers are deleted.
    assert cost.round_trips <= 10
    it = scene.saver.get_tuple(config_for("thread"))
    assert it is not None
    assert it.config["configurable"]["checkpoint_id"] == scene.head


def test_nothing_is_asked_before_the_first_operation() -> None:
    saver = S3Saver("bucket", endpoint_url="http://127.0.0.1:1")
    assert saver.stats().round_trips == 0


def test_more_than_a_page_of_writes_under_one_checkpoint() -> None:
    driver = FakeDriver()
    script = Script(saver_on(driver))
    _ = script.put({"messages": 1})
    for task in range(1_100):
        script.write("messages", task, task=f"task {task:04}")
    fresh = saver_on(driver)
    for config in (config_for("thread"), script.config):
        it = fresh.get_tuple(config)
        assert it is not None
        assert it.pending_writes is not None
        assert [value for _, _, value in it.pending_writes] == list(range(1_100))
    (listed,) = fresh.list(config_for("thread"))
    assert listed == it
    _ = script.put({"messages": 2})
    fresh.prune(["thread"])
    assert [it.pending_writes for it in fresh.list(config_for("thread"))] == [[]]
    fresh.delete_thread("thread")
    assert driver.s3.keys() == []


@pytest.mark.parametrize("page_size", [1, 3, 1000])
def test_namespaces_that_wait_for_each_other(page_size: int) -> None:
    """A listing of several namespaces holds back what is older, however many pages that took to find."""
    s3 = FakeS3()
    for ns, first in (("old", 1), ("new", 100), ("middle", 50)):
        script = Script(saver_on(s3), ns=ns, first=first)
        for number in range(40):
            _ = script.put({"messages": number})
    s3.page_size = page_size
    found = list(saver_on(s3).list({"configurable": {"thread_id": "thread"}}))
    ids = [it.config["configurable"]["checkpoint_id"] for it in found]
    assert ids == sorted(ids, reverse=True)
    assert len(set(ids)) == 120

"""The cache of immutable objects: what was read or written here need not be read again while a listing names it."""

from __future__ import annotations

from typing import Any

import pytest

from langgraph.checkpoint.s3 import InvalidInput, S3Saver
from langgraph.checkpoint.s3._cache import ENTRY_BYTES, SHARE, Cache, through_cache
from langgraph.checkpoint.s3._requests import ANY_VERSION, Body, Get, List, Plan, Put
from tests.support.fake_s3 import FakeDriver, FakeS3
from tests.support.threads import Script, config_for, noise, saver_on, uuid_of

THREAD = config_for("thread")
ONE_LIST = {"round_trips": 1, "lists": 1}


def spent(driver: FakeDriver, call: Any) -> dict[str, int]:
    with driver.measure() as cost:
        call()
    return {name: it for name in ("round_trips", "lists", "gets", "puts") if (it := getattr(cost, name))}


@pytest.fixture
def driver() -> FakeDriver:
    return FakeDriver()


def filled(driver: FakeDriver, length: int = 5, **options: Any) -> Script:
    """A thread with large values and a write on each checkpoint."""
    script = Script(saver_on(driver, **options))
    for number in range(length):
        _ = script.put({"n": number, "large": noise(50_000, number // 2)})
        script.write("n", number)
    return script


# -- what it saves -----------------------------------------------------------------------------------


def test_what_was_just_written_costs_a_listing(driver: FakeDriver) -> None:
    script = filled(driver)
    assert isinstance(script.saver, S3Saver)
    saver = script.saver
    assert spent(driver, lambda: saver.get_tuple(THREAD)) == ONE_LIST
    assert spent(driver, lambda: saver.get_tuple(config_for("thread", uuid_of(2)))) == ONE_LIST
    assert spent(driver, lambda: list(saver.list(THREAD))) == ONE_LIST


def test_what_was_just_read_costs_a_listing(driver: FakeDriver) -> None:
    _ = filled(driver)
    saver = saver_on(driver)
    assert spent(driver, lambda: saver.get_tuple(THREAD)) == {"round_trips": 2, "lists": 1, "gets": 3}
    assert spent(driver, lambda: saver.get_tuple(THREAD)) == ONE_LIST
    assert len(list(saver.list(THREAD))) == 5
    assert spent(driver, lambda: list(saver.list(THREAD))) == ONE_LIST


def test_none_is_kept_where_none_is_wanted(driver: FakeDriver) -> None:
    saver = filled(driver, cache_bytes=0).saver
    for _ in range(2):
        assert spent(driver, lambda: saver.get_tuple(THREAD)) == {"round_trips": 2, "lists": 1, "gets": 3}
    with pytest.raises(InvalidInput, match="cache_bytes"):
        _ = saver_on(driver, cache_bytes=-1)


def test_answers_are_the_same_and_nobody_shares_a_value(driver: FakeDriver) -> None:
    script = filled(driver)
    for _ in range(2):
        told = script.saver.get_tuple(THREAD)
        assert told == saver_on(driver).get_tuple(THREAD)
        assert told is not None
        told.checkpoint["channel_values"].clear()


# -- what it must not hide ---------------------------------------------------------------------------


def test_what_is_deleted_elsewhere_is_gone_at_once(driver: FakeDriver) -> None:
    script = filled(driver)
    for checkpoint in (5, 4):
        del driver.s3[next(key for key in driver.s3.keys("") if key.endswith(f"{uuid_of(checkpoint)}/checkpoint"))]
        told = script.saver.get_tuple(THREAD)
        assert told is not None
        assert told.checkpoint["id"] == uuid_of(checkpoint - 1)
        assert script.saver.get_tuple(config_for("thread", uuid_of(checkpoint))) is None
    saver_on(driver).delete_thread("thread")
    assert script.saver.get_tuple(THREAD) is None
    assert list(script.saver.list(THREAD)) == []


def test_what_is_written_elsewhere_is_seen_at_once(driver: FakeDriver) -> None:
    script = filled(driver)
    here = script.saver
    script.saver = saver_on(driver)
    script.write("n", "late", task="another")
    told = here.get_tuple(THREAD)
    assert told is not None
    assert told.pending_writes is not None
    assert ("another", "n", "late") in told.pending_writes
    _ = script.put({"n": 6})
    newer = here.get_tuple(THREAD)
    assert newer is not None
    assert newer.checkpoint["id"] == uuid_of(6)


def test_another_version_of_an_object_is_read(driver: FakeDriver) -> None:
    """As a put leaves it that stores again what a prune has condemned."""
    script = filled(driver, 1)
    key = next(key for key in driver.s3.keys("") if key.endswith("/checkpoint"))
    before = script.saver.get_tuple(THREAD)
    other = FakeDriver()
    twin = Script(saver_on(other))
    _ = twin.put({"n": "other", "large": noise(50_000, 0)})
    driver.s3[key] = other.s3[key]
    after = script.saver.get_tuple(THREAD)
    assert before is not None
    assert after is not None
    assert (before.checkpoint["channel_values"]["n"], after.checkpoint["channel_values"]["n"]) == (0, "other")


# -- the cache itself --------------------------------------------------------------------------------


def body(key: str, size: int, etag: str = "e") -> Body:
    return Body(key, bytes(size), etag)


ROOM = 11 + ENTRY_BYTES
"""What an object of ten bytes takes, with a key of one character."""


def test_it_is_bounded_and_the_least_recently_used_go_first() -> None:
    cache = Cache(8 * ROOM)
    for key in "abcdefgh":
        cache.add(body(key, 10))
    assert cache.find(Get("a", etag="e")) is not None
    cache.add(body("i", 10))
    assert [key for key in "abcdefghi" if key in cache] == list("acdefghi")
    cache.add(body("too large", 8 * ROOM // SHARE))
    assert "too large" not in cache
    cache.add(body("a", 10, "another"))
    assert cache.find(Get("a", etag="e")) is None
    assert cache.find(Get("a", etag=ANY_VERSION)) == body("a", 10, "another")
    cache.add(body("a", 8 * ROOM))
    assert "a" not in cache  # nor is the earlier version


def test_many_small_objects_are_bounded_too() -> None:
    """Each takes its key and its bookkeeping, if it is empty as well."""
    cache, none = Cache(100 * ROOM), Cache(0)
    for number in range(10_000):
        for it in (cache, none):
            it.add(body(f"{number}", 0))
    assert len(cache._items) == 100 * ROOM // (len("9999") + ENTRY_BYTES)
    assert not none._items


def test_the_markers_of_runs_are_not_kept(driver: FakeDriver) -> None:
    """They are never read."""
    saver = saver_on(driver)
    _ = Script(saver).put({"n": 1}, run_id="run")
    assert [key for key in saver._cache._items if "_runs" in key] == []
    assert len(saver._cache._items) == 1


def test_a_batch_is_answered_in_its_order_and_only_the_rest_is_asked() -> None:
    s3 = FakeS3({"a": b"1", "b": b"2", "c": b"3"})
    driver, cache = FakeDriver(s3), Cache()
    etags = {entry.key: entry.etag for entry in s3.apply(List("")).entries}

    def plan(*keys: str) -> Plan[list[Any]]:
        replies = yield [Get(key, lambda it: it.data, etags[key]) for key in keys]
        return list(replies)

    assert driver.run(through_cache(plan("b"), cache)) == [b"2"]
    with driver.measure() as cost:
        assert driver.run(through_cache(plan("a", "b", "c"), cache)) == [b"1", b"2", b"3"]
    assert (cost.round_trips, cost.gets) == (1, 2)
    with driver.measure() as cost:
        assert driver.run(through_cache(plan("a", "b", "c"), cache)) == [b"1", b"2", b"3"]
    assert cost.requests == 0


def test_errors_come_to_the_plan_and_it_is_closed() -> None:
    cache, closed = Cache(), []
    driver = FakeDriver(FakeS3({"a": b"1"}))
    driver.fail_before(1, OSError("no answer"))

    def broken(_: Body) -> None:
        raise ValueError("not decoded")

    def plan() -> Plan[list[str]]:
        seen = []
        try:
            for decode in (bytes, broken, broken):
                try:
                    _ = yield [Get("a", decode, ANY_VERSION)]  # type: ignore[arg-type]
                except (OSError, ValueError) as error:
                    seen.append(str(error))
            return seen
        finally:
            closed.append(True)

    assert driver.run(through_cache(plan(), cache)) == ["no answer", "not decoded", "not decoded"]
    assert closed == [True]


def test_only_what_is_to_be_kept_is_kept() -> None:
    cache, driver = Cache(), FakeDriver()

    def plan() -> Plan[None]:
        _ = yield [Put("kept", b"1", keep=True), Put("not kept", b"1")]
        _ = yield [Get("not kept")]

    driver.run(through_cache(plan(), cache))
    assert "kept" in cache
    assert "not kept" not in cache

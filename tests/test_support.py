"""The stand-ins behave like S3 and like the driver, so that what is tested on them holds on the real ones."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple
from math import comb
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langgraph.checkpoint.s3._requests import (
    ABSENT,
    MAX_DELETE,
    Body,
    Copy,
    CreateBucket,
    Delete,
    Get,
    List,
    Page,
    Plan,
    Put,
    Stored,
    copy_all,
    delete_all,
    each,
    get,
    list_all,
    list_folders,
    list_page,
    put,
    put_all,
)
from langgraph.checkpoint.s3.errors import BucketNotFound, CorruptObject, StorageError
from tests.support.fake_s3 import Cost, Crash, FakeDriver, FakeS3, Order, crash_states
from tests.support.interleave import Outcome, Scene, check_interleavings, interleavings


def text(body: Body) -> str:
    """A decoder."""
    return body.data.decode()


def names(page: Page) -> list[str]:
    """The keys of one page."""
    return [entry.key for entry in page.entries]


# The bucket.


def test_objects_are_read_back_with_their_etag() -> None:
    s3 = FakeS3()
    assert s3.apply(Get("k")) is None
    assert s3.apply(Put("k", b"v")) is Stored.DONE
    etag = f'"{hashlib.md5(b"v").hexdigest()}"'
    assert s3.apply(Get("k")) == Body("k", b"v", etag)
    assert s3.apply(Get("k", text)) == "v"
    assert s3.apply(List("")).entries[0].etag == etag


def test_conditional_puts() -> None:
    s3 = FakeS3()
    assert s3.apply(Put("k", b"1", '"other"')) is Stored.REFUSED
    assert s3.apply(Put("k", b"1", ABSENT)) is Stored.DONE
    assert s3.apply(Put("k", b"2", ABSENT)) is Stored.REFUSED
    assert s3["k"] == b"1"
    etag = s3.apply(Get("k")).etag
    assert s3.apply(Put("k", b"2", etag)) is Stored.DONE
    assert s3.apply(Put("k", b"3", etag)) is Stored.REFUSED
    assert s3["k"] == b"2"


def test_a_store_without_conditions_answers_so_and_stores_nothing() -> None:
    s3 = FakeS3(conditional=False)
    assert s3.apply(Put("k", b"1", ABSENT)) is Stored.UNSUPPORTED
    assert "k" not in s3
    assert s3.apply(Put("k", b"1")) is Stored.DONE


def test_keys_are_listed_in_the_order_of_their_utf8_bytes() -> None:
    keys = ["a", "a/", "a/b", "a0", "Z", "é", "\uffff", "\U00010000", "~", " "]
    s3 = FakeS3(dict.fromkeys(keys, b""))
    assert names(s3.apply(List(""))) == sorted(keys, key=str.encode)


@pytest.mark.parametrize("page_size", [1, 2, 3, 1000])
def test_pages_follow_each_other(page_size: int) -> None:
    s3 = FakeS3({f"p/{n}": b"x" * n for n in range(7)} | {"o": b"", "q": b""}, page_size=page_size)
    entries, pages = FakeDriver(s3).run(list_all("p/"))
    assert [(entry.key, entry.size) for entry in entries] == [(f"p/{n}", n) for n in range(7)]
    assert pages == -(-7 // page_size)


def test_the_last_page_has_no_token_even_if_it_is_full() -> None:
    s3 = FakeS3({"a": b"", "b": b""})
    assert s3.apply(List("", max_keys=2)).token is None
    assert s3.apply(List("", max_keys=1)).token is not None


def test_start_after_names_a_key_that_need_not_exist() -> None:
    s3 = FakeS3({"p/a": b"", "p/c": b"", "q": b""})
    assert names(s3.apply(List("p/", start_after="p/a"))) == ["p/c"]
    assert names(s3.apply(List("p/", start_after="p/b"))) == ["p/c"]
    assert names(s3.apply(List("p/", start_after="a"))) == ["p/a", "p/c"]
    assert names(s3.apply(List("p/", start_after="p/c"))) == []


def test_a_token_outlives_changes() -> None:
    s3 = FakeS3({"a": b"", "b": b"", "d": b""})
    token = s3.apply(List("", max_keys=2)).token
    del s3["b"]
    s3["aa"] = s3["c"] = b""
    assert names(s3.apply(List("", token=token))) == ["c", "d"]


@pytest.mark.parametrize("page_size", [1, 2, 1000])
def test_folders_are_rolled_up_once(page_size: int) -> None:
    s3 = FakeS3(
        dict.fromkeys(["t/a/1", "t/a/2/3", "t/b/1", "t/b-", "t/b0", "t/c", "t/é/1", "u/x/1"], b""), page_size=page_size
    )
    assert FakeDriver(s3).run(list_folders("t/")) == ["a", "b", "é"]
    assert FakeDriver(s3).run(list_folders("")) == ["t", "u"]


def test_entries_and_folders_share_a_page() -> None:
    s3 = FakeS3(dict.fromkeys(["a/1", "a/2", "b", "c/1"], b""))
    page = s3.apply(List("", folders=True, max_keys=2))
    assert (list(page.folders), names(page)) == (["a/"], ["b"])
    page = s3.apply(List("", folders=True, token=page.token))
    assert (list(page.folders), names(page), page.token) == (["c/"], [], None)


def check_listing(keys: set[str], prefix: str, start_after: str, folders: bool, page_size: int) -> None:
    """Compare a listing, page by page, with what its definition says."""
    expected: list[str] = []
    for key in sorted(key for key in keys if key.startswith(prefix) and key > start_after):
        head, slash, _ = key[len(prefix) :].partition("/")
        name = prefix + head + slash if folders and slash else key
        expected += [name] if name not in expected else []
    s3 = FakeS3(dict.fromkeys(keys, b""), page_size=page_size)
    listed: list[str] = []
    token = None
    while True:
        page = s3.apply(List(prefix, start_after=start_after, token=token, folders=folders))
        assert len(page.entries) + len(page.folders) <= page_size
        listed += sorted([*names(page), *page.folders])
        token = page.token
        if token is None:
            break
    assert listed == expected


def listings(letters: st.SearchStrategy[str]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Every argument of a listing, with keys made of such letters."""
    return given(
        keys=st.sets(st.text(letters, min_size=1, max_size=5)),
        prefix=st.text(letters, max_size=3),
        start_after=st.text(letters, max_size=4),
        folders=st.booleans(),
        page_size=st.integers(1, 4),
    )


@listings(st.sampled_from("ab/"))
def test_a_listing_is_what_its_definition_says(**listing: Any) -> None:
    check_listing(**listing)


@pytest.mark.campaign
@listings(st.sampled_from("a/") | st.characters(codec="utf-8"))
def test_a_listing_of_any_keys_is_what_its_definition_says(**listing: Any) -> None:
    check_listing(**listing)


def test_deleting_and_copying() -> None:
    s3 = FakeS3({"a": b"1", "b": b"2"})
    assert s3.apply(Copy("a", "c")) is True
    assert s3.apply(Copy("x", "y")) is False
    assert s3.apply(Delete(["a", "x"])) is None
    assert s3.keys() == ["b", "c"]
    assert s3["c"] == b"1"


@pytest.mark.parametrize("count", [0, MAX_DELETE + 1])
def test_deleting_none_or_too_many_is_an_error(count: int) -> None:
    with pytest.raises(StorageError):
        FakeS3().apply(Delete(["k"] * count))


@pytest.mark.parametrize("key", ["", "é" * 513])
def test_a_key_has_1_to_1024_bytes(key: str) -> None:
    with pytest.raises(StorageError):
        FakeS3().apply(Put(key, b""))


def test_a_missing_bucket() -> None:
    s3 = FakeS3(exists=False)
    with pytest.raises(BucketNotFound):
        s3.apply(Get("k"))
    assert not s3.exists
    s3.apply(CreateBucket())
    s3.apply(CreateBucket())
    assert s3.exists
    assert s3.apply(Get("k")) is None


def test_copies_and_snapshots_are_independent() -> None:
    s3 = FakeS3({"a": b"1"}, page_size=1)
    snapshot, twin = s3.snapshot(), s3.copy()
    assert twin.page_size == 1
    s3.apply(Put("b", b"2"))
    assert (twin.keys(), twin.log) == (["a"], [])
    assert twin.snapshot() == snapshot != s3.snapshot()
    s3.restore(snapshot)
    assert s3.keys() == ["a"]
    assert s3.log == [Put("b", b"2")]


def test_fifty_thousand_keys_are_listed_quickly() -> None:
    s3 = FakeS3({f"{n % 500:03}/{n:05}": b"" for n in range(50_000)})
    started = time.perf_counter()
    for _ in range(1000):
        assert len(s3.apply(List("250/", start_after="250/20000", max_keys=2)).entries) == 2
    assert len(FakeDriver(s3).run(list_folders(""))) == 500
    assert time.perf_counter() - started < 5


# The driver.


def test_costs() -> None:
    driver = FakeDriver()
    driver.run(put("k", b"four"))
    with driver.measure() as cost:
        driver.run(put_all([("a", b"1"), ("b", b"22")]))
        assert driver.run(get("k", text)) == "four"
        driver.run(get("none", text))
        driver.run(list_page(List("")))
        driver.run(copy_all([("a", "c")]))
        driver.run(delete_all(["a", "b", "c"]))
        driver.run(put_all([]))
    driver.run(get("k", text))
    assert cost == Cost(
        round_trips=6, requests=7, gets=2, puts=2, lists=1, deletes=1, copies=1, bytes_sent=3, bytes_received=4
    )
    assert driver.stats().requests == 9


def test_every_plan_is_closed() -> None:
    closed = []

    def plan(*fault: Exception) -> Plan[None]:
        try:
            yield [Get("k")]
            raise fault[0]
        finally:
            closed.append(True)

    driver = FakeDriver(crash_after=1)
    with pytest.raises(KeyError):
        driver.run(plan(KeyError()))
    with pytest.raises(Crash):
        driver.run(plan())
    assert closed == [True, True]


@pytest.mark.parametrize(("order", "last"), [("forward", b"3"), ("backward", b"1")])
def test_the_order_of_a_batch(order: Order, last: bytes) -> None:
    driver = FakeDriver(order=order)
    driver.run(put_all([("k", b"1"), ("k", b"2"), ("k", b"3")]))
    assert driver.s3["k"] == last


def test_a_shuffle_depends_on_its_seed_alone() -> None:
    def log(seed: int) -> list[Any]:
        driver = FakeDriver(order=seed)
        driver.run(put_all([(str(n), b"") for n in range(9)]))
        return list(driver.s3.log)

    assert log(1) == log(1) != log(2)


def test_replies_come_in_the_order_of_the_requests() -> None:
    driver = FakeDriver(FakeS3({"a": b"1", "b": b"2"}), order="backward")
    assert driver.run(each([get("a", text), get("b", text)])) == ["1", "2"]


def test_a_crash_stops_everything() -> None:
    driver = FakeDriver(crash_after=2)
    with pytest.raises(Crash):
        driver.run(put_all([("a", b""), ("b", b""), ("c", b"")]))
    with pytest.raises(Crash):
        driver.run(get("a", text))
    assert driver.s3.keys() == ["a", "b"]


def test_states_after_every_crash() -> None:
    s3 = FakeS3({"z": b""})
    states = [state.keys() for state in crash_states(s3, lambda: put_all([("a", b""), ("b", b"")]), "backward")]
    assert states == [["z"], ["b", "z"], ["a", "b", "z"]]
    assert s3.keys() == ["z"]


def test_a_retried_conditional_put_meets_its_own_object() -> None:
    driver = FakeDriver()
    driver.lose_answer(2)
    assert driver.run(put("a", b"", ABSENT)) is Stored.DONE
    assert driver.run(put("b", b"", ABSENT)) is Stored.REFUSED
    assert "b" in driver.s3
    assert len(driver.s3.log) == 3
    assert driver.applied == 2


def test_failures_are_thrown_once_the_whole_batch_is_done() -> None:
    driver = FakeDriver()
    driver.fail_before(1)
    driver.fail_answer(2)
    with pytest.raises(StorageError, match="request 1 failed"):
        driver.run(put_all([("a", b""), ("b", b""), ("c", b"")]))
    assert driver.s3.keys() == ["b", "c"]


def test_a_plan_may_go_on_after_a_failure() -> None:
    def plan() -> Plan[Stored]:
        try:
            yield [Get("k")]
        except StorageError:
            return (yield from put("k", b""))
        return Stored.REFUSED

    driver = FakeDriver()
    driver.fail_before(1)
    assert driver.run(plan()) is Stored.DONE


def test_what_decoding_raises_is_thrown_into_the_plan() -> None:
    def refuse(body: Body) -> None:
        raise CorruptObject(body.key)

    with pytest.raises(CorruptObject):
        FakeDriver(FakeS3({"k": b""})).run(get("k", refuse))


def test_a_request_that_raises_stop_iteration_does_not_end_the_plan() -> None:
    def stop(body: Body) -> None:
        raise StopIteration

    with pytest.raises(RuntimeError):
        FakeDriver(FakeS3({"k": b""})).run(get("k", stop))


def test_threads_share_a_driver() -> None:
    driver = FakeDriver()

    def work(name: int) -> None:
        for n in range(50):
            driver.run(put(f"{name}/{n}", b"x"))

    threads = [threading.Thread(target=work, args=(name,)) for name in range(8)]
    with driver.measure() as cost:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert astuple(cost)[:4] == (400, 400, 0, 400)
    assert len(driver.s3) == 400


# Plans in lockstep.


def test_each_takes_as_many_round_trips_as_the_longest() -> None:
    def read(*keys: str) -> Plan[list[str | None]]:
        result = []
        for key in keys:
            result.append((yield from get(key, text)))
        return result

    driver = FakeDriver(FakeS3({key: key.encode() for key in "abcd"}))
    with driver.measure() as cost:
        assert driver.run(each([read("a"), read(), read("b", "c", "d")])) == [["a"], [], ["b", "c", "d"]]
    assert (cost.round_trips, cost.gets) == (3, 4)


def test_each_of_nothing_costs_nothing() -> None:
    driver = FakeDriver()
    assert driver.run(each([])) == []
    assert driver.stats() == Cost()


def test_each_closes_its_plans_when_one_fails() -> None:
    closed = []

    def plan(name: str) -> Plan[None]:
        try:
            yield [Get(name)]
            yield [Get(name)]
        finally:
            closed.append(name)

    driver = FakeDriver()
    driver.fail_before(3)
    with pytest.raises(StorageError):
        driver.run(each([plan("a"), plan("b")]))
    assert closed == ["a", "b"]


# Interleavings.


def steps(name: str, count: int) -> Plan[str]:
    """A plan of so many round trips of one request each."""
    for n in range(count):
        yield [Put(f"{name}{n}", b"")]
    return name


@pytest.mark.parametrize(("a", "b"), [(0, 0), (1, 0), (1, 1), (2, 3), (5, 4)])
def test_every_schedule_is_run_once(a: int, b: int) -> None:
    outcomes = list(interleavings(lambda: (FakeS3(), [steps("a", a), lambda: steps("b", b)])))
    assert len(outcomes) == comb(a + b, a)
    assert len({outcome.schedule for outcome in outcomes}) == len(outcomes)
    assert all(outcome.results == ["a", "b"] and len(outcome.s3) == a + b for outcome in outcomes)


def test_three_plans() -> None:
    def make() -> Scene:
        return FakeS3(), [steps(name, 2) for name in "abc"]

    assert check_interleavings(make, lambda _: None) == 6 * 5 * 4 * 3 * 2 // 8


def test_a_batch_is_interleaved_request_by_request() -> None:
    def make() -> Scene:
        return FakeS3(), [put_all([("k", b"1"), ("k", b"2")]), get("k", text)]

    assert [outcome.results[1] for outcome in interleavings(make)] == ["2", "1", None]
    assert [outcome.results[1] for outcome in interleavings(make, order="backward")] == ["1", "2", None]


def increment() -> Plan[Stored]:
    """Read, modify, write: loses updates without a condition, and is refused with one."""
    body = yield from get("n", lambda body: body)
    assert body is not None
    return (yield from put("n", str(int(body.data) + 1).encode(), body.etag))


def race() -> Scene:
    return FakeS3({"n": b"0"}), [increment, increment]


def test_races_are_found() -> None:
    results = [sorted(result.value for result in outcome.results) for outcome in interleavings(race)]
    assert len(results) == comb(4, 2)
    assert results.count(["done", "done"]) == 2
    assert results.count(["done", "refused"]) == 4


def test_a_failed_check_tells_the_schedule() -> None:
    def check(outcome: Outcome) -> None:
        assert outcome.s3["n"] == b"2"

    with pytest.raises(AssertionError, match=r"(?s)schedule 2: .*plan 1: Put\(key='n'"):
        check_interleavings(race, check)


def test_errors_of_the_saver_are_results() -> None:
    def fail() -> Plan[None]:
        _ = yield [Get("k")]
        raise CorruptObject("k")

    def refuse(body: Body) -> None:
        raise CorruptObject(body.key)

    make = lambda: (FakeS3({"k": b""}), [fail(), get("k", refuse), steps("a", 1)])  # noqa: E731
    for outcome in interleavings(make):
        assert [type(result) for result in outcome.results] == [CorruptObject, CorruptObject, str]


@pytest.mark.parametrize(("limit", "count"), [(100, 100), (252, 252), (1000, 252)])
def test_too_many_schedules_are_sampled(limit: int, count: int) -> None:
    def schedules(seed: int) -> Sequence[tuple[int, ...]]:
        return [outcome.schedule for outcome in interleavings(make, limit=limit, seed=seed)]

    def make() -> Scene:
        return FakeS3(), [steps("a", 5), steps("b", 5)]

    assert len(schedules(1)) == count
    assert schedules(1) == schedules(1)
    assert (schedules(1) != schedules(2)) == (limit < 252)

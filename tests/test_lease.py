"""Leases: one holder at a time, whatever is lost, late or stopped."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from langgraph.checkpoint.s3 import (
    Contended,
    CorruptObject,
    InvalidInput,
    LeaseLost,
    S3Saver,
    StorageError,
    ThreadBusy,
)
from langgraph.checkpoint.s3._keys import lease_key
from langgraph.checkpoint.s3._plans.lease import Tenure, acquire_plan, release_plan, renew_plan
from langgraph.checkpoint.s3._requests import Plan
from langgraph.checkpoint.s3.aio import AsyncS3Saver
from langgraph.checkpoint.s3.lease import Lease
from tests.support.fake_s3 import Crash, FakeDriver, FakeS3
from tests.support.interleave import Outcome, check_interleavings
from tests.support.savers import BotoStore, Store, shared_client
from tests.support.threads import Script, config_for, saver_on

TTL = timedelta(seconds=60)
KEY = lease_key("prefix/", "thread")
OWNERS = itertools.count()


def tenure_on(s3: FakeS3, ttl: float = 60.0) -> Tenure:
    """A holder whose clock is the store's."""
    return Tenure("bucket", KEY, "thread", ttl, f"owner {next(OWNERS)}", lambda: s3.now)


def run(s3: FakeS3, plan: Plan[None]) -> None:
    FakeDriver(s3).run(plan)


def held(s3: FakeS3, ttl: float = 60.0) -> Tenure:
    it = tenure_on(s3, ttl)
    run(s3, acquire_plan(it))
    return it


# -- one holder at a time --------------------------------------------------------------------------


def test_a_thread_is_held_and_given_back() -> None:
    s3 = FakeS3()
    with saver_on(s3).lease("thread", TTL) as lease:
        assert (lease.thread_id, lease.number) == ("thread", int(s3.now * 1000))
        assert 59 < lease.left <= 60
        with saver_on(s3).lease("another", TTL):
            pass
        s3.now += 12
        with pytest.raises(ThreadBusy, match=r"held by another run since 12 s .* for at most 49 s more") as caught:
            held(s3)
        assert (caught.value.thread_id, caught.value.age, caught.value.left) == ("thread", 12, 49)
    with saver_on(s3).lease("thread", TTL) as next_lease:
        assert next_lease.number > lease.number


def test_it_is_given_back_after_an_error() -> None:
    s3 = FakeS3()
    with pytest.raises(KeyError), saver_on(s3).lease("thread", TTL):
        raise KeyError
    _ = held(s3)


def test_it_ends_by_the_stores_clock_and_for_its_holder_before() -> None:
    s3 = FakeS3()
    it = held(s3)
    s3.now += 60
    assert it.deadline <= s3.now
    with pytest.raises(ThreadBusy):
        _ = held(s3)
    s3.now += 1
    other = held(s3)
    assert other.holding is not None
    assert it.holding is not None
    assert other.holding.number > it.holding.number


def test_a_holder_whose_lease_was_taken_hears_of_it() -> None:
    s3 = FakeS3()
    it = held(s3)
    s3.now += 61
    _ = held(s3)
    for plan in (renew_plan(it), release_plan(it)):
        with pytest.raises(LeaseLost, match="was taken by another run"):
            run(s3, plan)
    with pytest.raises(ThreadBusy):
        _ = held(s3)


def test_leaving_the_block_tells_of_a_lost_lease_unless_there_is_an_error() -> None:
    for error in (None, KeyError()):
        s3 = FakeS3()
        with pytest.raises(KeyError if error else LeaseLost), saver_on(s3).lease("thread", TTL):
            lose(s3, error)


def lose(s3: FakeS3, error: Exception | None) -> None:
    s3.now += 61
    _ = held(s3)
    if error:
        raise error


def test_a_lease_that_nobody_has_taken_can_be_renewed_late() -> None:
    s3 = FakeS3()
    it = held(s3)
    s3.now += 1000
    run(s3, renew_plan(it))
    assert it.deadline == s3.now + 60
    with pytest.raises(ThreadBusy, match="since 1000 s"):
        _ = held(s3)


def test_a_renewal_lasts() -> None:
    s3 = FakeS3()
    with saver_on(s3).lease("thread", TTL) as lease:
        for _ in range(5):
            s3.now += 50
            lease.renew()
        with pytest.raises(ThreadBusy, match=r"since 250 s .* for at most 61 s more"):
            _ = held(s3)


def test_the_number_grows_though_the_object_was_deleted() -> None:
    s3 = FakeS3()
    numbers = []
    for _ in range(3):
        with saver_on(s3).lease("thread", TTL) as lease:
            numbers.append(lease.number)
        with saver_on(s3).lease("thread", TTL) as lease:  # at the same moment
            numbers.append(lease.number)
        s3.now += 10
        del s3[KEY]
    assert numbers == sorted(set(numbers))


def test_threads_go_on_without_asking_for_it() -> None:
    s3 = FakeS3()
    with saver_on(s3).lease("thread", TTL):
        saver = saver_on(s3)
        _ = Script(saver).put({"n": 1})
        saver.delete_thread("thread")
        assert saver.get_tuple(config_for("thread")) is None
    assert [it.config for it in saver.list(None)] == []


def test_costs() -> None:
    s3 = FakeS3()
    saver = saver_on(s3)
    driver: Any = saver._driver
    for round_trips, requests in ((4, 6), (3, 4)):  # the first tells whether the store keeps to conditions
        with driver.measure() as cost, saver.lease("thread", TTL):
            pass
        assert (cost.round_trips, cost.requests) == (round_trips, requests)
    with saver.lease("thread", TTL) as lease, driver.measure() as cost:
        lease.renew()
    assert (cost.round_trips, cost.requests) == (1, 1)


# -- races, crashes, lost answers ------------------------------------------------------------------


@pytest.mark.parametrize("there", ["nothing", "free", "expired"])
@pytest.mark.parametrize("order", ["forward", "backward"])
@pytest.mark.parametrize("count", [2, 3])
def test_one_of_many_gets_it(there: str, order: Any, count: int) -> None:
    def make() -> Any:
        s3 = FakeS3()
        if there != "nothing":
            it = held(s3)
            if there == "free":
                run(s3, release_plan(it))
            s3.now += 61
        return s3, [acquire_plan(tenure_on(s3)) for _ in range(count)]

    def check(outcome: Outcome) -> None:
        won = [it for it in outcome.results if it is None]
        assert len(won) == 1
        assert all(it is None or isinstance(it, ThreadBusy | Contended) for it in outcome.results)

    limit = None if count == 2 else 300
    assert check_interleavings(make, check, order=order, limit=limit) > 10


def test_a_late_renewal_or_release_and_another_holder() -> None:
    for late in (renew_plan, release_plan):

        def make(late: Any = late) -> Any:
            s3 = FakeS3()
            it = held(s3)
            s3.now += 61
            return s3, [late(it), acquire_plan(tenure_on(s3))]

        def check(outcome: Outcome, late: Any = late) -> None:
            first, second = outcome.results
            if late is renew_plan:  # one of them has it
                assert (first is None) != (second is None)
                assert isinstance(first, LeaseLost) or isinstance(second, ThreadBusy)
            else:
                assert second is None
                assert first is None or isinstance(first, LeaseLost)

        assert check_interleavings(make, check) > 2


def steps(s3: FakeS3) -> Iterator[tuple[Tenure, Any]]:
    """Each thing that a holder does, on its way."""
    it = tenure_on(s3)
    for plan in (acquire_plan, renew_plan, renew_plan, release_plan):
        yield it, plan


@pytest.mark.parametrize("number", range(1, 6))
def test_whose_answer_is_lost_still_holds(number: int) -> None:
    """botocore sends it again, and that is refused by what the first one wrote."""
    s3 = FakeS3()
    driver = FakeDriver(s3)
    driver.lose_answer(number)
    for it, plan in steps(s3):
        driver.run(plan(it))
        if plan is not release_plan:
            with pytest.raises(ThreadBusy):
                _ = held(s3)
    _ = held(s3)


def live(driver: FakeDriver) -> None:
    for it, plan in steps(driver.s3):
        driver.run(plan(it))
    driver.run(acquire_plan(tenure_on(driver.s3)))


@pytest.mark.parametrize("after", range(7))
def test_whoever_dies_frees_it_in_time(after: int) -> None:
    s3 = FakeS3()
    driver = FakeDriver(s3, crash_after=after)
    with pytest.raises(Crash):
        live(driver)
    s3.now += 61
    _ = held(s3)


@pytest.mark.parametrize("number", range(1, 5))
def test_a_failed_request_is_an_error_and_never_a_lease(number: int) -> None:
    for fail in ("fail_before", "fail_answer"):
        s3 = FakeS3()
        saver = saver_on(s3)
        driver: Any = saver._driver
        getattr(driver, fail)(number)
        with pytest.raises(StorageError), saver.lease("thread", TTL):
            raise AssertionError("it was never held")
        s3.now += 61
        _ = held(s3)


# -- stores and input ------------------------------------------------------------------------------


class Heedless(FakeS3):
    """Takes conditions and does not keep to them."""

    def __init__(self, ignored: str) -> None:
        super().__init__()
        self.ignored = ignored

    def apply(self, request: Any) -> Any:
        condition = getattr(request, "if_match", None)
        kind = None if condition is None else "absent" if condition == "" else "etag"
        if kind == self.ignored or (kind and self.ignored == "both"):
            return super().apply(type(request)(request.key, request.body, noted=request.noted))
        return super().apply(request)


@pytest.mark.parametrize("ignored", ["absent", "etag", "both"])
def test_a_store_that_ignores_conditions_is_refused(ignored: str) -> None:
    s3 = Heedless(ignored)
    saver = saver_on(s3)
    for _ in range(2):
        with pytest.raises(StorageError, match="does not keep to the conditions"), saver.lease("thread", TTL):
            raise AssertionError("it was never held")
        assert not s3.keys()


def test_a_store_without_conditions_is_refused() -> None:
    s3 = FakeS3(conditional=False)
    with pytest.raises(StorageError, match="does not keep to the conditions"):
        _ = held(s3)
    assert not s3.keys()


def test_a_store_that_matches_no_etag_is_refused() -> None:
    """As Ceph does on a versioned bucket."""
    s3 = FakeS3()
    run(s3, release_plan(held(s3)))

    class Never(FakeS3):
        def apply(self, request: Any) -> Any:
            if getattr(request, "if_match", None):
                request = type(request)(request.key, request.body, '"other"')
            return super().apply(request)

    never = Never({KEY: s3[KEY]})
    with pytest.raises(StorageError, match="does not keep to the conditions"):
        _ = held(never)


@pytest.mark.parametrize("ttl", [60, None, timedelta(0), timedelta(seconds=0.5), timedelta(days=8), -TTL])
def test_a_bad_ttl_is_refused(ttl: Any) -> None:
    s3 = FakeS3()
    with pytest.raises(InvalidInput, match="ttl must be a timedelta"), saver_on(s3).lease("thread", ttl):
        pass
    with pytest.raises(InvalidInput, match="thread_id"), saver_on(s3).lease(None, TTL):  # type: ignore[arg-type]
        pass
    assert not s3.log


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff", b'{"owner": 1}'])
def test_a_foreign_object_is_told_of(content: bytes) -> None:
    with pytest.raises(CorruptObject, match=f"s3://bucket/{KEY} is no lease"):
        _ = held(FakeS3({KEY: content}))


# -- over the real clients -------------------------------------------------------------------------


def test_over_either_driver(store: Store) -> None:
    saver, other = store.saver(), store.saver()
    if isinstance(saver, AsyncS3Saver):
        asyncio.run(asynchronous(saver, other))
    else:
        assert isinstance(other, S3Saver)
        with saver.lease("thread", TTL) as lease:
            with pytest.raises(ThreadBusy), other.lease("thread", TTL):
                pass
            lease.renew()
            assert isinstance(lease, Lease)
        with other.lease("thread", TTL) as next_lease:
            assert next_lease.number > lease.number


async def asynchronous(saver: AsyncS3Saver, other: Any) -> None:
    async with saver.lease("thread", TTL) as lease:
        with pytest.raises(ThreadBusy):
            async with other.lease("thread", TTL):
                pass
        await lease.renew()
    async with other.lease("thread", TTL) as next_lease:
        assert next_lease.number > lease.number
    with pytest.raises(KeyError):
        async with saver.lease("thread", TTL):
            raise KeyError
    task = asyncio.create_task(forever(saver))
    await asyncio.sleep(0.2)
    _ = task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with other.lease("thread", TTL):
        pass
    for each in (saver, other):
        await each.aclose()


async def forever(saver: AsyncS3Saver) -> None:
    async with saver.lease("thread", TTL):
        await asyncio.Event().wait()


@pytest.mark.rgw
def test_many_at_once_on_a_real_server(s3_endpoint: str) -> None:
    """Whoever is inside is alone, and numbers grow in the order of entry."""
    store = BotoStore(s3_endpoint)
    inside = threading.Semaphore(1)
    numbers: list[int] = []

    def work(saver: S3Saver) -> int:
        times = 0
        while times < 5:
            try:
                with saver.lease("thread", TTL) as lease:
                    assert inside.acquire(blocking=False), "two at once"
                    numbers.append(lease.number)
                    inside.release()
                    times += 1
            except (ThreadBusy, Contended):
                pass
        return times

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(work, [store.saver() for _ in range(6)])) == [5] * 6
    assert numbers == sorted(set(numbers))
    store.close()


@pytest.mark.rgw
def test_a_versioned_bucket_of_ceph_is_refused(s3_endpoint: str) -> None:
    store = BotoStore(s3_endpoint)
    shared_client(s3_endpoint).put_bucket_versioning(Bucket=store.bucket, VersioningConfiguration={"Status": "Enabled"})
    with pytest.raises(StorageError, match="does not keep to the conditions"), store.saver().lease("thread", TTL):
        pass
    store.close()

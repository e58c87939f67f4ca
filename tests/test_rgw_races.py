"""Savers at work at once on one thread, on RADOS Gateway (`make test-rgw`): moto's conditional writes are not atomic.

The schedules are the machine's. `test_races.py` goes through all of them, on the bucket in memory.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.base.id import uuid6

from langgraph.checkpoint.s3 import CheckpointPruned, Contended, S3Saver
from langgraph.checkpoint.s3._boto import BotoDriver
from langgraph.checkpoint.s3._requests import ABSENT, Stored, get, put
from langgraph.checkpoint.s3.retention import RetentionPolicy
from tests.support.savers import AioStore, BotoStore, shared_client
from tests.support.threads import Script, config_for, noise

pytestmark = pytest.mark.rgw

STORES: dict[str, Callable[[str], BotoStore | AioStore]] = {"boto": BotoStore, "aio": AioStore}
MANY = 8
RUNS = 4
STEPS = 12


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, s3_endpoint: str) -> Iterator[BotoStore | AioStore]:
    store = STORES[request.param](s3_endpoint)
    yield store
    store.close()


def at_once(*work: Callable[[], Any]) -> list[Any]:
    """Run all of it, each in a thread, from the same moment; gives what each returns."""
    ready = threading.Barrier(len(work))

    def go(it: Callable[[], Any]) -> Any:
        ready.wait()
        return it()

    with ThreadPoolExecutor(len(work)) as pool:
        return list(pool.map(go, work))


# -- conditional writes ----------------------------------------------------------------------------


def driver_on(endpoint: str, bucket: str) -> BotoDriver:
    return BotoDriver(bucket, client=shared_client(endpoint), endpoint_url=endpoint)


@pytest.mark.parametrize("attempt", range(5))
def test_one_of_many_creates(s3_endpoint: str, attempt: int) -> None:
    store = BotoStore(s3_endpoint)
    driver = driver_on(s3_endpoint, store.bucket)
    outcomes = at_once(*(partial(driver.run, put("k", str(n).encode(), ABSENT)) for n in range(MANY)))
    winners = [number for number, outcome in enumerate(outcomes) if outcome is Stored.DONE]
    there = driver.run(get("k", lambda body: body.data))
    # A winner whose answer was an error tries again, and is refused by what it wrote itself: there may be none.
    assert len(winners) <= 1
    assert not winners or there == str(winners[0]).encode()
    assert there is not None


@pytest.mark.parametrize("attempt", range(5))
def test_one_of_many_replaces(s3_endpoint: str, attempt: int) -> None:
    store = BotoStore(s3_endpoint)
    driver = driver_on(s3_endpoint, store.bucket)
    driver.run(put("k", b"old"))
    etag = driver.run(get("k", lambda body: body.etag))
    outcomes = at_once(*(partial(driver.run, put("k", str(n).encode(), etag)) for n in range(MANY)))
    assert outcomes.count(Stored.DONE) <= 1
    assert set(outcomes) <= {Stored.DONE, Stored.REFUSED}
    assert driver.run(get("k", lambda body: body.data)) != b"old"


# -- one task's writes -----------------------------------------------------------------------------


def test_writes_of_many_at_once(store: BotoStore | AioStore) -> None:
    """Each task's writes are there; of those that several processes store for the same task, one's alone."""
    script = Script(store.saver())
    _ = script.put({"n": 0})

    def write(number: int, saver: BaseCheckpointSaver[str]) -> None:
        for task in ("own", "shared"):
            name = f"{task} {number}" if task == "own" else task
            saver.put_writes(script.config, [(f"{task} {number}", number)], name)

    at_once(*(partial(write, number, store.saver()) for number in range(MANY)))
    found = store.saver().get_tuple(script.config)
    assert found is not None
    assert found.pending_writes is not None
    channels = [channel for _, channel, _ in found.pending_writes]
    own = {f"own {number}" for number in range(MANY)}
    assert len(channels) == len(set(channels))
    assert own <= set(channels)
    # The first one, as with InMemorySaver.
    assert len(set(channels) - own) == 1


# -- puts beside prunes ----------------------------------------------------------------------------


def is_whole(found: CheckpointTuple) -> bool:
    values = found.checkpoint["channel_values"]
    return bool(values["large"] == noise(20_000, values["origin"]))


def run_beside(store: BotoStore | AioStore, number: int, acknowledged: list[str]) -> None:
    """Goes on from the newest checkpoint, again and again: each large value is inherited a few times."""
    saver = store.saver()
    for step in range(STEPS):
        found = saver.get_tuple(config_for("thread"))
        assert found is None or is_whole(found)
        script = Script(saver, first=step)
        if found is not None:
            script.go_on(found)
        origin = 100 * number + step
        values = {"large": noise(20_000, origin), "origin": origin} if step % 4 == 0 else {"n": step}
        with suppress(CheckpointPruned):  # another run has gone further, and a prune has taken this one's parent
            _ = script.put(values, id=str(uuid6(clock_seq=-2)))
            assert script.head is not None
            acknowledged.append(script.head)
            script.write("n", step)


def prune_beside(prune: Callable[[], Any], over: threading.Event) -> int:
    """Prunes until the runs are over."""
    times = 0
    while not over.is_set():
        with suppress(Contended):  # by the other prune
            prune()
            times += 1
    return times


@pytest.mark.parametrize("attempt", range(3))
def test_runs_beside_prunes(store: BotoStore | AioStore, attempt: int) -> None:
    """Whatever is left is whole, and the newest that was acknowledged is left, with what it inherits."""
    acknowledged: list[str] = []
    over = threading.Event()
    keeper: Any = store.saver()
    sweeper = store.saver(disposal="trash")
    policy = RetentionPolicy(keep_last=3, min_age=timedelta(0))

    def retain() -> Any:
        if isinstance(sweeper, S3Saver):
            return sweeper.apply_retention(policy, ["thread"])
        loop = sweeper._driver.loop()
        return asyncio.run_coroutine_threadsafe(sweeper.aapply_retention(policy, ["thread"]), loop).result()

    def runs() -> None:
        try:
            at_once(*(partial(run_beside, store, number, acknowledged) for number in range(RUNS)))
        finally:
            over.set()

    prunes = at_once(
        runs,
        partial(prune_beside, lambda: keeper.prune(["thread"], strategy="keep_latest"), over),
        partial(prune_beside, retain, over),
    )
    assert all(prunes[1:])
    reader = store.saver()
    left = list(reader.list(config_for("thread")))
    assert all(is_whole(found) for found in left)
    assert left[0].checkpoint["id"] == max(acknowledged)
    assert reader.get_tuple(config_for("thread")) == left[0]
    _ = keeper.prune(["thread"], strategy="keep_latest")
    assert [it.checkpoint["id"] for it in store.saver().list(config_for("thread"))] == [max(acknowledged)]

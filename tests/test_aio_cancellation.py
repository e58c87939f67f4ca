"""Asynchronous operations that are cancelled: at each of their requests, and by a time-out on a slow server."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any

import pytest

from langgraph.checkpoint.s3.aio import AsyncS3Saver
from tests.support.aio_client import FakeClient, Moment
from tests.support.drivers import Loop
from tests.support.fake_s3 import FakeS3
from tests.support.savers import BUCKETS
from tests.support.threads import config_for, noise, uuid_of
from tests.test_crashes import NAMES, OPTIONS, check_between, distinct, observe, run_again, start, states_of, target


async def alone() -> bool:
    """Whether no other task is left on this loop."""
    return asyncio.all_tasks() == {asyncio.current_task()}


# -- at each request, on the bucket in memory --------------------------------------------------------


async def cancelled_at(name: str, base: FakeS3, number: int, moment: Moment, patience: int) -> FakeS3:
    """The bucket after an operation was cancelled while its number-th request was under way.

    `patience` is how often the others of its batch come to a turn before.
    """
    client = FakeClient(base.copy())
    client.stop_at(number, moment)
    saver = AsyncS3Saver("bucket", "prefix", client=client, **OPTIONS)
    task = asyncio.ensure_future(saver._driver.run(start(name, base)))
    _ = await asyncio.wait({task, asyncio.ensure_future(client.reached.wait())}, return_when="FIRST_COMPLETED")
    for _ in range(patience):
        await asyncio.sleep(0)
    assert task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert client.under_way == 0
    assert await alone()
    assert await saver.aget_tuple(config_for("bystander"))  # the saver is usable
    return client.s3


@NAMES
@pytest.mark.parametrize("patience", [0, 3])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_cancelled_at_each_request(name: str, moment: Moment, patience: int) -> None:
    base, old, new, requests = states_of(name)
    states = [asyncio.run(cancelled_at(name, base, number + 1, moment, patience)) for number in range(requests)]
    for s3 in distinct(states):
        check_between(name, s3, old, new)
        assert run_again(name, s3, base) == new
    assert observe(base, target(name)) == old


def test_cancelled_again_while_it_is_being_cancelled() -> None:
    """However impatient the caller: nothing is under way once it has its CancelledError."""

    class Slow(FakeClient):
        async def put_object(self, **arguments: Any) -> dict[str, Any]:
            self.under_way += 1
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(0.05)  # as closing a connection may take
                self.under_way -= 1
            return {}

    async def main() -> None:
        client = Slow(FakeS3())
        saver = AsyncS3Saver("bucket", client=client)
        task = asyncio.ensure_future(saver._driver.run(put_of_many()))
        await asyncio.sleep(0.01)
        assert client.under_way == 4
        while not task.done():
            _ = task.cancel()
            await asyncio.sleep(0.01)
        assert task.cancelled()
        assert client.under_way == 0
        assert await alone()

    asyncio.run(main())


def put_of_many() -> Any:
    from langgraph.checkpoint.s3._requests import put_all

    return put_all([(key, b"") for key in "abcd"])


def test_cancelled_while_it_is_packing() -> None:
    """A plan is closed only after the thread that steps it has come back."""
    import threading

    packing, go_on = threading.Event(), threading.Event()
    closed: list[bool] = []

    def plan() -> Any:
        try:
            packing.set()
            assert go_on.wait(10)
            yield []
        finally:
            closed.append(go_on.is_set())

    async def main() -> None:
        saver = AsyncS3Saver("bucket", client=FakeClient(FakeS3()))
        task = asyncio.ensure_future(saver._driver.run(plan(), large=True))
        assert await asyncio.to_thread(packing.wait, 10)
        _ = task.cancel()
        await asyncio.sleep(0.05)
        assert not task.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert closed == [True]

    asyncio.run(main())


# -- by a time-out, on a server that takes its time --------------------------------------------------


@pytest.fixture(scope="module")
def slow_endpoint(s3_endpoint: str) -> Iterator[str]:
    """The server behind a relay that holds every answer back for a while."""
    loop = Loop()
    port = int(s3_endpoint.rsplit(":", 1)[1])
    server = loop.run(asyncio.start_server(lambda reader, writer: relay(reader, writer, port), "127.0.0.1", 0))
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    loop.run(shut(server))
    loop.close()


async def shut(server: asyncio.Server) -> None:
    server.close()
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        _ = task.cancel()
    _ = await asyncio.gather(*tasks, return_exceptions=True)


async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
    there, back = await asyncio.open_connection("127.0.0.1", port)
    try:
        _ = await asyncio.gather(pump(reader, back, 0), pump(there, writer, 0.02))
    except ConnectionError:
        pass
    finally:
        back.close()
        writer.close()


async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, delay: float) -> None:
    while data := await source.read(1 << 16):
        await asyncio.sleep(delay)
        sink.write(data)
        await sink.drain()
    sink.close()


async def put(saver: AsyncS3Saver, number: int, thread: str = "thread") -> None:
    """A checkpoint with a large value of its own and one that it inherits."""
    checkpoint_id = uuid_of(number)
    values = {"own": noise(50_000, number), "inherited": noise(50_000, 0)}
    versions = {"own": f"{number:032}.0", "inherited": f"{1:032}.0"}
    checkpoint: Any = {
        "v": 4,
        "id": checkpoint_id,
        "ts": "2026-01-01T00:00:00+00:00",
        "channel_values": values,
        "channel_versions": versions,
        "versions_seen": {},
        "updated_channels": None,
    }
    new = versions if number == 1 else {"own": versions["own"]}
    parent = uuid_of(number - 1) if number > 1 else None
    _ = await saver.aput(config_for(thread, parent), checkpoint, {"source": "loop", "step": number}, dict(new))


async def listed(saver: AsyncS3Saver, thread: str) -> list[Any]:
    return [it async for it in saver.alist(config_for(thread))]


OPERATIONS: dict[str, Callable[[AsyncS3Saver], Coroutine[Any, Any, Any]]] = {
    "aput": lambda saver: put(saver, 6),
    "aput_writes": lambda saver: saver.aput_writes(config_for("thread", uuid_of(5)), [("own", 1)], "task"),
    "aget_tuple": lambda saver: saver.aget_tuple(config_for("thread")),
    "alist": lambda saver: listed(saver, "thread"),
    "acopy_thread": lambda saver: saver.acopy_thread("thread", "fork"),
    "aprune": lambda saver: saver.aprune(["thread"]),
    "adelete_thread": lambda saver: saver.adelete_thread("thread"),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_timed_out_on_a_slow_server(slow_endpoint: str, name: str) -> None:
    """Time-outs all over the operation: then the thread is as it was or as it is to be, and the saver goes on."""

    async def main() -> None:
        async with AsyncS3Saver(f"slow-{next(BUCKETS)}", endpoint_url=slow_endpoint) as saver:
            await saver.setup(create_bucket=True)
            for number in range(1, 6):
                await put(saver, number)
            old = await listed(saver, "thread")
            finished = False
            timeout = 0.005
            while not finished:
                finished = await in_time(OPERATIONS[name](saver), timeout)
                assert await alone()
                now = await listed(saver, "thread")
                latest = await saver.aget_tuple(config_for("thread"))
                assert {len(it.pending_writes) for it in now} <= {0, 1}
                bare = [it._replace(pending_writes=[]) for it in now]
                assert [it for it in bare if it.checkpoint["id"] != uuid_of(6)] == [it for it in old if it in bare]
                # What was sent may still arrive: between two reads as well.
                if name != "adelete_thread":
                    assert latest is not None
                    assert latest.checkpoint["id"] == uuid_of(6) or latest._replace(pending_writes=[]) == bare[0]
                assert name in ("aprune", "adelete_thread") or bare[-len(old) :] == old
                timeout *= 1.6

    asyncio.run(main())
    gc.collect()  # a connection left open would show now


async def in_time(operation: Awaitable[Any], seconds: float) -> bool:
    try:
        _ = await asyncio.wait_for(operation, seconds)
    except (TimeoutError, asyncio.TimeoutError):
        return False
    return True

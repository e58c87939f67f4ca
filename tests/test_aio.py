"""AsyncS3Saver at home in any event loop: loops that come and go, clients, threads, concurrency."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

import boto3
import pytest
from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import START, StateGraph

from langgraph.checkpoint.s3 import InvalidInput, S3Saver, StorageError
from langgraph.checkpoint.s3._aioboto import AioBotoDriver, _Resolver
from langgraph.checkpoint.s3._calls import PARALLEL
from langgraph.checkpoint.s3._plans.listing import MAX_WINDOW
from langgraph.checkpoint.s3._weight import LARGE, MANY, is_large
from langgraph.checkpoint.s3.aio import AsyncS3Saver
from tests.support.aio_client import FakeClient
from tests.support.drivers import Loop
from tests.support.fake_s3 import FakeS3
from tests.support.savers import BUCKETS, PREFIX
from tests.support.threads import Script, config_for, noise, saver_on, uuid_of

THREAD = config_for("thread")


def checkpoint(number: int, **values: Any) -> Any:
    return {
        "v": 4,
        "id": uuid_of(number),
        "ts": "2026-01-01T00:00:00+00:00",
        "channel_values": values,
        "channel_versions": dict.fromkeys(values, f"{number:032}.0"),
        "versions_seen": {},
        "updated_channels": None,
    }


async def put(saver: AsyncS3Saver, number: int, thread: str = "thread", **values: Any) -> None:
    it = checkpoint(number, **{"n": number, **values})
    _ = await saver.aput(config_for(thread), it, {"source": "loop", "step": number}, dict(it["channel_versions"]))


@pytest.fixture
def bucket(s3_endpoint: str) -> str:
    """An empty bucket."""
    bucket = f"aio-{next(BUCKETS)}"
    _ = boto3.session.Session().client("s3", endpoint_url=s3_endpoint).create_bucket(Bucket=bucket)
    return bucket


@pytest.fixture
def make(bucket: str, s3_endpoint: str) -> Callable[..., AsyncS3Saver]:
    return partial(AsyncS3Saver, bucket, PREFIX, endpoint_url=s3_endpoint)


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    """What was left open shows when it is collected: warnings are errors."""
    yield
    gc.collect()


# -- loops -------------------------------------------------------------------------------------------


def test_one_saver_serves_one_asyncio_run_after_the_other(make: Callable[..., AsyncS3Saver]) -> None:
    """As a Lambda handler with a saver at module level."""
    saver = make()

    async def handle(event: int) -> list[int]:
        await put(saver, event, large=noise(50_000, event))
        return [it.checkpoint["channel_values"]["n"] async for it in saver.alist(THREAD)]

    for event in range(1, 11):
        assert asyncio.run(handle(event)) == list(range(event, 0, -1))
        gc.collect()
    assert len(saver._driver._in_this_process().connections) == 1


def test_two_loops_in_two_threads_at_once(make: Callable[..., AsyncS3Saver]) -> None:
    saver = make()
    both = threading.Barrier(2, timeout=20)

    async def main(thread: str) -> list[int]:
        for number in range(1, 9):
            await put(saver, number, thread)
            _ = await asyncio.to_thread(both.wait)
        return [it.checkpoint["channel_values"]["n"] async for it in saver.alist(config_for(thread))]

    with ThreadPoolExecutor(2) as pool:
        told = [it.result() for it in [pool.submit(asyncio.run, main(thread)) for thread in ("left", "right")]]
    assert told == [[8, 7, 6, 5, 4, 3, 2, 1]] * 2


@pytest.mark.moto_only("it keeps connections open, which nobody can close then")
def test_a_loop_that_is_closed_without_being_shut_down(make: Callable[..., AsyncS3Saver]) -> None:
    """What is left of its client is closed from the next loop. Connections are not: moto leaves none open."""
    saver = make()
    for number in range(1, 4):
        loop = asyncio.new_event_loop()
        loop.run_until_complete(put(saver, number))
        loop.close()
        del loop
    asyncio.run(put(saver, 4))
    gc.collect()


def test_it_is_closed_by_its_block_and_can_be_used_again(make: Callable[..., AsyncS3Saver]) -> None:
    async def main() -> None:
        async with make() as saver:
            await put(saver, 1)
            client = await client_of(saver)
        assert not saver._driver._connection().client
        await put(saver, 2)
        assert await client_of(saver) is not client
        await saver.aclose()
        await saver.aclose()

    asyncio.run(main())


def test_it_is_closed_while_other_tasks_use_it(make: Callable[..., AsyncS3Saver]) -> None:
    """They go on with a new client; requests under way are waited for."""

    async def main() -> None:
        saver = make()
        stop = asyncio.Event()

        async def work(thread: str) -> int:
            number = 0
            while not stop.is_set():
                number += 1
                await put(saver, number, thread, large=noise(50_000))
                assert await saver.aget_tuple(config_for(thread))
            return number

        working = [asyncio.create_task(work(f"{number}")) for number in range(4)]
        for _ in range(5):
            await asyncio.sleep(0.1)
            await saver.aclose()
        stop.set()
        assert all(await asyncio.gather(*working))
        await saver.aclose()

    asyncio.run(main())


async def client_of(saver: AsyncS3Saver) -> Any:
    return await saver._driver._connect(saver._driver._connection())


def test_it_is_made_once_for_all_tasks_of_a_loop(make: Callable[..., AsyncS3Saver]) -> None:
    async def main() -> None:
        saver = make()
        clients = await asyncio.gather(*(client_of(saver) for _ in range(20)))
        assert len({id(client) for client in clients}) == 1

    asyncio.run(main())


def test_from_a_connection_string(bucket: str, s3_endpoint: str) -> None:
    async def main() -> None:
        text = f"s3://{bucket}/{PREFIX}?endpoint_url={s3_endpoint}&region_name=us-east-1"
        async with AsyncS3Saver.from_conn_string(text, inline_threshold=100) as saver:
            await saver.setup()
            await put(saver, 1, large=noise(1000))
            assert (saver.bucket, saver.prefix, saver.stats().puts) == (bucket, PREFIX, 3)
        with pytest.raises(InvalidInput, match="not of the form"):
            async with AsyncS3Saver.from_conn_string("bucket"):
                pass

    asyncio.run(main())


# -- clients and sessions ----------------------------------------------------------------------------


def test_a_session_of_the_caller_s(make: Callable[..., AsyncS3Saver]) -> None:
    session = get_session()
    session.user_agent_extra = "of-the-caller"

    async def main() -> None:
        async with make(session=session) as saver:
            await put(saver, 1)
            assert "of-the-caller" in (await client_of(saver)).meta.config.user_agent

    asyncio.run(main())
    asyncio.run(main())


def test_an_aioboto3_session(make: Callable[..., AsyncS3Saver]) -> None:
    aioboto3 = pytest.importorskip("aioboto3")

    async def main() -> None:
        async with make(session=aioboto3.Session()) as saver:
            await put(saver, 1)
            assert await saver.aget_tuple(THREAD)

    asyncio.run(main())


@pytest.mark.parametrize("session", [boto3.session.Session, lambda: __import__("botocore.session").session.Session()])
def test_a_session_that_is_not_asynchronous(make: Callable[..., AsyncS3Saver], session: Callable[[], Any]) -> None:
    with pytest.raises(InvalidInput, match=r"^session is a boto.*pass an aiobotocore session or an aioboto3.Session"):
        asyncio.run(put(make(session=session()), 1))


def test_a_client_of_the_caller_s_is_used_on_its_loop_and_not_closed(
    make: Callable[..., AsyncS3Saver], s3_endpoint: str
) -> None:
    kept = []

    async def main() -> None:
        async with get_session().create_client("s3", endpoint_url=s3_endpoint, config=AioConfig()) as client:
            async with make(client=client) as saver:
                await put(saver, 1)
                assert await client_of(saver) is client
            await put(saver, 2)
            kept.append(saver)

    asyncio.run(main())
    with pytest.raises(InvalidInput, match="belongs to one event loop"):
        asyncio.run(put(kept[0], 3))


def test_what_is_no_client_is_refused_at_once() -> None:
    unentered = get_session().create_client("s3")
    for client in (unentered, "client"):
        with pytest.raises(InvalidInput, match=r"client is a .*; pass an aiobotocore S3 client"):
            _ = AsyncS3Saver("bucket", client=client)
    unentered._coro.close()


def test_a_client_and_a_session_exclude_each_other() -> None:
    with pytest.raises(InvalidInput, match="exclude each other"):
        _ = AsyncS3Saver("bucket", client=FakeClient(FakeS3()), session=get_session())


@pytest.mark.parametrize("options", [{"endpoint_url": "no url"}, {"region_name": "no region!"}])
def test_a_client_that_cannot_be_made(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=r"No S3 client .*s3://bucket .*check endpoint_url"):
        asyncio.run(put(AsyncS3Saver("bucket", **options), 1))


def test_the_client_is_configured(make: Callable[..., AsyncS3Saver]) -> None:
    async def main() -> None:
        saver = make(max_concurrency=7, addressing_style="path", region_name="eu-west-1")
        client = await client_of(saver)
        config = client.meta.config
        assert config.max_pool_connections == 7 + PARALLEL
        assert (config.connect_timeout, config.read_timeout) == (5, 30)
        assert config.retries == {"mode": "standard", "total_max_attempts": 5}
        assert config.s3 == {"addressing_style": "path"}
        assert config.request_checksum_calculation == config.response_checksum_validation == "when_required"
        assert client.meta.region_name == "eu-west-1"

    asyncio.run(main())


def test_loops_do_not_share_credentials() -> None:
    """They are refreshed under a lock that belongs to a loop."""
    driver = AioBotoDriver("bucket", endpoint_url="http://localhost:1")
    left, right = driver._new_session(), driver._new_session()
    assert left.get_component("credential_provider") is not right.get_component("credential_provider")
    assert left.get_component("data_loader") is right.get_component("data_loader")


def test_names_are_looked_up_though_the_loop_s_own_threads_are_taken() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        release = threading.Event()
        loop.set_default_executor(ThreadPoolExecutor(1))
        taken = loop.run_in_executor(None, release.wait)
        found = await asyncio.wait_for(_Resolver(ThreadPoolExecutor(1)).resolve("localhost", 80), 10)
        assert ("127.0.0.1", 80) in [(it["host"], it["port"]) for it in found]
        release.set()
        await taken

    asyncio.run(main())


# -- threads -----------------------------------------------------------------------------------------

CALLS: dict[str, Callable[[AsyncS3Saver], Any]] = {
    "get_tuple": lambda saver: saver.get_tuple(THREAD),
    "list": lambda saver: saver.list(THREAD),
    "put": lambda saver: saver.put(THREAD, checkpoint(2, n=2), {}, {}),
    "put_writes": lambda saver: saver.put_writes(config_for("thread", uuid_of(1)), [("n", 1)], "task"),
    "delete_thread": lambda saver: saver.delete_thread("other"),
    "delete_for_runs": lambda saver: saver.delete_for_runs(["run"]),
    "copy_thread": lambda saver: saver.copy_thread("thread", "copy"),
    "prune": lambda saver: saver.prune(["thread"]),
    "get_delta_channel_history": lambda saver: saver.get_delta_channel_history(config=THREAD, channels=["n"]),
}


def test_every_synchronous_method_is_tried() -> None:
    twins = {name[1:] for name in vars(AsyncS3Saver) if name.startswith("a") and name[1:] in vars(AsyncS3Saver)}
    assert twins == set(CALLS)


@pytest.mark.parametrize("name", CALLS)
def test_a_synchronous_method_on_the_loop_s_own_thread_is_refused_at_once(name: str) -> None:
    async def main() -> None:
        client = FakeClient(FakeS3())
        saver = AsyncS3Saver("bucket", client=client)
        with pytest.raises(InvalidInput, match="from its own event loop's thread"):
            CALLS[name](saver)
        assert client.begun == 0

    asyncio.run(main())


@pytest.mark.parametrize("name", CALLS)
def test_a_synchronous_method_without_a_loop_is_refused(name: str) -> None:
    saver = AsyncS3Saver("bucket", client=FakeClient(FakeS3()))
    with pytest.raises(InvalidInput, match="none that runs is known"):  # it was never used
        CALLS[name](saver)
    asyncio.run(put(saver, 1))
    with pytest.raises(InvalidInput, match="none that runs is known"):  # it was used on a loop that has ended
        CALLS[name](saver)


@pytest.mark.parametrize("name", CALLS)
def test_a_synchronous_method_in_another_thread_runs_on_the_loop(name: str) -> None:
    async def main() -> None:
        saver = AsyncS3Saver("bucket", client=FakeClient(FakeS3()))
        await put(saver, 1)
        told = await asyncio.to_thread(lambda: CALLS[name](saver))
        if name == "list":
            assert [it.checkpoint["id"] for it in await asyncio.to_thread(list, told)] == [uuid_of(1)]
        if name == "get_tuple":
            assert told.checkpoint["id"] == uuid_of(1)

    asyncio.run(main())


def test_a_loop_that_ends_while_a_thread_waits_for_it() -> None:
    client = FakeClient(FakeS3())
    client.stop_at(1, "before")
    saver = AsyncS3Saver("bucket", client=client)

    async def main() -> Any:
        _ = saver._driver._connection()
        waiting = asyncio.get_running_loop().run_in_executor(threads, saver.get_tuple, THREAD)
        _ = await client.reached.wait()
        return waiting

    with ThreadPoolExecutor(1) as threads:
        loop = asyncio.new_event_loop()
        waiting = loop.run_until_complete(main())
        while not waiting.done():  # the loop stands still, and runs only to see whether the thread is back
            threading.Event().wait(0.2)
            loop.run_until_complete(asyncio.sleep(0))
        with pytest.raises(StorageError, match="get_tuple: the saver's event loop ended meanwhile"):
            waiting.result()
        loop.run_until_complete(asyncio.sleep(0.05))  # the operation itself is cancelled
        assert not asyncio.all_tasks(loop)
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def test_a_loop_that_is_shut_down_while_a_thread_waits_for_it() -> None:
    """Which cancels the operation, and must not look as if somebody had cancelled the caller."""
    client = FakeClient(FakeS3())
    client.stop_at(1, "before")
    saver = AsyncS3Saver("bucket", client=client)
    told: list[BaseException | None] = []

    async def main() -> None:
        _ = saver._driver._connection()
        thread.start()
        _ = await client.reached.wait()

    def work() -> None:
        try:
            _ = saver.get_tuple(THREAD)
        except BaseException as error:
            told.append(error)

    thread = threading.Thread(target=work)
    asyncio.run(main())
    thread.join()
    assert [type(it) for it in told] == [StorageError]


def test_the_calls_of_a_thread_come_back_to_the_loop_that_it_works_for(make: Callable[..., AsyncS3Saver]) -> None:
    """Though another loop, which may end at any moment, has used the saver since."""
    saver = make()
    other = Loop()

    async def main() -> None:
        await put(saver, 1)
        other.run(put(saver, 2))
        assert await asyncio.to_thread(saver._driver.loop) is asyncio.get_running_loop()
        await saver.aclose()
        assert await asyncio.to_thread(saver.get_tuple, THREAD)

    asyncio.run(main())
    assert saver._driver.loop() is other.loop
    other.close()


@pytest.mark.parametrize("cyclic", [False, True])
def test_a_saver_that_is_dropped_has_its_client_closed(make: Callable[..., AsyncS3Saver], cyclic: bool) -> None:
    async def main() -> None:
        async with nothing_left():
            saver: Any = make()
            await put(saver, 1)
            session = (await client_of(saver))._endpoint.http_session
            if cyclic:
                saver.itself = saver
            del saver
            gc.collect()
            for _ in range(100):
                if not session._sessions:
                    break
                await asyncio.sleep(0.01)
            assert not session._sessions

    asyncio.run(main())


def test_closing_that_is_cancelled_closes_all_the_same(make: Callable[..., AsyncS3Saver]) -> None:
    async def main() -> None:
        saver = make()
        await put(saver, 1)
        connection = saver._driver._connection()
        session = (await client_of(saver))._endpoint.http_session
        connection.users += 1  # a request that never ends
        with pytest.raises((TimeoutError, asyncio.TimeoutError)):
            await asyncio.wait_for(saver.aclose(), 0.05)
        assert not session._sessions
        await put(saver, 2)
        await saver.aclose()

    asyncio.run(main())


class Log(TypedDict):
    log: str


def child_of(name: str) -> Any:
    graph = StateGraph(Log)
    graph.add_node("leaf", lambda state: {"log": f"{state['log']} {name}"})
    graph.add_edge(START, "leaf")
    return graph.compile(checkpointer=True)


def test_synchronous_nodes_run_subgraphs_inside_an_asynchronous_graph(make: Callable[..., AsyncS3Saver]) -> None:
    """More of them at once than the loop has threads, each waiting for the saver in one."""
    saver = make()
    child = child_of("child")

    def node(state: Log, config: RunnableConfig) -> Log:  # before Python 3.11, LangGraph has to be handed it
        return Log(log=child.invoke({"log": state["log"]}, config)["log"])

    graph = StateGraph(Log)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    compiled = graph.compile(checkpointer=saver)

    async def main() -> list[Any]:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(4))
        runs = [
            compiled.ainvoke({"log": f"{number}"}, {"configurable": {"thread_id": f"{number}"}}) for number in range(24)
        ]
        return list(await asyncio.gather(*runs))

    assert asyncio.run(asyncio.wait_for(main(), 120)) == [{"log": f"{number} child"} for number in range(24)]


# -- many at once ------------------------------------------------------------------------------------


def steps(saver: Any, number: int = 3) -> Any:
    graph = StateGraph(Log)
    last = START
    for step in range(number):
        graph.add_node(f"{step}", lambda state, step=step: {"log": f"{state['log']} {step}"})
        graph.add_edge(last, f"{step}")
        last = f"{step}"
    return graph.compile(checkpointer=saver)


@asynccontextmanager
async def nothing_left() -> AsyncIterator[None]:
    """No task is left behind, and no error that nobody has seen."""
    unseen: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context))
    before = asyncio.all_tasks()
    yield
    gc.collect()
    for _ in range(5):  # a saver that was collected has its client closed by the loop
        await asyncio.sleep(0)
    assert asyncio.all_tasks() == before
    assert not unseen


def test_200_threads_and_20_runs_on_one_thread(make: Callable[..., AsyncS3Saver]) -> None:
    async def main() -> None:
        async with nothing_left(), make(max_concurrency=16, manifest=False) as saver:
            graph = steps(saver, 1)
            names = [*(f"{number}" for number in range(200)), *["shared"] * 20]
            told = await asyncio.gather(
                *(graph.ainvoke({"log": name}, {"configurable": {"thread_id": name}}) for name in names)
            )
            assert [it["log"] for it in told] == [f"{name} 0" for name in names]
            for name in ("0", "99", "199", "shared"):
                state = await graph.aget_state({"configurable": {"thread_id": name}})
                assert (state.values["log"], state.next) == (f"{name} 0", ())

    asyncio.run(main())


def test_requests_of_all_tasks_are_bounded_together() -> None:
    async def main() -> None:
        client = FakeClient(FakeS3())
        saver = AsyncS3Saver("bucket", client=client, max_concurrency=5)
        await asyncio.gather(*(put(saver, 1, f"{number}", large=noise(50_000)) for number in range(30)))
        assert client.most == 5
        assert client.begun == 90

    asyncio.run(main())


# -- listing -----------------------------------------------------------------------------------------


def long_thread(length: int) -> FakeS3:
    s3 = FakeS3()
    script = Script(saver_on(s3))
    for number in range(length):
        _ = script.put({"n": number})
    return s3


def listing(client: FakeClient) -> AsyncS3Saver:
    return AsyncS3Saver("bucket", "prefix", client=client)


def test_a_listing_reads_one_page_ahead_and_no_more() -> None:
    async def main() -> None:
        async with nothing_left():
            client = FakeClient(long_thread(200))
            listed = listing(client).alist(THREAD)
            first = await anext(listed)
            for _ in range(50):
                await asyncio.sleep(0)
            alone = client.begun
            second = await anext(listed)
            for _ in range(200):
                await asyncio.sleep(0)
            ahead = client.begun
            assert [first.checkpoint["id"], second.checkpoint["id"]] == [uuid_of(200), uuid_of(199)]
            for _ in range(200):
                await asyncio.sleep(0)
            assert alone < ahead <= alone + MAX_WINDOW + 1  # nothing before the second was asked for, then one page
            assert client.begun == ahead
            rest = [it async for it in listed]
            assert len(rest) == 198

    asyncio.run(main())


def test_leaving_a_listing_cancels_what_is_under_way() -> None:
    async def main() -> None:
        async with nothing_left():
            client = FakeClient(long_thread(100))
            listed = listing(client).alist(THREAD)
            _ = await anext(listed), await anext(listed)
            client.stop_at(1, "before")
            _ = await client.reached.wait()
            await listed.aclose()
            assert client.under_way == 0

    asyncio.run(main())


def test_an_error_of_the_page_ahead_comes_in_its_turn_or_never() -> None:
    async def main() -> None:
        async with nothing_left():
            client = FakeClient(long_thread(100))
            for early in (True, False):
                listed = listing(client).alist(THREAD)
                _ = await anext(listed), await anext(listed)
                client.s3.exists = False
                for _ in range(200):
                    await asyncio.sleep(0)
                if early:
                    await listed.aclose()
                else:
                    with pytest.raises(StorageError):
                        _ = [it async for it in listed]
                client.s3.exists = True

    asyncio.run(main())


def test_a_listing_that_pauses_holds_nobody_up() -> None:
    async def main() -> None:
        client = FakeClient(long_thread(100))
        saver = AsyncS3Saver("bucket", "prefix", client=client, max_concurrency=1)
        listed = saver.alist(THREAD)
        _ = await anext(listed)
        await put(saver, 900)
        _ = await anext(listed)
        assert await asyncio.wait_for(saver.aget_tuple(THREAD), 5)
        await listed.aclose()

    asyncio.run(main())


# -- large states ------------------------------------------------------------------------------------


class Spy(JsonPlusSerializer):
    """Tells which threads it worked in."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: set[int] = set()

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        self.threads.add(threading.get_ident())
        return super().dumps_typed(obj)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        self.threads.add(threading.get_ident())
        return super().loads_typed(data)


@pytest.mark.parametrize("large", [False, True])
def test_large_states_are_packed_and_unpacked_in_threads(large: bool) -> None:
    value = noise(600_000 if large else 60_000)

    async def main() -> None:
        serde = Spy()
        saver = AsyncS3Saver("bucket", client=FakeClient(FakeS3()), serde=serde)
        operations: list[Callable[[], Any]] = [
            lambda: put(saver, 1, value=value),
            lambda: saver.aput_writes(config_for("thread", uuid_of(1)), [("value", value)], "task"),
            lambda: saver.aget_tuple(THREAD),
        ]
        for operation in operations:
            serde.threads.clear()
            _ = await operation()
            assert serde.threads
            assert (threading.get_ident() in serde.threads) == (not large)
        told = await saver.aget_tuple(THREAD)
        assert told is not None
        assert told.checkpoint["channel_values"]["value"] == value

    asyncio.run(main())


class Message:
    def __init__(self, text: str) -> None:
        self.text = text


@pytest.mark.parametrize(
    ("value", "large"),
    [
        (None, False),
        (5, False),
        ("x" * 1000, False),
        ("x" * (LARGE + 1), True),
        (b"x" * (LARGE + 1), True),
        (bytearray(LARGE + 1), True),
        (memoryview(bytearray(LARGE + 1)), True),
        ({"a": ["x" * 200_000], "b": ["x" * 200_000]}, True),
        ({"x" * (LARGE + 1): 1}, True),
        ([Message("x" * 1000)] * 10, False),
        ([Message("x" * 30_000)] * 10, True),
        ([0] * (MANY + 1), True),
        ([[0] * 100] * 30, True),
        (dict.fromkeys(range(MANY + 1)), True),
        ({"a": Message}, False),
    ],
)
def test_the_weight_of_a_value(value: Any, large: bool) -> None:
    assert is_large(value) == large


def test_a_value_that_holds_itself_is_weighed() -> None:
    loop: list[Any] = []
    loop.append(loop)
    assert is_large(loop)


# -- the same as S3Saver -----------------------------------------------------------------------------


def test_each_reads_what_the_other_wrote(make: Callable[..., AsyncS3Saver], bucket: str, s3_endpoint: str) -> None:
    with S3Saver(bucket, PREFIX, endpoint_url=s3_endpoint) as sync:
        script = Script(sync)
        for number in range(1, 6):
            _ = script.put({"n": number, "large": noise(50_000, number // 2)})
            script.write("n", f"of {number}")

        async def main() -> None:
            async with make() as saver:
                await put(saver, 6, large=noise(50_000, 6))
                await saver.aput_writes(config_for("thread", uuid_of(6)), [("n", "of 6")], "task")
                listed = [it async for it in saver.alist(THREAD)]
                assert listed == await asyncio.to_thread(list, sync.list(THREAD))
                assert len(listed) == 6
                assert await saver.aget_tuple(THREAD) == sync.get_tuple(THREAD) == listed[0]
                await saver.aprune(["thread"])
                assert sync.get_tuple(THREAD) == listed[0]
                sync.copy_thread("thread", "copy")
                told = await saver.aget_tuple(config_for("copy"))
                assert told is not None
                assert told.checkpoint == listed[0].checkpoint

        asyncio.run(main())


def test_it_costs_the_same() -> None:
    """Round trips and requests of each operation, next to the synchronous driver's on an equal bucket."""
    s3 = long_thread(100)
    twin = s3.copy()
    client = FakeClient(twin)
    saver = AsyncS3Saver("bucket", "prefix", client=client)
    sync = saver_on(s3)
    names = ("round_trips", "gets", "puts", "lists", "deletes", "copies")

    def spent(before: Any, after: Any) -> list[int]:
        return [getattr(after, name) - getattr(before, name) for name in names]

    async def main() -> None:
        for name, call in COSTS.items():
            before, sync_before = saver.stats(), sync._driver.stats()
            _ = await call(saver, "a")
            _ = call(sync, "")
            assert spent(before, saver.stats()) == spent(sync_before, sync._driver.stats()), name
            assert saver.stats().operations - before.operations == 1
        assert client.begun == saver.stats().requests

    asyncio.run(main())


async def _listed(saver: Any) -> list[Any]:
    return [it async for it in saver.alist(THREAD, limit=10)]


COSTS: dict[str, Callable[[Any, str], Any]] = {
    "get": lambda saver, a: getattr(saver, f"{a}get_tuple")(THREAD),
    "put": lambda saver, a: getattr(saver, f"{a}put")(
        config_for("thread", uuid_of(100)),
        checkpoint(101, n=1, large=noise(50_000)),
        {"run_id": "run"},
        {"n": f"{101:032}.0", "large": f"{101:032}.0"},
    ),
    "writes": lambda saver, a: getattr(saver, f"{a}put_writes")(config_for("thread", uuid_of(101)), [("n", 1)], "task"),
    "again": lambda saver, a: getattr(saver, f"{a}put_writes")(config_for("thread", uuid_of(101)), [("n", 1)], "task"),
    "list": lambda saver, a: _listed(saver) if a else list(saver.list(THREAD, limit=10)),
    "history": lambda saver, a: getattr(saver, f"{a}get_delta_channel_history")(config=THREAD, channels=["n"]),
    "copy": lambda saver, a: getattr(saver, f"{a}copy_thread")("thread", "copy"),
    "runs": lambda saver, a: getattr(saver, f"{a}delete_for_runs")(["run"]),
    "prune": lambda saver, a: getattr(saver, f"{a}prune")(["thread"]),
    "delete": lambda saver, a: getattr(saver, f"{a}delete_thread")("copy"),
}


def test_a_copy_with_another_allowlist_shares_the_client() -> None:
    async def main() -> None:
        client = FakeClient(FakeS3())
        saver = AsyncS3Saver("bucket", client=client, serde=JsonPlusSerializer(allowed_msgpack_modules=None))
        other = saver.with_allowlist([("tests.test_aio", "Message")])
        await put(saver, 1)
        assert other is not saver
        assert isinstance(other, AsyncS3Saver)
        assert await other.aget_tuple(THREAD) == await saver.aget_tuple(THREAD)

    asyncio.run(main())


FORK = """
import asyncio, os, signal, sys
from langgraph.checkpoint.s3.aio import AsyncS3Saver
from tests.support.drivers import Loop
from tests.support.threads import noise
from tests.test_aio import PREFIX, put
saver = AsyncS3Saver(sys.argv[1], PREFIX, endpoint_url=sys.argv[2])
loop = Loop()
loop.run(put(saver, 1, large=noise(600_000)))
child = os.fork()
if child == 0:
    signal.alarm(60)
    asyncio.run(put(saver, 2, large=noise(600_000)))
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
loop.run(put(saver, 3))
loop.run(saver.aclose())
loop.close()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_it_survives_a_fork_of_the_process(bucket: str, s3_endpoint: str) -> None:
    """In a process of its own: this one has threads that may hold any lock just then."""
    root = Path(__file__).parents[1]
    env = {**os.environ, "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}"}
    done = subprocess.run([sys.executable, "-c", FORK, bucket, s3_endpoint], env=env, timeout=120)
    assert done.returncode == 0
    with S3Saver(bucket, PREFIX, endpoint_url=s3_endpoint) as saver:
        assert [it.checkpoint["id"] for it in saver.list(THREAD)] == [uuid_of(3), uuid_of(2), uuid_of(1)]


# -- the extra ---------------------------------------------------------------------------------------


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_synchronous_side_pulls_in_no_asynchronous_package() -> None:
    code = "import langgraph.checkpoint.s3, sys; print([it for it in ('aiobotocore', 'aiohttp') if it in sys.modules])"
    assert python(code) == "[]"


@pytest.mark.parametrize("missing", ["aiobotocore", "aiohttp"])
def test_without_the_extra_it_says_which_one_to_install(missing: str) -> None:
    code = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        "try:\n    import langgraph.checkpoint.s3.aio\n"
        "except ModuleNotFoundError as error: print(error)"
    )
    assert f"needs {missing}, which is not installed; install langgraph-checkpoint-s3saver[async]" in python(code)


def test_another_import_error_is_passed_on() -> None:
    code = (
        "import sys; sys.modules['zstandard'] = None\n"
        "try:\n    import langgraph.checkpoint.s3.aio\n"
        "except ModuleNotFoundError as error: print(error.name)"
    )
    assert python(code) == "zstandard"

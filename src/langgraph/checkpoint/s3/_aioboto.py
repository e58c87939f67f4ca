"""The asynchronous driver: runs plans over an aiobotocore client, on whatever event loop it is called from."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError as CancelledByLoop
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as StillWaiting  # the built-in one since Python 3.11
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any, NamedTuple, TypeVar

import aiohttp
from aiobotocore.config import AioConfig
from aiohttp.abc import AbstractResolver, ResolveResult
from botocore.exceptions import BotoCoreError, ClientError, IncompleteReadError

from langgraph.checkpoint.s3._calls import (
    CONFLICTS,
    CUT,
    FAILURES,
    PARALLEL,
    PAUSES,
    READS,
    Calls,
    Found,
    code_of,
    config_options,
    prepare,
)
from langgraph.checkpoint.s3._locks import ForkSafeLock
from langgraph.checkpoint.s3._requests import Body, Get, Plan, Put, Request
from langgraph.checkpoint.s3._run import Ledger, Run, Settled, decoded, failed
from langgraph.checkpoint.s3._stats import Stats
from langgraph.checkpoint.s3._weight import LARGE
from langgraph.checkpoint.s3.errors import InvalidInput, StorageError

T = TypeVar("T")

ASIDE = 4
"""Threads for what would hold up a loop. They share one interpreter, so more would not be faster."""

POLL = 1.0
"""Seconds after which a thread that waits for a loop looks whether the loop still runs."""

_CUT = (*CUT, aiohttp.ClientError, asyncio.TimeoutError)
"""Whatever reading a body may raise."""


_working_for: ContextVar[asyncio.AbstractEventLoop | None] = ContextVar("working_for", default=None)
"""The loop of the asynchronous program that a thread works for. Whoever starts the thread copies its context, as
LangGraph does for a synchronous node, so the node's own calls come back to the loop that its graph runs on."""


class _Connection:
    """What a driver has on one event loop: the client, and how many requests may be under way."""

    def __init__(self, max_concurrency: int) -> None:
        self.client: Any = None
        self.making = asyncio.Lock()
        self.free = asyncio.Semaphore(max_concurrency)
        self.parts = asyncio.Semaphore(PARALLEL)  # of large objects, beside all else
        self.keeper: AsyncGenerator[Any, None] | None = None  # holds the client open
        self.closing: weakref.finalize[..., _Connection] | None = None  # closes it if nobody has
        self.users = 0  # batches that are under way
        self.unused = asyncio.Event()


class _Process(NamedTuple):
    """What a driver has in one process. A forked child has none of its parent's loops and threads."""

    pid: int
    connections: dict[asyncio.AbstractEventLoop, _Connection]  # the loop that used the driver last comes last
    aside: ThreadPoolExecutor


class AioBotoDriver:
    """Runs plans: on the running event loop, each request of a batch a task of its own.

    Every loop gets a client of its own, on first use. It lives in an asynchronous generator, so the loop
    closes it with all its others when it shuts down (`asyncio.run` does so): nobody has to call `aclose`.

    Args:
        bucket: The bucket that all requests go to.
        client: An aiobotocore S3 client to be used as it is, on the loop it was made on. It is never closed here.
        session: An aiobotocore or `aioboto3.Session` to make clients with; otherwise each loop has its own.
        endpoint_url: Where an S3-compatible store is.
        region_name: The bucket's region; botocore's own search for it if not given.
        max_concurrency: How many requests are under way at once, on each loop.
        addressing_style: "path", "virtual", or None to leave it to botocore.
        put_object_args: More arguments for PutObject and CopyObject, such as encryption or storage class.

    Raises:
        InvalidInput: If an option is not valid.
    """

    def __init__(
        self,
        bucket: str,
        *,
        client: Any = None,
        session: Any = None,
        endpoint_url: str | None = None,
        region_name: str | None = None,
        max_concurrency: int = 32,
        addressing_style: str | None = None,
        put_object_args: Mapping[str, Any] | None = None,
    ) -> None:
        if client is not None and session is not None:
            raise InvalidInput("client and session exclude each other; pass the client alone.")
        if client is not None and not hasattr(client, "meta"):  # above all, what `create_client` returns
            raise InvalidInput(
                f"client is a {type(client).__name__}; pass an aiobotocore S3 client, that is what "
                "`async with session.create_client('s3') as client` gives, or the session itself as session."
            )
        self._calls = Calls(bucket, dict(put_object_args or {}))
        self._client = client
        self._session = session
        self._endpoint_url = endpoint_url
        self._region_name = region_name
        self._models: Any = None  # botocore's, of S3
        self._config = config_options(endpoint_url, max_concurrency, addressing_style)
        self._max_concurrency = max_concurrency
        self._lock = ForkSafeLock()
        self.ledger = Ledger(bucket)
        self._process: _Process | None = None
        self._client_loop: asyncio.AbstractEventLoop | None = None  # the loop of a caller's client
        if _running_loop() is not None:
            _ = self._connection()

    async def run(self, plan: Plan[T], name: str = "", thread: str | None = None, *, large: bool = False) -> T:
        """Run a plan to its end.

        Args:
            plan: The plan. It is closed whatever happens.
            name: What the log calls it.
            thread: The thread that the log says it is about.
            large: Whether the plan has much to pack, and is stepped in a thread. One that has got much is anyway.

        Returns:
            What the plan returns.

        Raises:
            S3SaverError: What went wrong with the first request of a batch that failed, unless the plan deals with
                it. The others' errors are its notes.
            asyncio.CancelledError: It was cancelled. No request is under way here any more, but one that was sent
                may still arrive and take effect.
        """
        _ = _working_for.set(asyncio.get_running_loop())
        run = Run(plan)
        with self.ledger.entry(run, name, thread):
            while (batch := await self._step(run, large)) is not None:
                run.settle(await self._issue(batch))
                large = large or run.spent.bytes_received > LARGE
            return run.result

    def run_from_thread(self, plan: Plan[T], name: str = "", thread: str | None = None, *, large: bool = False) -> T:
        """Run a plan on the saver's loop, and wait for it in this thread, which is another.

        Raises:
            InvalidInput: There is no such loop, or it is this thread's: it would wait for itself.
            StorageError: The loop ended before the plan did.
        """
        loop = self.loop()
        coroutine = self.run(plan, name, thread, large=large)
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, loop)
        except RuntimeError as error:  # it was closed at this very moment
            coroutine.close()
            raise _ended(name) from error
        try:
            while True:
                try:
                    return future.result(POLL)
                except CancelledByLoop:  # nobody here did: the loop shuts down
                    raise _ended(name) from None
                except StillWaiting:
                    if future.done():
                        raise
                    if not loop.is_running():
                        raise _ended(name) from None
        finally:
            _ = future.cancel()

    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop for calls from threads: the one that a thread works for, else the one that used the driver last.

        Raises:
            InvalidInput: There is none, or it is the one of this very thread.
        """
        here = _running_loop()
        with self._lock:
            known = list(self._in_this_process().connections)
        if here is not None and (here in known or here is _working_for.get()):
            raise InvalidInput(
                "a synchronous method of AsyncS3Saver was called from its own event loop's thread, where it would wait "
                "for itself; await the method that begins with 'a', or call it from another thread."
            )
        running = [loop for loop in (*known, _working_for.get()) if loop is not None and loop.is_running()]
        if not running:
            raise InvalidInput(
                "a synchronous method of AsyncS3Saver needs the event loop that the saver is used on, and none that "
                "runs is known; await a method of the saver there first, or make the saver there, or use S3Saver."
            )
        return running[-1]

    def stats(self) -> Stats:
        """Return a snapshot of what all finished operations have asked of S3."""
        return self.ledger.total

    async def aclose(self) -> None:
        """Close the running loop's client, unless it is the caller's. Using the driver again makes a new one.

        Waits for requests under way, or until it is cancelled. What other tasks are at goes on with a new client.
        """
        loop = asyncio.get_running_loop()
        with self._lock:
            connections = self._in_this_process().connections
            connection = connections.get(loop)
            if connection is None:
                return
            connections[loop] = _Connection(self._max_concurrency)
        try:
            while connection.users:
                connection.unused.clear()
                _ = await connection.unused.wait()
        finally:
            if connection.keeper is not None:
                await connection.keeper.aclose()

    # -- one step, one batch, one request ----------------------------------------------------------

    async def _step(self, run: Run[T], large: bool) -> Sequence[Request] | None:
        return await self._aside(run.step) if large else run.step()

    async def _aside(self, work: Callable[[], T]) -> T:
        """Do some computing in a thread.

        Not in the loop's own pool, where synchronous nodes may wait for this very saver and fill it.
        """
        future = self._threads().submit(copy_context().run, work)
        waiting = asyncio.wrap_future(future)
        try:
            return await asyncio.shield(waiting)
        except asyncio.CancelledError:
            if not future.cancel():  # it is running, and a plan cannot be closed meanwhile
                await drained([waiting])
            raise

    async def _issue(self, batch: Sequence[Request]) -> list[Settled]:
        """Issue a batch and wait until nothing of it is under way any more."""
        connection = self._connection()
        connection.users += 1
        try:
            client = connection.client or await self._connect(connection)
            if len(batch) <= 1:  # a task would gain nothing
                return [await self._settle(connection, client, request) for request in batch]
            return await self._spread(connection, client, batch)
        finally:
            connection.users -= 1
            if not connection.users:
                connection.unused.set()

    async def _spread(self, connection: _Connection, client: Any, batch: Sequence[Request]) -> list[Settled]:
        """Issue a batch, each request in a task."""
        tasks = [asyncio.ensure_future(self._settle(connection, client, request)) for request in batch]
        try:
            _ = await asyncio.wait(tasks)
        except asyncio.CancelledError:
            for task in tasks:
                _ = task.cancel()
            await drained(tasks)
            raise
        return [task.result() for task in tasks]

    async def _settle(self, connection: _Connection, client: Any, request: Request) -> Settled:
        """Perform one request."""
        async with connection.free:
            try:
                if isinstance(request, Get):
                    return await self._get(client, request)
                if isinstance(request, Put) and request.parts > 1:
                    return Settled(await self._upload(connection, client, request))
                return Settled(await self._call(client, request))
            except Exception as error:
                return failed(request, error)

    async def _get(self, client: Any, request: Get) -> Settled:
        """Get and decode an object; get it again if its body breaks off, which botocore does not do."""
        left = READS
        while (found := await self._call(client, request)) is not None:
            left -= 1
            try:
                body = await _read(request.key, found)
            except _CUT as error:
                if not left:
                    raise self._calls.broken(request, error) from error
            else:
                decode = partial(decoded, request, body)
                return await self._aside(decode) if len(body.data) > LARGE else decode()
        return Settled()

    async def _upload(self, connection: _Connection, client: Any, request: Put) -> Any:
        """Put a large object in parts. Of one that fails, none are left."""
        try:
            upload = await client.create_multipart_upload(**self._calls.upload(request))
            part = partial(self._part, connection, client, upload, request)
            try:
                parts = await _all([part(number) for number in range(1, request.parts + 1)])
                answer = await client.complete_multipart_upload(**self._calls.completion(upload, parts))
            except BaseException:
                await drained([asyncio.ensure_future(client.abort_multipart_upload(**self._calls.of(upload)))])
                raise
        except ClientError as error:
            return self._calls.refusal(request, error)
        except FAILURES as error:
            raise self._calls.explain(request, error) from error
        return self._calls.reply(request, answer)

    async def _part(
        self, connection: _Connection, client: Any, upload: Mapping[str, Any], request: Put, number: int
    ) -> dict[str, Any]:
        async with connection.parts:
            answer = await client.upload_part(**self._calls.part(request, upload, number))
        return self._calls.uploaded(answer, number)

    async def _call(self, client: Any, request: Request) -> Any:
        """Make one call, again if it meets a conflict, and return its reply as `Calls` has it."""
        method, arguments = self._calls.call(request, client.meta.region_name)
        pauses = iter(PAUSES)
        while True:
            try:
                answer = await getattr(client, method)(**arguments)
            except ClientError as error:
                pause = next(pauses, None) if code_of(error) in CONFLICTS else None
                if pause is None:
                    return self._calls.refusal(request, error)
                await asyncio.sleep(random.uniform(pause / 2, pause))  # not in step with the other writer
            except FAILURES as error:
                raise self._calls.explain(request, error) from error
            else:
                return self._calls.reply(request, answer)

    # -- what is made lazily -----------------------------------------------------------------------

    def _in_this_process(self) -> _Process:
        """What there is in this process. To be called with the lock."""
        if self._process is None or self._process.pid != os.getpid():
            self._process = _Process(os.getpid(), {}, ThreadPoolExecutor(ASIDE, thread_name_prefix="s3saver"))
        return self._process

    def _threads(self) -> ThreadPoolExecutor:
        with self._lock:
            return self._in_this_process().aside

    def _connection(self) -> _Connection:
        """What there is for the running loop, which from now on is the one that used the driver last."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._client is not None and self._client_loop not in (None, loop):
                raise InvalidInput(
                    "AsyncS3Saver was given a client, which belongs to one event loop, and is used from another; "
                    "pass a session in its place, or neither, and every loop gets a client of its own."
                )
            self._client_loop = loop if self._client is not None else None
            connections = self._in_this_process().connections
            connection = connections.pop(loop, None)
            if connection is None:
                connection = _Connection(self._max_concurrency)
            connections[loop] = connection
            return connection

    async def _connect(self, connection: _Connection) -> Any:
        """Return the client, made here unless another task is just making it."""
        async with connection.making:
            if connection.client is None:
                for keeper in self._abandoned():
                    with suppress(Exception):
                        await keeper.aclose()
                connection.keeper = _keep(await self._opening(), weakref.ref(connection))
                try:
                    client = await anext(connection.keeper)
                except InvalidInput:
                    raise
                except (BotoCoreError, ValueError) as error:
                    raise self._calls.unmade(error) from error
                if client is not self._client:
                    prepare(client)
                connection.client = client
                connection.closing = weakref.finalize(
                    connection, _close_later, asyncio.get_running_loop(), connection.keeper
                )
                connection.closing.atexit = False
            return connection.client

    def _abandoned(self) -> list[AsyncGenerator[Any, None]]:
        """What is left of loops that were closed without being shut down."""
        with self._lock:
            connections = self._in_this_process().connections
            gone = [connections.pop(loop) for loop in list(connections) if loop.is_closed()]
        return [it.keeper for it in gone if it.keeper is not None and it.client is not None]

    async def _opening(self) -> AbstractAsyncContextManager[Any]:
        """Return a client that is yet to be entered."""
        if self._client is not None:
            return nullcontext(self._client)
        session = self._session or await self._aside(self._new_session)
        make = getattr(session, "create_client", None) or getattr(session, "client", None)
        if make is None or not _is_asynchronous(session):
            raise InvalidInput(
                f"session is a {type(session).__module__}.{type(session).__name__}; "
                "pass an aiobotocore session or an aioboto3.Session."
            )
        config = AioConfig(connector_args={"resolver": _Resolver(self._threads())}, **self._config)
        opening: AbstractAsyncContextManager[Any]
        try:
            opening = make("s3", region_name=self._region_name, endpoint_url=self._endpoint_url, config=config)
        except (BotoCoreError, ValueError) as error:
            raise self._calls.unmade(error) from error
        return opening

    def _new_session(self) -> Any:
        """Return a session for one loop. Takes a tenth of a second the first time.

        Sessions of different loops share the models, which take most of that, but not the credentials: those
        are refreshed under a lock that belongs to a loop.
        """
        from aiobotocore.session import get_session  # slow to import, and not needed with a client of the caller's

        session = get_session()
        if self._models is None:
            models = session.get_component("data_loader")
            for name in ("service-2", "endpoint-rule-set-1"):
                models.load_service_model("s3", name)
            models.load_data("endpoints")
            self._models = models
        session.register_component("data_loader", self._models)
        return session


async def _keep(
    opening: AbstractAsyncContextManager[Any], connection: weakref.ref[_Connection]
) -> AsyncGenerator[Any, None]:
    """Open a client, yield it, and close it when this generator is closed, if only because its loop shuts down.

    It must not hold its connection: that may be collected, and then `_close_later` is to close this.
    """
    async with opening as client:
        try:
            yield client
        finally:
            kept = connection()
            if kept is not None:
                kept.client = None
                if kept.closing is not None:
                    _ = kept.closing.detach()


def _close_later(loop: asyncio.AbstractEventLoop, keeper: AsyncGenerator[Any, None]) -> None:
    """Close the client of a driver that was collected. A loop that has ended has closed it, or cannot any more."""
    with suppress(RuntimeError):
        _ = loop.call_soon_threadsafe(lambda: loop.create_task(_close(keeper)))


async def _close(keeper: AsyncGenerator[Any, None]) -> None:
    with suppress(RuntimeError):  # it is being closed already
        await keeper.aclose()


def _is_asynchronous(session: Any) -> bool:
    """Tell whether a session makes asynchronous clients: an aiobotocore session, or one that has one."""
    inner = getattr(session, "_session", session)
    kinds = (*type(session).__mro__, *type(inner).__mro__)
    return any(kind.__module__.split(".")[0] in ("aioboto3", "aiobotocore") for kind in kinds)


class _Resolver(AbstractResolver):
    """Looks up host names in the driver's own threads.

    aiohttp would do it in the loop's, which synchronous nodes that wait for this saver may fill.
    """

    def __init__(self, threads: ThreadPoolExecutor) -> None:
        self._threads = threads

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        look_up = partial(socket.getaddrinfo, host, port, family, socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
        found = await asyncio.get_running_loop().run_in_executor(self._threads, look_up)
        return [
            ResolveResult(
                hostname=host,
                host=str(address[0]),
                port=int(address[1]),
                family=kind,
                proto=protocol,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for kind, _, protocol, _, address in found
        ]

    async def close(self) -> None:
        """Nothing is open."""


async def _all(works: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Do all of it at once. If one fails the others are stopped, and none is under way any more when this ends."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            _ = task.cancel()
        await drained(tasks)


async def drained(futures: Iterable[asyncio.Future[Any]]) -> None:
    """Wait until all of them have ended, however often the waiting is cancelled, and take note of their errors."""
    left = list(futures)
    while pending := [future for future in left if not future.done()]:
        try:
            _ = await asyncio.wait(pending)
        except asyncio.CancelledError:
            continue
    for future in left:
        if not future.cancelled():
            _ = future.exception()


async def _read(key: str, found: Found) -> Body:
    async with found.stream:
        data = await found.stream.read()
    if found.length not in (None, len(data)):
        raise IncompleteReadError(actual_bytes=len(data), expected_bytes=found.length)
    return Body(key, data, found.etag)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _ended(name: str) -> StorageError:
    return StorageError(
        f"{name or 'the operation'}: the saver's event loop ended meanwhile, so it is not known whether this took "
        "effect; it can be repeated safely on a loop that runs."
    )

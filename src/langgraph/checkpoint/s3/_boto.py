"""The synchronous driver: runs plans over a boto3 client and a pool of threads."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing
from contextvars import copy_context
from io import BytesIO
from typing import TYPE_CHECKING, Any, TypeVar

from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    IncompleteReadError,
)

from langgraph.checkpoint.s3._calls import (
    CONFLICTS,
    CUT,
    FAILURES,
    PARALLEL,
    PAUSES,
    PUT_OBJECT_ARGS,
    READ_TIMEOUT,
    READS,
    Calls,
    Found,
    code_of,
    config_options,
    prepare,
)
from langgraph.checkpoint.s3._locks import ForkSafeLock
from langgraph.checkpoint.s3._requests import IN_PARTS_FROM, PART, Body, Get, Plan, Put, Request, Stored
from langgraph.checkpoint.s3._run import Ledger, Run, Settled, decoded, failed
from langgraph.checkpoint.s3._stats import Stats

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from s3transfer.manager import TransferManager

T = TypeVar("T")


class _Resources:
    """What a driver makes on first use, and the process that made it.

    It is closed when no batch uses it any more: another thread may be at work when the driver is closed.
    """

    def __init__(self, client: S3Client, max_concurrency: int) -> None:
        self.pid = os.getpid()
        self.client = client
        self.pool = ThreadPoolExecutor(max_concurrency, thread_name_prefix="s3saver")
        # The pool bounds batches, but a single request is made on the thread of its caller.
        self.free = threading.BoundedSemaphore(max_concurrency)
        self._uploads: TransferManager | None = None
        self._users = 0
        self._changed = threading.Condition()

    def enter(self) -> None:
        """A batch begins to use it."""
        with self._changed:
            self._users += 1

    def leave(self) -> None:
        """A batch has ended."""
        with self._changed:
            self._users -= 1
            self._changed.notify_all()

    def uploads(self) -> TransferManager:
        """What uploads large objects in parts."""
        with self._changed:
            if self._uploads is None:
                self._uploads = _transfer_manager(self.client)
            return self._uploads

    def close(self) -> None:
        """Stop all threads."""
        self.pool.shutdown()
        if self._uploads is not None:
            self._uploads.shutdown()

    def wait(self) -> None:
        """Wait until nobody uses it; not for ever, as an interrupt may come between `enter` and the batch."""
        with self._changed:
            _ = self._changed.wait_for(lambda: not self._users, timeout=2 * READ_TIMEOUT)


class BotoDriver:
    """Runs plans: on the caller's thread, with their requests spread over a pool of threads.

    Client and pool are made on first use, and made anew in a forked child. May be used from many
    threads at once. A `decode` function must not call `run`: it would wait in the pool for the pool.

    Args:
        bucket: The bucket that all requests go to.
        client: A boto3 S3 client to be used as it is. The driver neither configures nor closes it,
            and uses it in a forked child too.
        endpoint_url: Where an S3-compatible store is.
        region_name: The bucket's region; botocore's own search for it if not given.
        max_concurrency: How many requests are under way at once.
        addressing_style: "path", "virtual", or None to leave it to botocore.
        put_object_args: More arguments for PutObject and CopyObject, such as encryption or storage class.

    Raises:
        InvalidInput: If an option is not valid.
    """

    def __init__(
        self,
        bucket: str,
        *,
        client: S3Client | None = None,
        endpoint_url: str | None = None,
        region_name: str | None = None,
        max_concurrency: int = 32,
        addressing_style: str | None = None,
        put_object_args: Mapping[str, Any] | None = None,
    ) -> None:
        self._calls = Calls(bucket, dict(put_object_args or {}))
        self._client = client
        self._endpoint_url = endpoint_url
        self._region_name = region_name
        self._config = config_options(endpoint_url, max_concurrency, addressing_style)
        self._max_concurrency = max_concurrency
        self._resources: _Resources | None = None
        self._lock = ForkSafeLock()
        self.ledger = Ledger(bucket)

    def run(self, plan: Plan[T], name: str = "", thread: str | None = None) -> T:
        """Run a plan to its end.

        Args:
            plan: The plan. It is closed whatever happens.
            name: What the log calls it.
            thread: The thread that the log says it is about.

        Returns:
            What the plan returns.

        Raises:
            S3SaverError: What went wrong with the first request of a batch that failed, unless the plan deals with
                it. The others' errors are its notes. No request is under way any more.
        """
        run = Run(plan)
        with self.ledger.entry(run, name, thread):
            while (batch := run.step()) is not None:
                run.settle(self._issue(batch))
            return run.result

    def stats(self) -> Stats:
        """Return a snapshot of what all finished operations have asked of S3."""
        return self.ledger.total

    def close(self) -> None:
        """Stop the threads and close the client, unless it is the caller's. Using the driver again makes them anew.

        Waits for requests under way. What other threads are at goes on with a new client.
        """
        with self._lock:
            made, self._resources = self._resources, None
        if made is None or made.pid != os.getpid():  # a parent's connections are the parent's to close
            return
        made.wait()
        made.close()
        if made.client is not self._client:
            made.client.close()

    def _issue(self, batch: Sequence[Request]) -> list[Settled]:
        """Issue a batch and wait until nothing of it is under way any more."""
        made = self._use()
        try:
            if len(batch) == 1:  # a change of threads would gain nothing
                return [self._settle(made, batch[0])]
            return self._spread(made, batch)
        finally:
            made.leave()

    def _spread(self, made: _Resources, batch: Sequence[Request]) -> list[Settled]:
        """Issue a batch over the pool."""
        # Not the futures of `submit`: an interrupt within it would lose the one it was about to return.
        futures: list[Future[Settled]] = [Future() for _ in batch]
        try:
            for request, future in zip(batch, futures, strict=True):
                # A context cannot be entered twice at once, so each request has its own.
                made.pool.submit(copy_context().run, self._work, made, request, future)
            _wait(futures)
        except BaseException:
            _wait([future for future in futures if not future.cancel()])  # no write may outlive its plan
            raise
        return [future.result() for future in futures]

    def _work(self, made: _Resources, request: Request, future: Future[Settled]) -> None:
        """Perform one request in the pool."""
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(self._settle(made, request))
            except BaseException as error:  # whatever it is, somebody waits for it
                future.set_exception(error)

    def _settle(self, made: _Resources, request: Request) -> Settled:
        """Perform one request."""
        try:
            if isinstance(request, Get):
                return self._get(made, request)
            with made.free:
                if isinstance(request, Put) and request.parts > 1:
                    return Settled(self._upload(made, request))
                return Settled(self._call(made.client, request))
        except Exception as error:
            return failed(request, error)

    def _get(self, made: _Resources, request: Get) -> Settled:
        """Get and decode an object; get it again if its body breaks off, which botocore does not do."""
        with made.free:
            body = self._body(made.client, request)
        return Settled() if body is None else decoded(request, body)

    def _body(self, client: S3Client, request: Get) -> Body | None:
        left = READS
        while (found := self._call(client, request)) is not None:
            left -= 1
            try:
                return _read(request.key, found)
            except CUT as error:
                if not left:
                    raise self._calls.broken(request, error) from error
        return None

    def _upload(self, made: _Resources, request: Put) -> Any:
        """Put a large object in parts. Of one that fails, none are left."""
        _, arguments = self._calls.call(request, made.client.meta.region_name)
        bucket, key, body = (arguments.pop(name) for name in ("Bucket", "Key", "Body"))
        try:
            made.uploads().upload(BytesIO(body), bucket, key, arguments).result()
        except ClientError as error:
            return self._calls.refusal(request, error)
        except FAILURES as error:
            raise self._calls.explain(request, error) from error
        return Stored.DONE

    def _call(self, client: S3Client, request: Request) -> Any:
        """Make one call, again if it meets a conflict, and return its reply as `Calls` has it."""
        method, arguments = self._calls.call(request, client.meta.region_name)
        pauses = iter(PAUSES)
        while True:
            try:
                answer = getattr(client, method)(**arguments)
            except ClientError as error:
                pause = next(pauses, None) if code_of(error) in CONFLICTS else None
                if pause is None:
                    return self._calls.refusal(request, error)
                time.sleep(random.uniform(pause / 2, pause))  # not in step with the other writer
            except FAILURES as error:
                raise self._calls.explain(request, error) from error
            else:
                return self._calls.reply(request, answer)

    def _use(self) -> _Resources:
        """Return what this process has, made now if need be, with one more user."""
        with self._lock:
            made = self._resources
            if made is None or made.pid != os.getpid():
                made = self._resources = _Resources(self._client or self._make_client(), self._max_concurrency)
            made.enter()
            return made

    def _make_client(self) -> S3Client:
        import boto3  # slow to import, and not needed with a client of the caller's

        try:
            # The default session is shared, and not safe to use while another thread sets it up.
            session = boto3.session.Session(region_name=self._region_name)
            client = session.client("s3", endpoint_url=self._endpoint_url, config=Config(**self._config))
        except (BotoCoreError, ValueError) as error:
            raise self._calls.unmade(error) from error
        prepare(client)
        return client


def _transfer_manager(client: S3Client) -> TransferManager:
    from s3transfer.manager import TransferConfig, TransferManager  # seldom needed

    config = TransferConfig(
        multipart_threshold=IN_PARTS_FROM,
        multipart_chunksize=PART,
        max_request_concurrency=PARALLEL,
        max_in_memory_upload_chunks=PARALLEL,
    )
    manager = TransferManager(client, config)
    manager.ALLOWED_UPLOAD_ARGS = sorted(PUT_OBJECT_ARGS)  # its own list lacks one that S3 takes, BucketKeyEnabled
    return manager


def _wait(futures: Sequence[Future[Settled]]) -> None:
    """Wait for all of them, in slices: an interrupt that comes just before a wait begins is not seen until it ends."""
    while wait(futures, timeout=0.1).not_done:
        pass


def _read(key: str, found: Found) -> Body:
    with closing(found.stream) as stream:
        data: bytes = stream.read()
    if found.length not in (None, len(data)):
        raise IncompleteReadError(actual_bytes=len(data), expected_bytes=found.length)
    return Body(key, data, found.etag)

"""Places to keep checkpoints in tests: the bucket in memory, a server, and InMemorySaver to compare with."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from functools import cache
from itertools import count
from typing import Any, Protocol, TypeAlias, TypeVar

import boto3
from aiobotocore.session import get_session
from botocore.config import Config
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from moto.server import ThreadedMotoServer

from langgraph.checkpoint.s3 import S3Saver
from langgraph.checkpoint.s3._calls import config_options
from langgraph.checkpoint.s3.aio import AsyncS3Saver
from tests.support.drivers import Loop
from tests.support.fake_s3 import FakeDriver, FakeS3

T = TypeVar("T")

PREFIX = "agents/test"

BUCKETS = count()


class Place(Protocol):
    """Where checkpoints lie. Savers come and go, as processes do; what they stored stays."""

    def saver(self, **options: Any) -> BaseCheckpointSaver[str]:
        """A new saver: another process as it were."""


class FakeStore:
    """A bucket in memory."""

    def __init__(self) -> None:
        self.s3 = FakeS3()

    def saver(self, **options: Any) -> S3Saver:
        """A new saver on this bucket, with nothing in its memory."""
        saver = S3Saver("bucket", PREFIX, **options)
        saver._driver = FakeDriver(self.s3)  # type: ignore[assignment]
        return saver

    def close(self) -> None:
        """Nothing is open."""


@cache
def shared_client(endpoint: str) -> Any:
    """A client for all savers that need none of their own: making one takes half a second."""
    return boto3.session.Session().client(
        "s3", endpoint_url=endpoint, config=Config(**config_options(endpoint, 32, None))
    )


class BotoStore:
    """A fresh bucket on the server, over the real client."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.bucket = f"bucket-{next(BUCKETS)}"
        self._open = ExitStack()
        self.saver().setup(create_bucket=True)

    def saver(self, **options: Any) -> S3Saver:
        """A new saver on this bucket; with `client=None` it makes a client of its own. `close` closes it."""
        options = {"client": shared_client(self.endpoint), "endpoint_url": self.endpoint, **options}
        return self._open.enter_context(S3Saver(self.bucket, PREFIX, **options))

    def close(self) -> None:
        """Close all savers made here."""
        self._open.close()


@cache
def shared_session() -> Any:
    """A session for all asynchronous savers: it keeps the models, which take a tenth of a second to load."""
    return get_session()


class AioStore:
    """A fresh bucket on the server, over aiobotocore.

    The savers belong to a loop in another thread, so tests may call their synchronous methods as well as run
    their asynchronous ones on loops of their own.
    """

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.bucket = f"bucket-{next(BUCKETS)}"
        self._open = AsyncExitStack()
        self._loop = Loop()
        self._loop.run(self.saver().setup(create_bucket=True))

    def saver(self, **options: Any) -> AsyncS3Saver:
        """A new saver on this bucket; each has a client of its own."""
        return self._loop.run(self._saver(options))

    async def _saver(self, options: dict[str, Any]) -> AsyncS3Saver:
        options = {"session": shared_session(), "endpoint_url": self.endpoint, **options}
        saver = AsyncS3Saver(self.bucket, PREFIX, **options)
        return await self._open.enter_async_context(saver)

    def close(self) -> None:
        """Close all savers made here, and the loop."""
        self._loop.run(self._open.aclose())
        self._loop.close()


Store: TypeAlias = FakeStore | BotoStore | AioStore


class Memory(InMemorySaver):
    """LangGraph's own saver as the oracle, with the operations that it lacks.

    Whatever prune leaves has to look as if nothing had been pruned, so here it does nothing.
    """

    def saver(self, **options: Any) -> InMemorySaver:
        """This very saver: it is the place as well."""
        return self

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Keep everything."""

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy checkpoints, values and writes."""
        for ns, checkpoints in list(self.storage[source_thread_id].items()):
            self.storage[target_thread_id][ns].update(checkpoints)
        for (thread, ns, channel, version), value in list(self.blobs.items()):
            if thread == source_thread_id:
                self.blobs[target_thread_id, ns, channel, version] = value
        for (thread, ns, checkpoint_id), writes in list(self.writes.items()):
            if thread == source_thread_id:
                self.writes[target_thread_id, ns, checkpoint_id] = dict(writes)


STORES: Mapping[str, Callable[[Callable[[], str]], Store]] = {
    "fake": lambda endpoint: FakeStore(),
    "boto": lambda endpoint: BotoStore(endpoint()),
    "aio": lambda endpoint: AioStore(endpoint()),
}
"""What the fixture `store` (and with it `saver`) goes through. `endpoint()` starts the server, once."""


@contextmanager
def moto_server() -> Iterator[str]:
    """Run moto's server in this process; gives its address."""
    logging.getLogger("werkzeug").setLevel(logging.WARNING)  # else a line per request, which takes a tenth of the time
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        yield "http://{}:{}".format(*server.get_host_and_port())
    finally:
        server.stop()

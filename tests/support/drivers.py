"""Both drivers with one face, so that one suite can hold them to the same behaviour."""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import Callable, Coroutine
from types import SimpleNamespace, TracebackType
from typing import Any, TypeAlias, TypeVar

from botocore.exceptions import ClientError

from langgraph.checkpoint.s3._aioboto import AioBotoDriver
from langgraph.checkpoint.s3._boto import BotoDriver
from langgraph.checkpoint.s3._requests import Plan, Request
from langgraph.checkpoint.s3._stats import Stats

T = TypeVar("T")


class Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run something there, and wait for it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()

    def close(self) -> None:
        """Shut the loop down. Nothing may be left on it."""
        self.run(self.loop.shutdown_asyncgens())
        left = self.run(_others())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()
        assert not left, left


async def _others() -> set[asyncio.Task[Any]]:
    return asyncio.all_tasks() - {asyncio.current_task()}


class AioOnLoop:
    """The asynchronous driver with the face of the synchronous one. A client that is not asynchronous is made so."""

    def __init__(self, loop: Loop, bucket: str, *, client: Any = None, **options: Any) -> None:
        self._loop = loop
        self.driver = AioBotoDriver(bucket, client=None if client is None else AsAsync(client), **options)

    def run(self, plan: Plan[T], name: str = "") -> T:
        """Run a plan on the loop."""
        return self._loop.run(self.driver.run(plan, name))

    def stats(self) -> Stats:
        """What has been asked."""
        return self.driver.stats()

    def close(self) -> None:
        """Close the client."""
        self._loop.run(self.driver.aclose())


Driver: TypeAlias = BotoDriver | AioOnLoop
Maker: TypeAlias = Callable[..., Driver]


class AsAsync:
    """A client whose methods run in threads, and whose bodies are read asynchronously."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.meta = client.meta

    def __getattr__(self, method: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        async def call(**arguments: Any) -> Any:
            answer = await asyncio.to_thread(getattr(self._client, method), **arguments)
            return {**answer, "Body": AsyncBody(answer["Body"])} if "Body" in answer else answer

        return call


class AsyncBody:
    """A body as aiobotocore gives it."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def read(self) -> bytes:
        """Read all of it."""
        data: bytes = self._stream.read()
        return data

    def close(self) -> None:
        """Close it without reading."""
        self._stream.close()

    async def __aenter__(self) -> AsyncBody:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def ask(*requests: Request) -> Plan[list[Any]]:
    """Issue one batch and return its replies."""
    replies = yield requests
    return list(replies)


STORED = {"ETag": '"e"'}


def failure(code: str, status: int, message: str = "") -> ClientError:
    answer = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(answer, "Operation")  # type: ignore[arg-type]


class Scripted:
    """A client whose every method gives the next of a row of answers; exceptions among them are raised."""

    def __init__(self, *answers: Any, region: str | None = None) -> None:
        self.meta = SimpleNamespace(region_name=region)
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self._answers = iter(answers)

    def __getattr__(self, method: str) -> Callable[..., Any]:
        def call(**arguments: Any) -> Any:
            self.calls.append((method, arguments))
            answer = next(self._answers)
            if isinstance(answer, BaseException):
                raise answer
            return answer

        return call


def answer_of(data: bytes, length: int | None = None) -> dict[str, Any]:
    return {"Body": io.BytesIO(data), "ETag": '"e"', "ContentLength": len(data) if length is None else length}


class Breaking(io.BytesIO):
    """A body whose connection breaks while it is read."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def read(self, *_: Any) -> bytes:
        raise self.error


class FromFunction:
    """A client whose puts are a function of the key."""

    meta = SimpleNamespace(region_name=None)

    def __init__(self, act: Callable[[str], Any]) -> None:
        self.act = act

    def put_object(self, *, Key: str, **_: Any) -> dict[str, Any]:
        self.act(Key)
        return STORED

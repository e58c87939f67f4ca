"""A plan under way: what every driver does between two batches, and the account of what it has asked.

A driver steps a `Run`, issues the batch, says how its requests ended, and steps it again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from langgraph.checkpoint.s3._locks import ForkSafeLock
from langgraph.checkpoint.s3._requests import Body, Get, Plan, Request
from langgraph.checkpoint.s3._stats import Stats

T = TypeVar("T")

logger = logging.getLogger("langgraph.checkpoint.s3")


class Settled(NamedTuple):
    """How one request ended."""

    reply: Any = None
    received: int = 0
    error: Exception | None = None


def failed(request: Request, error: Exception) -> Settled:
    """A request that ended with an error, which is an outcome like any other: the rest of its batch goes on."""
    if isinstance(error, StopIteration):  # thrown into a generator it would end it
        wrapped = RuntimeError(f"{request} raised StopIteration.")
        wrapped.__cause__ = error
        return Settled(error=wrapped)
    return Settled(error=error)


def decoded(request: Get, body: Body) -> Settled:
    """The end of a `Get` whose body has come whole."""
    try:
        return Settled(request.decode(body), len(body.data))
    except Exception as error:
        return failed(request, error)


class Run(Generic[T]):
    """One plan that is being run. `result` is there once `step` has returned None."""

    result: T

    def __init__(self, plan: Plan[T]) -> None:
        self.spent = Stats(operations=1)
        self._plan = plan
        self._resume: Callable[[], Sequence[Request]] = partial(next, plan)

    def step(self) -> Sequence[Request] | None:
        """Let the plan go on to its next batch; None if it has come to its end.

        Raises:
            Exception: Whatever the plan raises, above all the error of a request that it did not deal with.
        """
        try:
            batch = self._resume()
        except StopIteration as stop:  # caught here only: a request that raises it must not end the plan
            self.result = stop.value
            return None
        self.spent += Stats.of(batch)
        return batch

    def settle(self, settled: Sequence[Settled]) -> None:
        """Take how the requests of the batch ended, all of them; the next step tells the plan.

        It is sent their replies, or the first error is thrown into it, with the others attached as notes.
        """
        self.spent += Stats(bytes_received=sum(one.received for one in settled))
        errors = [one.error for one in settled if one.error is not None]
        if not errors:
            self._resume = partial(self._plan.send, [one.reply for one in settled])
            return
        first, *others = errors
        for other in others:  # what add_note does, which Python 3.10 has not got
            vars(first).setdefault("__notes__", []).append(f"Also failed: {type(other).__name__}: {other}")
        self._resume = partial(self._plan.throw, first)

    def close(self) -> None:
        """Close the plan, wherever it is."""
        self._plan.close()


@dataclass
class Operation:
    """One operation of a saver, as those see it who observe it.

    Attributes:
        name: That of the method, without the "a" of an asynchronous one.
        thread: The id of the thread it is about; None if it is about several, or none.
        bucket: The bucket.
        spent: What it has asked of S3. Complete once it has ended.
    """

    name: str
    thread: str | None
    bucket: str
    spent: Stats


Observer: TypeAlias = Callable[[Operation], AbstractContextManager[object]]
"""Makes a context manager for each operation, in which it runs; its error passes through."""


class Ledger:
    """What all finished operations of a driver have asked of S3, and who observes them. Threads may share it."""

    def __init__(self, bucket: str) -> None:
        self.bucket = bucket
        self.total = Stats()
        self.observers: tuple[Observer, ...] = ()
        self._lock = ForkSafeLock()

    @contextmanager
    def entry(self, run: Run[Any], name: str, thread: str | None) -> Iterator[None]:
        """An operation: the plan is run inside. However it ends, the plan is closed and its account kept."""
        started = time.perf_counter() if logger.isEnabledFor(logging.DEBUG) else None
        operation = Operation(name or "plan", thread, self.bucket, run.spent)
        with ExitStack() as observed:
            for observer in self.observers:
                _ = observed.enter_context(observer(operation))
            try:
                yield
            finally:
                run.close()
                operation.spent = run.spent
                with self._lock:
                    self.total += run.spent
                if started is not None:
                    _log(operation, time.perf_counter() - started)


def _log(operation: Operation, seconds: float) -> None:
    """Write an operation's line. Ids and counts, and never what a thread holds."""
    spent = operation.spent
    logger.debug(
        "%s%s: %d round trips, %d requests, %d bytes sent, %d received, %.1f ms",
        operation.name,
        "" if operation.thread is None else f" of thread {operation.thread!r}",
        spent.round_trips,
        spent.requests,
        spent.bytes_sent,
        spent.bytes_received,
        seconds * 1000,
    )

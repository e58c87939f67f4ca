"""Spans and metrics of a saver's operations, for OpenTelemetry. Needs the extra: langgraph-checkpoint-s3saver[otel].

Only the API is used: without an SDK that the program sets up, nothing is recorded. Names are those of OpenTelemetry's
semantic conventions where there are any (`aws.s3.bucket`, `error.type`, `network.io.direction`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

from opentelemetry.metrics import MeterProvider, get_meter
from opentelemetry.trace import SpanKind, TracerProvider, get_tracer

from langgraph.checkpoint.s3._run import Observer, Operation
from langgraph.checkpoint.s3._stats import Stats

__all__ = ["instrument"]

SCOPE = "langgraph.checkpoint.s3"


class Observable(Protocol):
    """A saver, of either kind."""

    def observe(self, observer: Observer) -> None:
        """Have every operation run inside a context manager."""


SaverT = TypeVar("SaverT", bound=Observable)


def instrument(
    saver: SaverT, *, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
) -> SaverT:
    """Make a span and measurements of each of a saver's operations from now on.

    A span is named "s3saver put" or the like, with the thread's id, the bucket, round trips, requests and bytes; an
    operation that fails has its error in it. Nothing tells what a thread holds. Metrics, by operation and bucket:

    * `s3saver.operation.duration`, a histogram in seconds, with `error.type` of those that failed
    * `s3saver.operation.round_trips`, a histogram
    * `s3saver.requests`, a counter, by `s3saver.request` (get, put, list, delete, copy)
    * `s3saver.io`, a counter in bytes of bodies, by `network.io.direction` (transmit, receive)

    Args:
        saver: An `S3Saver` or `AsyncS3Saver`; instrument it once. Its shallow copies are instrumented with it.
        tracer_provider: By default the global one.
        meter_provider: By default the global one.

    Returns:
        The saver. Costs no request.
    """
    saver.observe(_Instruments(tracer_provider, meter_provider).observe)
    return saver


class _Instruments:
    """The tracer, and what is measured."""

    def __init__(self, tracer_provider: TracerProvider | None, meter_provider: MeterProvider | None) -> None:
        self._tracer = get_tracer(SCOPE, tracer_provider=tracer_provider)
        meter = get_meter(SCOPE, meter_provider=meter_provider)
        self._duration = meter.create_histogram("s3saver.operation.duration", "s", "How long operations take")
        self._round_trips = meter.create_histogram(
            "s3saver.operation.round_trips", "{round_trip}", "Round trips of operations that follow one another"
        )
        self._requests = meter.create_counter("s3saver.requests", "{request}", "Requests to S3")
        self._io = meter.create_counter("s3saver.io", "By", "Bytes of objects' bodies")

    @contextmanager
    def observe(self, operation: Operation) -> Iterator[None]:
        """Trace and measure one operation."""
        labels = {"s3saver.operation": operation.name, "aws.s3.bucket": operation.bucket}
        thread = {} if operation.thread is None else {"s3saver.thread_id": operation.thread}
        failure: dict[str, str] = {}
        started = time.perf_counter()
        # Internal: each request is a client's span of its own, if botocore is instrumented too.
        with self._tracer.start_as_current_span(
            f"s3saver {operation.name}", kind=SpanKind.INTERNAL, attributes={**labels, **thread}
        ) as span:
            try:
                yield
            except BaseException as error:
                failure = {"error.type": type(error).__qualname__}
                raise
            finally:
                span.set_attributes({**_counts(operation.spent), **failure})
                self._duration.record(time.perf_counter() - started, {**labels, **failure})
                self._count(operation.spent, labels)

    def _count(self, spent: Stats, labels: dict[str, str]) -> None:
        self._round_trips.record(spent.round_trips, labels)
        requests = {
            "get": spent.gets,
            "put": spent.puts,
            "list": spent.lists,
            "delete": spent.deletes,
            "copy": spent.copies,
        }
        for kind, count in requests.items():
            if count:
                self._requests.add(count, {**labels, "s3saver.request": kind})
        for direction, size in (("transmit", spent.bytes_sent), ("receive", spent.bytes_received)):
            if size:
                self._io.add(size, {**labels, "network.io.direction": direction})


def _counts(spent: Stats) -> dict[str, str | int]:
    return {
        "s3saver.round_trips": spent.round_trips,
        "s3saver.requests": spent.requests,
        "s3saver.bytes_sent": spent.bytes_sent,
        "s3saver.bytes_received": spent.bytes_received,
    }

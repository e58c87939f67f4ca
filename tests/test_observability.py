"""What an operator sees of a saver: a line of the log, sums, spans and metrics. Never what a thread holds."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeAlias

import pytest
from langgraph.checkpoint.base import DeltaChannelHistory
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from langgraph.checkpoint.s3 import Operation, S3Saver, Stats
from langgraph.checkpoint.s3.aio import AsyncS3Saver
from langgraph.checkpoint.s3.errors import BucketNotFound, InvalidInput
from langgraph.checkpoint.s3.otel import instrument
from langgraph.checkpoint.s3.retention import RetentionPolicy
from tests.support.savers import AioStore, BotoStore, Store
from tests.support.threads import Script, config_for

Saver: TypeAlias = S3Saver | AsyncS3Saver

SECRET = "what anna said"

LANGGRAPH = ["put", "put_writes", "get_tuple", "list", "get_delta_channel_history", "copy_thread", "prune"]
"""The operations that `work` runs at least once, in this order, before it deletes."""


def work(saver: Saver) -> dict[str, DeltaChannelHistory]:
    """All that LangGraph asks of a saver, on the thread "anna", with a large value and a run."""
    script = Script(saver, "anna")
    for number in range(3):
        _ = script.put({"messages": SECRET * (5_000 + number), "log": SECRET}, run_id="run")
        script.write("messages", SECRET)
    assert saver.get_tuple(config_for("anna")) is not None
    assert len(list(saver.list(config_for("anna"), limit=2))) == 2
    history = saver.get_delta_channel_history(config=script.config, channels=["log"])
    saver.copy_thread("anna", "bert")
    saver.prune(["anna"])
    saver.delete_for_runs(["run"])
    saver.delete_thread("anna")
    return dict(history)


@pytest.fixture(params=[BotoStore, AioStore])
def store(request: pytest.FixtureRequest, s3_endpoint: str) -> Iterator[Store]:
    """Moto's server, over either driver."""
    store = request.param(s3_endpoint)
    yield store
    store.close()


@pytest.fixture
def saver(store: Store) -> Saver:
    """A saver, which the log and the tests below observe."""
    return store.saver()


# -- the log ---------------------------------------------------------------------------------------


def test_each_operation_is_a_line_with_its_thread_and_no_content(
    saver: Saver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "langgraph.checkpoint.s3")
    before = saver.stats()
    _ = work(saver)
    lines = [record.getMessage() for record in caplog.records if record.name == "langgraph.checkpoint.s3"]
    assert len(lines) == (saver.stats() - before).operations
    heads = [line.partition(":")[0] for line in lines]
    several = {"prune", "delete_for_runs"}
    expected = [name if name in several else f"{name} of thread 'anna'" for name in [*LANGGRAPH, "delete_for_runs"]]
    assert list(dict.fromkeys(heads)) == [*expected, "delete_thread of thread 'anna'"]
    assert not [line for line in lines if SECRET in line]


def test_a_call_that_is_wrong_is_logged_whatever_its_config(saver: Saver, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "langgraph.checkpoint.s3")
    wrong: list[Any] = [{}, {"configurable": None}, {"configurable": 7}, {"configurable": {"thread_id": b"x"}}, 7]
    for config in wrong:
        with pytest.raises(InvalidInput):
            _ = saver.get_tuple(config)
    heads = [message.partition(":")[0] for message in caplog.messages]
    assert heads == [*["get_tuple"] * 3, "get_tuple of thread \"b'x'\"", "get_tuple"]


# -- sums ------------------------------------------------------------------------------------------


def test_dollars_are_those_of_the_price_list() -> None:
    million = 1_000_000
    assert Stats(puts=million).dollars == pytest.approx(5.00)
    assert Stats(copies=million).dollars == pytest.approx(5.00)
    assert Stats(lists=million).dollars == pytest.approx(5.00)
    assert Stats(gets=million).dollars == pytest.approx(0.40)
    assert Stats(deletes=million, bytes_sent=million).dollars == 0.0


def test_dollars_add_up_over_operations(saver: Saver) -> None:
    before = saver.stats()
    _ = work(saver)
    spent = saver.stats() - before
    assert spent.dollars == pytest.approx(5e-6 * (spent.puts + spent.copies + spent.lists) + 0.4e-6 * spent.gets)
    assert spent.dollars > 0


# -- observers -------------------------------------------------------------------------------------


def test_observers_see_each_operation_begin_and_end(saver: Saver) -> None:
    seen: list[tuple[str, str, int]] = []

    def watch(name: str) -> Any:
        @contextmanager
        def observer(operation: Operation) -> Iterator[None]:
            seen.append((name, f"begin {operation.name}", operation.spent.requests))
            try:
                yield
            finally:
                seen.append((name, f"end {operation.name}", operation.spent.requests))

        return observer

    saver.observe(watch("first"))
    saver.observe(watch("second"))
    assert saver.get_tuple(config_for("nobody")) is None
    first, second, *ends = seen
    assert (first, second) == (("first", "begin get_tuple", 0), ("second", "begin get_tuple", 0))
    assert [it[:2] for it in ends] == [("second", "end get_tuple"), ("first", "end get_tuple")]
    assert {it[2] for it in ends} == {2}


def test_shallow_copies_are_observed_too(saver: Saver) -> None:
    seen: list[str] = []

    @contextmanager
    def observer(operation: Operation) -> Iterator[None]:
        seen.append(operation.name)
        yield

    saver.observe(observer)
    _ = saver.with_allowlist([]).get_tuple(config_for("nobody"))
    assert seen == ["get_tuple"]


# -- OpenTelemetry ---------------------------------------------------------------------------------


class Telemetry:
    """An SDK that keeps all in memory."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        self.tracer_provider = TracerProvider()
        self.tracer_provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.meter_provider = MeterProvider([self._reader])

    def on(self, saver: Saver) -> Saver:
        """The saver, instrumented."""
        return instrument(saver, tracer_provider=self.tracer_provider, meter_provider=self.meter_provider)

    def spans(self) -> list[ReadableSpan]:
        """All spans that have ended."""
        return list(self._exporter.get_finished_spans())

    def points(self, name: str) -> list[Any]:
        """The data points of a metric."""
        data = self._reader.get_metrics_data()
        assert data is not None
        metrics = [it for one in data.resource_metrics for scope in one.scope_metrics for it in scope.metrics]
        return [point for metric in metrics if metric.name == name for point in metric.data.data_points]

    def sums(self, name: str, label: str) -> dict[Any, int]:
        """The sums of a counter, by one of its labels."""
        sums: dict[Any, int] = {}
        for point in self.points(name):
            sums[point.attributes[label]] = sums.get(point.attributes[label], 0) + point.value
        return sums


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    """An SDK for one test."""
    telemetry = Telemetry()
    yield telemetry
    telemetry.tracer_provider.shutdown()
    telemetry.meter_provider.shutdown()


def test_spans_and_metrics_tell_what_the_sums_tell(saver: Saver, telemetry: Telemetry) -> None:
    before = saver.stats()
    _ = work(telemetry.on(saver))
    spent = saver.stats() - before
    spans = telemetry.spans()
    assert len(spans) == spent.operations
    attributes = [dict(span.attributes or {}) for span in spans]
    for name in ("round_trips", "requests", "bytes_sent", "bytes_received"):
        assert sum(int(str(it[f"s3saver.{name}"])) for it in attributes) == getattr(spent, name)
    assert telemetry.sums("s3saver.requests", "s3saver.request") == {
        "put": spent.puts,
        "get": spent.gets,
        "list": spent.lists,
        "copy": spent.copies,
        "delete": spent.deletes,
    }
    bytes_both_ways = {"transmit": spent.bytes_sent, "receive": spent.bytes_received}
    assert telemetry.sums("s3saver.io", "network.io.direction") == bytes_both_ways
    durations = telemetry.points("s3saver.operation.duration")
    assert sum(point.count for point in durations) == spent.operations
    round_trips = telemetry.points("s3saver.operation.round_trips")
    assert sum(point.sum for point in round_trips) == spent.round_trips
    assert all(point.sum > 0 for point in durations)


def test_spans_have_names_threads_and_no_content(saver: Saver, telemetry: Telemetry) -> None:
    _ = work(telemetry.on(saver))
    spans = telemetry.spans()
    names = list(dict.fromkeys(span.name for span in spans))
    assert names == [f"s3saver {name}" for name in [*LANGGRAPH, "delete_for_runs", "delete_thread"]]
    assert {dict(span.attributes or {}).get("s3saver.thread_id") for span in spans} == {"anna", None}
    assert {dict(span.attributes or {})["aws.s3.bucket"] for span in spans} == {saver.bucket}
    assert not [span for span in spans if SECRET in span.to_json()]
    labels = {
        key
        for name in ("s3saver.requests", "s3saver.operation.duration")
        for point in telemetry.points(name)
        for key in point.attributes
    }
    assert "s3saver.thread_id" not in labels  # one time series for each thread would be too many


def test_a_failed_operation_is_a_span_with_its_error(store: Store, telemetry: Telemetry) -> None:
    saver = telemetry.on(store.saver())
    with pytest.raises(InvalidInput):
        _ = saver.get_tuple({})
    (span,) = telemetry.spans()
    assert span.status.status_code is StatusCode.ERROR
    assert dict(span.attributes or {})["error.type"] == "InvalidInput"
    (point,) = telemetry.points("s3saver.operation.duration")
    assert point.attributes["error.type"] == "InvalidInput"


def test_spans_stand_below_that_of_the_caller(saver: Saver, telemetry: Telemetry) -> None:
    tracer = telemetry.tracer_provider.get_tracer("test")
    with tracer.start_as_current_span("the agent") as agent:
        _ = telemetry.on(saver).get_tuple(config_for("nobody"))
    (span, _) = telemetry.spans()
    assert span.parent is not None
    assert span.parent.span_id == agent.get_span_context().span_id


def test_upkeep_is_observed_too(saver: Saver, telemetry: Telemetry) -> None:
    _ = Script(saver, "anna").put({"messages": SECRET})
    policy = RetentionPolicy(thread_idle=timedelta(0), min_age=timedelta(0))
    _ = telemetry.on(saver)
    if isinstance(saver, S3Saver):
        report = saver.apply_retention(policy)
    else:
        report = asyncio.run(saver.aapply_retention(policy))
    assert report.removed == 1
    assert {span.name for span in telemetry.spans()} == {"s3saver apply_retention"}


def test_a_bucket_that_is_not_there_is_told_of(s3_endpoint: str, telemetry: Telemetry) -> None:
    with S3Saver("nowhere", endpoint_url=s3_endpoint) as saver:
        _ = telemetry.on(saver)
        with pytest.raises(BucketNotFound):
            saver.setup()
    (span,) = telemetry.spans()
    assert span.status.status_code is StatusCode.ERROR
    (event,) = span.events
    assert "nowhere" in str(dict(event.attributes or {})["exception.message"])

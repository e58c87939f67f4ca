"""No copy of a large value more than needed: what a process takes at most while it stores or reads 200 MB."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from benchmarks.memory import SAVERS, VALUES, peak
from benchmarks.server.control import start_server

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's own account of a process's memory")


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with start_server("--latency", "0") as told:
        yield told["s3"]


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("saver", SAVERS)
def test_storing_and_reading_take_at_most_three_times_the_value(endpoint: str, saver: str, value: str) -> None:
    """The value itself is one of the three. Less than one would mean that nothing was measured."""
    assert 1 < peak(endpoint, saver, "put", value) <= 3
    assert 1 < peak(endpoint, saver, "get", value) <= 3

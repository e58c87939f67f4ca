"""How long the handlers of `examples/lambda` take, cold and warm: `python -m benchmarks.on_lambda`.

Each runs under AWS's own runtime client, in a process of its own, against the benchmarks' S3 server. Other savers stand
in the place of S3Saver, by a module of its name that is found first. All take turns. Only ratios say something.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.measure import AWS
from benchmarks.server.control import ROOT, ServerControl, start_server
from tests.support.lambda_runtime import Function

EXAMPLE = ROOT / "examples" / "lambda"

MEMORY = """
from langgraph.checkpoint.memory import InMemorySaver
def S3Saver(bucket, prefix):
    return InMemorySaver()
"""

SQLITE = """
import sqlite3, tempfile
from langgraph.checkpoint.sqlite import SqliteSaver
scratch = tempfile.TemporaryDirectory()
def S3Saver(bucket, prefix):
    return SqliteSaver(sqlite3.connect(scratch.name + "/checkpoints.sqlite", check_same_thread=False))
"""


class Candidate(NamedTuple):
    """A handler, and the modules that it finds before all others."""

    handler: str
    modules: Mapping[str, str] = {}


CANDIDATES = {
    "InMemorySaver": Candidate("handler.handler", {"langgraph/checkpoint/s3.py": MEMORY}),
    "SqliteSaver, a file": Candidate("handler.handler", {"langgraph/checkpoint/s3.py": SQLITE}),
    "S3Saver": Candidate("handler.handler"),
    "AsyncS3Saver, asyncio.run": Candidate("async_handler.handler"),
    "AsyncS3Saver, a loop that is kept": Candidate("kept_loop.handler"),
}


@contextmanager
def started(candidate: Candidate, endpoint: str) -> Iterator[Function]:
    """A function whose process has just begun to start."""
    with tempfile.TemporaryDirectory() as scratch:
        for name, text in candidate.modules.items():
            path = Path(scratch, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        environment = AWS | {
            "AWS_ENDPOINT_URL_S3": endpoint,
            "BOOKINGS": os.devnull,
            "BUCKET": "bench",
            "LANGSMITH_TRACING": "false",
            "PYTHONPATH": os.pathsep.join([scratch, str(EXAMPLE), str(ROOT / "src"), *sys.path]),
        }
        with Function(EXAMPLE, candidate.handler, environment) as function:
            yield function


def take_turn(function: Function, thread: str) -> float:
    """Take the first turn of a thread: an answer of the model, two calls of a tool, another answer. Gives seconds."""
    start = time.perf_counter()
    answer = function.invoke({"thread_id": thread, "event_id": "e1", "message": "book Oslo Rome"})
    assert answer == {"answer": "So far you have a flight to Oslo, a flight to Rome."}, answer
    return time.perf_counter() - start


def measure(candidate: Candidate, server: ServerControl, turns: int) -> tuple[float, float]:
    """Seconds from the start of a process to its first answer, and those of a turn after it."""
    server.create("bench")
    start = time.perf_counter()
    with started(candidate, server.endpoint) as function:
        _ = take_turn(function, "cold")
        cold = time.perf_counter() - start
        warm = [take_turn(function, f"warm {number}") for number in range(turns)]
        assert not function.log(), function.log()
    return cold, statistics.median(warm)


def compare(server: ServerControl, rounds: int, turns: int) -> dict[str, tuple[float, float]]:
    """The medians of each candidate."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in CANDIDATES}
    for _ in range(rounds):
        for name, candidate in CANDIDATES.items():
            found[name].append(measure(candidate, server, turns))
    return {name: median_of(pairs) for name, pairs in found.items()}


def median_of(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The medians of the first ones and of the second ones."""
    colds, warms = zip(*pairs, strict=True)
    return statistics.median(colds), statistics.median(warms)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="how many processes of each")
    parser.add_argument("--turns", type=int, default=10, help="how many warm turns in each")
    parser.add_argument("--latency", type=float, nargs="+", default=[0, 25], help="milliseconds for each request to S3")
    arguments = parser.parse_args()
    columns = ["handler"]
    rows = {name: [name] for name in CANDIDATES}
    with start_server() as addresses:
        server = ServerControl(addresses["s3"])
        for latency in arguments.latency:
            server.set_latency(latency)
            found = compare(server, arguments.rounds, arguments.turns)
            columns += [f"cold, {latency:g} ms", f"warm, {latency:g} ms"]
            base = found["InMemorySaver"]
            for name, pair in found.items():
                rows[name] += [f"{it / of:.1f}" for it, of in zip(pair, base, strict=True)]
    for row in (columns, ["---"] * len(columns), *rows.values()):
        print(f"| {' | '.join(row)} |")
    print(f"\n1.0 is {base[0] * 1000:.0f} ms cold and {base[1] * 1000:.0f} ms warm.")


if __name__ == "__main__":
    main()

"""`make bench`: what operations cost, counted; and what they cost the processor, next to savers without a bucket.

The bucket is the tests' in-memory S3, so that no server and no network is in the figures. Counts are those that
`tests/test_costs.py` asserts. Times are of one run, so only their ratios say something.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver

from tests.support.fake_s3 import FakeDriver, FakeS3
from tests.support.threads import Script, config_for, noise, saver_on, uuid_of

MESSAGES = [{"role": "user", "content": f"message {number}, of some length as they are"} for number in range(20)]


def thread_of(length: int) -> FakeS3:
    """A bucket with one thread, a write batch on each checkpoint."""
    s3 = FakeS3()
    script = Script(saver_on(s3))
    for number in range(length):
        _ = script.put({"messages": f"message {number}"})
        script.write("messages", "write")
    return s3


def costs(s3: FakeS3, length: int) -> dict[str, str]:
    """Round trips and requests of each operation on a thread."""
    driver = FakeDriver(s3)
    saver = saver_on(driver)
    script = Script(saver, first=length + 1)
    script.head = uuid_of(length)
    latest = config_for("thread")
    _ = saver.get_tuple(latest)
    operations: dict[str, Callable[[], Any]] = {
        "put": lambda: script.put({"messages": "new"}),
        "get_tuple, latest": lambda: saver.get_tuple(latest),
        "put, new large value": lambda: script.put({"large": noise(100_000)}),
        "put, inherits it": lambda: script.put({"messages": "more"}),
        "put_writes": lambda: script.write("messages", "write"),
        "get_tuple, with both": lambda: saver.get_tuple(latest),
        "list(limit=10)": lambda: list(saver.list(latest, limit=10)),
        "copy_thread": lambda: saver.copy_thread("thread", "fork"),
        "prune": lambda: saver.prune(["thread"]),
        "delete_thread": lambda: saver.delete_thread("fork"),
    }
    told = {}
    for name, call in operations.items():
        with driver.measure() as cost:
            call()
        kinds = {"PUT": cost.puts, "GET": cost.gets, "LIST": cost.lists, "COPY": cost.copies, "DELETE": cost.deletes}
        told[name] = f"{cost.round_trips} ({', '.join(f'{count} {kind}' for kind, count in kinds.items() if count)})"
    return told


def seconds(saver: BaseCheckpointSaver[str], turns: int = 300) -> tuple[float, float]:
    """Median seconds of a put and of a get_tuple, in a thread with twenty messages."""
    script = Script(saver)
    puts, gets = [], []
    for number in range(turns):
        start = time.perf_counter()
        _ = script.put({"messages": [*MESSAGES, number]})
        puts.append(time.perf_counter() - start)
        start = time.perf_counter()
        _ = saver.get_tuple(config_for("thread"))
        gets.append(time.perf_counter() - start)
    return statistics.median(puts), statistics.median(gets)


def main() -> None:
    """Print both tables."""
    lengths = (10, 10_000)
    columns = [costs(thread_of(length), length) for length in lengths]
    print("Round trips (requests), in a thread of 10 and of 10,000 checkpoints\n")
    print("| operation | 10 | 10,000 |\n| --- | --- | --- |")
    for name in columns[0]:
        print(f"| {name} | {columns[0][name]} | {columns[1][name]} |")
    with SqliteSaver.from_conn_string(":memory:") as sqlite:
        savers = {"InMemorySaver": InMemorySaver(), "SqliteSaver, in memory": sqlite, "S3Saver": saver_on(FakeS3())}
        times = {name: seconds(saver) for name, saver in savers.items()}
    put, get = times["InMemorySaver"]
    print("\nProcessor time without any latency, as a multiple of InMemorySaver's\n")
    print("| saver | put | get_tuple |\n| --- | --- | --- |")
    for name, (one, other) in times.items():
        print(f"| {name} | {one / put:.1f} | {other / get:.1f} |")


if __name__ == "__main__":
    main()

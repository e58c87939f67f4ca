"""`make bench`: what operations cost, counted; and what they cost the processor, next to savers without a bucket.

The bucket is the tests' in-memory S3, so that no server and no network is in the figures. Counts are those that
`tests/test_costs.py` asserts, of a process that has nothing cached. Times are medians of one run in which the savers
take turns: only their ratios say something. S3Saver's include the work of the in-memory S3; PostgresSaver's not that of
its server. Nothing is written but what is printed.
"""

from __future__ import annotations

import operator
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, TypedDict

sys.path.insert(0, str(Path(__file__).parents[1]))

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.types import Durability

from benchmarks.run import postgres, postgres_programs
from langgraph.checkpoint.s3._operations import Disposal, Manifest
from langgraph.checkpoint.s3.retention import RetentionPolicy
from tests.support.fake_s3 import Cost, FakeDriver, FakeS3
from tests.support.threads import Script, config_for, noise, saver_on, uuid_of

MESSAGES = [{"role": "user", "content": f"message {number}, of some length as they are"} for number in range(20)]

DOLLARS_PUT, DOLLARS_GET = 5.00 / 1_000_000, 0.40 / 1_000_000
"""AWS's list price of a PUT, COPY or LIST, and of a GET. DELETE is free."""


class Log(TypedDict):
    """A state that grows by an entry per super-step."""

    log: Annotated[list[str], operator.add]


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
    saver = saver_on(driver, cache_bytes=0)
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


def turn(durability: Durability, manifest: Manifest) -> str:
    """The requests of one turn of ten super-steps, in a thread that has had a turn before, and their price."""
    builder = StateGraph(Log)
    names = [f"step {number}" for number in range(10)]
    for source, name in pairwise([START, *names]):
        builder.add_node(name, lambda state: {"log": ["done"]})
        builder.add_edge(source, name)
    driver = FakeDriver()
    graph = builder.compile(checkpointer=saver_on(driver, manifest=manifest, cache_bytes=0))
    _ = graph.invoke({"log": ["first"]}, config_for("thread"), durability=durability)
    with driver.measure() as cost:
        _ = graph.invoke({"log": ["second"]}, config_for("thread"), durability=durability)
    dollars = (cost.puts + cost.lists) * DOLLARS_PUT + cost.gets * DOLLARS_GET
    return f"{cost.puts} | {cost.lists} | {cost.gets} | ${dollars * 1_000_000:.2f}"


def disposal(name: Disposal) -> str:
    """The requests that take 90 of a thread's 100 checkpoints away, and that bring them back, with their price."""
    s3 = FakeS3()
    s3.versioned = name == "versions"
    script = Script(saver_on(s3))
    for number in range(100):
        _ = script.put({"messages": f"message {number}"})
        script.write("messages", "write")
    driver = FakeDriver(s3)
    saver = saver_on(driver, disposal=name)
    told = []
    with driver.measure() as cost:
        _ = saver.apply_retention(RetentionPolicy(keep_last=10, min_age=timedelta(0)), ["thread"])
    told.append(priced(cost))
    if name == "delete":
        return f"{told[0]} | | |"
    with driver.measure() as cost:
        assert saver.undo_prune("thread").checkpoints == 90
    return f"{told[0]} | {priced(cost)} |"


def priced(cost: Cost) -> str:
    """Requests, and the dollars of a million times as many."""
    dollars = (cost.puts + cost.lists + cost.copies) * DOLLARS_PUT + cost.gets * DOLLARS_GET
    kinds = {"PUT": cost.puts, "COPY": cost.copies, "LIST": cost.lists, "GET": cost.gets, "DELETE": cost.deletes}
    told = ", ".join(f"{count} {kind}" for kind, count in kinds.items() if count)
    return f"{cost.round_trips} ({told}) | ${dollars * 1_000_000:,.0f}"


def seconds(savers: Mapping[str, BaseCheckpointSaver[str]], turns: int = 500) -> dict[str, tuple[float, float]]:
    """Median processor seconds of a put and of a get_tuple with twenty messages. The savers take turns."""
    scripts = {name: Script(saver) for name, saver in savers.items()}
    taken: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in savers}
    for number in range(turns):
        for name, script in scripts.items():
            values = {"messages": [*MESSAGES, number]}
            start = time.thread_time()
            _ = script.put(values)
            middle = time.thread_time()
            _ = script.saver.get_tuple(config_for("thread"))
            taken[name][0].append(middle - start)
            taken[name][1].append(time.thread_time() - middle)
    return {name: (statistics.median(puts), statistics.median(gets)) for name, (puts, gets) in taken.items()}


def main() -> None:
    """Print the tables."""
    lengths = (10, 10_000)
    columns = [costs(thread_of(length), length) for length in lengths]
    print("Round trips (requests), in a thread of 10 and of 10,000 checkpoints:\n")
    print("| operation | 10 | 10,000 |\n| --- | --- | --- |")
    for name in columns[0]:
        print(f"| {name} | {columns[0][name]} | {columns[1][name]} |")
    print("\nOne turn of ten super-steps, one task each:\n")
    print("| durability | manifest | PUT | LIST | GET | a million turns |\n| --- | --- | --- | --- | --- | --- |")
    durabilities: tuple[Durability, ...] = ("sync", "async", "exit")
    manifests: tuple[Manifest, ...] = ("auto", "always", "never")
    for durability in durabilities:
        for manifest in manifests:
            print(f"| {durability} | {manifest} | {turn(durability, manifest)} |")
    print("\nRetention of 10 of a thread's 100 checkpoints, which takes 180 objects away, and `undo_prune`:\n")
    print("| disposal | round trips (requests) | a million threads | to undo | a million threads |")
    print("| --- | --- | --- | --- | --- |")
    disposals: tuple[Disposal, ...] = ("delete", "versions", "trash")
    for name in disposals:
        print(f"| {name} | {disposal(name)}")
    with ExitStack() as stack:
        sqlite = stack.enter_context(SqliteSaver.from_conn_string(":memory:"))
        savers: dict[str, BaseCheckpointSaver[str]] = {
            "InMemorySaver": InMemorySaver(),
            "SqliteSaver, in memory": sqlite,
            "S3Saver": saver_on(FakeS3()),
        }
        if postgres_programs() is not None:
            host, _, port = stack.enter_context(postgres()).partition(":")
            address = f"host={host} port={port} user=postgres dbname=postgres sslmode=disable gssencmode=disable"
            saver = stack.enter_context(PostgresSaver.from_conn_string(address))
            saver.setup()
            savers["PostgresSaver, a server on this machine"] = saver
        times = seconds(savers)
    put, get = times["InMemorySaver"]
    print("\nProcessor time, as a multiple of InMemorySaver's:\n")
    print("| saver | put | get_tuple |\n| --- | --- | --- |")
    for name, (one, other) in times.items():
        print(f"| {name} | {one / put:.1f} | {other / get:.1f} |")


if __name__ == "__main__":
    main()

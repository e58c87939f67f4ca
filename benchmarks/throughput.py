"""Many threads at once over one AsyncS3Saver: `python -m benchmarks.throughput`, the last part of `make bench`.

Each thread is a turn of ten super-steps of the benchmarks' agent, all of them in one event loop, against their S3
server with its latency. The ideal is what latency alone would take: requests times latency, divided by how many may be
under way, and never less than one turn's round trips, which follow one another. What takes longer is the processor's,
so the same is measured for the two that the saver stands between: LangGraph, by the same turns over InMemorySaver, and
the S3 client, by as many bare PUTs of the same size. Nothing is written but what is printed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Coroutine
from typing import Any, NamedTuple

from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver

from benchmarks.measure import AWS
from benchmarks.server.control import ServerControl, start_server
from benchmarks.workload import agent, config_for, question
from langgraph.checkpoint.s3 import Stats
from langgraph.checkpoint.s3.aio import AsyncS3Saver

COLUMNS = (
    "threads",
    "max_concurrency",
    "requests",
    "wall, of the ideal",
    "of the wall: processor",
    "LangGraph alone",
    "client alone",
    "turns a second",
)


class Run(NamedTuple):
    """Seconds that something took, by the clock and of the processor."""

    wall: float
    processor: float


async def at_once(work: list[Coroutine[Any, Any, Any]]) -> Run:
    """Run all of it, in one loop."""
    wall, processor = time.perf_counter(), time.process_time()
    await asyncio.gather(*work)
    return Run(time.perf_counter() - wall, time.process_time() - processor)


async def turns(saver: BaseCheckpointSaver[Any], count: int) -> Run:
    """Take a turn of each thread."""
    work = [agent(saver, number).ainvoke(question(number), config_for(f"thread-{number}")) for number in range(count)]
    return await at_once(work)


async def on_s3(endpoint: str, count: int, concurrency: int) -> tuple[Run, Stats, int]:
    """The same over S3; also what was asked of it, and the round trips of one turn."""
    async with AsyncS3Saver("bucket", "p", endpoint_url=endpoint, max_concurrency=concurrency) as saver:
        await saver.setup()
        before = saver.stats()
        _ = await agent(saver, 0).ainvoke(question(0), config_for("alone"))
        between = saver.stats()
        run = await turns(saver, count)
        return run, saver.stats() - between, (between - before).round_trips


async def bare(endpoint: str, requests: int, size: int, concurrency: int) -> Run:
    """As many requests of the client that the saver uses, without anything around them."""
    config = AioConfig(max_pool_connections=concurrency, request_checksum_calculation="when_required")
    free, body = asyncio.Semaphore(concurrency), bytes(size)

    async def put(client: Any, number: int) -> None:
        async with free:
            await client.put_object(Bucket="bucket", Key=f"bare/{number}", Body=body)

    async with get_session().create_client("s3", endpoint_url=endpoint, config=config) as client:
        await put(client, 0)
        return await at_once([put(client, number) for number in range(requests)])


def row(endpoint: str, latency: float, count: int, concurrency: int) -> str:
    """Measure one line of the table."""
    ServerControl(endpoint).create("bucket")
    memory = asyncio.run(turns(InMemorySaver(), count))
    run, asked, round_trips = asyncio.run(on_s3(endpoint, count, concurrency))
    client = asyncio.run(bare(endpoint, asked.requests, asked.bytes_sent // asked.puts, concurrency))
    ideal = max(asked.requests * latency / concurrency, round_trips * latency)
    shares = [f"{part.processor / run.wall:.0%}" for part in (run, memory, client)]
    figures = [str(count), str(concurrency), f"{asked.requests:,}", f"{run.wall / ideal:.1f}", *shares]
    return f"| {' | '.join([*figures, f'{count / run.wall:.0f}'])} |"


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, nargs="+", default=[50, 500])
    parser.add_argument("--concurrency", type=int, nargs="+", default=[32, 128])
    parser.add_argument("--latency", type=float, default=25, help="milliseconds from a request to its answer")
    arguments = parser.parse_args()
    os.environ.update(AWS)
    print(f"| {' | '.join(COLUMNS)} |\n{'| --- ' * len(COLUMNS)}|")
    with start_server("--latency", str(arguments.latency)) as addresses:
        for count in arguments.threads:
            for concurrency in arguments.concurrency:
                print(row(addresses["s3"], arguments.latency / 1000, count, concurrency), flush=True)


if __name__ == "__main__":
    main()

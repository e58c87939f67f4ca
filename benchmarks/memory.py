"""Peak memory of storing and reading one large value: `python -m benchmarks.memory` (Linux only).

Each figure is of a process of its own: how much it took at most beyond what it had before, as a multiple of the value's
serialised size. The value itself is in it, on writing as well as on reading. Nothing is written but what is printed.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from benchmarks.measure import AWS
from benchmarks.server.control import ROOT, start_server

SIZE = 200_000_000

SAVERS, OPERATIONS = ("S3Saver", "AsyncS3Saver"), ("put", "get")


def noise() -> bytes:
    """What does not compress, and is its own serialised form."""
    return random.Random(1).randbytes(SIZE)


def text() -> list[str]:
    """Paragraphs that compress to about half."""
    dice = random.Random(1)
    words = [f"{dice.getrandbits(20):x}" for _ in range(5_000)]
    paragraphs = [" ".join(dice.choices(words, k=1_000))]
    while len(paragraphs) * len(paragraphs[0]) < SIZE:
        paragraphs.append(" ".join(dice.choices(words, k=1_000)))
    return paragraphs


VALUES: dict[str, Callable[[], Any]] = {"noise": noise, "text": text}


def peak(endpoint: str, saver: str, operation: str, value: str) -> float:
    """Measure in a new process; the value must have been put before it is got."""
    command = [sys.executable, "-m", "benchmarks.memory", endpoint, saver, operation, value]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **AWS}, check=True, stdout=subprocess.PIPE, text=True)
    return float(done.stdout) / SIZE


def _status(field: str) -> int:
    """A figure of this process, in bytes (proc(5): VmRSS is what it has, VmHWM the most it has had)."""
    with open("/proc/self/status") as status:
        (line,) = [line for line in status if line.startswith(field)]
    return int(line.split()[1]) * 1024


async def _measure(endpoint: str, saver: str, operation: str, value: str) -> int:
    from langgraph.checkpoint.base import Checkpoint

    from langgraph.checkpoint.s3 import S3Saver
    from langgraph.checkpoint.s3.aio import AsyncS3Saver

    it: Any = S3Saver("memory", endpoint_url=endpoint)
    it.setup(create_bucket=True)
    if saver == "AsyncS3Saver":
        it = AsyncS3Saver("memory", endpoint_url=endpoint)

    async def act(thread: str, operation: str, make: Callable[[], Any]) -> None:
        config: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
        if operation == "get":
            found = await it.aget_tuple(config)
            assert len(found.checkpoint["channel_values"]["value"]) > 1
        else:
            version = {"value": f"{1:032}"}
            checkpoint = Checkpoint(
                v=4,
                id="1f000000-0000-6000-8000-000000000001",
                ts="",
                channel_values={"value": make()},
                channel_versions=dict(version),
                versions_seen={},
                updated_channels=None,
            )
            await it.aput(config, checkpoint, {}, version)

    for warm in OPERATIONS:
        await act("small", warm, lambda: b"small value")
    before = _status("VmRSS")
    with open("/proc/self/clear_refs", "w") as clear:
        clear.write("5")  # begins to count the peak anew
    await act(f"{saver}-{value}", operation, VALUES[value])
    return _status("VmHWM") - before


def main() -> None:
    """Print a table; with arguments, measure one of its cells."""
    if sys.argv[1:]:
        print(asyncio.run(_measure(*sys.argv[1:])))
        return
    print("| saver | value | put | get |\n| --- | --- | --- | --- |")
    with start_server("--latency", "0") as told:
        for saver in SAVERS:
            for value in VALUES:
                cells = [f"{peak(told['s3'], saver, operation, value):.2f}" for operation in OPERATIONS]
                print(f"| {saver} | {value} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()

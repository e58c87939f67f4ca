"""`python -m benchmarks.server`: listens on loopback and prints where, as JSON in one line."""

from __future__ import annotations

import argparse
import asyncio
import gc
import json

from benchmarks.server.control import Control
from benchmarks.server.dynamodb import DynamoDB
from benchmarks.server.http import Handler, HttpConnection, Recorder
from benchmarks.server.postgres import PostgresRelay
from benchmarks.server.s3 import S3


async def listen(handler: Handler, recorder: Recorder, port: int = 0) -> tuple[asyncio.Server, str]:
    """Serve a handler; gives the address."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: HttpConnection(handler, recorder), "127.0.0.1", port)
    return server, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def serve(port: int, latency_ms: float, postgres: str | None) -> None:
    """Serve S3 and DynamoDB, and relay to PostgreSQL; all with the same latency, into the same log."""
    recorder = Recorder(latency_ms / 1000)
    dynamodb = DynamoDB()
    server, endpoint = await listen(Control(S3(), dynamodb, recorder), recorder, port)
    other, other_endpoint = await listen(dynamodb, recorder)
    told = {"s3": endpoint, "dynamodb": other_endpoint}
    if postgres:
        told["postgres"] = await PostgresRelay(postgres, recorder).listen()
    print(json.dumps(told), flush=True)
    async with server, other:
        await server.serve_forever()


def main() -> None:
    """Read the arguments and serve until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--latency", type=float, default=25, help="milliseconds from a request to its answer")
    parser.add_argument("--postgres", help="host:port of a PostgreSQL server to relay to")
    arguments = parser.parse_args()
    gc.freeze()
    asyncio.run(serve(arguments.port, arguments.latency, arguments.postgres))


if __name__ == "__main__":
    main()

"""A relay to PostgreSQL: what a client sends arrives after the latency, and every exchange is logged as one request.

An exchange begins with what the client sends after an answer, and ends with the next answer. So a pipeline of
statements is one, as on a network.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from benchmarks.server.http import Recorder
from benchmarks.server.log import Entry

CHUNK = 1 << 20


@dataclass
class Exchange:
    """What is under way on one connection."""

    start: float
    up: int = 0
    down: int = 0
    end: float | None = None


class PostgresRelay:
    """Listens, and connects to the server at "host:port" once for each client."""

    def __init__(self, address: str, recorder: Recorder) -> None:
        self._address, self._recorder = address, recorder

    async def listen(self) -> str:
        """Start; gives the address as "host:port"."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self._address.rpartition(":")
        server_reader, server_writer = await asyncio.open_connection(host, int(port))
        line = Line(self._recorder, server_writer, writer)
        self._recorder.unfinished.add(line.finish)
        tasks = [asyncio.create_task(line.up(reader)), asyncio.create_task(line.down(server_reader))]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        line.finish()
        self._recorder.unfinished.discard(line.finish)
        server_writer.close()
        writer.close()


class Line:
    """One client's connection."""

    def __init__(self, recorder: Recorder, server: asyncio.StreamWriter, client: asyncio.StreamWriter) -> None:
        self._recorder, self._server, self._client = recorder, server, client
        self._loop = asyncio.get_running_loop()
        self._exchange: Exchange | None = None

    async def up(self, reader: asyncio.StreamReader) -> None:
        """From the client to the server, late."""
        while data := await reader.read(CHUNK):
            if self._exchange is None or self._exchange.end is not None:
                self.finish()
                self._exchange = Exchange(self._loop.time())
            self._exchange.up += len(data)
            self._loop.call_later(self._recorder.latency, self._server.write, data)

    async def down(self, reader: asyncio.StreamReader) -> None:
        """From the server to the client, at once."""
        while data := await reader.read(CHUNK):
            if self._exchange:
                self._exchange.down += len(data)
                self._exchange.end = self._loop.time()
            self._client.write(data)

    def finish(self) -> None:
        """Log the exchange that is over."""
        it = self._exchange
        if it and it.end is not None:
            self._exchange = None
            self._recorder.log.append(Entry("SQL", it.start, it.end, it.up, it.down))

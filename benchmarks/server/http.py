"""Just enough HTTP/1.1 for the SDKs: kept connections, `Expect: 100-continue`, and both kinds of chunked bodies.

It is written by hand because it has to take far less of a core than the client that is measured.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote

from benchmarks.server.log import Entry

REASONS = {200: "OK", 204: "No Content", 206: "Partial Content", 304: "Not Modified", 404: "Not Found"}


@dataclass(frozen=True)
class Request:
    """What was asked. Header names are in lower case; path and query are decoded."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Response:
    """What is answered.

    Attributes:
        kind: How the log calls the request; "" keeps it out of the log and without latency.
        length: What Content-Length says, if it is not the body's (HEAD).
        write_units: DynamoDB's.
        read_units: DynamoDB's.
    """

    kind: str
    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    length: int | None = None
    write_units: float = 0
    read_units: float = 0

    def encode(self) -> bytes:
        """The bytes that go over the wire."""
        length = len(self.body) if self.length is None else self.length
        lines = [f"HTTP/1.1 {self.status} {REASONS.get(self.status, 'Error')}", f"Content-Length: {length}"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        return "\r\n".join([*lines, "", ""]).encode() + self.body


@dataclass
class Recorder:
    """What the listeners of one server share: how long to wait, and the log.

    Attributes:
        latency: In seconds.
        log: The requests that are over.
        unfinished: Log what may be over, where the end of an answer cannot be told.
    """

    latency: float = 0.0
    log: list[Entry] = field(default_factory=list)
    unfinished: set[Callable[[], None]] = field(default_factory=set)

    def take(self) -> list[Entry]:
        """The log so far, which begins anew."""
        for finish in self.unfinished:
            finish()
        log, self.log = self.log, []
        return log


Handler = Callable[[Request], Response]


class HttpConnection(asyncio.Protocol):
    """One connection: requests in, one after the other, and their answers out."""

    def __init__(self, handler: Handler, recorder: Recorder) -> None:
        self._handler, self._recorder = handler, recorder
        self._buffer = bytearray()
        self._head: tuple[str, str, dict[str, str]] | None = None
        self._start = 0.0
        self._busy = False
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._go_on()

    def _go_on(self) -> None:
        """Begin with the next request if all of it is there."""
        if self._busy:
            return
        if self._head is None and not self._read_head():
            return
        body = self._read_body()
        if body is None:
            return
        assert self._head is not None
        method, target, headers = self._head
        self._head, self._busy = None, True
        path, _, query = target.partition("?")
        request = Request(method, unquote(path), dict(parse_qsl(query, keep_blank_values=True)), headers, body)
        self._answer_later(self._handler(request), len(body))

    def _read_head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return False
        self._start = self._loop.time()
        first, *lines = self._buffer[:end].decode("latin-1").split("\r\n")
        del self._buffer[: end + 4]
        method, target, _ = first.split(" ")
        pairs = (line.partition(":") for line in lines)
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        if headers.get("expect", "").lower() == "100-continue":
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._head = method, target, headers
        return True

    def _read_body(self) -> bytes | None:
        """The body, decoded; None if there is more to come."""
        assert self._head is not None
        headers = self._head[2]
        if headers.get("transfer-encoding", "").lower() == "chunked":
            taken = decode_chunks(self._buffer, headers)
            if taken is None:
                return None
            body, length = taken
        else:
            length = int(headers.get("content-length", 0))
            if len(self._buffer) < length:
                return None
            body = bytes(self._buffer[:length])
        del self._buffer[:length]
        if headers.get("x-amz-content-sha256", "").startswith("STREAMING-"):
            decoded = decode_chunks(body, headers)
            assert decoded is not None, "a body in aws-chunks that is cut off"
            body = decoded[0]
        return body

    def _answer_later(self, response: Response, up: int) -> None:
        """Send the answer when the latency, counted from the request's start, is over."""
        wait = self._start + self._recorder.latency - self._loop.time() if response.kind else 0
        if wait > 0:
            self._loop.call_later(wait, self._answer, response, up)
        else:
            self._answer(response, up)

    def _answer(self, response: Response, up: int) -> None:
        if response.kind:
            self._recorder.log.append(
                Entry(
                    response.kind,
                    self._start,
                    self._loop.time(),
                    up,
                    len(response.body),
                    response.status,
                    response.write_units,
                    response.read_units,
                )
            )
        self._transport.write(response.encode())
        self._busy = False
        self._go_on()


def decode_chunks(data: bytes | bytearray, headers: dict[str, str]) -> tuple[bytes, int] | None:
    """Decode HTTP's chunks, or those of "aws-chunked", which are the same with a signature behind the length.

    Args:
        data: The chunks, and perhaps more behind them.
        headers: Trailing headers, such as a checksum, are added here.

    Returns:
        The body and how many bytes of `data` it took; None if the end is missing.
    """
    body, at = bytearray(), 0
    while True:
        end = data.find(b"\r\n", at)
        if end < 0:
            return None
        size = int(data[at:end].split(b";")[0], 16)
        at = end + 2
        if not size:
            break
        if len(data) < at + size + 2:
            return None
        body += data[at : at + size]
        at += size + 2
    while True:
        end = data.find(b"\r\n", at)
        if end < 0:
            return None
        line, at = data[at:end].decode("latin-1"), end + 2
        if not line:
            return bytes(body), at
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()

"""Stands between clients and an HTTP server and sees each request: can hold requests back, and can cut connections."""

from __future__ import annotations

import socket
import struct
import sys
import threading
import time
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

TIMEOUT = 60.0


class Asked(NamedTuple):
    """A request that was answered; the path is decoded and has no query."""

    method: str
    path: str


class Relay(ThreadingHTTPServer):
    """Passes requests on to a server, as long as it is told to.

    Attributes:
        answered: The requests that the server has answered, in that order. Whoever wants to know of some clears it first.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, upstream: str) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.upstream = urlsplit(upstream).netloc
        self.answered: list[Asked] = []
        self._changed = threading.Condition()
        self._left: int | None = None  # how many requests may pass before one is held; None: all
        self._under_way = 0
        self._held: set[_Connection] = set()
        self._open: set[_Connection] = set()
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *args: object) -> None:
        self.drop()
        self.shutdown()
        self.server_close()

    @property
    def endpoint(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_port}"

    # -- what tests do -----------------------------------------------------------------------------

    def hold_after(self, requests: int) -> None:
        """Let so many requests pass, and hold back those that come then."""
        with self._changed:
            self._left = requests

    def holds(self, requests: int = 1) -> bool:
        """Whether so many are held back, and all that were let pass have their answers."""
        with self._changed:
            return len(self._held) >= requests and not self._under_way

    def release(self) -> None:
        """Let those that are held pass after all, and whatever comes then."""
        with self._changed:
            self._left = None
            self._held.clear()
            self._changed.notify_all()

    def drop(self) -> None:
        """Forget those that are held, as their client is gone, and let pass whatever comes then."""
        with self._changed:
            for it in self._held:
                it.dropped = True
        self.release()

    def connections(self) -> int:
        """How many are open."""
        with self._changed:
            return len(self._open)

    def close_connections(self) -> None:
        """Close all connections, as a server does with idle ones; gives up waiting if it cannot see them go."""
        with self._changed:
            for it in self._open:
                it.connection.shutdown(socket.SHUT_RDWR)
        deadline = time.monotonic() + TIMEOUT
        while self.connections() and time.monotonic() < deadline:
            time.sleep(0.01)

    def forget_connections(self) -> None:
        """Reset all connections once they are used again, as a NAT gateway does with idle ones."""
        with self._changed:
            for it in self._open:
                it.forgotten = True

    # -- what connections do -----------------------------------------------------------------------

    def opened(self, connection: _Connection) -> None:
        with self._changed:
            self._open.add(connection)

    def closed(self, connection: _Connection) -> None:
        with self._changed:
            self._open.discard(connection)

    def may_pass(self, connection: _Connection) -> bool:
        """Let a request pass, hold it back first if need be; False if it was dropped."""
        with self._changed:
            if self._left == 0:
                self._held.add(connection)
                self._changed.wait_for(lambda: connection not in self._held)
                if connection.dropped:
                    return False
            elif self._left is not None:
                self._left -= 1
            self._under_way += 1
            return True

    def passed(self, asked: Asked | None) -> None:
        """A request that was let pass is over; None if the server gave no answer."""
        with self._changed:
            self._under_way -= 1
            if asked:
                self.answered.append(asked)

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of clients that were killed, and all of what is wrong here."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Connection(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body leave together: sent one by one, the client's delayed ACK costs 40 ms
    server: Relay
    dropped = forgotten = False

    def setup(self) -> None:
        super().setup()
        self.server.opened(self)

    def finish(self) -> None:
        self.server.closed(self)
        super().finish()

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.forgotten:
            self._reset()
        elif self.server.may_pass(self):
            self._pass_on(body)
        else:
            self.close_connection = True

    do_PUT = do_POST = do_HEAD = do_DELETE = do_GET

    def _pass_on(self, body: bytes) -> None:
        asked = None
        try:
            answer = self._ask_upstream(body)
            asked = Asked(self.command, unquote(urlsplit(self.path).path))
            self.wfile.write(answer)
            self.wfile.flush()
        finally:
            self.server.passed(asked)

    def _ask_upstream(self, body: bytes) -> bytes:
        """The answer, head and all."""
        upstream = HTTPConnection(self.server.upstream, timeout=TIMEOUT)
        upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in ("connection", "expect"):
                upstream.putheader(name, value)
        upstream.endheaders(body)
        answer = upstream.getresponse()
        data = answer.read()
        upstream.close()
        length = answer.getheader("Content-Length") if self.command == "HEAD" else None
        lines = [f"HTTP/1.1 {answer.status} {answer.reason}", f"Content-Length: {length or len(data)}"]
        lines += [
            f"{name}: {value}"
            for name, value in answer.getheaders()
            if name.lower() not in ("connection", "content-length", "transfer-encoding")
        ]
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + data

    def _reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()  # takes effect with the files made of it, which are closed next
        self.close_connection = True

    def log_message(self, *args: object) -> None:
        """Be silent."""

"""Stands between one client and an HTTP server and sees each request: can hold them back, and can cut connections."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import closing
from http.client import HTTPConnection
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from tests.support.http_server import Handler, LoopbackServer

TIMEOUT = 60.0


class Asked(NamedTuple):
    """A request that was answered; the path is decoded and has no query."""

    method: str
    path: str


class Relay(LoopbackServer):
    """Passes requests on to a server, as long as it is told to.

    Attributes:
        answered: The requests that the server has answered, in that order; clear it to count anew.
    """

    def __init__(self, upstream: str) -> None:
        super().__init__(_Connection)
        self.upstream = urlsplit(upstream).netloc
        self.answered: list[Asked] = []
        self._changed = threading.Condition()
        self._left: int | None = None  # how many requests may pass before one is held; None: all
        self._under_way = self._held = 0
        self._client_is_gone = False
        self._open: set[_Connection] = set()
        self.start()

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *args: object) -> None:
        self.drop()
        self.close()

    @property
    def endpoint(self) -> str:
        """Where it listens."""
        return f"http://{self.address}"

    # -- what tests do -----------------------------------------------------------------------------

    def hold_after(self, requests: int) -> None:
        """Let so many requests pass, and hold back those that come then."""
        with self._changed:
            self._left = requests

    def holds(self) -> bool:
        """Whether a request is held back, and all that were let pass have their answers."""
        with self._changed:
            return self._held > 0 and not self._under_way

    def release(self) -> None:
        """Let those that are held pass after all, and whatever comes then."""
        with self._changed:
            self._left = None
            self._changed.notify_all()

    def drop(self) -> None:
        """Forget what is held and whatever still comes: the client was killed, and not after it had sent more."""
        with self._changed:
            self._client_is_gone = True
            self._changed.notify_all()

    def connections(self) -> int:
        """How many are open."""
        with self._changed:
            return len(self._open)

    def close_connections(self) -> None:
        """Close all connections, as a server does with idle ones."""
        with self._changed:
            for it in self._open:
                it.connection.shutdown(socket.SHUT_RDWR)

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

    def may_pass(self) -> bool:
        """Let a request pass, hold it back first if need be; False if it was dropped."""
        with self._changed:
            if self._left == 0:
                self._held += 1
                self._changed.wait_for(lambda: self._left is None or self._client_is_gone)
                self._held -= 1
            elif self._left is not None:
                self._left -= 1
            if not self._client_is_gone:
                self._under_way += 1
            return not self._client_is_gone

    def passed(self, asked: Asked | None) -> None:
        """A request that was let pass is over; None if the server gave no answer."""
        with self._changed:
            self._under_way -= 1
            if asked:
                self.answered.append(asked)


class _Connection(Handler):
    server: Relay
    forgotten = False

    def setup(self) -> None:
        super().setup()
        self.server.opened(self)

    def finish(self) -> None:
        self.server.closed(self)
        super().finish()

    def do_GET(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(length)
        if self.forgotten:
            self._reset()
        elif len(body) == length and self.server.may_pass():  # all of it: the client may be killed amid a body
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
        with closing(HTTPConnection(self.server.upstream, timeout=TIMEOUT)) as upstream:
            upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in ("connection", "expect"):
                    upstream.putheader(name, value)
            upstream.endheaders(body)
            answer = upstream.getresponse()
            data = answer.read()
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

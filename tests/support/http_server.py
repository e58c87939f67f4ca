"""A server in a thread, for tests that stand between a client and what it talks to."""

from __future__ import annotations

import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class LoopbackServer(ThreadingHTTPServer):
    """Listens on a free port of loopback from the moment it is made; each connection has a thread of its own."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)

    def start(self) -> None:
        """Begin to answer."""
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def address(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that were killed, and all of what is wrong here."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    def close(self) -> None:
        """Listen no more."""
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    """Keeps connections open, and is silent."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body leave together: sent one by one, the client's delayed ACK costs 40 ms

    def log_message(self, *args: object) -> None:
        """Be silent."""

"""A Lambda function as it really runs: AWS's own runtime client in a process, and the Runtime API that it asks.

    with Function(directory, "handler.handler", environment) as function:
        answer = function.invoke({"key": "value"})

Each function has an execution environment of its own, as on Lambda: one process, one invocation at a time.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.http_server import Handler, LoopbackServer

API = "/2018-06-01/runtime/"
ARN = "arn:aws:lambda:us-east-1:123456789012:function:agent"
TIMEOUT = 60.0


@dataclass(frozen=True)
class Invocation:
    """An event on its way to the function."""

    request_id: str
    event: bytes


@dataclass(frozen=True)
class Outcome:
    """What the function told of an invocation, or of its start: `path` is the call it told it with."""

    path: str
    body: bytes


class FunctionError(Exception):
    """The handler raised an error, or its module cannot be imported: what Lambda would tell whoever invoked it."""


class Exited(Exception):
    """The process is gone. Lambda calls it `Runtime.ExitError`."""


class RuntimeApi(LoopbackServer):
    """What the runtime client of one process talks to: hands out invocations and takes what became of them."""

    def __init__(self) -> None:
        super().__init__(_RuntimeApiHandler)
        self.invocations: queue.SimpleQueue[Invocation | None] = queue.SimpleQueue()  # None: there will be no more
        self.outcomes: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        self.idle = threading.Event()  # the function waits for an event
        self.start()

    def close(self) -> None:
        """Let go of everyone who waits, and listen no more."""
        self.invocations.put(None)
        super().close()


class _RuntimeApiHandler(Handler):
    server: RuntimeApi

    def do_GET(self) -> None:
        if self.path != f"{API}invocation/next":
            return self.send_error(404)
        self.server.idle.set()
        invocation = self.server.invocations.get()
        self.server.idle.clear()
        if invocation is None:
            self.close_connection = True
            return None
        headers = {
            "Lambda-Runtime-Aws-Request-Id": invocation.request_id,
            "Lambda-Runtime-Deadline-Ms": str(int((time.time() + TIMEOUT) * 1000)),
            "Lambda-Runtime-Invoked-Function-Arn": ARN,
        }
        return self._answer(200, invocation.event, headers)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.outcomes.put(Outcome(self.path.removeprefix(API), body))
        self._answer(202, b'{"status":"OK"}', {})

    def _answer(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response_only(status)
        for name, value in {**headers, "Content-Type": "application/json", "Content-Length": len(body)}.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body)


class Function:
    """A function in a process of its own, which begins to start at once.

    Args:
        directory: Where the code is; Lambda's /var/task.
        handler: Its module and its name, with a dot between.
        environment: More variables than this process has.
    """

    def __init__(self, directory: Path, handler: str, environment: Mapping[str, str]) -> None:
        self._sent = 0
        self._open = stack = ExitStack()
        self._api = RuntimeApi()
        stack.callback(self._api.close)
        self._log = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-W", "error", "-m", "awslambdaric", handler],
                cwd=directory,
                env={**os.environ, **environment, "AWS_LAMBDA_RUNTIME_API": self._api.address},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        stack.callback(self.kill)

    def __enter__(self) -> Function:
        return self

    def __exit__(self, *args: object) -> None:
        self._open.close()

    def send(self, event: Any) -> None:
        """Invoke it, and do not wait."""
        self._sent += 1
        self._api.invocations.put(Invocation(f"request-{self._sent}", json.dumps(event).encode()))

    def result(self) -> Any:
        """What it answers to what was sent.

        Raises:
            FunctionError: It raised an error.
            Exited: The process has ended without an answer.
        """
        outcome = self._outcome()
        if outcome.path == f"invocation/request-{self._sent}/response":
            return json.loads(outcome.body)
        told = json.loads(outcome.body)
        raise FunctionError(f"{outcome.path}: {told['errorType']}: {told['errorMessage']}")

    def invoke(self, event: Any) -> Any:
        """Send an event and wait for the answer; errors as for `result`."""
        self.send(event)
        return self.result()

    def answered(self) -> bool:
        """Whether there is a result, so that `result` would not wait."""
        return not self._api.outcomes.empty()

    def _outcome(self) -> Outcome:
        deadline = time.monotonic() + TIMEOUT
        while time.monotonic() < deadline:
            exited = self.process.poll() is not None  # asked first: what it had told by then is in the queue
            try:
                return self._api.outcomes.get(timeout=0 if exited else 0.1)
            except queue.Empty:
                if exited:
                    raise Exited(f"status {self.process.returncode}: {self.log()}") from None
        raise TimeoutError(self.log())

    def wait_until_idle(self) -> None:
        """Wait until it asks for an event: when it has started, or has finished an invocation."""
        assert self._api.idle.wait(TIMEOUT), self.log()

    def freeze(self) -> None:
        """Stop the process, as Lambda does when a function waits for its next event."""
        self.wait_until_idle()
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen process go on."""
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End the process wherever it is, as Lambda does when time or memory is up."""
        self.process.kill()
        self.process.wait()

    def log(self) -> str:
        """All that it has printed so far."""
        return self._log.read_text()

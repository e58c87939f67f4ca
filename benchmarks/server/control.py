"""How a benchmark talks to the server: sets the latency, fetches the log, asks what is stored.

`Control` is the server's side, `ServerControl` the benchmark's. These requests are neither delayed nor logged.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple
from pathlib import Path
from typing import Any

from benchmarks.server.dynamodb import DynamoDB
from benchmarks.server.http import Recorder, Request, Response
from benchmarks.server.log import Entry
from benchmarks.server.s3 import S3

PATH = "/_bench/"
ROOT = Path(__file__).parents[2]


class Control:
    """Answers control requests, and passes all others on to S3."""

    def __init__(self, s3: S3, dynamodb: DynamoDB, recorder: Recorder) -> None:
        self._s3, self._dynamodb, self._recorder = s3, dynamodb, recorder

    def __call__(self, request: Request) -> Response:
        """Answer one request."""
        if not request.path.startswith(PATH):
            return self._s3(request)
        answer = getattr(self, f"_{request.path.removeprefix(PATH)}")(**request.query)
        return Response("", body=json.dumps(answer).encode())

    def _latency(self, ms: str) -> None:
        self._recorder.latency = float(ms) / 1000

    def _log(self) -> list[tuple[Any, ...]]:
        """The log so far, which begins anew."""
        return [astuple(entry) for entry in self._recorder.take()]

    def _size(self, name: str) -> int:
        """Bytes in the bucket and in the table of this name."""
        table = self._dynamodb.size(name) if name in self._dynamodb.tables else 0
        return self._s3.buckets[name].size() + table

    def _create(self, bucket: str) -> None:
        """An empty bucket in the place of whatever is there."""
        self._s3.buckets.pop(bucket, None)
        self._s3(Request("PUT", f"/{bucket}", {}, {}, b""))


class ServerControl:
    """A server in another process."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint

    def set_latency(self, ms: float) -> None:
        """From now on every answer is sent so many milliseconds after its request has come."""
        self._ask(f"latency?ms={ms}")

    def take_log(self) -> list[Entry]:
        """What was logged since the last time."""
        return [Entry(*fields) for fields in self._ask("log")]

    def size(self, name: str) -> int:
        """Bytes stored in a bucket, and in a table of the same name."""
        return int(self._ask(f"size?name={name}"))

    def create(self, bucket: str) -> None:
        """Make a bucket, empty."""
        self._ask(f"create?bucket={bucket}")

    def _ask(self, what: str) -> Any:
        with urllib.request.urlopen(f"{self.endpoint}{PATH}{what}", timeout=60) as answer:
            return json.load(answer)


@contextmanager
def start_server(*options: str) -> Iterator[dict[str, str]]:
    """Run a server in a process of its own; gives its addresses."""
    command = [sys.executable, "-m", "benchmarks.server", *options]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())
        finally:
            process.terminate()

"""A direct way for PUTs while threads are made: an SDK takes a millisecond or more of the processor for each.

Nothing that is measured goes this way.
"""

from __future__ import annotations

import http.client
import threading
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlsplit

HEADERS = {"IfNoneMatch": "If-None-Match", "IfMatch": "If-Match", "ContentType": "Content-Type"}
KNOWN = {"Bucket", "Key", "Body", "Metadata", "ChecksumAlgorithm", *HEADERS}


class Sender:
    """Connections of the standard library, one for each thread."""

    def __init__(self, endpoint: str) -> None:
        self._local, self._netloc = threading.local(), urlsplit(endpoint).netloc

    def put(self, path: str, body: bytes, headers: Mapping[str, str]) -> str | None:
        """PUT an object; gives its ETag, None if that failed."""
        if not hasattr(self._local, "connection"):
            self._local.connection = http.client.HTTPConnection(self._netloc)
        self._local.connection.request("PUT", quote(path), body, dict(headers))
        answer = self._local.connection.getresponse()
        answer.read()
        return str(answer.headers["ETag"]) if answer.status == 200 else None


def send_puts_directly(client: Any, endpoint: str) -> Any:
    """Replace a boto3 client's `put_object`; what it does not know, and what fails, goes the old way."""
    slow, sender = client.put_object, Sender(endpoint)

    def put_object(**options: Any) -> dict[str, Any]:
        if options.keys() - KNOWN:
            return dict(slow(**options))
        headers = {HEADERS[name]: options[name] for name in HEADERS if name in options}
        headers |= {f"x-amz-meta-{name}": value for name, value in options.get("Metadata", {}).items()}
        etag = sender.put(f"/{options['Bucket']}/{options['Key']}", options.get("Body", b""), headers)
        return {"ETag": etag} if etag else dict(slow(**options))

    client.put_object = put_object
    return client


def write_directly(filesystem: Any, endpoint: str) -> None:
    """The same for a filesystem of s3fs, on which nothing but new files is written: there is nothing to find yet."""
    sender = Sender(endpoint)

    async def pipe_file(path: str, value: bytes, **_: Any) -> None:
        assert sender.put(f"/{path}", value, {})

    async def find(*_: Any, **__: Any) -> list[str]:
        return []

    async def makedirs(*_: Any, **__: Any) -> None:
        pass

    filesystem._pipe_file, filesystem._find, filesystem._makedirs = pipe_file, find, makedirs

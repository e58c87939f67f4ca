"""A relay to a server of DynamoDB's interface, such as moto's: adds the latency and counts what AWS would charge.

Units are counted by the sizes of items on the wire, as simulated servers do not tell them: what is written in steps of
1 KiB an item, what is read in steps of 4 KiB, of which a read that need not be consistent pays half. Deletions count as
one unit, since the wire does not tell the size of what went. Each transactional request would be twice as much; none of
the savers uses one.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from math import ceil
from typing import Any
from urllib.parse import urlsplit

from benchmarks.server.http import Request, Response

DROPPED = ("connection", "content-length", "expect", "transfer-encoding")


class DynamoDBRelay:
    """Answers as the server behind it does."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80

    async def __call__(self, request: Request) -> Response:
        """Pass one request on, over a connection of its own."""
        target = request.headers.get("x-amz-target", "").rpartition(".")[2]
        lines = [f"{name}: {value}" for name, value in request.headers.items() if name not in DROPPED]
        lines += [f"content-length: {len(request.body)}", "connection: close"]
        reader, writer = await asyncio.open_connection(self._host, self._port)
        writer.write("\r\n".join([f"{request.method} {request.path} HTTP/1.1", *lines, "", ""]).encode() + request.body)
        answer = await reader.read()
        writer.close()
        head, _, body = answer.partition(b"\r\n\r\n")
        first, *rest = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in rest)}
        kept = {name: value for name, value in headers.items() if name not in DROPPED}
        write_units, read_units = units(target, json.loads(request.body or b"{}"), json.loads(body or b"{}"))
        return Response(target, int(first.split()[1]), body, kept, write_units=write_units, read_units=read_units)


def units(target: str, asked: Mapping[str, Any], answer: Mapping[str, Any]) -> tuple[float, float]:
    """The write and read units of one call.

    >>> units("PutItem", {"Item": {"PK": {"S": "x" * 1500}}}, {})
    (2, 0)
    >>> units("GetItem", {}, {})
    (0, 0.5)
    """
    share = 1 if asked.get("ConsistentRead") else 0.5
    if target in ("PutItem", "UpdateItem", "DeleteItem"):
        return write_unit(asked.get("Item", {})), 0
    if target == "BatchWriteItem":
        requests = [request for requests in asked["RequestItems"].values() for request in requests]
        return sum(write_unit(request.get("PutRequest", {}).get("Item", {})) for request in requests), 0
    if target == "GetItem":
        return 0, share * read_unit(size(answer.get("Item", {})))
    if target in ("Query", "Scan"):
        return 0, share * read_unit(sum(map(size, answer.get("Items", []))))
    if target == "BatchGetItem":
        found: Iterable[Any] = (item for items in answer.get("Responses", {}).values() for item in items)
        missed = sum(len(it["Keys"]) for it in asked["RequestItems"].values())
        sizes = [size(item) for item in found]
        return 0, share * (sum(map(read_unit, sizes)) + max(0, missed - len(sizes)))
    return 0, 0


def write_unit(item: Mapping[str, Any]) -> int:
    """Write units of an item."""
    return max(1, ceil(size(item) / 1024))


def read_unit(bytes_read: int) -> int:
    """Consistent read units of so many bytes."""
    return max(1, ceil(bytes_read / 4096))


def size(item: Mapping[str, Any]) -> int:
    """Bytes of an item: its attributes' names and values. Binary values come in base64."""
    return sum(len(name) + value_size(value) for name, value in item.items())


def value_size(value: Mapping[str, Any]) -> int:
    """Bytes of one value."""
    (kind, it), *_ = value.items()
    if kind == "B":
        return len(it) * 3 // 4
    if kind == "M":
        return 3 + size(it)
    if kind == "L":
        return 3 + sum(map(value_size, it))
    return len(str(it))

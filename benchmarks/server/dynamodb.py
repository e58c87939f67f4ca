"""DynamoDB's interface, as far as savers use it: tables of a hash and a range key, in memory, and AWS's units.

A write pays a unit for each 1 KiB of an item, and a deletion those of what it removes. A read pays a unit for each
4 KiB, half of that if it need not be consistent, for what was read before filters and projections; an item for itself,
a query for all of its items together.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from benchmarks.server.http import Request, Response

PAGE = 1 << 20
"""Bytes after which a query stops."""

Item = Mapping[str, Any]


@dataclass
class Table:
    """Items by hash key, and of each the range keys in order."""

    items: dict[str, dict[str, Item]] = field(default_factory=dict)
    order: dict[str, list[str]] = field(default_factory=dict)

    def get(self, hash_key: str, range_key: str) -> Item | None:
        """One item."""
        return self.items.get(hash_key, {}).get(range_key)

    def put(self, hash_key: str, range_key: str, item: Item) -> None:
        """Store an item, in the place of an earlier one."""
        items = self.items.setdefault(hash_key, {})
        if range_key not in items:
            insort(self.order.setdefault(hash_key, []), range_key)
        items[range_key] = item

    def delete(self, hash_key: str, range_key: str) -> None:
        """Remove an item if it is there."""
        if self.items.get(hash_key, {}).pop(range_key, None):
            order = self.order[hash_key]
            del order[bisect_left(order, range_key)]


class DynamoDB:
    """All tables, which have the keys PK and SK."""

    def __init__(self) -> None:
        self.tables: dict[str, Table] = {}

    def __call__(self, request: Request) -> Response:
        """Answer one request."""
        target = request.headers.get("x-amz-target", "").rpartition(".")[2]
        headers = {"Content-Type": "application/x-amz-json-1.0"}
        call = getattr(self, f"_{target.lower()}", None)
        try:
            if call is None:
                raise DynamoDBError("UnknownOperationException")
            answer, write_units, read_units = call(json.loads(request.body))
        except DynamoDBError as error:
            told = {"__type": f"com.amazonaws.dynamodb.v20120810#{error}", "message": str(error)}
            return Response(target, 400, json.dumps(told).encode(), headers, write_units=error.write_units)
        body = json.dumps(answer).encode()
        return Response(target, 200, body, headers, write_units=write_units, read_units=read_units)

    def size(self, name: str) -> int:
        """Bytes of all items of a table."""
        return sum(size(item) for items in self._table({"TableName": name}).items.values() for item in items.values())

    def _table(self, asked: Mapping[str, Any]) -> Table:
        if asked["TableName"] not in self.tables:
            raise DynamoDBError("ResourceNotFoundException")
        return self.tables[asked["TableName"]]

    def _createtable(self, asked: Mapping[str, Any]) -> tuple[Any, float, float]:
        if [key["AttributeName"] for key in asked["KeySchema"]] != ["PK", "SK"]:
            raise DynamoDBError("ValidationException")
        self.tables[asked["TableName"]] = Table()
        return {"TableDescription": {"TableName": asked["TableName"], "TableStatus": "ACTIVE"}}, 0, 0

    def _putitem(self, asked: Mapping[str, Any]) -> tuple[Any, float, float]:
        table, item = self._table(asked), asked["Item"]
        if asked.get("ConditionExpression", "attribute_not_exists(PK)") != "attribute_not_exists(PK)":
            raise DynamoDBError("ValidationException")
        if size(item) > 400 * 1024:
            raise DynamoDBError("ValidationException")
        old = table.get(*key_of(item))
        if "ConditionExpression" in asked and old:
            raise DynamoDBError("ConditionalCheckFailedException", write_units(old))
        table.put(*key_of(item), item)
        return {}, max(write_units(item), write_units(old or {})), 0

    def _getitem(self, asked: Mapping[str, Any]) -> tuple[Any, float, float]:
        item = self._table(asked).get(*key_of(asked["Key"]))
        answer = {} if item is None else {"Item": projected(item, asked)}
        return answer, 0, share(asked) * read_units(size(item or {}))

    def _batchgetitem(self, asked: Mapping[str, Any]) -> tuple[Any, float, float]:
        found, units = {}, 0.0
        for name, wanted in asked["RequestItems"].items():
            items = [self._table({"TableName": name}).get(*key_of(key)) for key in wanted["Keys"]]
            found[name] = [projected(item, wanted) for item in items if item is not None]
            units += sum(share(wanted) * read_units(size(item or {})) for item in items)
        return {"Responses": found, "UnprocessedKeys": {}}, 0, units

    def _batchwriteitem(self, asked: Mapping[str, Any]) -> tuple[Any, float, float]:
        units = 0
        for name, requests in asked["RequestItems"].items():
            table = self._table({"TableName": name})
            for request in requests:
                if "DeleteRequest" in request:
                    key = key_of(request["DeleteRequest"]["Key"])
                    units += write_units(table.get(*key) or {})
                    table.delete(*key)
                else:
                    item = request["PutRequest"]["Item"]
                    units += write_units(item)
                    table.put(*key_of(item), item)
        return {"UnprocessedItems": {}}, units, 0

    def _query(self, asked: Mapping[str, Any]) -> tuple[Any, float, float]:
        values = asked["ExpressionAttributeValues"]
        condition = re.fullmatch(r"PK = (:\w+)( AND begins_with\(SK, (:\w+)\))?", asked["KeyConditionExpression"])
        if condition is None:
            raise DynamoDBError("ValidationException")
        hash_key = values[condition[1]]["S"]
        table, prefix = self._table(asked), values[condition[3]]["S"] if condition[2] else ""
        keys = span(table.order.get(hash_key, []), prefix, asked)
        taken: list[Item] = []
        bytes_read = 0
        for key in keys:
            item = table.items[hash_key][key]
            taken.append(item)
            bytes_read += size(item)
            if bytes_read > PAGE or len(taken) == asked.get("Limit"):
                break
        items = [projected(item, asked) for item in taken if passes(item, asked)]
        answer: dict[str, Any] = {"Items": items, "Count": len(items), "ScannedCount": len(taken)}
        if len(taken) < len(keys) or (taken and len(taken) == asked.get("Limit")):
            answer["LastEvaluatedKey"] = {name: taken[-1][name] for name in ("PK", "SK")}
        return answer, 0, share(asked) * read_units(bytes_read)


class DynamoDBError(Exception):
    """An answer that is an error."""

    def __init__(self, name: str, write_units: float = 0) -> None:
        super().__init__(name)
        self.write_units = write_units


def key_of(item: Item) -> tuple[str, str]:
    """The keys of an item."""
    return item["PK"]["S"], item["SK"]["S"]


def span(order: list[str], prefix: str, asked: Mapping[str, Any]) -> list[str]:
    """The range keys that a query goes over, in its order."""
    start, end = bisect_left(order, prefix), bisect_right(order, prefix, key=lambda key: key[: len(prefix)])
    after = asked.get("ExclusiveStartKey", {}).get("SK", {}).get("S")
    if asked.get("ScanIndexForward", True):
        return order[start if after is None else max(start, bisect_right(order, after)) : end]
    return order[start : end if after is None else min(end, bisect_left(order, after))][::-1]


def passes(item: Item, asked: Mapping[str, Any]) -> bool:
    """Whether an item passes the filter."""
    if "FilterExpression" not in asked:
        return True
    condition = re.fullmatch(r"(\w+) < (:\w+)", asked["FilterExpression"])
    if condition is None:
        raise DynamoDBError("ValidationException")
    return bool(item[condition[1]]["S"] < asked["ExpressionAttributeValues"][condition[2]]["S"])


def projected(item: Item, asked: Mapping[str, Any]) -> Item:
    """What the projection leaves of an item."""
    if "ProjectionExpression" not in asked:
        return item
    names = asked.get("ExpressionAttributeNames", {})
    wanted = {names.get(name.strip(), name.strip()) for name in asked["ProjectionExpression"].split(",")}
    return {name: value for name, value in item.items() if name in wanted}


def share(asked: Mapping[str, Any]) -> float:
    """What a read pays of a consistent one."""
    return 1 if asked.get("ConsistentRead") else 0.5


def write_units(item: Item) -> int:
    """Units to write an item."""
    return max(1, ceil(size(item) / 1024))


def read_units(bytes_read: int) -> int:
    """Units to read so much, consistently."""
    return max(1, ceil(bytes_read / 4096))


def size(item: Item) -> int:
    """Bytes of an item: its attributes' names and values. Binary values come in base64."""
    return sum(len(name.encode()) + value_size(value) for name, value in item.items())


def value_size(value: Mapping[str, Any]) -> int:
    """Bytes of one value."""
    (kind, it), *_ = value.items()
    if kind == "B":
        return len(it) // 4 * 3 - str(it).count("=")
    if kind == "M":
        return 3 + size(it)
    if kind == "L":
        return 3 + sum(map(value_size, it))
    return len(str(it).encode())

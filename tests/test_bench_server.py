"""The benchmark's server answers as moto's does, call by call, over the same client."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from benchmarks.server.control import ServerControl, start_server
from benchmarks.server.dynamodb import DynamoDB, Table
from benchmarks.server.http import Request, decode_chunks
from benchmarks.server.log import Entry, dollars_per_million, kinds, longest_chain

BUCKETS = count()

KEYS = ["a/1", "a/2", "a/b/1", "a/b/2", "a/é", "a/ü&<>", "a b+c%20", "a/\U0001f600", "a/\uff5e", "b", "c/d/e", "c/d/f"]

Client: TypeAlias = Any


@pytest.fixture(scope="module")
def bench_addresses() -> Iterator[dict[str, str]]:
    """The addresses of the benchmark's server, without latency."""
    with start_server("--latency", "0") as told:
        yield told


@pytest.fixture(scope="module")
def bench_endpoint(bench_addresses: dict[str, str]) -> str:
    """Where its S3 is."""
    return bench_addresses["s3"]


@pytest.fixture(params=["when_supported", "when_required"])
def clients(request: pytest.FixtureRequest, bench_endpoint: str, moto_endpoint: str) -> Iterator[tuple[Client, Client]]:
    """A client of each server, with and without the newer checksums."""
    config = Config(
        request_checksum_calculation=request.param,
        response_checksum_validation=request.param,
        retries={"total_max_attempts": 1},
        s3={"addressing_style": "path"},
    )
    pair = [boto3.client("s3", endpoint_url=url, config=config) for url in (bench_endpoint, moto_endpoint)]
    yield pair[0], pair[1]
    for client in pair:
        client.close()


def told(client: Client, bucket: str, call: Callable[[Client, str], Any]) -> Any:
    """What a call answers, without what may differ from server to server."""
    try:
        return cleaned(call(client, bucket))
    except ClientError as error:
        return error.response["Error"]["Code"], error.response["ResponseMetadata"]["HTTPStatusCode"]


DIFFERENT = {
    *("LastModified", "HostId", "RequestId", "Owner", "Location", "UploadId", "ChecksumAlgorithm", "ChecksumType"),
    *("NextContinuationToken", "ContinuationToken", "ServerSideEncryption", "HTTPHeaders", "RetryAttempts"),
    *("StorageClass", "AcceptRanges", "Name", "Bucket", "BucketArn", "BucketRegion", "AccessPointAlias", "TagCount"),
    # Here moto is not as S3 is: these repeat what was asked, or are only there for buckets with versions.
    *("Prefix", "StartAfter", "Marker", "NextMarker", "VersionId", "ConsumedCapacity", "ItemCollectionMetrics"),
}


def cleaned(it: Any, name: str = "") -> Any:
    """An answer with bodies read."""
    if isinstance(it, dict):
        return {
            key: cleaned(value, key)
            for key, value in it.items()
            if not key.startswith("Checksum") and (key not in DIFFERENT or name == "CommonPrefixes")
        }
    if isinstance(it, list):
        return [cleaned(value, name) for value in it]
    return it.read() if hasattr(it, "read") else it


def check_same(clients: tuple[Client, Client], *calls: Callable[[Client, str], Any]) -> None:
    """Make the same calls on a fresh bucket of each server; all answers have to be the same."""
    bucket = f"bench-{next(BUCKETS)}"
    for number, call in enumerate([lambda client, bucket: client.create_bucket(Bucket=bucket), *calls]):
        ours, motos = (told(client, bucket, call) for client in clients)
        assert ours == motos, f"call {number}"


def put(key: str, body: bytes = b"data", **more: Any) -> Callable[[Client, str], Any]:
    return lambda client, bucket: client.put_object(Bucket=bucket, Key=key, Body=body, **more)


def get(key: str, **more: Any) -> Callable[[Client, str], Any]:
    return lambda client, bucket: client.get_object(Bucket=bucket, Key=key, **more)


def head(key: str, **more: Any) -> Callable[[Client, str], Any]:
    return lambda client, bucket: client.head_object(Bucket=bucket, Key=key, **more)


def listing(**more: Any) -> Callable[[Client, str], Any]:
    return lambda client, bucket: client.list_objects_v2(Bucket=bucket, **more)


def old_listing(**more: Any) -> Callable[[Client, str], Any]:
    return lambda client, bucket: client.list_objects(Bucket=bucket, **more)


def etag_of(body: bytes) -> str:
    import hashlib

    return f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'


def test_puts_and_gets(clients: tuple[Client, Client]) -> None:
    check_same(
        clients,
        *(put(key, key.encode()) for key in KEYS),
        *(get(key) for key in KEYS),
        *(head(key) for key in KEYS),
        put("b", b""),
        get("b"),
        head("b"),
        get("no such key"),
        head("no such key"),
        put("m", Metadata={"one": "1"}, ContentType="text/plain", CacheControl="no-cache"),
        get("m"),
        head("m"),
    )


def test_large_bodies_wait_for_100_continue(clients: tuple[Client, Client]) -> None:
    check_same(clients, put("large", b"0123456789" * 300_000), get("large"), head("large"))


@pytest.mark.parametrize("span", ["bytes=0-0", "bytes=2-5", "bytes=7-", "bytes=-3", "bytes=5-100"])
def test_ranges(clients: tuple[Client, Client], span: str) -> None:
    check_same(clients, put("key", b"0123456789"), get("key", Range=span), get("key", Range="bytes=10-"))


def test_conditional_puts(clients: tuple[Client, Client]) -> None:
    check_same(
        clients,
        put("key", b"one", IfNoneMatch="*"),
        put("key", b"two", IfNoneMatch="*"),
        get("key"),
        put("key", b"three", IfMatch=etag_of(b"one")),
        put("key", b"four", IfMatch=etag_of(b"one")),
        get("key"),
        put("other", b"five", IfMatch=etag_of(b"one")),
    )


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"Prefix": "a/"},
        {"Prefix": "a"},
        {"Prefix": "none"},
        {"Delimiter": "/"},
        {"Prefix": "a/", "Delimiter": "/"},
        {"Prefix": "c", "Delimiter": "/"},
        {"MaxKeys": 3},
        {"MaxKeys": 3, "Delimiter": "/"},
        {"EncodingType": "url"},
        {"Prefix": "a/", "EncodingType": "url", "Delimiter": "/"},
    ],
)
def test_listings(clients: tuple[Client, Client], options: dict[str, Any]) -> None:
    check_same(clients, listing(**options), *(put(key, key.encode()) for key in KEYS), listing(**options))
    if options.keys() < {"Prefix", "Delimiter", "EncodingType"}:  # moto's first version does not count folders
        check_same(clients, old_listing(**options), *map(put, KEYS), old_listing(**options))


@pytest.mark.parametrize("after", ["a/1", "a/1x", "a/b/", "zzz", "a/é"])
@pytest.mark.parametrize("prefix", ["", "a/"])
def test_start_after(clients: tuple[Client, Client], after: str, prefix: str) -> None:
    check_same(clients, *map(put, KEYS), listing(StartAfter=after, Prefix=prefix), old_listing(Marker=after))


@pytest.mark.parametrize("options", [{}, {"Delimiter": "/"}, {"Prefix": "a/"}, {"StartAfter": "a/2"}])
@pytest.mark.parametrize("size", [1, 2, 5])
def test_all_pages(clients: tuple[Client, Client], size: int, options: dict[str, Any]) -> None:
    def pages(client: Client, bucket: str) -> list[Any]:
        found, more = [], dict(options)
        while True:
            page = client.list_objects_v2(Bucket=bucket, MaxKeys=size, **more)
            found.append(page)
            if not page["IsTruncated"]:
                return found
            more["ContinuationToken"] = page["NextContinuationToken"]

    check_same(clients, *map(put, KEYS), pages)


def test_deletions(clients: tuple[Client, Client]) -> None:
    def delete_objects(*keys: str) -> Callable[[Client, str], Any]:
        objects = [{"Key": key} for key in keys]
        return lambda client, bucket: client.delete_objects(Bucket=bucket, Delete={"Objects": objects})

    check_same(
        clients,
        *map(put, KEYS),
        lambda client, bucket: client.delete_object(Bucket=bucket, Key="b"),
        lambda client, bucket: client.delete_object(Bucket=bucket, Key="b"),
        delete_objects("a/1", "a/ü&<>", "not there"),
        delete_objects("a/2", "a b+c%20"),
        listing(),
    )


def test_what_moto_does_otherwise(clients: tuple[Client, Client]) -> None:
    """By S3's documentation."""
    client, _ = clients
    client.create_bucket(Bucket="otherwise")
    with pytest.raises(ClientError, match="KeyTooLongError"):
        client.put_object(Bucket="otherwise", Key="k" * 1025, Body=b"")
    for key in KEYS:
        client.put_object(Bucket="otherwise", Key=key, Body=b"")
    page = client.list_objects(Bucket="otherwise", MaxKeys=2, Delimiter="/")
    assert [it["Key"] for it in page["Contents"]] == ["a b+c%20"]
    assert (page["IsTruncated"], page["NextMarker"]) == (True, "a/")
    page = client.list_objects(Bucket="otherwise", Marker="a/", Delimiter="/")
    assert [it["Prefix"] for it in page["CommonPrefixes"]] == ["c/"]
    page = client.list_objects_v2(Bucket="otherwise", StartAfter="a/", Delimiter="/")
    assert [it["Prefix"] for it in page["CommonPrefixes"]] == ["a/", "c/"]
    quiet = client.delete_objects(Bucket="otherwise", Delete={"Objects": [{"Key": "b"}], "Quiet": True})
    assert "Deleted" not in quiet


def test_copies(clients: tuple[Client, Client]) -> None:
    def copy(source: str, target: str, **more: Any) -> Callable[[Client, str], Any]:
        return lambda client, bucket: client.copy_object(
            Bucket=bucket, Key=target, CopySource={"Bucket": bucket, "Key": source}, **more
        )

    check_same(
        clients,
        *(put(key, key.encode(), Metadata={"a": "1"}) for key in KEYS),
        *(copy(key, f"copies/{key}") for key in KEYS),
        copy("b", "replaced", MetadataDirective="REPLACE", Metadata={"b": "2"}),
        *(get(f"copies/{key}") for key in KEYS),
        get("replaced"),
        copy("not there", "x"),
        listing(),
    )


def test_multipart_uploads(clients: tuple[Client, Client]) -> None:
    bodies = [b"1" * (5 << 20), b"2"]

    def upload(client: Client, bucket: str, complete: bool = True) -> Any:
        name = {"Bucket": bucket, "Key": "key"}
        upload_id = client.create_multipart_upload(**name, ContentType="text/plain")["UploadId"]
        name["UploadId"] = upload_id
        parts = []
        for number, body in enumerate(bodies, 1):
            etag = client.upload_part(**name, PartNumber=number, Body=body)["ETag"]
            parts.append({"PartNumber": number, "ETag": etag})
        if not complete:
            return client.abort_multipart_upload(**name)
        return client.complete_multipart_upload(**name, MultipartUpload={"Parts": parts})

    check_same(clients, lambda client, bucket: upload(client, bucket, False), listing(), upload, get("key"), listing())


def test_buckets(clients: tuple[Client, Client]) -> None:
    check_same(
        clients,
        lambda client, bucket: client.head_bucket(Bucket=bucket),
        lambda client, bucket: client.head_bucket(Bucket=f"{bucket}-none"),
        lambda client, bucket: client.list_objects_v2(Bucket=f"{bucket}-none"),
        lambda client, bucket: client.put_object(Bucket=f"{bucket}-none", Key="k", Body=b""),
        lambda client, bucket: client.get_object(Bucket=f"{bucket}-none", Key="k"),
    )


def test_streams_in_chunks(bench_endpoint: str) -> None:
    """What SDKs send when they do not know the length, or put the checksum behind the body."""
    import http.client

    host = urlsplit(bench_endpoint).netloc
    connection = http.client.HTTPConnection(host)
    connection.request("PUT", "/chunks")
    connection.getresponse().read()
    aws = b"4;chunk-signature=00\r\nabcd\r\n2\r\nef\r\n0\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n"
    headers = {"x-amz-content-sha256": "STREAMING-UNSIGNED-PAYLOAD-TRAILER", "Content-Encoding": "aws-chunked"}
    connection.request("PUT", "/chunks/known", aws, headers)
    connection.getresponse().read()
    connection.request("PUT", "/chunks/unknown", iter([aws[:10], aws[10:]]), headers, encode_chunked=True)
    connection.getresponse().read()
    for key in ("known", "unknown"):
        connection.request("GET", f"/chunks/{key}", headers={"x-amz-checksum-mode": "ENABLED"})
        answer = connection.getresponse()
        assert answer.read() == b"abcdef"
        assert answer.headers["x-amz-checksum-crc32"] == "AAAAAA=="
        assert answer.headers["content-encoding"] is None
    connection.close()


def test_chunks_may_end_anywhere() -> None:
    whole = b"3\r\nabc\r\n0\r\nx-trailer: 1\r\n\r\n"
    headers: dict[str, str] = {}
    assert decode_chunks(whole + b"GET", headers) == (b"abc", len(whole))
    assert headers == {"x-trailer": "1"}
    assert all(decode_chunks(whole[:end], {}) is None for end in range(len(whole)))


def test_latency_and_log(clients: tuple[Client, Client]) -> None:
    """Requests made together wait together, and the log tells which followed one another."""
    client, _ = clients
    control = ServerControl(client.meta.endpoint_url)
    control.create("latency")
    client.put_object(Bucket="latency", Key="key", Body=b"12345")
    control.take_log()
    control.set_latency(50)
    try:
        start = time.monotonic()
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _: client.get_object(Bucket="latency", Key="key")["Body"].read(), range(4)))
        client.put_object(Bucket="latency", Key="key", Body=b"1234")
        taken = time.monotonic() - start
    finally:
        control.set_latency(0)
    log = control.take_log()
    assert taken >= 0.1
    assert kinds(log) == {"GET": 4, "PUT": 1}
    assert all(entry.end - entry.start >= 0.049 for entry in log)
    assert sum(entry.down for entry in log if entry.kind == "GET") == 20
    assert 2 <= longest_chain(log) <= 5
    assert control.size("latency") == 4


def test_chains_and_prices() -> None:
    log = [Entry("GET", 0, 3), Entry("GET", 1, 2), Entry("PUT", 2, 4), Entry("LIST", 3.5, 5), Entry("DELETE", 4, 6)]
    assert longest_chain(log) == 3
    assert longest_chain([]) == 0
    assert dollars_per_million(log) == pytest.approx(10.8)
    assert dollars_per_million([Entry("Query", 0, 1, write_units=2, read_units=4)]) == pytest.approx(1.75)


def item(hash_key: str, range_key: str, **more: str) -> dict[str, Any]:
    return {"PK": {"S": hash_key}, "SK": {"S": range_key}, **{name: {"S": value} for name, value in more.items()}}


def make_call(name: str, options: dict[str, Any], client: Client, _: str) -> Any:
    return getattr(client, name)(**options)


def test_dynamodb(bench_addresses: dict[str, str], moto_endpoint: str) -> None:
    """The DynamoDB answers as moto's does."""
    clients = [boto3.client("dynamodb", endpoint_url=url) for url in (bench_addresses["dynamodb"], moto_endpoint)]
    table = f"bench-{next(BUCKETS)}"
    keys: Any = [{"AttributeName": "PK", "KeyType": "HASH"}, {"AttributeName": "SK", "KeyType": "RANGE"}]
    types: Any = [{"AttributeName": name, "AttributeType": "S"} for name in ("PK", "SK")]
    items = [item("a", f"{letter}#{n}", id=str(n), body="t" * n) for letter in "xy" for n in range(5)]
    both: dict[str, Any] = {":pk": {"S": "a"}, ":start": {"S": "x#"}}
    query: dict[str, Any] = {"KeyConditionExpression": "PK = :pk", "ExpressionAttributeValues": {":pk": {"S": "a"}}}
    prefix = {
        "KeyConditionExpression": "PK = :pk AND begins_with(SK, :start)",
        "ExpressionAttributeValues": both,
        "ProjectionExpression": "id, #t",
        "ExpressionAttributeNames": {"#t": "body"},
    }
    filtered = {**query, "FilterExpression": "id < :id"}
    filtered["ExpressionAttributeValues"] = {":pk": {"S": "a"}, ":id": {"S": "3"}}
    after = {"PK": {"S": "a"}, "SK": {"S": "x#3"}}
    calls: list[tuple[str, dict[str, Any]]] = [
        *(("put_item", {"TableName": table, "Item": it}) for it in items),
        ("put_item", {"TableName": table, "Item": items[0], "ConditionExpression": "attribute_not_exists(PK)"}),
        ("put_item", {"TableName": table, "Item": item("b", "1"), "ConditionExpression": "attribute_not_exists(PK)"}),
        *(("get_item", {"TableName": table, "Key": item(*key)}) for key in (("a", "x#3"), ("a", "z"), ("b", "1"))),
        ("get_item", {"TableName": table, "Key": item("a", "x#3"), "ProjectionExpression": "body"}),
        ("query", {"TableName": table, **query}),
        ("query", {"TableName": table, **query, "ScanIndexForward": False, "Limit": 3}),
        ("query", {"TableName": table, **query, "ExclusiveStartKey": after}),
        ("query", {"TableName": table, **query, "ExclusiveStartKey": after, "ScanIndexForward": False}),
        ("query", {"TableName": table, **prefix}),
        ("query", {"TableName": table, **prefix, "ScanIndexForward": False}),
        ("query", {"TableName": table, **filtered}),
        ("batch_get_item", {"RequestItems": {table: {"Keys": [item("a", "x#1"), item("a", "none")]}}}),
        ("batch_write_item", {"RequestItems": {table: [{"DeleteRequest": {"Key": item("a", "x#1")}}]}}),
        ("query", {"TableName": table, **query}),
        ("get_item", {"TableName": f"{table}-none", "Key": item("a", "x#3")}),
    ]
    for client in clients:
        client.create_table(TableName=table, KeySchema=keys, AttributeDefinitions=types, BillingMode="PAY_PER_REQUEST")
    for number, (name, options) in enumerate(calls):
        answers = [told(client, "", partial(make_call, name, options)) for client in clients]
        assert answers[0] == answers[1], f"call {number}"
    for client in clients:
        client.close()


def test_dynamodb_units() -> None:
    def ask(target: str, **asked: Any) -> tuple[float, float]:
        headers = {"x-amz-target": f"DynamoDB_20120810.{target}"}
        answer = database(Request("POST", "/", {}, headers, json.dumps(asked).encode()))
        return answer.write_units, answer.read_units

    database = DynamoDB()
    database.tables["t"] = Table()
    large = {**item("a", "1"), "data": {"B": base64.b64encode(b"x" * 10_000).decode()}}
    assert ask("PutItem", TableName="t", Item=large) == (10, 0)
    assert ask("PutItem", TableName="t", Item=item("a", "2")) == (1, 0)
    assert ask("GetItem", TableName="t", Key=item("a", "1")) == (0, 1.5)
    assert ask("GetItem", TableName="t", Key=item("a", "1"), ConsistentRead=True) == (0, 3)
    assert ask("GetItem", TableName="t", Key=item("a", "3")) == (0, 0.5)
    values = {":pk": {"S": "a"}}
    asked = {"TableName": "t", "KeyConditionExpression": "PK = :pk", "ExpressionAttributeValues": values}
    assert ask("Query", **asked) == (0, 1.5)
    deletions = [{"DeleteRequest": {"Key": item("a", number)}} for number in "12"]
    assert ask("BatchWriteItem", RequestItems={"t": deletions}) == (11, 0)


def test_server_is_a_command() -> None:
    """`python -m benchmarks.server` needs nothing but the standard library."""
    command = [sys.executable, "-S", "-m", "benchmarks.server", "--help"]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr

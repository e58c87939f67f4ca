"""Large objects: uploaded in parallel parts, of which none are left when one fails. Both drivers, over a server."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from aiobotocore.awsrequest import AioAWSResponse
from botocore.awsrequest import AWSResponse
from botocore.compat import HTTPHeaders

from langgraph.checkpoint.s3 import S3Saver
from langgraph.checkpoint.s3._aioboto import AioBotoDriver
from langgraph.checkpoint.s3._boto import BotoDriver
from langgraph.checkpoint.s3._calls import PUT_OBJECT_ARGS
from langgraph.checkpoint.s3._requests import ABSENT, IN_PARTS_FROM, PART, CreateBucket, Put, Stored, as_read, get, put
from langgraph.checkpoint.s3._stats import Stats
from langgraph.checkpoint.s3.aio import AsyncS3Saver
from langgraph.checkpoint.s3.errors import AccessDenied, S3SaverError
from tests.support.drivers import AioOnLoop, Driver, Loop, ask
from tests.support.savers import shared_client
from tests.support.threads import Script, config_for

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

NAMES = count()

LARGE = os.urandom(IN_PARTS_FROM + 1)
PARTS = -(-len(LARGE) // PART)

REFUSAL = b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>"


@pytest.fixture
def bucket() -> str:
    return f"parts-{next(NAMES)}"


@pytest.fixture(params=["boto", "aio"])
def make(request: pytest.FixtureRequest, s3_endpoint: str, bucket: str) -> Iterator[Callable[..., Driver]]:
    """Make drivers for one bucket."""
    with ExitStack() as stack:
        loop = Loop()
        stack.callback(loop.close)

        def make(**options: Any) -> Driver:
            options = {"endpoint_url": s3_endpoint, **options}
            boto = request.param == "boto"
            driver: Driver = BotoDriver(bucket, **options) if boto else AioOnLoop(loop, bucket, **options)
            stack.callback(driver.close)
            driver.run(ask(CreateBucket()))
            return driver

        yield make


@pytest.fixture
def observer(s3_endpoint: str) -> S3Client:
    client: S3Client = shared_client(s3_endpoint)
    return client


def hook(driver: Driver, event: str, handler: Callable[..., Any]) -> None:
    """Have something called with each request of a kind that the driver's own client makes."""
    if isinstance(driver, BotoDriver):
        assert driver._resources is not None
        client: Any = driver._resources.client
    else:
        process = driver.driver._process
        assert process is not None
        (connection,) = process.connections.values()
        client = connection.client
    client.meta.events.register_first(event, handler)


def refuse(driver: Driver, call: str, part: int | None = None) -> None:
    """Have a call refused, or one part alone, as a policy that does not allow it would."""
    kind = AWSResponse if isinstance(driver, BotoDriver) else AioAWSResponse

    def answer(request: Any, **_: Any) -> AWSResponse | None:
        if part is not None and f"partNumber={part}" not in request.url:
            return None
        refusal = kind("http://refused", 403, HTTPHeaders(), None)
        vars(refusal)["_content"] = REFUSAL
        return refusal

    hook(driver, f"before-send.s3.{call}", answer)


def test_only_what_is_large_and_unconditional_goes_in_parts() -> None:
    assert Put("k", bytes(IN_PARTS_FROM)).parts == Put("k", bytes(IN_PARTS_FROM)).requests == 1
    assert (Put("k", bytes(IN_PARTS_FROM + 1)).parts, Put("k", bytes(IN_PARTS_FROM + 1)).requests) == (3, 5)
    assert (Put("k", bytes(4 * PART)).parts, Put("k", bytes(4 * PART + 1)).parts) == (4, 5)
    assert Put("k", LARGE, ABSENT).parts == Put("k", LARGE, "etag").requests == 1


def test_a_large_object_is_uploaded_in_parts(make: Callable[..., Driver], bucket: str, observer: S3Client) -> None:
    driver = make()
    asked: list[str] = []
    hook(driver, "before-call.s3", lambda model, **_: asked.append(model.name))
    before = driver.stats()
    assert driver.run(put("k", LARGE)) is Stored.DONE
    assert sorted(asked) == ["CompleteMultipartUpload", "CreateMultipartUpload", *["UploadPart"] * PARTS]
    spent = driver.stats() - before
    assert spent == Stats(operations=1, round_trips=3, puts=len(asked), bytes_sent=len(LARGE))
    body = driver.run(get("k", as_read))
    assert body is not None
    assert body.data == LARGE
    assert observer.head_object(Bucket=bucket, Key="k")["ETag"].endswith(f'-{PARTS}"')


def test_two_large_objects_and_small_ones_in_one_batch(make: Callable[..., Driver]) -> None:
    driver = make()
    bodies = {"a": LARGE, "b": LARGE[::-1], "c": b"small", "d": b""}
    assert driver.run(ask(*(Put(key, body) for key, body in bodies.items()))) == [Stored.DONE] * 4
    for key, body in bodies.items():
        assert driver.run(get(key, lambda found: found.data)) == body


def test_a_large_conditional_put_goes_whole(make: Callable[..., Driver], bucket: str, observer: S3Client) -> None:
    driver = make()
    assert driver.run(put("k", LARGE, ABSENT)) is Stored.DONE
    assert driver.run(put("k", LARGE, ABSENT)) is Stored.REFUSED
    assert "-" not in observer.head_object(Bucket=bucket, Key="k")["ETag"]


@pytest.mark.parametrize(
    ("call", "part"), [("CreateMultipartUpload", None), ("UploadPart", PARTS), ("CompleteMultipartUpload", None)]
)
def test_a_failed_upload_leaves_nothing(
    call: str, part: int | None, make: Callable[..., Driver], bucket: str, observer: S3Client
) -> None:
    driver = make()
    refuse(driver, call, part)
    with pytest.raises(AccessDenied, match=f"s3://{bucket}/k"):
        driver.run(put("k", LARGE))
    assert "Uploads" not in observer.list_multipart_uploads(Bucket=bucket)
    assert driver.run(get("k", as_read)) is None
    assert driver.run(put("other", b"works")) is Stored.DONE


def test_a_cancelled_upload_leaves_nothing(s3_endpoint: str, bucket: str, observer: S3Client) -> None:
    begun = threading.Event()

    async def upload() -> None:
        driver = AioBotoDriver(bucket, endpoint_url=s3_endpoint)
        await driver.run(ask(CreateBucket()))
        assert driver._process is not None
        (connection,) = driver._process.connections.values()
        connection.client.meta.events.register("before-send.s3.UploadPart", lambda **_: begun.set())
        task = asyncio.ensure_future(driver.run(put("k", LARGE)))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert task.cancelled()
        await driver.aclose()

    asyncio.run(upload())
    assert "Uploads" not in observer.list_multipart_uploads(Bucket=bucket)
    assert "Contents" not in observer.list_objects_v2(Bucket=bucket)


OPTIONS = {"BucketKeyEnabled": True, "ServerSideEncryption": "aws:kms", "ChecksumAlgorithm": "SHA256"}


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="plain"),
        pytest.param(OPTIONS, id="options", marks=pytest.mark.moto_only("it has no keys of KMS")),
    ],
)
def test_put_object_args_hold_for_parts_too(
    options: dict[str, Any], make: Callable[..., Driver], bucket: str, observer: S3Client
) -> None:
    driver = make(put_object_args=options)
    asked: dict[str, Any] = {}
    hook(driver, "provide-client-params.s3", lambda params, model, **_: asked.update({model.name: dict(params)}))
    assert driver.run(put("k", LARGE)) is Stored.DONE
    assert options.items() <= asked["CreateMultipartUpload"].items()
    (first, *_) = asked["CompleteMultipartUpload"]["MultipartUpload"]["Parts"]
    assert ("ChecksumSHA256" in first) is bool(options)
    assert observer.head_object(Bucket=bucket, Key="k").get("ServerSideEncryption") == options.get(
        "ServerSideEncryption"
    )


def test_every_argument_that_is_allowed_is_known_to_multipart_uploads(observer: S3Client) -> None:
    known = observer.meta.service_model.operation_model("CreateMultipartUpload").input_shape
    assert known is not None
    assert set(PUT_OBJECT_ARGS) <= set(known.members)


def test_a_thread_with_a_large_value(s3_endpoint: str, bucket: str) -> None:
    with S3Saver(bucket, endpoint_url=s3_endpoint) as saver:
        saver.setup(create_bucket=True)
        script = Script(saver)
        script.put({"large": LARGE})
        script.put({"small": 1})
        script.write("large", LARGE)

    async def read() -> Any:
        async with AsyncS3Saver(bucket, endpoint_url=s3_endpoint) as other:
            return await other.aget_tuple(config_for("thread"))

    found = asyncio.run(read())
    assert found.checkpoint["channel_values"] == {"large": LARGE, "small": 1}
    assert [value for _, _, value in found.pending_writes] == [LARGE]


def test_a_failed_large_value_is_not_acknowledged(s3_endpoint: str, bucket: str) -> None:
    with S3Saver(bucket, endpoint_url=s3_endpoint) as saver:
        saver.setup(create_bucket=True)
        refuse(saver._driver, "CompleteMultipartUpload")
        with pytest.raises(S3SaverError):
            Script(saver).put({"large": LARGE})
        assert saver.get_tuple(config_for("thread")) is None

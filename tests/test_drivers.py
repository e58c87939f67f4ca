"""What both drivers do, over a server in this process and over clients and servers that misbehave."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import (
    ClientError,
    EndpointConnectionError,
    NoCredentialsError,
    ParamValidationError,
    ReadTimeoutError,
)
from urllib3.exceptions import ProtocolError

from langgraph.checkpoint.s3 import _aioboto, _boto, _run
from langgraph.checkpoint.s3._boto import BotoDriver
from langgraph.checkpoint.s3._calls import PUT_OBJECT_ARGS, READS, WAIT_FROM, config_options
from langgraph.checkpoint.s3._requests import (
    ABSENT,
    Body,
    Copy,
    CreateBucket,
    Delete,
    Get,
    List,
    Plan,
    Put,
    Request,
    Stored,
    as_read,
    copy_all,
    delete_all,
    each,
    get,
    list_all,
    list_folders,
    list_page,
    put,
    put_all,
)
from langgraph.checkpoint.s3._stats import Stats
from langgraph.checkpoint.s3.errors import (
    AccessDenied,
    BucketNotFound,
    Contended,
    InvalidInput,
    S3SaverError,
    StorageError,
)
from tests.support.drivers import (
    STORED,
    AioOnLoop,
    Breaking,
    Driver,
    FromFunction,
    Loop,
    Maker,
    Scripted,
    answer_of,
    ask,
    failure,
)

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

NAMES = count()

ODD_KEYS = [
    "p/a b",
    "p/a+b",
    "p/a%20b",
    "p/a%2Bb",
    "p/é/ü",
    "p/😀",
    "p/&<>\"'",
    "p/?x=1#y",
    "p/~!*()=@,;:$",
    "p/a//b",
]


@pytest.fixture(scope="module")
def client(s3_endpoint: str) -> Iterator[S3Client]:
    """A client that tests share, because to make one takes half a second."""
    session = boto3.session.Session("testing", "testing", region_name="us-east-1")
    config = Config(**config_options(s3_endpoint, 32, None))
    with contextlib.closing(session.client("s3", endpoint_url=s3_endpoint, config=config)) as client:
        yield client


@pytest.fixture(scope="module")
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


@pytest.fixture(params=["boto", "aio"])
def new(request: pytest.FixtureRequest, loop: Loop) -> Iterator[Maker]:
    """Make drivers of either kind, and close them in the end."""
    with contextlib.ExitStack() as stack:

        def new(*arguments: Any, **options: Any) -> Driver:
            driver: Driver
            driver = (
                BotoDriver(*arguments, **options) if request.param == "boto" else AioOnLoop(loop, *arguments, **options)
            )
            stack.callback(driver.close)
            return driver

        yield new


@pytest.fixture
def make(new: Maker, s3_endpoint: str) -> Maker:
    """Make drivers, each for a bucket of its own that may not exist yet."""
    return lambda bucket="", **options: new(
        bucket or f"driver-{next(NAMES)}", **{"endpoint_url": s3_endpoint, **options}
    )


@pytest.fixture
def driver(make: Maker) -> Driver:
    driver = make()
    driver.run(ask(CreateBucket()))
    return driver


@pytest.fixture
def scripted(new: Maker) -> Maker:
    """Make drivers whose client gives one of these answers after the other."""
    return lambda *answers, **options: new("bucket", client=Scripted(*answers), **options)


# --- What it asks of S3 -----------------------------------------------------------------------------------------------


def test_objects_are_written_read_and_deleted(driver: Driver) -> None:
    assert driver.run(put("k", b"value")) is Stored.DONE
    body = driver.run(get("k", as_read))
    assert body is not None
    assert body.etag
    assert body == Body("k", b"value", body.etag)
    driver.run(delete_all(["k", "absent"]))
    assert driver.run(get("k", as_read)) is None


def test_a_body_is_decoded(driver: Driver) -> None:
    driver.run(put("k", b"value"))
    assert driver.run(get("k", lambda body: body.data.decode())) == "value"


def test_empty_and_large_bodies(driver: Driver) -> None:
    bodies = {"empty": b"", "large": os.urandom(3_000_000)}
    driver.run(put_all(list(bodies.items())))
    assert driver.run(each([get(key, lambda body: body.data) for key in bodies])) == list(bodies.values())


def test_an_empty_batch_is_no_round_trip(driver: Driver) -> None:
    before = driver.stats()
    assert driver.run(ask()) == []
    assert driver.stats() - before == Stats(operations=1)


def test_create_only_if_absent(driver: Driver) -> None:
    assert driver.run(put("k", b"1", ABSENT)) is Stored.DONE
    assert driver.run(put("k", b"2", ABSENT)) is Stored.REFUSED
    assert driver.run(get("k", lambda body: body.data)) == b"1"


def test_replace_only_what_was_read(driver: Driver) -> None:
    driver.run(put("k", b"1"))
    etag = driver.run(get("k", lambda body: body.etag))
    assert driver.run(put("k", b"2", etag)) is Stored.DONE
    assert driver.run(put("k", b"3", etag)) is Stored.REFUSED
    assert driver.run(put("absent", b"3", etag)) is Stored.REFUSED
    assert driver.run(get("k", lambda body: body.data)) == b"2"


def test_a_listing_and_a_read_give_the_same_etag(driver: Driver) -> None:
    driver.run(put("k", b"12345"))
    (entry,), _ = driver.run(list_all(""))
    assert (entry.size, entry.etag) == (5, driver.run(get("k", lambda body: body.etag)))


def test_listing_pages(driver: Driver) -> None:
    keys = [f"p/{number}" for number in range(5)]
    driver.run(put_all([(key, b"") for key in [*keys, "q"]]))
    page = driver.run(list_page(List("p/", max_keys=3)))
    assert [entry.key for entry in page.entries] == keys[:3]
    rest = driver.run(list_page(List("p/", token=page.token, max_keys=3)))
    assert [entry.key for entry in rest.entries] == keys[3:]
    assert rest.token is None
    after = driver.run(list_page(List("p/", start_after="p/2")))
    assert [entry.key for entry in after.entries] == keys[3:]
    assert driver.run(list_all("nothing/")) == ([], 1)


def test_listing_folders(driver: Driver) -> None:
    driver.run(put_all([("p/a b/1", b""), ("p/a b/2", b""), ("p/c+d/1", b""), ("p/leaf", b"")]))
    assert driver.run(list_folders("p/")) == ["a b", "c+d"]
    page = driver.run(list_page(List("p/", folders=True)))
    assert [entry.key for entry in page.entries] == ["p/leaf"]


@pytest.mark.parametrize("key", ODD_KEYS)
def test_odd_keys_go_there_and_back(driver: Driver, key: str) -> None:
    driver.run(put(key, key.encode()))
    (entry,), _ = driver.run(list_all("p/"))
    assert entry.key == key
    assert driver.run(get(key, lambda body: body.data.decode())) == key
    (after,) = driver.run(ask(List(key[:-1], start_after=key[:-1])))
    assert [entry.key for entry in after.entries] == [key]
    assert driver.run(copy_all([(key, key + " copy")])) == []
    driver.run(delete_all([key]))
    assert [entry.key for entry in driver.run(list_all("p/"))[0]] == [key + " copy"]


def test_copies(driver: Driver) -> None:
    driver.run(put("a", b"1"))
    assert driver.run(copy_all([("a", "b"), ("absent", "c")])) == ["absent"]
    assert driver.run(get("b", lambda body: body.data)) == b"1"
    assert driver.run(get("c", as_read)) is None


@pytest.mark.moto_only("it has one region, its own")
def test_a_bucket_is_made_once(make: Maker) -> None:
    driver = make(region_name="eu-central-1")
    with pytest.raises(BucketNotFound):
        driver.run(list_all(""))
    assert driver.run(ask(CreateBucket())) == [None]
    assert driver.run(ask(CreateBucket())) == [None]
    assert driver.run(list_all("")) == ([], 1)


@pytest.mark.parametrize(("region", "constraint"), [(None, None), ("us-east-1", None), ("eu-west-1", "eu-west-1")])
def test_a_bucket_is_made_in_the_region_of_the_client(new: Maker, region: str | None, constraint: str | None) -> None:
    client = Scripted({}, region=region)
    new("bucket", client=client).run(ask(CreateBucket()))
    ((_, arguments),) = client.calls
    assert arguments.get("CreateBucketConfiguration", {}).get("LocationConstraint") == constraint


def test_an_etag_is_sent_without_quotes(new: Maker) -> None:
    """Ceph, and DigitalOcean Spaces which is made of it, match none in quotes."""
    client = Scripted(STORED)
    new("bucket", client=client).run(put("k", b"1", '"e"'))
    ((_, arguments),) = client.calls
    assert arguments["IfMatch"] == "e"


def test_a_refusal_without_a_message_is_told_by_its_code(new: Maker) -> None:
    refusal = failure("InvalidArgument", 400)
    refusal.response["Error"]["Message"] = None  # type: ignore[typeddict-item]
    with pytest.raises(StorageError, match=r"refused the request \(InvalidArgument, HTTP 400\); look"):
        new("bucket", client=Scripted(refusal)).run(put("k", b"1"))


def test_a_token_makes_start_after_needless(new: Maker) -> None:
    client = Scripted({"IsTruncated": False})
    new("bucket", client=client).run(ask(List("p", "after", "token", True, 7)))
    arguments = {"Bucket": "bucket", "Prefix": "p", "MaxKeys": 7, "Delimiter": "/", "ContinuationToken": "token"}
    assert client.calls == [("list_objects_v2", arguments)]


# --- put_object_args --------------------------------------------------------------------------------------------------


@pytest.mark.moto_only("it knows no storage class but STANDARD, and encrypts nothing of itself")
def test_put_object_args_are_for_puts_and_copies(make: Maker, client: S3Client) -> None:
    driver = make("with-arguments", put_object_args={"StorageClass": "STANDARD_IA", "ServerSideEncryption": "AES256"})
    driver.run(ask(CreateBucket()))
    driver.run(put("a", b"1"))
    driver.run(copy_all([("a", "b")]))
    for key in "ab":
        head = client.head_object(Bucket="with-arguments", Key=key)
        assert (head["StorageClass"], head["ServerSideEncryption"]) == ("STANDARD_IA", "AES256")


MANAGED = ["Bucket", "Key", "Body", "IfMatch", "IfNoneMatch", "ContentLength", "ContentMD5", "Metadata", "Tagging"]


@pytest.mark.parametrize("name", [*MANAGED, "SSECustomerKey", "ChecksumCRC32", "StorageClas"])
def test_other_put_object_args_are_refused(new: Maker, name: str) -> None:
    with pytest.raises(InvalidInput, match=f"may not hold {name}:.*StorageClass"):
        new("bucket", put_object_args={name: "secret"})


@pytest.mark.parametrize("operation", ["PutObject", "CopyObject"])
def test_put_object_args_are_known_to_both_operations(client: S3Client, operation: str) -> None:
    shape = client.meta.service_model.operation_model(operation).input_shape
    assert shape is not None
    assert set(shape.members) >= PUT_OBJECT_ARGS


# --- Options, client and pool -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"max_concurrency": 0}, {"max_concurrency": "8"}, {"addressing_style": "odd"}])
def test_bad_options_are_refused_at_once(new: Maker, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(options))):
        new("bucket", **options)


def test_a_batch_is_issued_together(new: Maker) -> None:
    barrier = threading.Barrier(4, timeout=5)
    driver = new("bucket", client=FromFunction(lambda _: barrier.wait()))
    assert driver.run(ask(*[Put(key, b"") for key in "abcd"])) == [Stored.DONE] * 4
    driver.close()


def test_concurrency_is_bounded(new: Maker) -> None:
    running, most = set(), [0]

    def act(key: str) -> None:
        running.add(key)
        time.sleep(0.01)
        most[0] = max(most[0], len(running))
        running.discard(key)

    driver = new("bucket", client=FromFunction(act), max_concurrency=3)
    driver.run(ask(*[Put(str(number), b"") for number in range(12)]))
    driver.close()
    assert most == [3]


def test_requests_see_the_context_of_the_caller(new: Maker) -> None:
    variable: ContextVar[str] = ContextVar("variable", default="unset")
    barrier = threading.Barrier(3, timeout=5)
    seen = []

    def act(key: str) -> None:
        seen.append(variable.get())
        variable.set(key)  # is not for the others to see
        barrier.wait()

    driver = new("bucket", client=FromFunction(act))
    token = variable.set("caller's")
    driver.run(ask(*[Put(key, b"") for key in "abc"]))
    assert seen == ["caller's"] * 3
    assert variable.get() == "caller's"
    variable.reset(token)
    driver.close()


def test_a_batch_is_drained_before_its_first_error_is_raised(new: Maker) -> None:
    landed = []

    def act(key: str) -> None:
        if key in "ac":
            raise failure("AccessDenied", 403, f"no {key}")
        time.sleep(0.1)
        landed.append(key)

    driver = new("bucket", client=FromFunction(act))
    with pytest.raises(AccessDenied, match="no a") as caught:
        driver.run(put_all([(key, b"") for key in "abcd"]))
    assert sorted(landed) == ["b", "d"]
    (note,) = vars(caught.value)["__notes__"]
    assert "AccessDenied" in note
    assert "no c" in note
    driver.close()


def test_a_plan_may_deal_with_an_error(scripted: Maker) -> None:
    def plan() -> Plan[str]:
        try:
            yield from put("a", b"")
        except AccessDenied:
            yield from put("b", b"")
            return "dealt with"
        return "no error"

    assert scripted(failure("AccessDenied", 403), STORED).run(plan()) == "dealt with"


@pytest.mark.parametrize("size", [1, 2])
def test_a_request_that_raises_stop_iteration_does_not_end_the_plan(scripted: Maker, size: int) -> None:
    def decode(_: Body) -> None:
        raise StopIteration("not the end")

    driver = scripted(*[answer_of(b"1") for _ in range(size)])
    with pytest.raises(RuntimeError, match=r"Get\(key='0'\) raised StopIteration"):
        driver.run(each([get(str(number), decode) for number in range(size)]))
    driver.close()


def test_errors_of_decode_are_passed_on_as_they_are(scripted: Maker) -> None:
    error = OSError("of the decoder, not of the body")

    def decode(_: Body) -> None:
        raise error

    with pytest.raises(OSError, match="of the decoder") as caught:
        scripted(answer_of(b"1")).run(get("k", decode))
    assert caught.value is error


@pytest.mark.parametrize("answer", [STORED, failure("AccessDenied", 403)])
def test_a_plan_is_always_closed(scripted: Maker, answer: Any) -> None:
    closed = []

    def plan() -> Plan[None]:
        try:
            yield from put("k", b"")
        finally:
            closed.append(True)

    with contextlib.suppress(AccessDenied):
        scripted(answer).run(plan())
    assert closed == [True]


def test_stats_count_operations(driver: Driver) -> None:
    before = driver.stats()
    driver.run(put_all([("a", b"12"), ("b", b"345")]))
    driver.run(each([get(key, lambda _: None) for key in ("a", "b", "absent")]))
    driver.run(list_all(""))
    driver.run(copy_all([("a", "c")]))
    driver.run(delete_all(["a", "b"]))
    spent = driver.stats() - before
    assert spent == Stats(5, 5, gets=3, puts=2, lists=1, deletes=1, copies=1, bytes_sent=5, bytes_received=5)
    assert spent.requests == 8
    assert before + spent == driver.stats()


def test_failed_operations_count_too(scripted: Maker) -> None:
    driver = scripted(failure("AccessDenied", 403))
    with pytest.raises(AccessDenied):
        driver.run(put("k", b"12"))
    assert driver.stats() == Stats(1, 1, puts=1, bytes_sent=2)


def test_stats_of_a_batch() -> None:
    batch: list[Request] = [
        Get("a"),
        Put("a", b"12"),
        List("a"),
        Delete(["a", "b"]),
        Copy("a", "b"),
        CreateBucket(),
    ]
    stats = Stats.of(batch, bytes_received=9)
    assert stats == Stats(0, 1, gets=1, puts=1, lists=1, deletes=1, copies=1, bytes_sent=2, bytes_received=9)
    assert Stats.of([]) == Stats()


def test_an_operation_is_one_line_of_the_log(scripted: Maker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "langgraph.checkpoint.s3")
    scripted(STORED).run(put("k", b"payload"), "put_writes")
    (line,) = caplog.messages
    assert line.startswith("put_writes: 1 round trips, 1 requests, 7 bytes sent, 0 received, ")
    assert line.endswith(" ms")
    assert "payload" not in line


def test_the_clock_is_read_for_the_log_only(
    scripted: Maker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "langgraph.checkpoint.s3")
    monkeypatch.setattr(_run, "time", None)
    scripted(STORED).run(put("k", b""))
    assert not caplog.messages


# --- Bodies that break off --------------------------------------------------------------------------------------------

BREAKS = [
    lambda: answer_of(b"12", length=3),
    lambda: {**answer_of(b""), "Body": Breaking(ReadTimeoutError(endpoint_url="x"))},
    lambda: {**answer_of(b""), "Body": Breaking(ProtocolError("reset"))},
    lambda: {**answer_of(b""), "Body": Breaking(ConnectionResetError("reset"))},
]


@pytest.mark.parametrize("broken", BREAKS)
def test_a_broken_body_is_got_again(scripted: Maker, broken: Callable[[], dict[str, Any]]) -> None:
    driver = scripted(broken(), broken(), answer_of(b"123"))
    assert driver.run(get("k", lambda body: body.data)) == b"123"


@pytest.mark.parametrize("broken", BREAKS)
def test_a_body_that_breaks_every_time_is_an_error(scripted: Maker, broken: Callable[[], dict[str, Any]]) -> None:
    driver = scripted(*[broken() for _ in range(READS)])
    with pytest.raises(StorageError, match="GetObject s3://bucket/k: the body broke off 3 times"):
        driver.run(get("k", as_read))


def test_bodies_are_closed(scripted: Maker) -> None:
    answers = [answer_of(b"12", length=3), answer_of(b"123")]
    scripted(*answers).run(get("k", as_read))
    assert all(answer["Body"].closed for answer in answers)


def test_an_object_may_vanish_between_two_reads(scripted: Maker) -> None:
    assert scripted(answer_of(b"12", 3), failure("NoSuchKey", 404)).run(get("k", as_read)) is None


Answer = tuple[int, dict[str, str], bytes]


class WebServer:
    """Gives a driver one HTTP answer after the other; closes the connection after each, by a reset if so asked."""

    driver: Driver

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.expected: list[str | None] = []  # the headers of that name
        self.reset = False
        web = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"  # the first to answer "100 Continue"

            def do_GET(self) -> None:
                status, headers, body = web.answers.pop(0)
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)
                self.close_connection = True
                if web.reset:
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    self.connection.close()

            def do_PUT(self) -> None:
                web.expected.append(self.headers["Expect"])
                self.rfile.read(int(self.headers["Content-Length"]))
                self.do_GET()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)


@pytest.fixture(scope="module")
def web_server() -> Iterator[WebServer]:
    web = WebServer()
    thread = threading.Thread(target=web.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield web
    web.server.shutdown()
    thread.join()
    web.server.server_close()


@pytest.fixture
def web(web_server: WebServer, new: Maker) -> WebServer:
    web_server.answers, web_server.reset = [], False
    web_server.driver = new("bucket", endpoint_url=f"http://127.0.0.1:{web_server.server.server_port}")
    return web_server


SHORT: Answer = (200, {"ETag": '"e"', "Content-Length": "100"}, b"12345")
WHOLE: Answer = (200, {"ETag": '"e"'}, b"12345")


@pytest.mark.parametrize("reset", [False, True])
def test_a_body_cut_on_the_wire_is_an_error(web: WebServer, reset: bool) -> None:
    web.answers, web.reset = [SHORT] * READS, reset
    with pytest.raises(StorageError, match="body broke off"):
        web.driver.run(get("k", as_read))
    gc.collect()  # a connection left open would show now


def test_a_body_cut_on_the_wire_is_got_again(web: WebServer) -> None:
    web.answers = [SHORT, SHORT, WHOLE]
    assert web.driver.run(get("k", as_read)) == Body("k", b"12345", '"e"')


@pytest.mark.parametrize(("size", "expects"), [(0, None), (WAIT_FROM, None), (WAIT_FROM + 1, "100-continue")])
def test_a_small_body_is_sent_without_asking_first(web: WebServer, size: int, expects: str | None) -> None:
    web.answers, web.expected = [(200, {"ETag": '"e"'}, b"")], []
    assert web.driver.run(put("k", bytes(size))) is Stored.DONE
    assert web.expected == [expects]


# --- Refusals ---------------------------------------------------------------------------------------------------------

CONFLICT = failure("ConditionalRequestConflict", 409)


@pytest.fixture
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for driver in (_boto, _aioboto):
        monkeypatch.setattr(driver, "PAUSES", (0.001, 0.001, 0.001))


@pytest.mark.usefixtures("_no_pauses")
def test_a_conflict_is_tried_again(scripted: Maker) -> None:
    driver = scripted(CONFLICT, failure("OperationAborted", 409), STORED)
    assert driver.run(put("k", b"", ABSENT)) is Stored.DONE
    assert scripted(CONFLICT, failure("PreconditionFailed", 412)).run(put("k", b"", ABSENT)) is Stored.REFUSED


@pytest.mark.usefixtures("_no_pauses")
def test_a_lasting_conflict_is_contention(scripted: Maker) -> None:
    with pytest.raises(Contended, match=r"PutObject s3://bucket/k: .*ConditionalRequestConflict, HTTP 409"):
        scripted(*[CONFLICT] * 4).run(put("k", b"", ABSENT))


UNKNOWN_HEADER = "A header you provided implies functionality that is not implemented"


@pytest.mark.parametrize(
    ("error", "reply"),
    [
        (failure("PreconditionFailed", 412), Stored.REFUSED),
        (failure("412", 412), Stored.REFUSED),
        (failure("NotImplemented", 501), Stored.UNSUPPORTED),
        (failure("NotImplemented", 400), Stored.UNSUPPORTED),
        (failure("501", 501), Stored.UNSUPPORTED),
        (failure("InvalidArgument", 400, UNKNOWN_HEADER), Stored.UNSUPPORTED),
    ],
)
@pytest.mark.parametrize("if_match", [ABSENT, '"etag"'])
def test_refused_conditions_are_replies(scripted: Maker, error: ClientError, reply: Stored, if_match: str) -> None:
    assert scripted(error).run(put("k", b"", if_match)) is reply
    with pytest.raises(StorageError):
        scripted(error).run(put("k", b""))


def test_a_missing_object_does_not_match(scripted: Maker) -> None:
    missing = failure("NoSuchKey", 404)
    assert scripted(missing).run(put("k", b"", '"etag"')) is Stored.REFUSED
    for if_match in (ABSENT, None):
        with pytest.raises(StorageError):
            scripted(missing).run(put("k", b"", if_match))


def test_keys_that_could_not_be_deleted_are_an_error(scripted: Maker) -> None:
    errors = [{"Key": "b", "Code": "InternalError", "Message": "Try again."}, {"Key": "c", "Code": "SlowDown"}]
    with pytest.raises(StorageError, match=r"DeleteObjects s3://bucket/a and 2 more: .*2 of 3 .*first b: Internal"):
        scripted({"Errors": errors}).run(delete_all(["a", "b", "c"]))
    with pytest.raises(AccessDenied, match="1 of 1 keys failed, first a: AccessDenied"):
        scripted({"Errors": [{"Key": "a", "Code": "AccessDenied"}]}).run(delete_all(["a"]))
    scripted({"Errors": [{"Key": "a", "Code": "NoSuchKey"}]}).run(delete_all(["a"]))


@pytest.mark.parametrize(
    "request_", [Get("k"), Put("k", b""), Put("k", b"", '"e"'), List("k"), Delete(["k"]), Copy("k", "l")]
)
def test_a_missing_bucket(make: Maker, request_: Request) -> None:
    with pytest.raises(
        BucketNotFound, match=r"s3://missing-bucket/k.*NoSuchBucket.*; check endpoint, .*setup\(create_bucket=True\)"
    ):
        make("missing-bucket").run(ask(request_))


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (failure("AccessDenied", 403), AccessDenied, "check the credentials"),
        (failure("403", 403, "Forbidden"), AccessDenied, "check the credentials"),
        (failure("InvalidAccessKeyId", 403), AccessDenied, "InvalidAccessKeyId"),
        (failure("SignatureDoesNotMatch", 403), AccessDenied, "SignatureDoesNotMatch"),
        (failure("ExpiredToken", 400), AccessDenied, "ExpiredToken"),
        (NoCredentialsError(), AccessDenied, "Unable to locate credentials"),
        (failure("SlowDown", 503), StorageError, "throttles"),
        (failure("503", 503), StorageError, "throttles"),
        (failure("PermanentRedirect", 301), StorageError, "region_name"),
        (failure("301", 301), StorageError, "region_name"),
        (failure("AuthorizationHeaderMalformed", 400), StorageError, "region_name"),
        (failure("InvalidObjectState", 403), StorageError, "archived"),
        (failure("InternalError", 500), StorageError, "S3 failed"),
        (failure("InvalidRequest", 400), StorageError, "S3 refused"),
        (failure("404", 404), StorageError, "without S3's reason .* check that the endpoint is that of an S3 server"),
        (failure("400", 400, "Bad Request"), StorageError, "without S3's reason"),
        (failure("RequestTimeTooSkewed", 403), AccessDenied, "clock is wrong .*; set it"),
        (failure("KMS.NotFoundException", 400), StorageError, "KMS key .*kms:GenerateDataKey and kms:Decrypt"),
        (failure("KMS.DisabledException", 403), StorageError, "KMS key"),
        (RecursionError("redirects in circles"), StorageError, "check endpoint"),
        (EndpointConnectionError(endpoint_url="http://x"), StorageError, "could not be reached"),
        (ParamValidationError(report="two\nlines"), InvalidInput, "two lines"),
    ],
)
def test_every_other_error_of_botocore_becomes_one_sentence(
    scripted: Maker, error: Exception, kind: type[S3SaverError], says: str
) -> None:
    with pytest.raises(kind, match=says) as caught:
        scripted(error).run(get("k", as_read))
    assert type(caught.value) is kind
    assert str(caught.value).startswith("GetObject s3://bucket/k: ")
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is error


def test_a_name_that_is_taken(scripted: Maker) -> None:
    with pytest.raises(StorageError, match=r"CreateBucket s3://bucket: .*another account"):
        scripted(failure("BucketAlreadyExists", 409)).run(ask(CreateBucket()))


def test_a_bucket_that_must_not_be_made(scripted: Maker) -> None:
    with pytest.raises(AccessDenied, match=r"CreateBucket s3://bucket: .*s3:CreateBucket"):
        scripted(failure("AccessDenied", 403)).run(ask(CreateBucket()))


def test_no_credentials(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(AccessDenied, match="Unable to locate credentials"):
        make().run(put("k", b""))


def test_a_bad_bucket_name(make: Maker) -> None:
    with pytest.raises(InvalidInput, match='Invalid bucket name "no/bucket"') as caught:
        make("no/bucket").run(put("k", b""))
    assert "regex" not in str(caught.value)


def test_a_password_in_the_endpoint_is_not_told(make: Maker, scripted: Maker) -> None:
    url = "http://user:secret@not an address"
    for driver in (make(endpoint_url=url), scripted(EndpointConnectionError(endpoint_url=url))):
        with pytest.raises(S3SaverError, match="http://not an address") as caught:
            driver.run(put("k", b""))
        assert "secret" not in str(caught.value)


PAGE = b"<html><body><br>It works!</body></html>"
XHTML = b"<html><body>It works!</body></html>"


@pytest.mark.parametrize(
    ("answer", "plan"),
    [
        ((404, {}, PAGE), lambda: get("k", as_read)),
        ((404, {}, XHTML), lambda: get("k", as_read)),
        ((404, {}, b""), lambda: get("k", as_read)),
        ((200, {}, PAGE), lambda: get("k", as_read)),
        ((200, {}, PAGE), lambda: put("k", b"")),
        ((200, {}, PAGE), lambda: list_all("")),
        ((200, {}, XHTML), lambda: list_all("")),
        ((200, {}, b""), lambda: list_all("")),
        ((400, {}, b""), lambda: list_all("")),
        ((301, {}, b""), lambda: list_all("")),
    ],
)
def test_a_server_that_is_not_s3_does_not_pass_for_a_bucket(
    web: WebServer, answer: Answer, plan: Callable[[], Plan[Any]]
) -> None:
    web.answers = [answer] * 1000
    with pytest.raises(StorageError):
        web.driver.run(plan())
    gc.collect()


def test_a_bare_404_of_s3_is_a_missing_key(web: WebServer) -> None:
    web.answers = [(404, {"x-amz-request-id": "1"}, b"")]
    assert web.driver.run(get("k", as_read)) is None

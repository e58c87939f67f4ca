"""What only the synchronous driver does: client, pool, interrupts and forks."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from botocore.config import Config

from langgraph.checkpoint.s3._boto import BotoDriver, _Resources
from langgraph.checkpoint.s3._calls import PARALLEL, config_options
from langgraph.checkpoint.s3._locks import ForkSafeLock
from langgraph.checkpoint.s3._requests import (
    Body,
    CreateBucket,
    Plan,
    as_read,
    each,
    get,
    list_all,
    put,
    put_all,
)
from langgraph.checkpoint.s3.errors import (
    InvalidInput,
    StorageError,
)
from tests.support.drivers import FromFunction, Scripted, answer_of, ask

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


NAMES = count()


@pytest.fixture(scope="module")
def client(s3_endpoint: str) -> Iterator[S3Client]:
    """A client that tests share, because to make one takes half a second."""
    config = Config(**config_options(s3_endpoint, 32, None))
    with contextlib.closing(boto3.session.Session().client("s3", endpoint_url=s3_endpoint, config=config)) as client:
        yield client


@pytest.fixture
def make(s3_endpoint: str) -> Iterator[Callable[..., BotoDriver]]:
    """Make drivers, each for a bucket of its own that may not exist yet, and close them in the end."""
    with contextlib.ExitStack() as stack:

        def make(**options: Any) -> BotoDriver:
            driver = BotoDriver(f"of-boto-{next(NAMES)}", **{"endpoint_url": s3_endpoint, **options})
            stack.callback(driver.close)
            return driver

        yield make


@pytest.fixture
def driver(make: Callable[..., BotoDriver], client: S3Client) -> BotoDriver:
    driver = make(client=client)
    driver.run(ask(CreateBucket()))
    return driver


def made_by(driver: BotoDriver) -> _Resources:
    """What the driver has in this process."""
    made = driver._use()
    made.leave()
    return made


@pytest.fixture
def own_driver(make: Callable[..., BotoDriver]) -> BotoDriver:
    """A driver that makes its client itself."""
    driver = make()
    driver.run(ask(CreateBucket()))
    return driver


@pytest.mark.parametrize("options", [{"endpoint_url": "no url"}, {"region_name": "no region!"}])
def test_a_client_that_cannot_be_made(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=r"No S3 client .*s3://bucket .*check endpoint_url"):
        BotoDriver("bucket", **options).run(put("k", b""))


def test_the_client_is_configured(make: Callable[..., BotoDriver]) -> None:
    driver = make(max_concurrency=7, addressing_style="path", region_name="eu-west-1")
    client, pool = made_by(driver).client, made_by(driver).pool
    config = client.meta.config
    assert config.max_pool_connections == 7 + PARALLEL  # type: ignore[attr-defined]
    assert (config.connect_timeout, config.read_timeout) == (5, 30)  # type: ignore[attr-defined]
    assert config.retries == {"mode": "standard", "total_max_attempts": 5}  # type: ignore[attr-defined]
    assert config.s3 == {"addressing_style": "path"}  # type: ignore[attr-defined]
    assert config.request_checksum_calculation == "when_required"  # type: ignore[attr-defined]
    assert config.response_checksum_validation == "when_required"  # type: ignore[attr-defined]
    assert config.tcp_keepalive  # type: ignore[attr-defined]
    assert (client.meta.region_name, pool._max_workers) == ("eu-west-1", 7)


def test_checksums_are_left_to_botocore_on_aws(make: Callable[..., BotoDriver]) -> None:
    client = made_by(make(endpoint_url=None, region_name="eu-west-1")).client
    assert client.meta.config.request_checksum_calculation == "when_supported"  # type: ignore[attr-defined]
    assert client.meta.endpoint_url == "https://s3.eu-west-1.amazonaws.com"


def test_the_client_is_made_on_first_use_and_not_with_the_default_session(
    make: Callable[..., BotoDriver], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)  # other tests may have made one
    driver = make()
    assert driver._resources is None
    driver.run(ask(CreateBucket()))
    assert driver._resources is not None
    assert boto3.DEFAULT_SESSION is None


def test_a_closed_driver_can_be_used_again(own_driver: BotoDriver) -> None:
    own_driver.run(put_all([("a", b"1"), ("b", b"2")]))
    before = made_by(own_driver)
    own_driver.close()
    own_driver.close()
    assert own_driver._resources is None
    assert own_driver.run(each([get(key, lambda body: body.data) for key in "ab"])) == [b"1", b"2"]
    assert made_by(own_driver).client is not before.client


def test_a_caller_s_client_is_not_closed(driver: BotoDriver, client: S3Client, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    monkeypatch.setattr(client, "close", lambda: closed.append("client"))
    driver.run(put("k", b"1"))
    driver.close()
    assert driver.run(get("k", lambda body: body.data)) == b"1"
    driver.close()
    assert not closed


def test_close_stops_the_threads_and_closes_the_client(
    make: Callable[..., BotoDriver], monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []
    driver = make()
    client, pool = made_by(driver).client, made_by(driver).pool
    monkeypatch.setattr(client, "close", lambda: closed.append("client"))
    driver.close()
    assert closed == ["client"]
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool.submit(print)


def test_client_and_pool_are_made_once(own_driver: BotoDriver) -> None:
    own_driver.close()
    barrier = threading.Barrier(8)
    made = []

    def use() -> None:
        barrier.wait()
        made.append(made_by(own_driver))

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(it) for it in made}) == 1


@contextlib.contextmanager
def held_elsewhere(*locks: ForkSafeLock) -> Iterator[None]:
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with contextlib.ExitStack() as stack:
            for lock in locks:
                stack.enter_context(lock)
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    try:
        yield
    finally:
        done.set()
        thread.join()


def in_a_forked_child(act: Callable[[], bool]) -> bool:
    """Tell whether `act` is true in a forked child."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork while there are threads, from Python 3.12 on
        child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    status = 1
    try:
        signal.alarm(15)  # a deadlock is to be a failure
        status = 0 if act() else 1
    finally:
        os._exit(status)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_makes_its_own(own_driver: BotoDriver) -> None:
    values = [b"1", b"2", b"3"]
    own_driver.run(put_all([("0", b"1"), ("1", b"2"), ("2", b"3")]))
    before = made_by(own_driver)

    def read() -> list[bytes | None]:
        return own_driver.run(each([get(str(number), lambda body: body.data) for number in range(3)]))

    def in_child() -> bool:
        right = (
            read() == values
            and made_by(own_driver).client is not before.client
            and made_by(own_driver).pool is not before.pool
        )
        own_driver.close()
        return right and read() == values

    with held_elsewhere(own_driver._lock, own_driver.ledger._lock):
        assert in_a_forked_child(in_child)
    assert made_by(own_driver) == before
    assert read() == values


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_leaves_its_parent_s_client_alone(own_driver: BotoDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    client = made_by(own_driver).client

    def in_child() -> bool:
        monkeypatch.setattr(client, "close", lambda: closed.append("client"))
        own_driver.close()
        return not closed

    assert in_a_forked_child(in_child)


# --- Running plans ----------------------------------------------------------------------------------------------------


def test_a_single_request_stays_on_the_thread_of_the_caller() -> None:
    threads = []
    client = FromFunction(lambda _: threads.append(threading.current_thread()))
    driver = BotoDriver("bucket", client=client)  # type: ignore[arg-type]
    driver.run(put("a", b""))
    assert threads == [threading.current_thread()]
    driver.run(put_all([("a", b""), ("b", b"")]))
    assert threading.current_thread() not in threads[1:]
    driver.close()


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Interrupts raise KeyboardInterrupt, also where the tests run in the background and interrupts are ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_cancels_what_is_queued_and_waits_for_what_is_running(interruptible: None) -> None:
    begun: list[str] = []
    landed: list[str] = []
    closed: list[int] = []

    def act(key: str) -> None:
        begun.append(key)
        both.wait()
        if key == "a":
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.5)
        landed.append(key)

    def plan() -> Plan[None]:
        try:
            yield from put_all([(key, b"") for key in "abcdef"])
        finally:
            closed.append(len(landed))

    both = threading.Barrier(2, timeout=5)
    driver = BotoDriver("bucket", client=FromFunction(act), max_concurrency=2)  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        driver.run(plan())
    assert sorted(begun) == sorted(landed) == ["a", "b"]
    assert closed == [2]
    assert driver.stats().operations == 1
    driver.close()


def test_an_interrupt_while_requests_are_being_submitted_loses_none(monkeypatch: pytest.MonkeyPatch) -> None:
    landed: list[str] = []

    def act(key: str) -> None:
        time.sleep(0.1)
        landed.append(key)

    driver = BotoDriver("bucket", client=FromFunction(act))  # type: ignore[arg-type]
    pool = made_by(driver).pool
    submit = pool.submit

    def interrupted(*arguments: Any) -> None:
        submit(*arguments)
        time.sleep(0.02)
        raise KeyboardInterrupt

    monkeypatch.setattr(pool, "submit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        driver.run(put_all([("a", b""), ("b", b"")]))
    assert landed == ["a"]
    driver.close()


def test_an_exit_in_a_worker_reaches_the_caller() -> None:
    def decode(_: Body) -> None:
        raise SystemExit

    driver = BotoDriver("bucket", client=Scripted(answer_of(b"1"), answer_of(b"2")))  # type: ignore[arg-type]
    with pytest.raises(SystemExit):
        driver.run(each([get("a", decode), get("b", as_read)]))
    driver.close()


def test_a_run_within_a_run_does_not_wait_for_itself() -> None:
    driver = BotoDriver("bucket", client=Scripted(answer_of(b"1"), answer_of(b"2")), max_concurrency=1)  # type: ignore[arg-type]
    assert driver.run(get("a", lambda _: driver.run(get("b", lambda body: body.data)))) == b"2"


def test_many_threads_may_run_plans(driver: BotoDriver) -> None:
    def work(name: str) -> None:
        driver.run(put_all([(f"{name}/{number}", name.encode()) for number in range(3)]))

    before = driver.stats()
    threads = [threading.Thread(target=work, args=(str(number),)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(driver.run(list_all(""))[0]) == 24
    assert (driver.stats() - before).puts == 24


# --- Counting and logging ---------------------------------------------------------------------------------------------


def test_nobody_listens() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        config = Config(retries={"total_max_attempts": 1})
        client = boto3.session.Session().client("s3", endpoint_url=url, config=config)
        with contextlib.closing(client), pytest.raises(StorageError, match="could not be reached"):
            BotoDriver("bucket", client=client).run(get("k", as_read))


def test_requests_of_all_threads_are_bounded_together() -> None:
    """Single requests too, which are made on the threads of their callers."""
    running: set[str] = set()
    most = [0]

    def act(key: str) -> None:
        running.add(key)
        time.sleep(0.01)
        most[0] = max(most[0], len(running))
        running.discard(key)

    driver = BotoDriver("bucket", client=FromFunction(act), max_concurrency=3)  # type: ignore[arg-type]

    def work(number: int) -> None:
        driver.run(put(f"{number}", b""))
        driver.run(put_all([(f"{number}/{it}", b"") for it in range(3)]))

    with ThreadPoolExecutor(12) as threads:
        assert len(list(threads.map(work, range(24)))) == 24
    driver.close()
    assert most == [3]


def test_a_driver_is_closed_while_other_threads_use_it(own_driver: BotoDriver) -> None:
    """They go on with a new client; requests under way are waited for."""
    stop = threading.Event()

    def work(name: str) -> int:
        count = 0
        while not stop.is_set():
            driver = own_driver
            driver.run(put_all([(f"{name}/{it}", b"1") for it in range(3)]))
            assert driver.run(get(f"{name}/0", lambda body: body.data)) == b"1"
            count += 1
        return count

    with ThreadPoolExecutor(4) as threads:
        working = [threads.submit(work, f"{number}") for number in range(4)]
        for _ in range(5):
            time.sleep(0.05)
            own_driver.close()
        stop.set()
        assert all(it.result() for it in working)

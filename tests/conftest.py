"""What all tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from langgraph.checkpoint.s3 import S3Saver
from langgraph.checkpoint.s3.aio import AsyncS3Saver
from tests.support.rgw import rgw_server
from tests.support.savers import STORES, Store, moto_server

# The suite searches the same examples every time; the campaign goes on to new ones.
settings.register_profile("suite", derandomize=True, deadline=None)
settings.register_profile("campaign", derandomize=False, deadline=None, max_examples=2_000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))


@pytest.fixture(scope="session", autouse=True)
def aws_environment() -> Iterator[None]:
    """No test can find the credentials or the configuration of whoever runs it."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("AWS_CONFIG_FILE", os.devnull)
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let another server than moto's be asked for."""
    parser.addoption("--s3", choices=["moto", "rgw"], default="moto", help="run only what needs a server, on this one")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """On RADOS Gateway run only what needs a server."""
    if config.getoption("--s3") == "moto":
        return
    wanted = [item for item in items if _needs_server(item)]
    config.hook.pytest_deselected(items=[item for item in items if item not in wanted])
    items[:] = wanted
    for item in items:
        if mark := item.get_closest_marker("moto_only"):
            item.add_marker(pytest.mark.skip(*mark.args))


def _needs_server(item: pytest.Item) -> bool:
    names, parameters = getattr(item, "fixturenames", ()), getattr(item, "callspec", None)
    if "store" in names and parameters is not None and "store" in parameters.params:
        return bool(parameters.params["store"] != "fake")
    return "s3_endpoint" in names or item.get_closest_marker("rgw") is not None


@pytest.fixture(scope="session")
def moto_endpoint(aws_environment: None) -> Iterator[str]:
    """The address of moto's server."""
    with moto_server() as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def s3_endpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the server that was asked for."""
    if request.config.getoption("--s3") == "moto":
        yield request.getfixturevalue("moto_endpoint")
        return
    with rgw_server(tmp_path_factory.mktemp("rgw")) as endpoint:
        yield endpoint


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """An empty bucket, on the fake and on a server over either driver, on which savers can be made."""
    store = STORES[request.param](lambda: request.getfixturevalue("s3_endpoint"))
    yield store
    store.close()


@pytest.fixture
def saver(store: Store) -> S3Saver | AsyncS3Saver:
    """A saver on an empty bucket."""
    return store.saver()

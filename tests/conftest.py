"""What all tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from langgraph.checkpoint.s3 import S3Saver
from langgraph.checkpoint.s3.aio import AsyncS3Saver
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


@pytest.fixture(scope="session")
def moto_endpoint(aws_environment: None) -> Iterator[str]:
    """The address of moto's server."""
    with moto_server() as endpoint:
        yield endpoint


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """An empty bucket, on the fake and on moto over either driver, on which savers can be made."""
    store = STORES[request.param](lambda: request.getfixturevalue("moto_endpoint"))
    yield store
    store.close()


@pytest.fixture
def saver(store: Store) -> S3Saver | AsyncS3Saver:
    """A saver on an empty bucket."""
    return store.saver()

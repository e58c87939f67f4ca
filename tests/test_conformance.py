"""LangGraph's own conformance suite, over the async methods and over the sync ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from importlib import import_module
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, ChannelVersions, Checkpoint, CheckpointMetadata
from langgraph.checkpoint.base import CheckpointTuple as Tuple
from langgraph.checkpoint.conformance import validate
from langgraph.checkpoint.conformance.capabilities import Capability
from langgraph.checkpoint.conformance.initializer import RegisteredCheckpointer

from langgraph.checkpoint.s3 import S3Saver
from langgraph.checkpoint.s3.aio import AsyncS3Saver
from tests.support.savers import Store

SPEC = "langgraph.checkpoint.conformance.spec"

TESTS = {
    "put": 17,
    "put_writes": 10,
    "get_tuple": 10,
    "list": 16,
    "delete_thread": 5,
    "delete_for_runs": 7,
    "copy_thread": 8,
    "prune": 8,
}
"""How many tests langgraph-checkpoint-conformance 0.0.2 has: one that is skipped is not passed."""


class SyncMethods(BaseCheckpointSaver[str]):
    """Gives the suite, which only calls async methods, the sync ones of a saver."""

    def __init__(self, saver: S3Saver | AsyncS3Saver) -> None:
        super().__init__(serde=saver.serde)
        self.saver = saver

    async def aget_tuple(self, config: RunnableConfig) -> Tuple | None:
        return self.saver.get_tuple(config)

    async def alist(self, config: RunnableConfig | None, **options: Any) -> AsyncIterator[Tuple]:
        for it in self.saver.list(config, **options):
            yield it

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return self.saver.put(config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        self.saver.put_writes(config, writes, task_id, task_path)

    async def adelete_thread(self, thread_id: str) -> None:
        self.saver.delete_thread(thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        self.saver.delete_for_runs(run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        self.saver.copy_thread(source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        self.saver.prune(thread_ids, strategy=strategy)

    def get_next_version(self, current: str | None, channel: None) -> str:
        return self.saver.get_next_version(current, channel)


def check(make: Callable[[], BaseCheckpointSaver[str]]) -> None:
    async def savers() -> AsyncGenerator[BaseCheckpointSaver[str], None]:
        yield make()

    report = asyncio.run(validate(RegisteredCheckpointer("S3Saver", savers)))
    assert {name: result.failures for name, result in report.results.items() if result.failures} == {}
    assert {name: result.tests_passed for name, result in report.results.items() if result.detected} == TESTS
    assert set(TESTS) == {it.value for it in Capability}


def test_the_suite_passes(store: Store) -> None:
    check(store.saver)


def test_the_suite_passes_over_the_sync_methods(store: Store) -> None:
    check(lambda: SyncMethods(store.saver()))


def test_the_suite_runs_every_test_that_it_has() -> None:
    found = {name: len(getattr(import_module(f"{SPEC}.test_{name}"), f"ALL_{name.upper()}_TESTS")) for name in TESTS}
    assert found == TESTS

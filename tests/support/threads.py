"""Threads made by direct calls: checkpoints as LangGraph's loop would store them, but with a clock of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, Checkpoint, CheckpointTuple

from langgraph.checkpoint.s3 import S3Saver
from langgraph.checkpoint.s3._stretch import Packing
from tests.support.fake_s3 import FakeDriver, FakeS3

S = TypeVar("S", bound="Any")

EAGER = Packing(short=1, long=3, longest=5, short_share=100, long_share=100)
"""Packs each checkpoint of a delta chain as soon as it can, and three together, whatever that takes."""


def eager(saver: S) -> S:
    """A saver that packs stretches of delta chains long before there is a need to."""
    saver._settings = replace(saver._settings, packing=EAGER)
    return saver


def saver_on(driver: FakeDriver | FakeS3, **options: Any) -> S3Saver:
    """A saver on the in-memory S3, with nothing remembered."""
    saver = S3Saver("bucket", **{"prefix": "prefix", **options})
    saver._driver = driver if isinstance(driver, FakeDriver) else FakeDriver(driver)  # type: ignore[assignment]
    return saver


def uuid_of(number: int) -> str:
    """The number-th id: a canonical UUID; they sort as their numbers do."""
    return f"1f000000-0000-6000-8000-{number:012x}"


def config_for(thread: str, checkpoint_id: str | None = None, ns: str = "") -> RunnableConfig:
    """A config as LangGraph passes it."""
    configurable = {"thread_id": thread, "checkpoint_ns": ns}
    return {"configurable": configurable if checkpoint_id is None else {**configurable, "checkpoint_id": checkpoint_id}}


class Script:
    """Stores checkpoints one after the other in a thread: each changes some channels and inherits the others."""

    def __init__(self, saver: BaseCheckpointSaver[str], thread: str = "thread", ns: str = "", first: int = 1) -> None:
        self.saver, self.thread, self.ns, self.number = saver, thread, ns, first
        self.values: dict[str, Any] = {}
        self.versions: dict[str, str] = {}
        self.head: str | None = None

    def go_on(self, found: CheckpointTuple) -> None:
        """Go on from a checkpoint that was read."""
        self.head = found.checkpoint["id"]
        self.values = dict(found.checkpoint["channel_values"])
        self.versions = {name: str(it) for name, it in found.checkpoint["channel_versions"].items()}

    @property
    def config(self) -> RunnableConfig:
        """Names the checkpoint stored last."""
        return config_for(self.thread, self.head, self.ns)

    def put(
        self,
        values: Mapping[str, Any],
        *,
        id: str | None = None,
        touch: tuple[str, ...] = (),
        hold: bool = True,
        **metadata: Any,
    ) -> RunnableConfig:
        """Store the next checkpoint.

        `touch` names channels that get a new version and no value (as a delta channel does). Without `hold`
        the inherited values are not passed along.
        """
        checkpoint_id = id or uuid_of(self.number)
        new = dict.fromkeys([*values, *touch], f"{self.number:032}.{checkpoint_id[-4:]}")
        self.values = {name: it for name, it in self.values.items() if name not in touch} | dict(values)
        self.versions |= new
        checkpoint = Checkpoint(
            v=4,
            id=checkpoint_id,
            ts="2026-01-01T00:00:00+00:00",
            channel_values=dict(self.values if hold else values),
            channel_versions=dict(self.versions),
            versions_seen={},
            updated_channels=None,
        )
        described: Any = {"source": "loop", "step": self.number, **metadata}
        stored = self.saver.put(self.config, checkpoint, described, dict(new))
        self.head = checkpoint_id
        self.number += 1
        return stored

    def write(self, channel: str, value: Any, task: str = "task", path: str = "") -> None:
        """Store a write on the checkpoint stored last."""
        self.saver.put_writes(self.config, [(channel, value)], task, path)

    def delta_step(self, channel: str, value: Any, depth: int, snapshot: Any = None) -> RunnableConfig:
        """One super-step of a delta channel: a write, then the checkpoint that has consumed it."""
        self.write(channel, value)
        if snapshot is not None:
            return self.put({channel: snapshot})
        return self.put({}, touch=(channel,), counters_since_delta_snapshot={channel: [depth, depth]})


def noise(size: int, seed: int = 0) -> bytes:
    """Bytes that do not compress."""
    import random

    return random.Random(seed).randbytes(size)

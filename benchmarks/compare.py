"""Whether a saver's answers are those of InMemorySaver, LangGraph's own, after the same calls.

Told leniently: savers may add to the metadata, and may order pending writes as they like.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langgraph.checkpoint.base import CheckpointTuple


def tuple_difference(expected: CheckpointTuple | None, got: CheckpointTuple | None) -> str | None:
    """What is wrong with a checkpoint; None if nothing is."""
    if expected is None or got is None:
        return None if expected is got else "finds nothing" if got is None else "finds what is not there"
    if id_of(got.config) != id_of(expected.config):
        return "another checkpoint"
    for part in ("channel_values", "channel_versions", "versions_seen"):
        if not same(got.checkpoint.get(part), expected.checkpoint.get(part)):
            return f"{part} differ"
    if id_of(got.parent_config) != id_of(expected.parent_config):
        return "the parent is lost" if not id_of(got.parent_config) else "another parent"
    metadata: Mapping[str, Any] = got.metadata or {}
    if any(not same(metadata.get(name), value) for name, value in expected.metadata.items()):
        return "metadata differ"
    if sorted(map(repr, got.pending_writes or [])) != sorted(map(repr, expected.pending_writes or [])):
        return "pending writes are lost" if not got.pending_writes else "pending writes differ"
    return None


def list_difference(expected: Sequence[CheckpointTuple], got: Sequence[CheckpointTuple]) -> str | None:
    """What is wrong with a listing."""
    if len(expected) != len(got):
        return f"{len(got)} checkpoints in place of {len(expected)}"
    if [id_of(it.config) for it in expected] != [id_of(it.config) for it in got]:
        return "other checkpoints, or in another order"
    return next(filter(None, map(tuple_difference, expected, got)), None)


def history_difference(expected: Mapping[str, Any], got: Mapping[str, Any]) -> str | None:
    """What is wrong with a delta history."""
    for name, history in expected.items():
        writes, others = history["writes"], got.get(name, {}).get("writes", [])
        if len(writes) != len(others):
            return f"{len(others)} writes in place of {len(writes)}"
        if [tuple(it) for it in writes] != [tuple(it) for it in others]:
            return "writes differ"
        if not same(history.get("seed"), got[name].get("seed")):
            return "the seed differs"
    return None


def state_difference(expected: Mapping[str, Any], got: Mapping[str, Any]) -> str | None:
    """What is wrong with a graph's final state."""
    return next((f"{name} differs" for name, value in expected.items() if not same(value, got.get(name))), None)


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal and of one type."""
    return type(one) is type(other) and bool(one == other)


def id_of(config: Mapping[str, Any] | None) -> str | None:
    """The checkpoint that a config names."""
    configurable: Mapping[str, Any] = (config or {}).get("configurable", {})
    return configurable.get("checkpoint_id")

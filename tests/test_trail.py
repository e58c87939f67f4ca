"""What is remembered of delta chains, and when a stretch of one is due to be packed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from langgraph.checkpoint.s3._keys import namespace
from langgraph.checkpoint.s3._objects import Link, WriteBatch
from langgraph.checkpoint.s3._stretch import Packing
from langgraph.checkpoint.s3._trail import LARGEST, LINK_BYTES, Trail
from tests.support.threads import uuid_of

NS = namespace("", "thread", "")
PACKING = Packing(short=3, long=6, longest=8)


def batch(on: str, value: bytes = b"value") -> WriteBatch:
    return WriteBatch("thread", "", on, "task", "", 1, "0", [(0, "log", ("bytes", value))])


def link(number: int, **other: Any) -> Link:
    it = uuid_of(number)
    told = {"parent": uuid_of(number - 1), "batches": {"task.r0000": batch(it)}, "sizes": {"task.r0000": 100}}
    return Link(**({"id": it, "stored": [], "blank": ["log"], **told} | other))


def due(trail: Trail, parent: int, depth: int = 100, channels: Sequence[str] = ("log",)) -> list[int]:
    links = trail.due(NS, uuid_of(parent), dict.fromkeys(channels, depth), PACKING)
    return [int(it.id[-4:], 16) for it in links]


def trail_of(*links: Link) -> Trail:
    trail = Trail()
    for it in links:
        trail.note(NS, it, leans=True)
    return trail


def test_a_stretch_is_due_when_it_is_long_enough_and_begins_behind_the_parent() -> None:
    trail = trail_of(*map(link, range(1, 4)))
    assert due(trail, 3) == []
    trail.note(NS, link(4), leans=True)
    assert due(trail, 4) == [3, 2, 1]


def test_what_is_packed_is_packed_again_only_in_a_long_stretch() -> None:
    trail = trail_of(*map(link, range(1, 5)))
    trail.packed(NS, uuid_of(3), 3)
    assert due(trail, 4) == []
    for number in (5, 6):
        trail.note(NS, link(number), leans=True)
    assert due(trail, 6) == []
    trail.note(NS, link(7), leans=True)
    assert due(trail, 7) == [6, 5, 4, 3, 2, 1]
    trail.packed(NS, uuid_of(6), 6)
    for number in range(8, 14):
        assert due(trail, number - 1) == ([] if number < 11 else list(range(number - 2, 6, -1)))
        trail.note(NS, link(number), leans=True)


def test_a_stretch_ends_before_the_value_and_is_not_endless() -> None:
    trail = trail_of(*map(link, range(1, 20)))
    assert due(trail, 19, depth=5) == [18, 17, 16]  # 15 has the value, or is the channel's first
    assert due(trail, 19, depth=4) == []
    assert due(trail, 19) == list(range(18, 10, -1))


@pytest.mark.parametrize("parent", ["by hand", uuid_of(9), None], ids=["no UUID", "newer", "none"])
def test_a_stretch_ends_where_a_listing_does_not_show_what_follows(parent: str | None) -> None:
    trail = trail_of(link(1), link(2, parent=parent), *map(link, range(3, 6)))
    if parent is not None:
        trail.note(NS, link(1, id=parent), leans=True)
    assert due(trail, 5) == [4, 3, 2]


def test_a_stretch_ends_where_nothing_is_known() -> None:
    assert due(trail_of(*map(link, (1, 2, 4, 5, 6))), 6) == []
    assert due(Trail(), 6) == []


def test_a_link_that_came_from_a_pack_is_known_of_some_channels_only() -> None:
    trail = trail_of(*(link(number, channels=frozenset({"log", "other"})) for number in range(1, 5)))
    assert due(trail, 4, channels=["log"]) == [3, 2, 1]
    assert due(trail, 4, channels=["log", "new"]) == []


def test_writes_may_come_before_their_checkpoint_and_after() -> None:
    trail = Trail()
    for number in range(1, 5):
        trail.wrote(NS, uuid_of(number), "early.r0000", batch(uuid_of(number)), 50)
        trail.note(NS, link(number), leans=True)
        trail.wrote(NS, uuid_of(number), "late.r0000", batch(uuid_of(number)), 70)
    (newest, *_) = trail.due(NS, uuid_of(4), {"log": 9}, PACKING)
    assert newest.sizes == {"early.r0000": 50, "task.r0000": 100, "late.r0000": 70}
    assert newest.batches.keys() == newest.sizes.keys()


def test_large_writes_are_known_by_their_size_only() -> None:
    trail = trail_of(*map(link, range(1, 5)))
    trail.wrote(NS, uuid_of(3), "large.r0000", batch(uuid_of(3)), LARGEST + 1)
    (newest, *_) = trail.due(NS, uuid_of(4), {"log": 9}, PACKING)
    assert (newest.sizes["large.r0000"], "large.r0000" in newest.batches) == (LARGEST + 1, False)


def test_memory_is_bounded_and_what_never_leans_takes_none() -> None:
    trail = Trail(limit=4 * (LINK_BYTES + 100))
    for number in range(1, 9):
        trail.note(NS, link(number), leans=True)
    assert due(trail, 8) == [7, 6, 5]
    for number in range(10, 13):
        trail.wrote(NS, uuid_of(number), "task.r0000", batch(uuid_of(number)), LARGEST)
        trail.note(NS, link(number), leans=False)
        trail.wrote(NS, uuid_of(number), "other.r0000", batch(uuid_of(number)), LARGEST)
    assert trail.bytes <= 4 * (LINK_BYTES + 100)
    trail.forget(NS.base[:-2])
    assert trail.bytes == 0

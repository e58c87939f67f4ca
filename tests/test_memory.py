"""What a saver remembers: a stop of a run is announced exactly once, whenever it is told of."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import pytest

from langgraph.checkpoint.s3._keys import namespace
from langgraph.checkpoint.s3._memory import Memory
from langgraph.checkpoint.s3._objects import CheckpointObject
from tests.support.threads import uuid_of

NS = namespace("prefix/", "thread", "")
BEFORE, IT = (
    CheckpointObject("thread", "", uuid_of(number), None, ("null", b""), ("null", b""), {}) for number in (1, 2)
)


@pytest.mark.parametrize("moment", range(5))
def test_a_stop_is_announced_once_whenever_it_is_told(moment: int) -> None:
    """A put remembers its checkpoint and then withholds its manifest; another thread's write comes at any moment.

    With durability "async" that may be while the checkpoint before is being put.
    """
    memory, announced = Memory(), list[str]()

    def stop() -> None:
        if memory.announce(NS, IT.id) is not None:
            announced.append("by the write")

    def put(it: CheckpointObject) -> Iterator[None]:
        memory.remember(NS, it)
        yield
        if memory.withhold(NS, it, announced=False):
            announced.append(f"by the put of {it.id}")
        yield

    for at, _ in enumerate(chain([None], put(BEFORE), put(IT))):
        if at == moment:
            stop()
    assert announced == ["by the write" if moment == 4 else f"by the put of {IT.id}"]
    assert memory.announce(NS, IT.id) is None


def test_what_has_its_manifest_is_not_announced_again() -> None:
    memory = Memory()
    memory.remember(NS, IT)
    assert not memory.withhold(NS, IT, announced=True)
    assert memory.announce(NS, IT.id) is None

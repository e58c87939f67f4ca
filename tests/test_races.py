"""Operations of several processes on one thread, interleaved request by request in every order.

Each operation has a saver of its own that has read the thread before. Afterwards a new saver compares
whatever can be seen with what was put, worked out by hand: nothing is lost, and nothing is silently empty.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from datetime import timedelta
from typing import Any, Literal, TypeAlias

import pytest
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.types import INTERRUPT

from langgraph.checkpoint.s3 import CheckpointPruned, Contended, MissingObject, S3Saver, S3SaverError
from langgraph.checkpoint.s3.retention import RetentionPolicy
from tests.support.fake_s3 import FakeDriver, FakeS3, Order
from tests.support.interleave import Outcome, check_interleavings
from tests.support.threads import Script, config_for, eager, noise, saver_on, uuid_of

Kind: TypeAlias = Literal["large", "delta", "both", "packed"]
Running: TypeAlias = Generator[Any, Any, Any]
Operation: TypeAlias = Callable[[S3Saver], Running]

OPTIONS: dict[str, Any] = {"inline_threshold": 100}
SAMPLE = int(os.environ.get("RACES", "20"))
"""Schedules to draw where there are more than the suite has time for."""
CAMPAIGN = int(os.environ.get("RACES_CAMPAIGN", "3000"))

HEAD = 4
NEW, OTHER = 100, 101
LARGE, LARGER = noise(300, 1), noise(400, 2)
THREAD = config_for("thread")

ORDERS = pytest.mark.parametrize("order", ["forward", "backward"])
KINDS = pytest.mark.parametrize("kind", ["large", "delta", "both", "packed"])
"""What a checkpoint leans on: large values, ancestors, both; ancestors of which packs lie there, and are made."""
FEWER_KINDS = pytest.mark.parametrize("kind", ["large", "delta", "both"])
PAGES = pytest.mark.parametrize("page_size", [1, 1000])


# -- the thread --------------------------------------------------------------------------------------


def values_of(number: int, kind: Kind, parent: int | None = None) -> dict[str, Any]:
    """What a checkpoint holds: `large` since the first one, `larger` since the third."""
    values: dict[str, Any] = {"n": number}
    base = parent or number
    if kind in ("large", "both"):
        values |= {"large": LARGE} | ({"larger": LARGER} if base >= 3 else {})
    if kind != "large" and number == 1:
        values["log"] = ["seed"]
    return values


def log_of(number: int, parent: int | None = None) -> list[Any]:
    """The delta channel's value: each checkpoint before has added its number. The head has added nothing yet."""
    return ["seed", *range(1, min(parent or number - 1, HEAD - 1) + 1)]


def script_at(saver: Any, number: int, kind: Kind) -> Script:
    """Goes on from one of the thread's checkpoints."""
    script = Script(saver, first=number + 1)
    if number:
        script.head = uuid_of(number)
        script.values = {name: value for name, value in values_of(number, kind).items() if name != "log"}
        script.versions = {"n": version(number)}
        if kind in ("large", "both"):
            script.versions |= {"large": version(1)} | ({"larger": version(3)} if number >= 3 else {})
        if kind != "large":
            script.versions["log"] = version(number)
    return script


def version(number: int) -> str:
    return f"{number:032}.{uuid_of(number)[-4:]}"


def counters(kind: Kind, depth: int) -> dict[str, Any]:
    return {} if kind == "large" else {"counters_since_delta_snapshot": {"log": [depth, depth]}}


def saver_for(s3: FakeS3, kind: Kind) -> S3Saver:
    saver = saver_on(s3, **OPTIONS)
    return eager(saver) if kind == "packed" else saver


def bucket(kind: Kind, run_from: int = HEAD + 1) -> FakeS3:
    """Four checkpoints. Those from `run_from` on belong to the run "run"."""
    s3 = FakeS3()
    saver = saver_for(s3, kind)
    for number in range(1, HEAD + 1):
        script = script_at(saver, number - 1, kind)
        values: dict[str, Any] = {"n": number}
        if number == 1:
            values = values_of(1, kind)
        elif number == 3 and kind in ("large", "both"):
            values["larger"] = LARGER
        delta = kind != "large" and number > 1
        if delta:
            script.write("log", number - 1)
        metadata: dict[str, Any] = {"run_id": "run"} if number >= run_from else {}
        if delta:
            metadata |= counters(kind, number - 1)
        _ = script.put(values, touch=("log",) if delta else (), **metadata)
    script = script_at(saver, HEAD, kind)
    script.write("n", "pending")
    return s3


def arguments(number: int, parent: int, kind: Kind, *, hold: bool = True, extra: Any = None) -> Any:
    """What LangGraph would pass to `put` for a child of a checkpoint."""
    caught: list[Any] = []

    class Catcher:
        def put(self, *given: Any) -> None:
            caught.append(given)

    script = script_at(Catcher(), parent, kind)
    touch = () if kind == "large" else ("log",)
    _ = script.put({"n": number, **(extra or {})}, id=uuid_of(number), touch=touch, hold=hold, **counters(kind, parent))
    return caught[0]


def putting(number: int, parent: int, kind: Kind, *, hold: bool = True, extra: Any = None) -> Operation:
    return lambda saver: saver._put_plan(*arguments(number, parent, kind, hold=hold, extra=extra))


def pruning(saver: S3Saver) -> Running:
    return saver._prune_plan(["thread"], "keep_latest")


def retaining(**policy: Any) -> Operation:
    """Applying a policy to the thread. By the clock of the savers, all that lies in the bucket is years old."""

    def plan(saver: S3Saver) -> Running:
        given = RetentionPolicy(min_age=timedelta(0), **policy)
        work = saver._application(given, ["thread"], False, None, None, None)
        yield from work.next_plan()
        return work.report

    return plan


def writing(number: int, *writes: tuple[str, Any], task: str = "late") -> Operation:
    return lambda saver: saver._put_writes_plan(config_for("thread", uuid_of(number)), writes, task, "")


def getting(number: int | None) -> Operation:
    return lambda saver: saver._get_plan(THREAD if number is None else config_for("thread", uuid_of(number)))


def reading_log(number: int | None) -> Operation:
    config = THREAD if number is None else config_for("thread", uuid_of(number))
    return lambda saver: saver._delta_plan(config, ["log"])


def listing(saver: S3Saver) -> Running:
    walk = saver._walk(THREAD, None, None, None)
    found: list[CheckpointTuple] = []
    while not walk.done:
        found += yield from saver._page_plan(walk)
    return found


def then(*operations: Operation) -> Operation:
    """One process that does several things in turn."""

    def plan(saver: S3Saver) -> Running:
        results = []
        for operation in operations:
            results.append((yield from operation(saver)))
        return results

    return plan


# -- checks ------------------------------------------------------------------------------------------


def number_of(it: CheckpointTuple) -> int:
    return int(it.config["configurable"]["checkpoint_id"][-12:], 16)


class Truth:
    """What each checkpoint has to read as, by its number."""

    def __init__(self, kind: Kind) -> None:
        self.kind: Kind = kind
        self.parents: dict[int, int | None] = {n: n - 1 or None for n in range(1, HEAD + 1)}
        self.extra: dict[int, dict[str, Any]] = {}

    def put(self, number: int, parent: int, extra: dict[str, Any] | None = None) -> Truth:
        self.parents[number] = parent
        self.extra[number] = extra or {}
        return self

    def check(self, it: CheckpointTuple) -> None:
        number = number_of(it)
        parent = self.parents[number]
        assert it.checkpoint["channel_values"] == values_of(number, self.kind, parent if number > HEAD else None) | (
            self.extra.get(number, {})
        )
        named = it.parent_config["configurable"]["checkpoint_id"] if it.parent_config else None
        assert named == (uuid_of(parent) if parent else None)

    def check_log(self, number: int, history: Any) -> None:
        if number == 1:
            return
        history = history["log"]
        expected = log_of(number, self.parents[number])
        assert [*history["seed"], *(value for _, _, value in history["writes"])] == expected

    def look(self, s3: FakeS3, thread: str = "thread") -> list[int]:
        """Compare all that a new saver sees; returns the checkpoints' numbers, newest first."""
        saver = saver_on(s3, **OPTIONS)
        found = list(saver.list(config_for(thread)))
        numbers = [number_of(it) for it in found]
        assert numbers == sorted(numbers, reverse=True)
        for it in found:
            self.check(it)
            if self.kind != "large":
                self.look_at_log(saver, it, it is found[0], numbers)
            exact = saver.get_tuple(it.config)
            assert exact == it
        latest = saver.get_tuple(config_for(thread))
        assert latest == (found[0] if found else None)
        return numbers

    def look_at_log(self, saver: S3Saver, it: CheckpointTuple, is_head: bool, numbers: Sequence[int]) -> None:
        number = number_of(it)
        try:
            history = saver.get_delta_channel_history(config=it.config, channels=["log"])
        except MissingObject:
            assert not is_head
            assert self.parents[number] not in numbers
        else:
            self.check_log(number, history)


def race(
    truth: Truth,
    check: Callable[[Outcome, list[int]], None],
    *operations: Operation,
    start: FakeS3 | None = None,
    order: Order = "forward",
    limit: int | None = SAMPLE,
    page_size: int = 1000,
    know: bool = True,
) -> int:
    """Run operations in every order, or in `limit` of them, each with a saver that has read the thread."""
    template = start or bucket(truth.kind)

    def make() -> Any:
        s3 = template.copy()
        savers = [saver_for(s3, truth.kind) for _ in operations]
        for saver in savers if know else []:
            for number in range(1, HEAD + 1):
                _ = saver.get_tuple(config_for("thread", uuid_of(number)))
        s3.page_size = page_size
        return s3, [operation(saver) for operation, saver in zip(operations, savers, strict=True)]

    def look(outcome: Outcome) -> None:
        outcome.s3.page_size = 1000
        check(outcome, truth.look(outcome.s3))

    return check_interleavings(make, look, order=order, limit=limit)


def none_failed(results: Sequence[Any]) -> None:
    for result in results:
        assert not isinstance(result, Exception), result


def stored(outcome: Outcome, index: int, number: int, numbers: Sequence[int]) -> bool:
    """An acknowledged put can be seen, a refused one cannot."""
    result = outcome.results[index]
    if isinstance(result, Exception):
        assert isinstance(result, CheckpointPruned), result
        assert number not in numbers
        return False
    assert result == config_for("thread", uuid_of(number))
    assert number in numbers
    return True


# -- puts and deletions ------------------------------------------------------------------------------


@ORDERS
@KINDS
def test_two_runs_from_one_head(kind: Kind, order: Order) -> None:
    truth = Truth(kind).put(NEW, HEAD).put(OTHER, HEAD)

    def check(outcome: Outcome, numbers: list[int]) -> None:
        none_failed(outcome.results)
        assert numbers == [OTHER, NEW, 4, 3, 2, 1]

    assert race(truth, check, putting(NEW, HEAD, kind), putting(OTHER, HEAD, kind), order=order, limit=None) > 5


@ORDERS
@KINDS
def test_the_same_put_twice(kind: Kind, order: Order) -> None:
    """As when a caller gave up too early and repeats it."""
    truth = Truth(kind).put(NEW, HEAD, {"own": LARGER})

    def check(outcome: Outcome, numbers: list[int]) -> None:
        none_failed(outcome.results)
        assert numbers == [NEW, 4, 3, 2, 1]

    put = putting(NEW, HEAD, kind, extra={"own": LARGER})
    assert race(truth, check, put, put, order=order, limit=SAMPLE) > 5


def put_and_prune(kind: Kind, parent: int, order: Order, page_size: int, limit: int | None) -> None:
    """The head's child always comes through. A fork may come too late, if it leans on a delta chain."""
    seen = set()

    def check(outcome: Outcome, numbers: list[int]) -> None:
        none_failed(outcome.results[1:])
        came = stored(outcome, 0, NEW, numbers)
        seen.add(came)
        assert came or (parent < HEAD and kind != "large")
        assert numbers[0] == (NEW if came else HEAD)
        assert set(numbers) in ({NEW}, {NEW, HEAD}, {HEAD})

    put = putting(NEW, parent, kind)
    count = race(Truth(kind).put(NEW, parent), check, put, pruning, order=order, page_size=page_size, limit=limit)
    assert count > 5
    assert True in seen


@ORDERS
@KINDS
@PAGES
@pytest.mark.parametrize("parent", [2, HEAD])
def test_put_and_prune(kind: Kind, parent: int, order: Order, page_size: int) -> None:
    limit = None if kind == "large" and page_size == 1000 and order == "forward" else SAMPLE
    put_and_prune(kind, parent, order, page_size, limit)


@pytest.mark.campaign
@ORDERS
@FEWER_KINDS
@pytest.mark.parametrize("parent", [2, HEAD])
def test_every_put_and_prune(kind: Kind, parent: int, order: Order) -> None:
    put_and_prune(kind, parent, order, 1000, None)


def put_and_retention(kind: Kind, parent: int, keep: int, order: Order, page_size: int, limit: int | None) -> None:
    """As beside a prune; of the last two, the older one goes or stays with what came between."""
    seen = set()

    def check(outcome: Outcome, numbers: list[int]) -> None:
        none_failed(outcome.results[1:])
        assert not outcome.results[1].failed, outcome.results[1].problems
        came = stored(outcome, 0, NEW, numbers)
        seen.add(came)
        assert came or (parent < HEAD - keep + 1 and kind != "large")
        there = [*range(HEAD, 0, -1)]
        least = [NEW] * came + there[: max(1, keep - 1) if came else keep]
        most = [NEW] * came + there[:keep]
        assert numbers[0] == (NEW if came else HEAD)
        assert set(numbers) <= set(most)
        assert set(numbers) >= set(least) or (keep == 1 and numbers == [NEW])

    put = putting(NEW, parent, kind)
    truth = Truth(kind).put(NEW, parent)
    count = race(truth, check, put, retaining(keep_last=keep), order=order, page_size=page_size, limit=limit)
    assert count > 5
    assert True in seen


@ORDERS
@KINDS
@PAGES
@pytest.mark.parametrize("parent", [2, HEAD])
@pytest.mark.parametrize("keep", [1, 2])
def test_put_and_retention(kind: Kind, parent: int, keep: int, order: Order, page_size: int) -> None:
    put_and_retention(kind, parent, keep, order, page_size, SAMPLE)


@pytest.mark.campaign
@ORDERS
@FEWER_KINDS
@pytest.mark.parametrize("parent", [2, HEAD])
@pytest.mark.parametrize("keep", [1, 2])
def test_every_put_and_retention(kind: Kind, parent: int, keep: int, order: Order) -> None:
    put_and_retention(kind, parent, keep, order, 1000, None)


def put_and_removal(kind: Kind, parent: int, order: Order, page_size: int, limit: int | None) -> None:
    """A thread that wakes up while it is removed for being idle is there, with its new head, or gone as a whole."""
    seen = set()

    def check(outcome: Outcome, numbers: list[int]) -> None:
        none_failed(outcome.results[1:])
        came = stored(outcome, 0, NEW, numbers)
        seen.add(came)
        if outcome.results[1].removed:
            assert numbers == [NEW] * came
        else:  # it was seen to be in use
            assert came
            assert numbers == [NEW, *range(HEAD, 0, -1)]

    def removal(saver: S3Saver) -> Running:
        saver._clock = lambda: int(start.now * 1e9)
        return retaining(thread_idle=timedelta(days=1))(saver)

    start = bucket(kind)
    start.now += 7 * 86_400
    put = putting(NEW, parent, kind)
    truth = Truth(kind).put(NEW, parent)
    count = race(truth, check, put, removal, start=start, order=order, page_size=page_size, limit=limit)
    assert count > 5
    assert True in seen


@ORDERS
@KINDS
@PAGES
@pytest.mark.parametrize("parent", [2, HEAD])
def test_put_and_the_removal_of_an_idle_thread(kind: Kind, parent: int, order: Order, page_size: int) -> None:
    put_and_removal(kind, parent, order, page_size, SAMPLE)


@pytest.mark.campaign
@ORDERS
@FEWER_KINDS
@pytest.mark.parametrize("parent", [2, HEAD])
def test_every_put_and_removal_of_an_idle_thread(kind: Kind, parent: int, order: Order) -> None:
    put_and_removal(kind, parent, order, 1000, None)


@ORDERS
@KINDS
@pytest.mark.parametrize("parent", [2, HEAD])
def test_a_put_that_does_not_hold_what_it_inherits(kind: Kind, parent: int, order: Order) -> None:
    """It cannot store a large value again, so it is refused where a prune has condemned it; it is never emptied."""

    def check(outcome: Outcome, numbers: list[int]) -> None:
        none_failed(outcome.results[1:])
        came = stored(outcome, 0, NEW, numbers)
        assert numbers[0] == (NEW if came else HEAD)

    put = putting(NEW, parent, kind, hold=False)
    assert race(Truth(kind).put(NEW, parent), check, put, pruning, order=order) > 5


@ORDERS
@KINDS
@pytest.mark.parametrize("parent", [2, HEAD])
def test_a_put_that_has_not_read_its_parent_and_prune(kind: Kind, parent: int, order: Order) -> None:
    def check(outcome: Outcome, numbers: list[int]) -> None:
        none_failed(outcome.results[1:])
        came = stored(outcome, 0, NEW, numbers)
        assert numbers[0] == (NEW if came else HEAD)

    put = putting(NEW, parent, kind)
    assert race(Truth(kind).put(NEW, parent), check, put, pruning, order=order, know=False) > 5


def put_and_prunes(kind: Kind, parent: int, order: Order, page_size: int, limit: int) -> None:
    def check(outcome: Outcome, numbers: list[int]) -> None:
        for result in outcome.results[1:]:
            assert result is None or isinstance(result, Contended), result
        came = stored(outcome, 0, NEW, numbers)
        assert came or (parent < HEAD and kind != "large")
        assert numbers[0] == (NEW if came else HEAD)

    put = putting(NEW, parent, kind)
    truth = Truth(kind).put(NEW, parent)
    assert race(truth, check, put, pruning, pruning, order=order, page_size=page_size, limit=limit) == limit


@ORDERS
@KINDS
@pytest.mark.parametrize("parent", [2, HEAD])
def test_put_and_two_prunes(kind: Kind, parent: int, order: Order) -> None:
    put_and_prunes(kind, parent, order, 1000, SAMPLE)


@pytest.mark.campaign
@ORDERS
@KINDS
@PAGES
@pytest.mark.parametrize("parent", [2, HEAD])
def test_put_and_two_prunes_at_length(kind: Kind, parent: int, order: Order, page_size: int) -> None:
    put_and_prunes(kind, parent, order, page_size, CAMPAIGN)


@ORDERS
@KINDS
def test_two_puts_and_prune(kind: Kind, order: Order) -> None:
    """The head's child and a fork from an old checkpoint, with the newer id."""

    def check(outcome: Outcome, numbers: list[int]) -> None:
        none_failed([outcome.results[0], outcome.results[2]])
        came = stored(outcome, 1, OTHER, numbers)
        assert numbers[0] == (OTHER if came else NEW)

    truth = Truth(kind).put(NEW, HEAD).put(OTHER, 2)
    puts = putting(NEW, HEAD, kind), putting(OTHER, 2, kind)
    assert race(truth, check, *puts, pruning, order=order, limit=SAMPLE) == SAMPLE


def put_and_delete_runs(kind: Kind, run_from: int, parent: int, order: Order, limit: int | None) -> None:
    def deleting(saver: S3Saver) -> Running:
        return saver._delete_for_runs_plan(["run"])

    def check(outcome: Outcome, numbers: list[int]) -> None:
        none_failed(outcome.results[1:])
        came = stored(outcome, 0, NEW, numbers)
        assert came or kind != "large"
        assert numbers == [*([NEW] if came else []), *range(run_from - 1, 0, -1)]

    put = putting(NEW, parent, kind)
    start = bucket(kind, run_from)
    assert race(Truth(kind).put(NEW, parent), check, put, deleting, start=start, order=order, limit=limit) > 5


@ORDERS
@KINDS
@pytest.mark.parametrize(("run_from", "parent"), [(3, 3), (3, HEAD), (HEAD, HEAD), (HEAD, 3)])
def test_put_and_the_deletion_of_a_run(kind: Kind, run_from: int, parent: int, order: Order) -> None:
    put_and_delete_runs(kind, run_from, parent, order, SAMPLE)


@pytest.mark.campaign
@ORDERS
@FEWER_KINDS
@pytest.mark.parametrize(("run_from", "parent"), [(3, 3), (3, HEAD), (HEAD, HEAD), (HEAD, 3)])
def test_every_put_and_deletion_of_a_run(kind: Kind, run_from: int, parent: int, order: Order) -> None:
    put_and_delete_runs(kind, run_from, parent, order, None)


def put_and_copy(kind: Kind, order: Order, page_size: int, limit: int | None) -> None:
    """The copy holds the new checkpoint whole, or not at all."""
    extra = {"a blob": LARGER, "z blob": LARGE}
    truth = Truth(kind).put(NEW, HEAD, extra)

    def check(outcome: Outcome, numbers: list[int]) -> None:
        none_failed(outcome.results)
        assert numbers == [NEW, 4, 3, 2, 1]
        assert truth.look(outcome.s3, "fork") in (numbers, numbers[1:])

    def copying(saver: S3Saver) -> Running:
        return saver._copy_thread_plan("thread", "fork")

    put = putting(NEW, HEAD, kind, extra=extra)
    assert race(truth, check, put, copying, order=order, page_size=page_size, limit=limit) > 5


@ORDERS
@KINDS
@PAGES
def test_put_and_copy(kind: Kind, page_size: int, order: Order) -> None:
    put_and_copy(kind, order, page_size, SAMPLE)


@pytest.mark.campaign
@ORDERS
@FEWER_KINDS
def test_every_put_and_copy(kind: Kind, order: Order) -> None:
    put_and_copy(kind, order, 1000, None)


@ORDERS
@KINDS
def test_copy_and_prune(kind: Kind, order: Order) -> None:
    """A copy of what goes meanwhile fails, or is whole; a failed one shows nothing that is not."""
    truth = Truth(kind)

    def copying(saver: S3Saver) -> Running:
        return saver._copy_thread_plan("thread", "fork")

    def check(outcome: Outcome, numbers: list[int]) -> None:
        assert numbers == [HEAD]
        assert outcome.results[0] is None or isinstance(outcome.results[0], Contended)
        none_failed(outcome.results[1:])
        if outcome.results[0] is None:
            assert truth.look(outcome.s3, "fork") in ([4, 3, 2, 1], [HEAD])
        else:
            for it in saver_on(outcome.s3, **OPTIONS).list(config_for("fork")):
                truth.check(it)

    assert race(truth, check, copying, pruning, order=order) > 5


@ORDERS
@KINDS
@PAGES
def test_two_prunes(kind: Kind, page_size: int, order: Order) -> None:
    def check(outcome: Outcome, numbers: list[int]) -> None:
        for result in outcome.results:
            assert result is None or isinstance(result, Contended), result
        assert numbers == [HEAD]

    assert race(Truth(kind), check, pruning, pruning, order=order, page_size=page_size) > 5


# -- writes ------------------------------------------------------------------------------------------


def late(it: CheckpointTuple) -> list[Any]:
    """The values that the racing task wrote."""
    return [value for task, _, value in it.pending_writes or [] if task == "late"]


@ORDERS
def test_two_batches_of_one_task(order: Order) -> None:
    """The first one wins for good: whoever read once keeps reading the same."""

    def check(outcome: Outcome, numbers: list[int]) -> None:
        none_failed(outcome.results)
        it = saver_on(outcome.s3, **OPTIONS).get_tuple(THREAD)
        assert it is not None
        final = late(it)
        assert final in (["a1", "b2"], ["b1", "b2"])
        earlier = [late(seen) for seen in outcome.results[2]]
        assert all(values in ([], final[:1], final) for values in earlier)
        assert len(earlier[0]) <= len(earlier[1])

    writes = writing(HEAD, ("n", "a1")), writing(HEAD, ("n", "b1"), ("n", "b2"))
    reads = then(getting(HEAD), getting(None))
    assert race(Truth("large"), check, *writes, reads, order=order, limit=20 * SAMPLE) > 100


@ORDERS
def test_special_writes_of_one_task(order: Order) -> None:
    """One of them wins, and the regular write beside it stays."""

    def check(outcome: Outcome, numbers: list[int]) -> None:
        none_failed(outcome.results)
        it = saver_on(outcome.s3, **OPTIONS).get_tuple(THREAD)
        assert it is not None
        assert sorted(late(it)) in (["a", "kept"], ["b", "kept"])

    writes = writing(HEAD, (INTERRUPT, "a")), writing(HEAD, ("n", "kept"), (INTERRUPT, "b"))
    assert race(Truth("large"), check, *writes, order=order, limit=None) > 1


@ORDERS
@KINDS
@PAGES
@pytest.mark.parametrize("number", [2, HEAD])
def test_writes_and_prune(kind: Kind, number: int, page_size: int, order: Order) -> None:
    """Those of the head stay; those of a checkpoint that goes are not to be seen any more."""

    def check(outcome: Outcome, numbers: list[int]) -> None:
        none_failed(outcome.results)
        assert numbers == [HEAD]
        it = saver_on(outcome.s3, **OPTIONS).get_tuple(THREAD)
        assert it is not None
        assert [value for task, _, value in it.pending_writes or [] if task == "task"][-1:] == ["pending"]
        assert late(it) == (["first", "last"] if number == HEAD else [])

    writes = writing(number, ("n", "first"), ("n", "last"))
    assert race(Truth(kind), check, writes, pruning, order=order, page_size=page_size) > 5


# -- reads -------------------------------------------------------------------------------------------


def seen_whole(truth: Truth, it: CheckpointTuple | None) -> None:
    if it is not None:
        truth.check(it)
        if number_of(it) == HEAD:
            assert [value for _, _, value in it.pending_writes or []][-1] == "pending"


@ORDERS
@KINDS
@PAGES
@pytest.mark.parametrize("number", [None, 2, HEAD])
def test_get_and_prune(kind: Kind, number: int | None, page_size: int, order: Order) -> None:
    truth = Truth(kind)

    def check(outcome: Outcome, numbers: list[int]) -> None:
        none_failed(outcome.results)
        got = outcome.results[0]
        assert got is not None or number == 2
        seen_whole(truth, got)
        assert got is None or number_of(got) == (number or HEAD)

    assert race(truth, check, getting(number), pruning, order=order, page_size=page_size) > 5


@ORDERS
@KINDS
@PAGES
def test_list_and_prune(kind: Kind, page_size: int, order: Order) -> None:
    truth = Truth(kind)

    def check(outcome: Outcome, numbers: list[int]) -> None:
        none_failed(outcome.results)
        for it in outcome.results[0]:
            seen_whole(truth, it)
        listed = [number_of(it) for it in outcome.results[0]]
        assert listed[0] == HEAD
        assert listed == sorted(set(listed), reverse=True)

    assert race(truth, check, listing, pruning, order=order, page_size=page_size) > 5


@ORDERS
@pytest.mark.parametrize("kind", ["delta", "both", "packed"])
@PAGES
@pytest.mark.parametrize("number", [None, HEAD])
def test_a_delta_history_and_prune(kind: Kind, number: int | None, page_size: int, order: Order) -> None:
    truth = Truth(kind)

    def check(outcome: Outcome, numbers: list[int]) -> None:
        none_failed(outcome.results)
        truth.check_log(HEAD, outcome.results[0])

    assert race(truth, check, reading_log(number), pruning, order=order, page_size=page_size) > 5


@ORDERS
@KINDS
@PAGES
def test_get_and_put(kind: Kind, page_size: int, order: Order) -> None:
    truth = Truth(kind).put(NEW, HEAD, {"own": LARGER})

    def check(outcome: Outcome, numbers: list[int]) -> None:
        none_failed(outcome.results)
        got = outcome.results[0]
        assert number_of(got) in (NEW, HEAD)
        seen_whole(truth, got)

    put = putting(NEW, HEAD, kind, extra={"own": LARGER})
    assert race(truth, check, getting(None), put, order=order, page_size=page_size) > 5


def test_a_fork_that_becomes_the_head_while_it_is_put() -> None:
    """A prune lets the former head go for it, so it must not take itself back when it sees that prune's fence."""
    s3 = bucket("delta")
    saver = saver_on(s3, **OPTIONS)
    assert saver.get_tuple(config_for("thread", uuid_of(2))) is not None
    driver: Any = FakeDriver(s3)

    def put() -> Running:
        plan = saver._put_plan(*arguments(NEW, 2, "delta"))
        replies = yield next(plan)
        saver_on(s3, **OPTIONS).prune(["thread"])  # after the commit, before the fence is read
        batch = plan.send(replies)
        while True:
            replies = yield batch
            try:
                batch = plan.send(replies)
            except StopIteration as stop:
                return stop.value

    assert driver.run(put()) == config_for("thread", uuid_of(NEW))
    fresh = saver_on(s3, **OPTIONS)
    latest = fresh.get_tuple(THREAD)
    assert latest is not None
    assert number_of(latest) == NEW
    history = fresh.get_delta_channel_history(config=THREAD, channels=["log"])["log"]
    assert [*history["seed"], *(value for _, _, value in history["writes"])] == log_of(NEW, 2)


# -- reads that are overtaken ------------------------------------------------------------------------

READS: dict[str, Operation] = {"get": getting(None), "list": listing, "history": reading_log(None)}


def overtaken(operation: Operation, times: int, *, page_size: int, manifest: bool, large_values: int = 1) -> Any:
    """Run a read. Before its second batch, and the next ones, another process puts a checkpoint and prunes."""
    s3 = FakeS3(page_size=page_size)
    script = Script(saver_on(s3, **OPTIONS, manifest=manifest))

    def put(touch: tuple[str, ...] = ("log",)) -> None:
        values = {f"v{index:02}": noise(200, index) for index in range(large_values)}
        metadata = counters("delta", script.number - 1) if touch else {}
        _ = script.put(values if touch else {"log": ["seed"]}, touch=touch, **metadata)

    put(touch=())
    put()
    plan = operation(saver_on(s3, **OPTIONS))
    batch = next(plan)
    for turn in range(10_000):
        if 1 <= turn <= times:
            put()
            script.saver.prune(["thread"], strategy="keep_latest")
        replies = [s3.apply(request) for request in batch]
        try:
            batch = plan.send(replies)
        except StopIteration as stop:
            return stop.value
    raise AssertionError("the read never ends")


@pytest.mark.parametrize("name", READS)
@PAGES
@pytest.mark.parametrize("times", [1, 100])
@pytest.mark.parametrize("manifest", [True, False])
@pytest.mark.parametrize("large_values", [1, 30])
def test_a_read_that_is_overtaken(name: str, page_size: int, times: int, manifest: bool, large_values: int) -> None:
    """The thread always has a checkpoint. A read that cannot keep up may fail, but never says that there is none."""
    try:
        got = overtaken(READS[name], times, page_size=page_size, manifest=manifest, large_values=large_values)
    except (Contended, MissingObject):
        assert times == 100
        return
    if name == "history":
        assert got["log"]["seed"] == ["seed"]
        assert got["log"]["writes"] == []
    else:
        assert got
        for it in got if name == "list" else [got]:
            first = "log" if number_of(it) == 1 else "v00"
            assert it.checkpoint["channel_values"][first] in (["seed"], noise(200, 0))


@pytest.mark.parametrize("times", [1, 2, 3, 100])
def test_the_history_of_a_checkpoint_that_goes_meanwhile(times: int) -> None:
    """Read the latest checkpoint, then its delta channel, as LangGraph does: it is told, or it is whole."""

    def reading(saver: S3Saver) -> Running:
        it = yield from saver._get_plan(THREAD)
        assert it is not None
        return (yield from saver._delta_plan(it.config, ["log"]))

    try:
        got = overtaken(reading, times, page_size=1000, manifest=True, large_values=0)
    except S3SaverError:
        return
    assert got["log"].get("seed") == ["seed"]


@ORDERS
@KINDS
@pytest.mark.parametrize("page_size", [1, 3, 1000])
def test_get_while_another_process_puts_and_prunes(kind: Kind, page_size: int, order: Order) -> None:
    truth = Truth(kind).put(NEW, HEAD, {"own": LARGER})

    def check(outcome: Outcome, numbers: list[int]) -> None:
        none_failed(outcome.results)
        assert numbers == [NEW]
        seen_whole(truth, outcome.results[0])
        assert outcome.results[0] is not None

    go_on = then(putting(NEW, HEAD, kind, extra={"own": LARGER}), pruning)
    assert race(truth, check, getting(None), go_on, order=order, page_size=page_size) > 5

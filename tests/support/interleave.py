"""Run plans side by side on one bucket, request by request, in every possible order.

Anything that yields batches will do as a plan: compose longer operations with `yield from`.
The code between two batches runs at once when the last reply is in; plans are pure, so nothing is lost by that.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeAlias

from langgraph.checkpoint.s3._requests import Plan, Request
from langgraph.checkpoint.s3.errors import S3SaverError
from tests.support.fake_s3 import FakeS3, Order, in_order

Scene: TypeAlias = tuple[FakeS3, Sequence[Plan[Any] | Callable[[], Plan[Any]]]]
"""A bucket, and the plans (or functions that make them) that race on it."""


@dataclass(frozen=True)
class Outcome:
    """How one schedule ended.

    Attributes:
        s3: The bucket afterwards.
        results: What each plan returned, or the `S3SaverError` that ended it.
        steps: The requests in the order of their effect, each with the index of its plan.
    """

    s3: FakeS3
    results: list[Any]
    steps: list[tuple[int, Request]]

    @property
    def schedule(self) -> tuple[int, ...]:
        """Whose turn it was at each step."""
        return tuple(plan for plan, _ in self.steps)

    def __str__(self) -> str:
        return "\n".join([*(f"  plan {plan}: {request}" for plan, request in self.steps), f"  results: {self.results}"])


def interleavings(
    make: Callable[[], Scene], *, order: Order = "forward", limit: int | None = None, seed: int = 0
) -> Iterator[Outcome]:
    """Yield the outcome of every schedule, lazily, depth first.

    Args:
        make: Sets the scene afresh for each schedule; has to make the same one every time.
        order: In which order the requests of one batch take effect.
        limit: If there are more schedules than this, so many random ones are run instead.
        seed: Of the random ones.
    """
    if limit is None:
        yield from _every(make, order)
        return
    outcomes = list(islice(_every(make, order), limit + 1))
    if len(outcomes) <= limit:
        yield from outcomes
        return
    rng = random.Random(seed)
    for _ in range(limit):
        yield _play(make, order, lambda _, ready: rng.choice(ready))


def check_interleavings(
    make: Callable[[], Scene],
    check: Callable[[Outcome], None],
    *,
    order: Order = "forward",
    limit: int | None = None,
    seed: int = 0,
) -> int:
    """Check every outcome; a failure tells the schedule. Returns the number of schedules."""
    count = 0
    for outcome in interleavings(make, order=order, limit=limit, seed=seed):
        count += 1
        try:
            check(outcome)
        except Exception as error:
            raise AssertionError(f"schedule {count}: {type(error).__name__}: {error}\n{outcome}") from error
    return count


def _every(make: Callable[[], Scene], order: Order) -> Iterator[Outcome]:
    """Depth first: replay the path so far, go on with the first plan that is ready, then vary the last choice."""
    path: list[list[int]] = []  # at each step the plans still to be tried there; the first is the one to take

    def choose(step: int, ready: list[int]) -> int:
        if step == len(path):
            path.append(ready)
        assert path[step][0] in ready, "make() has to set the same scene every time"
        return path[step][0]

    while True:
        yield _play(make, order, choose)
        while path and len(path[-1]) == 1:
            path.pop()
        if not path:
            return
        del path[-1][0]


def _play(make: Callable[[], Scene], order: Order, choose: Callable[[int, list[int]], int]) -> Outcome:
    s3, plans = make()
    runs = [_Run(s3, plan() if callable(plan) else plan, order) for plan in plans]
    steps: list[tuple[int, Request]] = []
    try:
        for run in runs:
            run.start()
        while ready := [index for index, run in enumerate(runs) if run.todo]:
            index = choose(len(steps), ready)
            steps.append((index, runs[index].step()))
    finally:
        for run in runs:
            run.plan.close()
    return Outcome(s3, [run.result for run in runs], steps)


class _Run:
    """One plan on its way."""

    def __init__(self, s3: FakeS3, plan: Plan[Any], order: Order) -> None:
        self.s3 = s3
        self.plan = plan
        self.order = order
        self.result: Any = None
        self.batch: Sequence[Request] = ()
        self.todo: list[int] = []
        self.replies: dict[int, Any] = {}
        self.errors: dict[int, Exception] = {}

    def start(self) -> None:
        self._advance(lambda: next(self.plan))

    def step(self) -> Request:
        """Let the next request take effect; after the last one of its batch the plan is told."""
        index = self.todo.pop(0)
        request = self.batch[index]
        try:
            self.replies[index] = self.s3.apply(request)
        except Exception as error:
            self.errors[index] = error
        if not self.todo:
            self._tell()
        return request

    def _tell(self) -> None:
        if self.errors:
            error = self.errors[min(self.errors)]
            self._advance(lambda: self.plan.throw(error))
        else:
            replies = [self.replies[index] for index in range(len(self.batch))]
            self._advance(lambda: self.plan.send(replies))

    def _advance(self, move: Callable[[], Sequence[Request]]) -> None:
        self.replies, self.errors = {}, {}
        try:
            self.batch = move()
        except StopIteration as stop:
            self.result = stop.value
        except S3SaverError as error:
            self.result = error
        else:
            self.todo = in_order(len(self.batch), self.order, len(self.batch))
            if not self.todo:
                self._tell()

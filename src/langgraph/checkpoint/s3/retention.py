"""What stays and what goes of old threads: the policy, the plan it leads to, and the report of what was done.

Nothing here asks the store for anything. `saver.apply_retention` finds out what there is, and `judge` says what stays
by what a listing shows: the order of the checkpoints and when they were stored, by the store's own clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NamedTuple

from langgraph.checkpoint.s3._keys import has_descending_key
from langgraph.checkpoint.s3.errors import InvalidInput

IN_FLIGHT = timedelta(days=1)
"""What belongs to no checkpoint may belong to one that is being put. After so long it does not."""

PROBLEMS = 1000
"""Problems that a report keeps word for word."""


@dataclass(frozen=True)
class RetentionPolicy:
    """What is to stay.

    Of each namespace a checkpoint stays if one of `keep_last` and `keep_within` says so, and the newest stays
    whatever they say. With neither of them all stay. Ages are by the store's clock, from when a checkpoint was stored;
    a copied thread is as young as its copy.

    Args:
        keep_last: So many of the newest checkpoints of each namespace stay.
        keep_within: What was stored within this time stays.
        keep_interrupted: Whether a thread that waits stays however long it is idle: for the answer to an interrupt, or
            before a node at which it was told to stop. A run that was killed looks like the latter, and can be resumed.
        thread_idle: A thread to which nothing was written for this time goes as a whole.
        min_age: Nothing goes that was stored within this time. Somebody may be at work on it.

    Raises:
        InvalidInput: A number or a time is out of range.
    """

    keep_last: int | None = None
    keep_within: timedelta | None = None
    keep_interrupted: bool = True
    thread_idle: timedelta | None = None
    min_age: timedelta = timedelta(hours=1)

    def __post_init__(self) -> None:
        last: object = self.keep_last
        if last is not None and (not isinstance(last, int) or isinstance(last, bool) or last < 1):
            raise InvalidInput(f"keep_last must be a whole number of at least 1, not {last!r}.")
        for name in ("keep_within", "thread_idle", "min_age"):
            given = getattr(self, name)
            if given is None and name != "min_age":
                continue
            if not isinstance(given, timedelta) or given < timedelta(0):
                raise InvalidInput(f"{name} must be a timedelta, and not negative; it is {given!r}.")

    @property
    def prunes(self) -> bool:
        """Whether single checkpoints may go."""
        return self.keep_last is not None or self.keep_within is not None


class Dated(NamedTuple):
    """What a listing shows of one checkpoint."""

    id: str
    committed: bool  # whether the checkpoint is there, and not only what belongs to it
    stored: float  # when the newest of it was, in seconds since 1970


class Verdict(NamedTuple):
    """Whether one checkpoint stays, and why."""

    namespace: str
    checkpoint_id: str
    goes: bool
    reason: str


@dataclass(frozen=True)
class ThreadPlan:
    """What is to be done with one thread.

    Attributes:
        thread: Its id; for one whose id is too long for a key, the name of its folder.
        part: The name of its folder.
        action: "keep" nothing goes, "prune" some checkpoints go, "remove" the thread goes as a whole, "clear" only what
            the removal of a thread has left goes, "none" nothing goes because of `problem`.
        reason: Why the thread as a whole stays or goes.
        verdicts: Each checkpoint, newest first by namespace.
        objects: How many objects go.
        bytes: How many bytes they have.
        touched: When something was written to it last, in seconds since 1970.
        doomed: The ids that go, by the name of the namespace's folder.
        left_over: The names of namespaces' folders in which there is nothing but a fence that is not needed any more.
        problem: What could not be read or done. While planning: nothing of this thread is deleted then.
    """

    thread: str
    part: str
    action: str
    reason: str
    verdicts: Sequence[Verdict] = field(default=(), repr=False)
    objects: int = 0
    bytes: int = 0
    touched: float = 0.0
    doomed: Mapping[str, frozenset[str]] = field(default_factory=dict, repr=False)
    left_over: Sequence[str] = ()
    problem: str | None = None

    @property
    def changes(self) -> bool:
        """Whether there is anything to do."""
        return self.problem is None and bool(self.doomed or self.left_over)

    @property
    def going(self) -> int:
        """How many checkpoints go."""
        return sum(it.goes for it in self.verdicts)

    def __str__(self) -> str:
        lines = [f"{self.thread}: {self.action}, {self.reason}"]
        lines += [f"  problem: {self.problem}"] if self.problem else []
        lines += [f"  {'-' if goes else ' '} {ns or '(root)'} {it}: {why}" for ns, it, goes, why in self.verdicts]
        if self.objects:
            lines.append(f"  {self.objects:,} objects, {self.bytes:,} bytes")
        return "\n".join(lines)


class Restored(NamedTuple):
    """What was brought back: so many checkpoints, and so many objects in all."""

    checkpoints: int
    objects: int


@dataclass
class RetentionReport:
    """What was done, or with `dry_run` would be.

    Attributes:
        dry_run: Whether nothing was deleted.
        threads: Threads looked at.
        pruned: Threads of which some checkpoints went.
        removed: Threads that went as a whole.
        checkpoints: Checkpoints that went.
        deleted: Objects that went.
        bytes: The bytes they had.
        failed: Threads with a problem. Nothing was deleted of those that could not be read.
        problems: The first of these, each thread with what is the matter.
        cursor: Where to go on, if it was stopped; None if everything was seen.
        plans: What was decided for each thread, where threads were named.
    """

    dry_run: bool = False
    threads: int = 0
    pruned: int = 0
    removed: int = 0
    checkpoints: int = 0
    deleted: int = 0
    bytes: int = 0
    failed: int = 0
    problems: list[tuple[str, str]] = field(default_factory=list)
    cursor: str | None = None
    plans: list[ThreadPlan] = field(default_factory=list, repr=False)

    def add(self, it: ThreadPlan) -> None:
        """Count one thread."""
        self.threads += 1
        if it.problem is not None:
            self.failed += 1
            if len(self.problems) < PROBLEMS:
                self.problems.append((it.thread, it.problem))
            return
        self.pruned += it.action == "prune"
        self.removed += it.action == "remove"
        self.checkpoints += it.going
        self.deleted += it.objects
        self.bytes += it.bytes


def judge(policy: RetentionPolicy, namespace: str, found: Iterable[Dated], now: float) -> list[Verdict]:
    """What stays of one namespace, newest first. What belongs to no checkpoint only goes along with one."""
    committed = 0
    verdicts: list[Verdict] = []
    for it in sorted(found, reverse=True):
        age = timedelta(seconds=max(0.0, now - it.stored))
        committed += it.committed
        if it.committed:
            why = _why_it_stays(policy, committed, age)
            verdicts.append(Verdict(namespace, it.id, why is None, why or _too_old(policy)))
        else:
            lost = policy.prunes and age > max(policy.min_age, IN_FLIGHT)
            verdicts.append(Verdict(namespace, it.id, lost, _ORPHAN if lost else UNCOMMITTED))
    if any(it.goes and it.reason != _ORPHAN for it in verdicts):
        return verdicts
    return [it._replace(goes=False, reason=UNCOMMITTED) if it.goes else it for it in verdicts]


UNCOMMITTED = "no checkpoint was put for what lies here, so far"
OUTLIVED = "it belongs to a task of a checkpoint that is gone or goes"
EXPIRED = "it is older than expire_after, and cannot be read any more"
_ORPHAN = "no checkpoint was put for what lies here in a day"


def outlived(
    policy: RetentionPolicy, namespace: str, ids: Sequence[str], touched: float, oldest: str, now: float
) -> bool:
    """Whether a namespace belongs to a task (`node:task_id`) of a checkpoint that does not stay.

    All its ids are then older than that of the oldest checkpoint which stays in the root namespace, as those of the
    task that runs after that one are newer. LangGraph's ids sort by time; of others nothing is concluded.
    """
    recent = now - touched <= policy.min_age.total_seconds()
    if not policy.prunes or not oldest or ":" not in namespace or recent:
        return False
    return all(map(has_descending_key, [oldest, *ids])) and max(ids) < oldest


def _why_it_stays(policy: RetentionPolicy, rank: int, age: timedelta) -> str | None:
    if rank == 1:
        return "the newest"
    if not policy.prunes:
        return "the policy has no rule for single checkpoints"
    if policy.keep_last is not None and rank <= policy.keep_last:
        return f"among the last {policy.keep_last}"
    if policy.keep_within is not None and age <= policy.keep_within:
        return f"stored within {policy.keep_within}"
    if age <= policy.min_age:
        return f"stored within min_age, {policy.min_age}"
    return None


def _too_old(policy: RetentionPolicy) -> str:
    rules = [f"not among the last {policy.keep_last}"] if policy.keep_last is not None else []
    rules += [f"older than {policy.keep_within}"] if policy.keep_within is not None else []
    return " and ".join(rules)

"""Retention: what a policy says of each thread, and doing it. Planning and doing are two steps with one plan between.

All threads are found by one listing of everything below the prefix, a page at a time, so that a thread of which
nothing goes costs no request of its own. A thread of which something is to go is then looked at as a `sweep` does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from itertools import groupby
from typing import TypeVar

from langgraph.checkpoint.serde.types import INTERRUPT

from langgraph.checkpoint.s3._keys import (
    THREAD_LIMIT,
    Namespace,
    decode_part,
    encode_part,
    is_folder_part,
    is_ours,
)
from langgraph.checkpoint.s3._objects import CheckpointObject, Codec, Fence
from langgraph.checkpoint.s3._plans.folders import Folder, group
from langgraph.checkpoint.s3._plans.read import find_head_plan, writes_request
from langgraph.checkpoint.s3._plans.sweep import Sweep, survey_plan, sweep_plan
from langgraph.checkpoint.s3._requests import Entry, List, Plan, delete_all, each, list_all, list_page
from langgraph.checkpoint.s3._rules import Live, fence_keeping
from langgraph.checkpoint.s3.errors import BucketNotFound, Contended, S3SaverError
from langgraph.checkpoint.s3.retention import (
    EXPIRED,
    IN_FLIGHT,
    OUTLIVED,
    UNCOMMITTED,
    Dated,
    RetentionPolicy,
    ThreadPlan,
    Verdict,
    judge,
    outlived,
)

T = TypeVar("T")

TOGETHER = 32
"""Threads to work on together."""

NAMESPACES = 16
"""Namespaces of one thread to work on together."""


@dataclass(frozen=True)
class Job:
    """What a policy is applied with: a moment in seconds since 1970, and whether a head says that its run goes on."""

    root: str
    policy: RetentionPolicy
    now: float
    goes_on: Callable[[CheckpointObject], bool]
    trash: str | None
    expired: float = 0.0  # what was stored before cannot be read any more
    dry_run: bool = False


@dataclass
class RetentionWalk:
    """The state of one application of a policy between its steps.

    `cursor` names the last thread that was dealt with.
    """

    job: Job
    threads: deque[str] | None  # the names of the folders; None for all
    cursor: str | None = None
    after: str = ""  # the last key listed
    open: list[Entry] = field(default_factory=list)  # of a thread that may go on
    found: deque[tuple[str, Sequence[Entry]]] = field(default_factory=deque)
    listed: bool = False

    @property
    def done(self) -> bool:
        """Whether all threads were dealt with."""
        return self.listed and not self.found


def begin(job: Job, thread_ids: Sequence[str] | None, cursor: str | None) -> RetentionWalk:
    """A walk over these threads or all of them, that goes on after a cursor."""
    if thread_ids is None:
        # "0" follows "/": what lies in the folder of the last thread is skipped, and whatever sorts before it.
        return RetentionWalk(job, None, cursor, after=f"{job.root}{cursor}0" if cursor else "")
    parts = list(dict.fromkeys(encode_part(it, THREAD_LIMIT) for it in thread_ids))
    if cursor in parts:
        parts = parts[parts.index(cursor) + 1 :]
    return RetentionWalk(job, deque(parts), cursor, listed=not parts)


def next_threads_plan(codec: Codec, walk: RetentionWalk) -> Plan[list[ThreadPlan]]:
    """Deal with the next threads, until `walk.done`: plan each, and do what was planned unless it is a dry run.

    A LIST for each 1,000 objects below the prefix, of however many threads. Then three or four round trips to plan a
    thread of which something goes, and about ten to do it, for up to 32 threads together.

    Raises:
        BucketNotFound: There is no such bucket. Any other failure is the problem of the thread that it concerns.
    """
    yield from _find_plan(walk)
    some = [walk.found.popleft() for _ in range(min(TOGETHER, len(walk.found)))]
    planned = yield from _apart_plan([partial(plan_thread_plan, codec, walk.job, *it) for it in some])
    plans = [
        _spoilt(part, it) if isinstance(it, S3SaverError) else it for (part, _), it in zip(some, planned, strict=True)
    ]
    if not walk.job.dry_run:
        plans = yield from do_all_plan(codec, walk.job, plans)
    walk.cursor = some[-1][0] if some else walk.cursor
    return plans


def do_all_plan(codec: Codec, job: Job, plans: Sequence[ThreadPlan]) -> Plan[list[ThreadPlan]]:
    """Do what was planned, 32 threads together. Gives the plans back, with the problem of each that failed."""
    changing = [it for it in plans if it.changes]
    failed: dict[str, str] = {}
    for start in range(0, len(changing), TOGETHER):
        some = changing[start : start + TOGETHER]
        ends = yield from _apart_plan([partial(do_plan, codec, job, it) for it in some])
        failed |= {it.part: str(end) for it, end in zip(some, ends, strict=True) if isinstance(end, S3SaverError)}
    return [replace(it, problem=failed[it.part]) if it.part in failed else it for it in plans]


def _apart_plan(makers: Sequence[Callable[[], Plan[T]]]) -> Plan[list[T | S3SaverError]]:
    """Run plans together. If one fails, run them again one by one, so that it spoils none but itself."""
    try:
        return [*(yield from each([make() for make in makers]))]
    except BucketNotFound:
        raise
    except S3SaverError as error:
        if len(makers) == 1:
            return [error]
    results: list[T | S3SaverError] = []
    for make in makers:
        results += yield from _apart_plan([make])
    return results


def _spoilt(part: str, error: S3SaverError) -> ThreadPlan:
    return ThreadPlan(_name(part), part, "none", "it could not be read", problem=str(error))


def _name(part: str) -> str:
    thread = decode_part(part)
    return part if thread is None else thread


# -- finding threads -------------------------------------------------------------------------------


def _find_plan(walk: RetentionWalk) -> Plan[None]:
    """List until there is a thread to deal with, or none any more."""
    while not walk.found and not walk.listed:
        if walk.threads is None:
            yield from _find_next_plan(walk)
        else:
            some = [walk.threads.popleft() for _ in range(min(TOGETHER, len(walk.threads)))]
            walk.listed = not walk.threads
            listings = yield from each([list_all(f"{walk.job.root}{part}/") for part in some])
            walk.found += [(part, entries) for part, (entries, _) in zip(some, listings, strict=True)]


def _find_next_plan(walk: RetentionWalk) -> Plan[None]:
    """Read one page of what lies below the prefix; a thread is whole once something of another follows."""
    root = walk.job.root

    def part_of(key: str) -> str:
        return key[len(root) :].partition("/")[0]

    page = yield from list_page(List(root, start_after=walk.after))
    entries = [*walk.open, *(it for it in page.entries if "/" in it.key[len(root) :])]
    threads = [(part, list(its)) for part, its in groupby(entries, lambda it: part_of(it.key)) if is_folder_part(part)]
    walk.listed, walk.open = page.token is None, []
    if not walk.listed:
        last = page.entries[-1].key
        folder = f"{root}{part_of(last)}/"
        foreign = last.startswith(folder) and not is_folder_part(part_of(last))
        walk.after = f"{folder[:-1]}0" if foreign else last  # nothing is wanted of the markers of runs, say
        if threads and threads[-1][0] == part_of(last):
            walk.open = threads.pop()[1]
    walk.found += threads


# -- planning --------------------------------------------------------------------------------------


def plan_thread_plan(codec: Codec, job: Job, part: str, entries: Sequence[Entry]) -> Plan[ThreadPlan]:
    """What a policy says of a thread that was listed. No round trip if nothing goes and it is not idle.

    Raises:
        MissingObject, CorruptObject: Something that is to stay is not whole.
    """
    ours = [it for it in entries if is_ours(job.root, part, it.key)]
    spaces = _spaces(job.root, part, ours)
    left = _left_over(job, spaces, ours)
    nothing = ThreadPlan(_name(part), part, "clear" if left else "keep", "nothing is left of it", left_over=left)
    full = {ns: folders for ns, folders in spaces.items() if folders}
    if not full:
        return nothing
    plan = replace(nothing, touched=max(it.touched for folders in full.values() for it in folders))
    idle, policy = timedelta(seconds=max(0.0, job.now - plan.touched)), job.policy
    reason = "it is in use"
    if policy.thread_idle is not None and idle > max(policy.thread_idle, policy.min_age):
        if not (policy.keep_interrupted and (yield from _waits_plan(codec, job, full))):
            return _removal(plan, full, f"idle for more than {policy.thread_idle}", ours)
        reason = "it waits for an answer"
    return (yield from _pruning_plan(codec, job, replace(plan, reason=reason), full))


def _spaces(root: str, part: str, entries: Sequence[Entry]) -> dict[Namespace, list[Folder]]:
    """The namespaces of a thread by its listing, with their folders; some are empty but for a fence."""
    start = len(root) + len(part) + 1
    spaces: dict[Namespace, list[Folder]] = {}
    for ns_part, its in groupby(entries, lambda it: it.key[start:].partition("/")[0]):
        if is_folder_part(ns_part):
            ns = Namespace(root, part, ns_part)
            spaces[ns] = group(ns, its)
    return spaces


def _left_over(job: Job, spaces: Mapping[Namespace, Sequence[Folder]], entries: Sequence[Entry]) -> tuple[str, ...]:
    """The namespaces of which nothing is left but a fence that no put can still have to heed."""
    newest: dict[str, float] = {}
    for it in entries:
        for ns, folders in spaces.items():
            if not folders and it.key.startswith(ns.base):
                newest[ns.ns_part] = max(newest.get(ns.ns_part, 0.0), it.modified)
    latest = job.now - max(IN_FLIGHT, job.policy.min_age).total_seconds()
    return tuple(part for part, modified in newest.items() if modified < latest)


def _removal(
    plan: ThreadPlan, spaces: Mapping[Namespace, Sequence[Folder]], reason: str, entries: Sequence[Entry]
) -> ThreadPlan:
    going = [it for it in entries if not it.key.endswith(("/fence", "/_name"))]
    return replace(
        plan,
        action="remove",
        reason=reason,
        verdicts=[
            Verdict(_ns_name(ns), it.id, True, reason) for ns, its in spaces.items() for it in its if it.committed
        ],
        objects=len(going),
        bytes=sum(it.size for it in going),
        doomed={ns.ns_part: frozenset(it.id for it in its) for ns, its in spaces.items()},
    )


def _ns_name(ns: Namespace) -> str:
    text = decode_part(ns.ns_part)
    return ns.ns_part if text is None else text


def _waits_plan(codec: Codec, job: Job, spaces: Mapping[Namespace, Sequence[Folder]]) -> Plan[bool]:
    """Whether a thread waits for somebody: its root namespace tells, or any if it has none. Two round trips."""
    roots = [ns for ns in spaces if not _ns_name(ns)]
    waiting = yield from each([_head_waits_plan(codec, job, ns) for ns in roots or spaces])
    return any(waiting)


def _head_waits_plan(codec: Codec, job: Job, ns: Namespace) -> Plan[bool]:
    head = yield from find_head_plan(codec, ns)
    if head is None:
        return False
    checkpoint, folder = head
    requests = [writes_request(codec, ns, folder, name) for name in folder.writes]
    batches = (yield requests) if requests else []
    interrupted = any(channel == INTERRUPT for it in batches if it is not None for _, channel, _ in it.writes)
    return interrupted or job.goes_on(checkpoint)


def _pruning_plan(
    codec: Codec, job: Job, plan: ThreadPlan, spaces: Mapping[Namespace, Sequence[Folder]]
) -> Plan[ThreadPlan]:
    """Which checkpoints of a thread go, and with them which objects, as a sweep finds them."""
    judged = _judge(job, spaces)
    verdicts = [it for found in judged.values() for it in found]
    doomed = {ns: frozenset(it.checkpoint_id for it in found if it.goes) for ns, found in judged.items()}
    doomed = {ns: ids for ns, ids in doomed.items() if ids}
    sizes: dict[str, int] = {}
    work = list(doomed.items())
    for start in range(0, len(work), NAMESPACES):
        some = work[start : start + NAMESPACES]
        surveys = yield from each([survey_plan(codec, ns, _forgetting(ns, ids, None, job.expired)) for ns, ids in some])
        for (ns, _), survey in zip(some, surveys, strict=True):
            sizes |= survey.going(ns)
    return replace(
        plan,
        action="prune" if doomed else plan.action,
        verdicts=verdicts,
        objects=len(sizes),
        bytes=sum(sizes.values()),
        doomed={ns.ns_part: ids for ns, ids in doomed.items()},
    )


def _judge(job: Job, spaces: Mapping[Namespace, Sequence[Folder]]) -> dict[Namespace, list[Verdict]]:
    judged: dict[Namespace, list[Verdict]] = {}
    for ns, folders in spaces.items():
        judged[ns] = judge(
            job.policy, _ns_name(ns), [Dated(it.id, it.committed, it.touched) for it in folders], job.now
        )
    root = next((found for ns, found in judged.items() if not _ns_name(ns)), [])
    oldest = min((it.checkpoint_id for it in root if not it.goes and it.reason != UNCOMMITTED), default="")
    for ns, folders in spaces.items():
        touched = max(it.touched for it in folders)
        if outlived(job.policy, _ns_name(ns), [it.id for it in folders], touched, oldest, job.now):
            judged[ns] = [it._replace(goes=True, reason=OUTLIVED) for it in judged[ns]]
        expired = {it.id for it in folders if it.committed and it.modified < job.expired}
        judged[ns] = [
            it._replace(goes=True, reason=EXPIRED) if it.checkpoint_id in expired else it for it in judged[ns]
        ]
    return judged


# -- doing -----------------------------------------------------------------------------------------


def do_plan(codec: Codec, job: Job, plan: ThreadPlan) -> Plan[None]:
    """Do what was planned with a thread. What was put since stays, with all that it depends on.

    Raises:
        Contended: The thread was to be removed, and was used since. Nothing of it was deleted.
        MissingObject, CorruptObject: Something that stays is not whole. Nothing of its namespace was deleted.
    """
    root = job.root
    if plan.action == "remove":
        yield from _refuse_if_used_plan(codec, root, plan)
    work = [(Namespace(root, plan.part, ns_part), ids) for ns_part, ids in plan.doomed.items()]
    for start in range(0, len(work), NAMESPACES):
        some = work[start : start + NAMESPACES]
        _ = yield from each([sweep_plan(codec, ns, _forgetting(ns, ids, job.trash, job.expired)) for ns, ids in some])
    left = [Namespace(root, plan.part, ns_part) for ns_part in plan.left_over]
    for start in range(0, len(left), TOGETHER):
        _ = yield from each([_clear_plan(ns) for ns in left[start : start + TOGETHER]])


def _refuse_if_used_plan(codec: Codec, root: str, plan: ThreadPlan) -> Plan[None]:
    entries, _ = yield from list_all(f"{root}{plan.part}/")
    for ns, folders in _spaces(root, plan.part, entries).items():
        known = plan.doomed.get(ns.ns_part, frozenset())
        if any(it.id not in known or it.touched > plan.touched for it in folders):
            raise Contended(
                f"thread {plan.thread!r} in s3://{codec.bucket}/{root}{plan.part}/ was used since it was found to be "
                "idle; nothing of it was deleted."
            )


def _clear_plan(ns: Namespace) -> Plan[None]:
    """Delete what is left of a namespace if there is still nothing in it."""
    entries, _ = yield from list_all(ns.base)
    if not group(ns, entries):
        yield from delete_all([it.key for it in entries if it.key in (ns.fence, ns.latest)])


def _forgetting(ns: Namespace, ids: AbstractSet[str], trash: str | None, expired: float) -> Sweep:
    def listing() -> Plan[list[Folder]]:
        entries, _ = yield from list_all(ns.checkpoints)
        return group(ns, entries)

    def condemned(folders: Sequence[Folder], _: Fence) -> AbstractSet[str]:
        return {it.id for it in folders} & ids

    def fence(old: Fence, doomed: AbstractSet[str], keep: Live) -> Fence:
        return fence_keeping(old, max(doomed), keep)

    return Sweep(listing, "", condemned, fence, trash, expired)

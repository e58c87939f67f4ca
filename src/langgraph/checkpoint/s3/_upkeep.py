"""Upkeep of what is stored, as plans: retention, undoing it, lifecycle rules, leases. LangGraph asks for none of it.

Nothing of it is imported before it is first called: a cold start does not need it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from time import monotonic
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from langgraph.checkpoint.s3._keys import THREAD_LIMIT, encode_part, lease_key
from langgraph.checkpoint.s3._objects import CheckpointObject
from langgraph.checkpoint.s3._operations import Operations, text_of, texts_of
from langgraph.checkpoint.s3._requests import GetLifecycle, Lifecycle, Plan, PutLifecycle
from langgraph.checkpoint.s3._rules import run_goes_on
from langgraph.checkpoint.s3.errors import CorruptObject, InvalidInput, StorageError

if TYPE_CHECKING:
    from langgraph.checkpoint.s3._plans.lease import Tenure
    from langgraph.checkpoint.s3._plans.retention import Job, RetentionWalk
    from langgraph.checkpoint.s3.lifecycle import Finding, Rule, Wanted
    from langgraph.checkpoint.s3.retention import Restored, RetentionPolicy, RetentionReport, ThreadPlan


logger = logging.getLogger("langgraph.checkpoint.s3")

SHORTEST_LEASE = timedelta(seconds=1)
LONGEST_LEASE = timedelta(days=7)


class Application:
    """One application of a policy: what a driver has to run, step by step, until it is `done`."""

    def __init__(
        self,
        walk: RetentionWalk,
        report: RetentionReport,
        step: Callable[[RetentionWalk], Plan[Sequence[ThreadPlan]]],
        stop_after: timedelta | None,
        progress: Callable[[ThreadPlan], None] | None,
        named: bool,
    ) -> None:
        self._walk = walk
        self._step = step
        self._progress = progress
        self._named = named
        self._end = None if stop_after is None else monotonic() + stop_after.total_seconds()
        self._begun = False
        self.report = report

    @property
    def done(self) -> bool:
        """Whether all threads were dealt with, or the time is up. The report says where to go on in that case."""
        if self._walk.done:
            self.report.cursor = None
            return True
        self.report.cursor = self._walk.cursor
        # Not before there is something to go on from: whoever has too little time would never get any further.
        return self._begun and self._end is not None and monotonic() >= self._end

    def next_plan(self) -> Plan[None]:
        """Deal with the next few threads."""
        self._begun = True
        for plan in (yield from self._step(self._walk)):
            self.report.add(plan)
            if self._named:
                self.report.plans.append(plan)
            if self._progress is not None:
                self._progress(plan)


class Upkeep(Operations):
    """What a saver can do besides LangGraph's operations. It knows no client."""

    _has_conditions = False  # whether the store is known to keep to conditions

    def _application(
        self,
        policy: RetentionPolicy,
        thread_ids: Sequence[str] | None,
        dry_run: bool,
        cursor: str | None,
        stop_after: timedelta | None,
        progress: Callable[[ThreadPlan], None] | None,
    ) -> Application:
        from langgraph.checkpoint.s3._plans.retention import begin
        from langgraph.checkpoint.s3.retention import RetentionPolicy, RetentionReport

        given: object = policy
        if not isinstance(given, RetentionPolicy):
            raise InvalidInput(f"policy is a {type(given).__name__}; pass a RetentionPolicy.")
        threads = None if thread_ids is None else texts_of(thread_ids, "thread_ids")
        walk = begin(self._job(policy, dry_run), threads, cursor)
        report = RetentionReport(dry_run=dry_run)
        return Application(walk, report, self._next_threads_plan, stop_after, progress, threads is not None)

    def _job(self, policy: RetentionPolicy, dry_run: bool) -> Job:
        from langgraph.checkpoint.s3._plans.retention import Job

        return Job(self._root, policy, self._clock() / 1e9, self._head_goes_on, self._trash, self._oldest(), dry_run)

    def _next_threads_plan(self, walk: RetentionWalk) -> Plan[Sequence[ThreadPlan]]:
        from langgraph.checkpoint.s3._plans.retention import next_threads_plan

        if not walk.job.dry_run:
            yield from self._check_versioning_plan()
        plans = yield from next_threads_plan(self._codec, walk)
        if not walk.job.dry_run:
            self._forget_changed(plans)
        return plans

    def _execution_plan(self, plans: Sequence[ThreadPlan]) -> Plan[RetentionReport]:
        """Do what was planned before."""
        from langgraph.checkpoint.s3._plans.retention import do_all_plan
        from langgraph.checkpoint.s3.retention import RetentionPolicy, RetentionReport

        yield from self._check_versioning_plan()
        report = RetentionReport()
        done = yield from do_all_plan(self._codec, self._job(RetentionPolicy(), False), list(plans))
        self._forget_changed(done)
        for plan in done:
            report.add(plan)
        report.plans = done
        return report

    # -- lifecycle rules ---------------------------------------------------------------------------

    def _setup_plan(self, create_bucket: bool) -> Plan[Sequence[Finding]]:
        """See that the bucket can be reached, and whether its rules endanger threads; nobody need be allowed to ask."""
        yield from self._reach_plan(create_bucket)
        try:
            return (yield from self._check_lifecycle_plan())
        except StorageError as error:
            logger.info("the lifecycle rules could not be checked: %s", error)
            return ()

    def _check_lifecycle_plan(self) -> Plan[Sequence[Finding]]:
        from langgraph.checkpoint.s3.lifecycle import check

        (there,) = yield [GetLifecycle()]
        return check(self._wanted(), there.rules)

    def _apply_lifecycle_plan(self, rules: Sequence[Rule] | None) -> Plan[Sequence[Rule]]:
        from langgraph.checkpoint.s3.lifecycle import lacking, merge

        wanted = self._wanted()
        given = self.lifecycle_rules() if rules is None else rules
        (there,) = yield [GetLifecycle()]
        merged = merge(wanted, there.rules, given)
        if merged != list(there.rules):
            _ = yield [PutLifecycle(Lifecycle(merged, there.rest))]
            (there,) = yield [GetLifecycle()]
        if lost := lacking(there.rules, given):
            raise StorageError(
                f"s3://{self.bucket} has not kept the lifecycle rules {', '.join(map(repr, lost))} as they were given; "
                "this server does not know all of them. Look at what it has, and take out what it dropped."
            )
        return list(there.rules)

    def lifecycle_rules(
        self,
        *,
        grace: timedelta = timedelta(days=30),
        uploads: timedelta = timedelta(days=7),
        transitions: Mapping[str, timedelta] | None = None,
    ) -> list[dict[str, Any]]:
        """The lifecycle rules that this saver wants on its bucket. Costs no request.

        They apply to its prefix, and begin with "langgraph-s3saver-" by their ids: unfinished uploads go; with
        `disposal="trash"` the trash is emptied; with `disposal="versions"` noncurrent versions go, and markers with
        nothing left below them; with `expire_after` everything goes that is twice as old.

        Args:
            grace: How long what was pruned can be brought back. Rules count in days; this is rounded up.
            uploads: When parts of uploads that were begun and never ended go.
            transitions: Storage classes, with the age at which all objects move there, such as
                `{"INTELLIGENT_TIERING": timedelta(0)}`. Only those that can be read at once. S3 leaves objects of
                less than 128 KB where they are.

        Returns:
            The rules as boto3's `put_bucket_lifecycle_configuration` takes them.

        Raises:
            InvalidInput: An age is negative, or what lies in a storage class cannot be read at once.
        """
        from langgraph.checkpoint.s3.lifecycle import rules_for

        return rules_for(self._wanted(), grace, uploads, transitions)

    def _wanted(self) -> Wanted:
        from langgraph.checkpoint.s3.lifecycle import Wanted

        return Wanted(self._root, self._disposal, self._expire_after)

    # -- undo --------------------------------------------------------------------------------------

    def _undo_plan(self, thread_id: str, since: datetime | None) -> Plan[Restored]:
        from langgraph.checkpoint.s3._plans.undo import Thread, undo_trash_plan, undo_versions_plan

        if self._disposal == "delete":
            raise InvalidInput(
                "a saver with disposal='delete' leaves nothing to bring back; use the disposal that the thread was "
                "pruned with, 'versions' or 'trash'."
            )
        if since is not None and since.tzinfo is None:
            raise InvalidInput(f"since {since!r} has no time zone; pass an aware datetime.")
        part = encode_part(text_of(thread_id, "thread_id"), THREAD_LIMIT)
        thread = Thread(self._root, part, 0.0 if since is None else since.timestamp())
        if self._trash is None:
            yield from self._check_versioning_plan()
            plan = undo_versions_plan(self._codec, thread)
        else:
            plan = undo_trash_plan(self._codec, thread, self._trash)
        return (yield from self._changing(thread.prefix, plan))

    # -- leases ------------------------------------------------------------------------------------

    def _tenure(self, thread_id: str, ttl: timedelta) -> Tenure:
        from langgraph.checkpoint.s3._plans.lease import Tenure

        given: object = ttl
        if not isinstance(given, timedelta) or not SHORTEST_LEASE <= given <= LONGEST_LEASE:
            raise InvalidInput(f"ttl must be a timedelta between one second and seven days, not {ttl!r}.")
        key = lease_key(self._root, text_of(thread_id, "thread_id"))
        return Tenure(self.bucket, key, thread_id, ttl.total_seconds(), uuid4().hex, monotonic)

    def _lease_plan(self, tenure: Tenure) -> Plan[None]:
        """Take a lease. The first one that a saver takes tells whether there can be any: one more round trip."""
        from langgraph.checkpoint.s3._plans.lease import acquire_plan, conditions_plan

        yield from acquire_plan(tenure)
        if not self._has_conditions:
            yield from conditions_plan(tenure)
            self._has_conditions = True

    def _forget_changed(self, plans: Sequence[ThreadPlan]) -> None:
        """Nothing that was remembered or read ahead of a thread may outlive what was deleted of it."""
        for plan in plans:
            if not (plan.doomed or plan.left_over):
                continue
            prefix = f"{self._root}{plan.part}/"
            self._ahead.drop(prefix)
            if plan.action == "remove":
                for remembered in (self._memory, self._trail):
                    remembered.forget(prefix)

    def _head_goes_on(self, head: CheckpointObject) -> bool:
        """Whether a run that stopped at this checkpoint has work left."""
        try:
            state = self._serializer().loads_typed(head.state)
            return run_goes_on(state.get("updated_channels"))
        except Exception as error:  # whatever a serializer raises
            raise CorruptObject(
                f"checkpoint {head.id} of thread {head.thread!r} in s3://{self.bucket}/{self._root} cannot be "
                f"deserialised ({type(error).__name__}: {error}); use the serde it was written with."
            ) from error

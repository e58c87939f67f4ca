"""S3Saver: the operations, run by the boto3 driver. Every public method is here, with what it costs."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph.checkpoint.s3._boto import BotoDriver
from langgraph.checkpoint.s3._cache import CACHE_BYTES
from langgraph.checkpoint.s3._conn_string import parse_conn_string
from langgraph.checkpoint.s3._operations import (
    COMPRESSION_LEVEL,
    INLINE_THRESHOLD,
    MAX_OBJECT_BYTES,
    Disposal,
    Manifest,
    thread_of,
)
from langgraph.checkpoint.s3._run import Observer
from langgraph.checkpoint.s3._stats import Stats
from langgraph.checkpoint.s3._upkeep import Upkeep
from langgraph.checkpoint.s3.errors import LifecycleWarning, S3SaverError

if TYPE_CHECKING:
    from langgraph.checkpoint.s3.lease import Lease
    from langgraph.checkpoint.s3.lifecycle import Finding, Rule
    from langgraph.checkpoint.s3.retention import Restored, RetentionPolicy, RetentionReport, ThreadPlan


class S3Saver(Upkeep):
    """Keeps LangGraph checkpoints in an S3 bucket, and needs nothing but the bucket.

    It is safe to share between threads, may be made at module level (no request is made before the first
    operation), and survives a fork of the process. Its async methods run the same operations in worker
    threads.

    Args:
        bucket: The bucket's name. The ARN of an access point is refused.
        prefix: Where in the bucket to keep everything, such as "agents/prod"; at most 200 bytes.
        client: A boto3 S3 client to use; it is never closed here. By default one is made on first use.
        endpoint_url: Another server that speaks S3. Checksums are then sent only where S3 requires
            them, as several such servers refuse the newer ones.
        region_name: The bucket's region; by default boto3 finds it.
        addressing_style: "path" or "virtual"; by default botocore decides.
        serde: The serializer of all values; LangGraph's `JsonPlusSerializer` by default. With
            `EncryptedSerializer`, values are compressed before they are encrypted.
        inline_threshold: Bytes, compressed, up to which a channel's value rides inside the checkpoint
            object. Larger ones become objects of their own, stored once for as long as they do not change.
        compression_level: zstd's, 1 to 22.
        manifest: When to write a copy of the newest checkpoint, which saves a round trip on reading: "auto", with
            checkpoints at which a run is likely to end; "always"; "never". True and False are the latter two.
        max_concurrency: Requests under way at a time; the client's connection pool has the same size.
        max_object_bytes: Bytes, uncompressed, that one object may hold, on writing and on reading.
        cache_bytes: Bytes, compressed, of objects to keep in memory: what was just read or written need not be read
            again while a listing still names it. 0 keeps none.
        disposal: What becomes of what is pruned: "delete", it is gone at once; "versions", the same on a bucket with
            versioning, where it can be brought back; "trash", a copy is left beside the prefix, below
            "{prefix}-trash/", from where it can be brought back on any bucket. Whole threads that are deleted by
            `delete_thread`, and what `delete_for_runs` deletes, go at once.
        expire_after: Let S3 itself delete what is old, by one lifecycle rule and without any sweeper: a thread that is
            not used for this long vanishes as a whole, and of one in use whatever its newest checkpoint does not
            need, once it is twice as old. `put` stores again what it inherits and what gets old. Needs a prefix, and
            the rule that `apply_lifecycle()` makes.
        put_object_args: Further arguments for PutObject and CopyObject, such as
            `{"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": ...}` or `{"StorageClass": ...}`.

    Raises:
        InvalidInput: An argument is out of range.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        client: Any = None,
        endpoint_url: str | None = None,
        region_name: str | None = None,
        addressing_style: str | None = None,
        serde: SerializerProtocol | None = None,
        inline_threshold: int = INLINE_THRESHOLD,
        compression_level: int = COMPRESSION_LEVEL,
        manifest: Manifest | bool = "auto",
        max_concurrency: int = 32,
        max_object_bytes: int = MAX_OBJECT_BYTES,
        cache_bytes: int = CACHE_BYTES,
        disposal: Disposal = "delete",
        expire_after: timedelta | None = None,
        put_object_args: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            bucket,
            prefix,
            serde=serde,
            inline_threshold=inline_threshold,
            compression_level=compression_level,
            manifest=manifest,
            max_object_bytes=max_object_bytes,
            cache_bytes=cache_bytes,
            disposal=disposal,
            expire_after=expire_after,
        )
        self._driver = BotoDriver(
            bucket,
            client=client,
            endpoint_url=endpoint_url,
            region_name=region_name,
            addressing_style=addressing_style,
            max_concurrency=max_concurrency,
            put_object_args=put_object_args,
        )

    @classmethod
    @contextmanager
    def from_conn_string(cls, conn_string: str, **options: Any) -> Iterator[S3Saver]:
        """Make a saver from "s3://bucket/prefix", for use in a `with` block that closes it.

        Args:
            conn_string: `endpoint_url` and `region_name` may follow as a query, as in
                "s3://bucket/prefix?region_name=eu-west-1".
            **options: As for the constructor; they win over the query.

        Yields:
            The saver. Costs no request.

        Raises:
            InvalidInput: The text is not of this form.
        """
        bucket, prefix, query = parse_conn_string(conn_string)
        saver = cls(bucket, prefix, **{**query, **options})
        try:
            yield saver
        finally:
            saver.close()

    def setup(self, *, create_bucket: bool = False) -> None:
        """Check that the bucket can be reached. Nobody has to call it; calling it again does no harm.

        Two round trips: a LIST of one key below the prefix, which the policy of any reader allows; then the bucket's
        lifecycle rules are read, if the policy allows it, and one that endangers threads is warned of.

        Args:
            create_bucket: Make the bucket if it does not exist. One more round trip, and s3:CreateBucket is needed.

        Raises:
            BucketNotFound: There is no such bucket.
            AccessDenied: The credentials do not allow to look.

        Warns:
            LifecycleWarning: As `check_lifecycle` finds it.
        """
        for finding in self._driver.run(self._setup_plan(create_bucket), "setup"):
            warnings.warn(str(finding), LifecycleWarning, stacklevel=2)

    def close(self) -> None:
        """Close the connections that were made here. The saver can be used again; it makes new ones."""
        self._driver.close()

    def __enter__(self) -> S3Saver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def stats(self) -> Stats:
        """Requests, round trips, bytes and dollars since the saver was made. Subtract two to see what lies between."""
        return self._driver.stats()

    def observe(self, observer: Observer) -> None:
        """Have every operation from now on run inside a context manager, for tracing or metrics of your own.

        `langgraph.checkpoint.s3.otel` has one for OpenTelemetry. Costs no request.

        Args:
            observer: Called with each `Operation` before it begins; what it returns is entered then, and left when the
                operation has ended, with its error if it has one. What it raises ends the operation.
        """
        self._driver.ledger.observers += (observer,)

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Read a checkpoint: the one that the config names, or the newest of its thread and namespace.

        One round trip (a LIST and a GET); two if it has pending writes or large values (a GET each). What this saver
        has just read or written costs the LIST alone; if another process has gone on with the thread since, the
        newest then takes a round trip more.

        Args:
            config: `configurable` with thread_id, and checkpoint_ns ("" by default) and checkpoint_id.

        Returns:
            The checkpoint with its pending writes in the order of `writes_sort_key`; None if there is none.

        Raises:
            InvalidInput: The config has no thread_id.
            CorruptObject, MissingObject: What is stored cannot be read whole; the message names the key.
            Contended: Others put and pruned each time it looked.
            StorageError: S3 refused, or could not be reached.
        """
        return self._driver.run(self._get_plan(config), "get_tuple", thread_of(config))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """List checkpoints, newest first by checkpoint id, across namespaces and threads alike.

        Two round trips for the first page of a namespace (a LIST, then a GET per checkpoint), three with
        pending writes or large values, whatever the length of the thread's history. All namespaces of a
        thread, or all threads, cost a LIST for each besides.

        Args:
            config: Whose checkpoints: None for all threads; without checkpoint_ns all namespaces of the
                thread ("" is one of them); with checkpoint_id that one only.
            filter: Metadata keys with the values they have to be equal to. A key that a checkpoint does
                not have matches nothing.
            before: Only checkpoints with a smaller checkpoint_id than this config's.
            limit: At most so many, counted after the filter; 0 gives none.

        Yields:
            Checkpoints as `get_tuple` reads them. Pages are read as they are consumed; nothing is held
            meanwhile.

        Raises:
            As `get_tuple`.
        """
        walk = self._walk(config, filter, before, limit)
        while not walk.done:
            yield from self._driver.run(self._page_plan(walk), "list", walk.selection.thread)

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint. Once this returns it is durable, with everything it points to.

        One round trip of two PUTs (checkpoint and manifest), or of one amid a run. One before it, with a PUT
        each, for new large values and for a `run_id` in the metadata; one after it, with a GET, if large values
        are inherited or delta channels lean on ancestors; and one at first to read the parent, if this saver has
        neither read nor written it lately and something of it is inherited.

        A new value of more than 16 MiB, as stored, goes up in parallel parts of 8 MiB: two round trips more, and for
        it a PUT per part and two besides. If that fails the parts are taken back.

        Args:
            config: Thread, namespace, and as checkpoint_id the parent's.
            checkpoint: The checkpoint with all its channel values.
            metadata: Kept whole. Simple values of the config's metadata and configurable are added to it,
                as `InMemorySaver` does.
            new_versions: The channels whose values are new, with their versions.

        Returns:
            A config that names the stored checkpoint, and holds nothing else.

        Raises:
            InvalidInput, ObjectTooLarge: It cannot be stored; nothing was written.
            CheckpointPruned: The parent was pruned meanwhile, and delta channels need it; nothing was stored.
            StorageError: S3 refused, or could not be reached.
        """
        return self._driver.run(self._put_plan(config, checkpoint, metadata, new_versions), "put", thread_of(config))

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store the writes of a task, all of them or none. One round trip, one PUT; none for an empty list.

        An interrupt or an error on the checkpoint put last takes the manifest along: a second PUT, in the same round
        trip. A repeated call changes nothing and takes two more. For each position the first write wins; errors,
        interrupts and resume values are replaced by later ones.

        Args:
            config: Names the checkpoint, which need not be stored yet.
            writes: Channels and values.
            task_id: The task's id.
            task_path: The task's path, the first thing that pending writes are ordered by.

        Raises:
            As `put`.
        """
        self._driver.run(self._put_writes_plan(config, writes, task_id, task_path), "put_writes", thread_of(config))

    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread with all its namespaces. A round trip per 1,000 objects listed and per 1,000 deleted.

        Args:
            thread_id: The thread; it need not exist.

        Raises:
            StorageError: Something could not be deleted. Call it again.
        """
        self._driver.run(self._delete_thread_plan(thread_id), "delete_thread", thread_id)

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints whose metadata has one of these run ids, in all threads that the runs wrote to.

        A run's markers are listed, then for each namespace the stretch from the newest checkpoint down to
        the oldest of the run's. Checkpoints of other runs in that stretch are read, and what they need is
        kept. To roll back the last run costs what that run wrote, about ten round trips. Copies of a thread are not
        followed.

        Args:
            run_ids: The runs; they need not exist.

        Raises:
            MissingObject, CorruptObject: What stays could not be read; nothing of that namespace was deleted.
            StorageError: S3 refused, or could not be reached.
        """
        self._driver.run(self._delete_for_runs_plan(run_ids), "delete_for_runs")

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all checkpoints and writes of a thread to another, on the server: no byte comes through here.

        A round trip per 1,000 objects listed, and one COPY request for each object.

        Args:
            source_thread_id: The thread to copy. If it does not exist nothing happens.
            target_thread_id: The thread to copy to. What it has already stays.

        Raises:
            Contended: Something of the source was deleted meanwhile.
            StorageError: S3 refused, or could not be reached.
        """
        self._driver.run(self._copy_thread_plan(source_thread_id, target_thread_id), "copy_thread", source_thread_id)

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete old checkpoints of threads. Delta channels of those that stay are packed first.

        Per namespace: its objects are listed twice, the newest checkpoint with its write batches and pack, and the
        delta history behind it, are read, a pack and a fence are written, and a request is made per 1,000 objects
        deleted. About nine round trips where no listing takes more than one.

        Args:
            thread_ids: The threads; they need not exist.
            strategy: "keep_latest" keeps the newest checkpoint of each namespace; "delete" (or
                "delete_all", as Agent Server says) deletes the threads.

        Raises:
            InvalidInput: The strategy is unknown.
            MissingObject, CorruptObject: What stays could not be read; nothing of that namespace was deleted.
            StorageError: S3 refused, or could not be reached.
        """
        self._driver.run(self._prune_plan(thread_ids, strategy), "prune")

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """What the ancestors of a checkpoint stored of some delta channels: a value and the writes since, oldest first.

        Three round trips for a chain of up to 1,000 super-steps: the checkpoint, a LIST of the stretch behind
        it, and a GET for each checkpoint and write batch there.

        Args:
            config: Names the checkpoint, or its thread's newest.
            channels: The channels.

        Returns:
            For each channel `writes`, and `seed` if an ancestor has a stored value.

        Raises:
            MissingObject: An ancestor that is needed is gone.
            CheckpointPruned: The checkpoint itself was pruned.
            As `get_tuple` otherwise.
        """
        return self._driver.run(self._delta_plan(config, channels), "get_delta_channel_history", thread_of(config))

    # -- upkeep: none of it is called by LangGraph ------------------------------------------------

    def apply_retention(
        self,
        policy: RetentionPolicy,
        thread_ids: Sequence[str] | None = None,
        dry_run: bool = False,
        *,
        cursor: str | None = None,
        stop_after: timedelta | None = None,
        progress: Callable[[ThreadPlan], None] | None = None,
    ) -> RetentionReport:
        """Let old checkpoints and idle threads go, as a policy says. Runs may go on meanwhile.

        Each thread is planned, and then what was planned is done, unless it is a dry run. What cannot be read is
        left alone, with all of its thread, and stands in the report.

        All threads are found by one LIST for each 1,000 objects below the prefix, a page in memory at a time; a
        thread of which nothing goes costs no more. One that changes takes about twelve round trips, 32 threads
        together. Its requests are those of `prune`, and a GET or two for one that is idle.

        Args:
            policy: What is to stay.
            thread_ids: The threads to look at; by default all below the prefix, in the order of their keys.
            dry_run: Plan, and delete nothing. For named threads the report holds their plans, which
                `execute_retention` takes.
            cursor: Where to go on: that of a report of a call that was stopped.
            stop_after: Begin no more threads after this time, but some in any case. The report's `cursor` says where to
                go on.
            progress: Called with the plan of each thread once it is dealt with. What it raises ends the call.

        Returns:
            What was done, or would be.

        Raises:
            InvalidInput: An argument is wrong.
            BucketNotFound: There is no such bucket.
            StorageError: The listing of all threads failed. What failed for one thread is in the report instead.
        """
        work = self._application(policy, thread_ids, dry_run, cursor, stop_after, progress)
        while not work.done:
            self._driver.run(work.next_plan(), "apply_retention")
        return work.report

    def execute_retention(self, plans: Sequence[ThreadPlan]) -> RetentionReport:
        """Do what a dry run of `apply_retention` has planned.

        What was put since stays, with all it depends on; a thread that was to go as a whole and was used since stays
        as it is, which its problem says. About nine round trips, 32 threads together.

        Args:
            plans: The `plans` of the dry run's report, or some of them.

        Returns:
            What was done.

        Raises:
            BucketNotFound: There is no such bucket. What else fails stands in the report.
        """
        return self._driver.run(self._execution_plan(plans), "execute_retention")

    def undo_prune(self, thread_id: str, *, since: datetime | None = None) -> Restored:
        """Bring back what prunes and retention took from a thread, as long as the grace lasts; it then reads as before.

        From the trash, or from the versions of a versioned bucket, as the saver's `disposal` says. What whole runs
        were rolled back with does not come back, nor from the trash a thread deleted by `delete_thread`; on a
        versioned bucket such a thread does. Not while a prune of that thread is under way.

        A LIST per 1,000 objects; then a COPY for each object from the trash, or a request per 1,000 versions; and two
        round trips to lift the fences of its namespaces.

        Args:
            thread_id: The thread.
            since: Bring back only what went at this time or later, by the store's clock; with a time zone.

        Returns:
            What came back.

        Raises:
            InvalidInput: The saver's disposal is "delete", or the bucket is not versioned.
            Contended: Something vanished from the trash meanwhile.
            StorageError: S3 refused. On a versioned bucket it takes s3:ListBucketVersions, s3:GetObjectVersion
                and s3:DeleteObjectVersion.
        """
        return self._driver.run(self._undo_plan(thread_id, since), "undo_prune", thread_id)

    def apply_lifecycle(self, rules: Sequence[Rule] | None = None) -> Sequence[Rule]:
        """Bring lifecycle rules into the bucket's configuration, and leave all others in it as they are.

        Rules of the same id are replaced, and those of this saver that it wants no more are taken out. S3 has no way
        to do this in one step: what somebody else changes at the very same time may be lost. Two or three round trips.

        Args:
            rules: By default those of `lifecycle_rules()`.

        Returns:
            All rules that the bucket now has.

        Raises:
            InvalidInput: A rule has no id, or there are too many.
            AccessDenied: It takes s3:GetLifecycleConfiguration and s3:PutLifecycleConfiguration.
            StorageError: S3 refused; or the server did not keep a rule as it was given.
        """
        return self._driver.run(self._apply_lifecycle_plan(rules), "apply_lifecycle")

    def check_lifecycle(self) -> Sequence[Finding]:
        """Find rules of the bucket that would delete live objects, or archive them. One round trip.

        Rules that only apply to objects with a tag are none: this package tags nothing.

        Returns:
            For each such rule what it does, and which threads it endangers. With `expire_after`, a rule that lets
            objects live for twice as long is none.

        Raises:
            AccessDenied: It takes s3:GetLifecycleConfiguration.
        """
        return self._driver.run(self._check_lifecycle_plan(), "check_lifecycle")

    # -- leases ------------------------------------------------------------------------------------

    @contextmanager
    def lease(self, thread_id: str, ttl: timedelta) -> Iterator[Lease]:
        """Hold a thread for the length of a block: no other block on this thread begins meanwhile, in any process.

        For triggers that may deliver the same event twice at once. Nobody needs it for the thread's sake: savers are
        correct without; what it spares is tools that are carried out twice. It binds only those who ask for it.

        Three round trips of a saver's first lease, two of later ones (a LIST, a GET and a PUT), one to give it back (a
        PUT). Its object lies below "{prefix}/_leases/", one for each thread that was ever held.

        Args:
            thread_id: The thread.
            ttl: How long it is held if this process dies or is frozen, a second to seven days: longer than the block
                takes, such as a function's time-out; or `renew()` it inside.

        Yields:
            The lease: its fencing `number`, the seconds `left`, and `renew()`.

        Raises:
            ThreadBusy: Another run holds the thread; it says for how long already, and for how long at most.
            LeaseLost: On leaving the block: it took longer than `ttl`, and another run has begun meanwhile.
            Contended: Several were after it at once, each time it was tried.
            InvalidInput: `ttl` is out of range.
            StorageError: S3 refused, or could not be reached: the thread may be held for `ttl`. Or the store does not
                keep to conditional writes.
        """
        from langgraph.checkpoint.s3._plans.lease import release_plan
        from langgraph.checkpoint.s3.lease import Lease

        tenure = self._tenure(thread_id, ttl)
        self._driver.run(self._lease_plan(tenure), "lease", thread_id)
        try:
            yield Lease(tenure, lambda plan: self._driver.run(plan, "renew", thread_id))
        except BaseException:
            with suppress(S3SaverError):  # what ended the block says more
                self._driver.run(release_plan(tenure), "release", thread_id)
            raise
        self._driver.run(release_plan(tenure), "release", thread_id)

    # -- the async twins: the same in worker threads -----------------------------------------------

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """`get_tuple` in a worker thread."""
        return await asyncio.to_thread(self.get_tuple, config)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """`list`, each page in a worker thread."""
        walk = self._walk(config, filter, before, limit)
        while not walk.done:
            for it in await asyncio.to_thread(self._driver.run, self._page_plan(walk), "list", walk.selection.thread):
                yield it

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """`put` in a worker thread."""
        return await asyncio.to_thread(self.put, config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """`put_writes` in a worker thread."""
        await asyncio.to_thread(self.put_writes, config, writes, task_id, task_path)

    async def adelete_thread(self, thread_id: str) -> None:
        """`delete_thread` in a worker thread."""
        await asyncio.to_thread(self.delete_thread, thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """`delete_for_runs` in a worker thread."""
        await asyncio.to_thread(self.delete_for_runs, run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """`copy_thread` in a worker thread."""
        await asyncio.to_thread(self.copy_thread, source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """`prune` in a worker thread."""
        await asyncio.to_thread(self.prune, thread_ids, strategy=strategy)

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """`get_delta_channel_history` in a worker thread."""
        return await asyncio.to_thread(self.get_delta_channel_history, config=config, channels=channels)

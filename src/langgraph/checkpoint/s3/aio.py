"""AsyncS3Saver: the operations of `S3Saver`, run by the aiobotocore driver on the event loop of whoever calls."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
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
from langgraph.checkpoint.s3._weight import is_large
from langgraph.checkpoint.s3.errors import LifecycleWarning, S3SaverError

if TYPE_CHECKING:
    from langgraph.checkpoint.s3.lease import AsyncLease
    from langgraph.checkpoint.s3.lifecycle import Finding, Rule
    from langgraph.checkpoint.s3.retention import Restored, RetentionPolicy, RetentionReport, ThreadPlan

try:
    from langgraph.checkpoint.s3._aioboto import AioBotoDriver, drained
except ModuleNotFoundError as error:
    package = (error.name or "").split(".")[0]
    if package not in ("aiobotocore", "aiohttp"):
        raise
    raise ModuleNotFoundError(
        f"langgraph.checkpoint.s3.aio needs {package}, which is not installed; "
        "install langgraph-checkpoint-s3saver[async], or [aioboto3] beside a program that uses aioboto3.",
        name=error.name,
    ) from error

__all__ = ["AsyncS3Saver"]


class AsyncS3Saver(Upkeep):
    """Keeps LangGraph checkpoints in an S3 bucket, from asynchronous programs. What it stores is what `S3Saver` stores.

    It may be made anywhere, at module level too, and shared by any number of tasks. Each event loop that it is
    used on gets a client of its own, which that loop closes when `asyncio.run` (or `asyncio.Runner`, or
    whatever else calls `shutdown_asyncgens`) shuts it down; so one saver serves one `asyncio.run` after the other.

    The synchronous methods are for other threads, such as the one that a synchronous node of an asynchronous
    graph runs in: they run on that graph's loop, or, where the thread's context does not tell, on the loop that
    used the saver last. On such a loop's own thread they raise `InvalidInput` at once, and where the saver was
    neither made nor used on a loop that runs.

    A cancelled operation leaves the old state or the new one, and nothing under way here; what was sent already may
    still arrive.

    Args:
        bucket: The bucket's name.
        prefix: Where in the bucket to keep everything, such as "agents/prod"; at most 200 bytes.
        client: An aiobotocore S3 client to use, on the loop it was made on; it is never closed here. By default
            one is made for each loop on first use.
        session: An aiobotocore session or an `aioboto3.Session` to make the clients with.
        endpoint_url: Another server that speaks S3. Checksums are then sent only where S3 requires
            them, as several such servers refuse the newer ones.
        region_name: The bucket's region; by default aiobotocore finds it.
        addressing_style: "path" or "virtual"; by default botocore decides.
        serde: The serializer of all values; LangGraph's `JsonPlusSerializer` by default. With
            `EncryptedSerializer`, values are compressed before they are encrypted. It may be called in a thread.
        inline_threshold: Bytes, compressed, up to which a channel's value rides inside the checkpoint
            object. Larger ones become objects of their own, stored once for as long as they do not change.
        compression_level: zstd's, 1 to 22.
        manifest: When to write a copy of the newest checkpoint, which saves a round trip on reading: "auto", with
            checkpoints at which a run is likely to end; "always"; "never". True and False are the latter two.
        max_concurrency: Requests under way at a time on a loop; the client's connection pool has the same size.
        max_object_bytes: Bytes, uncompressed, that one object may hold, on writing and on reading.
        cache_bytes: Bytes, compressed, of objects to keep in memory: what was just read or written need not be read
            again while a listing still names it. 0 keeps none.
        disposal: What becomes of what is pruned: "delete", "versions" or "trash"; see `S3Saver`.
        expire_after: Let S3 itself delete what is old; see `S3Saver`.
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
        session: Any = None,
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
        self._driver = AioBotoDriver(
            bucket,
            client=client,
            session=session,
            endpoint_url=endpoint_url,
            region_name=region_name,
            addressing_style=addressing_style,
            max_concurrency=max_concurrency,
            put_object_args=put_object_args,
        )

    @classmethod
    @asynccontextmanager
    async def from_conn_string(cls, conn_string: str, **options: Any) -> AsyncIterator[AsyncS3Saver]:
        """Make a saver from "s3://bucket/prefix", for use in an `async with` block that closes it.

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
        async with cls(bucket, prefix, **{**query, **options}) as saver:
            yield saver

    async def setup(self, *, create_bucket: bool = False) -> None:
        """Check that the bucket can be reached. Nobody has to call it; calling it again does no harm.

        Two round trips: a LIST of one key below the prefix, which the policy of any reader allows; then the bucket's
        lifecycle rules are read, if the policy allows it, and one that endangers threads is warned of.

        Args:
            create_bucket: Make the bucket if it does not exist. One more round trip, and s3:CreateBucket is needed.

        Raises:
            BucketNotFound: There is no such bucket.
            AccessDenied: The credentials do not allow to look.

        Warns:
            LifecycleWarning: As `acheck_lifecycle` finds it.
        """
        for finding in await self._driver.run(self._setup_plan(create_bucket), "setup"):
            warnings.warn(str(finding), LifecycleWarning, stacklevel=2)

    async def aclose(self) -> None:
        """Close the running loop's client, if it was made here. The saver can be used again; it makes a new one.

        Waits for requests under way; cancelled, it closes the client at once. Costs no request.
        """
        await self._driver.aclose()

    async def __aenter__(self) -> AsyncS3Saver:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

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

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Read a checkpoint: the one that the config names, or the newest.

        One round trip, two with pending writes or large values. The rest is told at `S3Saver.get_tuple`.
        """
        return await self._driver.run(
            self._get_plan(config), "get_tuple", thread_of(config), large=self._cache.has_large
        )

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncGenerator[CheckpointTuple, None]:
        """List checkpoints, newest first.

        Two or three round trips for the first page of a namespace. The rest is told at `S3Saver.list`.

        While the consumer works on one page, the next is read: of one page at most, and not before the
        consumer has asked for a second checkpoint. Leaving early cancels that.
        """
        walk = self._walk(config, filter, before, limit)
        ahead: asyncio.Task[list[CheckpointTuple]] | None = None
        try:
            while ahead is not None or not walk.done:
                page = await (ahead or self._page(walk))
                ahead = None
                for position, it in enumerate(page):
                    if position == 1 and not walk.done:
                        ahead = asyncio.create_task(self._page(walk))
                    yield it
        finally:
            if ahead is not None:
                _ = ahead.cancel()
                await drained([ahead])

    async def _page(self, walk: Any) -> list[CheckpointTuple]:
        return await self._driver.run(self._page_plan(walk), "list", walk.selection.thread, large=self._cache.has_large)

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint; a large one is packed in a thread.

        One round trip of one PUT or two, two with new or inherited large values. The rest is told at `S3Saver.put`.
        """
        plan = self._put_plan(config, checkpoint, metadata, new_versions)
        return await self._driver.run(plan, "put", thread_of(config), large=is_large(checkpoint["channel_values"]))

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store the writes of a task, all of them or none: one round trip, one PUT. More at `S3Saver.put_writes`."""
        plan = self._put_writes_plan(config, writes, task_id, task_path)
        await self._driver.run(plan, "put_writes", thread_of(config), large=is_large(writes))

    async def adelete_thread(self, thread_id: str) -> None:
        """Delete a thread with all its namespaces. A round trip per 1,000 objects listed and per 1,000 deleted."""
        await self._driver.run(self._delete_thread_plan(thread_id), "delete_thread", thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete what these runs stored. About ten round trips for the last run; more at `S3Saver.delete_for_runs`."""
        await self._driver.run(self._delete_for_runs_plan(run_ids), "delete_for_runs")

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread to another, on the server. A LIST per 1,000 objects, a COPY each; see `S3Saver.copy_thread`."""
        await self._driver.run(
            self._copy_thread_plan(source_thread_id, target_thread_id), "copy_thread", source_thread_id
        )

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete old checkpoints of threads. About nine round trips for a namespace; more at `S3Saver.prune`."""
        await self._driver.run(self._prune_plan(thread_ids, strategy), "prune")

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """What ancestors stored of delta channels.

        Three round trips for up to 1,000 super-steps. The rest is told at `S3Saver.get_delta_channel_history`.
        """
        plan = self._delta_plan(config, channels)
        return await self._driver.run(plan, "get_delta_channel_history", thread_of(config), large=self._cache.has_large)

    # -- upkeep: none of it is called by LangGraph ------------------------------------------------

    async def aapply_retention(
        self,
        policy: RetentionPolicy,
        thread_ids: Sequence[str] | None = None,
        dry_run: bool = False,
        *,
        cursor: str | None = None,
        stop_after: timedelta | None = None,
        progress: Callable[[ThreadPlan], None] | None = None,
    ) -> RetentionReport:
        """Let old checkpoints and idle threads go, as a policy says. All is told at `S3Saver.apply_retention`."""
        work = self._application(policy, thread_ids, dry_run, cursor, stop_after, progress)
        while not work.done:
            await self._driver.run(work.next_plan(), "apply_retention")
        return work.report

    async def aexecute_retention(self, plans: Sequence[ThreadPlan]) -> RetentionReport:
        """Do what a dry run of `aapply_retention` has planned. More at `S3Saver.execute_retention`."""
        return await self._driver.run(self._execution_plan(plans), "execute_retention")

    async def aundo_prune(self, thread_id: str, *, since: datetime | None = None) -> Restored:
        """Bring back what prunes and retention took from a thread. All is told at `S3Saver.undo_prune`."""
        return await self._driver.run(self._undo_plan(thread_id, since), "undo_prune", thread_id)

    async def aapply_lifecycle(self, rules: Sequence[Rule] | None = None) -> Sequence[Rule]:
        """Bring lifecycle rules into the bucket's configuration. All is told at `S3Saver.apply_lifecycle`."""
        return await self._driver.run(self._apply_lifecycle_plan(rules), "apply_lifecycle")

    async def acheck_lifecycle(self) -> Sequence[Finding]:
        """Find rules of the bucket that would delete live objects, or archive them. One round trip."""
        return await self._driver.run(self._check_lifecycle_plan(), "check_lifecycle")

    # -- leases ------------------------------------------------------------------------------------

    @asynccontextmanager
    async def lease(self, thread_id: str, ttl: timedelta) -> AsyncIterator[AsyncLease]:
        """Hold a thread for the length of a block: no other block on this thread begins meanwhile, in any process.

        Two round trips, three the first time, and one to give it back. The rest is told at `S3Saver.lease`. A task that
        is cancelled while it takes the lease may hold it for `ttl`; one that is cancelled inside gives it back.
        """
        from langgraph.checkpoint.s3._plans.lease import release_plan
        from langgraph.checkpoint.s3.lease import AsyncLease

        tenure = self._tenure(thread_id, ttl)
        await self._driver.run(self._lease_plan(tenure), "lease", thread_id)
        try:
            yield AsyncLease(tenure, lambda plan: self._driver.run(plan, "renew", thread_id))
        except BaseException:
            with suppress(S3SaverError):  # what ended the block says more
                await self._driver.run(release_plan(tenure), "release", thread_id)
            raise
        await self._driver.run(release_plan(tenure), "release", thread_id)

    # -- the synchronous twins: the same, for other threads than the loop's ------------------------

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """`aget_tuple` for other threads."""
        return self._driver.run_from_thread(self._get_plan(config), "get_tuple", thread_of(config))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """`alist` for other threads, without reading ahead."""
        _ = self._driver.loop()  # what is wrong is said now, not when the first checkpoint is asked for
        return self._pages(self._walk(config, filter, before, limit))

    def _pages(self, walk: Any) -> Iterator[CheckpointTuple]:
        while not walk.done:
            yield from self._driver.run_from_thread(self._page_plan(walk), "list", walk.selection.thread)

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """`aput` for other threads."""
        plan = self._put_plan(config, checkpoint, metadata, new_versions)
        return self._driver.run_from_thread(
            plan, "put", thread_of(config), large=is_large(checkpoint["channel_values"])
        )

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """`aput_writes` for other threads."""
        plan = self._put_writes_plan(config, writes, task_id, task_path)
        self._driver.run_from_thread(plan, "put_writes", thread_of(config), large=is_large(writes))

    def delete_thread(self, thread_id: str) -> None:
        """`adelete_thread` for other threads."""
        self._driver.run_from_thread(self._delete_thread_plan(thread_id), "delete_thread", thread_id)

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """`adelete_for_runs` for other threads."""
        self._driver.run_from_thread(self._delete_for_runs_plan(run_ids), "delete_for_runs")

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """`acopy_thread` for other threads."""
        self._driver.run_from_thread(
            self._copy_thread_plan(source_thread_id, target_thread_id), "copy_thread", source_thread_id
        )

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """`aprune` for other threads."""
        self._driver.run_from_thread(self._prune_plan(thread_ids, strategy), "prune")

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """`aget_delta_channel_history` for other threads."""
        return self._driver.run_from_thread(
            self._delta_plan(config, channels), "get_delta_channel_history", thread_of(config)
        )

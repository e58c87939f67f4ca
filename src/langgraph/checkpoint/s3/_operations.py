"""The saver's operations in LangGraph's terms, each of them a plan: what a driver has to be run on.

Here a `RunnableConfig` becomes keys, a checkpoint becomes a draft, and what was read becomes
`CheckpointTuple`s. Savers derive from `Operations` and add a driver. Plans that no plain turn of a graph needs are
imported when they are first asked for, for the sake of cold starts.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypeVar, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph.checkpoint.s3._ahead import ReadAhead
from langgraph.checkpoint.s3._cache import Cache, through_cache
from langgraph.checkpoint.s3._keys import Namespace, namespace, root_of, thread_prefix, trash_of
from langgraph.checkpoint.s3._memory import Memory
from langgraph.checkpoint.s3._objects import ChannelHistory, Codec, WriteBatch
from langgraph.checkpoint.s3._plans.ahead import read_ahead_plan
from langgraph.checkpoint.s3._plans.read import Loaded, get_exact_plan, get_latest_plan
from langgraph.checkpoint.s3._plans.write import Draft, Settings, put_manifest_plan, put_plan, put_writes_plan
from langgraph.checkpoint.s3._requests import CreateBucket, GetVersioning, List, Plan, list_page
from langgraph.checkpoint.s3._rules import matches, run_goes_on, stops_run, write_index
from langgraph.checkpoint.s3._trail import Trail
from langgraph.checkpoint.s3._values import Typed, compressing
from langgraph.checkpoint.s3.errors import BucketNotFound, InvalidInput

if TYPE_CHECKING:
    from langgraph.checkpoint.s3._plans.listing import Walk
    from langgraph.checkpoint.s3._plans.renew import Life

T = TypeVar("T")

Manifest: TypeAlias = Literal["auto", "always", "never"]
"""When the copy of the newest checkpoint is written: where a run is likely to end, with every checkpoint, never."""

Disposal: TypeAlias = Literal["delete", "versions", "trash"]
"""What becomes of pruned objects: deleted, noncurrent versions of a versioned bucket, copies below the trash prefix."""

INLINE_THRESHOLD = 32 * 1024
COMPRESSION_LEVEL = 3
MAX_OBJECT_BYTES = 1 << 30

AHEAD_BYTES = 64 << 20
"""Bytes to hold at most of what is being read ahead, until it is decoded."""

_BUCKET = re.compile(r"[A-Za-z0-9._-]{1,255}")
"""A bucket's name, as freely as botocore takes it: old buckets and other servers do not keep to S3's rules of today."""


class Address(NamedTuple):
    """What a config points at."""

    thread: str
    ns: str
    id: str | None


class Operations(BaseCheckpointSaver[str]):
    """All operations of a saver, as plans. It knows no client."""

    def __init__(
        self,
        bucket: str,
        prefix: str,
        *,
        serde: SerializerProtocol | None,
        inline_threshold: int,
        compression_level: int,
        manifest: Manifest | bool,
        max_object_bytes: int,
        cache_bytes: int,
        disposal: Disposal,
        expire_after: timedelta | None,
    ) -> None:
        super().__init__(serde=serde)
        if not _is_bucket(bucket):
            raise InvalidInput(
                f"bucket {bucket!r} is not the name of a bucket (letters, digits, '.', '-' and '_'); "
                "give the prefix apart from it, and no ARN."
            )
        _check_number("inline_threshold", inline_threshold)
        _check_number("max_object_bytes", max_object_bytes)
        _check_number("compression_level", compression_level)
        _check_number("cache_bytes", cache_bytes)
        if inline_threshold < 0 or max_object_bytes <= 0 or cache_bytes < 0:
            raise InvalidInput("inline_threshold, max_object_bytes and cache_bytes are numbers of bytes, and positive.")
        if not 1 <= compression_level <= 22:
            raise InvalidInput(f"compression_level {compression_level!r} is not a zstd level (1 to 22).")
        if manifest not in ("auto", "always", "never", True, False):
            raise InvalidInput(f"manifest must be 'auto', 'always' or 'never', not {manifest!r}.")
        if disposal not in ("delete", "versions", "trash"):
            raise InvalidInput(f"disposal must be 'delete', 'versions' or 'trash', not {disposal!r}.")
        self.bucket = bucket
        self._root = root_of(text_of(prefix, "prefix"))
        self.prefix = self._root.rstrip("/")
        self._codec = Codec(bucket, compression_level, max_object_bytes)
        self._settings = Settings(inline_threshold)
        self._manifest: Manifest = manifest if isinstance(manifest, str) else "always" if manifest else "never"
        self._disposal: Disposal = disposal
        self._trash = trash_of(self._root) if disposal == "trash" else None  # where a copy of what is pruned is left
        self._versioned = False  # as far as is known
        self._expire_after = _checked_life(expire_after, self._root)
        self._memory = Memory()
        self._trail = Trail()
        self._ahead = ReadAhead()
        self._cache = Cache(cache_bytes)
        self._clock: Callable[[], int] = time.time_ns
        self._random: Callable[[], float] = random.random

    # -- plans -------------------------------------------------------------------------------------

    def _reach_plan(self, create_bucket: bool) -> Plan[None]:
        # Not HeadBucket: its answers have no body, by which to know an S3 server and the reason of a refusal; and a
        # policy that is confined to the prefix does not allow it.
        try:
            _ = yield from list_page(List(self._root, max_keys=1))
        except BucketNotFound:
            if not create_bucket:
                raise
        else:
            return
        _ = yield [CreateBucket()]

    def _get_plan(self, config: RunnableConfig) -> Plan[CheckpointTuple | None]:
        at = address(config)
        ns = namespace(self._root, at.thread, at.ns)
        loaded = self._ahead.find(ns, at.id) if at.id else None
        if loaded is None and at.id:
            loaded = yield from self._walk_on_plan(ns, at.id)
        if loaded is None:
            loaded = yield from self._read_plan(ns, at.id)
        if loaded is None:
            return None
        self._ahead.saw(ns, loaded, asked=at.id)
        self._memory.remember(ns, loaded.checkpoint, loaded.stamp)
        self._trail.note(ns, loaded.link, leans=bool(loaded.checkpoint.deltas))
        if loaded.body is not None:
            self._cache.add(loaded.body)
        return self._tuple(at.thread, loaded)

    def _read_plan(self, ns: Namespace, checkpoint_id: str | None) -> Plan[Loaded | None]:
        likely = checkpoint_id or self._memory.newest(ns)
        warm = likely is not None and ns.checkpoint(likely) in self._cache
        if checkpoint_id is None:
            plan = get_latest_plan(self._codec, ns, warm, self._oldest())
        else:
            plan = get_exact_plan(self._codec, ns, checkpoint_id, warm, self._oldest())
        return (yield from through_cache(plan, self._cache))

    def _walk_on_plan(self, ns: Namespace, checkpoint_id: str) -> Plan[Loaded | None]:
        """Read a checkpoint for somebody who walks along its chain, and what will be asked for next."""
        distance = self._ahead.distance(ns, checkpoint_id)
        if not distance:
            return None
        ticket = self._ahead.begin(ns)
        read: list[Loaded] = []
        try:
            plan = through_cache(
                read_ahead_plan(self._codec, ns, checkpoint_id, distance, self._oldest()), Cache(AHEAD_BYTES)
            )
            read = yield from through_cache(plan, self._cache)
        finally:
            self._ahead.end(ticket, read[1:])
        return read[0] if read and read[0].checkpoint.id == checkpoint_id else None

    def _put_plan(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> Plan[RunnableConfig]:
        at = address(config)
        ns = namespace(self._root, at.thread, at.ns)
        parent = self._memory.recall(ns, at.id)
        draft = self._draft(at, checkpoint, get_checkpoint_metadata(config, metadata), new_versions)
        stretch = self._trail.due(ns, at.id, draft.deltas, self._settings.packing)
        plan = put_plan(self._codec, ns, draft, parent, self._settings, stretch, self._life())
        result = yield from self._changing(ns.base, through_cache(plan, self._cache))
        stored = result.checkpoint
        self._memory.remember(ns, stored)
        self._trail.note(ns, result.link, leans=bool(stored.deltas))
        if stretch:
            self._trail.packed(ns, stretch[0].id, len(stretch))
        if self._memory.withhold(ns, stored, draft.manifest or self._manifest != "auto"):
            yield from put_manifest_plan(self._codec, ns, stored)
        return config_of(at.thread, at.ns, stored.id)

    def _changing(self, prefix: str, plan: Plan[T]) -> Plan[T]:
        """Run a plan that changes what lies below a prefix; what was read ahead of it is not served any more."""
        try:
            return (yield from plan)
        finally:
            self._ahead.drop(prefix)

    def _draft(
        self, at: Address, checkpoint: Checkpoint, metadata: CheckpointMetadata, new_versions: ChannelVersions
    ) -> Draft:
        values = checkpoint["channel_values"]

        def serialize(name: str) -> Typed:
            return self._serialize(values[name], f"channel {name!r} of thread {at.thread!r}")

        versions = checkpoint["channel_versions"]
        state = {key: value for key, value in checkpoint.items() if key != "channel_values"}
        run = metadata.get("run_id")
        return Draft(
            thread=at.thread,
            ns=at.ns,
            id=text_of(checkpoint["id"], "checkpoint['id']"),
            parent=at.id,
            run=None if run is None else str(run),
            state=self._serialize(state, f"a checkpoint of thread {at.thread!r}"),
            metadata=self._serialize(dict(metadata), f"the metadata of a checkpoint of thread {at.thread!r}"),
            stored={
                name: (version, serialize(name))
                for name, version in new_versions.items()
                if name in values and name in versions
            },
            inherited={name: version for name, version in versions.items() if name not in new_versions},
            channels=list(versions),
            in_hand=cache(lambda name: serialize(name) if name in values else None),
            deltas=_deltas(metadata),
            manifest=self._wants_manifest(at, checkpoint),
        )

    def _wants_manifest(self, at: Address, checkpoint: Checkpoint) -> bool:
        if self._manifest != "auto":
            return self._manifest == "always"
        ns = namespace(self._root, at.thread, at.ns)
        return not run_goes_on(checkpoint.get("updated_channels")) or self._memory.stops_at(ns, checkpoint["id"])

    def _put_writes_plan(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str
    ) -> Plan[None]:
        at = address(config)
        if at.id is None:
            raise InvalidInput("put_writes needs configurable['checkpoint_id']: writes belong to a checkpoint.")
        batch = WriteBatch(
            thread=at.thread,
            ns=at.ns,
            checkpoint=at.id,
            task=text_of(task_id, "task_id"),
            path=text_of(task_path, "task_path"),
            stamp=self._memory.next_stamp(self._clock()),
            nonce=f"{int(self._random() * (1 << 32)):08x}",
            writes=[
                (
                    write_index(position, channel),
                    channel,
                    self._serialize(value, f"the write to channel {channel!r} of thread {at.thread!r}"),
                )
                for position, (channel, value) in enumerate(writes)
            ],
        )
        ns = namespace(self._root, at.thread, at.ns)
        stops = self._manifest == "auto" and stops_run(channel for channel, _ in writes)
        stopped = self._memory.announce(ns, at.id) if stops else None
        plan = through_cache(put_writes_plan(self._codec, ns, batch, stopped), self._cache)
        stored = yield from self._changing(ns.base, plan)
        if stored is not None:
            self._trail.wrote(ns, at.id, *stored)

    def _walk(
        self,
        config: RunnableConfig | None,
        filter: Mapping[str, Any] | None,
        before: RunnableConfig | None,
        limit: int | None,
    ) -> Walk:
        """A listing that has not begun."""
        from langgraph.checkpoint.s3._plans.listing import Selection, Walk

        if limit is not None:
            _check_number("limit", limit)
        serde = self._serializer()
        thread = ns = checkpoint_id = None
        if config is not None:
            thread, _, checkpoint_id = address(config)
            given = config["configurable"].get("checkpoint_ns")
            ns = None if given is None else text_of(given, "checkpoint_ns")

        def accept(metadata: Typed) -> bool:
            return matches(filter, serde.loads_typed(metadata))

        selection = Selection(thread, ns, checkpoint_id, _before(before), accept if filter else None, self._oldest())
        return Walk(selection, self._root, limit)

    def _page_plan(self, walk: Walk) -> Plan[list[CheckpointTuple]]:
        from langgraph.checkpoint.s3._plans.listing import next_page_plan

        page = yield from through_cache(next_page_plan(self._codec, walk), self._cache)
        return [self._tuple(thread, loaded) for thread, loaded in page]

    def _delete_thread_plan(self, thread_id: str) -> Plan[None]:
        from langgraph.checkpoint.s3._plans.threads import delete_thread_plan

        thread = text_of(thread_id, "thread_id")
        prefix = thread_prefix(self._root, thread)
        yield from self._changing(prefix, delete_thread_plan(self._root, thread, self._trash))
        for remembered in (self._memory, self._trail):
            remembered.forget(prefix)

    def _copy_thread_plan(self, source_thread_id: str, target_thread_id: str) -> Plan[None]:
        from langgraph.checkpoint.s3._plans.threads import copy_thread_plan

        source, target = text_of(source_thread_id, "thread_id"), text_of(target_thread_id, "thread_id")
        reach = self._expire_after.total_seconds() / 2 if self._expire_after else 0.0
        plan = copy_thread_plan(self._codec, self._root, source, target, self._oldest(), reach)
        yield from self._changing(thread_prefix(self._root, target), plan)

    def _prune_plan(self, thread_ids: Sequence[str], strategy: str) -> Plan[None]:
        from langgraph.checkpoint.s3._plans.prune import prune_thread_plan

        threads = texts_of(thread_ids, "thread_ids")
        if strategy not in ("keep_latest", "delete", "delete_all"):
            raise InvalidInput(f"prune strategy {strategy!r} is unknown; use 'keep_latest', 'delete' or 'delete_all'.")
        if strategy == "keep_latest":
            yield from self._check_versioning_plan()
        for thread in threads:
            if strategy == "keep_latest":
                plan = prune_thread_plan(self._codec, self._root, thread, self._trash, self._oldest())
                yield from self._changing(thread_prefix(self._root, thread), plan)
            else:
                yield from self._delete_thread_plan(thread)

    def _oldest(self) -> float:
        """When what can be read was stored at the earliest, in seconds since 1970."""
        return 0.0 if self._expire_after is None else self._clock() / 1e9 - self._expire_after.total_seconds()

    def _life(self) -> Life | None:
        if self._expire_after is None:
            return None
        from langgraph.checkpoint.s3._plans.renew import Life

        return Life(self._clock() / 1e9, self._expire_after.total_seconds())

    def _check_versioning_plan(self) -> Plan[None]:
        """See that what is going to be deleted can be brought back, if it is to. A round trip, once."""
        if self._disposal != "versions" or self._versioned:
            return
        (self._versioned,) = yield [GetVersioning()]
        if not self._versioned:
            raise InvalidInput(
                f"disposal='versions' needs a bucket with versioning, and s3://{self.bucket} has none; nothing was "
                "deleted. Enable versioning, or use disposal='trash'."
            )

    def _delete_for_runs_plan(self, run_ids: Sequence[str]) -> Plan[None]:
        from langgraph.checkpoint.s3._plans.prune import delete_runs_plan

        runs = texts_of(run_ids, "run_ids")
        yield from self._changing(
            self._root, delete_runs_plan(self._codec, self._root, runs, self._trash, self._oldest())
        )

    def _delta_plan(self, config: RunnableConfig, channels: Sequence[str]) -> Plan[dict[str, DeltaChannelHistory]]:
        from langgraph.checkpoint.s3._plans.delta import get_history_plan

        at = address(config)
        ns = namespace(self._root, at.thread, at.ns)
        if not channels:
            return {}
        plan = get_history_plan(self._codec, ns, at.id, list(dict.fromkeys(channels)), self._oldest())
        histories, links = yield from through_cache(plan, self._cache)
        for link in links:
            self._trail.note(ns, link, leans=True)
        return {channel: self._history(channel, it) for channel, it in histories.items()}

    # -- what was read, as the user's objects ------------------------------------------------------

    def _serializer(self) -> SerializerProtocol:
        """The serializer of this moment: the attribute may be replaced at any time."""
        return compressing(self.serde, self._codec.level, self._codec.limit)

    def _serialize(self, value: Any, what: str) -> Typed:
        try:
            name, data = self._serializer().dumps_typed(value)
        except TypeError as error:  # the same class as from any other saver, but it says where to look
            raise TypeError(f"{what} cannot be stored ({error}); keep it out of the state or pass a serde.") from error
        return name, bytes(data)  # a bytearray would still be the caller's to change

    def _tuple(self, thread: str, loaded: Loaded) -> CheckpointTuple:
        it, serde = loaded.checkpoint, self._serializer()
        state = serde.loads_typed(it.state)
        values = {name: serde.loads_typed(value) for name, value in loaded.values.items()}
        return CheckpointTuple(
            config=config_of(thread, it.ns, it.id),
            checkpoint=cast(Checkpoint, {**state, "channel_values": values}),
            metadata=serde.loads_typed(it.metadata),
            parent_config=None if it.parent is None else config_of(thread, it.ns, it.parent),
            pending_writes=[(write.task, write.channel, serde.loads_typed(write.value)) for write in loaded.writes],
        )

    def _history(self, channel: str, it: ChannelHistory) -> DeltaChannelHistory:
        serde = self._serializer()
        history: DeltaChannelHistory = {
            "writes": [(task, channel, serde.loads_typed(value)) for task, value in it.writes]
        }
        if it.seed is not None:
            history["seed"] = serde.loads_typed(it.seed)
        return history

    def get_next_version(self, current: str | None, channel: None) -> str:
        """The version after `current`: a counter that sorts as text, and a random part.

        Two branches of a thread never give the same version to different values.

        Args:
            current: The version the channel has, None for a new channel. Plain numbers are taken too.
            channel: Not used; part of the base class's contract.

        Returns:
            The next version. Costs no request.
        """
        counter = int(str(current).split(".")[0]) if current is not None else 0
        return f"{counter + 1:032}.{self._random():016}"


def address(config: RunnableConfig) -> Address:
    """What a config points at; ids are taken as their text, an empty checkpoint id as none.

    Raises:
        InvalidInput: it has no thread_id, or one of its parts cannot be text.
    """
    if not isinstance(config, Mapping):
        raise InvalidInput(f"the config is a {type(config).__name__}; pass {{'configurable': {{'thread_id': ...}}}}.")
    configurable: object = config.get("configurable")
    if not isinstance(configurable, Mapping) or configurable.get("thread_id") is None:
        raise InvalidInput(
            "the config has no thread_id; pass {'configurable': {'thread_id': ...}}: checkpoints are kept per thread."
        )
    ns, checkpoint_id = configurable.get("checkpoint_ns"), configurable.get("checkpoint_id")
    return Address(
        text_of(configurable["thread_id"], "thread_id"),
        "" if ns is None else text_of(ns, "checkpoint_ns"),
        None if checkpoint_id is None else text_of(checkpoint_id, "checkpoint_id") or None,
    )


def thread_of(config: object) -> str | None:
    """The thread that a config names, for the log. Whether all is right with it, the operation will see."""
    configurable = config.get("configurable") if isinstance(config, Mapping) else None
    thread = configurable.get("thread_id") if isinstance(configurable, Mapping) else None
    return None if thread is None else str(thread)


def config_of(thread: str, ns: str, checkpoint_id: str) -> RunnableConfig:
    """The config that points at a checkpoint, and holds nothing else."""
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ns, "checkpoint_id": checkpoint_id}}


def text_of(it: object, name: str) -> str:
    """An id as text: a str as it is; an int or a UUID, say, by `str`.

    Raises:
        InvalidInput: it is None, bytes or a collection, whose text nobody would mean.
    """
    if isinstance(it, str):
        return it
    if it is None or isinstance(it, (bytes, bytearray, bool, float)) or hasattr(it, "__iter__"):
        raise InvalidInput(f"{name} is a {type(it).__name__}; it has to be a string, an integer or a UUID.")
    return str(it)


def _is_bucket(it: object) -> bool:
    return isinstance(it, str) and _BUCKET.fullmatch(it) is not None


def _check_number(name: str, it: object) -> None:
    if not isinstance(it, int):
        raise InvalidInput(f"{name} has to be a whole number, not {it!r}.")


def _checked_life(expire_after: timedelta | None, root: str) -> timedelta | None:
    given: object = expire_after
    if given is None:
        return None
    if not isinstance(given, timedelta) or given <= timedelta(0):
        raise InvalidInput(f"expire_after must be a timedelta above zero, not {given!r}.")
    if not root:
        raise InvalidInput("expire_after needs a prefix: its lifecycle rule would delete whatever is in the bucket.")
    return given


def texts_of(ids: Sequence[str], name: str) -> list[str]:
    """A list of ids as texts.

    Raises:
        InvalidInput: It is a single text, or one of them cannot be text.
    """
    if isinstance(ids, (str, bytes)):
        raise InvalidInput(f"{name} is a single {type(ids).__name__}; pass a list of ids.")
    return [text_of(it, name.removesuffix("s")) for it in ids]


def _before(config: RunnableConfig | None) -> str | None:
    """The checkpoint id of a `before` config, which Agent Server passes without its `configurable`."""
    if config is None:
        return None
    flat = cast(Mapping[str, Any], config)
    checkpoint_id = (flat.get("configurable") or flat).get("checkpoint_id")
    return text_of(checkpoint_id, "before's checkpoint_id") if checkpoint_id else None


def _deltas(metadata: CheckpointMetadata) -> dict[str, int]:
    """For each delta channel that leans on ancestors, the super-steps since its last snapshot."""
    counters: Mapping[str, Sequence[int]] = metadata.get("counters_since_delta_snapshot") or {}
    return {channel: int(counts[1]) for channel, counts in counters.items() if counts[1] > 0}

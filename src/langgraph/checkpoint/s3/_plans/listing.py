"""Listing checkpoints newest first: of a namespace, of all namespaces of a thread, of all threads.

One mechanism serves all three. Each namespace is a source that gives its folders newest first, a page at
a time; the walk merges the sources by checkpoint id, reads checkpoints in windows, drops those that do
not match, and then loads what the rest need. It holds one page of keys per source, however long they are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from langgraph.checkpoint.s3._keys import (
    THREAD_LIMIT,
    Namespace,
    decode_part,
    encode_part,
    has_descending_key,
    is_folder_part,
    namespace,
    thread_name,
)
from langgraph.checkpoint.s3._objects import CheckpointObject, Codec
from langgraph.checkpoint.s3._plans.folders import Folder, group
from langgraph.checkpoint.s3._plans.read import ATTEMPTS, Loaded, contended, load_plan, missing
from langgraph.checkpoint.s3._requests import (
    MAX_LIST,
    Entry,
    Get,
    List,
    Page,
    Plan,
    Request,
    each,
    get,
    list_all,
    list_folders,
)
from langgraph.checkpoint.s3._values import Typed
from langgraph.checkpoint.s3.errors import MissingObject

WINDOW = 32
"""Checkpoints to read together, at first; a filter that finds little doubles it up to `MAX_WINDOW`."""

MAX_WINDOW = 128

WINDOW_BYTES = 32 << 20
"""Stored bytes to load together: a page of checkpoints with large values is cut there."""

SOURCES = 256
"""Namespaces to ask for their next page in one round trip."""

KEYS_EACH = 4
"""Keys that a checkpoint has in most threads, with its write batches."""


@dataclass(frozen=True)
class Selection:
    """Which checkpoints are wanted. None stands for "any"."""

    thread: str | None = None
    ns: str | None = None
    id: str | None = None
    before: str | None = None
    accept: Callable[[Typed], bool] | None = None  # by metadata
    oldest: float = 0.0  # what was stored before, in seconds since 1970, is gone already


@dataclass
class _Source:
    """One namespace, read page by page; `folders` are known and not yet taken, newest first.

    It begins again from the top if all that it had found was deleted before a checkpoint of it could be
    read: a newer one may have been put above what was listed.
    """

    ns: Namespace
    before: str | None
    oldest: float = 0.0
    attempts: int = 1
    settled: bool = False  # a checkpoint of it was read
    seen: list[str] | None = None  # the keys of the last time, if there was no checkpoint among them
    keys: list[str] = field(default_factory=list)  # the same of this time
    pages: int = 0
    folders: deque[Folder] = field(default_factory=deque)
    cut: list[Entry] = field(default_factory=list)  # of the last folder of a page: it may go on
    token: str | None = None
    started: bool = False
    finished: bool = False

    @property
    def in_order(self) -> bool:
        """Whether `before` can be skipped to in the listing."""
        return self.before is not None and has_descending_key(self.before)

    def requests(self, keys: int) -> list[Request]:
        """What to ask for the next page.

        Of a listing that starts further down, the top is looked at too: it shows whether there are ids whose
        keys do not sort.
        """
        prefix = self.ns.checkpoints
        if self.started:
            return [List(prefix, token=self.token, max_keys=keys)]
        if self.in_order:
            assert self.before is not None
            return [List(prefix, start_after=self.ns.after(self.before), max_keys=keys), List(prefix, max_keys=1)]
        return [List(prefix, max_keys=keys)]

    def take(self, pages: Sequence[Page]) -> bool:
        """Take the next page; False if this namespace has to be sorted by id."""
        entries = [*self.cut, *pages[0].entries]
        folders = group(self.ns, entries)
        top = group(self.ns, pages[-1].entries) if not self.started else []
        self.started, self.token = True, pages[0].token
        self.pages += 1
        if top and not has_descending_key(top[0].id):
            return False
        self.finished = self.token is None
        if not self.finished and folders:
            last = set(folders.pop().keys)
            self.cut = [entry for entry in entries if entry.key in last]
        self.add(folders)
        return True

    @property
    def doubtful(self) -> bool:
        """Whether several pages showed no checkpoint, though one may have moved from an unread page to a read one."""
        nothing = self.finished and not self.folders and not self.settled
        return nothing and self.pages > 1 and self.before is None and self.keys != self.seen

    def again(self) -> _Source:
        """This source from the top."""
        return _Source(self.ns, self.before, self.oldest, self.attempts + 1, seen=self.keys)

    def add(self, folders: Sequence[Folder]) -> None:
        """Take folders, newest first."""
        self.keys += [key for folder in folders if not folder.committed for key in folder.keys]
        self.folders += [
            it
            for it in folders
            if it.committed and it.modified >= self.oldest and (self.before is None or it.id < self.before)
        ]


@dataclass
class Walk:
    """The state of one listing between its pages."""

    selection: Selection
    root: str
    limit: int | None = None
    sources: list[_Source] = field(default_factory=list)
    ready: deque[tuple[_Source, Folder, CheckpointObject]] = field(default_factory=deque)
    window: int = WINDOW
    started: bool = False
    exhausted: bool = False  # nothing more is to be read

    @property
    def done(self) -> bool:
        """Whether nothing more is to be given."""
        return (self.exhausted and not self.ready) or (self.limit is not None and self.limit <= 0)

    @property
    def wanted(self) -> int:
        """How many checkpoints to read next: no more than can be given."""
        if self.limit is None:
            return self.window
        return min(self.window, self.limit) if self.selection.accept is None else self.window


def next_page_plan(codec: Codec, walk: Walk) -> Plan[list[tuple[str, Loaded]]]:
    """The next checkpoints with their thread ids, newest first, until `walk.done`. A page may be empty.

    The first page of one namespace takes two round trips, or three with pending writes or large values.
    Across namespaces or threads, one or two more to find them, and one request for each.
    """
    if not walk.started and not walk.done:
        walk.started = True
        walk.sources = yield from _find_sources_plan(walk)
    while not walk.ready and not walk.done:
        yield from _read_window_plan(codec, walk)
    loaded = yield from each([_load_plan(codec, *it) for it in _cut_window(walk)])
    page = [it for it in loaded if it is not None]
    if walk.limit is not None:
        walk.limit -= len(page)
    return page


def _find_sources_plan(walk: Walk) -> Plan[list[_Source]]:
    """The namespaces that may hold what is wanted."""
    chosen, root = walk.selection, walk.root
    if chosen.thread is not None and chosen.ns is not None:
        return [_Source(namespace(root, chosen.thread, chosen.ns), chosen.before, chosen.oldest)]
    if chosen.thread is not None:
        threads = [encode_part(chosen.thread, THREAD_LIMIT)]
    else:
        threads = [part for part in (yield from list_folders(root)) if is_folder_part(part)]
    sources: list[_Source] = []
    for start in range(0, len(threads), SOURCES):
        some = threads[start : start + SOURCES]
        found = yield from each([list_folders(f"{root}{thread}/") for thread in some])
        for thread, parts in zip(some, found, strict=True):
            spaces = [Namespace(root, thread, part) for part in parts if is_folder_part(part)]
            sources += [_Source(ns, chosen.before, chosen.oldest) for ns in spaces]
    return sources


def _read_window_plan(codec: Codec, walk: Walk) -> Plan[None]:
    """Read the next checkpoints across all sources and keep those that match as `ready`."""
    if walk.selection.id is not None:
        picked = [(source, Folder(walk.selection.id, size=0)) for source in walk.sources]
        walk.sources = []
        picked = yield from _exact_folders_plan(picked)
    else:
        yield from _refill_plan(walk)
        picked = _pick(walk)
    requests = [_request(codec, s.ns, f) for s, f in picked]
    replies = (yield requests) if requests else []
    accept = walk.selection.accept
    for (source, folder), checkpoint in zip(picked, replies, strict=True):
        if checkpoint is None:
            continue  # deleted since the listing
        source.settled = True
        if accept is None or accept(checkpoint.metadata):
            walk.ready.append((source, folder, checkpoint))
    touched = {id(source) for source, _ in picked}
    walk.sources = [
        _once_more(codec, it) if (id(it) in touched and not it.settled) or it.doubtful else it for it in walk.sources
    ]
    walk.window = min(2 * walk.window, MAX_WINDOW)
    walk.exhausted = all(it.finished and not it.folders for it in walk.sources)


def _request(codec: Codec, ns: Namespace, folder: Folder) -> Get:
    key = ns.checkpoint(folder.id)
    return Get(key, codec.read_checkpoint(ns, folder.id), folder.keys.get(key, ""))


def _once_more(codec: Codec, source: _Source) -> _Source:
    if source.attempts == ATTEMPTS:
        raise contended(codec, source.ns.checkpoints)
    return source.again()


def _exact_folders_plan(picked: Sequence[tuple[_Source, Folder]]) -> Plan[list[tuple[_Source, Folder]]]:
    """The folders of one id in each namespace, as far as it may be there."""
    listings = yield from each([list_all(source.ns.folder(folder.id)) for source, folder in picked])
    found = []
    for (source, _), (entries, _) in zip(picked, listings, strict=True):
        source.add(group(source.ns, entries))
        found += [(source, folder) for folder in source.folders]
    return found


def _refill_plan(walk: Walk) -> Plan[None]:
    """Bring every source that has nothing left its next page."""
    keys = min(MAX_LIST, KEYS_EACH * walk.wanted + 2 * KEYS_EACH)
    while hungry := [it for it in walk.sources if not it.folders and not it.finished]:
        for start in range(0, len(hungry), SOURCES):
            yield from _next_pages_plan(hungry[start : start + SOURCES], keys)


def _next_pages_plan(sources: Sequence[_Source], keys: int) -> Plan[None]:
    asked = [source.requests(keys) for source in sources]
    replies = iter((yield [request for requests in asked for request in requests]))
    unsorted = [
        source
        for source, requests in zip(sources, asked, strict=True)
        if not source.take([next(replies) for _ in requests])
    ]
    listings = yield from each([list_all(source.ns.checkpoints) for source in unsorted])
    for source, (entries, pages) in zip(unsorted, listings, strict=True):
        source.finished, source.pages = True, pages
        source.add(sorted(group(source.ns, entries), key=lambda folder: folder.id, reverse=True))


def _pick(walk: Walk) -> list[tuple[_Source, Folder]]:
    """Take the newest folders, until enough or until a source has to be asked first."""
    picked: list[tuple[_Source, Folder]] = []
    size = 0
    while len(picked) < walk.wanted and size < WINDOW_BYTES and all(it.folders or it.finished for it in walk.sources):
        waiting = [it for it in walk.sources if it.folders]
        if not waiting:
            break
        source = max(waiting, key=lambda it: it.folders[0].id)
        folder = source.folders.popleft()
        size += folder.size or 0
        picked.append((source, folder))
    return picked


def _cut_window(walk: Walk) -> list[tuple[_Source, Folder, CheckpointObject]]:
    """Take from `ready` what is to be loaded together."""
    window: list[tuple[_Source, Folder, CheckpointObject]] = []
    size = 0
    most = len(walk.ready) if walk.limit is None else walk.limit
    while walk.ready and len(window) < most and (size < WINDOW_BYTES or not window):
        window.append(walk.ready.popleft())
        size += sum(ref.size for ref in window[-1][2].refs.values())
    return window


def _load_plan(
    codec: Codec, source: _Source, folder: Folder, checkpoint: CheckpointObject
) -> Plan[tuple[str, Loaded] | None]:
    """Load one checkpoint of a listing; None if it was deleted meanwhile."""
    ns = source.ns
    try:
        loaded = yield from load_plan(codec, ns, checkpoint, folder)
    except MissingObject:
        still_there = yield from get(ns.checkpoint(checkpoint.id), codec.read_checkpoint(ns, checkpoint.id))
        if still_there is None:
            return None
        raise
    thread = yield from _thread_id_plan(codec, ns, checkpoint)
    return thread, loaded


def _thread_id_plan(codec: Codec, ns: Namespace, checkpoint: CheckpointObject) -> Plan[str]:
    """The id of the thread that a namespace belongs to: its key tells, unless it is too long for a key.

    The checkpoint does not tell it if it is a copy; then the copy's own name was written beside it.
    """
    thread = decode_part(ns.thread_part)
    if thread is not None:
        return thread
    if encode_part(checkpoint.thread, THREAD_LIMIT) == ns.thread_part:
        return checkpoint.thread
    name = yield from get(thread_name(ns.root, ns.thread_part), lambda body: body.data.decode())
    if name is None:
        raise missing(codec, thread_name(ns.root, ns.thread_part), "it holds the id of a thread")
    return name

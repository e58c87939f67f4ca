"""Every key in the bucket is built and parsed here.

    {prefix}/{thread}/{ns}/latest                                manifest: copy of the newest checkpoint object
    {prefix}/{thread}/{ns}/fence                                 what prunes have condemned
    {prefix}/{thread}/{ns}/c/{desc}.{checkpoint_id}/checkpoint   state, small values, references to blobs
    {prefix}/{thread}/{ns}/c/{desc}.{checkpoint_id}/blob/…       one large channel value
    {prefix}/{thread}/{ns}/c/{desc}.{checkpoint_id}/writes/…     one put_writes call
    {prefix}/{thread}/{ns}/c/{desc}.{checkpoint_id}/history      delta history pack
    {prefix}/{thread}/{ns}/c/{desc}.{checkpoint_id}/stretch/…    copy of what a stretch of a delta chain needs
    {prefix}/{thread}/_name                                      full id of a thread whose part is a hash, once copied
    {prefix}-trash/{thread}/…                                    copy of what was pruned (_trash/ without a prefix)
    {prefix}/_leases/{thread}                                    who may run that thread, and until when
    {prefix}/_runs/{run}/{thread}/{ns}/{desc}.{checkpoint_id}    marker: this run wrote that checkpoint

`desc` makes keys sort newest first: S3 lists in ascending order only. For a UUID (in its canonical
lower-case form, as LangGraph makes them) it is the digit-wise complement of its 32 hex digits. Any
other id has "-", which sorts before every hex digit: one such id shows at the top of the listing and
tells that this namespace has to be sorted by the ids themselves.

A *part* is a text made safe for a key: ASCII letters, digits, "-" and "_" stand for themselves, every
other UTF-8 byte is "." and two hex digits. A part never begins with "_" unless we say something by it:
"_" alone is the empty text, `_start-hash` a text too long for a key.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from langgraph.checkpoint.s3.errors import InvalidInput

MAX_KEY = 1024
"""Bytes in a key (S3 user guide, "Naming Amazon S3 objects")."""

# Longest part of each sort. Together with the fixed texts they stay under MAX_KEY; a test adds them up.
# Five nested subgraphs make a namespace of about 300.
PREFIX_LIMIT = 200
THREAD_LIMIT = 160
NS_LIMIT = 320
ID_LIMIT = 128
NAME_LIMIT = 100

_PLAIN = re.compile(r"[A-Za-z0-9-][A-Za-z0-9_-]*")
_UNSAFE = re.compile(rb"[^A-Za-z0-9_-]")
_ESCAPE = re.compile(rb"\.([0-9A-F]{2})")
_PART = re.compile(r"(?:[A-Za-z0-9-]|\.[0-9A-F]{2})(?:[A-Za-z0-9_-]|\.[0-9A-F]{2})*")
_HASHED = re.compile(r"_(?:[A-Za-z0-9_-]|\.[0-9A-F]{2})*-[0-9a-f]{32}")
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_ALL_ONES = (1 << 128) - 1

# How names below blob/, stretch/ and writes/ end. What follows a "." within a part is upper-case hex, so the letter
# keeps the names of channel "a" apart from those of channel "a/b" ("a.2Fb").
_ENDINGS = {
    "blob": re.compile(r"v[0-9a-f]{32}"),
    "stretch": re.compile(r"p[0-9a-f]{12}"),
    "writes": re.compile(r"r[0-9]{4}|s[0-9a-f]{16}[0-9a-z]*"),
}

Kind: TypeAlias = Literal["checkpoint", "history", "blob", "stretch", "writes"]


def encode_part(text: str, limit: int) -> str:
    """Make a text safe as one part of a key, at most `limit` characters long."""
    if _PLAIN.fullmatch(text) and len(text) <= limit:
        return text
    if not text:
        return "_"
    try:
        raw = text.encode()
    except UnicodeEncodeError:
        raise InvalidInput(
            f"{text[:40]!r} holds lone surrogates and cannot be a part of an S3 key; use valid Unicode."
        ) from None
    part = _UNSAFE.sub(lambda found: b".%02X" % found[0][0], raw).decode()
    if part.startswith("_"):
        part = f".5F{part[1:]}"
    if len(part) <= limit:
        return part
    start = re.sub(r"\.[0-9A-F]?$", "", part[: limit - 34])  # never half an escape
    return f"_{start}-{hashlib.blake2b(raw, digest_size=16).hexdigest()}"


def decode_part(part: str) -> str | None:
    """Read a part back: the text, or None if the part only holds its hash.

    Raises:
        ValueError: no text is encoded so; the key is foreign.
    """
    if part == "_":
        return ""
    if _HASHED.fullmatch(part):
        return None
    if not _PART.fullmatch(part):
        raise ValueError(part)
    text = _ESCAPE.sub(lambda found: bytes([int(found[1], 16)]), part.encode()).decode()
    if encode_part(text, len(part)) != part:
        raise ValueError(part)  # an escape where none is needed
    return text


def has_descending_key(checkpoint_id: str) -> bool:
    """Whether keys of this id sort newest first by themselves (it is a canonical UUID)."""
    return _UUID.fullmatch(checkpoint_id) is not None


def time_of(checkpoint_id: str) -> float | None:
    """When an id was made, in seconds since 1970, if it is a UUID of version 6, as LangGraph's are (RFC 9562, 5.6)."""
    if not has_descending_key(checkpoint_id) or checkpoint_id[14] != "6":
        return None
    digits = checkpoint_id.replace("-", "")
    ticks = int(digits[:12] + digits[13:16], 16)  # of 100 ns, since the Gregorian calendar began
    return ticks / 10_000_000 - 12_219_292_800


def encode_id(checkpoint_id: str) -> str:
    """The name of a checkpoint's folder: `{desc}.{checkpoint_id}`."""
    if has_descending_key(checkpoint_id):
        return f"{_ALL_ONES - int(checkpoint_id.replace('-', ''), 16):032x}.{checkpoint_id}"
    part = encode_part(checkpoint_id, ID_LIMIT)
    if part.startswith("_"):
        raise InvalidInput(
            f"checkpoint_id {checkpoint_id[:40]!r} is empty or longer than {ID_LIMIT} characters once encoded; "
            "use a UUID as LangGraph does, or a shorter id."
        )
    return f"-.{part}"


def decode_id(folder: str) -> str:
    """Read a checkpoint id from its folder's name; ValueError if the folder is foreign."""
    text = folder[2:] if folder.startswith("-.") else folder[33:]
    checkpoint_id = decode_part(text)
    if not checkpoint_id or encode_id(checkpoint_id) != folder:
        raise ValueError(folder)
    return checkpoint_id


class Located(NamedTuple):
    """What a key below `{base}/c/` is: which checkpoint's, what sort of object, its name."""

    checkpoint_id: str
    kind: Kind
    name: str


@dataclass(frozen=True)
class Namespace:
    """One namespace of one thread; all keys of its objects come from here."""

    root: str  # the saver's prefix, with its closing slash unless it is empty
    thread_part: str
    ns_part: str

    @property
    def base(self) -> str:
        """The common start of all its keys."""
        return f"{self.root}{self.thread_part}/{self.ns_part}/"

    @property
    def checkpoints(self) -> str:
        """The prefix under which a listing gives checkpoints, newest first."""
        return f"{self.base}c/"

    @property
    def latest(self) -> str:
        """The manifest."""
        return f"{self.base}latest"

    @property
    def fence(self) -> str:
        """What prunes have condemned in this namespace."""
        return f"{self.base}fence"

    def folder(self, checkpoint_id: str) -> str:
        """The prefix of everything that lies beside one checkpoint."""
        return f"{self.checkpoints}{encode_id(checkpoint_id)}/"

    def after(self, checkpoint_id: str) -> str:
        """`StartAfter` that skips this checkpoint's folder and everything newer ("0" follows "/")."""
        return f"{self.checkpoints}{encode_id(checkpoint_id)}0"

    def checkpoint(self, checkpoint_id: str) -> str:
        """The checkpoint object: the commit point."""
        return f"{self.folder(checkpoint_id)}checkpoint"

    def history(self, checkpoint_id: str) -> str:
        """The history pack: what delta channels need of ancestors that are gone."""
        return f"{self.folder(checkpoint_id)}history"

    def stretch(self, checkpoint_id: str, name: str) -> str:
        """A packed stretch of a delta chain that ends here, by its name (a `StretchName`)."""
        return f"{self.folder(checkpoint_id)}stretch/{name}"

    def blob(self, checkpoint_id: str, name: str) -> str:
        """A large channel value, by the name that `blob_name` gave it."""
        return f"{self.folder(checkpoint_id)}blob/{name}"

    def writes(self, checkpoint_id: str, name: str = "") -> str:
        """A write batch by its name, or the prefix of all of them."""
        return f"{self.folder(checkpoint_id)}writes/{name}"

    def marker(self, run_id: str, checkpoint_id: str) -> str:
        """The marker by which `delete_for_runs` finds this checkpoint."""
        return f"{runs_prefix(self.root, run_id)}{self.thread_part}/{self.ns_part}/{encode_id(checkpoint_id)}"

    def locate(self, key: str) -> Located | None:
        """Tell what a key below `checkpoints` is; None if it is not one of ours."""
        if not key.startswith(self.checkpoints):
            return None
        folder, _, rest = key[len(self.checkpoints) :].partition("/")
        kind, slash, name = rest.partition("/")
        if not (_is_name(kind, name) if slash else kind in ("checkpoint", "history")):
            return None
        try:
            return Located(decode_id(folder), kind, name)  # type: ignore[arg-type]
        except ValueError:
            return None


def _is_name(kind: str, name: str) -> bool:
    part, _, ending = name.rpartition(".")
    return kind in _ENDINGS and bool(_ENDINGS[kind].fullmatch(ending)) and is_folder_part(part)


def is_checkpoint(key: str) -> bool:
    """Whether a key is a checkpoint object's."""
    return key.endswith("/checkpoint")


def root_of(prefix: str) -> str:
    """Check the saver's prefix and give it its closing slash.

    Raises:
        InvalidInput: it is longer than `PREFIX_LIMIT` bytes, no valid Unicode, or has empty, "." or ".." parts.
    """
    trimmed = prefix.strip("/")
    if any(part in ("", ".", "..") for part in trimmed.split("/")) and trimmed:
        raise InvalidInput(f"prefix {prefix!r} has an empty, '.' or '..' part; use a plain path such as 'agents/prod'.")
    try:
        size = len(trimmed.encode())
    except UnicodeEncodeError:
        raise InvalidInput(f"prefix {prefix[:40]!r} holds lone surrogates; use valid Unicode.") from None
    if size > PREFIX_LIMIT:
        raise InvalidInput(
            f"prefix is longer than {PREFIX_LIMIT} bytes; S3 keys hold {MAX_KEY} in all, use a shorter one."
        )
    return f"{trimmed}/" if trimmed else ""


def namespace(root: str, thread_id: str, checkpoint_ns: str) -> Namespace:
    """The namespace of a thread."""
    return Namespace(root, encode_part(thread_id, THREAD_LIMIT), encode_part(checkpoint_ns, NS_LIMIT))


def thread_prefix(root: str, thread_id: str) -> str:
    """The prefix of everything that belongs to a thread. No other thread's prefix begins with it."""
    return f"{root}{encode_part(thread_id, THREAD_LIMIT)}/"


def thread_name(root: str, thread_part: str) -> str:
    """The object that holds the full id of a copied thread whose part is a hash."""
    return f"{root}{thread_part}/_name"


def lease_key(root: str, thread_id: str) -> str:
    """The object of a thread's lease. It lies outside of the thread ("_leases" is no thread's part)."""
    return f"{root}_leases/{encode_part(thread_id, THREAD_LIMIT)}"


def trash_of(root: str) -> str:
    """The prefix below which lies what was thrown away, outside of the saver's own ("_trash" is no thread's part)."""
    return f"{root[:-1]}-trash/" if root else "_trash/"


def in_trash(root: str, trash: str, key: str) -> str:
    """Where a copy of a key lies in the trash."""
    return f"{trash}{key[len(root) :]}"


def runs_prefix(root: str, run_id: str) -> str:
    """The prefix of a run's markers."""
    return f"{root}_runs/{encode_part(run_id, NAME_LIMIT)}/"


def is_folder_part(part: str) -> bool:
    """Whether a folder's name can be a thread's or a namespace's part (and not, say, `_runs`)."""
    try:
        decode_part(part)
    except ValueError:
        return False
    return True


def parse_marker(root: str, run_id: str, key: str) -> tuple[Namespace, str] | None:
    """The namespace and checkpoint id that a run's marker names; None if it is not one."""
    parts = key[len(runs_prefix(root, run_id)) :].split("/")
    if len(parts) != 3 or not all(map(is_folder_part, parts[:2])):
        return None
    try:
        return Namespace(root, parts[0], parts[1]), decode_id(parts[2])
    except ValueError:
        return None


def is_ours(root: str, thread_part: str, key: str) -> bool:
    """Whether a key below a thread's prefix was built here; foreign objects are left alone."""
    if key == thread_name(root, thread_part):
        return True
    ns_part, _, rest = key[len(root) + len(thread_part) + 1 :].partition("/")
    if not is_folder_part(ns_part):
        return False
    return rest in ("latest", "fence") or Namespace(root, thread_part, ns_part).locate(key) is not None


def blob_name(channel: str, content: bytes) -> str:
    """The name of a large value: its channel and a digest.

    So a repeated put finds its own blob, and another value never overwrites one that is referred to.
    """
    return f"{blob_start(channel)}{hashlib.blake2b(content, digest_size=16).hexdigest()}"


def blob_start(channel: str) -> str:
    """How the names of a channel's blobs begin."""
    return f"{encode_part(channel, NAME_LIMIT)}.v"


def numbered_batch(task_id: str, number: int) -> str:
    """The fixed name of a task's n-th batch of regular writes: whoever creates it first wins."""
    return f"{encode_part(task_id, NAME_LIMIT)}.r{number:04d}"


def stamped_batch(task_id: str, stamp: int, nonce: str) -> str:
    """A unique name that sorts by time, for a batch that must never be refused."""
    return f"{encode_part(task_id, NAME_LIMIT)}.s{stamp:016x}{nonce}"


class StretchName(NamedTuple):
    """What the name of a packed stretch tells, so that a listing shows what need not be read."""

    oldest: str  # checkpoint
    length: int  # in checkpoints
    limit: int  # bytes of the largest write batch in it

    def __str__(self) -> str:
        return f"{self.oldest}.p{self.length:04x}{self.limit:08x}"


def parse_stretch_name(name: str) -> StretchName:
    """Read the name of a packed stretch."""
    oldest, _, numbers = name.rpartition(".p")
    return StretchName(oldest, int(numbers[:4], 16), int(numbers[4:], 16))

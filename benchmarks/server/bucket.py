"""Buckets in memory. A listing finds its place by bisection, so that it costs little however many keys there are."""

from __future__ import annotations

import hashlib
import time
from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Object:
    """What a key holds: bytes, and the headers that come back with them."""

    data: bytes
    etag: str
    modified: float
    headers: Mapping[str, str]


@dataclass
class Upload:
    """A multipart upload that is under way."""

    key: str
    headers: Mapping[str, str]
    parts: dict[int, Object] = field(default_factory=dict)


@dataclass(frozen=True)
class Page:
    """One page of a listing; `last` is where the next one goes on, None if there is none."""

    keys: Sequence[str]
    folders: Sequence[str]
    last: str | None


def make_object(data: bytes, headers: Mapping[str, str]) -> Object:
    """An object of now."""
    return Object(data, f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"', time.time(), headers)


class Bucket:
    """One bucket. `str` sorts by code point, which is the order of UTF-8 bytes and so S3's."""

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.uploads: dict[str, Upload] = {}
        self._keys: list[str] = []

    def store(self, key: str, it: Object) -> None:
        """Put an object, in the place of an earlier one."""
        if key not in self.objects:
            insort(self._keys, key)
        self.objects[key] = it

    def delete(self, key: str) -> None:
        """Remove a key if it is there."""
        if self.objects.pop(key, None):
            del self._keys[bisect_left(self._keys, key)]

    def size(self, prefix: str = "") -> int:
        """Bytes of all objects below a prefix."""
        start, end = bisect_left(self._keys, prefix), self._end(prefix)
        return sum(len(self.objects[key].data) for key in self._keys[start:end])

    def page(self, prefix: str, delimiter: str, after: str, max_keys: int, skip_folder: bool = True) -> Page:
        """The keys below a prefix that come after a key or a folder.

        Args:
            prefix: What the keys begin with.
            delimiter: Keys that are equal up to its first occurrence behind the prefix are listed as one folder.
            after: A key, or a folder of the page before.
            max_keys: How many keys and folders at most.
            skip_folder: Whether `after` may be a folder, to go on behind all of it.
        """
        keys: list[str] = []
        folders: list[str] = []
        last = after
        whole_folder = skip_folder and delimiter and after.endswith(delimiter) and after != prefix
        at = max(bisect_left(self._keys, prefix), self._end(after) if whole_folder else bisect_right(self._keys, after))
        end = self._end(prefix)
        while at < end and len(keys) + len(folders) < max_keys:
            last = self._keys[at]
            cut = last.find(delimiter, len(prefix)) if delimiter else -1
            if cut < 0:
                keys.append(last)
                at += 1
            else:
                last = last[: cut + len(delimiter)]
                folders.append(last)
                at = self._end(last)
        return Page(keys, folders, last if at < end and max_keys else None)

    def _end(self, prefix: str) -> int:
        """The index behind the last key with this prefix."""
        return bisect_right(self._keys, prefix, key=lambda key: key[: len(prefix)])

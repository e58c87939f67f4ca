"""Packing a stretch of a delta chain, so that who reads the chain has to read few objects.

A saver that has seen the writes of some consecutive checkpoints copies what delta channels need of them into
one object. Nothing depends on it. Short stretches are packed soon; later a long one takes the place of many. Both
together take at most a tenth of what the chain itself takes: where they would be more the largest write batches
stay out, and a pack's name says how large those are.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from langgraph.checkpoint.s3._keys import Namespace, StretchName
from langgraph.checkpoint.s3._objects import Codec, Link, Stretch, WriteBatch


@dataclass(frozen=True)
class Packing:
    """When a stretch is packed, and what its pack may take.

    A chain of a thousand is then eight long packs or fewer, seven short ones or fewer, and up to seventeen
    checkpoints with their writes.
    """

    short: int = 16  # checkpoints
    long: int = 128  # the same
    longest: int = 512  # the same, where a chain that nobody packed is caught up with
    short_share: float = 1 / 30  # of the bytes that it was made of
    long_share: float = 1 / 15  # the same
    largest: int = 8 << 10  # bytes, as stored, of a write batch; a larger one is worth a request of its own


def pack_stretch(
    codec: Codec,
    ns: Namespace,
    thread: str,
    ns_text: str,
    links: Sequence[Link],
    channels: Collection[str],
    packing: Packing,
) -> list[tuple[str, bytes]]:
    """Pack consecutive links of a chain, newest first, if there are any; returns the key and the object.

    As many of the smaller write batches go in as its size allows; none is packed that would be larger without any.
    """
    share = packing.long_share if len(links) >= packing.long else packing.short_share
    most = share * sum(link.size + sum(link.sizes.values()) for link in links)
    sizes = {size for link in links for size in link.sizes.values() if size <= packing.largest}
    limits = sorted({0, *sizes}) if links else []
    fitting: list[tuple[str, bytes]] = []
    low, high = 0, len(limits)
    while low < high:
        # The largest first: mostly all of them fit.
        middle = len(limits) - 1 if (low, high) == (0, len(limits)) else (low + high) // 2
        kept = [_slim(link, channels, limits[middle]) for link in links]
        packed = codec.stretch(Stretch(thread, ns_text, links[0].id, sorted(channels), kept))
        if len(packed) <= most:
            name = StretchName(links[-1].id, len(links), limits[middle])
            fitting, low = [(ns.stretch(links[0].id, str(name)), packed)], middle + 1
        else:
            high = middle
    return fitting


def _slim(link: Link, channels: Collection[str], limit: int) -> Link:
    """What some channels need of a link, without its larger batches."""
    batches = {name: _of(batch, channels) for name, batch in link.batches.items() if link.sizes[name] <= limit}
    return replace(
        link,
        stored=[name for name in link.stored if name in channels],
        blank=[name for name in link.blank if name in channels],
        batches=batches,
    )


def _of(batch: WriteBatch, channels: Collection[str]) -> WriteBatch:
    """A batch with the values of some channels only.

    Other writes keep their place, as the first write of an index wins, whatever its channel.
    """
    nothing = ("", b"")
    return replace(batch, writes=[(i, name, value if name in channels else nothing) for i, name, value in batch.writes])

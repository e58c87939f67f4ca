"""What the saver has asked of S3 so far: the numbers behind a bill and behind a latency."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from operator import add, sub

from langgraph.checkpoint.s3._requests import Copy, Delete, DeleteVersions, Get, List, ListVersions, Put, Request


@dataclass(frozen=True)
class Stats:
    """An immutable count. Two snapshots subtract to what happened between them.

    Counts what plans ask for: repeated tries of the client and the driver are not in it, nor are
    requests about the bucket itself, except in `round_trips`. Bytes are those of object bodies.
    """

    operations: int = 0
    round_trips: int = 0
    gets: int = 0
    puts: int = 0  # a large object is begun, uploaded in parts, and completed: a request for each
    lists: int = 0
    deletes: int = 0  # DeleteObjects calls, of up to 1,000 keys each
    copies: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0

    @classmethod
    def of(cls, batch: Sequence[Request], bytes_received: int = 0) -> Stats:
        """Count one batch of requests.

        Args:
            batch: What a plan yielded. An empty batch is no round trip.
            bytes_received: Bytes of the bodies that came back. The driver says, because by the time
                a batch is answered a `Get` has been decoded into something of another size.
        """
        kinds = Counter(type(request) for request in batch)
        return cls(
            round_trips=max(map(_round_trips, batch), default=0),
            gets=kinds[Get],
            puts=sum(request.requests for request in batch if isinstance(request, Put)),
            lists=kinds[List] + kinds[ListVersions],
            deletes=kinds[Delete] + kinds[DeleteVersions],
            copies=kinds[Copy],
            bytes_sent=sum(len(request.body) for request in batch if isinstance(request, Put)),
            bytes_received=bytes_received,
        )

    @property
    def requests(self) -> int:
        """All requests together."""
        return self.gets + self.puts + self.lists + self.deletes + self.copies

    @property
    def dollars(self) -> float:
        """What AWS asks for these requests, at list prices (S3 Standard, us-east-1), without storage and traffic.

        $5.00 per million PUT, COPY and LIST, $0.40 per million GET, nothing for deletions (aws.amazon.com/s3/pricing).
        """
        return (self.puts + self.copies + self.lists) * 5.00e-6 + self.gets * 0.40e-6

    # By `vars`, in the order of the fields: `astuple` copies deeply, and a turn of a graph adds a hundred times.
    def __add__(self, other: Stats) -> Stats:
        return Stats(*map(add, vars(self).values(), vars(other).values()))

    def __sub__(self, other: Stats) -> Stats:
        return Stats(*map(sub, vars(self).values(), vars(other).values()))


def _round_trips(request: Request) -> int:
    return 3 if isinstance(request, Put) and request.parts > 1 else 1

"""The log of requests, and what can be read from it: how many, how long one after the other, and for how much."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

DOLLARS_PER_MILLION: Mapping[str, float] = {
    "PUT": 5.00,
    "COPY": 5.00,
    "POST": 5.00,
    "LIST": 5.00,
    "GET": 0.40,
    "HEAD": 0.40,
    "DELETE": 0.00,
}
"""AWS's list prices of S3 requests (us-east-1, Standard). Requests of other kinds are paid by unit, or not at all."""

DOLLARS_PER_MILLION_WRITE_UNITS = 0.625
DOLLARS_PER_MILLION_READ_UNITS = 0.125
"""AWS's list prices of DynamoDB on demand."""


@dataclass(frozen=True)
class Entry:
    """One request.

    Attributes:
        kind: Which price it has: PUT, GET, LIST and so on; for other services the name of the call.
        start: When it had begun to arrive, in seconds of the server's clock.
        end: When its answer was sent.
        up: Bytes of its body.
        down: Bytes of the answer's body.
        status: The HTTP status of the answer.
        write_units: DynamoDB's, of 1 KiB.
        read_units: DynamoDB's, of 4 KiB.
    """

    kind: str
    start: float
    end: float
    up: int = 0
    down: int = 0
    status: int = 200
    write_units: float = 0
    read_units: float = 0


def kinds(log: Iterable[Entry]) -> dict[str, int]:
    """How many requests of each kind, the most frequent first."""
    return dict(Counter(entry.kind for entry in log).most_common())


def longest_chain(log: Iterable[Entry]) -> int:
    """The length of the longest sequence of requests each of which starts after the one before has ended.

    This is what latency is paid for. Always to go on with the request that ends first is optimal.
    """
    length, free = 0, float("-inf")
    for entry in sorted(log, key=lambda entry: entry.end):
        if entry.start >= free:
            length, free = length + 1, entry.end
    return length


def dollars_per_million(log: Iterable[Entry]) -> float:
    """What these requests would cost if they were made a million times, at AWS's list prices."""
    return sum(
        DOLLARS_PER_MILLION.get(entry.kind, 0)
        + entry.write_units * DOLLARS_PER_MILLION_WRITE_UNITS
        + entry.read_units * DOLLARS_PER_MILLION_READ_UNITS
        for entry in log
    )

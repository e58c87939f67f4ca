"""The lease of a thread: one small object, replaced by conditional writes alone, says who may run the thread.

Who replaces the object that it has read holds the lease, and nobody else who has read the same. Each holder writes an
id that nobody else has: one whose request took effect while its answer was lost, so that the client has sent it again,
is refused and finds its own id there.

A lease ends by the store's clock: by the age that the store gives the object, at the time that the store gives for its
answer. Both may be cut to whole seconds, so others wait for one more. The holder counts by a clock of its own, and from
before it has asked: it stops first. Clocks have to run at the same pace, and need not show the same time.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from typing import NamedTuple

from langgraph.checkpoint.s3._requests import ABSENT, Body, Delete, Get, List, Page, Plan, Put, Stored
from langgraph.checkpoint.s3.errors import Contended, CorruptObject, LeaseLost, StorageError, ThreadBusy

ATTEMPTS = 8
"""Looks at a lease that others keep changing."""

GRAIN = 1.0
"""Seconds to which a store may cut its times (RFC 9110, "HTTP-date"; ListObjectsV2's LastModified on AWS)."""

NO_ETAG = '"00000000000000000000000000000000"'


@dataclass(frozen=True)
class Holding:
    """What the object says. `owner` is empty once the lease was given back; `ttl` and `taken` are in seconds."""

    owner: str
    number: int
    ttl: float
    taken: float  # by the store's clock, since 1970
    renewals: int = 0  # each has another ETag

    def pack(self) -> bytes:
        """The object's content, for people too."""
        return json.dumps(vars(self)).encode()


class Look(NamedTuple):
    """The object as it was at one moment of the store's clock; no holding if there was none."""

    now: float
    modified: float = 0.0
    holding: Holding | None = None
    etag: str = ABSENT

    @property
    def left(self) -> float:
        """Seconds after which others may take the lease."""
        if self.holding is None or not self.holding.owner:
            return 0.0
        return self.modified + self.holding.ttl + GRAIN - self.now


@dataclass
class Tenure:
    """One holder of one lease, on its way.

    Attributes:
        owner: An id that no other tenure has.
        monotonic: The holder's clock, in seconds.
        deadline: When the holder has to stop, by its clock.
        holding: What it has written last; None before it holds the lease.
    """

    bucket: str
    key: str
    thread: str
    ttl: float
    owner: str
    monotonic: Callable[[], float]
    deadline: float = 0.0
    holding: Holding | None = None
    etag: str = ABSENT

    @property
    def place(self) -> str:
        """Where the object is, for errors."""
        return f"s3://{self.bucket}/{self.key}"

    def note(self, etag: str) -> None:
        """Take the ETag of what was stored."""
        self.etag = etag


def acquire_plan(it: Tenure) -> Plan[None]:
    """Take the lease. Two round trips: a LIST and a GET, then a PUT; two more for each time that others are faster.

    Raises:
        ThreadBusy: Another holds it.
        Contended: It kept changing.
        StorageError: The store does not know conditional writes.
    """
    sent = it.monotonic()
    refused: str | None = None
    for _ in range(ATTEMPTS):
        there = yield from _look_plan(it)
        if there is None:
            continue
        holding = there.holding
        if holding is not None and holding.owner == it.owner:
            it.holding, it.etag, it.deadline = holding, there.etag, sent + it.ttl
            return
        if there.left > 0:
            assert holding is not None
            raise busy(it, there, holding)
        if refused == there.etag:
            raise unsupported(it)  # refused, although it is there as it was read
        # Never smaller than one before, even if the object was deleted in between.
        number = max(int(there.now * 1000), holding.number + 1 if holding else 0)
        wanted = Holding(it.owner, number, it.ttl, there.now)
        if (yield from _write_plan(it, wanted, there.etag)):
            it.deadline = sent + it.ttl
            return
        refused = there.etag
    raise Contended(f"{it.place} kept changing: others are taking this lease. Try again.")


def renew_plan(it: Tenure) -> Plan[None]:
    """Hold the lease for another `ttl`, from now on. One round trip.

    Raises:
        LeaseLost: It ended, and another has taken it since.
    """
    sent = it.monotonic()
    holding = _held(it)
    yield from _replace_plan(it, replace(holding, renewals=holding.renewals + 1))
    it.deadline = sent + it.ttl


def release_plan(it: Tenure) -> Plan[None]:
    """Give the lease back. One round trip.

    Raises:
        LeaseLost: It ended, and another has taken it since.
    """
    yield from _replace_plan(it, replace(_held(it), owner=""))
    it.holding = None


def conditions_plan(it: Tenure) -> Plan[None]:
    """See that the store keeps to conditions: it has to refuse two writes that must not happen. One round trip.

    Some stores ignore the headers and would give a lease to everybody. Writes what lies there already, so one that does
    so has done no harm. The lease must be held; it is deleted if it is worth nothing.

    Raises:
        StorageError: The store does not keep to them.
    """
    body = _held(it).pack()
    outcomes = yield [Put(it.key, body, ABSENT), Put(it.key, body, NO_ETAG)]
    if list(outcomes) != [Stored.REFUSED, Stored.REFUSED]:
        _ = yield [Delete([it.key])]
        raise unsupported(it)


def _held(it: Tenure) -> Holding:
    assert it.holding is not None
    return it.holding


def _look_plan(it: Tenure) -> Plan[Look | None]:
    """Read the lease and its age. None if it changed between the two. One round trip."""
    page, found = yield [List(it.key, max_keys=1), Get(it.key, _reader(it))]
    assert isinstance(page, Page)
    if not page.date:
        raise StorageError(
            f"the answer to a listing of {it.place} has no Date header, and leases end by the store's clock."
        )
    now = parsedate_to_datetime(page.date).timestamp()
    entry = next((entry for entry in page.entries if entry.key == it.key), None)
    if entry is None or found is None:
        return Look(now) if entry is None and found is None else None
    holding, etag = found
    return Look(now, entry.modified, holding, etag) if etag == entry.etag else None


def _reader(it: Tenure) -> Callable[[Body], tuple[Holding, str]]:
    def decode(body: Body) -> tuple[Holding, str]:
        try:
            return Holding(**json.loads(body.data)), body.etag
        except (TypeError, ValueError) as error:
            raise CorruptObject(f"{it.place} is no lease ({error}); delete it if no run is under way.") from error

    return decode


def _write_plan(it: Tenure, wanted: Holding, etag: str) -> Plan[bool]:
    (outcome,) = yield [Put(it.key, wanted.pack(), etag, noted=it.note)]
    if outcome is Stored.UNSUPPORTED:
        raise unsupported(it)
    if outcome is Stored.DONE:
        it.holding = wanted
    return outcome is Stored.DONE


def _replace_plan(it: Tenure, wanted: Holding) -> Plan[None]:
    """Replace what this tenure has written last, and nothing else."""
    for _ in range(ATTEMPTS):
        if (yield from _write_plan(it, wanted, it.etag)):
            return
        there = yield from _look_plan(it)
        if there is None:
            continue
        if there.holding == wanted:  # it did that, and did not hear of it
            it.holding, it.etag = wanted, there.etag
            return
        raise LeaseLost(
            f"the lease of thread {it.thread!r} at {it.place} ended after {it.ttl:g} s and was taken by another run, "
            "which may have gone on with the thread, or deleted. Use a longer ttl, or renew() in time."
        )
    raise Contended(f"{it.place} kept changing. Try again.")


def busy(it: Tenure, there: Look, holding: Holding) -> ThreadBusy:
    """The error that says who is there, and for how long."""
    age = max(0.0, there.now - holding.taken)
    return ThreadBusy(
        f"thread {it.thread!r} is held by another run since {age:.0f} s (lease {holding.number} at {it.place}), for at "
        f"most {there.left:.0f} s more. Try again later.",
        thread_id=it.thread,
        age=age,
        left=there.left,
    )


def unsupported(it: Tenure) -> StorageError:
    """The error for a store on which there can be no lease."""
    return StorageError(
        f"this store does not keep to the conditions of a write to {it.place}, which leases are made of. Use a store "
        "with conditional writes (AWS S3 has them), or do without leases: the saver itself needs none."
    )

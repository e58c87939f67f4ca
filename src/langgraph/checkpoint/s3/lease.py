"""Leases of threads, as `S3Saver.lease` and `AsyncS3Saver.lease` give them to those who hold them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from langgraph.checkpoint.s3._plans.lease import Tenure, renew_plan
from langgraph.checkpoint.s3._requests import Plan


class Held:
    """What both kinds of lease tell."""

    def __init__(self, tenure: Tenure) -> None:
        assert tenure.holding is not None
        self._tenure = tenure
        self.number: int = tenure.holding.number

    @property
    def thread_id(self) -> str:
        """The thread that is held."""
        return self._tenure.thread

    @property
    def left(self) -> float:
        """For how many seconds more it is held for sure, by this process's clock; negative once it has ended."""
        return self._tenure.deadline - self._tenure.monotonic()


class Lease(Held):
    """A thread that this process may run, and nobody else.

    Attributes:
        number: The fencing number: greater than that of each lease of this thread before. Give it to what you write to
            besides the thread, and let that refuse smaller ones: so a run that was frozen for longer than its lease
            does no harm.
    """

    def __init__(self, tenure: Tenure, run: Callable[[Plan[None]], None]) -> None:
        super().__init__(tenure)
        self._run = run

    def renew(self) -> None:
        """Hold it for another `ttl`, from now on. One round trip.

        Raises:
            LeaseLost: It ended, and another has taken it since.
            StorageError: S3 refused, or could not be reached; the lease ends as it would have.
        """
        self._run(renew_plan(self._tenure))


class AsyncLease(Held):
    """A thread that this task may run, and nobody else.

    Attributes:
        number: As `Lease.number`.
    """

    def __init__(self, tenure: Tenure, run: Callable[[Plan[None]], Awaitable[None]]) -> None:
        super().__init__(tenure)
        self._run = run

    async def renew(self) -> None:
        """Hold it for another `ttl`, from now on. One round trip. The rest is told at `Lease.renew`."""
        await self._run(renew_plan(self._tenure))

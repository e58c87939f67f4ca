"""Every exception that the saver raises on its own account.

They are told apart by what a handler would do. `kind` is stable and is added to, never renamed;
the message is for people. A message names the bucket, the key and the operation, and says what to do.
"""

from __future__ import annotations

from typing import ClassVar


class S3SaverError(Exception):
    """Base class. `kind` names the failure for programs."""

    kind: ClassVar[str] = "error"


class InvalidInput(S3SaverError, ValueError):
    """The caller's mistake. Nothing was read or written."""

    kind = "invalid_input"


class StorageError(S3SaverError):
    """S3 refused or could not be reached; botocore's retries are used up.

    The operation may or may not have taken effect; every operation can be repeated safely.
    """

    kind = "storage"


class BucketNotFound(StorageError):
    """The bucket does not exist in this account, region or endpoint."""

    kind = "bucket_not_found"


class AccessDenied(StorageError):
    """Credentials are missing, wrong or expired, or the policy does not allow the request."""

    kind = "access_denied"


class CorruptObject(S3SaverError):
    """An object is not what its key says: altered, truncated, foreign or planted."""

    kind = "corrupt_object"


class UnsupportedFormat(CorruptObject):
    """The object was written by a newer release of this package."""

    kind = "unsupported_format"


class ObjectTooLarge(S3SaverError):
    """A value is larger than `max_object_bytes`, on writing or once decompressed."""

    kind = "object_too_large"


class MissingObject(S3SaverError):
    """Something that a stored checkpoint depends on is gone, so its state cannot be told."""

    kind = "missing_object"


class CheckpointPruned(S3SaverError):
    """The checkpoint this one was to build on was pruned meanwhile; nothing was stored.

    Read the thread again and continue from its latest checkpoint.
    """

    kind = "checkpoint_pruned"


class Contended(S3SaverError):
    """Another process kept changing the same thing. Nothing was lost; try again."""

    kind = "contended"


class ThreadBusy(S3SaverError):
    """Another run holds the thread's lease. Nothing was done; try again later.

    Attributes:
        thread_id: The thread.
        age: For how many seconds it has been held, by the store's clock.
        left: After how many seconds it is free at the latest, unless its holder renews it.
    """

    kind = "thread_busy"

    def __init__(self, message: str, *, thread_id: str, age: float, left: float) -> None:
        super().__init__(message)
        self.thread_id, self.age, self.left = thread_id, age, left


class LeaseLost(S3SaverError):
    """The lease ended before its holder did, and another run has taken it, or somebody has deleted it."""

    kind = "lease_lost"


class LifecycleWarning(UserWarning):
    """A lifecycle rule of the bucket would delete or archive live objects. Warned of by `setup()`."""

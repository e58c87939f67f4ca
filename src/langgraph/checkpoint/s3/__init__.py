"""A LangGraph checkpointer whose only infrastructure is an S3 bucket."""

from langgraph.checkpoint.s3._run import Observer, Operation
from langgraph.checkpoint.s3._saver import S3Saver
from langgraph.checkpoint.s3._stats import Stats
from langgraph.checkpoint.s3.errors import (
    AccessDenied,
    BucketNotFound,
    CheckpointPruned,
    Contended,
    CorruptObject,
    InvalidInput,
    LeaseLost,
    LifecycleWarning,
    MissingObject,
    ObjectTooLarge,
    S3SaverError,
    StorageError,
    ThreadBusy,
    UnsupportedFormat,
)

__all__ = [
    "AccessDenied",
    "BucketNotFound",
    "CheckpointPruned",
    "Contended",
    "CorruptObject",
    "InvalidInput",
    "LeaseLost",
    "LifecycleWarning",
    "MissingObject",
    "ObjectTooLarge",
    "Observer",
    "Operation",
    "S3Saver",
    "S3SaverError",
    "Stats",
    "StorageError",
    "ThreadBusy",
    "UnsupportedFormat",
]

"""Retention as a Lambda function, called once a day: the handler is `retention.handler`."""

import json
import os
from datetime import timedelta
from typing import Any

import boto3

from langgraph.checkpoint.s3 import S3Saver
from langgraph.checkpoint.s3.retention import RetentionPolicy

# On a bucket with versions, so that `undo_prune` can bring back what this deletes.
saver = S3Saver(os.environ["BUCKET"], os.environ.get("PREFIX", "agents"), disposal="versions")
policy = RetentionPolicy(
    keep_last=int(os.environ.get("KEEP_LAST", "20")),
    thread_idle=timedelta(days=int(os.environ.get("RETENTION_DAYS", "90"))),
)
RESERVE = timedelta(seconds=60)
"""For the threads that are under way when the time is up."""


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """Let old checkpoints and idle threads go. What does not fit into one invocation is done by the next."""
    left = timedelta(milliseconds=context.get_remaining_time_in_millis())
    report = saver.apply_retention(policy, cursor=event.get("cursor"), stop_after=max(left - RESERVE, timedelta(0)))
    if report.cursor is not None:
        boto3.client("lambda").invoke(
            FunctionName=context.function_name,
            InvocationType="Event",
            Payload=json.dumps({"cursor": report.cursor}).encode(),
        )
    return {"threads": report.threads, "deleted": report.deleted, "failed": report.failed, "cursor": report.cursor}

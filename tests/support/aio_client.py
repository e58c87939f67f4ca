"""An aiobotocore client on the bucket in memory, which can stop at any request."""

from __future__ import annotations

import asyncio
import io
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any, Literal, TypeAlias

from langgraph.checkpoint.s3._requests import ABSENT, Copy, CreateBucket, Delete, Get, List, Put, Stored
from tests.support.drivers import AsyncBody, failure
from tests.support.fake_s3 import FakeS3

Moment: TypeAlias = Literal["before", "after"]


class FakeClient:
    """Answers as aiobotocore does.

    Attributes:
        begun: How many requests have begun.
        under_way: How many are under way; `most` is the highest that this was.
        reached: Set when the request that was asked for by `stop_at` has stopped, for good.
    """

    def __init__(self, s3: FakeS3) -> None:
        self.s3 = s3
        self.meta = SimpleNamespace(region_name="us-east-1")
        self.begun = self.under_way = self.most = 0
        self.reached = asyncio.Event()
        self._stop: tuple[int, Moment] | None = None

    def stop_at(self, number: int, moment: Moment) -> None:
        """Let the number-th request from now on stop before or after it takes effect."""
        self._stop = self.begun + number, moment

    async def get_object(self, *, Bucket: str, Key: str) -> dict[str, Any]:
        body = await self._perform(Get(Key))
        if body is None:
            raise failure("NoSuchKey", 404)
        return {"Body": AsyncBody(io.BytesIO(body.data)), "ETag": body.etag, "ContentLength": len(body.data)}

    async def put_object(self, *, Bucket: str, Key: str, Body: Any, **condition: str) -> dict[str, Any]:
        data = Body if isinstance(Body, bytes) else Body.read()
        etag = condition.get("IfMatch")  # without quotes, which Ceph would not take
        if_match = ABSENT if "IfNoneMatch" in condition else etag and f'"{etag}"'
        etags: list[str] = []
        stored = await self._perform(Put(Key, data, if_match, noted=etags.append))
        if stored is Stored.REFUSED:
            raise failure("PreconditionFailed", 412)
        return {"ETag": etags[0]}

    async def list_objects_v2(self, *, Bucket: str, Prefix: str, MaxKeys: int, **rest: Any) -> dict[str, Any]:
        after, token = rest.get("StartAfter", ""), rest.get("ContinuationToken")
        page = await self._perform(List(Prefix, after, token, "Delimiter" in rest, MaxKeys))
        return {
            "Contents": [
                {
                    "Key": it.key,
                    "Size": it.size,
                    "ETag": it.etag,
                    "LastModified": datetime.fromtimestamp(it.modified, timezone.utc),
                }
                for it in page.entries
            ],
            "CommonPrefixes": [{"Prefix": folder} for folder in page.folders],
            "IsTruncated": page.token is not None,
            "NextContinuationToken": page.token,
            "ResponseMetadata": {"HTTPHeaders": {"date": page.date}},
        }

    async def delete_objects(self, *, Bucket: str, Delete: dict[str, Any]) -> dict[str, Any]:
        await self._perform(DeleteRequest([it["Key"] for it in Delete["Objects"]]))
        return {}

    async def copy_object(self, *, Bucket: str, Key: str, CopySource: dict[str, str]) -> dict[str, Any]:
        if not await self._perform(Copy(CopySource["Key"], Key)):
            raise failure("NoSuchKey", 404)
        return {}

    async def create_bucket(self, *, Bucket: str) -> dict[str, Any]:
        await self._perform(CreateBucket())
        return {}

    async def _perform(self, request: Any) -> Any:
        self.begun += 1
        number = self.begun
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            await self._pass(number, "before")
            reply = self.s3.apply(request)
            await self._pass(number, "after")
            return reply
        finally:
            self.under_way -= 1

    async def _pass(self, number: int, moment: Moment) -> None:
        if self._stop == (number, moment):
            self.reached.set()
            await asyncio.Event().wait()
        await asyncio.sleep(0)


DeleteRequest = Delete

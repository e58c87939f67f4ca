"""IAM for the bucket in memory: what a policy does not allow is refused, as S3 refuses it.

Enough of the language for the policies under infra/: Allow and Deny, wildcards, StringLike, variables of a principal.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from langgraph.checkpoint.s3._requests import (
    Copy,
    CreateBucket,
    Delete,
    DeleteVersions,
    Get,
    GetLifecycle,
    GetVersioning,
    List,
    ListVersions,
    Put,
    PutLifecycle,
    Request,
)
from langgraph.checkpoint.s3.errors import AccessDenied
from tests.support.fake_s3 import FakeS3

BUCKET = "arn:aws:s3:::bucket"


class Policy:
    """The statements of one principal.

    Args:
        statements: As in a policy document, with all references resolved.
        tags: Of the session; "${aws:PrincipalTag/tenant}" is the one of this name.
    """

    def __init__(self, statements: Sequence[Mapping[str, Any]], tags: Mapping[str, str] | None = None) -> None:
        self.statements = statements
        self.tags = tags or {}

    def allows(self, action: str, resource: str, context: Mapping[str, str]) -> bool:
        """Whether something may be done: an Allow says so, and no Deny says otherwise."""
        effects = {it["Effect"] for it in self.statements if self._applies(it, action, resource, context)}
        return effects == {"Allow"}

    def _applies(self, it: Mapping[str, Any], action: str, resource: str, context: Mapping[str, str]) -> bool:
        assert set(it) <= {"Sid", "Effect", "Action", "Resource", "Condition"}
        conditions = it.get("Condition", {})
        assert set(conditions) <= {"StringLike"}
        return (
            any(_is_like(action, pattern) for pattern in _all(it["Action"]))
            and any(_is_like(resource, self._filled(pattern)) for pattern in _all(it["Resource"]))
            and all(
                key in context and any(_is_like(context[key], self._filled(pattern)) for pattern in _all(patterns))
                for key, patterns in conditions.get("StringLike", {}).items()
            )
        )

    def _filled(self, pattern: str) -> str:
        """The pattern for this principal. A variable without a value matches nothing."""
        return re.sub(r"\$\{aws:PrincipalTag/(\w+)\}", lambda it: self.tags.get(it[1], "\0"), pattern)


def _all(one_or_more: Any) -> list[str]:
    return [one_or_more] if isinstance(one_or_more, str) else list(one_or_more)


def _is_like(text: str, pattern: str) -> bool:
    parts = ("." if it == "?" else ".*" if it == "*" else re.escape(it) for it in pattern)
    return re.fullmatch("".join(parts), text, re.DOTALL) is not None


Need = tuple[str, str, dict[str, str]]
"""An action, what it is done to, and what a condition may ask for."""


def needs(request: Request) -> Iterator[Need]:
    """What one has to be allowed to make a request (Service Authorization Reference, "Amazon S3")."""
    match request:
        case Get(key):
            yield "s3:GetObjectVersion" if request.version else "s3:GetObject", f"{BUCKET}/{key}", {}
        case Put(key):
            yield "s3:PutObject", f"{BUCKET}/{key}", {}
        case Copy(source, target):
            yield "s3:GetObject", f"{BUCKET}/{source}", {}
            yield "s3:PutObject", f"{BUCKET}/{target}", {}
        case Delete(keys):
            for key in keys:
                yield "s3:DeleteObject", f"{BUCKET}/{key}", {}
        case DeleteVersions(versions):
            for key, _ in versions:
                yield "s3:DeleteObjectVersion", f"{BUCKET}/{key}", {}
        case List(prefix):
            yield "s3:ListBucket", BUCKET, {"s3:prefix": prefix}
        case ListVersions(prefix):
            yield "s3:ListBucketVersions", BUCKET, {"s3:prefix": prefix}
        case GetVersioning():
            yield "s3:GetBucketVersioning", BUCKET, {}
        case GetLifecycle():
            yield "s3:GetLifecycleConfiguration", BUCKET, {}
        case PutLifecycle():
            yield "s3:PutLifecycleConfiguration", BUCKET, {}
        case CreateBucket():
            yield "s3:CreateBucket", BUCKET, {}


class GuardedS3(FakeS3):
    """A door to a bucket: lets through what a policy allows."""

    def __init__(self, s3: FakeS3, policy: Policy) -> None:
        super().__init__()
        self.s3, self.policy = s3, policy
        self.lock = s3.lock

    def apply(self, request: Request) -> Any:
        """Answer one request, if it is allowed."""
        for action, resource, context in needs(request):
            if not self.policy.allows(action, resource, context):
                raise AccessDenied(f"{action} on {resource} is not allowed ({context})")
        return self.s3.apply(request)

    def size(self, key: str) -> int:
        """The length of one object."""
        return self.s3.size(key)

"""What boto3 and aiobotocore have in common: which call a request is, what an answer or an error means.

It does no I/O and waits for nothing, so that any driver over botocore can use it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import SEEK_END, BytesIO
from typing import Any, NamedTuple

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    NoAuthTokenError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
    SSOError,
    TokenRetrievalError,
    ValidationError,
)
from botocore.parsers import ResponseParserError
from urllib3.exceptions import HTTPError

from langgraph.checkpoint.s3._requests import (
    ABSENT,
    PART,
    Copy,
    CreateBucket,
    Delete,
    DeleteVersions,
    Entry,
    Get,
    GetLifecycle,
    GetVersioning,
    Lifecycle,
    List,
    ListVersions,
    Page,
    Put,
    PutLifecycle,
    Request,
    Stored,
    Version,
    VersionPage,
)
from langgraph.checkpoint.s3.errors import (
    AccessDenied,
    BucketNotFound,
    Contended,
    InvalidInput,
    S3SaverError,
    StorageError,
)

READS = 3
"""How often an object is got before a body that breaks off is an error."""

PAUSES = (0.05, 0.2, 0.5)
"""Longest waits, in seconds, before a request is repeated that met a conflict (409)."""

CONNECT_TIMEOUT, READ_TIMEOUT = 5, 30
"""Seconds to wait for a connection, and for the next bytes of an answer. botocore's 60 and 60, tried five times, would
hold an operation up for five minutes where nobody answers; S3 itself takes seconds at most."""

PARALLEL = 8
"""Parts of large objects under way at once, beside all other requests. Each is held in memory meanwhile."""

WAIT_FROM = 256 * 1024
"""Bytes of a body from which it is worth asking first whether the request will be granted."""

CONFLICTS = frozenset({"ConditionalRequestConflict", "OperationAborted"})
"""S3 saw two writers at once and decided for neither: worth repeating."""

FAILURES = (BotoCoreError, ResponseParserError, RecursionError)
"""Whatever a call may raise that S3 did not say.

A server that is not S3 answers in no known format, or redirects without a region, after which botocore runs in circles.
"""

_GONE = frozenset({"NoSuchKey", "NoSuchVersion"})
"""What was to be deleted is not there: as it should be."""

CUT = (BotoCoreError, HTTPError, OSError)
"""Whatever reading a body may raise."""

PUT_OBJECT_ARGS = frozenset(
    {
        "ACL",
        "BucketKeyEnabled",
        "CacheControl",
        "ChecksumAlgorithm",
        "ContentDisposition",
        "ContentLanguage",
        "ContentType",
        "ExpectedBucketOwner",
        "Expires",
        "GrantFullControl",
        "GrantRead",
        "GrantReadACP",
        "GrantWriteACP",
        "ObjectLockLegalHoldStatus",
        "ObjectLockMode",
        "ObjectLockRetainUntilDate",
        "SSEKMSEncryptionContext",
        "SSEKMSKeyId",
        "ServerSideEncryption",
        "StorageClass",
    }
)
"""What `put_object_args` may hold: says how an object is kept, is no property of one object, reads do not need it.

CopyObject takes every one of them as well.
"""

_METHODS: dict[type[Request], str] = {
    Get: "get_object",
    Put: "put_object",
    List: "list_objects_v2",
    Delete: "delete_objects",
    Copy: "copy_object",
    ListVersions: "list_object_versions",
    DeleteVersions: "delete_objects",
    CreateBucket: "create_bucket",
    GetVersioning: "get_bucket_versioning",
    GetLifecycle: "get_bucket_lifecycle_configuration",
    PutLifecycle: "put_bucket_lifecycle_configuration",
}

_ACTIONS: dict[type[Request], str] = {
    ListVersions: "s3:ListBucketVersions",
    DeleteVersions: "s3:DeleteObjectVersion",
    CreateBucket: "s3:CreateBucket",
    GetVersioning: "s3:GetBucketVersioning",
    GetLifecycle: "s3:GetLifecycleConfiguration",
    PutLifecycle: "s3:PutLifecycleConfiguration",
}
"""What a policy has to allow for requests that few savers make."""


class _Verdict(NamedTuple):
    """What an error is to the caller: its class, and "what is wrong; what to do"."""

    kind: type[S3SaverError]
    wrong: str
    advice: str


_MISSING = _Verdict(
    BucketNotFound,
    "the bucket does not exist",
    "check endpoint, region and account, or make it with setup(create_bucket=True)",
)
_DENIED = _Verdict(
    AccessDenied,
    "access was denied",
    "check the credentials, and that the policy allows s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket",
)
_ELSEWHERE = _Verdict(StorageError, "the bucket is in another region", "pass its region as region_name")
_THROTTLED = _Verdict(StorageError, "S3 throttles requests", "repeat the operation later or lower max_concurrency")
_FAILED = _Verdict(StorageError, "S3 failed", "the operation can be repeated safely")
_REFUSED = _Verdict(StorageError, "S3 refused the request", "look up the code in S3's list of error responses")
_UNEXPLAINED = _Verdict(
    StorageError,
    "the server refused the request without S3's reason",
    "check that the endpoint is that of an S3 server",
)
_NO_KEY = _Verdict(
    StorageError,
    "the KMS key cannot be used",
    "check that it is enabled in the bucket's region, and that the policy allows kms:GenerateDataKey and kms:Decrypt",
)
_UNREACHED = _Verdict(
    StorageError,
    "S3 could not be reached or gave no proper answer",
    "check endpoint, region and network; the operation can be repeated safely",
)
_INVALID = _Verdict(InvalidInput, "the request is not valid", "check the bucket's name and put_object_args")
_BROKEN = _Verdict(
    StorageError,
    f"the body broke off {READS} times or was damaged on its way",
    "check the network; the operation can be repeated safely",
)

_BY_CODE = {
    "NoSuchBucket": _MISSING,
    "AccessDenied": _DENIED,
    "InvalidAccessKeyId": _DENIED,
    "SignatureDoesNotMatch": _DENIED,
    "ExpiredToken": _DENIED,
    "InvalidToken": _DENIED,
    "TokenRefreshRequired": _DENIED,
    "RequestTimeTooSkewed": _Verdict(
        AccessDenied, "this machine's clock is wrong", "set it: S3 allows a difference of 15 minutes"
    ),
    "PermanentRedirect": _ELSEWHERE,
    "AuthorizationHeaderMalformed": _ELSEWHERE,
    "IllegalLocationConstraintException": _ELSEWHERE,
    "InternalError": _FAILED,
    "ServiceUnavailable": _THROTTLED,
    "SlowDown": _THROTTLED,
    "ConditionalRequestConflict": _Verdict(Contended, "another writer was always in between", "try again"),
    "OperationAborted": _Verdict(Contended, "another operation on it was always in progress", "try again"),
    "BucketAlreadyExists": _Verdict(StorageError, "the name belongs to another account", "choose another name"),
    "InvalidObjectState": _Verdict(
        StorageError, "the object is archived", "restore it and keep this bucket out of archive storage classes"
    ),
}
_BY_STATUS = {301: _ELSEWHERE, 401: _DENIED, 403: _DENIED, 429: _THROTTLED, 503: _THROTTLED}
_NO_CREDENTIALS = (
    CredentialRetrievalError,
    NoAuthTokenError,
    NoCredentialsError,
    PartialCredentialsError,
    SSOError,
    TokenRetrievalError,
)


def code_of(error: ClientError) -> str:
    """Return S3's own code of an error."""
    return str(error.response.get("Error", {}).get("Code", ""))


def _message_of(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Message") or "")  # not every store says something


def _status_of(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _verdict(error: Exception) -> _Verdict:
    if isinstance(error, ClientError):
        code, status = code_of(error), _status_of(error)
        if code.startswith("KMS."):
            return _NO_KEY
        other = _FAILED if status >= 500 else _UNEXPLAINED if code in ("", str(status)) else _REFUSED
        return _BY_CODE.get(code) or _BY_STATUS.get(status, other)
    if isinstance(error, _NO_CREDENTIALS):
        return _DENIED
    return _INVALID if isinstance(error, ParamValidationError | ValidationError) else _UNREACHED


def details_of(error: Exception) -> str:
    """Return what S3 or botocore said, on one line, without the password of a URL and the patterns of names."""
    if not isinstance(error, ClientError):
        text = str(error) or type(error).__name__
    else:
        text = f"{code_of(error)}, HTTP {_status_of(error)}: {_message_of(error)}"
    text = re.sub(r"://[^/@\s]*@", "://", text)
    text = re.sub(r"(Invalid bucket name [^\n]*?): Bucket name must match[^\n]*", r"\1", text)
    return " ".join(text.split()).rstrip(".: ")


def _is_missing_key(error: ClientError) -> bool:
    """Tell whether S3 itself says that there is no such key.

    A 404 without S3's code or id comes from some other server (a wrong endpoint): no news of the key.
    """
    if code_of(error) == "404":
        return bool(error.response.get("ResponseMetadata", {}).get("RequestId"))
    return code_of(error) == "NoSuchKey"


def _is_unsupported(error: ClientError) -> bool:
    """Tell whether the store does not know the header of a conditional request."""
    return _status_of(error) == 501 or code_of(error) == "NotImplemented" or "not implemented" in _message_of(error)


class Found(NamedTuple):
    """An object whose body is still to be read from a stream."""

    stream: Any
    etag: str
    length: int | None


@dataclass(frozen=True)
class Calls:
    """Requests as botocore's calls, and botocore's answers and errors as replies and our errors.

    Raises:
        InvalidInput: If `put_object_args` holds an argument that is not to be set from outside.
    """

    bucket: str
    put_object_args: Mapping[str, Any]

    def __post_init__(self) -> None:
        if bad := sorted(set(self.put_object_args) - PUT_OBJECT_ARGS):
            raise InvalidInput(
                f"put_object_args may not hold {', '.join(bad)}: allowed are {', '.join(sorted(PUT_OBJECT_ARGS))}."
            )

    def call(self, request: Request, region: str | None) -> tuple[str, dict[str, Any]]:
        """Return the client's method for a request, and its arguments."""
        return _METHODS[type(request)], {"Bucket": self.bucket, **self._arguments(request, region)}

    def _arguments(self, request: Request, region: str | None) -> dict[str, Any]:
        match request:
            case Get(key):
                return {"Key": key, "VersionId": request.version} if request.version else {"Key": key}
            case Put(key, body, if_match):
                return {**self.put_object_args, "Key": key, "Body": body, **_condition(if_match)}
            case List():
                return _listing(request)
            case Delete(keys):
                return {"Delete": {"Objects": [{"Key": key} for key in keys], "Quiet": True}}
            case DeleteVersions(versions):
                return {"Delete": {"Objects": [{"Key": key, "VersionId": it} for key, it in versions], "Quiet": True}}
            case ListVersions(prefix, token):
                after = {} if token is None else {"KeyMarker": token[0], "VersionIdMarker": token[1]}
                return {"Prefix": prefix, **after}
            case PutLifecycle(lifecycle):
                return {**lifecycle.rest, "LifecycleConfiguration": {"Rules": list(lifecycle.rules)}}
            case Copy(source, target):
                return {**self.put_object_args, "Key": target, "CopySource": {"Bucket": self.bucket, "Key": source}}
            case CreateBucket() if region not in (None, "us-east-1", "aws-global"):
                return {"CreateBucketConfiguration": {"LocationConstraint": region}}
        return {}

    def upload(self, request: Put) -> dict[str, Any]:
        """Return the arguments of CreateMultipartUpload."""
        return {**self.put_object_args, "Bucket": self.bucket, "Key": request.key}

    def part(self, request: Put, upload: Mapping[str, Any], number: int) -> dict[str, Any]:
        """Return the arguments of UploadPart; the first part is number 1."""
        start = (number - 1) * PART
        algorithm = _only(self.put_object_args, "ChecksumAlgorithm")
        body = request.body[start : start + PART]
        return {**algorithm, **self.of(upload), "PartNumber": number, "Body": body}

    def uploaded(self, answer: Mapping[str, Any], number: int) -> dict[str, Any]:
        """Return what CompleteMultipartUpload is to be told of a part: its ETag, and the checksum if it has one."""
        checksums = {
            name: sum_ for name, sum_ in answer.items() if name.startswith("Checksum") and name != "ChecksumType"
        }
        return {**checksums, "ETag": answer["ETag"], "PartNumber": number}

    def completion(self, upload: Mapping[str, Any], parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the arguments of CompleteMultipartUpload."""
        return {**self.of(upload), "MultipartUpload": {"Parts": parts}}

    def of(self, upload: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments that name an upload; all that AbortMultipartUpload needs."""
        owner = _only(self.put_object_args, "ExpectedBucketOwner")
        return {**owner, "Bucket": self.bucket, "Key": upload["Key"], "UploadId": upload["UploadId"]}

    def reply(self, request: Request, answer: Mapping[str, Any]) -> Any:
        """Return the reply to a request that S3 granted; for a `Get` it is `Found`.

        Raises:
            StorageError: If the answer is not one of S3's, or some keys could not be deleted.
        """
        try:
            return self._reply(request, answer)
        except KeyError as error:  # some other server's "200 OK" must not pass for a stored object or an empty listing
            if "Body" in answer:
                answer["Body"].close()  # nobody is going to read it
            raise self._error(request, _UNREACHED, f"the answer lacks {error}") from error

    def _reply(self, request: Request, answer: Mapping[str, Any]) -> Any:
        match request:
            case Get():
                return Found(answer["Body"], answer["ETag"], answer.get("ContentLength"))
            case Put():
                etag = answer["ETag"]
                if request.noted is not None:
                    request.noted(etag)
                return Stored.DONE
            case List():
                return _page(answer)
            case ListVersions():
                return _versions(answer)
            case Delete() | DeleteVersions():
                return self._deleted(request, answer)
            case Copy():
                return True
            case GetVersioning():
                return answer.get("Status") == "Enabled"
            case GetLifecycle():
                return Lifecycle(answer["Rules"], _only(answer, "TransitionDefaultMinimumObjectSize"))
        return None

    def refusal(self, request: Request, error: ClientError) -> Any:
        """Return the reply to a request that S3 refused, if that is an outcome its plan expects.

        Raises:
            S3SaverError: If it is not.
        """
        match request:
            case Get() if _is_missing_key(error):
                return None
            case Put(if_match=str()) if _status_of(error) == 412:
                return Stored.REFUSED
            case Put(if_match=str(etag)) if etag != ABSENT and _is_missing_key(error):
                return Stored.REFUSED  # nothing is there to match
            case Put(if_match=str()) if _is_unsupported(error):
                return Stored.UNSUPPORTED
            case Copy() if _is_missing_key(error):
                return False
            case CreateBucket() if code_of(error) == "BucketAlreadyOwnedByYou":
                return None
            case GetLifecycle() if code_of(error) == "NoSuchLifecycleConfiguration":
                return Lifecycle(())
        raise self.explain(request, error) from error

    def explain(self, request: Request, error: Exception) -> S3SaverError:
        """Return the error of ours that says what one of botocore's means."""
        verdict = _verdict(error)
        if verdict is _DENIED and type(request) in _ACTIONS:
            advice = f"check the credentials, and that the policy allows {_ACTIONS[type(request)]}"
            verdict = verdict._replace(advice=advice)
        return self._error(request, verdict, details_of(error))

    def broken(self, request: Request, error: Exception) -> S3SaverError:
        """Return the error for a body that could not be read, however often it was asked for."""
        return self._error(request, _BROKEN, details_of(error))

    def unmade(self, error: Exception) -> S3SaverError:
        """Return the error for a client that could not be made."""
        return InvalidInput(
            f"No S3 client can be made for s3://{self.bucket} ({details_of(error)}); "
            "check endpoint_url, region_name and the AWS profile."
        )

    def _deleted(self, request: Delete | DeleteVersions, answer: Mapping[str, Any]) -> None:
        failed = [error for error in answer.get("Errors", ()) if error["Code"] not in _GONE]
        if failed:
            key, code, message = failed[0]["Key"], failed[0]["Code"], failed[0].get("Message", "")
            asked = len(request.keys if isinstance(request, Delete) else request.versions)
            details = f"{len(failed)} of {asked} keys failed, first {key}: {code}: {message}".rstrip(".: ")
            raise self._error(request, _BY_CODE.get(code, _REFUSED), details)

    def _error(self, request: Request, verdict: _Verdict, details: str) -> S3SaverError:
        return verdict.kind(f"{self._subject(request)}: {verdict.wrong} ({details}); {verdict.advice}.")

    def _subject(self, request: Request) -> str:
        operation = _METHODS[type(request)].title().replace("_", "")  # as S3 spells it
        return f"{operation} s3://{self.bucket}{_path(request)}"


def _path(request: Request) -> str:
    match request:
        case Get(key) | Put(key):
            return f"/{key}"
        case List(prefix) | ListVersions(prefix):
            return f"/{prefix}"
        case DeleteVersions(versions):
            return _path(Delete([key for key, _ in versions]))
        case Delete(keys):
            return f"/{keys[0]}" + (f" and {len(keys) - 1} more" if len(keys) > 1 else "")
        case Copy(source, target):
            return f"/{source} to {target}"
    return ""


def _only(arguments: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {name: arguments[name]} if name in arguments else {}


def _condition(if_match: str | None) -> dict[str, str]:
    if if_match is None:
        return {}
    if if_match == ABSENT:
        return {"IfNoneMatch": "*"}
    return {"IfMatch": if_match.strip('"')}  # Ceph matches no ETag in quotes; AWS takes it either way


def _listing(request: List) -> dict[str, Any]:
    arguments: dict[str, Any] = {"Prefix": request.prefix, "MaxKeys": request.max_keys}
    if request.folders:
        arguments["Delimiter"] = "/"
    if request.token is not None:
        arguments["ContinuationToken"] = request.token  # knows where to go on, so no StartAfter
    elif request.start_after:
        arguments["StartAfter"] = request.start_after
    return arguments


def _page(answer: Mapping[str, Any]) -> Page:
    return Page(
        entries=[
            Entry(found["Key"], found["Size"], found["ETag"], found["LastModified"].timestamp())
            for found in answer.get("Contents", ())
        ],
        folders=[found["Prefix"] for found in answer.get("CommonPrefixes", ())],
        token=answer["NextContinuationToken"] if answer["IsTruncated"] else None,
        date=answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date", ""),
    )


def _versions(answer: Mapping[str, Any]) -> VersionPage:
    found = [(it, False) for it in answer.get("Versions", ())] + [(it, True) for it in answer.get("DeleteMarkers", ())]
    versions = [
        Version(it["Key"], it["VersionId"], it["IsLatest"], marker, it["LastModified"].timestamp())
        for it, marker in found
    ]
    more = (answer["NextKeyMarker"], answer.get("NextVersionIdMarker", "")) if answer["IsTruncated"] else None
    return VersionPage(versions, more)


def prepare(client: Any) -> None:
    """Make a client that was made here send small bodies without asking first.

    botocore sends `Expect: 100-continue` with every body that is a file, which it makes of all of them, and
    waits for the answer: a round trip more on the wire, in case the request is refused. With bytes it does not.
    """
    client.meta.events.register("before-call.s3.PutObject", _as_bytes)


def _as_bytes(params: dict[str, Any], **_: Any) -> None:
    body = params["body"]
    if not isinstance(body, BytesIO):
        return
    size = body.seek(0, SEEK_END)  # not by getbuffer(), which copies what the file shares with its maker
    body.seek(0)
    if size <= WAIT_FROM:
        params["body"] = body.getvalue()


def config_options(endpoint_url: str | None, max_concurrency: int, addressing_style: str | None) -> dict[str, Any]:
    """Return the arguments of a botocore `Config` that suits this package.

    Raises:
        InvalidInput: One of them is not valid.
    """
    if not isinstance(max_concurrency, int):
        raise InvalidInput(f"max_concurrency has to be a whole number, not {max_concurrency!r}.")
    if max_concurrency < 1:
        raise InvalidInput(f"max_concurrency must be at least 1, not {max_concurrency}.")
    if addressing_style not in (None, "path", "virtual"):
        raise InvalidInput(f"addressing_style must be 'path', 'virtual' or None, not {addressing_style!r}.")
    options: dict[str, Any] = {
        "max_pool_connections": max_concurrency + PARALLEL,
        "connect_timeout": CONNECT_TIMEOUT,
        "read_timeout": READ_TIMEOUT,
        "retries": {"mode": "standard", "total_max_attempts": 5},
        "tcp_keepalive": True,
    }
    elsewhere = endpoint_url or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if elsewhere:  # not every store knows the checksums that botocore adds of its own accord
        options["request_checksum_calculation"] = options["response_checksum_validation"] = "when_required"
    if addressing_style:
        options["s3"] = {"addressing_style": addressing_style}
    return options

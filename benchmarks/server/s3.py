"""S3's REST interface, as far as savers use it, in path style: a request in, a response out."""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Callable, Mapping
from email.utils import formatdate
from itertools import count
from urllib.parse import quote, unquote
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from benchmarks.server.bucket import Bucket, Object, Upload, make_object
from benchmarks.server.http import Request, Response

XML = '<?xml version="1.0" encoding="UTF-8"?>\n'
NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
KEPT = ("content-type", "content-encoding", "content-language", "content-disposition", "cache-control", "expires")
MAX_KEYS = 1_000


class S3:
    """All buckets, and what can be asked of them."""

    def __init__(self) -> None:
        self.buckets: dict[str, Bucket] = {}
        self._uploads = count(1)

    def __call__(self, request: Request) -> Response:
        """Answer one request. Its effect takes place now, whenever the answer is sent."""
        name, _, key = request.path.lstrip("/").partition("/")
        try:
            return self._on_key(request, name, key) if key else self._on_bucket(request, name)
        except S3Error as error:
            body = b"" if request.method == "HEAD" else error.body(key or name)
            return Response(error.kind, error.status, body, {"Content-Type": "application/xml"})

    def _bucket(self, name: str, kind: str) -> Bucket:
        if name not in self.buckets:
            raise S3Error(kind, 404, "NoSuchBucket")
        return self.buckets[name]

    def _on_bucket(self, request: Request, name: str) -> Response:
        query = request.query
        if request.method == "PUT" and not query:
            self.buckets.setdefault(name, Bucket())
            return Response("PUT", headers={"Location": f"/{name}"})
        if request.method == "HEAD":
            self._bucket(name, "HEAD")
            return Response("HEAD")
        if request.method == "POST" and "delete" in query:
            return delete_objects(self._bucket(name, "DELETE"), request)
        if request.method == "GET" and not query.keys() - LISTING:
            return list_objects(self._bucket(name, "LIST"), name, query)
        raise S3Error(request.method, 501, "NotImplemented")

    def _on_key(self, request: Request, name: str, key: str) -> Response:
        query, copied = request.query, "x-amz-copy-source" in request.headers
        kind = "COPY" if copied else request.method
        bucket = self._bucket(name, kind)
        if "uploads" in query or "uploadId" in query:
            return self._on_upload(request, bucket, name, key)
        if request.method == "PUT":
            return self._copy(request, bucket, key) if copied else put_object(request, bucket, key)
        if request.method in ("GET", "HEAD"):
            return get_object(request, bucket, key)
        if request.method == "DELETE":
            bucket.delete(key)
            return Response("DELETE", 204)
        raise S3Error(kind, 501, "NotImplemented")

    def _copy(self, request: Request, bucket: Bucket, key: str) -> Response:
        source = unquote(request.headers["x-amz-copy-source"]).lstrip("/")
        name, _, source_key = source.partition("/")
        it = find(self._bucket(name, "COPY"), source_key, "COPY")
        replaced = request.headers.get("x-amz-metadata-directive") == "REPLACE"
        copy = Object(it.data, it.etag, time.time(), kept(request.headers) if replaced else it.headers)
        bucket.store(key, copy)
        fields = f"<ETag>{escape(it.etag)}</ETag><LastModified>{iso(copy.modified)}</LastModified>"
        return xml("COPY", "CopyObjectResult", fields)

    def _on_upload(self, request: Request, bucket: Bucket, name: str, key: str) -> Response:
        method, query = request.method, request.query
        if "uploads" in query:
            upload_id = f"upload-{next(self._uploads)}"
            bucket.uploads[upload_id] = Upload(key, kept(request.headers))
            fields = f"<Bucket>{name}</Bucket><Key>{escape(key)}</Key><UploadId>{upload_id}</UploadId>"
            return xml("POST", "InitiateMultipartUploadResult", fields)
        upload_id = query["uploadId"]
        if upload_id not in bucket.uploads:
            raise S3Error(method, 404, "NoSuchUpload")
        upload = bucket.uploads[upload_id]
        if method == "PUT":
            part = upload.parts[int(query["partNumber"])] = make_object(request.body, {})
            return Response("PUT", headers={"ETag": part.etag})
        del bucket.uploads[upload_id]
        if method == "DELETE":
            return Response("DELETE", 204)
        it = joined(upload, request.body)
        bucket.store(key, it)
        fields = f"<Bucket>{name}</Bucket><Key>{escape(key)}</Key><ETag>{escape(it.etag)}</ETag>"
        return xml("POST", "CompleteMultipartUploadResult", fields)


class S3Error(Exception):
    """An answer that is an error."""

    def __init__(self, kind: str, status: int, code: str) -> None:
        super().__init__(code)
        self.kind, self.status, self.code = kind, status, code

    def body(self, resource: str) -> bytes:
        """The error as S3 tells it."""
        fields = f"<Code>{self.code}</Code><Message>{self.code}</Message><Resource>{escape(resource)}</Resource>"
        return f"{XML}<Error>{fields}</Error>".encode()


def put_object(request: Request, bucket: Bucket, key: str) -> Response:
    """PutObject, with its two conditions."""
    if len(key.encode()) > 1024:
        raise S3Error("PUT", 400, "KeyTooLongError")
    old, headers = bucket.objects.get(key), request.headers
    if "if-none-match" in headers and old:
        raise S3Error("PUT", 412, "PreconditionFailed")
    if "if-match" in headers and not old:
        raise S3Error("PUT", 404, "NoSuchKey")
    if "if-match" in headers and old and headers["if-match"].strip('"') != old.etag.strip('"'):
        raise S3Error("PUT", 412, "PreconditionFailed")
    it = make_object(request.body, kept(headers))
    bucket.store(key, it)
    return Response("PUT", headers={"ETag": it.etag, **checksums(it)})


def get_object(request: Request, bucket: Bucket, key: str) -> Response:
    """GetObject and HeadObject, the whole or a range."""
    it = find(bucket, key, request.method)
    headers = {name: value for name, value in it.headers.items() if not name.startswith("x-amz-checksum-")}
    headers |= {"ETag": it.etag, "Last-Modified": formatdate(it.modified, usegmt=True), "Accept-Ranges": "bytes"}
    data, status = it.data, 200
    if "range" in request.headers:
        first, last = span(request.headers["range"], len(data), request.method)
        headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
        data, status = data[first : last + 1], 206
    elif request.headers.get("x-amz-checksum-mode", "").upper() == "ENABLED":
        headers |= checksums(it)
    if request.method == "HEAD":
        return Response("HEAD", status, headers=headers, length=len(data))
    return Response("GET", status, data, headers)


def span(text: str, size: int, kind: str) -> tuple[int, int]:
    """The first and last byte of "bytes=2-5", "bytes=2-" or "bytes=-5"."""
    first, _, last = text.removeprefix("bytes=").partition("-")
    start = int(first) if first else max(0, size - int(last))
    if start >= size:
        raise S3Error(kind, 416, "InvalidRange")
    return start, min(int(last), size - 1) if first and last else size - 1


def delete_objects(bucket: Bucket, request: Request) -> Response:
    """DeleteObjects: up to 1,000 keys, whether or not they exist."""
    root = ElementTree.fromstring(request.body)
    keys = [element.text or "" for element in root.iter() if element.tag.endswith("Key")]
    if len(keys) > MAX_KEYS:
        raise S3Error("DELETE", 400, "MalformedXML")
    for key in keys:
        bucket.delete(key)
    quiet = any(element.tag.endswith("Quiet") and element.text == "true" for element in root.iter())
    told = "" if quiet else "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
    return xml("DELETE", "DeleteResult", told)


LISTING = {
    "list-type",
    "prefix",
    "delimiter",
    "start-after",
    "continuation-token",
    "marker",
    "max-keys",
    "encoding-type",
    "fetch-owner",
}


def list_objects(bucket: Bucket, name: str, query: Mapping[str, str]) -> Response:
    """ListObjectsV2, and ListObjects as it was before."""
    second, url = query.get("list-type") == "2", query.get("encoding-type") == "url"
    encode = (lambda text: quote(text, safe="/")) if url else escape
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    asked = int(query.get("max-keys") or MAX_KEYS)
    token = query.get("continuation-token", "")
    after = base64.urlsafe_b64decode(token).decode() if token else query.get("start-after" if second else "marker", "")
    page = bucket.page(prefix, delimiter, after, min(asked, MAX_KEYS), skip_folder=bool(token) or not second)
    fields = [element("Name", name), element("Prefix", encode(prefix)), element("MaxKeys", str(asked))]
    fields += [element("EncodingType", "url")] if url else []
    fields += [element("Delimiter", encode(delimiter))] if delimiter else []
    fields += [element("IsTruncated", "true" if page.last is not None else "false")]
    if second:
        fields += [element("KeyCount", str(len(page.keys) + len(page.folders)))]
        fields += [element("StartAfter", encode(query["start-after"]))] if "start-after" in query else []
        fields += [element("ContinuationToken", token)] if token else []
        if page.last is not None:
            fields += [element("NextContinuationToken", base64.urlsafe_b64encode(page.last.encode()).decode())]
    else:
        fields += [element("Marker", encode(query.get("marker", "")))]
        fields += [element("NextMarker", encode(page.last))] if page.last is not None and delimiter else []
    fields += [contents(encode, key, bucket.objects[key]) for key in page.keys]
    fields += [element("CommonPrefixes", element("Prefix", encode(folder))) for folder in page.folders]
    return xml("LIST", "ListBucketResult", "".join(fields))


def contents(encode: Callable[[str], str], key: str, it: Object) -> str:
    """One object in a listing."""
    return (
        f"<Contents><Key>{encode(key)}</Key><LastModified>{iso(it.modified)}</LastModified><ETag>{escape(it.etag)}"
        f"</ETag><Size>{len(it.data)}</Size><StorageClass>STANDARD</StorageClass></Contents>"
    )


def joined(upload: Upload, body: bytes) -> Object:
    """The object that a multipart upload makes."""
    numbers = [int(it.text or 0) for it in ElementTree.fromstring(body).iter() if it.tag.endswith("PartNumber")]
    try:
        parts = [upload.parts[number] for number in numbers]
    except KeyError:
        raise S3Error("POST", 400, "InvalidPart") from None
    digests = b"".join(bytes.fromhex(part.etag.strip('"')) for part in parts)
    etag = f'"{hashlib.md5(digests, usedforsecurity=False).hexdigest()}-{len(parts)}"'
    return Object(b"".join(part.data for part in parts), etag, time.time(), upload.headers)


def find(bucket: Bucket, key: str, kind: str) -> Object:
    """The object of a key that has to be there."""
    it = bucket.objects.get(key)
    if it is None:
        raise S3Error(kind, 404, "NoSuchKey")
    return it


def kept(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers of a PUT that come back with the object."""
    them = {
        name: value
        for name, value in headers.items()
        if name in KEPT or (name.startswith(("x-amz-meta-", "x-amz-checksum-")) and name != "x-amz-checksum-mode")
    }
    encoding = them.pop("content-encoding", "")
    encodings = [it for it in map(str.strip, encoding.split(",")) if it and it != "aws-chunked"]
    them.setdefault("content-type", "binary/octet-stream")
    return {**them, "content-encoding": ",".join(encodings)} if encodings else them


def checksums(it: Object) -> dict[str, str]:
    """The checksums that an object came with."""
    return {name: value for name, value in it.headers.items() if name.startswith("x-amz-checksum-")}


def element(name: str, text: str) -> str:
    """An XML element with text that is escaped already."""
    return f"<{name}>{text}</{name}>"


def xml(kind: str, root: str, fields: str) -> Response:
    """An answer in XML."""
    body = f'{XML}<{root} xmlns="{NAMESPACE}">{fields}</{root}>'.encode()
    return Response(kind, body=body, headers={"Content-Type": "application/xml"})


def iso(seconds: float) -> str:
    """A time as listings tell it: S3 knows whole seconds."""
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(seconds))

"""Connection strings: "s3://bucket/prefix?region_name=…"."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlsplit

from langgraph.checkpoint.s3.errors import InvalidInput


def parse_conn_string(text: str) -> tuple[str, str, dict[str, str]]:
    """Take "s3://bucket/prefix?…" apart: the bucket, the prefix, and the options of its query.

    Raises:
        InvalidInput: it is not of this form, or has an option that cannot stand there.
    """
    try:
        url = urlsplit(str(text))
    except ValueError:  # it has half an IPv6 address
        url = urlsplit("")
    # No message repeats the text: whoever brings one from elsewhere may have a password in it.
    if url.scheme != "s3" or not url.netloc or url.fragment:
        raise InvalidInput("the connection string is not of the form 's3://bucket/prefix?region_name=…'.")
    if "@" in url.netloc or ":" in url.netloc:
        raise InvalidInput(
            "the connection string has a user, a password or a port, but only a bucket's name can stand there; leave "
            "credentials to AWS_* variables or a profile, and name another server by endpoint_url."
        )
    options = dict(parse_qsl(url.query, keep_blank_values=True))
    unknown = options.keys() - {"endpoint_url", "region_name"}
    if unknown:
        raise InvalidInput(
            f"connection string has {', '.join(sorted(unknown))}; only endpoint_url and region_name can stand there."
        )
    return url.netloc, url.path, options

"""What an import costs: a Lambda function pays for it at every cold start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import langgraph.checkpoint.s3

PACKAGE = Path(langgraph.checkpoint.s3.__file__).parent
LATER = {
    "_aioboto",
    "aio",
    "delta",
    "lease",
    "lifecycle",
    "listing",
    "otel",
    "prune",
    "renew",
    "retention",
    "sweep",
    "threads",
    "undo",
}
"""Modules that `S3Saver` does without."""

CODE = """
import sys
import langgraph.graph, boto3
before = set(sys.modules)
import langgraph.checkpoint.s3
print(*sorted(set(sys.modules) - before))
"""


def test_beside_langgraph_and_boto3_nothing_but_the_package_itself_is_loaded() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=60, check=True)
    files = {path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py") if path.stem not in LATER}
    names = {".".join(["langgraph.checkpoint.s3", *path.with_suffix("").parts]) for path in files}
    assert set(done.stdout.split()) == {name.removesuffix(".__init__") for name in names}


def test_no_client_is_made_and_no_model_is_loaded_before_the_first_use() -> None:
    code = (
        "import sys\nfrom langgraph.checkpoint.s3 import S3Saver\nsaver = S3Saver('bucket')\n"
        "print(*{'boto3', 'aiobotocore', 'aiohttp', 's3transfer'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == []

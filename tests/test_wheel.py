"""The wheel that users get: its contents, and that it works beside the official savers."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Iterator
from email import message_from_bytes
from pathlib import Path

import pytest
from moto.server import ThreadedMotoServer

ROOT = Path(__file__).parent.parent

pytestmark = pytest.mark.wheel


def call(*arguments: str | Path, cwd: Path, **env: str) -> str:
    """Run this Python without anything of the source tree; returns what it printed."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "AWS_"))}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=inherited | env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("dist")
    call("-m", "build", "--wheel", "--no-isolation", "--outdir", directory, ROOT, cwd=directory)
    (path,) = directory.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("installed")
    call("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", directory, wheel, cwd=directory)
    return directory


@pytest.fixture
def endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


def run(installed: Path, script: str, **env: str) -> None:
    """Run a script on the installed wheel, with every warning an error."""
    proof = f"""
        import langgraph.checkpoint.s3 as s3
        from pathlib import Path
        assert Path(s3.__file__).is_relative_to({str(installed)!r}), s3.__file__
    """
    script = textwrap.dedent(proof) + textwrap.dedent(script)
    call("-W", "error", "-c", script, cwd=installed, PYTHONPATH=str(installed), **env)


def test_it_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    package = "langgraph/checkpoint/s3/"
    sources = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src" / package).rglob("*.py")}
    held = {name for name in names if ".dist-info/" not in name}
    assert held == sources | {package + "py.typed"}
    assert package + "__init__.py" in held
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_it_leaves_the_namespaces_open(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "langgraph/__init__.py" not in names
    assert "langgraph/checkpoint/__init__.py" not in names


def test_it_requires_four_distributions(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = message_from_bytes(archive.read(name))
    required = sorted(metadata.get_all("Requires-Dist", []))
    assert [it for it in required if "extra ==" not in it] == [
        "boto3>=1.36",
        "langgraph-checkpoint>=4.3",
        "ormsgpack>=1.8",
        "zstandard>=0.21",
    ]
    assert metadata.get_all("Provides-Extra") == ["aioboto3", "async", "otel"]
    assert metadata["Requires-Python"] == ">=3.10"


def test_it_is_imported_beside_the_official_savers(installed: Path) -> None:
    run(
        installed,
        """
        import langgraph.checkpoint.memory
        import langgraph.checkpoint.postgres
        import langgraph.checkpoint.sqlite
        import langgraph.graph
        """,
    )


def test_it_stores_a_checkpoint(installed: Path, endpoint: str) -> None:
    run(
        installed,
        """
        import os
        from langgraph.checkpoint.base import empty_checkpoint
        from langgraph.checkpoint.s3 import S3Saver

        address = f"s3://bucket/prefix?endpoint_url={os.environ['ENDPOINT']}&region_name=us-east-1"
        with S3Saver.from_conn_string(address) as saver:
            saver.setup(create_bucket=True)
            config = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
            checkpoint = empty_checkpoint()
            checkpoint["channel_values"] = {"greeting": "hello"}
            checkpoint["channel_versions"] = {"greeting": "1"}
            saver.put(config, checkpoint, {"source": "input", "step": -1}, {"greeting": "1"})
            assert saver.get_tuple(config).checkpoint == checkpoint
        """,
        ENDPOINT=endpoint,
        AWS_ACCESS_KEY_ID="test",
        AWS_SECRET_ACCESS_KEY="test",
    )


def test_the_asynchronous_saver_stores_a_checkpoint_too(installed: Path, endpoint: str) -> None:
    run(
        installed,
        """
        import asyncio, os
        from langgraph.checkpoint.base import empty_checkpoint
        from langgraph.checkpoint.s3.aio import AsyncS3Saver

        async def main():
            address = f"s3://aio/prefix?endpoint_url={os.environ['ENDPOINT']}&region_name=us-east-1"
            async with AsyncS3Saver.from_conn_string(address) as saver:
                await saver.setup(create_bucket=True)
                config = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
                checkpoint = empty_checkpoint()
                checkpoint["channel_values"] = {"greeting": "hello"}
                checkpoint["channel_versions"] = {"greeting": "1"}
                await saver.aput(config, checkpoint, {"source": "input", "step": -1}, {"greeting": "1"})
                assert (await saver.aget_tuple(config)).checkpoint == checkpoint

        asyncio.run(main())
        """,
        ENDPOINT=endpoint,
        AWS_ACCESS_KEY_ID="test",
        AWS_SECRET_ACCESS_KEY="test",
    )

"""A real S3 server: Ceph's RADOS Gateway, as `infra/rgw.sh` starts it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "infra" / "rgw.sh"


@contextmanager
def rgw_server(directory: Path, day: int | None = None) -> Iterator[str]:
    """Run a gateway; gives its address.

    Args:
        directory: Where its files go, a few tens of megabytes; removed afterwards, unless something failed.
        day: How many seconds a day of lifecycle rules lasts; None for a day.
    """
    command = [str(SCRIPT), str(directory), *([] if day is None else [str(day)])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            address = process.stdout.readline().strip()
            assert address, f"RADOS Gateway did not start; its logs are in {directory}."
            yield address
        finally:
            process.stdin.close()  # it stops then, as it does if this process dies
    shutil.rmtree(directory)

"""`make bench`: sets up what is needed below `.bench`, measures every saver, and writes `docs/benchmarks.md`.

Each saver has a server of its own, and runs in the virtual environment that has its package; they take turns, so that
none disturbs another. What cannot be set up here is left out, and the report says so.
"""

from __future__ import annotations

import argparse
import glob
import json
import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.server.control import start_server

ROOT = Path(__file__).parents[1]
BENCH = ROOT / ".bench"

ENVIRONMENTS: Mapping[str, Sequence[str]] = {
    "main": (
        "--editable=.[async]",
        "langgraph",
        "langgraph-checkpoint-aws",
        "langgraph-checkpoint-objectstorage[s3,compression]",
        "langgraph-checkpoint-postgres",
        "langgraph-checkpoint-sqlite",
        "langgraph-s3-checkpointer",
        "psycopg[binary]",
    ),
    "aioboto3": ("langgraph", "langgraph-checkpoint-tigris"),
    "checkpoint2": ("langgraph", "langgraph-checkpoint<3", "langgraph-checkpoint-s3"),
}
"""aioboto3 wants an older aiobotocore than the others do."""


def python_of(environment: str) -> Path:
    """The interpreter of a virtual environment."""
    return BENCH / environment / "bin" / "python"


def set_up() -> None:
    """Make the virtual environments that are not there yet, or not with what they have to have now."""
    for name, wanted in ENVIRONMENTS.items():
        ready, content = BENCH / name / "ready", "\n".join([*wanted, (ROOT / "pyproject.toml").read_text()])
        if ready.exists() and ready.read_text() == content:
            continue
        print(f"making .bench/{name}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", BENCH / name], check=True)
        pip: list[str | Path] = [python_of(name), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *wanted], check=True, cwd=ROOT)
        ready.write_text(content)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as it:
        it.bind(("127.0.0.1", 0))
        return int(it.getsockname()[1])


def wait_for(port: int) -> None:
    """Wait until somebody listens."""
    for _ in range(300):
        with socket.socket() as it:
            if not it.connect_ex(("127.0.0.1", port)):
                return
        time.sleep(0.1)
    raise RuntimeError(f"nobody listens on port {port}")


@contextmanager
def process(command: Sequence[str | Path], user: str | None = None) -> Iterator[None]:
    """Run a program for a while, in silence."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, user=user) as it:
        try:
            yield
        finally:
            it.terminate()


def postgres_programs() -> Path | None:
    """The directory of PostgreSQL's programs, if they are installed."""
    found = [shutil.which("initdb"), *sorted(glob.glob("/usr/lib/postgresql/*/bin/initdb"), reverse=True)]
    return next((Path(it).parent for it in found if it), None)


@contextmanager
def postgres() -> Iterator[str]:
    """A fresh PostgreSQL, as it is configured by default; gives host and port. It refuses to run as root."""
    programs, port = postgres_programs(), free_port()
    assert programs is not None
    user = "postgres" if os.getuid() == 0 else None
    with tempfile.TemporaryDirectory() as scratch:
        data = Path(scratch) / "data"
        if user:
            os.chown(scratch, pwd.getpwnam(user).pw_uid, -1)
        initialise: list[str | Path] = [programs / "initdb", "-D", data, "-U", "postgres", "-A", "trust"]
        subprocess.run(initialise, check=True, user=user, stdout=subprocess.DEVNULL)
        options = ["-p", str(port), "-k", scratch, "-c", "listen_addresses=127.0.0.1"]
        with process([programs / "postgres", "-D", data, *options], user):
            wait_for(port)
            yield f"127.0.0.1:{port}"


def measure(name: str, options: Sequence[str], deadline: float) -> str | None:
    """Measure one saver, as JSON in `.bench/results`; gives the reason if it cannot be done."""
    from benchmarks.peers import PEERS

    kind = PEERS[name]
    with ExitStack() as stack:
        relays = []
        if kind.needs_postgres:
            if postgres_programs() is None:
                return "PostgreSQL is not installed"
            relays += ["--postgres", stack.enter_context(postgres())]
        addresses = stack.enter_context(start_server(*relays))
        addresses["scratch"] = stack.enter_context(tempfile.TemporaryDirectory())
        command: list[str | Path] = [python_of(kind.environment), "-m", "benchmarks.measure", name, *options]
        command += ["--addresses", json.dumps(addresses), "--output", BENCH / "results" / f"{name}.json"]
        try:
            done = subprocess.run(command, cwd=ROOT, timeout=deadline)
        except subprocess.TimeoutExpired:
            return stopped(BENCH / "results" / f"{name}.json", deadline)
        return None if done.returncode == 0 else f"ended with status {done.returncode}"


def stopped(output: Path, deadline: float) -> str | None:
    """Note in what a saver has so far that it had no time for more."""
    if not output.exists():
        return f"more than {deadline:.0f} s"
    told = json.loads(output.read_text())
    told["notes"].append(f"stopped after {deadline:.0f} s")
    output.write_text(json.dumps(told, indent=1))
    return None


def main() -> None:
    """Do it all."""
    from benchmarks.peers import PEERS

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", help="only these savers; the others keep the figures of the last run")
    parser.add_argument("--deadline", type=float, default=150, help="seconds for one saver")
    arguments, options = parser.parse_known_args()
    results = BENCH / "results"
    results.mkdir(parents=True, exist_ok=True)
    set_up()
    for name in arguments.only or PEERS:
        (results / f"{name}.json").unlink(missing_ok=True)
        reason = measure(name, options, arguments.deadline)
        if reason:
            print(f"{name}: left out: {reason}", flush=True)
            (results / f"{name}.json").write_text(json.dumps({"peer": name, "left_out": reason}))
    subprocess.run([python_of("main"), "-m", "benchmarks.report"], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()

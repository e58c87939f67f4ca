"""The demo is what a newcomer runs first, the samples come next: they have to work, and to do what they claim."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from langgraph.checkpoint.s3._boto import BotoDriver
from langgraph.checkpoint.s3.errors import StorageError

ROOT = Path(__file__).parents[1]

LINES = [
    r"Three turns; the last answer: It is done: sunny in Lima\.",
    r"The agent stops to ask: +Book a flight to Lima\?",
    r"Another process says yes: +It is done: flight to Lima booked\.",
    r"Two forks had all 12 messages and went on, each alone; the original is untouched",
    r"One of them went back to its first turn and took another way from there",
    r"Five turns with a delta channel, beside a large document that was not stored again",
    r"s3://s3saver-demo/demo-[0-9a-f]{8}/",
    r"  anna/ +20 checkpoint, 1 latest, 18 writes",
    r"  notes/ +2 blob, 18 checkpoint, 1 latest, 12 writes",
    r"Pruned, and every thread still says the same:",
    r"  anna/ +1 checkpoint, 1 fence, 1 latest",
    r"  notes/ +1 blob, 1 checkpoint, 1 fence, 1 history, 1 latest",
    r" +round_trips  puts  copies  lists  gets  deletes  bytes_sent  bytes_received  \$ per 1,000 times",
    r"fork by copy_thread +3 +0 +39 +1 +0 +0 +0 +0 +0\.200",
    r"everything( +[\d,]+){8} +\d\.\d{3}",
]


def run_demo(**env: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("DEMO_")}
    return subprocess.run(
        [sys.executable, "-W", "error", ROOT / "examples" / "demo.py"],
        env={**inherited, "PYTHONPATH": str(ROOT / "src"), **env},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_the_demo_shows_what_it_claims() -> None:
    run = run_demo()
    assert (run.returncode, run.stderr) == (0, "")
    lines = iter(run.stdout.splitlines())
    for expected in LINES:  # in this order
        assert any(re.fullmatch(expected, line) for line in lines), f"no line {expected!r} in:\n{run.stdout}"


@pytest.mark.parametrize(
    ("env", "line"),
    [
        (
            {"DEMO_BUCKET": "no-such-bucket"},
            r"ListObjectsV2 s3://no-such-bucket/demo-\w+/: the bucket does not exist .*",
        ),
        ({"DEMO_ENDPOINT_URL": "localhost:9000"}, "No S3 client can be made .*; check endpoint_url, .*"),
        ({"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, "ListObjectsV2 .*: access was denied .*"),
    ],
)
def test_the_demo_says_in_one_line_why_it_cannot_begin(env: dict[str, str], line: str, s3_endpoint: str) -> None:
    run = run_demo(**{"DEMO_ENDPOINT_URL": s3_endpoint, **env})
    assert (run.returncode, run.stdout) == (1, "")
    assert re.fullmatch(line + r"\.\n", run.stderr)


def test_the_sample_for_lambda_runs_each_turn_once(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever request fails, and however often the event comes."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_endpoint)
    monkeypatch.setenv("BUCKET", "lambda-sample")
    code, *_ = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "lambda.md").read_text(), re.DOTALL)
    sample: dict[str, Any] = {}
    exec(code, sample)
    sample["saver"].setup(create_bucket=True)
    call = BotoDriver._call
    for allowed in count():
        left = iter(range(allowed))

        def broken(driver: BotoDriver, client: Any, request: Any, left: Any = left) -> Any:
            if next(left, None) is None:
                raise StorageError("it is gone")
            return call(driver, client, request)

        thread = f"thread-{allowed}"
        first, event = ({"event_id": f"e{n}", "thread_id": thread, "message": f"text {n}"} for n in (1, 2))
        sample["handler"](first, None)
        with monkeypatch.context() as patch:
            patch.setattr(BotoDriver, "_call", broken)
            try:
                sample["handler"](event, None)
                finished = True
            except StorageError:
                finished = False
        for _ in range(2):
            assert json.loads(json.dumps(sample["handler"](event, None))) == {"answer": "You said text 2"}
        state = sample["graph"].get_state({"configurable": {"thread_id": thread}})
        said = [it.content for it in state.values["messages"]]
        assert said == ["text 1", "You said text 1", "text 2", "You said text 2"]
        if finished:
            break
    assert allowed > 6
    sample["saver"].close()

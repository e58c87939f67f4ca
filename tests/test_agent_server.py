"""Agent Server on the bucket: `langgraph dev` with examples/agent_server, driven by LangGraph's own client.

`make test-server` runs it, in an environment that has the server (`langgraph-cli[inmem]`).
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import httpx
import pytest

from langgraph.checkpoint.s3 import S3Saver
from tests.support.threads import config_for

pytestmark = pytest.mark.server
sdk: Any = pytest.importorskip("langgraph_sdk")

EXAMPLE = Path(__file__).parents[1] / "examples" / "agent_server"
AGENT = "agent"


class Server:
    """`langgraph dev`, which can be stopped and started again."""

    def __init__(self, endpoint: str, home: Path, isolated: bool) -> None:
        self.endpoint, self.home, self.isolated = endpoint, home, isolated
        self.bucket = f"agent-server-{'isolated' if isolated else 'one'}"
        boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket=self.bucket)
        _ = shutil.copytree(EXAMPLE, home, dirs_exist_ok=True)
        self.starts = 0
        self.start()

    def start(self) -> None:
        with socket.socket() as it:
            it.bind(("127.0.0.1", 0))
            port = it.getsockname()[1]
        environment = {
            **os.environ,
            "AWS_ENDPOINT_URL": self.endpoint,
            "BUCKET": self.bucket,
            "BG_JOB_ISOLATED_LOOPS": str(self.isolated).lower(),
            "LANGSMITH_TRACING": "false",
            "LANGGRAPH_CLI_NO_ANALYTICS": "1",
            "LANGGRAPH_NO_VERSION_CHECK": "true",
        }
        command = [sys.executable, "-m", "langgraph_cli", "dev", "--no-browser", "--no-reload", "--port", str(port)]
        self.starts += 1
        self.log = self.home / f"{self.bucket}-{self.starts}.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*command, "--host", "127.0.0.1"],
                env=environment,
                cwd=self.home,  # the server keeps state of its own there: runs, and which threads there are
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.client = sdk.get_sync_client(url=f"http://127.0.0.1:{port}")
        wait_for(self.answers, 90)

    def answers(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        try:
            self.client.assistants.search()
        except httpx.HTTPError:  # it is not up yet
            return False
        return True

    def stop(self) -> None:
        self.client.close()
        self.process.terminate()
        _ = self.process.wait(30)

    def check_log(self) -> None:
        """No call of the saver failed, and none held up the server's loop."""
        text = self.log.read_text()
        for bad in ("BlockingError", "S3SaverError", "NotImplementedError", "Traceback"):
            assert bad not in text, text[text.index(bad) - 2000 :][:4000]


def wait_for(what: Callable[[], object], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.fixture(scope="module", params=[False, True], ids=["one loop", "a loop for each worker"])
def server(
    request: pytest.FixtureRequest, moto_endpoint: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    it = Server(moto_endpoint, tmp_path_factory.mktemp("server"), request.param)
    try:
        yield it
    finally:
        it.stop()
    it.check_log()


def say(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def thread_of(server: Server) -> str:
    return str(server.client.threads.create()["thread_id"])


def texts(state: Any) -> list[str]:
    return [it["content"] for it in state["values"]["messages"]]


def stored(server: Server) -> S3Saver:
    """What lies in the bucket, seen from outside."""
    return S3Saver(server.bucket, "agents", endpoint_url=server.endpoint)


def test_runs_state_and_history(server: Server) -> None:
    client, thread = server.client, thread_of(server)
    for number in (1, 2):
        values = client.runs.wait(thread, AGENT, input=say(f"hello {number}"))
        assert len(values["messages"]) == 2 * number
    state = client.threads.get_state(thread)
    assert texts(state) == ["hello 1", "That makes 1 messages.", "hello 2", "That makes 3 messages."]
    assert state["next"] == []
    history = client.threads.get_history(thread, limit=100)
    assert len(history) == 8
    assert [it["metadata"]["step"] for it in history] == [6, 5, 4, 3, 2, 1, 0, -1]
    page = client.threads.get_history(thread, limit=3, before=history[2]["checkpoint"])
    assert [it["checkpoint"]["checkpoint_id"] for it in page] == [
        it["checkpoint"]["checkpoint_id"] for it in history[3:6]
    ]
    old = client.threads.get_state(thread, checkpoint=history[4]["checkpoint"])
    assert texts(old) == ["hello 1", "That makes 1 messages."]
    with stored(server) as saver:
        assert len(list(saver.list(config_for(thread)))) == 8


def test_streams(server: Server) -> None:
    client, thread = server.client, thread_of(server)
    parts = list(client.runs.stream(thread, AGENT, input=say("hello"), stream_mode=["values", "updates"]))
    assert not [it for it in parts if it.event == "error"]
    updates = [name for it in parts if it.event == "updates" for name in it.data]
    assert updates == ["understand", "say"]


def test_interrupt_and_resume(server: Server) -> None:
    client, thread = server.client, thread_of(server)
    _ = client.runs.wait(thread, AGENT, input=say("book Oslo Rome"))
    state = client.threads.get_state(thread)
    assert state["next"] == ["book"]
    assert state["tasks"][0]["interrupts"][0]["value"] == {"book": "Oslo"}
    _ = client.runs.wait(thread, AGENT, command={"resume": True})
    state = client.threads.get_state(thread)
    assert state["tasks"][0]["interrupts"][0]["value"] == {"book": "Rome"}
    _ = client.runs.wait(thread, AGENT, command={"resume": False})
    assert texts(client.threads.get_state(thread))[1:] == [
        "Oslo is booked.",
        "Rome is left out.",
        "That makes 3 messages.",
    ]


def test_update_and_fork(server: Server) -> None:
    client, thread = server.client, thread_of(server)
    _ = client.runs.wait(thread, AGENT, input=say("book Oslo"))
    _ = client.threads.update_state(thread, {"todo": ["Bern"]}, as_node="understand")
    state = client.threads.get_state(thread)
    assert state["values"]["todo"] == ["Bern"]
    _ = client.runs.wait(thread, AGENT, input=None)
    _ = client.runs.wait(thread, AGENT, command={"resume": True})
    assert texts(client.threads.get_state(thread))[1] == "Bern is booked."
    first = client.threads.get_history(thread, limit=100)[-1]["checkpoint"]
    _ = client.runs.wait(thread, AGENT, input=say("hello"), checkpoint=first)
    assert texts(client.threads.get_state(thread)) == ["hello", "That makes 1 messages."]


def test_a_copy_goes_its_own_way(server: Server) -> None:
    client, thread = server.client, thread_of(server)
    _ = client.runs.wait(thread, AGENT, input=say("book Oslo"))
    before = client.threads.get_state(thread)
    copy = client.threads.copy(thread)["thread_id"]
    assert texts(client.threads.get_state(copy)) == texts(before)
    _ = client.runs.wait(copy, AGENT, command={"resume": True})
    assert texts(client.threads.get_state(copy))[1] == "Oslo is booked."
    assert client.threads.get_state(thread)["next"] == ["book"]
    with stored(server) as saver:
        assert len(list(saver.list(config_for(copy)))) > len(list(saver.list(config_for(thread))))


def test_a_rolled_back_run_leaves_nothing(server: Server) -> None:
    client, thread = server.client, thread_of(server)
    _ = client.runs.wait(thread, AGENT, input=say("hello"))
    before = len(client.threads.get_history(thread, limit=100))
    slow = client.runs.create(thread, AGENT, input=say("wait 8"))
    wait_for(lambda: len(client.threads.get_history(thread, limit=100)) > before)
    values = client.runs.wait(thread, AGENT, input=say("again"), multitask_strategy="rollback")
    assert [it["content"] for it in values["messages"]] == [
        "hello",
        "That makes 1 messages.",
        "again",
        "That makes 3 messages.",
    ]
    wait_for(lambda: slow["run_id"] not in [it["run_id"] for it in client.runs.list(thread)])
    with stored(server) as saver:
        runs = {it.metadata.get("run_id") for it in saver.list(config_for(thread))}
    assert slow["run_id"] not in runs
    assert len(runs) == 2


def test_an_interrupted_run_stays(server: Server) -> None:
    client, thread = server.client, thread_of(server)
    slow = client.runs.create(thread, AGENT, input=say("wait 8"))
    wait_for(lambda: len(client.threads.get_history(thread, limit=100)) > 0)
    values = client.runs.wait(thread, AGENT, input=say("again"), multitask_strategy="interrupt")
    assert [it["content"] for it in values["messages"]] == ["wait 8", "again", "That makes 2 messages."]
    assert client.runs.get(thread, slow["run_id"])["status"] == "interrupted"


def test_a_deleted_thread_is_gone(server: Server) -> None:
    client, thread = server.client, thread_of(server)
    _ = client.runs.wait(thread, AGENT, input=say("hello"))
    client.threads.delete(thread)
    with stored(server) as saver:
        assert not list(saver.list(config_for(thread)))
    keys = boto3.client("s3", endpoint_url=server.endpoint).list_objects_v2(
        Bucket=server.bucket, Prefix=f"agents/{thread}/"
    )
    assert keys["KeyCount"] == 0


def test_another_server_goes_on(server: Server) -> None:
    """After a restart everything is there, a thread that waits included."""
    client, thread = server.client, thread_of(server)
    _ = client.runs.wait(thread, AGENT, input=say("book Oslo"))
    before = client.threads.get_state(thread)
    server.stop()
    server.check_log()
    server.start()
    client = server.client
    after = client.threads.get_state(thread)
    assert (texts(after), after["next"]) == (texts(before), ["book"])
    _ = client.runs.wait(thread, AGENT, command={"resume": True})
    assert texts(client.threads.get_state(thread))[1:] == ["Oslo is booked.", "That makes 2 messages."]

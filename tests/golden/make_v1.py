"""Write the golden objects of format 1: `python -m tests.golden.make_v1`.

They are committed as they were written and have to stay readable for ever, so this is run again only
while no release has written format 1 yet. What they hold stands here, for the test that reads them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from langgraph.checkpoint.s3._keys import blob_name, namespace, numbered_batch, stamped_batch
from langgraph.checkpoint.s3._objects import (
    BlobRef,
    ChannelHistory,
    CheckpointObject,
    Codec,
    Fence,
    HistoryPack,
    Link,
    Stretch,
    Value,
    WriteBatch,
)

FOLDER = Path(__file__).parent / "v1"

THREAD, NS_TEXT = "customer/42 é", "outer:1|inner:2"
NS = namespace("agents/", THREAD, NS_TEXT)
OLD, PARENT, ID = (f"1f0a5b6c-0d1e-6f2a-8003-00000000000{n}" for n in range(3))

BLOB = ("msgpack", b"\xda\x10\x00" + b"large " * 682 + b"text")
REF = BlobRef(OLD, blob_name("messages/all", BLOB[1]), 99)

CHECKPOINT = CheckpointObject(
    thread=THREAD,
    ns=NS_TEXT,
    id=ID,
    parent=PARENT,
    state=("msgpack", b"\x81\xa1v\x04"),
    metadata=("msgpack", b"\x81\xa4step\x07"),
    values={
        "text": Value("00000000000000000000000000000003.0.25", ("msgpack", b"\xa5hello")),
        "number": Value(7, ("msgpack", b"\x2a")),
        "fraction": Value(1.5, ("bytes", bytes(range(256)))),
        "nothing": Value("1", ("null", b"")),
        "messages/all": Value("2", REF),
    },
    deltas={"log": 300, "": 1},
    blank=["log", "", "branch:to:node"],
    marks=(PARENT, OLD),
    steps=44,
)
AGING = replace(CHECKPOINT, since=1_750_000_000.25)
ROOT = CheckpointObject(THREAD, NS_TEXT, OLD, None, ("null", b""), ("null", b""), {})
WRITES = WriteBatch(
    thread=THREAD,
    ns=NS_TEXT,
    checkpoint=ID,
    task="task/1",
    path="~__pregel_pull, node",
    stamp=1_750_000_000_123_456_789,
    nonce="0badcafe",
    writes=[(0, "messages/all", ("msgpack", b"\xa2hi")), (1, "log", ("null", b"")), (-3, "__interrupt__", BLOB)],
)
NUMBERED = numbered_batch(WRITES.task, 0)
STAMPED = stamped_batch(WRITES.task, WRITES.stamp, WRITES.nonce)
HISTORY = HistoryPack(
    THREAD,
    NS_TEXT,
    ID,
    {
        "log": ChannelHistory(("msgpack", b"\x91\x01"), [("task/1", ("msgpack", b"\x02")), ("task/2", ("null", b""))]),
        "empty": ChannelHistory(None, []),
    },
)
BATCH = WriteBatch(THREAD, NS_TEXT, OLD, "task/0", "", 0, "", [(0, "log", ("msgpack", b"\x03"))])
CHANNELS = ["log", "other log"]
STRETCH = Stretch(
    THREAD,
    NS_TEXT,
    PARENT,
    CHANNELS,
    [
        Link(PARENT, OLD, [], ["log"], {}, {}, channels=frozenset(CHANNELS)),
        Link(
            OLD,
            None,
            ["other log"],
            [],
            {numbered_batch("task/0", 0): BATCH},
            {numbered_batch("task/0", 0): 321},
            channels=frozenset(CHANNELS),
        ),
    ],
)
FENCE = Fence(horizon=PARENT, kept=frozenset({OLD}), doomed=frozenset({ID}), blobs=frozenset({(OLD, REF.name)}))


def pack(codec: Codec) -> dict[str, bytes]:
    """Every golden object by its file's name."""
    return {
        "checkpoint": codec.checkpoint(CHECKPOINT),
        "aging_checkpoint": codec.checkpoint(AGING),
        "root": codec.checkpoint(ROOT),
        "blob": codec.blob(THREAD, NS_TEXT, OLD, "messages/all", BLOB),
        "writes": codec.writes(WRITES),
        "history": codec.history(HISTORY),
        "stretch": codec.stretch(STRETCH),
        "fence": codec.fence(NS, FENCE),
        "empty_fence": codec.fence(NS, Fence()),
    }


if __name__ == "__main__":
    for name, data in pack(Codec("bucket", 3, 1 << 20)).items():
        _ = (FOLDER / name).write_bytes(data)

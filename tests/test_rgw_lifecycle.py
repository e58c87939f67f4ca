"""Lifecycle rules at work, on RADOS Gateway, where a day lasts five seconds (`make test-rgw`).

moto keeps rules and follows none. Here they delete what they say, a day or two late, as AWS does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.base.id import uuid6

from langgraph.checkpoint.s3 import LifecycleWarning, MissingObject, S3Saver
from langgraph.checkpoint.s3._keys import trash_of
from langgraph.checkpoint.s3._operations import Disposal
from langgraph.checkpoint.s3.retention import Restored, RetentionPolicy
from tests.support.rgw import rgw_server
from tests.support.savers import PREFIX, BotoStore, shared_client
from tests.support.threads import Script, config_for, noise

pytestmark = pytest.mark.rgw

DAY = 5
"""Seconds."""
LATE = 8
"""Days after which a rule has done its work for sure: the gateway looks once a day, and at one shard after another."""
ROOT = f"{PREFIX}/"
POLICY = RetentionPolicy(keep_last=2, min_age=timedelta(0))


@pytest.fixture(scope="module")
def short_days(aws_environment: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with rgw_server(tmp_path_factory.mktemp("short-days"), day=DAY) as endpoint:
        yield endpoint


@pytest.fixture
def store(short_days: str) -> Iterator[BotoStore]:
    """An empty bucket, whose rules do not outlive the test: the gateway keeps time with a few only."""
    store = BotoStore(short_days)
    yield store
    shared_client(store.endpoint).delete_bucket_lifecycle(Bucket=store.bucket)
    store.close()


def wait_for(what: Callable[[], bool], days: int) -> None:
    deadline = time.monotonic() + days * DAY
    while not what():
        assert time.monotonic() < deadline, f"not within {days} days"
        time.sleep(0.5)


def keys(store: BotoStore, prefix: str = "") -> list[str]:
    listed = shared_client(store.endpoint).list_objects_v2(Bucket=store.bucket, Prefix=prefix)
    return [it["Key"] for it in listed.get("Contents", ())]


def trashed(store: BotoStore) -> list[str]:
    """What lies in the trash."""
    return keys(store, trash_of(ROOT))


def noncurrent(store: BotoStore) -> list[str]:
    """Everything but the versions that can be read."""
    found = shared_client(store.endpoint).list_object_versions(Bucket=store.bucket, Prefix=ROOT)
    old = [it["Key"] for it in found.get("Versions", ()) if not it["IsLatest"]]
    return old + [it["Key"] for it in found.get("DeleteMarkers", ())]


def fill(saver: S3Saver, thread: str = "thread", length: int = 6) -> None:
    """A thread with a large value that all share, others of their own, and writes."""
    script = Script(saver, thread)
    _ = script.put({"shared": noise(20_000)})
    for number in range(2, length + 1):
        _ = script.put({"n": number, "own": noise(20_000, number)})
        script.write("n", number)


def tuples(store: BotoStore, thread: str = "thread") -> list[CheckpointTuple]:
    return list(store.saver().list(config_for(thread)))


# -- what was pruned -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "left_over", "days"),
    [
        pytest.param("trash", trashed, LATE, id="trash"),
        pytest.param("versions", noncurrent, 2 * LATE, id="versions"),  # markers only after what lay below them
    ],
)
def test_what_was_pruned_goes_and_can_be_undone_before(
    store: BotoStore, how: Disposal, left_over: Callable[[BotoStore], list[str]], days: int
) -> None:
    if how == "versions":
        shared_client(store.endpoint).put_bucket_versioning(
            Bucket=store.bucket, VersioningConfiguration={"Status": "Enabled"}
        )
    saver = store.saver(disposal=how)
    fill(saver)
    before = tuples(store)
    _ = saver.apply_lifecycle(saver.lifecycle_rules(grace=timedelta(days=4)))
    assert not saver.check_lifecycle()
    assert saver.apply_retention(POLICY).checkpoints == 4
    assert tuples(store) == before[:2]
    time.sleep(2 * DAY)
    assert saver.undo_prune("thread").checkpoints == 4
    assert tuples(store) == before
    assert (
        saver.apply_retention(POLICY).checkpoints == 4
    )  # a fence is there now, and with versions no If-Match ever holds
    assert left_over(store)
    wait_for(lambda: not left_over(store), 4 + days)
    assert tuples(store) == before[:2]
    assert saver.undo_prune("thread") == Restored(0, 0)


def test_unfinished_uploads_go(store: BotoStore) -> None:
    client = shared_client(store.endpoint)
    uploads = [
        client.create_multipart_upload(Bucket=store.bucket, Key=key)["UploadId"]
        for key in (f"{ROOT}thread/x", "elsewhere/x")
    ]
    saver = store.saver()
    _ = saver.apply_lifecycle(saver.lifecycle_rules(uploads=timedelta(days=1)))

    def left() -> list[str]:
        return [it["UploadId"] for it in client.list_multipart_uploads(Bucket=store.bucket).get("Uploads", ())]

    assert sorted(left()) == sorted(uploads)
    wait_for(lambda: uploads[0] not in left(), 1 + LATE)
    assert left() == uploads[1:]


# -- what is in use --------------------------------------------------------------------------------

LIFE = timedelta(seconds=2 * DAY)
"""For the saver, whose clock is the real one. Its rule is one of four days."""


def rule_of(saver: S3Saver) -> dict[str, Any]:
    (rule,) = (it for it in saver.lifecycle_rules() if it["ID"].startswith("langgraph-s3saver-expire"))
    return {**rule, "Expiration": {"Days": 4}}


class Agent:
    """A thread that is used, with a large value from its first step and a delta channel that is never snapshotted."""

    def __init__(self, saver: S3Saver) -> None:
        self.script = Script(saver)
        self.log: list[Any] = []
        self.step({"large": noise(20_000), "log": ["seed"]})

    def step(self, values: dict[str, Any] | None = None) -> None:
        depth = len(self.log)
        if values is None:
            self.script.write("log", depth)
            self.log.append(depth)
        counters: dict[str, Any] = {"counters_since_delta_snapshot": {"log": [depth, depth]}} if values is None else {}
        touched = () if values else ("log",)
        _ = self.script.put(values or {"n": depth}, id=str(uuid6(clock_seq=-2)), touch=touched, **counters)

    def check(self, saver: S3Saver) -> None:
        """A process that has just started reads all of it."""
        found = saver.get_tuple(config_for("thread"))
        assert found is not None
        assert found.config == self.script.config
        assert found.checkpoint["channel_values"] == {"large": noise(20_000), "n": self.log[-1]}
        history: Any = saver.get_delta_channel_history(config=found.config, channels=["log"])["log"]
        assert [*history["seed"], *(value for _, _, value in history["writes"])] == ["seed", *self.log]


def test_threads_in_use_outlive_the_rule_and_idle_ones_do_not(store: BotoStore) -> None:
    saver = store.saver(expire_after=LIFE)
    _ = saver.apply_lifecycle([rule_of(saver)])
    fill(saver, "idle")
    agent = Agent(saver)
    for _ in range(26):  # half days, so that a machine that stands still for a while breaks no promise
        time.sleep(DAY / 2)
        agent.step()
        agent.check(store.saver(expire_after=LIFE))
    assert not keys(store, f"{ROOT}idle/")


def test_an_age_rule_breaks_a_saver_that_knows_nothing_of_it(store: BotoStore) -> None:
    rule = {"ID": "tidy", "Status": "Enabled", "Filter": {"Prefix": ""}, "Expiration": {"Days": 2}}
    shared_client(store.endpoint).put_bucket_lifecycle_configuration(
        Bucket=store.bucket, LifecycleConfiguration={"Rules": [rule]}
    )
    naive = store.saver()
    agent = Agent(naive)
    (finding,) = naive.check_lifecycle()
    assert (finding.rule, finding.effect) == ("tidy", "deletes objects of 2 days")
    with pytest.warns(LifecycleWarning, match="'tidy' deletes objects of 2 days"):
        naive.setup()
    agent.step()
    agent.check(store.saver())

    def is_broken() -> bool:
        agent.step()
        try:
            agent.check(store.saver())
        except MissingObject:
            return True
        return False

    wait_for(is_broken, 2 + LATE)

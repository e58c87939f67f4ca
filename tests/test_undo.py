"""Bringing back what was pruned, from the trash and from versions: everything then reads as before."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import Any, Literal

import pytest
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.types import INTERRUPT

from langgraph.checkpoint.s3 import InvalidInput, S3Saver, StorageError
from langgraph.checkpoint.s3._keys import in_trash, trash_of
from langgraph.checkpoint.s3._requests import GetVersioning, Plan
from langgraph.checkpoint.s3.aio import AsyncS3Saver
from langgraph.checkpoint.s3.errors import Contended
from langgraph.checkpoint.s3.retention import Restored, RetentionPolicy
from tests.support.fake_s3 import FakeDriver, FakeS3, crash_states
from tests.support.savers import FakeStore, Store, shared_client
from tests.support.threads import Script, config_for, eager, noise, saver_on, uuid_of
from tests.test_retention import on_loop

DAY = timedelta(days=1)
ROOT = "prefix/"
TRASH = trash_of(ROOT)
SPACES = ("", "child:1")
OPTIONS: dict[str, Any] = {"inline_threshold": 100}

How = Literal["versions", "trash"]
HOW = pytest.mark.parametrize("how", ["versions", "trash"])


def saver_at(s3: FakeS3, how: str) -> S3Saver:
    saver = eager(saver_on(s3, disposal=how, **OPTIONS))
    saver._clock = lambda: int(s3.now * 1e9)
    return saver


def build(s3: FakeS3, how: str, thread: str = "thread", length: int = 8) -> Script:
    """Large values that are inherited, a delta log with packed stretches, writes, an interrupt, two namespaces."""
    script = Script(saver_at(s3, how), thread)
    for ns in reversed(SPACES):
        script = Script(saver_at(s3, how), thread, ns)
        _ = script.put({"large": noise(300, 1), "log": ["seed"]}, run_id="early")
        for depth in range(1, length):
            script.write("log", depth)
            values = {"n": depth} | ({"larger": noise(400, depth)} if depth % 3 == 0 else {})
            counters = {"log": [depth, depth]}
            _ = script.put(values, touch=("log",), run_id=f"run {depth}", counters_since_delta_snapshot=counters)
            s3.now += 3600
        script.saver.put_writes(script.config, [(INTERRUPT, "wait")], "task")
    return script


def bucket(how: str) -> FakeS3:
    s3 = FakeS3()
    s3.versioned = how == "versions"
    _ = build(s3, how)
    s3.now += 90_000
    return s3


def observe(s3: FakeS3, thread: str = "thread") -> dict[str, Any]:
    """All that a new saver reads of a thread, with the histories of its delta channel."""
    saver = saver_on(s3, **OPTIONS)
    found = {ns: list(saver.list(config_for(thread, None, ns))) for ns in SPACES}
    assert all(saver.get_tuple(it.config) == it for its in found.values() for it in its)
    return {ns: [(it, history(saver, it)) for it in its] for ns, its in found.items()}


def history(saver: S3Saver, it: CheckpointTuple) -> Any:
    if not it.metadata.get("counters_since_delta_snapshot"):
        return None
    return saver.get_delta_channel_history(config=it.config, channels=["log"])


PRUNES = {
    "prune": lambda saver: saver.prune(["thread"]),
    "keep_last": lambda saver: saver.apply_retention(RetentionPolicy(keep_last=3)),
    "idle": lambda saver: saver.apply_retention(RetentionPolicy(thread_idle=DAY, keep_interrupted=False)),
}


@HOW
@pytest.mark.parametrize("name", PRUNES)
def test_everything_reads_as_before(how: How, name: str) -> None:
    s3 = bucket(how)
    before = observe(s3)
    PRUNES[name](saver_at(s3, how))
    gone = sum(map(len, before.values())) - sum(map(len, observe(s3).values()))
    assert gone == {"prune": 14, "keep_last": 10, "idle": 16}[name]
    assert saver_at(s3, how).undo_prune("thread").checkpoints == gone
    assert observe(s3) == before
    assert not s3.keys(TRASH)
    assert saver_at(s3, how).undo_prune("thread") == Restored(0, 0)


@HOW
@pytest.mark.parametrize("name", PRUNES)
def test_a_thread_that_has_gone_on_meanwhile(how: How, name: str) -> None:
    s3 = bucket(how)
    before = observe(s3)
    script = build(FakeS3(), how)
    PRUNES[name](saver_at(s3, how))
    script.saver = saver_at(s3, how)
    _ = script.put({"n": 9, "log": ["all"], "large": "new"})
    assert saver_at(s3, how).undo_prune("thread").checkpoints > 0
    after = observe(s3)
    assert after[""][0][0].checkpoint["id"] == uuid_of(9)
    assert {ns: its[-len(before[ns]) :] for ns, its in after.items()} == before


@HOW
def test_what_came_back_can_be_built_on_and_pruned_again(how: How) -> None:
    """The fence does not condemn it any more."""
    s3 = bucket(how)
    saver_at(s3, how).prune(["thread"])
    _ = saver_at(s3, how).undo_prune("thread")
    before = observe(s3)
    saver = saver_at(s3, how)
    base = build(FakeS3(), how, length=5)  # a fork from the fifth, which leans on what came back
    script = Script(saver, "thread", first=20)
    script.head, script.values, script.versions = base.head, dict(base.values), dict(base.versions)
    _ = script.put({"n": 20}, touch=("log",), counters_since_delta_snapshot={"log": [5, 5]})
    forked = observe(s3)
    assert forked[""][1:] == before[""]
    log = forked[""][0][1]["log"]
    assert [value for _, _, value in log["writes"]] == [1, 2, 3, 4, 5]
    saver_at(s3, how).prune(["thread"])
    assert [it.checkpoint["id"] for it, _ in observe(s3)[""]] == [uuid_of(20)]
    _ = saver_at(s3, how).undo_prune("thread")
    assert observe(s3) == forked


@HOW
@pytest.mark.parametrize("first", ["prune", "roll back"])
def test_what_was_rolled_back_does_not_come_back(how: How, first: str) -> None:
    s3 = bucket(how)
    before = observe(s3)
    runs = ["run 5", "run 6", "run 7"]  # of which a prune leaves the last checkpoint
    if first == "prune":
        saver_at(s3, how).prune(["thread"])
        saver_at(s3, how).delete_for_runs(runs)
    else:
        saver_at(s3, how).delete_for_runs(runs)
        saver_at(s3, how).prune(["thread"])
    _ = saver_at(s3, how).undo_prune("thread")
    assert observe(s3) == {ns: its[3:] for ns, its in before.items()}


def test_what_is_deleted_as_a_thread_leaves_no_trash() -> None:
    s3 = bucket("trash")
    saver = saver_at(s3, "trash")
    saver.prune(["thread"])
    assert s3.keys(TRASH)
    s3[in_trash(ROOT, TRASH, "prefix/thread2/_/latest")] = b"another's"
    saver.delete_thread("thread")
    assert s3.keys(TRASH) == [in_trash(ROOT, TRASH, "prefix/thread2/_/latest")]
    assert saver.undo_prune("thread") == Restored(0, 0)


@HOW
def test_only_what_went_since_a_time(how: How) -> None:
    s3 = bucket(how)
    before = observe(s3)
    saver = saver_at(s3, how)
    _ = saver.apply_retention(RetentionPolicy(keep_last=4))
    s3.now += 86_400
    between = observe(s3)
    since = datetime.fromtimestamp(s3.now, timezone.utc)
    _ = saver.apply_retention(RetentionPolicy(keep_last=2))
    assert saver.undo_prune("thread", since=since).checkpoints == 4
    assert observe(s3) == between
    assert saver.undo_prune("thread").checkpoints == 8
    assert observe(s3) == before


def test_costs() -> None:
    s3 = bucket("trash")
    saver = saver_at(s3, "trash")
    objects = len(s3)
    saver.prune(["thread"])
    trash = len(s3.keys(TRASH))
    assert 30 < trash < objects
    with saver._driver.measure() as cost:  # type: ignore[attr-defined]
        assert saver.undo_prune("thread").objects == trash
    assert (cost.lists, cost.copies, cost.puts, cost.deletes) == (1, trash, 2, 1)
    assert cost.round_trips == 1 + 2 + 2 + 1  # list, fences read and written, two steps of copies, empty the trash

    s3 = bucket("versions")
    saver = saver_at(s3, "versions")
    saver.prune(["thread"])
    with saver._driver.measure() as cost:  # type: ignore[attr-defined]
        assert saver.undo_prune("thread").objects == trash
    assert (cost.lists, cost.copies, cost.puts, cost.deletes) == (1, 0, 2, 2)


# -- stopped, refused ------------------------------------------------------------------------------


@HOW
def test_stopped_after_each_request(how: How) -> None:
    """Each checkpoint that can be seen meanwhile is whole; once more, and all are there."""
    s3 = bucket(how)
    before = observe(s3)
    _ = saver_at(s3, how).apply_retention(RetentionPolicy(thread_idle=DAY, keep_interrupted=False))
    count = 0
    for state in crash_states(s3, lambda: saver_at(s3, how)._undo_plan("thread", None)):
        count += 1
        for ns, its in observe(state).items():
            assert its == before[ns][len(before[ns]) - len(its) :]
        again = state.copy()
        _ = saver_at(again, how).undo_prune("thread")
        assert observe(again) == before
    assert count > 8


@HOW
def test_a_prune_stopped_after_each_request_can_be_undone(how: How) -> None:
    s3 = bucket(how)
    before = observe(s3)
    count = 0
    for state in crash_states(s3, lambda: saver_at(s3, how)._prune_plan(["thread"], "keep_latest")):
        count += 1
        _ = saver_at(state, how).undo_prune("thread")
        assert observe(state) == before
    assert count > 20


def test_bad_input() -> None:
    s3 = bucket("delete")
    with pytest.raises(InvalidInput, match="disposal='delete' leaves nothing"):
        _ = saver_at(s3, "delete").undo_prune("thread")
    with pytest.raises(InvalidInput, match="disposal must be"):
        _ = S3Saver("bucket", disposal="burn")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="has no time zone"):
        _ = saver_at(s3, "trash").undo_prune("thread", since=datetime(2026, 1, 1))
    with pytest.raises(InvalidInput, match="thread_id is a NoneType"):
        _ = saver_at(s3, "trash").undo_prune(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [*PRUNES, "undo"])
def test_versions_need_versioning(name: str) -> None:
    s3 = bucket("delete")
    before = s3.snapshot()
    saver = saver_at(s3, "versions")
    for _ in range(2):
        with pytest.raises(InvalidInput, match="needs a bucket with versioning"):
            PRUNES[name](saver) if name in PRUNES else saver.undo_prune("thread")
    assert s3.snapshot() == before
    s3.versioned = True
    PRUNES["prune"](saver)
    PRUNES["keep_last"](saver)
    assert (
        sum(isinstance(request, GetVersioning) for request in s3.log) == 3
    )  # once it was known it was not asked again


def test_a_copy_that_fails_leaves_everything_there() -> None:
    """Nothing is deleted before its copy is made, nor from the trash before it is back."""
    s3 = bucket("trash")
    before = observe(s3)
    copies = len(s3.keys())
    for number in range(1, copies):
        state = s3.copy()
        driver = FakeDriver(state)
        driver.fail_before(number)
        saver = saver_at(state, "trash")
        saver._driver = driver  # type: ignore[assignment]
        try:
            saver.prune(["thread"])
        except StorageError:
            pass
        else:
            break
        _ = saver_at(state, "trash").undo_prune("thread")
        assert observe(state) == before


def test_what_has_expired_cannot_come_back() -> None:
    s3 = bucket("trash")
    saver = saver_at(s3, "trash")
    saver.prune(["thread"])
    plan = saver._undo_plan("thread", None)
    (listing,) = next(plan)

    def after_the_listing() -> Plan[Any]:
        batch = plan.send([s3.apply(listing)])
        del s3[s3.keys(TRASH)[0]]
        while True:
            batch = plan.send((yield batch))

    with pytest.raises(Contended, match="what has expired cannot come back"):
        FakeDriver(s3).run(after_the_listing())


# -- over the real clients -------------------------------------------------------------------------


@pytest.fixture
def versioned(store: Store) -> Store:
    """The store, with a versioned bucket."""
    if isinstance(store, FakeStore):
        store.s3.versioned = True
    else:
        shared_client(store.endpoint).put_bucket_versioning(
            Bucket=store.bucket, VersioningConfiguration={"Status": "Enabled"}
        )
    return store


def tuples(store: Store) -> Sequence[CheckpointTuple]:
    return list(store.saver().list(config_for("thread")))


@HOW
def test_over_either_driver(versioned: Store, how: How) -> None:
    saver = versioned.saver(disposal=how)
    script = Script(saver, "thread")
    for number in range(1, 6):
        _ = script.put({"n": number, "large": noise(50_000, number)}, run_id=f"run {number}")
        script.write("n", number)
    before = tuples(versioned)
    saver = versioned.saver(disposal=how)
    saver._clock = lambda: time.time_ns() + 7200 * 10**9
    policy = RetentionPolicy(keep_last=2)
    if isinstance(saver, AsyncS3Saver):
        assert on_loop(saver, saver.aapply_retention(policy)).checkpoints == 3
    else:
        assert saver.apply_retention(policy).checkpoints == 3
    assert tuples(versioned) == before[:2]
    saver.delete_for_runs(["run 3"])
    restored = (
        on_loop(saver, saver.aundo_prune("thread")) if isinstance(saver, AsyncS3Saver) else saver.undo_prune("thread")
    )
    assert restored == Restored(2, 6)
    assert tuples(versioned) == [it for it in before if it.metadata["step"] != 3]

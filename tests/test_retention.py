"""Retention: what a policy lets stay, that a plan is what is done, and that nothing goes that cannot be read."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Coroutine, Sequence
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any, TypedDict, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langgraph.checkpoint.serde.types import INTERRUPT
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

from langgraph.checkpoint.s3 import InvalidInput, S3Saver
from langgraph.checkpoint.s3._keys import THREAD_LIMIT, encode_part
from langgraph.checkpoint.s3.aio import AsyncS3Saver
from langgraph.checkpoint.s3.errors import StorageError
from langgraph.checkpoint.s3.retention import Dated, RetentionPolicy, RetentionReport, ThreadPlan, judge, outlived
from tests.support.fake_s3 import FakeDriver, FakeS3
from tests.support.savers import Store
from tests.support.threads import Script, config_for, noise, saver_on, uuid_of

T = TypeVar("T")

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
NOW = 1_700_000_000.0


def saver_at(s3: FakeS3, **options: Any) -> S3Saver:
    """A saver whose clock is that of the store."""
    saver = saver_on(s3, **options)
    saver._clock = lambda: int(s3.now * 1e9)
    return saver


def thread_of(s3: FakeS3, name: str, length: int, ns: str = "", every: timedelta = HOUR, **options: Any) -> Script:
    """A thread of some checkpoints, one an hour, each with a write; the store's clock goes on meanwhile."""
    script = Script(saver_at(s3, **options), name, ns)
    for number in range(1, length + 1):
        _ = script.put({"n": number, "large": noise(50_000, number)})
        script.write("n", number)
        s3.now += every.total_seconds()
    return script


def ids(s3: FakeS3, thread: str, ns: str = "") -> list[str]:
    """What a new saver lists of a thread, newest first; each of them is read whole."""
    found = list(saver_on(s3).list(config_for(thread, None, ns)))
    for it in found:
        assert it.checkpoint["channel_values"]["n"] == int(it.checkpoint["id"][-12:], 16)
    return [it.checkpoint["id"] for it in found]


def numbers(*of: int) -> list[str]:
    return [uuid_of(number) for number in of]


# -- the policy ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        {"keep_last": 0},
        {"keep_last": 1.5},
        {"keep_last": True},
        {"keep_within": timedelta(days=-1)},
        {"keep_within": 7},
        {"thread_idle": "a month"},
        {"min_age": timedelta(seconds=-1)},
        {"min_age": None},
    ],
    ids=str,
)
def test_a_policy_that_makes_no_sense_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(given))):
        _ = RetentionPolicy(**given)


ages = st.floats(0, 60 * 86_400, allow_nan=False)
times = st.none() | st.timedeltas(timedelta(0), 30 * DAY)
policies = st.builds(
    RetentionPolicy,
    keep_last=st.none() | st.integers(1, 12),
    keep_within=times,
    thread_idle=times,
    min_age=st.timedeltas(timedelta(0), 2 * DAY),
)
folders = st.lists(
    st.builds(Dated, st.integers(1, 99).map(uuid_of), st.booleans(), ages.map(lambda it: NOW - it)),
    max_size=15,
    unique_by=lambda it: it.id,
)


@given(policies, folders)
def test_what_a_policy_says(policy: RetentionPolicy, found: list[Dated]) -> None:
    """Said once more, in another way: each rule that keeps is a set, and what is in none of them goes."""
    committed = sorted((it for it in found if it.committed), reverse=True)
    by_last = committed[: policy.keep_last or 0]
    within = max(policy.keep_within or timedelta(0), policy.min_age).total_seconds()
    by_age = [it for it in committed if NOW - it.stored <= within]
    keeps_all = policy.keep_last is None and policy.keep_within is None
    stays = set(committed if keeps_all else [*committed[:1], *by_last, *by_age])
    verdicts = judge(policy, "ns", found, NOW)
    assert [it.checkpoint_id for it in verdicts] == sorted((it.id for it in found), reverse=True)
    goes = {it.checkpoint_id for it in verdicts if it.goes}
    assert goes & {it.id for it in committed} == {it.id for it in committed} - {it.id for it in stays}
    assert all(it.reason for it in verdicts)
    for it in found:
        if not it.committed and it.id in goes:  # may belong to a put under way
            assert NOW - it.stored > max(policy.min_age, DAY).total_seconds()
            assert goes - {it.id}


def test_reasons() -> None:
    found = [Dated(uuid_of(number), number != 3, NOW - 86_400 * (9 - number)) for number in range(1, 9)]
    policy = RetentionPolicy(keep_last=2, keep_within=3 * DAY)
    assert [(it.goes, it.reason) for it in judge(policy, "", found, NOW)] == [
        (False, "the newest"),
        (False, "among the last 2"),
        (False, "stored within 3 days, 0:00:00"),
        (True, "not among the last 2 and older than 3 days, 0:00:00"),
        (True, "not among the last 2 and older than 3 days, 0:00:00"),
        (True, "no checkpoint was put for what lies here in a day"),
        (True, "not among the last 2 and older than 3 days, 0:00:00"),
        (True, "not among the last 2 and older than 3 days, 0:00:00"),
    ]


def test_a_subgraph_goes_with_the_checkpoint_whose_task_it_was() -> None:
    policy, old = RetentionPolicy(keep_last=1), NOW - 86_400

    def goes(ns: str, newest: int, oldest: str, policy: RetentionPolicy = policy, touched: float = old) -> bool:
        return outlived(policy, ns, numbers(1, newest), touched, oldest, NOW)

    assert goes("node:task", 4, uuid_of(5))
    assert not goes("node:task", 6, uuid_of(5))
    assert not goes("node", 4, uuid_of(5))  # one that lives as long as its thread
    assert not goes("node:task", 4, "")
    assert not goes("node:task", 4, "named")
    assert not goes("node:task", 4, uuid_of(5), RetentionPolicy(thread_idle=DAY))
    assert not goes("node:task", 4, uuid_of(5), touched=NOW)


# -- pruning ---------------------------------------------------------------------------------------


def test_the_last_stay() -> None:
    s3 = FakeS3()
    _ = thread_of(s3, "thread", 10)
    report = saver_at(s3).apply_retention(RetentionPolicy(keep_last=3))
    assert ids(s3, "thread") == numbers(10, 9, 8)
    assert (report.threads, report.pruned, report.removed, report.checkpoints) == (1, 1, 0, 7)
    assert report.deleted == 7 * 3  # checkpoint, value, writes
    assert report.cursor is None
    assert not report.plans


def test_what_is_young_stays() -> None:
    s3 = FakeS3()
    _ = thread_of(s3, "thread", 10)
    assert saver_at(s3).apply_retention(RetentionPolicy(keep_within=5 * HOUR)).checkpoints == 5
    assert ids(s3, "thread") == numbers(10, 9, 8, 7, 6)
    # Of those that a policy does not keep, those stay that are younger than `min_age`.
    assert saver_at(s3).apply_retention(RetentionPolicy(keep_last=1, min_age=3 * HOUR)).checkpoints == 2
    assert ids(s3, "thread") == numbers(10, 9, 8)


def test_the_newest_stays_whatever_its_age() -> None:
    s3 = FakeS3()
    _ = thread_of(s3, "thread", 3)
    s3.now += 1e9
    _ = saver_at(s3).apply_retention(RetentionPolicy(keep_within=HOUR, min_age=timedelta(0)))
    assert ids(s3, "thread") == numbers(3)


def test_no_rule_lets_nothing_go() -> None:
    s3 = FakeS3()
    _ = thread_of(s3, "thread", 3)
    s3.now += 1e9
    before = s3.snapshot()
    report = saver_at(s3).apply_retention(RetentionPolicy())
    assert s3.snapshot() == before
    assert (report.threads, report.deleted) == (1, 0)


def test_each_namespace_by_itself() -> None:
    s3 = FakeS3()
    _ = thread_of(s3, "thread", 4)
    _ = thread_of(s3, "thread", 6, "child")
    _ = saver_at(s3).apply_retention(RetentionPolicy(keep_last=2))
    assert ids(s3, "thread") == numbers(4, 3)
    assert ids(s3, "thread", "child") == numbers(6, 5)


def test_namespaces_of_tasks_do_not_pile_up() -> None:
    """Each task of a subgraph has a namespace of its own, and with it a newest checkpoint."""
    s3 = FakeS3()
    script = Script(saver_at(s3), "thread")
    for step in range(20):
        _ = script.put({"n": script.number})
        child = Script(script.saver, "thread", f"node:task-{step}", first=script.number)
        _ = child.put({"n": child.number})
        _ = child.put({"n": child.number})
        script.number = child.number
        s3.now += 3600
    _ = script.put({"n": script.number})
    s3.now += 7200
    _ = saver_at(s3).apply_retention(RetentionPolicy(keep_last=2))
    spaces = {key.split("/")[2] for key in s3.keys("prefix/thread/") if key.endswith("/checkpoint")}
    assert spaces == {"_", "node.3Atask-19"}  # that of the task between the two that stay


def test_delta_histories_are_as_before() -> None:
    s3 = FakeS3()
    script = Script(saver_at(s3), "thread")
    _ = script.put({"n": 1, "log": ["seed"]})
    for depth in range(1, 12):
        _ = script.delta_step("log", depth, depth)
        s3.now += 3600
    before = [saver_on(s3).get_delta_channel_history(config=it.config, channels=["log"]) for it in heads(s3, 4)]
    report = saver_at(s3).apply_retention(RetentionPolicy(keep_last=4, min_age=timedelta(0)))
    assert report.checkpoints == 8
    after = [saver_on(s3).get_delta_channel_history(config=it.config, channels=["log"]) for it in heads(s3, 9)]
    assert after == before


def heads(s3: FakeS3, limit: int) -> Sequence[Any]:
    return list(saver_on(s3).list(config_for("thread"), limit=limit))


def test_what_the_saver_remembers_is_forgotten() -> None:
    s3 = FakeS3()
    saver = saver_at(s3)
    script = Script(saver, "thread")
    for number in range(1, 6):
        _ = script.put({"n": number})
    s3.now += 90_000
    _ = saver.apply_retention(RetentionPolicy(keep_last=1))
    assert saver.get_tuple(config_for("thread", uuid_of(2))) is None
    _ = saver.apply_retention(RetentionPolicy(thread_idle=HOUR))
    assert saver.get_tuple(config_for("thread")) is None
    script = Script(saver, "thread", first=9)  # begun anew, by the same process
    _ = script.put({"n": 9})
    assert ids(s3, "thread") == numbers(9)


# -- idle threads ----------------------------------------------------------------------------------


def test_idle_threads_go_as_a_whole() -> None:
    s3 = FakeS3()
    _ = thread_of(s3, "old", 5)
    _ = thread_of(s3, "old", 2, "child")
    s3.now += 30 * 86_400
    _ = thread_of(s3, "new", 5)
    report = saver_at(s3).apply_retention(RetentionPolicy(thread_idle=7 * DAY))
    assert (report.threads, report.removed, report.pruned, report.checkpoints) == (2, 1, 0, 7)
    assert saver_on(s3).get_tuple(config_for("old")) is None
    assert len(ids(s3, "new")) == 5
    # The fence is for puts that are under way; after a day there are none.
    assert [key.rpartition("/")[2] for key in s3.keys("prefix/old/")] == ["fence", "fence"]
    s3.now += 2 * 86_400
    _ = saver_at(s3).apply_retention(RetentionPolicy(thread_idle=7 * DAY))
    assert not s3.keys("prefix/old/")


class State(TypedDict):
    n: int


def asking() -> StateGraph[State, None, State, State]:
    def ask(state: State) -> State:
        return {"n": interrupt("how much?")}

    graph = StateGraph(State)
    _ = graph.add_node("ask", ask).add_edge(START, "ask").add_edge("ask", END)
    return graph


@pytest.mark.parametrize("policy", [RetentionPolicy(thread_idle=DAY), RetentionPolicy(keep_last=1, thread_idle=DAY)])
def test_a_thread_that_waits_for_an_answer_stays(policy: RetentionPolicy) -> None:
    s3 = FakeS3()
    graph = asking().compile(checkpointer=saver_at(s3))
    waiting, answered = config_for("waiting"), config_for("answered")
    for config in (waiting, answered):
        assert "__interrupt__" in graph.invoke({"n": 0}, config)
    assert graph.invoke(Command(resume=1), answered)["n"] == 1
    s3.now += 400 * 86_400
    report = saver_at(s3).apply_retention(policy, ["waiting", "answered", "nobody"])
    assert [(it.thread, it.action, it.reason) for it in report.plans[:2]] == [
        ("waiting", "prune" if policy.prunes else "keep", "it waits for an answer"),
        ("answered", "remove", "idle for more than 1 day, 0:00:00"),
    ]
    assert asking().compile(checkpointer=saver_on(s3)).invoke(Command(resume=7), waiting)["n"] == 7


def test_a_thread_that_waits_goes_if_asked() -> None:
    s3 = FakeS3()
    graph = asking().compile(checkpointer=saver_at(s3))
    _ = graph.invoke({"n": 0}, config_for("waiting"))
    s3.now += 400 * 86_400
    report = saver_at(s3).apply_retention(RetentionPolicy(thread_idle=DAY, keep_interrupted=False))
    assert report.removed == 1
    assert saver_on(s3).get_tuple(config_for("waiting")) is None


def test_a_thread_told_to_stop_before_a_node_waits_too() -> None:
    s3 = FakeS3()
    graph = asking().compile(checkpointer=saver_at(s3), interrupt_before=["ask"])
    _ = graph.invoke({"n": 0}, config_for("waiting"))
    s3.now += 400 * 86_400
    assert not saver_at(s3).apply_retention(RetentionPolicy(thread_idle=DAY)).removed


def test_an_interrupt_of_an_old_checkpoint_does_not_keep_a_thread() -> None:
    s3 = FakeS3()
    script = Script(saver_at(s3), "thread")
    _ = script.put({"n": 1})
    script.write(INTERRUPT, "wait")
    _ = script.put({"n": 2})
    s3.now += 400 * 86_400
    assert saver_at(s3).apply_retention(RetentionPolicy(thread_idle=DAY)).removed == 1


# -- over the real clients -------------------------------------------------------------------------


def test_over_either_driver(store: Store) -> None:
    """On a server everything is as young as the test, so the saver's clock is put forward."""
    for name in ("a", "b"):
        script = Script(store.saver(), name)
        for number in range(1, 5):
            _ = script.put({"n": number, "large": noise(50_000, number)})
            script.write("n", number)
    saver = store.saver()
    saver._clock = lambda: time.time_ns() + 3600 * 10**9
    policy = RetentionPolicy(keep_last=2, min_age=timedelta(0))
    dry, done = run_retention(saver, policy, ["a", "b"], True), run_retention(saver, policy, None, False)
    assert (dry.deleted, dry.bytes, dry.pruned) == (done.deleted, done.bytes, done.pruned)
    assert (done.threads, done.pruned, done.checkpoints, done.deleted, done.failed) == (2, 2, 4, 12, 0)
    for name in ("a", "b"):
        assert [it.checkpoint["id"] for it in store.saver().list(config_for(name))] == numbers(4, 3)
    saver._clock = lambda: time.time_ns() + 86_400 * 10**9
    planned = run_retention(saver, RetentionPolicy(thread_idle=HOUR), ["b"], True).plans
    if isinstance(saver, AsyncS3Saver):
        executed = on_loop(saver, saver.aexecute_retention(planned))
    else:
        executed = saver.execute_retention(planned)
    assert executed.removed == 1
    assert store.saver().get_tuple(config_for("b")) is None
    assert store.saver().get_tuple(config_for("a")) is not None


def run_retention(
    saver: S3Saver | AsyncS3Saver, policy: RetentionPolicy, threads: list[str] | None, dry_run: bool
) -> RetentionReport:
    if isinstance(saver, AsyncS3Saver):
        return on_loop(saver, saver.aapply_retention(policy, threads, dry_run))
    return saver.apply_retention(policy, threads, dry_run)


def on_loop(saver: AsyncS3Saver, coroutine: Coroutine[Any, Any, T]) -> T:
    """Run something on the loop that a saver is used on."""
    return asyncio.run_coroutine_threadsafe(coroutine, saver._driver.loop()).result()


# -- two steps -------------------------------------------------------------------------------------


POLICY = RetentionPolicy(keep_last=2, thread_idle=20 * DAY)


def many(s3: FakeS3) -> None:
    _ = thread_of(s3, "idle", 3)
    s3.now += 30 * 86_400
    for name in ("a/b", "b", "c" * 300):
        _ = thread_of(s3, name, 4)
    _ = thread_of(s3, "b", 3, "child")


def test_a_dry_run_deletes_nothing_and_its_plans_are_what_is_then_done() -> None:
    s3 = FakeS3()
    many(s3)
    before = s3.snapshot()
    saver = saver_at(s3)
    names = ["idle", "a/b", "b", "c" * 300, "unknown"]
    dry = saver.apply_retention(POLICY, names, dry_run=True)
    assert s3.snapshot() == before
    assert dry.dry_run
    assert [it.action for it in dry.plans] == ["remove", "prune", "prune", "prune", "keep"]
    at_once, later = s3.copy(), s3.copy()
    done = saver_at(later).execute_retention(dry.plans)
    applied = saver_at(at_once).apply_retention(POLICY, names)
    assert later.snapshot() == at_once.snapshot() != before
    assert RetentionReport(**{**vars(dry), "dry_run": False}) == done == applied
    gone = [key for key in before.objects if key not in later]
    assert sum(not key.endswith(("/latest", "/fence")) for key in gone) == done.deleted - 1  # a manifest of "idle"
    assert sum(len(before.objects[key].data) for key in gone) == done.bytes


def test_a_plan_can_be_read() -> None:
    s3 = FakeS3()
    _ = thread_of(s3, "thread", 3)
    (plan,) = saver_at(s3).apply_retention(RetentionPolicy(keep_last=1), ["thread"], dry_run=True).plans
    assert str(plan).splitlines() == [
        "thread: prune, it is in use",
        f"    (root) {uuid_of(3)}: the newest",
        f"  - (root) {uuid_of(2)}: not among the last 1",
        f"  - (root) {uuid_of(1)}: not among the last 1",
        f"  6 objects, {plan.bytes:,} bytes",
    ]


def test_what_came_since_the_plan_was_made_stays() -> None:
    s3 = FakeS3()
    script = thread_of(s3, "thread", 4)
    idle = thread_of(s3, "idle", 2)
    s3.now += 30 * 86_400
    saver = saver_at(s3)
    plans = saver.apply_retention(RetentionPolicy(keep_last=1, thread_idle=60 * DAY), ["thread"], dry_run=True).plans
    plans += saver.apply_retention(RetentionPolicy(thread_idle=DAY), ["idle"], dry_run=True).plans
    _ = script.put({"n": 5})
    s3.now += 1
    idle.write("n", "awake", task="another")
    report = saver.execute_retention(plans)
    assert ids(s3, "thread") == numbers(5, 4)
    assert ids(s3, "idle") == numbers(2, 1)
    assert (report.pruned, report.removed, report.failed) == (1, 0, 1)
    assert report.problems[0][0] == "idle"
    assert "was used since" in report.problems[0][1]


# -- failing closed --------------------------------------------------------------------------------


def spoil(s3: FakeS3, thread: str, what: str) -> str:
    key = next(it for it in s3.keys(f"prefix/{thread}/") if f"/{what}" in it)
    if what == "blob":
        del s3[key]
    else:
        s3[key] = b"\0" + s3[key][1:]
    return key


@pytest.mark.parametrize("what", ["checkpoint", "blob", "writes"])
def test_nothing_goes_of_a_thread_that_cannot_be_read(what: str) -> None:
    s3 = FakeS3()
    for name in ("a", "b", "c"):
        _ = thread_of(s3, name, 5)
    key = spoil(s3, "b", what)
    before = s3.snapshot()
    report = saver_at(s3).apply_retention(RetentionPolicy(keep_last=2))
    assert (report.threads, report.pruned, report.failed) == (3, 2, 1)
    assert report.problems[0][0] == "b"
    assert key in report.problems[0][1]
    left = s3.snapshot()
    assert {it: body for it, body in left.objects.items() if "/b/" in it} == {
        it: body for it, body in before.objects.items() if "/b/" in it
    }
    assert ids(s3, "a") == ids(s3, "c") == numbers(5, 4)


def test_nothing_goes_of_an_idle_thread_whose_head_cannot_be_read() -> None:
    s3 = FakeS3()
    _ = thread_of(s3, "thread", 2, manifest="never")
    key = spoil(s3, "thread", "checkpoint")
    s3.now += 1e9
    before = s3.snapshot()
    report = saver_at(s3).apply_retention(RetentionPolicy(thread_idle=DAY))
    assert (report.removed, report.failed) == (0, 1)
    assert key in report.problems[0][1]
    assert s3.snapshot() == before


class Unreadable:
    """A serde that lacks what it takes."""

    def dumps_typed(self, value: Any) -> tuple[str, bytes]:
        raise NotImplementedError

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        raise KeyError("no key")


def test_nothing_goes_of_a_thread_whose_state_cannot_be_deserialised() -> None:
    s3 = FakeS3()
    _ = thread_of(s3, "thread", 2)
    s3.now += 1e9
    report = saver_at(s3, serde=Unreadable()).apply_retention(RetentionPolicy(thread_idle=DAY))
    assert "use the serde it was written with" in report.problems[0][1]
    assert len(ids(s3, "thread")) == 2


def test_foreign_objects_are_left_alone() -> None:
    s3 = FakeS3()
    _ = thread_of(s3, "thread", 4)
    foreign = ["prefix/thread/_/readme", "prefix/thread/notes.txt", "prefix/_runs/run/x", "prefix/file", "prefix/~/x"]
    for key in [*foreign, "prefix-trash/thread/x", "prefix2/thread/x"]:
        s3[key] = b"foreign"
    s3.now += 1e9
    report = saver_at(s3).apply_retention(RetentionPolicy(keep_last=1, thread_idle=DAY))
    assert report.removed == 1
    s3.now += 1e6
    _ = saver_at(s3).apply_retention(RetentionPolicy(keep_last=1, thread_idle=DAY))
    assert s3.keys() == sorted([*foreign, "prefix-trash/thread/x", "prefix2/thread/x"])


@pytest.mark.parametrize("number", range(1, 40))
def test_a_request_that_fails_is_that_threads_problem(number: int) -> None:
    s3 = FakeS3()
    for name in ("a", "b"):
        _ = thread_of(s3, name, 5)
    saver = saver_at(s3)
    driver = FakeDriver(s3)
    driver.fail_before(number)
    saver._driver = driver  # type: ignore[assignment]
    try:
        report = saver.apply_retention(RetentionPolicy(keep_last=2))
    except StorageError:
        assert number == 1  # the listing of all threads
        report = saver_at(s3).apply_retention(RetentionPolicy(keep_last=2))
    assert not report.failed  # each thread is tried again by itself
    assert ids(s3, "a") == ids(s3, "b") == numbers(5, 4)


# -- many threads ----------------------------------------------------------------------------------


def test_stopped_and_gone_on() -> None:
    s3 = FakeS3()
    many(s3)
    whole = s3.copy()
    expected = saver_at(whole).apply_retention(POLICY)
    saver, cursor, seen = saver_at(s3), None, list[str]()
    s3.page_size = 3
    for _ in range(20):
        report = saver.apply_retention(
            POLICY, cursor=cursor, stop_after=timedelta(0), progress=lambda plan: seen.append(plan.thread)
        )
        if report.cursor is None:
            break
        assert report.threads < expected.threads
        cursor = report.cursor
    else:
        raise AssertionError("it never got to the end")
    assert sorted(seen) == sorted(["idle", "a/b", "b", encode_part("c" * 300, THREAD_LIMIT)])
    assert s3.snapshot() == whole.snapshot()
    assert expected.threads == 4


def test_named_threads_go_on_after_a_cursor() -> None:
    s3 = FakeS3()
    many(s3)
    report = saver_at(s3).apply_retention(POLICY, ["b", "idle", "a/b"], cursor="idle")
    assert [it.thread for it in report.plans] == ["a/b"]


@pytest.mark.parametrize("page_size", [1, 2, 7, 1000])
def test_pages_end_anywhere(page_size: int) -> None:
    s3 = FakeS3()
    many(s3)
    s3["prefix/_runs/run/x"] = b"marker"
    s3["prefix/_runs/run/y"] = b"marker"
    s3["prefix/zz"] = b"file"
    whole = s3.copy()
    expected = saver_at(whole).apply_retention(POLICY)
    s3.page_size = page_size
    assert saver_at(s3).apply_retention(POLICY) == expected
    assert s3.snapshot() == whole.snapshot()


def test_what_progress_raises_ends_the_call() -> None:
    s3 = FakeS3()
    many(s3)

    def progress(plan: ThreadPlan) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _ = saver_at(s3).apply_retention(POLICY, progress=progress)


def test_bad_input_is_refused() -> None:
    s3 = FakeS3()
    saver = saver_at(s3)
    with pytest.raises(InvalidInput, match="thread_ids is a single str"):
        _ = saver.apply_retention(POLICY, "thread")
    with pytest.raises(InvalidInput, match="pass a RetentionPolicy"):
        _ = saver.apply_retention({"keep_last": 1})  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="thread_id is a NoneType"):
        _ = saver.apply_retention(POLICY, [None])  # type: ignore[list-item]
    assert not s3.log


def resident() -> int:
    """Bytes of memory that this process has, where the system tells."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * resource.getpagesize() if statm.exists() else 0


THREADS = 100_000
IDLE = 1_000


def test_a_hundred_thousand_threads() -> None:
    """One LIST for each 1,000 objects, requests besides only for threads that go, and memory for a page or two."""
    template = FakeS3()
    script = Script(saver_at(template), "thread")
    _ = script.put({"n": 1})
    script.write("n", 1)
    objects = {key: template[key] for key in template.snapshot().objects}

    def copies(names: range) -> dict[str, bytes]:
        return {key.replace("/thread/", f"/t{name:06}/"): data for name in names for key, data in objects.items()}

    s3 = FakeS3(copies(range(0, THREADS, THREADS // IDLE)))
    s3.now += 30 * 86_400
    for key, data in copies(range(THREADS)).items():
        if key not in s3:
            s3[key] = data
    total = len(s3)
    saver = saver_at(s3)
    before, sizes, counter = resident(), [0], count(1)

    def progress(_: ThreadPlan) -> None:
        if next(counter) % 1_000 == 0:
            sizes.append(resident() - before)

    with saver._driver.measure() as cost:  # type: ignore[attr-defined]
        report = saver.apply_retention(RetentionPolicy(keep_last=10, thread_idle=7 * DAY), progress=progress)
    assert (report.threads, report.removed, report.failed) == (THREADS, IDLE, 0)
    assert len(s3) == total - IDLE * (len(objects) - 1)  # a fence for each that went
    assert cost.lists <= total / 1000 + 1 + 6 * IDLE
    assert cost.requests <= total / 1000 + 1 + 16 * IDLE
    assert max(sizes) < 30 << 20, max(sizes)

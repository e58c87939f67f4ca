"""Lifecycle rules: those that a saver wants, bringing them into a bucket, and finding those that break threads."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langgraph.checkpoint.s3 import AccessDenied, InvalidInput, LifecycleWarning, S3Saver, StorageError
from langgraph.checkpoint.s3._keys import namespace, root_of, runs_prefix, trash_of
from langgraph.checkpoint.s3._requests import GetLifecycle, Lifecycle, PutLifecycle, Request
from langgraph.checkpoint.s3.aio import AsyncS3Saver
from langgraph.checkpoint.s3.lifecycle import Finding, Wanted, check, lacking, merge, rules_for
from tests.support.fake_s3 import FakeDriver, FakeS3
from tests.support.savers import FakeStore, Store, shared_client
from tests.support.threads import saver_on
from tests.test_retention import on_loop

DAY = timedelta(days=1)
FOREIGN: list[dict[str, Any]] = [
    {"ID": "logs", "Status": "Enabled", "Filter": {"Prefix": "logs/"}, "Expiration": {"Days": 3}},
    {
        "ID": "tagged",
        "Status": "Disabled",
        "Filter": {"And": {"Prefix": "x/", "Tags": [{"Key": "a", "Value": "b"}]}},
        "Expiration": {"Days": 4},
        "NoncurrentVersionExpiration": {"NoncurrentDays": 3},
    },
]


def rules_of(**options: Any) -> dict[str, dict[str, Any]]:
    """By the middle of their ids."""
    rules = saver_on(FakeS3(), **options).lifecycle_rules()
    return {rule["ID"].removeprefix("langgraph-s3saver-").removesuffix(" prefix/"): rule for rule in rules}


# -- the rules that are wanted ---------------------------------------------------------------------


def test_what_is_wanted() -> None:
    assert set(rules_of()) == {"uploads"}
    assert set(rules_of(disposal="trash")) == {"uploads", "trash"}
    assert set(rules_of(disposal="versions")) == {"uploads", "noncurrent"}
    assert set(rules_of(expire_after=90 * DAY)) == {"uploads", "expire"}
    assert rules_of(disposal="trash")["trash"] == {
        "ID": "langgraph-s3saver-trash prefix/",
        "Status": "Enabled",
        "Filter": {"Prefix": "prefix-trash/"},
        "Expiration": {"Days": 30},
    }
    assert rules_of(disposal="versions")["noncurrent"]["NoncurrentVersionExpiration"] == {"NoncurrentDays": 30}
    assert rules_of(expire_after=timedelta(hours=36))["expire"]["Expiration"] == {"Days": 3}
    assert rules_of(expire_after=timedelta(hours=1))["expire"]["Expiration"] == {"Days": 1}


def test_ages_and_transitions() -> None:
    saver = saver_on(FakeS3(), disposal="trash")
    rules = saver.lifecycle_rules(
        grace=timedelta(days=6, hours=1),
        uploads=timedelta(hours=1),
        transitions={"GLACIER_IR": 90 * DAY, "INTELLIGENT_TIERING": timedelta(0)},
    )
    uploads, trash, transitions = rules
    assert uploads["AbortIncompleteMultipartUpload"] == {"DaysAfterInitiation": 1}
    assert trash["Expiration"] == {"Days": 7}
    assert transitions["Transitions"] == [
        {"Days": 0, "StorageClass": "INTELLIGENT_TIERING"},
        {"Days": 90, "StorageClass": "GLACIER_IR"},
    ]


@pytest.mark.parametrize(
    "arguments", [{"grace": -DAY}, {"grace": 30}, {"uploads": None}, {"transitions": {"GLACIER": DAY}}], ids=str
)
def test_bad_rules_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        _ = saver_on(FakeS3(), disposal="trash").lifecycle_rules(**arguments)


@pytest.mark.parametrize("given", [timedelta(0), -DAY, 90])
def test_a_bad_life_is_refused(given: Any) -> None:
    with pytest.raises(InvalidInput, match="expire_after must be"):
        _ = S3Saver("bucket", "prefix", expire_after=given)


def test_a_life_needs_a_prefix() -> None:
    with pytest.raises(InvalidInput, match="would delete whatever is in the bucket"):
        _ = S3Saver("bucket", expire_after=DAY)


# -- merging ---------------------------------------------------------------------------------------

roots = st.sampled_from(["", "a/", "agents/a/", "agents/prod/"])
wanted = st.builds(Wanted, roots, st.sampled_from(["delete", "versions", "trash"]), st.none())


def wanted_rules(it: Wanted) -> list[dict[str, Any]]:
    return rules_for(it, 30 * DAY, 7 * DAY, None)


@given(wanted, st.lists(wanted, max_size=3), st.permutations(FOREIGN))
def test_merging(it: Wanted, others: Sequence[Wanted], foreign: Sequence[dict[str, Any]]) -> None:
    """Savers of other prefixes, and others' rules, find theirs as they were; an earlier self leaves nothing."""
    there: Sequence[Mapping[str, Any]] = list(foreign)
    for other in others:
        there = merge(other, there, wanted_rules(other))
    merged = merge(it, there, wanted_rules(it))
    assert [rule for rule in merged if not it.is_ours(rule)] == [rule for rule in there if not it.is_ours(rule)]
    assert sorted((dict(rule) for rule in merged if it.is_ours(rule)), key=lambda rule: str(rule["ID"])) == sorted(
        wanted_rules(it), key=lambda rule: str(rule["ID"])
    )
    assert merge(it, merged, wanted_rules(it)) == merged
    assert not lacking(merged, wanted_rules(it))


def test_rules_that_cannot_be_found_again_are_refused() -> None:
    it = Wanted("a/", "delete")
    for rules in ([{"Status": "Enabled"}], [{"ID": "x"}, {"ID": "x"}]):
        with pytest.raises(InvalidInput, match="an ID of its own"):
            _ = merge(it, [], rules)
    with pytest.raises(InvalidInput, match="1001 lifecycle rules"):
        _ = merge(it, [{"ID": f"{number}"} for number in range(1000)], wanted_rules(it))


def test_rules_that_a_server_drops_are_told() -> None:
    class Forgetful(FakeS3):
        """Drops what it does not know, as Ceph does."""

        def apply(self, request: Request) -> Any:
            if isinstance(request, PutLifecycle):
                rules = [dict(rule) for rule in request.lifecycle.rules]
                for rule in rules:
                    rule.pop("NoncurrentVersionExpiration", None)
                request = PutLifecycle(Lifecycle(rules))
            return super().apply(request)

    saver = saver_on(Forgetful(), disposal="versions")
    with pytest.raises(StorageError, match="'langgraph-s3saver-noncurrent prefix/'"):
        _ = saver.apply_lifecycle()


def test_costs() -> None:
    s3 = FakeS3()
    saver = saver_on(s3, disposal="trash")
    _ = saver.apply_lifecycle()
    assert [type(request) for request in s3.log] == [GetLifecycle, PutLifecycle, GetLifecycle]
    _ = saver.apply_lifecycle()
    assert len(s3.log) == 4  # nothing to change
    assert saver.check_lifecycle() == []
    assert len(s3.log) == 5


# -- rules that break threads ----------------------------------------------------------------------


def rule(prefix: str = "", **more: Any) -> dict[str, Any]:
    return {"ID": "rule", "Status": "Enabled", "Filter": {"Prefix": prefix}, "Expiration": {"Days": 30}, **more}


def findings(rule: Mapping[str, Any], prefix: str = "agents/prod", **options: Any) -> list[Finding]:
    return check(Wanted(root_of(prefix), "delete", **options), [*FOREIGN, rule])


@pytest.mark.parametrize(
    ("given", "threads"),
    [
        (rule(""), "all threads below 'agents/prod/'"),
        (rule("agents"), "all threads below 'agents/prod/'"),
        (rule("agents/prod"), "all threads below 'agents/prod/'"),
        (rule("agents/prod/"), "all threads below 'agents/prod/'"),
        (rule("agents/prod/user-1"), "all threads whose keys begin with 'agents/prod/user-1'"),
        (rule("agents/prod/user-1/"), "thread 'user-1'"),
        (rule("agents/prod/a.2Fb/_/c/"), "thread 'a/b'"),
        (rule("agents/prod-trash/"), None),
        (rule("agents/prod/_runs/"), None),
        (rule("agents/other/"), None),
        (rule("agents/production/"), None),
        (rule(Status="Disabled"), None),
        (rule(Expiration={"ExpiredObjectDeleteMarker": True}), None),
        (rule(Expiration={"Date": datetime(2030, 1, 1, tzinfo=timezone.utc)}), "all threads below 'agents/prod/'"),
        (rule(Expiration={}, NoncurrentVersionExpiration={"NoncurrentDays": 1}), None),
        (rule(Expiration={}, AbortIncompleteMultipartUpload={"DaysAfterInitiation": 1}), None),
        (rule(Expiration={}, Transitions=[{"Days": 1, "StorageClass": "GLACIER"}]), "all threads below 'agents/prod/'"),
        (rule(Expiration={}, Transitions=[{"Days": 1, "StorageClass": "GLACIER_IR"}]), None),
        (rule(Filter={"Tag": {"Key": "old", "Value": "yes"}}), None),
        (rule(Filter={"And": {"Prefix": "agents/", "Tags": [{"Key": "a", "Value": "b"}]}}), None),
        (rule(Filter={"And": {"Prefix": "agents/", "ObjectSizeGreaterThan": 9}}), "all threads below 'agents/prod/'"),
        (rule(Filter={"ObjectSizeLessThan": 9}), "all threads below 'agents/prod/'"),
        (rule(Filter={}), "all threads below 'agents/prod/'"),
        (
            {"ID": "rule", "Status": "Enabled", "Prefix": "", "Expiration": {"Days": 1}},
            "all threads below 'agents/prod/'",
        ),
        ({"ID": "rule", "Status": "Enabled", "Prefix": "logs/", "Expiration": {"Days": 1}}, None),
    ],
    ids=str,
)
def test_which_rules_endanger_which_threads(given: dict[str, Any], threads: str | None) -> None:
    assert [it.threads for it in findings(given)] == ([] if threads is None else [threads])


def test_without_a_prefix_the_bucket_is_the_savers() -> None:
    assert [it.threads for it in check(Wanted("", "delete"), [rule()])] == ["all threads of the bucket"]
    assert not check(Wanted("", "trash"), rules_for(Wanted("", "trash"), DAY, DAY, None))
    assert not check(Wanted("", "delete"), [rule(runs_prefix("", "run"))])


def test_a_life_of_twice_as_long_is_no_danger() -> None:
    promised = Wanted("a/", "delete", expire_after=90 * DAY)
    assert not check(promised, rules_for(promised, DAY, DAY, None))
    assert not check(promised, [rule("a/", Expiration={"Days": 180})])
    assert check(promised, [rule("a/", Expiration={"Days": 179})])
    assert check(Wanted("a/", "delete"), rules_for(promised, DAY, DAY, None))  # a saver that does not keep up with it


@given(
    st.text("ab/_.-", max_size=12), st.sampled_from(["a", "a/b", "ab"]), st.sampled_from(["a", "b", "ab", "-", "a.b"])
)
def test_no_rule_that_matches_a_live_key_goes_unseen(prefix: str, saver_prefix: str, thread: str) -> None:
    root = root_of(saver_prefix)
    ns = namespace(root, thread, "")
    live = [ns.checkpoint("id"), ns.blob("id", "x"), ns.writes("id", "w"), ns.latest]
    if any(key.startswith(prefix) for key in live):
        assert check(Wanted(root, "delete"), [rule(prefix)])
    if prefix.startswith((trash_of(root), runs_prefix(root, "run"))):
        assert not check(Wanted(root, "delete"), [rule(prefix)])


# -- setup -----------------------------------------------------------------------------------------


def test_setup_warns() -> None:
    s3 = FakeS3()
    s3.lifecycle = Lifecycle([rule("prefix/")])
    with pytest.warns(
        LifecycleWarning, match="'rule' deletes objects of 30 days.*all threads below 'prefix/'"
    ) as caught:
        saver_on(s3).setup()
    assert caught[0].filename == __file__
    s3.lifecycle = Lifecycle(saver_on(s3, disposal="trash").lifecycle_rules())
    saver_on(s3).setup()


@pytest.mark.parametrize("error", [AccessDenied("no right"), StorageError("NotImplemented")])
def test_setup_needs_no_right_to_read_rules(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    driver = FakeDriver()
    driver.fail_before(2, error)
    caplog.set_level(logging.INFO, "langgraph.checkpoint.s3")
    saver_on(driver).setup()
    assert caplog.messages == [f"the lifecycle rules could not be checked: {error}"]


def by_id(rule: Mapping[str, Any]) -> str:
    return str(rule["ID"])


def meaning(rule: Mapping[str, Any]) -> dict[str, Any]:
    """A rule as all stores tell it: Ceph answers with what `And` joins as if nothing did, and moto adds a prefix."""
    joined = {**rule["Filter"], **rule["Filter"].get("And", {})}
    tags = joined.pop("Tags", None) or [joined.pop("Tag", None)]
    _ = joined.pop("And", None), joined.pop("Tag", None)
    return {**rule, "Prefix": None, "Filter": (joined, tags)}


# -- over the real clients -------------------------------------------------------------------------


def test_over_either_driver(store: Store) -> None:
    if isinstance(store, FakeStore):
        store.s3.lifecycle = Lifecycle(FOREIGN, {"TransitionDefaultMinimumObjectSize": "varies_by_storage_class"})
    else:
        shared_client(store.endpoint).put_bucket_lifecycle_configuration(
            Bucket=store.bucket, LifecycleConfiguration={"Rules": FOREIGN}
        )
    saver = store.saver(disposal="versions", expire_after=30 * DAY)
    wanted = saver.lifecycle_rules(transitions={"GLACIER_IR": 30 * DAY})
    for rules, expected in ((wanted, wanted), (None, saver.lifecycle_rules())):
        if isinstance(saver, AsyncS3Saver):
            there = on_loop(saver, saver.aapply_lifecycle(rules))
            found = on_loop(saver, saver.acheck_lifecycle())
        else:
            there, found = saver.apply_lifecycle(rules), saver.check_lifecycle()
        assert not found
        before_and_after = zip(sorted([*FOREIGN, *expected], key=by_id), sorted(there, key=by_id), strict=True)
        for before, after in before_and_after:  # their order is the store's
            assert meaning(before) == meaning(after)
    if isinstance(store, FakeStore):
        assert store.s3.lifecycle.rest
    other = store.saver()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if isinstance(other, AsyncS3Saver):
            on_loop(other, other.setup())
        else:
            other.setup()
    assert [it.category for it in caught if issubclass(it.category, UserWarning)] == [LifecycleWarning]


def test_a_bucket_without_rules(store: Store) -> None:
    saver = store.saver(disposal="trash")
    if isinstance(saver, AsyncS3Saver):
        assert on_loop(saver, saver.acheck_lifecycle()) == []
        assert len(on_loop(saver, saver.aapply_lifecycle())) == 2
    else:
        assert saver.check_lifecycle() == []
        assert len(saver.apply_lifecycle()) == 2

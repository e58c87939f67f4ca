"""Lifecycle rules as code: those that this package wants on its bucket, and those that would break threads.

A rule is a dictionary as boto3 has it. Nothing here asks the store for anything.

S3's rules know nothing of references: they count from when an object was stored, and a live checkpoint may hang on a
very old value. So no rule may see live objects, but for that of `expire_after`, with which `put` keeps up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from math import ceil
from typing import Any, TypeAlias

from langgraph.checkpoint.s3._keys import decode_part, is_folder_part, trash_of
from langgraph.checkpoint.s3.errors import InvalidInput

Rule: TypeAlias = Mapping[str, Any]

READABLE = frozenset({"STANDARD_IA", "ONEZONE_IA", "INTELLIGENT_TIERING", "GLACIER_IR"})
"""Storage classes that an object can be moved to and read from at once (S3 User Guide, "Understanding and managing
Amazon S3 storage classes")."""

ARCHIVES = frozenset({"GLACIER", "DEEP_ARCHIVE"})
"""Storage classes that an object has to be restored from before it can be read (the same)."""

MAX_RULES = 1000
"""Rules in one configuration (S3 User Guide, "Setting an S3 Lifecycle configuration on a bucket")."""

_OURS = "langgraph-s3saver-"


@dataclass(frozen=True)
class Wanted:
    """What rules are to be made for.

    Attributes:
        root: The saver's prefix, with its closing slash unless it is empty.
        disposal: "delete", "versions" or "trash".
        expire_after: The saver's.
    """

    root: str
    disposal: str
    expire_after: timedelta | None = None

    def name(self, kind: str) -> str:
        """The id of one of our rules, by which it is found again."""
        return f"{_OURS}{kind} {self.root}".rstrip()

    def is_ours(self, rule: Rule) -> bool:
        """Whether a rule was made here, for this prefix."""
        kind, _, root = str(rule.get("ID", "")).removeprefix(_OURS).partition(" ")
        return self.name(kind) == rule.get("ID") and root == self.root


@dataclass(frozen=True)
class Finding:
    """A rule that would break threads.

    Attributes:
        rule: Its id.
        effect: What it does.
        threads: Which threads it endangers.
    """

    rule: str
    effect: str
    threads: str

    def __str__(self) -> str:
        return (
            f"lifecycle rule {self.rule!r} {self.effect}, whatever depends on them: it endangers {self.threads}. "
            "Delete it, give it a filter that spares them (a tag, or another prefix), or use expire_after."
        )


def rules_for(
    wanted: Wanted, grace: timedelta, uploads: timedelta, transitions: Mapping[str, timedelta] | None
) -> list[dict[str, Any]]:
    """The rules for a saver. See `S3Saver.lifecycle_rules`."""
    rules = [_rule(wanted, "uploads", AbortIncompleteMultipartUpload={"DaysAfterInitiation": _days(uploads)})]
    if wanted.disposal == "trash":
        expiration = {"Days": _days(grace)}
        rules.append(_rule(wanted, "trash", prefix=trash_of(wanted.root), Expiration=expiration))
    if wanted.disposal == "versions":
        rules.append(
            _rule(
                wanted,
                "noncurrent",
                NoncurrentVersionExpiration={"NoncurrentDays": _days(grace)},
                Expiration={"ExpiredObjectDeleteMarker": True},
            )
        )
    if wanted.expire_after is not None:
        rules.append(_rule(wanted, "expire", Expiration={"Days": _days(2 * wanted.expire_after)}))
    if transitions:
        rules.append(_rule(wanted, "transitions", Transitions=_transitions(transitions)))
    return rules


def _rule(wanted: Wanted, kind: str, prefix: str | None = None, **actions: Any) -> dict[str, Any]:
    place = wanted.root if prefix is None else prefix
    return {"ID": wanted.name(kind), "Status": "Enabled", "Filter": {"Prefix": place}, **actions}


def _days(age: timedelta, least: int = 1) -> int:
    """Whole days, rounded up: a rule counts in days."""
    given: object = age
    if not isinstance(given, timedelta) or given < timedelta(0):
        raise InvalidInput(f"the age in a lifecycle rule must be a timedelta, and not negative, not {age!r}.")
    return max(least, ceil(given / timedelta(days=1)))


def _transitions(transitions: Mapping[str, timedelta]) -> list[dict[str, Any]]:
    if bad := sorted(set(transitions) - READABLE):
        raise InvalidInput(
            f"transitions to {', '.join(map(str, bad))} are refused: what lies there cannot be read at once. "
            f"Use {', '.join(sorted(READABLE))}."
        )
    found = [{"Days": _days(age, 0), "StorageClass": name} for name, age in transitions.items()]
    return sorted(found, key=lambda it: it["Days"])


def merge(wanted: Wanted, there: Sequence[Rule], rules: Sequence[Rule]) -> list[Rule]:
    """The rules of a bucket with ours among them: those of the same id are replaced, those we want no more go.

    All other rules stay as they are, and where they are.

    Raises:
        InvalidInput: A rule has no id, or there would be more than S3 takes.
    """
    by_id = {str(rule.get("ID", "")): rule for rule in rules}
    if len(by_id) < len(rules) or "" in by_id:
        raise InvalidInput("each lifecycle rule needs an ID of its own, by which it is found again.")
    known = {rule.get("ID") for rule in there}
    merged = [by_id.get(str(rule.get("ID", "")), rule) for rule in there]
    merged = [rule for rule in merged if not wanted.is_ours(rule) or rule.get("ID") in by_id]
    merged += [rule for name, rule in by_id.items() if name not in known]
    if len(merged) > MAX_RULES:
        raise InvalidInput(f"the bucket would have {len(merged)} lifecycle rules; S3 takes {MAX_RULES}.")
    return merged


def lacking(there: Sequence[Rule], rules: Sequence[Rule]) -> list[str]:
    """The ids of rules that a server has not kept as they were given."""
    kept = {rule.get("ID"): rule for rule in there}
    return [str(rule["ID"]) for rule in rules if not _is_kept(kept.get(rule["ID"]), rule)]


def _is_kept(there: Rule | None, rule: Rule) -> bool:
    if there is None or _place(there) != _place(rule):
        return False
    return all(there.get(name) == it for name, it in rule.items() if name not in ("Filter", "Prefix"))


def check(wanted: Wanted, rules: Sequence[Rule]) -> list[Finding]:
    """The rules that would delete or archive live objects of a saver."""
    findings = []
    for rule in rules:
        effect, threads = _effect(wanted, rule), _endangered(wanted, rule)
        if effect and threads:
            findings.append(Finding(str(rule.get("ID", "(without an id)")), effect, threads))
    return findings


def _effect(wanted: Wanted, rule: Rule) -> str:
    """What a rule does to live objects; empty for nothing."""
    if rule.get("Status") != "Enabled":
        return ""
    expiration: Mapping[str, Any] = rule.get("Expiration") or {}
    if "Date" in expiration:
        return f"deletes objects on {expiration['Date']:%Y-%m-%d}"
    if "Days" in expiration and not _is_promised(wanted, int(expiration["Days"])):
        return f"deletes objects of {expiration['Days']} days"
    archived = {it["StorageClass"] for it in rule.get("Transitions") or () if it.get("StorageClass") in ARCHIVES}
    return f"moves objects to {' and '.join(sorted(archived))}, from where they cannot be read" if archived else ""


def _is_promised(wanted: Wanted, days: int) -> bool:
    """Whether `put` keeps up with objects going after so many days."""
    return wanted.expire_after is not None and timedelta(days=days) >= 2 * wanted.expire_after


def _place(rule: Rule) -> tuple[str, bool]:
    """The prefix of what a rule applies to, and whether it asks for a tag besides. We tag nothing.

    A filter by size spares nobody: some servers drop it without a word, and our objects are of all sizes.
    """
    given: Mapping[str, Any] = rule.get("Filter") or {}
    both: Mapping[str, Any] = given.get("And") or {}
    prefix = given.get("Prefix") or both.get("Prefix") or rule.get("Prefix") or ""
    return str(prefix), bool(given.get("Tag") or both.get("Tags"))


def _endangered(wanted: Wanted, rule: Rule) -> str:
    """Which threads a rule applies to; empty for none."""
    prefix, tagged = _place(rule)
    root = wanted.root
    if tagged:
        return ""
    if root.startswith(prefix):
        return f"all threads below {root!r}" if root else "all threads of the bucket"
    if not prefix.startswith(root):
        return ""
    part, slash, _ = prefix[len(root) :].partition("/")
    if not slash:
        return f"all threads whose keys begin with {prefix!r}"
    if not is_folder_part(part):
        return ""  # what lies there is no thread: the markers of runs, the trash of a saver without a prefix
    return f"thread {decode_part(part) or part!r}"

"""What a damaged thread may still lose: nothing. Whatever stays has to be whole before anything else is deleted."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from langgraph.checkpoint.s3 import CorruptObject, MissingObject, S3Saver
from tests.support.fake_s3 import FakeS3
from tests.support.threads import Script, config_for, noise, saver_on, uuid_of

OPTIONS = {"inline_threshold": 100}
RUNS = ["run 3"]


def damaged(part: str, how: str) -> tuple[FakeS3, list[str]]:
    """A thread whose newest checkpoint leans on what lies beside it and on older ones; and its keys that end so."""
    s3 = FakeS3()
    script = Script(saver_on(s3, **OPTIONS))
    _ = script.put({"old": noise(300, 1), "log": ["seed"]})
    for depth in range(1, 5):
        _ = script.delta_step("log", depth, depth)
    _ = script.put({"own": noise(400, 2)}, run_id=RUNS[0])
    _ = script.put({"n": 1})
    script.write("n", "pending")
    head = script.head or ""
    keys = [key for key in s3.keys("") if part in key and (head in key or part == "blob")]
    assert keys
    for key in keys:
        match how:
            case "missing":
                del s3[key]
            case "truncated":
                s3[key] = s3[key][:-5]
            case "empty":
                s3[key] = b""
            case "altered":
                s3[key] = b"JUNK" + s3[key][4:]
    return s3, keys


def is_readable(s3: FakeS3, checkpoint_id: str) -> bool:
    try:
        return saver_on(s3, **OPTIONS).get_tuple(config_for("thread", checkpoint_id)) is not None
    except (CorruptObject, MissingObject):
        return False


def keep_latest(saver: S3Saver) -> None:
    saver.prune(["thread"])


def delete_run(saver: S3Saver) -> None:
    saver.delete_for_runs(RUNS)


@pytest.mark.parametrize("operation", [keep_latest, delete_run])
@pytest.mark.parametrize(
    ("part", "how"),
    [
        *[("blob", how) for how in ("missing", "truncated", "empty")],
        *[("/writes/", how) for how in ("truncated", "empty", "altered")],
        *[("/checkpoint", how) for how in ("truncated", "empty", "altered")],
    ],
)
def test_nothing_goes_while_what_stays_is_damaged(part: str, how: str, operation: Callable[[S3Saver], None]) -> None:
    s3, keys = damaged(part, how)
    before = s3.snapshot()
    readable = [it for it in map(uuid_of, range(1, 8)) if is_readable(s3, it)]
    with pytest.raises((CorruptObject, MissingObject), match="|".join(map(re.escape, keys))):
        operation(saver_on(s3, **OPTIONS))
    assert s3.snapshot() == before
    assert [it for it in map(uuid_of, range(1, 8)) if is_readable(s3, it)] == readable


@pytest.mark.parametrize("how", ["truncated", "empty", "altered"])
def test_nothing_goes_while_a_pack_that_stays_is_damaged(how: str) -> None:
    """A pack from a prune that was stopped before it deleted anything: the chain behind it is what is left to read."""
    s3 = FakeS3()
    script = Script(saver_on(s3, **OPTIONS))
    _ = script.put({"log": ["seed"]})
    for depth in range(1, 5):
        _ = script.delta_step("log", depth, depth)
    whole = s3.copy()
    saver_on(s3, **OPTIONS).prune(["thread"])
    (pack,) = [key for key in s3.keys("") if key.endswith("/history")]
    whole[pack] = {"truncated": s3[pack][:-5], "empty": b"", "altered": b"JUNK" + s3[pack][4:]}[how]
    before = whole.snapshot()
    with pytest.raises(CorruptObject, match="/history"):
        saver_on(whole, **OPTIONS).prune(["thread"])
    assert whole.snapshot() == before


def test_a_value_that_has_vanished_with_its_whole_folder() -> None:
    s3 = FakeS3()
    script = Script(saver_on(s3, **OPTIONS))
    _ = script.put({"old": noise(300, 1)})
    for number in range(3):
        _ = script.put({"n": number})
    for key in [key for key in s3.keys("") if uuid_of(1) in key]:
        del s3[key]
    before = s3.snapshot()
    with pytest.raises(MissingObject, match=r"blob/.* is missing, and checkpoint .*, which stays, depends on it"):
        saver_on(s3, **OPTIONS).prune(["thread"])
    assert s3.snapshot() == before

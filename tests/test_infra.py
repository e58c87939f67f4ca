"""The template of infra/: that it can be deployed, that its roles may do what they need to, and nothing else."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
import yaml

from langgraph.checkpoint.s3 import AccessDenied, MissingObject, S3Saver, ThreadBusy
from langgraph.checkpoint.s3.retention import RetentionPolicy
from tests.support.fake_s3 import FakeS3
from tests.support.iam import BUCKET, GuardedS3, Policy
from tests.support.threads import Script, config_for, noise, saver_on, uuid_of

ROOT = Path(__file__).parents[1]
TEMPLATE = ROOT / "infra" / "template.yaml"
PREFIX = "agents"
DAY = timedelta(days=1)
TTL = timedelta(minutes=1)


# -- the template ----------------------------------------------------------------------------------


class Loader(yaml.SafeLoader):
    """Reads CloudFormation's short forms: `!Ref a` as {"Ref": "a"}."""


def short_form(loader: Loader, tag: str, node: yaml.Node) -> Any:
    name = tag if tag == "Ref" else f"Fn::{tag}"
    if isinstance(node, yaml.ScalarNode):
        return {name: loader.construct_scalar(node)}
    assert isinstance(node, yaml.SequenceNode)
    return {name: loader.construct_sequence(node, deep=True)}


Loader.add_multi_constructor("!", short_form)

PARAMETERS = {"Prefix": PREFIX, "GraceDays": 30, "KmsKeyArn": ""}


def resolved(it: Any) -> Any:
    """A part of the template with its references resolved, without a key of KMS."""
    if isinstance(it, list):
        return [resolved(each) for each in it]
    if not isinstance(it, dict):
        return it
    match it:
        case {"Ref": name}:
            return PARAMETERS.get(name, f"<{name}>")
        case {"Fn::GetAtt": "Bucket.Arn"}:
            return BUCKET
        case {"Fn::GetAtt": name}:
            return f"<{name}>"
        case {"Fn::Sub": text}:
            return text.replace("${Bucket.Arn}", BUCKET).replace("${Prefix}", PREFIX).replace("${!", "${")
        case {"Fn::If": [_, _, otherwise]}:
            return resolved(otherwise)
    return {name: resolved(each) for name, each in it.items()}


RESOURCES: dict[str, Any] = yaml.load(TEMPLATE.read_text(), Loader)["Resources"]


def policy_of(role: str, **tags: str) -> Policy:
    """What a role may do with the bucket."""
    policies = resolved(RESOURCES[role]["Properties"]["Policies"])
    statements = [
        each for it in policies if it["PolicyName"] == "threads" for each in it["PolicyDocument"]["Statement"]
    ]
    return Policy(statements, tags)


def test_the_linter_has_nothing_to_say() -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("cfn-lint"), TEMPLATE], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_the_buckets_rules_are_those_that_the_saver_wants() -> None:
    saver = S3Saver("bucket", PREFIX, disposal="versions")
    rules = resolved(RESOURCES["Bucket"]["Properties"]["LifecycleConfiguration"]["Rules"])
    assert [as_boto3(rule) for rule in rules] == saver.lifecycle_rules(grace=30 * DAY)


def as_boto3(rule: Mapping[str, Any]) -> dict[str, Any]:
    """A rule of CloudFormation as S3's API has it."""
    found = {"ID": rule["Id"], "Filter": {"Prefix": rule["Prefix"]}, **rule}
    for name in ("Id", "Prefix"):
        _ = found.pop(name)
    if marker := found.pop("ExpiredObjectDeleteMarker", None):
        found["Expiration"] = {"ExpiredObjectDeleteMarker": marker}
    return found


def test_the_bucket_is_private() -> None:
    properties = resolved(RESOURCES["Bucket"]["Properties"])
    assert properties["VersioningConfiguration"] == {"Status": "Enabled"}
    assert set(properties["PublicAccessBlockConfiguration"].values()) == {True}
    assert "MetricsConfigurations" not in properties
    (statement,) = resolved(RESOURCES["BucketPolicy"]["Properties"]["PolicyDocument"]["Statement"])
    assert (statement["Effect"], statement["Action"]) == ("Deny", "s3:*")
    assert statement["Resource"] == [BUCKET, f"{BUCKET}/*"]
    assert statement["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}


# -- what each role may do -------------------------------------------------------------------------

Use = Callable[[S3Saver], object]


def step(saver: S3Saver, thread: str = "thread") -> object:
    script = Script(saver, thread, first=100)
    _ = script.put({"n": 1, "large": noise(50_000)}, run_id="a run")
    script.write("n", 2)
    return saver.get_tuple(script.config)


def lease(saver: S3Saver) -> object:
    with saver.lease("thread", TTL) as held:
        held.renew()
    return held


def retain(saver: S3Saver) -> object:
    report = saver.apply_retention(RetentionPolicy(keep_last=2, min_age=timedelta(0)))
    if report.failed:
        raise AccessDenied(str(report))
    return report.checkpoints


USES: dict[str, Use] = {
    "put, put_writes, get_tuple": step,
    "list": lambda saver: list(saver.list(config_for("thread"))),
    "list all": lambda saver: list(saver.list(None)),
    "setup": lambda saver: saver.setup(),
    "copy_thread": lambda saver: saver.copy_thread("thread", "copy"),
    "lease": lease,
    "prune": lambda saver: saver.prune(["thread"]),
    "apply_retention": retain,
    "delete_thread": lambda saver: saver.delete_thread("thread"),
    "delete_for_runs": lambda saver: saver.delete_for_runs(["run"]),
    "check_lifecycle": lambda saver: saver.check_lifecycle(),
    "apply_lifecycle": lambda saver: saver.apply_lifecycle(),
    "undo_prune": lambda saver: saver.undo_prune("thread"),
}
AGENT = ["put, put_writes, get_tuple", "list", "list all", "setup", "copy_thread", "lease"]
RETENTION = [*AGENT, "prune", "apply_retention", "delete_thread", "delete_for_runs", "check_lifecycle"]


def bucket(prefix: str = PREFIX) -> FakeS3:
    s3 = FakeS3()
    s3.versioned = True
    script = Script(saver_at(s3, prefix))
    for number in range(5):
        _ = script.put({"n": number, "large": noise(50_000, number)}, run_id="run")
        script.write("n", number)
    s3.now += 90_000
    return s3


def saver_at(s3: FakeS3, prefix: str) -> S3Saver:
    saver = saver_on(s3, prefix=prefix, disposal="versions")
    saver._clock = lambda: int(s3.now * 1e9)
    return saver


def is_allowed(policy: Policy, use: Use, prefix: str = PREFIX) -> bool:
    s3 = bucket(prefix)
    guarded = GuardedS3(s3, policy)
    guarded.now = s3.now
    try:
        _ = use(saver_at(guarded, prefix))
    except AccessDenied:
        return False
    return True


@pytest.mark.parametrize("name", USES)
def test_what_the_agent_may_do(name: str) -> None:
    assert is_allowed(policy_of("AgentRole"), USES[name]) is (name in AGENT)


@pytest.mark.parametrize("name", USES)
def test_what_retention_may_do(name: str) -> None:
    assert is_allowed(policy_of("RetentionRole"), USES[name]) is (name in RETENTION)


@pytest.mark.parametrize("name", USES)
def test_what_a_tenant_may_do(name: str) -> None:
    policy = policy_of("TenantRole", tenant="anna")
    assert is_allowed(policy, USES[name], f"{PREFIX}/anna") is (name in AGENT)


ELSEWHERE = [(role, prefix) for role in ("AgentRole", "RetentionRole") for prefix in ("elsewhere", "agents-too")]
ELSEWHERE += [("TenantRole", prefix) for prefix in ("elsewhere", "agents-too", "agents", "agents/bert")]


@pytest.mark.parametrize("name", USES)
@pytest.mark.parametrize(("role", "prefix"), ELSEWHERE)
def test_nothing_elsewhere(role: str, prefix: str, name: str) -> None:
    """Another prefix, one that begins with the same letters, for a tenant another tenant's. Rules are the bucket's."""
    is_for_all = (role, name) == ("RetentionRole", "check_lifecycle")
    assert is_allowed(policy_of(role, tenant="anna"), USES[name], prefix) is is_for_all


def test_nobody_without_a_tenant() -> None:
    for prefix in (PREFIX, f"{PREFIX}/", f"{PREFIX}/anna"):
        assert not is_allowed(policy_of("TenantRole"), step, prefix)


def test_an_agent_that_is_late_for_a_prune_is_told_so() -> None:
    """What leans on others and does not hold them, as delta channels do, has to be taken back, and this role may not.

    An error all the same, and nothing that can be read as if it were whole.
    """
    s3 = bucket()
    agent = saver_at(GuardedS3(s3, policy_of("AgentRole")), PREFIX)
    late = Script(agent, first=50)
    found = agent.get_tuple(config_for("thread", uuid_of(2)))
    assert found is not None
    late.go_on(found)
    retention = saver_at(GuardedS3(s3, policy_of("RetentionRole")), PREFIX)
    retention.prune(["thread"])
    with pytest.raises(AccessDenied):
        _ = late.put({"n": 50}, hold=False)
    with pytest.raises(MissingObject):
        _ = saver_at(s3, PREFIX).get_tuple(config_for("thread", uuid_of(50)))


def test_the_policy_in_json_says_no_less() -> None:
    """infra/iam-agent.json is for those without the template; it allows deletions, for prunes by the agent itself."""
    text = (ROOT / "infra" / "iam-agent.json").read_text().replace("BUCKET", "bucket").replace("PREFIX", PREFIX)
    policy = Policy(json.loads(text)["Statement"])
    for use in [*AGENT, "delete_thread", "delete_for_runs"]:
        assert is_allowed(policy, USES[use])
    assert not is_allowed(policy, step, "elsewhere")


# -- deployed --------------------------------------------------------------------------------------


@pytest.fixture
def stack(moto_endpoint: str) -> Any:
    """The template, deployed to moto's CloudFormation; gives its outputs."""
    s3 = boto3.client("s3", endpoint_url=moto_endpoint)
    stacks: Any = boto3.client("cloudformation", endpoint_url=moto_endpoint)
    s3.create_bucket(Bucket="code")
    code = io.BytesIO()
    with zipfile.ZipFile(code, "w") as archive:
        for path in (ROOT / "examples" / "lambda").glob("*.py"):
            archive.write(path, path.name)
    s3.put_object(Bucket="code", Key="agent.zip", Body=code.getvalue())
    parameters = [{"ParameterKey": "CodeBucket", "ParameterValue": "code"}]
    name = "agents"
    stacks.create_stack(
        StackName=name,
        TemplateBody=TEMPLATE.read_text(),
        Parameters=parameters,
        Capabilities=["CAPABILITY_IAM"],
    )
    (made,) = stacks.describe_stacks(StackName=name)["Stacks"]
    assert made["StackStatus"] == "CREATE_COMPLETE"
    yield {it["OutputKey"]: it["OutputValue"] for it in made["Outputs"]}
    stacks.delete_stack(StackName=name)


@pytest.mark.filterwarnings("ignore:Tried to parse AWS..S3..BucketPolicy")  # moto makes no such thing from a template
def test_what_is_deployed_works(moto_endpoint: str, stack: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The handlers of the template's functions, with the variables it gives them, on the bucket it has made."""
    lambdas = boto3.client("lambda", endpoint_url=moto_endpoint)
    agent, retention = (
        lambdas.get_function_configuration(FunctionName=stack[name]) for name in ("AgentName", "RetentionName")
    )
    assert (agent["Handler"], retention["Handler"]) == ("from_queue.handler", "retention.handler")
    assert agent["Environment"]["Variables"] == {"BUCKET": stack["BucketName"], "PREFIX": PREFIX}
    # What moto's CloudFormation leaves out.
    boto3.client("s3", endpoint_url=moto_endpoint).put_bucket_versioning(
        Bucket=stack["BucketName"], VersioningConfiguration={"Status": "Enabled"}
    )
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto_endpoint)
    for name, value in retention["Environment"]["Variables"].items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("KEEP_LAST", "1")
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "lambda"))
    for name in ("handler", "from_queue", "retention"):
        monkeypatch.delitem(sys.modules, name, raising=False)

    from_queue = import_module("from_queue")
    message = {"messageId": "e1", "body": json.dumps({"thread_id": "anna", "message": "book Oslo"})}
    context = SimpleNamespace(get_remaining_time_in_millis=lambda: 900_000, function_name=stack["RetentionName"])
    for _ in range(2):  # delivered twice
        assert from_queue.handler({"Records": [message]}, context) == [{"answer": "So far you have a flight to Oslo."}]
    saver = from_queue.turns.saver
    with saver.lease("anna", TTL), pytest.raises(ThreadBusy):
        from_queue.handler({"Records": [message]}, context)
    before = list(saver.list(config_for("anna")))
    assert len(before) > 3

    daily = import_module("retention")
    now = saver._clock()
    daily.saver._clock = lambda: now + 7200 * 10**9
    assert daily.handler({}, context)["threads"] == 1
    assert list(S3Saver(stack["BucketName"], PREFIX, endpoint_url=moto_endpoint).list(config_for("anna"))) == before[:1]
    assert daily.saver.undo_prune("anna").checkpoints == len(before) - 1
    for number in range(40):  # more than are dealt with together
        _ = Script(saver, f"thread {number}").put({"n": number})
    called: list[Any] = []
    monkeypatch.setattr("boto3.client", lambda name: SimpleNamespace(invoke=lambda **it: called.append(it)))
    monkeypatch.setattr(context, "get_remaining_time_in_millis", lambda: 60_000)
    assert daily.handler({}, context)["cursor"] is not None
    (asked,) = called
    assert asked["FunctionName"] == stack["RetentionName"]
    assert json.loads(asked["Payload"])["cursor"] is not None

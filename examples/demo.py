"""A LangGraph agent whose memory is an S3 bucket: what it can do, what then lies there, and what it costs.

    python examples/demo.py                                            on a simulated S3, in this process
    DEMO_BUCKET=my-bucket python examples/demo.py                      on AWS, with the credentials of AWS_*
    DEMO_ENDPOINT_URL=http://localhost:9000 python examples/demo.py    on another server that speaks S3

Everything goes under a fresh prefix, which is deleted at the end. Without DEMO_BUCKET, another server gets a bucket
"s3saver-demo", which stays.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import chain
from typing import Annotated, Any, TypedDict
from urllib.parse import urlencode

import boto3
from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableConfig
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from langgraph.checkpoint.s3 import S3Saver, S3SaverError, Stats

# -- an agent as anyone would write it; only its model is played -----------------------------------


def weather(city: str) -> str:
    """Tell the weather in a city."""
    return f"sunny in {city}"


def book(city: str) -> str:
    """Book a flight, if a human agrees."""
    return f"flight to {city} booked" if interrupt(f"Book a flight to {city}?") == "yes" else "nothing booked"


class PlayedModel(BaseChatModel):
    """Needs no network: calls a tool when it hears "weather in Oslo" or "book Oslo", and reports what it did."""

    @property
    def _llm_type(self) -> str:
        return "played"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> PlayedModel:
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        heard, words = messages[-1], str(messages[-1].content).split()
        if isinstance(heard, ToolMessage):
            answer = AIMessage(f"It is done: {heard.content}.")
        else:
            call = {"name": words[0], "args": {"city": words[-1]}, "id": f"call-{len(messages)}"}
            answer = AIMessage("", tool_calls=[call])
        return ChatResult(generations=[ChatGeneration(message=answer)])


def make_agent(saver: S3Saver) -> Any:
    return create_agent(PlayedModel(), [weather, book], checkpointer=saver)


def thread(name: str) -> RunnableConfig:
    return {"configurable": {"thread_id": name}}


def ask(agent: Any, text: str, config: RunnableConfig) -> Any:
    return agent.invoke({"messages": [("user", text)]}, config)


def said(agent: Any, name: str) -> list[str]:
    """All that was said in a thread: the questions, what the tools found, the answers."""
    return [str(it.content) for it in agent.get_state(thread(name)).values["messages"] if it.content]


# -- a graph with a large value, and with a list of which only what is new is stored ---------------


def append(state: list[str], writes: Sequence[list[str]]) -> list[str]:
    return [*state, *chain.from_iterable(writes)]


class Notes(TypedDict, total=False):
    document: str
    notes: Annotated[list[str], DeltaChannel(append, snapshot_frequency=10)]


def make_notebook(saver: S3Saver) -> Any:
    builder = StateGraph(Notes)
    builder.add_node("answer", lambda state: {"notes": [f"{state['notes'][-1]}: noted"]})
    builder.add_edge(START, "answer")
    return builder.compile(checkpointer=saver)


# -- resuming in another process, and forking without this package ---------------------------------


def resume_elsewhere(url: str) -> tuple[str, Stats]:
    """Run this script again to say yes. That process knows nothing but the bucket."""
    child = subprocess.run([sys.executable, __file__, "resume", url], check=True, stdout=subprocess.PIPE, text=True)
    answer, spent = child.stdout.splitlines()
    return answer, Stats(**json.loads(spent))


def resume(url: str) -> None:
    with S3Saver.from_conn_string(url) as saver:
        answer = make_agent(saver).invoke(Command(resume="yes"), thread("anna"))
        print(answer["messages"][-1].content)
        print(json.dumps(asdict(saver.stats())))


def copy_prefix(client: Any, bucket: str, source: str, target: str) -> Stats:
    """Fork a thread by copying its objects: any S3 tool will do, in any order."""
    keys = keys_of(client, bucket, source)
    for key in keys:
        client.copy_object(Bucket=bucket, Key=target + key[len(source) :], CopySource={"Bucket": bucket, "Key": key})
    return Stats(round_trips=len(keys) + 1, lists=1, copies=len(keys))


# -- what it costs, and what lies in the bucket ----------------------------------------------------

DOLLARS = {"puts": 5.00, "copies": 5.00, "lists": 5.00, "gets": 0.40, "deletes": 0.0}  # per million, AWS list price


class Bill:
    """What each step asked of S3."""

    def __init__(self, saver: S3Saver) -> None:
        self.saver = saver
        self.steps: dict[str, Stats] = {}

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        before = self.saver.stats()
        yield
        self.steps[name] = self.saver.stats() - before

    def show(self) -> None:
        columns = ("round_trips", *DOLLARS, "bytes_sent", "bytes_received")
        print("\n" + " " * 24 + "".join(f"{name:>{len(name) + 2}}" for name in columns) + "  $ per 1,000 times")
        for name, spent in {**self.steps, "everything": sum(self.steps.values(), Stats())}.items():
            counts = asdict(spent)
            dollars = sum(counts[kind] * price for kind, price in DOLLARS.items()) / 1000
            print(f"{name:24}" + "".join(f"{counts[it]:{len(it) + 2},}" for it in columns) + f"{dollars:19.3f}")
        print("Round trips are those of all threads: LangGraph stores checkpoints while it goes on.")


def keys_of(client: Any, bucket: str, prefix: str) -> list[str]:
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    return [it["Key"] for page in pages for it in page.get("Contents", [])]


def show_objects(client: Any, saver: S3Saver) -> int:
    """Print how many objects of each kind each thread has, and return how many there are.

    A key is {prefix}/{thread}/{namespace}/c/{checkpoint}/{kind}, or {prefix}/{thread}/{namespace}/latest.
    """
    threads: dict[str, Counter[str]] = {}
    for key in keys_of(client, saver.bucket, f"{saver.prefix}/"):
        name, _, *rest = key[len(saver.prefix) + 1 :].split("/")
        threads.setdefault(name, Counter())[rest[2] if len(rest) > 2 else rest[0]] += 1
    print(f"s3://{saver.bucket}/{saver.prefix}/")
    for name, kinds in threads.items():
        print(f"  {name + '/':9}", ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())))
    return sum(sum(kinds.values()) for kinds in threads.values())


# -- the demo --------------------------------------------------------------------------------------


def demo(saver: S3Saver, client: Any, url: str) -> None:
    agent, notebook, bill = make_agent(saver), make_notebook(saver), Bill(saver)

    with bill.step("three turns with tools"):
        for city in ("Oslo", "Rome", "Lima"):
            ask(agent, f"weather in {city}", thread("anna"))
    print(f"Three turns; the last answer: {said(agent, 'anna')[-1]}")

    with bill.step("a turn, interrupted"):
        answer = ask(agent, "book Lima", thread("anna"))
    print(f"The agent stops to ask:       {answer['__interrupt__'][0].value}")
    text, bill.steps["resumed elsewhere"] = resume_elsewhere(url)
    talk = said(agent, "anna")
    assert text == talk[-1] == "It is done: flight to Lima booked."
    print(f"Another process says yes:     {text}")

    with bill.step("fork by copy_thread"):
        saver.copy_thread("anna", "bert")
    root = f"{saver.prefix}/"
    bill.steps["fork by boto3 alone"] = copy_prefix(client, saver.bucket, f"{root}anna/", f"{root}carl/")
    for fork in ("bert", "carl"):
        assert said(agent, fork) == talk
        ask(agent, "weather in Bern", thread(fork))
        assert said(agent, fork) == [*talk, "weather in Bern", "sunny in Bern", "It is done: sunny in Bern."]
    assert said(agent, "anna") == talk
    print(f"Two forks had all {len(talk)} messages and went on, each alone; the original is untouched")

    with bill.step("time travel"):
        first_turn = next(it for it in agent.get_state_history(thread("carl")) if len(it.values["messages"]) == 4)
        ask(agent, "weather in Kyiv", first_turn.config)
    assert said(agent, "carl") == [*talk[:3], "weather in Kyiv", "sunny in Kyiv", "It is done: sunny in Kyiv."]
    print("One of them went back to its first turn and took another way from there")

    document = secrets.token_hex(100_000)
    with bill.step("a turn, large document"):
        notebook.invoke({"document": document, "notes": ["note 0"]}, thread("notes"))
    with bill.step("five turns beside it"):
        for turn in range(1, 6):
            notebook.invoke({"notes": [f"note {turn}"]}, thread("notes"))
    notes = {"document": document, "notes": [text for n in range(6) for text in (f"note {n}", f"note {n}: noted")]}
    assert notebook.get_state(thread("notes")).values == notes
    assert bill.steps["five turns beside it"].bytes_sent < len(document) / 4
    print("Five turns with a delta channel, beside a large document that was not stored again\n")

    before = show_objects(client, saver)
    talks = {name: said(agent, name) for name in ("anna", "bert", "carl")}
    with bill.step("prune the four threads"):
        saver.prune([*talks, "notes"])
    print("\nPruned, and every thread still says the same:")
    assert show_objects(client, saver) < before
    assert {name: said(agent, name) for name in talks} == talks
    assert notebook.get_state(thread("notes")).values == notes
    bill.show()


def simulated_s3() -> str:
    """Start a server that plays S3, and hide the real one."""
    from moto.server import ThreadedMotoServer

    for name in [name for name in os.environ if name.startswith("AWS_")]:
        del os.environ[name]
    os.environ |= {"AWS_ACCESS_KEY_ID": "demo", "AWS_SECRET_ACCESS_KEY": "demo", "AWS_DEFAULT_REGION": "us-east-1"}
    os.environ |= {"AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull, "NO_PROXY": "127.0.0.1"}
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    return "http://{}:{}".format(*server.get_host_and_port())


def main() -> None:
    bucket, endpoint = os.environ.get("DEMO_BUCKET"), os.environ.get("DEMO_ENDPOINT_URL")
    if not bucket and not endpoint:
        endpoint = simulated_s3()
    query = f"?{urlencode({'endpoint_url': endpoint})}" if endpoint else ""
    url = f"s3://{bucket or 's3saver-demo'}/demo-{secrets.token_hex(4)}{query}"
    with S3Saver.from_conn_string(url) as saver:
        try:
            saver.setup(create_bucket=not bucket)
        except S3SaverError as error:  # no bucket, no server, no credentials: it says what to do
            sys.exit(str(error))
        client = boto3.client("s3", endpoint_url=endpoint)
        try:
            demo(saver, client, url)
        finally:
            for key in keys_of(client, saver.bucket, f"{saver.prefix}/"):
                client.delete_object(Bucket=saver.bucket, Key=key)


if __name__ == "__main__":
    os.environ["LANGSMITH_TRACING"] = "false"  # no network but the bucket
    if sys.argv[1:2] == ["resume"]:
        resume(sys.argv[2])
    else:
        main()

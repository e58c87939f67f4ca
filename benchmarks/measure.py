"""Measures one saver, in the virtual environment that has it: `python -m benchmarks.measure NAME`.

For each length a thread is made with the latency off, and then every operation is done once with the latency on; the
server's log tells what was asked. A saver has been used before it is measured, so that it is connected, and has read
the newest checkpoint before it writes, as a run of a graph has. Answers are compared with those of InMemorySaver.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from langgraph.checkpoint.memory import InMemorySaver

from benchmarks.compare import history_difference, id_of, list_difference, state_difference, tuple_difference
from benchmarks.peers import PEERS, Peer
from benchmarks.server.log import Entry, dollars_per_million, kinds, longest_chain
from benchmarks.workload import Put, Script, Writes, agent, config_for, noise, question

THREAD = "thread"
LENGTHS = (10, 1_000, 10_000)
CHAIN = 500
SHORT = 100
LARGE = 100_000
AWS = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench", "AWS_DEFAULT_REGION": "us-east-1"}


class OverBudget(Exception):
    """It takes too long."""


@contextmanager
def budget(seconds: float) -> Iterator[None]:
    """Raise `OverBudget` in here when so many seconds have passed."""

    def stop(number: int, frame: object) -> None:
        raise OverBudget

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


@dataclass
class Result:
    """What one operation took.

    Attributes:
        operation: Its name.
        length: Of the thread.
        requests: How many, by kind.
        chain: The longest chain of requests that follow one another.
        up: Bytes of request bodies.
        down: Bytes of answers' bodies.
        wall: Time over latency; 0 if it was not measured.
        dollars: For a million of them.
        wrong: What is wrong with the answer.
        note: Why there are no figures.
    """

    operation: str
    length: int
    requests: dict[str, int] = field(default_factory=dict)
    chain: int = 0
    up: int = 0
    down: int = 0
    wall: float = 0.0
    dollars: float = 0.0
    wrong: str | None = None
    note: str | None = None

    def count(self, log: Sequence[Entry]) -> None:
        """Take the figures from a log."""
        self.requests, self.chain, self.dollars = kinds(log), longest_chain(log), dollars_per_million(log)
        self.up, self.down = sum(entry.up for entry in log), sum(entry.down for entry in log)


Check = Callable[[Any], "str | None"]


class Place:
    """One place with a saver on it, and the same in memory."""

    def __init__(self, bench: Bench, name: str, length: int) -> None:
        self.bench, self.length = bench, length
        self.parent: str | None = None
        self.peer = bench.kind(bench.addresses, f"{bench.name}-{name}")
        self.memory = InMemorySaver()
        self.peer.prepare()
        self.peer.open(seeding=True)
        self.memory.get_next_version = self.peer.saver.get_next_version  # type: ignore[method-assign]

    def script(self, thread: str) -> Script:
        """A new thread."""
        return Script(thread, self.peer.saver.get_next_version)

    def store(self, thread: str, config: Any, step: Put | Writes) -> Any:
        """Make one call here and in memory; gives the config for the next."""
        memory_config = config_for(thread, self.parent)
        if isinstance(step, Writes):
            self.memory.put_writes(memory_config, step.writes, step.task_id)
            self.peer.call("put_writes", config, step.writes, step.task_id)
            return config
        self.memory.put(memory_config, step.checkpoint, step.metadata, step.new_versions)
        self.parent = step.checkpoint["id"]
        return self.peer.call("put", config, step.checkpoint, step.metadata, step.new_versions)

    def seed(self, thread: str, steps: Iterator[Put | Writes]) -> Any:
        """Make a thread; gives the config of its newest checkpoint."""
        self.parent = None
        config: Any = config_for(thread)
        for step in steps:
            config = self.store(thread, config, step)
        return config

    def conversation(self, script: Script, length: int) -> Iterator[Put | Writes]:
        """The steps of a thread of so many checkpoints."""
        for number in range(length):
            writes, put = script.step(last=number == length - 1)
            if writes:
                yield writes
            yield put

    def seeded(self, thread: str = THREAD) -> tuple[Script, Any]:
        """Make a conversation of this place's length."""
        script = self.script(thread)
        return script, self.seed(thread, self.conversation(script, self.length))

    def reopen(self) -> None:
        """From now on use a new saver, as another process would, that has looked at another thread."""
        self.peer.close()
        self.peer.open()
        self.peer.call("get_tuple", config_for("nobody"))

    def measure(self, operation: str, call: Callable[[], Any], check: Check = lambda _: None) -> Any:
        """Do an operation once, and check its answer with the latency off."""
        control, result = self.bench.control, Result(operation, self.length)
        self.bench.results.append(result)
        control.take_log()
        control.set_latency(self.bench.latency)
        start = time.perf_counter()
        answer: Any = None
        try:
            with budget(self.bench.seconds):
                answer = call()
            result.wall = (time.perf_counter() - start) * 1000 / self.bench.latency
            result.count(control.take_log())
        except NotImplementedError:
            result.note = "not offered"
        except OverBudget:
            result.note = f"more than {(time.perf_counter() - start) * 1000 / self.bench.latency:,.0f} latencies"
        except Exception as error:
            result.wrong = f"raises {type(error).__name__}"
            traceback.print_exc(limit=-2)
        finally:
            control.set_latency(0)
            self.settle()
        if result.note is None and result.wrong is None:
            result.wrong = self.checked(check, answer)
        print(f"  {self.length:6} {operation:22} {result.chain:5} {result.dollars:9.1f} {result.wall:7.1f}", end=" ")
        print(result.requests, result.wrong or "", result.note or "", flush=True)
        self.bench.save()
        return answer

    def count_first(self, operation: str, call: Callable[[], Any], check: Check) -> None:
        """Measure what changes nothing, but do it before with hardly a latency, to see how much it asks for.

        Where the requests follow one another and are so many that the wait is not worth it, those figures count;
        only the time is left out.
        """
        control, result = self.bench.control, Result(operation, self.length)
        control.take_log()
        control.set_latency(2)
        try:
            with budget(self.bench.seconds):
                answer = call()
        except Exception:
            answer = None
        control.set_latency(0)
        self.settle()
        result.count(control.take_log())
        asked = sum(result.requests.values())
        if answer is None or asked < 600 or result.chain < 0.9 * asked:
            self.measure(operation, call, check)
            return
        result.wrong = self.checked(check, answer)
        self.bench.results.append(result)
        print(f"  {self.length:6} {operation:22} {result.chain:5} {result.dollars:9.1f}       -", result.requests)

    def settle(self) -> None:
        """Wait until nothing is asked any more."""
        if self.bench.results and self.bench.results[-1].note and "more" in self.bench.results[-1].note:
            while self.bench.control.take_log():
                time.sleep(0.5)

    def checked(self, check: Check, answer: Any) -> str | None:
        """What a check finds."""
        try:
            return check(answer)
        except Exception as error:
            return f"cannot be compared: {type(error).__name__}"


class Bench:
    """All that is measured of one saver."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        self.name, self.kind, self.output = name, PEERS[name], options.output
        self.addresses: dict[str, str] = options.addresses
        self.latency, self.seconds, self.seeding = options.latency, options.budget, options.seeding
        self.control = Peer(self.addresses, "").control
        self.results: list[Result] = []
        self.stored: dict[int, int] = {}
        self.notes: list[str] = []

    @contextmanager
    def place(self, name: str, length: int) -> Iterator[Place]:
        """A new place, with the latency off."""
        self.control.set_latency(0)
        place = Place(self, name, length)
        try:
            yield place
        finally:
            place.peer.close()

    def run(self, lengths: Sequence[int]) -> None:
        """Measure everything."""
        for length in lengths:
            self.attempt(self.on_length, length)
        self.attempt(self.on_short_threads)
        self.attempt(self.delta_history)

    def save(self) -> None:
        """Write what there is so far: a saver may be stopped."""
        told = {
            "peer": self.name,
            "label": self.kind.label,
            "latency": self.latency,
            "versions": {name: version(name) for name in self.kind.distributions},
            "results": [asdict(result) for result in self.results],
            "stored": self.stored,
            "notes": self.notes,
        }
        self.output.write_text(json.dumps(told, indent=1))

    def attempt(self, what: Callable[..., None], *args: Any) -> None:
        """Go on with the next thing if one cannot be done."""
        try:
            what(*args)
        except ModuleNotFoundError:
            raise  # the saver is not there at all
        except OverBudget:
            self.notes.append(
                f"a thread of {args[0] if args else CHAIN:,} takes more than {self.seeding:.0f} s to make"
            )
        except Exception as error:
            traceback.print_exc(limit=-3)
            self.notes.append(f"{what.__name__.replace('_', ' ')}: raises {type(error).__name__}")

    def on_length(self, length: int) -> None:
        """What may depend on the length of a thread."""
        with self.place(f"{length}", length) as place:
            self.measure_length(place, length)

    def measure_length(self, place: Place, length: int) -> None:
        """All of that, on one place."""
        start = time.perf_counter()
        with budget(self.seeding):
            script, config = place.seeded()
        print(f"{self.name}: {length:,} made in {time.perf_counter() - start:.1f} s", flush=True)
        self.stored[length] = place.peer.stored()
        place.reopen()
        latest, memory, call = config_for(THREAD), place.memory, place.peer.call

        def check_latest(answer: Any) -> str | None:
            return tuple_difference(memory.get_tuple(latest), answer)

        def check_stored(stored: Any) -> str | None:
            return tuple_difference(memory.get_tuple(config_for(THREAD, place.parent)), call("get_tuple", stored))

        seen = place.measure("get latest", lambda: call("get_tuple", latest), check_latest)
        config = seen.config if seen else config
        expected = list(memory.list(latest, limit=10))
        place.measure(
            "list(limit=10)",
            lambda: call("list", latest, limit=10),
            lambda answer: list_difference(expected, answer),
        )
        puts: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
            "put": ({"messages": script.values["messages"][1:]}, ()),
            "put, new large value": ({"attachment": noise(LARGE)}, ()),
            "put, inherits it": ({"messages": script.values["messages"][2:]}, ()),
            "": ({"messages": script.values["messages"][3:]}, ("attachment",)),
        }
        for name, (values, touched) in puts.items():
            step = script.put(values, touch=touched)
            memory.put(config_for(THREAD, place.parent), step.checkpoint, step.metadata, step.new_versions)
            place.parent = step.checkpoint["id"]
            store = partial(call, "put", config, step.checkpoint, step.metadata, step.new_versions)
            # What follows is measured without the large value: the last of these puts is only there to remove it.
            config = (place.measure(name, store, check_stored) or config) if name else store()
        writes = [("messages", script.values["messages"][:1]), ("branch:to:tools", None), ("document", "new")]
        tasks = [Writes(writes, f"00000000-0000-4000-8000-{number:012x}") for number in range(3)]
        for task in tasks:
            memory.put_writes(config_for(THREAD, place.parent), task.writes, task.task_id)
        arguments = (config, tasks[0].writes, tasks[0].task_id)
        place.measure("put_writes of three", lambda: call("put_writes", *arguments))
        self.control.set_latency(0)
        for task in tasks[1:]:
            call("put_writes", config, task.writes, task.task_id)
        place.measure("get latest, three tasks", lambda: call("get_tuple", latest), check_latest)
        step = script.put({"messages": script.values["messages"][1:]})  # the turn begins with nothing pending
        memory.put(config_for(THREAD, place.parent), step.checkpoint, step.metadata, step.new_versions)
        call("put", config, step.checkpoint, step.metadata, step.new_versions)
        self.turn(place)

    def turn(self, place: Place) -> None:
        """A turn of ten super-steps through a graph, which also goes through InMemorySaver."""
        config: Any = {"configurable": {"thread_id": THREAD}}
        expected = agent(place.memory, 1).invoke(question(1), config)
        graph = agent(place.peer.saver, 1)
        place.measure(
            "turn of ten super-steps",
            lambda: place.peer.invoke(graph, question(1), config),
            lambda answer: state_difference(expected, answer),
        )

    def on_short_threads(self) -> None:
        """What is measured on threads of a hundred checkpoints."""
        with self.place("short", SHORT) as place:
            self.measure_short_threads(place)

    def measure_short_threads(self, place: Place) -> None:
        """All of that, on one place."""
        with budget(self.seeding):
            place.seeded("doomed")
            place.seeded()
        place.reopen()
        latest, memory, call = config_for(THREAD), place.memory, place.peer.call
        found = list(memory.list(latest, filter={"source": "update"}))
        place.measure(
            "list, five filtered of 100",
            lambda: call("list", latest, filter={"source": "update"}),
            lambda answer: list_difference(found, answer),
        )
        everything = [(id_of(it.config), it.checkpoint["channel_values"]) for it in memory.list(latest)]

        def check_copy(_: Any) -> str | None:
            copied = [(id_of(it.config), it.checkpoint["channel_values"]) for it in call("list", config_for("copy"))]
            return None if copied == everything else "the copy differs"

        place.measure("copy of 100", lambda: place.peer.copy_thread(THREAD, "copy"), check_copy)
        place.measure(
            "delete_thread of 100",
            lambda: call("delete_thread", "doomed"),
            lambda _: "something is left" if call("list", config_for("doomed")) else None,
        )

        def check_pruned(_: Any) -> str | None:
            left, newest = call("list", latest), memory.get_tuple(latest)
            if len(left) != 1 or newest is None:
                return f"{len(left)} checkpoints are left"
            same = left[0].checkpoint["channel_values"] == newest.checkpoint["channel_values"]
            return None if same else "what is left differs"

        place.measure("prune of 100", lambda: call("prune", [THREAD]), check_pruned)

    def delta_history(self) -> None:
        """The history of a delta channel over a chain of checkpoints that hold none of its values."""
        with self.place("delta", CHAIN) as place:
            self.measure_delta_history(place)

    def measure_delta_history(self, place: Place) -> None:
        """All of that, on one place."""
        script = place.script(THREAD)

        def steps() -> Iterator[Put | Writes]:
            yield script.put({"log": ["begin"]})
            for depth in range(1, CHAIN + 1):
                yield Writes([("log", [f"entry {depth} of the log, as long as a line of text is"])], f"task-{depth}")
                counters: Any = {"log": [depth, depth]}
                yield script.put({}, touch=("log",), counters_since_delta_snapshot=counters)

        with budget(self.seeding):
            place.seed(THREAD, steps())
        place.reopen()
        latest: Any = config_for(THREAD)
        place.count_first(
            "delta history of 500",
            lambda: place.peer.call("get_delta_channel_history", config=latest, channels=["log"]),
            lambda answer: history_difference(
                place.memory.get_delta_channel_history(config=latest, channels=["log"]), answer
            ),
        )


def main() -> None:
    """Measure, and write the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("--addresses", type=json.loads, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--latency", type=float, default=25)
    parser.add_argument("--budget", type=float, default=45, help="seconds for one operation")
    parser.add_argument("--seeding", type=float, default=60, help="seconds to make one thread")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    arguments = parser.parse_args()
    os.environ.update(AWS)
    warnings.simplefilter("ignore")
    bench = Bench(arguments.peer, arguments)
    start = time.perf_counter()
    try:
        bench.run(arguments.lengths)
    except ModuleNotFoundError as error:
        arguments.output.write_text(json.dumps({"peer": bench.name, "left_out": f"there is no {error.name}"}))
        return
    bench.save()
    print(f"{bench.name}: {time.perf_counter() - start:.0f} s", flush=True)
    sys.stdout.flush()
    os._exit(0)  # some savers leave threads that never end


if __name__ == "__main__":
    main()

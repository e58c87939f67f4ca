"""Makes `docs/benchmarks.md` and its pictures of what `.bench/results` has."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.chart import Linear, Logarithmic, line_chart
from benchmarks.measure import CHAIN, LENGTHS, SHORT
from benchmarks.peers import PEERS
from benchmarks.workload import TURN

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / ".bench" / "results"
DOCS = ROOT / "docs"

TITLES = {
    "get latest": "Read the newest checkpoint",
    "get latest, three tasks": "Read it with the writes of three tasks pending",
    "list(limit=10)": "List the ten newest",
    "put": "Store a checkpoint",
    "put, new large value": "Store one with a new large value (100 KB)",
    "put, inherits it": "Store one that inherits it",
    "put_writes of three": "Store three writes of a task",
    "turn of ten super-steps": "A turn of ten super-steps through a graph",
    "list, five filtered of 100": "Find five of 100 by their metadata",
    "copy of 100": "Copy a thread of 100 checkpoints",
    "delete_thread of 100": "Delete it",
    "prune of 100": "Prune it to the newest",
    "delta history of 500": "Read a delta channel's history over 500 checkpoints",
}
"""The operations in the order of the report."""

TURNS = 1_000
SHOWN_TURNS = {1, *range(100, 1_001, 100)}

INTRO = """# Benchmarks

Made by `make bench`: figures of S3Saver beside those of the other checkpointers for LangGraph that store in S3, and of
those that people use without a bucket. Everything runs on one machine, against a server on loopback that answers as S3
does, {latency:g} ms after each request has come, and logs each request with its start and its end.

* **Round trips**: the longest chain of requests of which each begins after the one before has ended. This is what
  latency is paid for, and it does not depend on the machine.
* **Time**: in latencies. What it has more than round trips is the processor's; only ratios mean anything.
* **Dollars**: a million such operations at AWS's list prices: $5.00 per million PUT, COPY, POST and LIST, $0.40 GET and
  HEAD, DELETE free; DynamoDB on demand $0.625 per million write units and $0.125 read units. Storage is not in it, nor
  what a database costs while it runs.
* **Answers** are compared with those of InMemorySaver after the same calls, leniently: more metadata and another order
  of pending writes are fine. What is wrong is marked ✗ and told below.

The threads are an agent's: questions, tool calls, results, answers, of which the state keeps the last twenty (about
9 KB), and a document that changes with every turn (12 KB); {turn} checkpoints and {batches} write batches a turn. They
are made with the latency off. Each operation is done once, by a saver that is connected and, before it writes, has read
the newest checkpoint, as a run has. The checkpoints stored are such as a run ends with, for which S3Saver writes its
manifest beside them; those within a run cost it one PUT, $5.00 a million. Where a saver follows with so many requests
one another that waiting for them is not worth it, they are counted with hardly a latency, and no time is told. Figures
of three lengths are those of threads of {lengths} checkpoints, requests and bytes those of the longest; "—" stands
for what there is no figure for.
"""


class Report:
    """All figures.

    Attributes:
        peers: What each saver's file has, in the order of `PEERS`.
    """

    def __init__(self, peers: Sequence[dict[str, Any]]) -> None:
        self.peers = [peer for peer in peers if "left_out" not in peer]
        self.left_out = [peer for peer in peers if "left_out" in peer]
        self.lengths = sorted({int(length) for peer in self.peers for length in peer["stored"]}) or list(LENGTHS)

    def result(self, peer: dict[str, Any], operation: str, length: int | None = None) -> dict[str, Any] | None:
        """One operation of one saver; without a length the longest thread's."""
        found = [it for it in peer["results"] if it["operation"] == operation and length in (None, it["length"])]
        return max(found, key=lambda it: (not it["note"], it["length"]), default=None)

    def markdown(self) -> Iterable[str]:
        """The whole document, line by line."""
        lengths = ", ".join(f"{length:,}" for length in self.lengths)
        latency = self.peers[0]["latency"] if self.peers else 25
        yield INTRO.format(latency=latency, turn=TURN, batches=TURN - 1, lengths=lengths)
        yield from self.savers()
        yield from self.overview()
        yield from self.pictures()
        yield "\n## Operation by operation\n"
        for operation in TITLES:
            yield from self.table(operation)
        yield from self.stored_table()
        yield from self.remarks()

    def savers(self) -> Iterable[str]:
        """What was measured."""
        yield "## Savers\n\n| in the tables | packages |\n| --- | --- |"
        for peer in self.peers:
            yield f"| {peer['label']} | {', '.join(' '.join(it) for it in peer['versions'].items())} |"

    def overview(self) -> Iterable[str]:
        """Round trips and dollars of everything, in a thread of middle length."""
        length = self.lengths[len(self.lengths) // 2]
        yield f"\n## Overview\n\nRound trips / dollars per million, in a thread of {length:,} checkpoints:\n"
        yield f"| | {' | '.join(peer['label'] for peer in self.peers)} |"
        yield f"| --- |{' --- |' * len(self.peers)}"
        for operation, title in TITLES.items():
            cells = []
            for peer in self.peers:
                it = self.result(peer, operation, length) or self.result(peer, operation)
                cells.append(short(peer, it))
            yield f"| {title} | {' | '.join(cells)} |"

    def pictures(self) -> Iterable[str]:
        """The pictures, which are written here."""
        directory = DOCS / "benchmarks"
        directory.mkdir(exist_ok=True)
        history = "checkpoints in the thread"
        charts = {
            "read-round-trips": (
                "Round trips to read the newest checkpoint",
                (history, "requests that follow one another", self.series("get latest", "chain")),
                "",
            ),
            "read-time": (
                "Time to read the newest checkpoint",
                (history, "time, as a multiple of the latency of one request", self.series("get latest", "wall")),
                "",
            ),
            "conversation-dollars": (
                f"What a conversation of {TURNS:,} turns costs in requests",
                ("turns so far, of ten super-steps each", "dollars", self.conversations()),
                "$",
            ),
            "stored-bytes": (
                "Bytes stored for a thread",
                (history, "bytes", {peer["label"]: points(peer["stored"]) for peer in self.peers}),
                "",
            ),
        }
        for name, (title, (x_name, y_name, series), unit) in charts.items():
            kind = Linear if name == "conversation-dollars" else Logarithmic
            (directory / f"{name}.svg").write_text(line_chart(title, x_name, y_name, series, unit, kind))
            yield f"\n![{title}](benchmarks/{name}.svg)"

    def series(self, operation: str, figure: str) -> dict[str, list[tuple[float, float]]]:
        """A figure of an operation over the lengths."""
        series: dict[str, list[tuple[float, float]]] = {}
        for peer in self.peers:
            found = {length: self.result(peer, operation, length) for length in self.lengths}
            wrong = any(it and it["wrong"] for it in found.values())
            line = [
                (float(length), float(it[figure]))
                for length, it in found.items()
                if it and it["requests"] and not it["note"]
            ]
            series[peer["label"] + (" ✗" if wrong else "")] = line
        return series

    def conversations(self) -> dict[str, list[tuple[float, float]]]:
        """Dollars so far, turn by turn, where requests have a price."""
        series = {}
        for name, turns in self.series("turn of ten super-steps", "dollars").items():
            known = [(length / TURN, dollars / 1_000_000) for length, dollars in turns if dollars]
            total, line = 0.0, []
            for turn in range(TURNS if known else 0):
                total += between(known, turn)
                if turn + 1 in SHOWN_TURNS:
                    line.append((turn + 1.0, total))
            series[name] = line
        return series

    def table(self, operation: str) -> Iterable[str]:
        """One operation."""
        lengths = sorted(
            {it["length"] for peer in self.peers for it in peer["results"] if it["operation"] == operation}
        )
        if not lengths:
            return
        over = " / ".join(f"{length:,}" for length in lengths)
        told = f" at {over}" if len(lengths) > 1 else ""
        yield f"\n### {TITLES[operation]}\n"
        yield f"| saver | round trips{told} | requests | KB up, down | time{told} | dollars{told} |"
        yield "| --- | --- | --- | --- | --- | --- |"
        for peer in self.peers:
            them = [self.result(peer, operation, length) for length in lengths]
            last = self.result(peer, operation)
            known = last is not None and not last["note"] and (last["requests"] or not last["wrong"])
            requests = (
                ", ".join(f"{count:,} {kind}" for kind, count in last["requests"].items()) if known and last else ""
            )
            size = (
                f"{last['up'] / 1000:,.0f}, {last['down'] / 1000:,.0f}" if known and last and last["requests"] else "—"
            )
            cells = [
                over_lengths(them, lambda it: f"{it['chain']:,}"),
                requests or (last["note"] if last and last["note"] else "—"),
                size,
                over_lengths(them, lambda it: f"{it['wall']:,.1f}" if it["wall"] else "—"),
                over_lengths(them, partial(dollars, peer)),
            ]
            mark = " ✗" if any(it and it["wrong"] for it in them) else ""
            yield f"| {peer['label']}{mark} | {' | '.join(cells)} |"

    def stored_table(self) -> Iterable[str]:
        """Bytes stored."""
        yield "\n### Megabytes stored for a thread\n"
        yield f"| saver | {' | '.join(f'{length:,}' for length in self.lengths)} |"
        yield f"| --- |{' --- |' * len(self.lengths)}"
        for peer in self.peers:
            sizes = (peer["stored"].get(str(length)) for length in self.lengths)
            yield f"| {peer['label']} | {' | '.join('—' if it is None else f'{it / 1e6:,.2f}' for it in sizes)} |"

    def remarks(self) -> Iterable[str]:
        """Wrong answers, and what is missing."""
        yield "\n## Wrong answers\n"
        wrong = [line for peer in self.peers for line in wrongs(peer)]
        yield "\n".join(wrong) or "None."
        yield "\n## Left out\n"
        for peer in self.left_out:
            yield f"* {PEERS[peer['peer']].label}: {peer['left_out']}"
        for peer in self.peers:
            for note in peer["notes"]:
                yield f"* {peer['label']}: {note}"
            missing = [it["operation"].split(" of ")[0] for it in peer["results"] if it["note"] == "not offered"]
            if missing:
                yield f"* {peer['label']} does not offer: {', '.join(missing)}"
            for it in peer["results"]:
                if it["note"] and it["note"] != "not offered":
                    yield f"* {peer['label']}, {it['operation']} at {it['length']:,}: {it['note']}"
        yield NOTES.format(short=SHORT, chain=CHAIN)


NOTES = """
## How to read it

* Turns run as `graph.invoke` does by default, with `durability="async"`: a checkpoint is stored while the next
  super-step runs.
* A conversation's dollars are those of turns measured at the lengths above, with straight lines between.
* objectstorage has no `copy_thread`; its `export_thread` and `import_thread` are measured for it.
* checkpoint-s3 cannot store anything with langgraph-checkpoint 3 or newer, whose serializer has no `dumps`; it is
  measured with 2.1.
* PostgreSQL is a fresh local server with its default settings behind a relay that adds the latency to what the client
  sends; a pipeline of statements is one request, as on a network. SqliteSaver asks no server for anything.
* The DynamoDB is a simulation of the calls that this saver makes; units are those of the items' sizes.
* Delta histories of savers that do not read them in their own way are BaseCheckpointSaver's walk.
* The server takes no time for a large object beyond that of the loopback. On a real network, bytes cost time too.

What operations ask for is also counted, without any server, in [costs.md](costs.md).
"""


def wrongs(peer: dict[str, Any]) -> Iterable[str]:
    """A line for each kind of wrong answer of a saver."""
    where: dict[str, list[str]] = {}
    for it in peer["results"]:
        if it["wrong"]:
            where.setdefault(it["wrong"], [])
            if it["operation"] not in where[it["wrong"]]:
                where[it["wrong"]].append(it["operation"])
    for wrong, operations in where.items():
        yield f"* {peer['label']}: {wrong} (after: {', '.join(operations)})"


def short(peer: dict[str, Any], it: dict[str, Any] | None) -> str:
    """Round trips and dollars in one cell."""
    if it is None or it["note"]:
        return "—"
    if it["wrong"] and not it["requests"]:
        return "✗" if it["wrong"].startswith("raises") else f"{it['chain']} ✗"
    price = dollars(peer, it)
    return f"{it['chain']:,}" + (f" / {price}" if price != "—" else "") + (" ✗" if it["wrong"] else "")


def dollars(peer: dict[str, Any], it: dict[str, Any]) -> str:
    """The price of a million, where requests have one."""
    if PEERS[peer["peer"]].needs_postgres or not it["requests"]:
        return "—"
    return f"{it['dollars']:,.0f}" if it["dollars"] >= 100 else f"{it['dollars']:,.1f}"


def over_lengths(them: Sequence[dict[str, Any] | None], tell: Callable[[dict[str, Any]], str]) -> str:
    """A figure for each length."""
    told = []
    for it in them:
        failed = it is None or it["note"] or (it["wrong"] or "").startswith("raises")
        told.append("—" if failed or it is None else tell(it))
    return " / ".join(told)


def points(stored: dict[str, int]) -> list[tuple[float, float]]:
    """Bytes over lengths."""
    return sorted((float(length), float(size)) for length, size in stored.items())


def between(known: Sequence[tuple[float, float]], at: float) -> float:
    """On the straight lines through some points; level before the first and behind the last."""
    if at <= known[0][0]:
        return known[0][1]
    for (left, low), (right, high) in pairwise(known):
        if at <= right:
            return low + (high - low) * (at - left) / (right - left)
    return known[-1][1]


def main() -> None:
    """Write the report."""
    files = [RESULTS / f"{name}.json" for name in PEERS]
    report = Report([json.loads(file.read_text()) for file in files if file.exists()])
    (DOCS / "benchmarks.md").write_text("\n".join(report.markdown()))


if __name__ == "__main__":
    main()

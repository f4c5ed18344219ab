"""A part of the ledger: a file with a line of JSON for each event, in the order in which things happened."""

import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NO_TEST = "(outside of a test)"


@dataclass(frozen=True)
class Job:
    """What one process runs."""

    part: str
    file: str
    alone: bool  # the tests marked `alone`, else the others
    ended: list[str]  # tests that are not run again
    parent: int  # the run's process


def write(part: Path | str, event: str, **what: Any) -> None:
    """Append a line, whole, whoever else appends."""
    line = json.dumps({"at": round(time.time(), 2), "event": event, **what}) + "\n"
    descriptor = os.open(part, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def read(part: Path) -> Iterator[dict[str, Any]]:
    """The events; a last line that was cut is left out."""
    for line in part.read_text().splitlines(keepends=True):
        if line.endswith("\n"):
            yield json.loads(line)


@dataclass
class Tests:
    """What parts say of the tests of one file at one state of the code."""

    about: dict[str, Any]  # commit, dirty, card, cards, digest
    runs: dict[str, list[dict[str, Any]]] = field(default_factory=dict)  # test: its ends, in order
    to_run: dict[bool, int] = field(default_factory=dict)  # alone or not: how many there are
    finished: set[bool] = field(default_factory=set)

    @property
    def complete(self) -> bool:
        return False in self.finished and (True in self.finished or not self.to_run.get(True))

    def ended(self, alone: bool) -> list[str]:
        return [test for test, ends in self.runs.items() if ends[-1]["alone"] == alone]


def noted(parts: list[Path]) -> dict[str, Tests]:
    """What the parts say of each file; where its code changed between them, the last state counts."""
    found: dict[str, Tests] = {}
    for part in parts:
        host: dict[str, Any] = {}
        for event in read(part):
            take(event, host, found)
    return found


def take(event: dict[str, Any], host: dict[str, Any], found: dict[str, Tests]) -> None:
    """Adds one event of a part to what is known; `host` holds the part's own heading."""
    kind, file = event["event"], event.get("file", "")
    if kind == "part":
        host |= {name: event[name] for name in ("commit", "dirty", "card", "cards")}
    elif kind == "file":
        about = {**host, "digest": event["digest"]}
        if file not in found or found[file].about != about:
            found[file] = Tests(about)
    elif kind == "collected":
        alone = event["of_them_alone"]
        found[file].to_run = {True: alone, False: event["tests"] - alone}
    elif kind == "end":
        found[file].runs.setdefault(event["test"], []).append(event)
    elif kind == "done":
        found[file].finished.add(event["alone"])


def entry(tests: Tests) -> dict[str, Any]:
    """The ledger's row for a file. A test that ran several times counts as it last ended."""
    last = [ends[-1] for ends in tests.runs.values()]
    outcomes = Counter(end["outcome"] for end in last)
    reasons = Counter(end["message"] for end in last if end["outcome"] == "skipped")
    unsteady = {}
    for test, ends in tests.runs.items():
        failed = sum(end["outcome"] == "failed" for end in ends)
        if 0 < failed < len(ends):
            unsteady[test] = f"failed in {failed} of {len(ends)} runs"
    return {
        **tests.about,
        **{outcome: outcomes[outcome] for outcome in ("passed", "skipped", "failed")},
        "seconds": round(sum(end["seconds"] for end in last), 1),
        "seconds_alone": round(sum(end["seconds"] for end in last if end["alone"]), 1),
        "reasons": dict(sorted(reasons.items())),
        "failures": {end["test"]: end["message"] for end in last if end["outcome"] == "failed"},
        "unsteady": unsteady,
    }

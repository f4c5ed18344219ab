"""Runs files of tests beside each other, follows what they write into a part, and ends in time."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ledger_digest import Tree
from ledger_log import JOB
from ledger_part import NO_TEST, Job, noted, take, write

GRACE_S = 30.0  # what a silent process gets beyond the limit of a test, which pytest itself enforces
OUTSIDE_S = 300.0  # what it may take to import and collect, and to end
STARTS_S = 20.0  # a process until its first test
ORDERLY = (0, 1, 2, 5)  # exit codes of a pytest that has told all: passed, failed, not collected, no tests


@dataclass
class Running:
    process: subprocess.Popen
    job: Job
    output: Path
    heard: float  # when it started, or last wrote an event
    test: str | None = None  # in flight
    limit: float | None = None  # seconds, if this test has its own
    why: str | None = None  # it was killed


class Run:
    """One part. Each file has a process; `alone` tests have one more, with nothing beside it.

    after: earlier parts; tests that ended there, at the same state of the code, are left out.
    ledger: the last one, whose seconds say what still fits into this part.
    """

    def __init__(
        self,
        root: Path,
        part: Path,
        after: list[Path],
        ledger: dict[str, Any],
        beside: int,
        timeout: float,
        minutes: float,
    ):
        self.root, self.part, self.ledger = root, part.resolve(), ledger
        self.beside, self.timeout = beside, timeout
        self.minutes, self.begun = minutes, time.monotonic()
        self.found = noted(after)
        self.running: dict[str, Running] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="ledger-")
        self._host: dict[str, Any] = {}
        self._bytes = 0  # of the part that were read
        self.part.parent.mkdir(parents=True, exist_ok=True)
        write(self.part, "part", **host(root), after=[path.name for path in after])

    def all(self, files: list[str]) -> list[str]:
        """Run what is left of the files; the names of those that are not finished."""
        tree = Tree(self.root)
        for file in files:
            write(self.part, "file", file=file, digest=tree.digest(tree.tests / file))
        self._follow()
        try:
            while self._seconds_left() > 0:
                for job in self._next(files):
                    self._start(job)
                if not self.running:
                    break
                time.sleep(0.1)
                self._follow()
                self._reap()
        finally:
            for running in self.running.values():
                stop(running)
            self._follow()
            self._folder.cleanup()
        return [file for file in files if not self.found[file].complete]

    def _seconds_left(self) -> float:
        return self.begun + 60 * self.minutes - time.monotonic()

    def _next(self, files: list[str]) -> Iterator[Job]:
        """What may start now: files while there is room; `alone` tests of one when nothing runs."""
        for file in files:
            tests = self.found[file]
            room = len(self.running) < self.beside and not any(job.alone for job in self._jobs())
            if room and file not in self.running and False not in tests.finished and self._fits(file, False):
                yield self._job(file, False)
        for file in files:
            tests = self.found[file]
            if self.running:
                return
            if False in tests.finished and not tests.complete and self._fits(file, True):
                yield self._job(file, True)

    def _job(self, file: str, alone: bool) -> Job:
        return Job(str(self.part), file, alone, self.found[file].ended(alone), os.getpid())

    def _jobs(self) -> list[Job]:
        return [running.job for running in self.running.values()]

    def _fits(self, file: str, alone: bool) -> bool:
        """Whether it would end in time; what takes more than half a part continues in the next one."""
        row = self.ledger.get(file, {"seconds": 0.0, "seconds_alone": 0.0})
        seconds = row["seconds_alone"] if alone else row["seconds"] - row["seconds_alone"]
        return self._seconds_left() > min(seconds + STARTS_S, 60 * self.minutes / 2)

    def _start(self, job: Job) -> None:
        base = Path(self._folder.name) / f"{job.file}-{'alone' if job.alone else 'beside'}"
        told, output = base.with_suffix(".json"), base.with_suffix(".txt")
        told.write_text(json.dumps(asdict(job)))
        paths = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        command = [sys.executable, "-m", "pytest", f"tests/cuda/{job.file}", f"--rootdir={self.root}"]
        command += ["-p", "ledger_log", "-p", "no:cacheprovider", "--tb=short", f"--timeout={self.timeout}"]
        with output.open("w") as stream:
            process = subprocess.Popen(
                command,
                cwd=self.root,
                env=os.environ | {JOB: str(told), "PYTHONPATH": os.pathsep.join(paths)},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                process_group=0,  # its own children end with it
            )
        self.running[job.file] = Running(process, job, output, time.monotonic())

    def _follow(self) -> None:
        """Read what was written since the last time."""
        with self.part.open("rb") as stream:
            stream.seek(self._bytes)
            new = stream.read()
        new = new[: new.rfind(b"\n") + 1]
        self._bytes += len(new)
        for line in new.splitlines():
            event = json.loads(line)
            take(event, self._host, self.found)
            running = self.running.get(event.get("file"))
            if running:
                running.heard = time.monotonic()
                if event["event"] in ("start", "end"):
                    running.test = event["test"] if event["event"] == "start" else None
                    running.limit = event.get("limit")

    def _reap(self) -> None:
        """End what hangs; take leave of what has ended, and let a file go on behind a test that killed it."""
        for file, running in list(self.running.items()):
            silent = time.monotonic() - running.heard
            limit = (running.limit or self.timeout) + GRACE_S if running.test else OUTSIDE_S
            if running.process.poll() is None and silent > limit:
                running.why = f"hangs: silent for {silent:.0f} s"
                stop(running)
            code = running.process.poll()
            if code is None:
                continue
            self._follow()  # what it wrote last
            del self.running[file]
            died = running.why or f"the process died: {ending(code)}"
            if running.test or running.why or code not in ORDERLY:
                self._failed(running, died)
            if not running.test:
                write(self.part, "done", file=file, alone=running.job.alone, code=code)
            self._follow()
            self._tell(running)

    def _failed(self, running: Running, message: str) -> None:
        write(
            self.part,
            "end",
            file=running.job.file,
            alone=running.job.alone,
            test=running.test or NO_TEST,
            outcome="failed",
            seconds=round(time.monotonic() - running.heard, 3),
            message=message,
            detail=running.output.read_text(errors="replace")[-3000:],
        )

    def _tell(self, running: Running) -> None:
        tests = self.found[running.job.file]
        ends = [ends[-1] for ends in tests.runs.values() if ends[-1]["alone"] == running.job.alone]
        failed = [end["test"] for end in ends if end["outcome"] == "failed"]
        name = running.job.file + (" alone" if running.job.alone else "")
        seconds = time.monotonic() - self.begun
        print(f"{seconds:4.0f} s  {name}: {len(ends)} ended, {len(failed)} failed", flush=True)
        for test in failed:
            print(f"        failed: {test}", flush=True)


def stop(running: Running) -> None:
    """Kill a process and its children."""
    if running.process.poll() is None:
        os.killpg(running.process.pid, signal.SIGKILL)
        running.process.wait()


def ending(code: int) -> str:
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name


def host(root: Path) -> dict[str, Any]:
    """What a part says of its host: the code's commit and the cards, asked of NVML to leave CUDA unused."""
    from gpufeed.system.environment import checkout
    from gpufeed.system.gpu_locks import gpu_listing

    commit, dirty = checkout(root)
    kinds = [gpu.kind for gpu in gpu_listing.on_node()]
    card = ", ".join(sorted(set(kinds))) or None
    return {"commit": commit, "dirty": dirty, "card": card, "cards": len(kinds)}

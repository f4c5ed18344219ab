"""What a run of the workflow prints: a line a result, where Snakemake prints a dozen a job.

Terminal stands in for the handler with which Snakemake prints, and hands it every message that it does not
know. It reads the events that Snakemake's logger plugins read. It is none itself: a plugin must be installed,
editable installs hide it, and it knows neither the plan nor the jobs ahead.
"""

import logging
import os
import re
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil

from gpufeed.core.cells import Cell
from gpufeed.core.errors import GpufeedError, unknown
from gpufeed.core.quantities import plural
from gpufeed.workflow.terminal_words import (
    AGAIN,
    REFUSED,
    STAGE_OF,
    STAGES,
    at_work,
    counted,
    ended,
    labels,
    lasting,
    measured_again,
    read,
    reason,
    unsubmitted,
)

STREAM = "DefaultStreamHandler"  # Snakemake's name of the handler that prints
QUIET = "GPUFEED_QUIET"  # in a job's environment: a Terminal prints what stopped it
ENDED = ("failed", "skipped")  # status of a document whose sentence is printed
OURS = {"of_gpufeed": True}  # `extra` of what gpufeed logs: printed as it is
# what Snakemake says of itself between its events
NOISE = re.compile(
    "Assuming unrestricted shared|Building DAG of jobs|Using shell: |Conda environments: ignored|Reasons:"
    "|Group jobs: inactive|Singularity containers: ignored|Select jobs to execute|DAG of jobs will be updated"
    "|Updating checkpoint depend|Shutting down, this might|Elapsed time: |Exiting because a job execution"
    "|This was a dry-run|The run involves checkpoint|Removing output files of failed job|SLURM run ID: "
    "|Job [0-9]+ has been submitted with SLURM|Submitted array job|Falling back to 'sacct'|'sacct' unavail"
    "|Cleaning up SLURM log|Config file .+ is extended|Some jobs were triggered by prov|Rules with provenance"
)
COUNTED, SILENT = "run_info", ("workflow_started", "resources_info", "job_started", "progress", "shellcmd")
NOTHING, STOPPED, LOG = "Nothing to be done", "Terminating processes on user", "Complete log(s): "
FAILED_JOB, SOME_FAILED = "CalledProcessError in file", "At least one job did not complete"
NO_WORD = "Its log has no error; what it printed stands above, or in the log of its node."
TARGET = re.compile(r"No rule to produce (.+?) \(if you use")

RED, YELLOW, GREEN, DIM = 31, 33, 32, 2
COLOURED = re.compile(r"\033\[[0-9;]*m")
TWICE_S = 0.1  # timeout and Slurm send a signal to a process and to its group
SILENT_S, LONGER = 20.0, 1.5  # without a line, until one says what runs; the next one so many times later


def installed(workflow: Any, logger: logging.Logger) -> "Terminal | None":
    """Replace Snakemake's log handler by a Terminal and return it; None if Snakemake's own is kept.

    It is kept in jobs, beside another logger that prints, and with -p, --verbose or --debug-dag.
    """
    asked = workflow.output_settings
    (plain, *_) = [*(handler for handler in logger.handlers if handler.name == STREAM), None]
    if not workflow.is_main_process or plain is None:
        return None
    if os.environ.get("NO_COLOR"):
        plain.nocolor = True
    if asked.printshellcmds or asked.verbose or asked.debug_dag:
        return None
    terminal = Terminal(plain, asked.dryrun, asked.quiet or ())
    # bars of jobs are wiped once they are full, and not drawn into files
    os.environ |= {QUIET: "1"} | ({"TQDM_LEAVE": ""} if terminal.on_terminal else {"TQDM_DISABLE": "1"})
    logger.removeHandler(plain)
    logger.addHandler(terminal)
    return terminal


@dataclass(frozen=True)
class Known:
    """What the Snakefile knows of a run.

    cells: experiment -> id -> cell. targets: names that a user may type; files: that may stand there, too.
    ahead: the jobs that are not finished. behind: jobs -> these and all that wait for them. seconds_of: how
    long the job of a document is expected to take, and whether that is a guess. forget: called with each
    document of a finished job, before the next seconds_of. workers_of: how many a cell has. ending: the lines
    behind the last job. prints: whether jobs of an experiment, or of none, print, or run elsewhere.
    command: that starts this Snakemake again.
    """

    cells: Mapping[str, Mapping[str, Cell]] = field(default_factory=dict)
    targets: Sequence[str] = ()
    files: Callable[[], Iterable[str]] = tuple
    ahead: Callable[[], Iterable[Any]] = tuple
    behind: Callable[[Iterable[Any]], Iterable[Any]] = tuple
    seconds_of: Callable[[str], tuple[float, bool]] = lambda path: (0.0, False)
    forget: Callable[[str], None] = lambda path: None
    workers_of: Callable[[Cell], int | str] = lambda cell: cell.workers
    ending: Callable[[], Iterable[str]] = tuple
    prints: Callable[[str | None], bool] = lambda experiment: False
    command: str = "snakemake"

    @cached_property
    def labels(self) -> dict[str, str]:
        """Cell -> what it is called."""
        return {
            name: label for own in self.cells.values() for name, label in labels(own, self.workers_of).items()
        }


class Terminal(logging.Handler):
    """Prints what happens in a run. plain: Snakemake's handler. quiet: what --quiet names."""

    def __init__(self, plain: logging.StreamHandler, dryrun: bool = False, quiet: Iterable[str] = ()):
        # first: Python closes handlers that were half made, too
        self.held: logging.LogRecord | None = None
        self.over = threading.Event()
        super().__init__()
        self.name, self.plain, self.dryrun = STREAM, plain, dryrun
        self.quiet = {str(getattr(one, "name", one)).lower() for one in quiet}
        self.on_terminal, self.coloured = plain.stream.isatty(), not plain.nocolor
        self.known = Known()
        self.jobs: dict[int, logging.LogRecord] = {}
        self.counts: Counter[str] = Counter()
        self.done: Counter[tuple[str, ...]] = Counter()
        self.stages: set[tuple[str, ...]] = set()
        self.told: set[str] = set()
        self.cells: set[str] = set()
        self.measured, self.failed = 0, 0
        self.lost: set[int] = set()  # jobs that failed
        # seconds: of the first repeat and the last line; that repeats took, guessed jobs, and the guesses
        self.began_s, self.said_s, self.silent_s = 0.0, time.time(), SILENT_S
        self.busy_s, self.took_s, self.guessed_s = 0.0, 0.0, 0.0
        self.expected: dict[int, tuple[float, float]] = {}
        self.shows_status, self.wide = False, 0
        self.exit = ""
        self.interrupts, self.stopped_s, self.kills = 0, -TWICE_S, False

    def handle_signals(self, kills: bool) -> None:
        """Have SIGTERM, and Ctrl-C unless ignored, stop the jobs and end the run; a second kills the jobs.

        kills: whether the jobs run here. Others are stopped by commands, which a second signal leaves alone.
        Snakemake waits for its jobs at SIGTERM: call this again once it handles the signal.
        """
        self.kills = kills
        signal.signal(signal.SIGTERM, self.stop)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self.stop)

    def stop(self, number: int, frame: object) -> None:
        """Raise SystemExit at the first signal: Snakemake then ends, and Python prints nothing.

        The second kills the jobs; the third ends a Snakemake that hangs, and leaves its lock. Ctrl-C reaches
        the jobs from the terminal; SIGTERM may have been sent to this process alone.
        """
        if time.monotonic() - self.stopped_s < TWICE_S:
            return
        self.stopped_s, self.interrupts = time.monotonic(), self.interrupts + 1
        first = self.interrupts == 1
        jobs = psutil.Process().children(recursive=True) if self.kills else []
        if self.interrupts == 2:
            with suppress(RuntimeError, OSError):  # in the middle of another line, or without a terminal
                what = "Killing the jobs." if jobs else "Snakemake is ending."
                self.write(f"{what} Another signal ends Snakemake at once.")
        how = number if first else signal.SIGKILL
        for job in jobs if how != signal.SIGINT else ():
            with suppress(psutil.NoSuchProcess):
                job.send_signal(how)
        if first:
            raise SystemExit(128 + number)  # as shells have it
        if self.interrupts > 2:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    def emit(self, record: logging.LogRecord) -> None:
        """Print a message of Snakemake's logger; a full disk or a lost terminal does not end the run."""
        try:
            self.print(record)
        except BrokenPipeError:
            raise
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        if self.held:
            self.plain.handle(self.held)
            self.held = None
        self.over.set()
        super().close()

    def print(self, record: logging.LogRecord) -> None:
        """Print a message in our words where there are any."""
        event, held, self.held = getattr(record, "event", None), self.held, None
        if held and event != "job_error":
            self.plain.handle(held)
        self.exit = ended(str(held.msg)) if held else ""
        if event == "error" and FAILED_JOB in str(record.msg):  # the job's own error, with its log, is next
            self.held = record
            return
        try:
            lines = self.lines(record)
        except Exception:  # what goes wrong here must hide nothing
            lines = None
        if lines is None:
            self.clear()
            self.plain.handle(record)
        elif "all" not in self.quiet or record.levelno >= logging.ERROR:
            for line in lines:
                self.write(line)

    def lines(self, record: logging.LogRecord) -> list[str] | None:
        """Return what is printed for a message; None if it is none that is known."""
        event, text = getattr(record, "event", None), str(record.msg or "")
        if event is None:
            return self.said(record, text)
        if event in SILENT:
            return []
        if event == COUNTED:
            self.counts = Counter(record.stats)
            return self.planned() if self.dryrun and self.jobs else []
        if event == "job_info":
            return self.started(record)
        if event == "job_finished":
            job = self.jobs.pop(record.job_id, None)
            return None if job is None else self.finished(job) if job.rule_name in STAGE_OF else []
        if event == "job_error":
            return self.stopped(record)
        return self.refused(text, record.exception) if event == "error" else None

    def said(self, record: logging.LogRecord, text: str) -> list[str] | None:
        """Return the lines for a message without an event."""
        if getattr(record, "of_gpufeed", False):
            return text.split("\n")
        if text.startswith(NOTHING):
            return [text, *self.known.ending()]
        if text.startswith(STOPPED):
            self.failed += 1
            return ["Stopping the jobs."]
        if text.startswith(LOG):
            return [f"Snakemake's log: {text.removeprefix(LOG)}"] if self.failed else []
        return [] if NOISE.match(text) else None

    def planned(self) -> list[str]:
        """Return the jobs of a dry run, those of the largest stages first."""
        self.jobs.clear()  # once: Snakemake counts before and behind the jobs
        counts: Counter[tuple[str, ...]] = Counter()
        for name, count in self.counts.items():
            if name in STAGE_OF:
                counts[STAGE_OF[name]] += count
        first = [(stage, count) for stage, count in counts.most_common() if STAGES[stage][0]][:3]
        said = [at_work(stage, count).lower() for stage, count in first]
        if others := counts.total() - sum(count for _, count in first):
            said.append(plural(others, "other"))
        whole = plural(counts.total(), "job")
        return [f"{whole} to run: {'; '.join(said)}. `snakemake -np` lists each with its reason."]

    def started(self, job: logging.LogRecord) -> list[str] | None:
        """Return the line of a stage at its first job."""
        if job.rule_name not in STAGE_OF and job.rule_name not in self.known.targets:
            return None
        self.jobs[job.jobid] = job
        self.lost.discard(job.jobid)  # tried again
        if job.rule_name not in STAGE_OF:
            return []
        stage = STAGE_OF[job.rule_name]
        if self.dryrun or self.is_quiet:
            return []
        self.expected[job.jobid] = self.expected_of(job.output)  # before its document is there
        ahead = self.ahead()
        count = sum(self.counts[rule] for rule in stage)
        if job.rule_name == "measure_cell":
            self.began_s = self.began_s or job.created
            if not self.known.prints(job.wildcards["experiment"]):
                self.status(f"now: {self.name_of(job)}, {counted(job.wildcards['repeat'])}")
            if not job.wildcards["repeat"].isdecimal():
                stage = AGAIN
            repeats = [one.wildcards_dict["repeat"] for one in ahead if one.rule.name == "measure_cell"]
            count = sum(repeat.isdecimal() == (stage != AGAIN) for repeat in repeats) or count
        if stage in self.stages or not STAGES[stage][0]:
            return []
        self.stages.add(stage)
        why = ", since other processes used the cores" * (stage == AGAIN)
        left = self.time_left(ahead) if job.rule_name == "measure_cell" else ""
        return [f"{at_work(stage, count)}{why}{left}"]

    def finished(self, job: logging.LogRecord) -> list[str]:
        """Return the line of a result, where it has one."""
        stage, took_s = STAGE_OF[job.rule_name], time.time() - job.created
        _, guess = self.expected.pop(job.jobid, (0.0, 0.0))
        found = [document for path in job.output if path.endswith(".json") and (document := read(path))]
        for path in job.output:
            self.known.forget(path)
        if job.rule_name == "measure_cell":
            self.measured, self.busy_s = self.measured + 1, self.busy_s + took_s
        self.done[stage] += 1
        ended = next((one for one in found if one.get("status") in ENDED), None)
        if guess and found and not ended and not any(one.get("resumed") for one in found):
            self.took_s, self.guessed_s = self.took_s + took_s, self.guessed_s + guess
        if ended:
            self.failed += ended["status"] == "failed"
            return self.unmeasured(job, ended["status"], str(ended.get("sentence")))
        if job.rule_name != "measure_cell":
            whole = sum(self.counts[rule] for rule in stage)
            verb, noun = STAGES[stage]
            if verb and whole > 1:
                self.status(f"{verb} {noun}{'s' if noun else ''}: {self.done[stage]} of {whole} done")
            return []
        if self.is_quiet:
            return []
        rest = [one for one in self.ahead() if one.jobid != job.jobid]
        rate = next((one["throughput"].get("images_per_s") for one in found if one.get("throughput")), None)
        said = "resumed, so without a rate" if rate is None else f"{rate:>9,.0f} images/s"
        name = self.name_of(job)
        again = rate is not None and not job.wildcards["repeat"].isdecimal()
        more = measured_again(job, found) if again else ""
        line = f"{self.count(rest, name)}  {name:{self.wide}}  {said}{more}{self.time_left(rest)}"
        if more or job.wildcards["cell"] not in self.cells:
            self.cells.add(job.wildcards["cell"])
            return [line]
        self.status(line)
        return self.block(job, rest)

    def ahead(self) -> list[Any]:
        """Return the jobs that can still run: none that failed, and none that waits for such a one."""
        jobs = [*self.known.ahead()]
        lost = {job.jobid for job in self.known.behind([job for job in jobs if job.jobid in self.lost])}
        return [job for job in jobs if job.jobid not in lost]

    def report_long_jobs(self) -> None:
        """Print now and then what runs, until the handler is closed."""
        while not self.over.wait(SILENT_S / 4):
            with suppress(Exception), self.lock:  # such as a lost terminal, or jobs that change meanwhile
                self.report_long_job(time.time())

    def report_long_job(self, now: float) -> None:
        """Print the job that has run for longest, if nothing was printed for a while."""
        jobs = [job for job in self.jobs.values() if STAGES.get(STAGE_OF.get(job.rule_name), ("",))[0]]
        if not jobs or self.dryrun or self.is_quiet or now - self.said_s < self.silent_s:
            return
        job = min(jobs, key=lambda job: job.created)
        named = job.wildcards or {}
        if self.known.prints(named.get("experiment")):
            return
        stage, name, repeat = STAGE_OF[job.rule_name], self.name_of(job), named.get("repeat")
        what = f"{STAGES[stage][0].split()[0]} {name}" if name else at_work(stage, 1)
        what = f"{what[0].lower()}{what[1:]}{f', {counted(repeat)}' if repeat else ''}"
        line = f"  {what}: {lasting(now - job.created)} so far{self.time_left(self.ahead())}"
        silent_s = self.silent_s * LONGER
        (self.status if self.on_terminal else self.write)(line)
        self.silent_s = silent_s

    def unmeasured(self, job: logging.LogRecord, status: str, sentence: str) -> list[str]:
        """Return why a result failed or was skipped: once a cell, and of what a node lacks once a reason."""
        name, failed = self.name_of(job), status == "failed"
        key = f"{name} {sentence}" if failed else sentence.rstrip(".")
        if key in self.told or (not failed and any(told in sentence for told in self.told)):
            return []
        self.told.add(key)
        log = f" (log: {job.log[0]})" if failed and job.log else ""
        return [self.paint(f"{name} {status}: {sentence}{log}", RED if failed else YELLOW)]

    def count(self, rest: Iterable[Any], name: str) -> str:
        """Return how many of this run's repeats are done. rest: the jobs ahead. name: of this one's cell."""
        cells = [job.wildcards_dict["cell"] for job in rest if job.rule.name == "measure_cell"]
        names = [name, *(self.known.labels.get(cell, "") for cell in cells)]
        self.wide = min(44, max(self.wide, *map(len, names)))
        whole = self.measured + len(cells)
        return f"[{self.measured:>{len(str(whole))}}/{whole}]"

    def block(self, job: logging.LogRecord, rest: Iterable[Any]) -> list[str]:
        """Return a line that follows the last cell of a repeat, when all cells have it; else none."""
        experiment, repeat = job.wildcards["experiment"], job.wildcards["repeat"]
        same = {"experiment": experiment, "repeat": repeat}.items()
        if not repeat.isdecimal() or any(same <= (one.wildcards_dict or {}).items() for one in rest):
            return []
        done = f"{self.count(rest, '')}  {experiment}: {counted(repeat)} of each cell is done"
        return [f"{done}{self.time_left(rest)}"]

    def stopped(self, error: logging.LogRecord) -> list[str]:
        """Return why a job failed, and where its log is; nothing of a job that Ctrl-C ended."""
        if self.interrupts:
            return []
        self.failed += 1
        self.lost.add(error.jobid)
        job = self.jobs.pop(error.jobid, None)
        logs = [path for path in error.log if os.path.exists(path)]
        why = (
            unsubmitted(str(error.rule_msg or ""))
            or self.exit
            or next(filter(None, map(reason, logs)), NO_WORD)
        )
        name = f": {self.name_of(job)}" if job else ""
        lines = [f"{error.rule_name} failed{name}", *(f"  {line}" for line in why.splitlines())]
        return [*(self.paint(line, RED) for line in lines), *(f"  log: {path}" for path in logs)]

    def refused(self, text: str, exception: str) -> list[str] | None:
        """Return an error of Snakemake in gpufeed's three lines, where it has them."""
        if self.failed and SOME_FAILED in text:
            return []  # Terminal.stopped has said which, and why
        target = TARGET.search(text)
        if exception == "MissingRuleException" and target and self.known.targets:
            return self.in_red(str(self.misspelt(target[1])))
        if exception == "LockException":
            return self.in_red(str(self.locked()))
        found = REFUSED.search(text)
        return self.in_red(found[0]) if found else None

    def locked(self) -> GpufeedError:
        """Return the error for a folder that another run works in, or was killed in."""
        return GpufeedError(
            f"the lock of another run in {Path.cwd()}",
            "one run at a time in a folder",
            f"wait for it; if none runs, the last one was killed: {self.known.command} --unlock",
        )

    def misspelt(self, target: str) -> GpufeedError:
        """Return the error for a target that is neither a name nor a file of a rule."""
        if "/" not in target and "." not in target:
            return unknown("target", target, self.known.targets, "the command line")
        near = get_close_matches(target, self.known.files(), n=1, cutoff=0.8)
        names = f"a file that a rule makes, or one of: {', '.join(self.known.targets)}"
        return GpufeedError(
            f"no rule makes {target}", names, f"write {near[0]}" if near else "name an experiment"
        )

    def in_red(self, text: str) -> list[str]:
        return [self.paint(line.strip(), RED) for line in text.splitlines()]

    @property
    def is_quiet(self) -> bool:
        """Whether --quiet asks for no progress."""
        return bool(self.quiet & {"all", "progress", "rules"})

    def name_of(self, job: logging.LogRecord) -> str:
        """Return what a job is about: its cell by its label, else what its wildcards say."""
        named = dict(job.wildcards.items()) if job.wildcards else {}
        if named.get("cell") in self.known.labels:
            return self.known.labels[named["cell"]]
        return next(
            (named[key] for key in ("loader", "decoder", "dataset", "experiment") if key in named), ""
        )

    def expected_of(self, paths: Iterable[str]) -> tuple[float, float]:
        """Return how long a job takes, by its documents: the seconds that are known, and those guessed."""
        found = [self.known.seconds_of(path) for path in paths]
        guessed = sum(seconds for seconds, guess in found if guess)
        return sum(seconds for seconds, _ in found) - guessed, guessed

    def time_left(self, rest: Iterable[Any]) -> str:
        """Return how long the jobs ahead take; nothing where that would be a guess.

        Guesses are corrected by what the finished jobs took that had been guessed. Repeats take turns, but on
        several GPUs or nodes: as many are taken to run at a time as did so far.
        """
        now, left_s = time.time(), 0.0
        for job in rest:
            known, guess = self.expected_of(job.output)
            if guess and not self.guessed_s:
                return ""
            seconds = known + (guess and guess * self.took_s / self.guessed_s)
            begun = self.jobs.get(job.jobid)
            left_s += max(0.0, seconds - (now - begun.created)) if begun else seconds
        left_s /= max(1.0, self.busy_s / max(now - self.began_s, 1e-3))  # repeats at a time
        return self.paint(f"  about {lasting(left_s)} left", DIM) if left_s >= 1 else ""

    def paint(self, text: str, colour: int) -> str:
        return f"\033[{colour}m{text}\033[0m" if self.coloured else text

    def status(self, text: str) -> None:
        """Show a line that the next one overwrites; nothing without a terminal."""
        if self.on_terminal and not self.is_quiet:
            self.clear()
            text = COLOURED.sub("", text)[: shutil.get_terminal_size().columns - 1]
            self.plain.stream.write(f"{text}\r")
            self.plain.flush()
            self.shows_status, self.said_s = True, time.time()

    def clear(self) -> None:
        if self.shows_status:
            self.plain.stream.write("\033[K")
            self.shows_status = False

    def write(self, line: str) -> None:
        self.clear()
        self.plain.stream.write(f"{line}\n")
        self.plain.flush()
        self.said_s, self.silent_s = time.time(), SILENT_S

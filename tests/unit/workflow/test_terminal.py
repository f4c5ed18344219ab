"""What a run prints, event by event, and that it hides nothing."""

import io
import json
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from gpufeed.core.cells import Cell
from gpufeed.core.repeats import counting, machine
from gpufeed.workflow.terminal import STREAM, TWICE_S, Known, Terminal, installed

CELLS = {
    "a": Cell("e", "d", "dataloader_workers", workers=2, augment="torch"),
    "b": Cell("e", "d", "resident", augment="torch"),
}
SECONDS = 10.0  # that every record is expected to take


class Screen:
    """A Terminal on a made-up screen. ahead: the jobs that are not finished."""

    def __init__(self, folder, tty=False, **settings):
        self.stream, self.folder, self.ahead = io.StringIO(), folder, []
        self.stream.isatty = lambda: tty
        plain = logging.StreamHandler(self.stream)
        plain.setFormatter(logging.Formatter("plain %(message)s"))
        plain.nocolor = not tty
        self.terminal = Terminal(plain, **settings)
        self.terminal.known = Known(
            cells={"e": CELLS},
            targets=["all", "e", "pipelining"],
            files=lambda: ["results/report.html", "results/report-e.html"],
            ahead=lambda: self.ahead,
            seconds_of=lambda path: (SECONDS, True) if "/records/" in path else (0.0, False),
            ending=lambda: ["the leaderboard"],
            command="snakemake --configfile mine.yaml",
        )

    def send(self, message="", event=None, level=logging.INFO, **fields):
        """Log a message as Snakemake does, and return what is printed for it."""
        before = len(self.stream.getvalue())
        record = logging.makeLogRecord({"msg": message, "levelno": level, "event": event, **fields})
        self.terminal.handle(record)
        return self.stream.getvalue()[before:]

    def job(self, number, rule="measure_cell", cell="a", repeat="0", **document):
        """Plan a job, whose document is written if there are words for it, and return its event."""
        path = self.folder / f"records/e/{cell}/{repeat}.json"
        if document:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(document))
        wildcards = {"experiment": "e", "cell": cell, "repeat": repeat}
        job = {"jobid": number, "rule_name": rule, "wildcards": wildcards, "output": [str(path)]}
        name = SimpleNamespace(name=rule)
        ahead = SimpleNamespace(jobid=number, rule=name, wildcards_dict=wildcards, output=[str(path)])
        self.ahead.append(ahead)
        return {**job, "log": [str(self.folder / "a.log")], "event": "job_info"}

    def finish(self, number):
        said = self.send(event="job_finished", job_id=number)
        self.ahead = [job for job in self.ahead if job.jobid != number]
        return said


def rate(images_per_s):
    return {"status": "done", "sentence": None, "throughput": {"images_per_s": images_per_s}}


def measured_beside(share, cpu="a CPU"):
    """What a record says of its machine, and of the cores that other processes used; None: unknown."""
    about = {"environment": {"gpu": None, "cpu": cpu, "stack": "cpu", "versions": {"torch": "2"}}}
    return about | {"resolved": {"batch_size": 8}, "telemetry": {"host": {"others_cpu_share": share}}}


@pytest.fixture
def screen(tmp_path):
    return lambda **settings: Screen(tmp_path, **settings)


def test_a_cell_is_one_line_and_its_later_repeats_one_a_block(screen):
    ours = screen()
    ours.send(event="run_info", stats={"measure_cell": 4})
    jobs = [
        ours.job(1, cell="a", **rate(1234.4)),
        ours.job(2, cell="b", **rate(567)),
        ours.job(3, cell="a", repeat="1", **rate(1)),
        ours.job(4, cell="b", repeat="1", **rate(2)),
    ]
    assert ours.send(**jobs[0]) == "Measuring 4 repeats\n"
    assert ours.send(**jobs[1]) == ""
    ours.terminal.jobs[1].created -= 100  # the first took ten times what was expected
    ours.terminal.began_s -= 100
    assert ours.finish(1) == "[1/4]  dataloader_workers, 2 workers      1,234 images/s  about 5 min left\n"
    assert ours.finish(2).split("  about")[0] == "[2/4]  resident                             567 images/s"
    for job in jobs[2:]:
        ours.send(**job)
    assert ours.finish(3) == ""
    assert ours.finish(4) == "[4/4]  e: repeat 2 of each cell is done\n"


def test_a_disturbed_repeat_is_told_with_the_rate_that_it_replaces(screen):
    ours = screen()
    ours.send(event="run_info", stats={"measure_cell": 2})
    shares = {("a", "0"): 0.5, ("a", "0-again"): 0.1, ("b", "0"): 0.5, ("b", "0-again"): 0.6}
    jobs = [
        ours.job(n, cell=cell, repeat=repeat, **measured_beside(share), **rate(289 + n))
        for n, ((cell, repeat), share) in enumerate(shares.items())
    ]
    for number in (0, 2):
        ours.send(**jobs[number])
        ours.finish(number)
    assert ours.send(**jobs[1]).startswith("Measuring once more 2 repeats, since other processes used the ")
    assert ours.send(**jobs[3]) == ""
    assert "290 images/s  repeat 1 again: it was 289 while other processes ran" in ours.finish(1)
    assert ours.finish(3).endswith(
        "292 images/s  repeat 1 again, not shown to be quieter: the first counts, 291\n"
    )


@pytest.mark.parametrize(
    ("second", "said"),
    [
        ({"share": 0.1}, "it was 100 while other processes ran"),
        ({"share": None}, "not shown to be quieter: the first counts, 100"),
        ({"share": 0.1, "cpu": "another"}, "on another machine: the first counts, 100"),
    ],
)
def test_which_of_two_measurements_counts_is_decided_as_the_report_does(screen, second, said):
    ours = screen()
    ours.job(1, **measured_beside(0.5), **rate(100))
    again = ours.job(2, repeat="0-again", **measured_beside(**second), **rate(200))
    records = {
        path: (machine(record), record["telemetry"])
        for path in map(Path, [ours.ahead[0].output[0], *again["output"]])
        for record in [json.loads(path.read_text())]
    }
    (counts,) = counting(records)
    ours.send(**again)
    assert f"repeat 1 again{', ' if 'first' in said else ': '}{said}\n" in ours.finish(2)
    assert (counts.stem == "0") == ("the first counts" in said)


def test_jobs_that_ran_side_by_side_before_the_repeats_leave_their_time_as_it_is(screen):
    ours = screen()
    ours.terminal.known = Known(ahead=lambda: ours.ahead, seconds_of=lambda path: (600.0, False))
    downloads = [ours.job(number, rule="download", status="done") for number in range(10, 20)]
    for job in downloads:
        ours.send(**job)
        ours.terminal.jobs[job["jobid"]].created -= 600
    for job in downloads:
        ours.finish(job["jobid"])
    repeats = [ours.job(number, cell=cell, **rate(1)) for number, cell in ((1, "a"), (2, "b"), (3, "a"))]
    assert ours.send(**repeats[0]).endswith("about 30 min left\n")
    assert ours.send(**repeats[1]) == ""  # on another GPU
    for number in (1, 2):
        ours.terminal.jobs[number].created -= 600
    ours.terminal.began_s -= 600
    ours.finish(1)
    assert ours.finish(2).endswith("about 5 min left\n")  # two at a time


@pytest.mark.parametrize(
    "document",
    [{"status": "skipped", "sentence": "No GPU."}, {"status": "done", "resumed": [3], "throughput": None}],
)
def test_a_cell_that_was_not_measured_from_its_start_corrects_no_guess(screen, document):
    ours = screen()
    for job in (ours.job(1, **document), ours.job(2, cell="b", **rate(1)), ours.job(3, repeat="1")):
        ours.send(**job)
    ours.finish(1)
    assert ours.terminal.guessed_s == 0
    ours.terminal.jobs[2].created -= 60
    ours.terminal.began_s -= 60
    assert ours.finish(2).endswith("about 60 s left\n")  # what the one of `b` took


def test_what_failed_and_what_waits_for_it_is_no_longer_ahead(screen):
    ours = screen()
    jobs = [ours.job(number, cell=cell, **rate(1)) for number, cell in enumerate("abba", 1)]
    ours.terminal.known = Known(
        ahead=lambda: ours.ahead,
        behind=lambda lost: [one for one in ours.ahead if lost and one.jobid in (1, 4)],
        seconds_of=lambda path: (600.0, False),
    )
    for job in jobs[:3]:
        ours.send(**job)
    failed = {**jobs[0], "event": "job_error", "level": logging.ERROR, "rule_msg": "gone"}
    ours.send(**failed)
    said = ours.finish(2)
    assert said.startswith("[1/2] ")
    assert said.endswith("about 10 min left\n")
    ours.send(**jobs[0])  # tried again
    assert len(ours.terminal.ahead()) == 3


def test_documents_of_finished_jobs_are_forgotten_before_the_next_time_left(screen):
    ours, asked = screen(), []
    ours.terminal.known = Known(
        ahead=lambda: ours.ahead,
        seconds_of=lambda path: asked.append("seconds") or (9.0, False),
        forget=lambda path: asked.append(path),
    )
    jobs = [ours.job(number, cell=cell, **rate(1)) for number, cell in enumerate("ab", 1)]
    ours.send(**jobs[0])
    asked.clear()
    ours.finish(1)
    assert asked == [*jobs[0]["output"], "seconds"]


def test_a_long_job_is_told_of_now_and_then(screen):
    for ours in (screen(), screen(tty=True)):
        ours.send(**ours.job(1))
        ours.terminal.report_long_job(time.time())
        before = len(ours.stream.getvalue())
        for silent_s, told in ((25, True), (25, False), (35, True)):
            ours.terminal.said_s -= silent_s
            ours.terminal.jobs[1].created -= silent_s
            ours.terminal.report_long_job(time.time())
            said, before = ours.stream.getvalue()[before:], len(ours.stream.getvalue())
            assert ("measuring dataloader_workers, 2 workers, repeat 1: " in said) == (told or "\r" in said)


@pytest.mark.parametrize("settings", [{"dryrun": True}, {"quiet": ["progress"]}, {"quiet": ["all"]}])
def test_no_long_job_is_told_of_with_quiet_or_in_a_dry_run(screen, settings):
    ours = screen(**settings)
    ours.send(**ours.job(1))
    ours.terminal.report_long_job(time.time() + 99)
    assert ours.stream.getvalue() == ""


def test_a_long_job_of_no_experiment_is_told_of_by_its_stage(screen):
    ours, asked = screen(), []
    ours.terminal.known = Known(cells={"e": CELLS}, prints=lambda experiment: asked.append(experiment))
    ours.send(**ours.job(1, rule="build_extension") | {"wildcards": {}, "output": []})
    ours.terminal.jobs[1].created -= 40
    ours.terminal.report_long_job(ours.terminal.jobs[1].created + 40)
    assert "Compiling kernels\n" in ours.stream.getvalue()
    ours.terminal.said_s -= 40
    ours.terminal.report_long_job(ours.terminal.jobs[1].created + 40)
    assert ours.stream.getvalue().endswith("  compiling kernels: 40 s so far\n")
    assert asked == [None]


def test_a_time_that_is_known_is_left_as_it_is(screen):
    ours = screen()
    ours.terminal.known = Known(ahead=lambda: ours.ahead, seconds_of=lambda path: (200.0, False))
    first, second = ours.job(1), ours.job(2, cell="b")
    assert ours.send(**first) == "Measuring 2 repeats  about 7 min left\n"
    assert ours.send(**second) == ""


def test_a_skipped_cell_says_what_it_lacks_once_and_a_failed_one_where_its_log_is(screen):
    ours = screen()
    lacks = "Loader ffcv needs the package ffcv, which this node lacks: make ffcv."
    for number, cell in ((1, "a"), (2, "b")):
        ours.send(**ours.job(number, cell=cell, status="skipped", sentence=lacks))
    assert ours.finish(1) == f"dataloader_workers, 2 workers skipped: {lacks}\n"
    assert ours.finish(2) == ""
    for number, cell, repeat in ((3, "a", "1"), (4, "b", "1"), (5, "a", "2")):
        ours.send(**ours.job(number, cell=cell, repeat=repeat, status="failed", sentence="RuntimeError: no."))
    said = ours.finish(3)
    assert said.startswith("dataloader_workers, 2 workers failed: RuntimeError: no. (log: ")
    assert said.endswith("a.log)\n")
    assert ours.finish(4).startswith("resident failed: RuntimeError: no.")
    assert ours.finish(5) == ""


def test_a_failed_job_is_told_with_reason_and_log_and_snakemake_s_words_for_it_are_not(screen, tmp_path):
    ours = screen()
    log = tmp_path / "a.log"
    log.write_text(
        "2026 INFO begins\nTraceback (most recent call last):\n  File x\nValueError: inner\n"
        "The above exception\nRuntimeError: too many\n"
    )
    ours.send(**ours.job(1))
    told = {"event": "error", "level": logging.ERROR, "exception": "RuleException"}
    failed = {"event": "job_error", "level": logging.ERROR, "rule_name": "measure_cell", "rule_msg": None}
    failed |= {"jobid": 1, "log": [str(log)]}  # all that Snakemake says of it
    assert ours.send("RuleException:\nCalledProcessError in file x", **told) == ""
    assert ours.send(**failed) == (
        f"measure_cell failed: dataloader_workers, 2 workers\n  RuntimeError: too many\n  log: {log}\n"
    )
    log.write_text("2026 ERROR stopped: found: 4 images\nexpected: 5\nwhat to do: fetch one\n")
    assert "  found: 4 images\n  expected: 5\n  what to do: fetch one\n" in ours.send(**failed)
    slurm = {**failed, "rule_msg": "SLURM-job '7' failed, SLURM status is: 'OUT_OF_MEMORY'."}
    assert "OUT_OF_MEMORY" in ours.send(**slurm)
    killed = "CalledProcessError in file x:\nCommand 'y' returned non-zero exit status 137."
    assert ours.send(killed, **told) == ""
    assert "  Killed (signal 9)\n" in ours.send(**failed)
    log.unlink()
    assert "log: " not in ours.send(**failed)
    assert ours.send("At least one job did not complete successfully.", **told) == ""
    assert ours.send("CalledProcessError in file y", **told) == ""
    assert ours.send("Select jobs to execute...") == "plain CalledProcessError in file y\n"


def test_an_error_of_ours_is_its_three_lines_and_any_other_as_snakemake_prints_it(screen):
    ours = screen()
    error = {"event": "error", "level": logging.ERROR, "exception": "WorkflowError"}
    text = "WorkflowError in file x, line 1:\nnothing\nfound: a\nexpected: b\nwhat to do: c\n  File x, line 1"
    assert ours.send(text, **error) == "found: a\nexpected: b\nwhat to do: c\n"
    locked = ours.send("LockException:\nlocked", **(error | {"exception": "LockException"}))
    assert "the lock of another run" in locked
    assert locked.endswith("--configfile mine.yaml --unlock\n")
    some = "At least one job did not complete successfully."
    assert ours.send(some, **error) == f"plain {some}\n"  # none was told


@pytest.mark.parametrize(
    ("target", "remedy"),
    [
        ("pipelinig", "write 'pipelining' instead"),
        ("results/reprot.html", "write results/report.html"),
        ("results/nothing_like_it.csv", "name an experiment"),
    ],
)
def test_a_misspelt_target_is_answered_with_the_nearest(screen, target, remedy):
    text = f"MissingRuleException:\nNo rule to produce {target} (if you use input functions make sure)."
    said = screen().send(text, "error", logging.ERROR, exception="MissingRuleException")
    found, expected, what = said.splitlines()
    assert target in found
    assert "all, e, pipelining" in expected
    assert what == f"what to do: {remedy}"


def test_what_is_not_known_is_printed_as_snakemake_does(screen):
    ours = screen()
    assert ours.send("a new warning", level=logging.WARNING) == "plain a new warning\n"
    assert ours.send("rules", "an_event_to_come") == "plain rules\n"
    assert ours.send("Rule: of another workflow", **ours.job(1, rule="align")).startswith("plain Rule")
    assert ours.send("Finished", "job_finished", job_id=1) == "plain Finished\n"
    assert ours.send("broken", "job_info") == "plain broken\n"  # lacks all that such an event has
    assert ours.send("Select jobs to execute...") == ours.send("1 of 3 steps", "progress") == ""
    assert ours.send("ours\nof two lines", of_gpufeed=True) == "ours\nof two lines\n"
    assert ours.send("", of_gpufeed=True) == "\n"


def test_the_end_is_told_where_nothing_was_to_be_done_and_the_log_of_snakemake_after_a_failure(screen):
    ours = screen()
    assert (
        ours.send("Nothing to be done (all there).") == "Nothing to be done (all there).\nthe leaderboard\n"
    )
    assert ours.send("Complete log(s): /x.log") == ""
    assert "Stopping" in ours.send("Terminating processes on user request, this might take")
    assert ours.send("Complete log(s): /x.log") == "Snakemake's log: /x.log\n"


def test_a_dry_run_ends_with_its_jobs(screen):
    ours = screen(dryrun=True)
    counts = {
        "event": "run_info",
        "stats": {
            "measure_cell": 12,
            "gate": 2,
            "gate_tuned": 1,
            "plot": 1,
            "tabulate": 1,
            "advise": 1,
            "all": 1,
        },
    }
    assert ours.send(**counts) == ""
    assert ours.send(**ours.job(1)) == ""
    said = ours.send(**counts)
    for hint in ("Some jobs were triggered by provenance information, see", "Rules with "):
        assert ours.send(f"{hint}provenance triggered jobs: advise") == ""
    stages = "measuring 12 repeats; checking the samples of 3 loaders; writing tables, figures and report"
    assert said.startswith(f"18 jobs to run: {stages}; 1 other. ")
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("quiet", [["rules", "progress"], ["all"]])
def test_quiet_leaves_errors(screen, quiet):
    ours = screen(quiet=quiet)
    job = ours.job(1, **rate(5))
    assert ours.send(**job) == ours.finish(1) == ""
    failed = {**job, "event": "job_error", "level": logging.ERROR, "rule_msg": "gone", "jobid": 7}
    assert "gone" in ours.send(**failed)


def test_a_terminal_shows_the_repeat_at_work_in_colours_and_a_file_shows_neither(screen):
    ours = screen(tty=True)
    job = ours.job(1, status="failed", sentence="It broke.")
    assert "now: dataloader_workers, 2 workers, repeat 1\r" in ours.send(**job)
    assert ours.finish(1).startswith("\033[31m")
    plain = screen()
    plain.send(**plain.job(1, status="failed", sentence="It broke."))
    assert "\033" not in plain.finish(1)


def test_a_terminal_counts_the_checks_that_are_done_and_a_file_does_not(screen):
    for ours in (screen(tty=True), screen()):
        ours.send(event="run_info", stats={"gate": 3})
        for number in (1, 2):
            ours.send(**ours.job(number, rule="gate", status="done", sentence=None))
        counts = [f"Checking the samples of loaders: {done} of 3 done\r" for done in (1, 2)]
        for number, count in zip((1, 2), counts, strict=True):
            assert (count in ours.finish(number)) == ours.terminal.on_terminal


@pytest.mark.parametrize(
    ("changes", "replaced"),
    [({}, True), ({"verbose": True}, False), ({"printshellcmds": True}, False), ({"main": False}, False)],
)
def test_it_replaces_snakemake_s_handler_alone_and_not_where_all_is_asked_for(changes, replaced, monkeypatch):
    monkeypatch.setattr(os, "environ", {})
    asked = {"printshellcmds": False, "verbose": False, "debug_dag": False, "dryrun": False, "quiet": None}
    workflow = SimpleNamespace(
        is_main_process=changes.pop("main", True), output_settings=SimpleNamespace(**(asked | changes))
    )
    logger, plain = logging.Logger("made up"), logging.StreamHandler(io.StringIO())
    plain.nocolor = False
    plain.name = "another"
    logger.addHandler(plain)
    assert installed(workflow, logger) is None
    assert logger.handlers == [plain]
    plain.name = STREAM
    found = installed(workflow, logger)
    assert (found is not None) is replaced
    assert logger.handlers == [found or plain]
    assert os.environ == ({"GPUFEED_QUIET": "1", "TQDM_DISABLE": "1"} if replaced else {})


def test_no_color_holds_for_snakemake_s_own_words_too(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    settings = SimpleNamespace(printshellcmds=True, verbose=False, debug_dag=False, dryrun=False, quiet=None)
    logger, plain = logging.Logger("made up"), logging.StreamHandler(io.StringIO())
    plain.name, plain.nocolor = STREAM, False
    logger.addHandler(plain)
    assert installed(SimpleNamespace(is_main_process=True, output_settings=settings), logger) is None
    assert plain.nocolor


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_and_the_next_one_kills_its_jobs(tmp_path, monkeypatch, number):
    monkeypatch.setattr(signal, "getsignal", lambda number: signal.default_int_handler)
    handlers = {}
    monkeypatch.setattr(signal, "signal", handlers.__setitem__)
    screen = Screen(tmp_path)
    screen.terminal.handle_signals(kills=True)
    hears = "import signal, time; signal.signal(signal.SIGTERM, lambda *_: print('heard', flush=True))"
    loop = "; print('ready', flush=True)\nwhile True: time.sleep(0.1)"
    job = subprocess.Popen([sys.executable, "-c", hears + loop], stdout=subprocess.PIPE, text=True)
    assert job.stdout.readline() == "ready\n"
    monkeypatch.setattr(psutil, "Process", lambda: SimpleNamespace(children=lambda recursive: [job]))
    with pytest.raises(SystemExit) as ended:
        handlers[number](number, None)
    assert ended.value.code == 128 + number
    if number == signal.SIGTERM:  # Ctrl-C reaches jobs from the terminal
        assert job.stdout.readline() == "heard\n"
    handlers[number](number, None)  # the same signal, to the group
    time.sleep(TWICE_S)
    assert job.poll() is None
    handlers[number](number, None)
    assert job.wait(10) == -signal.SIGKILL
    assert job.stdout.read() == ""
    assert screen.stream.getvalue() == "Killing the jobs. Another signal ends Snakemake at once.\n"
    sent = []
    monkeypatch.setattr(signal, "raise_signal", lambda number: sent.append((number, handlers[number])))
    handle = handlers[number]
    time.sleep(TWICE_S)
    handle(number, None)
    assert sent == [(number, signal.SIG_DFL)]
    assert screen.send(**{**screen.job(1), "event": "job_error", "rule_msg": "gone"}) == ""


def test_a_full_disk_does_not_end_the_run(tmp_path, monkeypatch):
    screen, errors = Screen(tmp_path), []

    def full(text):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(screen.stream, "write", full)
    monkeypatch.setattr(screen.terminal, "handleError", errors.append)
    screen.send("Nothing to be done", None)
    assert [error.msg for error in errors] == ["Nothing to be done"]

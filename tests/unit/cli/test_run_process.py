"""The process of gpufeed run: what it lets through to the terminal, what stopped it, and how it ends."""

import os
import signal
import sys
import threading
import time

import psutil
import pytest
from process_fixtures import left_after
from workflow_fixtures import wait_until

from gpufeed.cli import run_process
from gpufeed.cli.run_process import INTERRUPTED, Run

TABLE = "Expected minutes, one job after another:\n  own  1.5  4 repeats\n  disk: 1 MiB\n"
REFUSED = "found: 4 of 60 images\n  first.jpg: bad\nexpected: at most 0.1 %\nwhat to do: fetch them again"
JOB = "RuleException:\nCalledProcessError in file x:\nWorkflowError:\nAt least one job did not complete."
LOCK = "LockException:\nError: Directory cannot be locked."


def printing(text: str, status: int = 1) -> list[str]:
    return [sys.executable, "-c", f"import sys; print({text!r}); sys.exit({status})"]


def test_the_terminal_gets_the_estimate_alone(tmp_path, capsys):
    text = f"Building DAG of jobs...\n{TABLE}Host memory: too little.\nJob stats:\n  all  1\n    input: a\n"
    assert Run(printing(text, 0), tmp_path).follow(lambda: None) == 0
    assert capsys.readouterr().out == f"{TABLE}Host memory: too little.\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{REFUSED}\n{JOB}\n2026 ERROR stopped: {REFUSED}\n", REFUSED),
        (
            f"Traceback (most recent call last):\n  File x\nRuntimeError: too many\n{JOB}",
            "RuntimeError: too many",
        ),
        (f"torch.OutOfMemoryError: no room\n{JOB}", "torch.OutOfMemoryError: no room"),
        ("killed", "killed"),
        ("", "Snakemake ended without a word"),
    ],
)
def test_the_sentence_is_that_of_the_job(tmp_path, text, said):
    run = Run(printing(text, 3), tmp_path)
    assert run.follow(lambda: None) == 3
    assert run.sentence() == said


def test_a_lock_is_told_with_the_command_that_takes_it_away(tmp_path):
    run = Run(printing(LOCK), tmp_path)
    run.follow(lambda: None)
    found, expected, remedy = run.sentence().splitlines()
    assert "the lock of another run" in found
    assert expected.endswith("one run at a time in a folder")
    assert remedy.endswith("--unlock")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_process_and_those_that_it_has_started(tmp_path, number, monkeypatch):
    """Each ignores SIGINT, as no Snakemake does: after the patience they are killed."""
    monkeypatch.setattr(run_process, "PATIENCE_S", 0.5)
    code = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN)"
    code += "; print(1, flush=True); time.sleep(99)"
    both = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {code!r}]); {code}"
    run, started = Run([sys.executable, "-c", both], tmp_path), []
    others = psutil.Process().children(recursive=True)  # of tests before this one
    before = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
    inherited = signal.signal(number, before)  # tests that run in the background ignore SIGINT

    def interrupt():
        wait_until(lambda: run.log.exists() and run.log.read_text().count("1") == 2)
        started.extend(set(psutil.Process().children(recursive=True)).difference(others))
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=interrupt)
    thread.start()
    began = time.monotonic()
    assert run.follow(lambda: None) == INTERRUPTED
    thread.join()
    assert len(started) == 2
    assert not left_after(10, started)
    assert time.monotonic() - began < 60
    assert signal.getsignal(number) == before
    signal.signal(number, inherited)

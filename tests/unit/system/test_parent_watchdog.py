"""A process that notices that those who started it have gone."""

import subprocess
import sys
import time

import psutil
import pytest
from data_fixtures import REPOSITORY
from process_fixtures import left_after

from gpufeed.system import parent_watchdog

LOOKS = """
import sys, time
sys.path.insert(0, {root!r})
from gpufeed.system import parent_watchdog
{watch}
print("ready", flush=True)
while {runs}:
    time.sleep(0.02)
print("alone", flush=True)
"""


def said_by_an_orphan(code: str) -> str:
    """What code says after the outer one of its two shells is killed, until the last process has ended."""
    outer = 'sh -c \'"$0" -c "$1"; true\' "$0" "$1"; true'
    shell = subprocess.Popen(["sh", "-c", outer, sys.executable, code], stdout=subprocess.PIPE, text=True)
    with shell.stdout:
        assert shell.stdout.readline() == "ready\n"
        shell.kill()
        said = shell.stdout.read()
    shell.wait()
    return said


@pytest.mark.parametrize(
    ("watch", "runs", "says"),
    [
        ("all_run = parent_watchdog.family(2)", "all_run()", "alone\n"),
        ("parent_watchdog.end_with(2)", "True", ""),  # it ends without a word
    ],
)
def test_the_end_of_an_ancestor_is_noticed(watch, runs, says):
    assert said_by_an_orphan(LOOKS.format(root=str(REPOSITORY), watch=watch, runs=runs)) == says


def test_one_that_was_asked_to_end_has_time_for_it():
    code = f"""
import os, signal, sys, time
sys.path.insert(0, {str(REPOSITORY)!r})
from gpufeed.system import sigterm_handler, parent_watchdog
all_run = parent_watchdog.family(2)
parent_watchdog.end_with(2)
with sigterm_handler.handling():
    os.kill(os.getpid(), signal.SIGTERM)
    print("ready", flush=True)
    while all_run():
        time.sleep(0.02)
    time.sleep(4 * parent_watchdog.LOOK_S)
    print("kept", flush=True)
time.sleep(60)
print("outlived them", flush=True)
"""
    assert said_by_an_orphan(code) == "kept\n"


def test_one_that_ends_between_two_looks_has_ended(monkeypatch):
    child = subprocess.Popen(["sleep", "60"])
    watched = psutil.Process(child.pid)
    assert parent_watchdog.runs(watched)

    def still_running(process):
        child.kill()
        child.wait()
        return True

    monkeypatch.setattr(psutil.Process, "is_running", still_running)
    assert not parent_watchdog.runs(watched)


# two shells for Snakemake and the shell of its job; the outer one tells its number
JOB = 'export GPUFEED_SNAKEMAKE=$$:$2; sh -c \'"$0" -c "$1"; true\' "$0" "$1"; true'
WAITS = f"""
import os, subprocess, sys
sys.path.insert(0, {str(REPOSITORY)!r})
print("started", flush=True)
told = sys.stdin.readline().strip()
from gpufeed.system import parent_watchdog
"""


def started(code: str, namespace: int | None = None) -> subprocess.Popen:
    """A job that has begun, and waits for a line before it looks for its Snakemake."""
    namespace = parent_watchdog.pid_namespace() if namespace is None else namespace
    shell = subprocess.Popen(
        ["sh", "-c", JOB, sys.executable, WAITS + code, str(namespace)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert shell.stdout.readline() == "started\n"
    return shell


def goes_on(job: subprocess.Popen, told: str = "") -> str:
    """What it says from then on, until it has ended."""
    with job.stdin, job.stdout:
        job.stdin.write(told + "\n")
        job.stdin.flush()
        said = job.stdout.read()
    job.wait()
    return said


LASTS = """
parent_watchdog.end_unless(parent_watchdog.snakemake_runs())
print("works", flush=True)
import time
time.sleep(3 * parent_watchdog.LOOK_S)
print("done", flush=True)
"""


def test_a_job_works_while_its_snakemake_runs():
    assert goes_on(started(LASTS)) == "works\ndone\n"


def test_a_job_whose_snakemake_went_before_it_looked_ends_at_once():
    job = started(LASTS)
    job.kill()
    job.wait()
    assert goes_on(job) == ""


def test_a_job_and_its_helpers_end_with_a_snakemake_that_goes_while_it_works():
    job = started(
        """
parent_watchdog.end_unless(parent_watchdog.snakemake_runs())
print(subprocess.Popen(["sleep", "60"]).pid, flush=True)
import time
time.sleep(60)
"""
    )
    with job.stdin, job.stdout:
        job.stdin.write("\n")
        job.stdin.flush()
        helper = psutil.Process(int(job.stdout.readline()))
        job.kill()
        assert left_after(10, [helper]) == []
        assert job.stdout.read() == ""  # read to its end: the job has ended, too
    job.wait()


def test_a_later_process_with_the_number_of_snakemake_is_another():
    job = started(
        """
parent_watchdog.os.environ[parent_watchdog.VARIABLE] = f"{told}:{parent_watchdog.pid_namespace()}"
parent_watchdog.end_unless(parent_watchdog.snakemake_runs())
print("works", flush=True)
"""
    )
    time.sleep(0.05)  # the kernel's clock of processes has ticks of 10 ms
    later = subprocess.Popen(["sleep", "60"])
    try:
        assert goes_on(job, str(later.pid)) == ""
    finally:
        later.kill()
        later.wait()


@pytest.mark.parametrize("orphaned", [False, True])
def test_a_job_that_has_process_numbers_of_its_own_watches_whom_it_sees(orphaned):
    """As in a container with them: the number of Snakemake means another process there, or none."""
    job = started(LASTS, namespace=parent_watchdog.pid_namespace() + 1)
    with job.stdin, job.stdout:
        job.stdin.write("\n")
        job.stdin.flush()
        assert job.stdout.readline() == "works\n"
        if orphaned:
            job.kill()
        assert job.stdout.read() == ("" if orphaned else "done\n")
    job.wait()

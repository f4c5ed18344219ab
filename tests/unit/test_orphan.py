"""A process that notices that those who started it have gone."""

import subprocess
import sys

import psutil
import pytest
from data_fixtures import REPOSITORY

from gpufeed import orphan

LOOKS = """
import sys, time
sys.path.insert(0, {root!r})
from gpufeed import orphan
{watch}
print("ready", flush=True)
while {runs}:
    time.sleep(0.02)
print("alone", flush=True)
"""


@pytest.mark.parametrize(
    ("watch", "runs", "says"),
    [
        ("all_run = orphan.family(2)", "all_run()", "alone\n"),
        ("orphan.end_with(2)", "True", ""),  # it ends without a word
    ],
)
def test_the_end_of_an_ancestor_is_noticed(watch, runs, says):
    code = LOOKS.format(root=str(REPOSITORY), watch=watch, runs=runs)
    outer = (
        'sh -c \'"$0" -c "$1"; true\' "$0" "$1"; true'  # two shells, of which the outer one will be killed
    )
    shell = subprocess.Popen(["sh", "-c", outer, sys.executable, code], stdout=subprocess.PIPE, text=True)
    with shell.stdout:
        assert shell.stdout.readline() == "ready\n"
        shell.kill()
        assert shell.stdout.read() == says  # read to its end: the last process has ended
    shell.wait()


def test_one_that_was_asked_to_end_has_time_for_it():
    code = f"""
import os, signal, sys, time
sys.path.insert(0, {str(REPOSITORY)!r})
from gpufeed import notice, orphan
all_run = orphan.family(2)
orphan.end_with(2)
with notice.heeded():
    os.kill(os.getpid(), signal.SIGTERM)
    print("ready", flush=True)
    while all_run():
        time.sleep(0.02)
    time.sleep(4 * orphan.LOOK_S)
    print("kept", flush=True)
time.sleep(60)
print("outlived them", flush=True)
"""
    outer = 'sh -c \'"$0" -c "$1"; true\' "$0" "$1"; true'
    shell = subprocess.Popen(["sh", "-c", outer, sys.executable, code], stdout=subprocess.PIPE, text=True)
    with shell.stdout:
        assert shell.stdout.readline() == "ready\n"
        shell.kill()
        assert shell.stdout.read() == "kept\n"
    shell.wait()


def test_one_that_ends_between_two_looks_has_ended(monkeypatch):
    child = subprocess.Popen(["sleep", "60"])
    watched = psutil.Process(child.pid)
    assert orphan.runs(watched)

    def still_running(process):
        child.kill()
        child.wait()
        return True

    monkeypatch.setattr(psutil.Process, "is_running", still_running)
    assert not orphan.runs(watched)

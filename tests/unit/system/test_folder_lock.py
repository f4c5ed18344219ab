"""Whose lock is removed from the folder of a run, and whose is not."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from process_fixtures import wait_until

from gpufeed.system import folder_lock


@pytest.fixture
def locks(tmp_path, monkeypatch):
    """Lock files of a process that is gone, on record, and one of another run."""
    monkeypatch.chdir(tmp_path)
    folder = Path(".snakemake/locks")
    folder.mkdir(parents=True)
    found = [folder / name for name in ("0.input.lock", "0.output.lock", "1.input.lock")]
    for path in found:
        path.write_text("a\n")
    folder_lock.record(found[:2], jobs_end_with_it=True)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    changed({"pid": gone.pid})
    return found


def changed(values):
    owner = json.loads(folder_lock.OWNER.read_text())
    folder_lock.OWNER.write_text(json.dumps(owner | values))


def test_the_lock_of_a_process_that_is_gone_is_removed_and_no_other(locks):
    folder_lock.remove_stale()
    assert [path.exists() for path in locks] == [False, False, True]
    folder_lock.remove_stale()


@pytest.mark.parametrize(
    "values",
    [
        {"pid": os.getpid()},
        {"place": ["another boot", 1]},
        {"place": None},
        {"pid": "1"},
        {"pid": 2**70},
        {"pid": os.getpid(), "began": None, "files": None},
    ],
)
def test_the_lock_of_a_process_that_may_run_stays(locks, values):
    changed(values)
    folder_lock.remove_stale()
    assert all(path.exists() for path in locks)


def test_a_process_that_has_the_id_of_the_one_that_is_gone_does_not_hold_its_lock(locks):
    _, began = folder_lock.state_and_start("self")
    changed({"pid": os.getpid(), "began": began - 1})
    folder_lock.remove_stale()
    assert [path.exists() for path in locks] == [False, False, True]


@pytest.mark.parametrize("hidden", [False, True])
def test_the_lock_of_a_living_process_of_another_user_stays(locks, monkeypatch, hidden):
    """/proc shows it, or hides it as with hidepid=2."""

    def refuse(pid, number):
        raise PermissionError

    def hide(pid):
        raise FileNotFoundError

    monkeypatch.setattr(os, "kill", refuse)
    if hidden:
        monkeypatch.setattr(folder_lock, "state_and_start", hide)
    changed({"pid": os.getpid()})
    folder_lock.remove_stale()
    assert all(path.exists() for path in locks)


def test_a_zombie_holds_no_lock(locks):
    with subprocess.Popen([sys.executable, "-c", ""]) as zombie:
        wait_until(lambda: folder_lock.state_and_start(zombie.pid)[0] == "Z")
        changed({"pid": zombie.pid, "began": folder_lock.state_and_start(zombie.pid)[1]})
        folder_lock.remove_stale()
    assert [path.exists() for path in locks] == [False, False, True]


@pytest.mark.parametrize("text", ["", "[]", '{"place": 1}', "\udcff"])
def test_a_broken_record_leaves_the_locks(locks, text):
    folder_lock.OWNER.write_text(text, errors="surrogateescape")
    folder_lock.remove_stale()
    assert all(path.exists() for path in locks)


def test_a_run_whose_jobs_outlive_it_leaves_no_record(locks):
    for _ in range(2):
        folder_lock.record(locks, jobs_end_with_it=False)
        assert not folder_lock.OWNER.exists()
    folder_lock.remove_stale()
    assert all(path.exists() for path in locks)


def test_a_lock_of_the_same_name_that_was_written_later_stays(locks):
    locks[0].unlink()
    locks[0].write_text("of a run that has just begun")
    os.utime(locks[0], ns=(1, 1))
    folder_lock.remove_stale()
    assert [path.exists() for path in locks] == [True, False, True]

"""Whose lock is removed from the folder of a run, and whose is not."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

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
    folder_lock.record(found[:2])
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


@pytest.mark.parametrize("values", [{"pid": os.getpid()}, {"place": ["another boot", 1]}, {"place": None}])
def test_the_lock_of_a_process_that_may_run_stays(locks, values):
    changed(values)
    folder_lock.remove_stale()
    assert all(path.exists() for path in locks)


def test_a_process_that_has_the_id_of_the_one_that_is_gone_does_not_hold_its_lock(locks):
    changed({"pid": os.getpid(), "began_s": 0.0})
    folder_lock.remove_stale()
    assert [path.exists() for path in locks] == [False, False, True]


def test_a_lock_of_the_same_name_that_was_written_later_stays(locks):
    locks[0].unlink()
    locks[0].write_text("of a run that has just begun")
    os.utime(locks[0], ns=(1, 1))
    folder_lock.remove_stale()
    assert [path.exists() for path in locks] == [True, False, True]

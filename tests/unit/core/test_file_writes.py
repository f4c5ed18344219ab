"""A disk that is full, or that may not be written to, wherever results are written: three lines."""

import errno
import os
import subprocess
from contextlib import suppress
from pathlib import Path

import pandas as pd
import pytest
import torch
from data_fixtures import files_below, files_of_at_most
from record_fixtures import cell, unfinished, write
from workflow_fixtures import Named, run_script

from gpufeed.benchmarks.inference import exported_files as exports
from gpufeed.benchmarks.saved_models.model_file import save
from gpufeed.benchmarks.saved_models.predictions_output import whole_file
from gpufeed.core import compose, retry_policy
from gpufeed.core.errors import GpufeedError, one_line
from gpufeed.core.file_writes import whole, write_whole
from gpufeed.core.folders import unwritable
from gpufeed.system.job_log import job_log
from gpufeed.tracking.epoch_tracking import COLUMNS, write_metrics
from gpufeed.training.checkpoints import CHECKPOINT, Checkpoints
from gpufeed.training.distributed.rank_files import write_result

ROOM = 64 * 2**10
MANY = torch.zeros(ROOM)
NAMES = {"checkpoint": CHECKPOINT, "result of ranks": "result.pt"}


def steps(path: Path) -> None:
    with whole(path) as partial:
        pd.DataFrame({"wait_s": torch.rand(ROOM).numpy()}).to_parquet(partial)


def predictions(path: Path) -> None:
    with whole_file(path) as file:
        file.write("x" * ROOM)


WRITERS = {
    "record": lambda path: unfinished(cell(), "failed", "x" * ROOM).write(path),
    "steps": steps,
    "cell": lambda path: compose.write_cell(path, cell(), "x" * ROOM),
    "table or figure": lambda path: write_whole(path, "x" * ROOM),
    "metrics": lambda path: write_metrics(path, [dict.fromkeys((*COLUMNS, "accuracy"))] * ROOM),
    "model": lambda path: save({}, torch.nn.Linear(ROOM, 1), path),
    "checkpoint": lambda path: Checkpoints(path.parent, 1).write(lambda partial: torch.save(MANY, partial)),
    "predictions": predictions,
    "result of ranks": lambda path: write_result(path.parent, MANY),
}


@pytest.fixture
def disk(tmp_path):
    """A folder that is a disk of its own, with ROOM."""
    folder = tmp_path / "results"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={ROOM}", "tmpfs", folder]
    with suppress(FileNotFoundError):
        if not subprocess.run(command, capture_output=True).returncode:
            yield folder
            subprocess.run(["umount", "--lazy", folder], check=True)
            return
    pytest.skip("this user may mount no file system")


def fill(folder: Path) -> None:
    left = os.statvfs(folder)
    with (folder / "all of it").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, left.f_bavail * left.f_frsize)


def read_only(folder: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", folder], check=True)


def told(capsys, *words: str) -> None:
    """Asserts that the job has said three lines and nothing else, with these words in them."""
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in lines] == ["found", "expected", "what to do"]
    assert all(word in "".join(lines) for word in words), lines


@pytest.mark.parametrize("what", WRITERS)
def test_what_does_not_fit_ends_the_job_and_leaves_what_was_there(what, tmp_path, capsys):
    path = tmp_path / "results" / NAMES.get(what, "made")
    path.parent.mkdir()
    path.write_text("before")
    with pytest.raises(SystemExit, match="1"), job_log(tmp_path / "log"), files_of_at_most(ROOM // 2):
        WRITERS[what](path)
    told(capsys, "File too large", str(path.parent))
    assert files_below(path.parent) == {path.name: b"before"}


@pytest.mark.parametrize("what", WRITERS)
def test_a_full_disk_ends_the_job_and_leaves_what_was_there(what, disk, capsys):
    path = disk / NAMES.get(what, "made")
    path.write_text("before")
    with pytest.raises(SystemExit, match="1"), job_log(disk / "log"):
        WRITERS[what](path)
    told(capsys, "No space left on device", str(disk))
    assert files_below(disk).keys() == {path.name, "log"}
    assert path.read_text() == "before"


@pytest.mark.parametrize("what", WRITERS)
def test_a_disk_that_may_not_be_written_to_ends_the_job(what, disk, tmp_path, capsys):
    read_only(disk)
    with pytest.raises(SystemExit, match="1"), job_log(tmp_path / "log"):
        WRITERS[what](disk / "made")
    told(capsys, "Read-only file system", str(disk))


@pytest.mark.parametrize("number", [errno.EDQUOT, errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_job_answers_in_three_lines_whatever_it_was_writing(number, tmp_path, capsys):
    with pytest.raises(SystemExit, match="1"), job_log(tmp_path / "log"):
        raise OSError(number, os.strerror(number), str(tmp_path / "results/made"))
    told(capsys, os.strerror(number), "results")


def test_another_error_of_a_job_keeps_its_traceback(tmp_path):
    with pytest.raises(RuntimeError, match="odd"), job_log(tmp_path / "log"), whole(tmp_path / "made"):
        raise RuntimeError("odd")
    assert files_below(tmp_path).keys() == {"log"}


@pytest.mark.parametrize("what", ["folder", "pipe", "/dev/null", "/dev/stdout", ""])
def test_only_a_regular_file_is_ever_replaced(what, tmp_path, monkeypatch):
    """The rename of a whole file would replace /dev/null itself where the user is root."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    before = os.lstat(what or ".")
    renamed = []
    monkeypatch.setattr(os, "replace", lambda *names: renamed.append(names))
    with pytest.raises(GpufeedError, match="no regular file"):
        write_whole(what, "x")
    assert not renamed
    assert os.path.samestat(os.lstat(what or "."), before)
    assert sorted(os.listdir()) == ["folder", "pipe"]


def test_an_export_that_does_not_fit_is_a_row_that_says_so(tmp_path):
    def outcome(work):
        try:
            return "done", None, work()
        except Exception as error:
            return "failed", one_line(error), None

    with files_of_at_most(ROOM):
        found = exports.row("program", tmp_path, lambda path: torch.save(MANY, path), outcome)
    assert "no room to write" in found["sentence"]
    assert not files_below(tmp_path)


def tabulate(folder: Path, records: list[Path]) -> None:
    run_script(
        "tabulate",
        input=Named(records=[str(path) for path in records]),
        output=Named(cells=str(folder / "tables/cells.csv"), batches=str(folder / "tables/batches.csv")),
        log=[str(folder / "logs/tabulate.log")],
    )


def test_a_script_on_a_full_disk_says_so_where_not_even_its_log_has_room(disk, tmp_path, capsys):
    records = write(tmp_path / "elsewhere", unfinished(cell(), "failed", "y"))
    (disk / "tables").mkdir()
    (disk / "logs").mkdir()
    fill(disk)
    with pytest.raises(SystemExit, match="1"):
        tabulate(disk, records)
    told(capsys, "No space left on device")
    assert {name for name, data in files_below(disk).items() if data} == {"all of it"}


def test_a_script_in_results_that_may_not_be_written_to_says_so(disk, tmp_path, capsys):
    records = write(tmp_path / "elsewhere", unfinished(cell(), "failed", "y"))
    read_only(disk)
    with pytest.raises(SystemExit, match="1"):
        tabulate(disk, records)
    told(capsys, "Read-only file system", "logs")


def test_results_that_may_not_be_written_to_are_told_before_the_first_job(disk):
    assert unwritable(disk / "later") is None
    read_only(disk)
    assert str(disk) in unwritable(disk / "later").found
    assert "--config results=FOLDER" in unwritable(disk).remedy


def test_only_data_that_a_run_adds_to_must_be_writable(disk, tmp_path):
    read_only(disk)
    assert unwritable(tmp_path, disk, [str(tmp_path / "tables/cells.csv")]) is None
    refused = unwritable(tmp_path, disk, [str(disk / "synthetic/manifest.parquet")])
    assert str(disk) in refused.found
    assert "--config data=FOLDER" in refused.remedy


def test_the_number_of_an_attempt_is_written_whole_or_not_at_all(disk, capsys):
    record = disk / "0.json"
    retry_policy.ended(record, 1)
    fill(disk)
    with pytest.raises(SystemExit, match="1"), job_log(disk / "log"):
        retry_policy.ended(record, 2)
    told(capsys, "No space left on device")
    assert retry_policy.counter(record).read_text() == "1\n"

"""gpufeed run: one command from a folder of images, or a Dataset, to the leaderboard and the report."""

import re
import signal
import subprocess
import time
from pathlib import Path
from urllib.parse import unquote, urlparse

import psutil
import pytest
import yaml
from process_fixtures import left_after, wait_until, words
from run_fixtures import make_folder, measured, run, start

pytestmark = pytest.mark.slow
FEW = ("--size", "32", "--steps", "4", "--gpus", "0", "--quick")


@pytest.fixture
def folder(tmp_path):
    return make_folder(tmp_path)


def test_one_command_measures_a_folder_and_goes_on_after_an_interrupt(folder, photographs):
    model, loaders = "my_model.py:Net", ("dataloader_sync", "slow_loader.py:Slow", "torchvision_cuda")
    asked = (str(photographs), "--model", model, *FEW, "--loaders", *loaders)
    process = start(folder, *asked)
    wait_until(lambda: any("prepare_dataset" in " ".join(words(one)) for one in family(process)))
    started = family(process)
    for _ in range(2):  # the second one does not wait for the jobs
        process.send_signal(signal.SIGINT)
        time.sleep(0.2)
    out, err = process.communicate(timeout=100)
    assert (process.returncode, err) == (130, "")
    assert out.endswith("\nStopped.\n")
    assert out.count("the same command resumes") == 1
    assert "Traceback" not in out
    assert not left_after(10, started)

    out = run(folder, *asked)  # Snakemake has unlocked the folder
    assert measured(folder) == {(loader, model, "done") for loader in (*loaders[:2], "replay")}
    assert out.startswith("On a CPU a repeat has 4 steps of 8 images")
    assert "Expected minutes" in out
    assert f"{model} on " in out
    assert len(re.findall(r"^\[[123]/3\]  \S.* [\d,]+ images/s", out, re.MULTILINE)) == 3
    rows = re.findall(r"^(\d| )  (\S+) +([\d,.]+) +(.*\S) +-  1$", out, re.MULTILINE)
    assert [rank for rank, *_ in rows] == ["1", "2", " "]
    assert {name for _, name, *_ in rows} == {"dataloader_sync", "slow_loader.py:Slow", "replay"}
    assert rows[-1][1] == "replay"
    assert rows[-1][3] == "the limit"
    report = Path(unquote(urlparse(out.strip().splitlines()[-1].removeprefix("Report: ")).path))
    assert report == (folder / "results/run/report.html").resolve()
    assert "slow_loader.py:Slow" in report.read_text()
    assert str(photographs / "train") in report.read_text()  # in the script to paste
    written = yaml.safe_load((folder / "results/run/config.yaml").read_text())
    assert written["experiments"]["own"]["common"]["model"] == model


def family(process: subprocess.Popen) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)

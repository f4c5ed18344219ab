"""gpufeed run: one command from a folder of images, or a Dataset, to the leaderboard and the report."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlparse

import psutil
import pytest
import yaml
from process_fixtures import left_after, words
from test_plugins_workflow import files_of_the_page
from workflow_fixtures import ROOT, wait_until

pytestmark = pytest.mark.slow
LOADER = """
import time

from gpufeed.loaders.dataloader import SyncLoader


class Slow(SyncLoader):
    entry = {"windows": "given", "decoders": ["pillow", "torchvision_cpu"]}

    def batches(self, order):
        for batch in super().batches(order):
            time.sleep(0.01)
            yield batch
"""
FEW = ("--size", "32", "--batch-size", "8", "--steps", "4", "--gpus", "0", "--quick")


@pytest.fixture
def folder(tmp_path) -> Path:
    """The folder of a run: code of one's own, and a config whose repeats end as planned."""
    for name, text in {**files_of_the_page(), "slow_loader.py": LOADER}.items():
        (tmp_path / name).write_text(text)
    config = yaml.safe_load((ROOT / "config/config.yaml").read_text()) | {"least_s": 0, "telemetry": False}
    (tmp_path / "config").mkdir()
    (tmp_path / "config/config.yaml").write_text(yaml.safe_dump({**config, "run": [], "experiments": {}}))
    return tmp_path


def start(folder: Path, *arguments: str) -> subprocess.Popen:
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "gpufeed", "run", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(folder: Path, *arguments: str) -> str:
    """What the command prints; its records and its report are there then."""
    process = start(folder, *arguments)
    out, err = process.communicate(timeout=500)
    log = folder / "results/run/snakemake.log"
    assert process.returncode == 0, out + err + (log.read_text()[-4000:] if log.exists() else "")
    assert not err
    return out


def measured(folder: Path) -> set[tuple[str, str, str]]:
    paths = (folder / "results/run/records").rglob("*.json")
    records = [json.loads(path.read_text()) for path in paths]
    return {(record["cell"]["loader"], record["cell"]["model"], record["status"]) for record in records}


def test_one_command_measures_a_folder_and_goes_on_after_an_interrupt(folder, photographs):
    model, loaders = "my_model.py:Net", ("dataloader_sync", "slow_loader.py:Slow", "torchvision_cuda")
    asked = (str(photographs), "--model", model, *FEW, "--loaders", *loaders)
    process = start(folder, *asked)
    wait_until(lambda: any("prepare_dataset" in " ".join(words(one)) for one in family(process)))
    started = family(process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=100)
    assert (process.returncode, err) == (130, "")
    assert out.endswith("Stopped. What was measured is kept: the same command goes on.\n")
    assert not left_after(10, started)

    out = run(folder, *asked)  # Snakemake has unlocked the folder
    assert measured(folder) == {(loader, model, "done") for loader in (*loaders[:2], "replay")}
    assert "Expected minutes" in out
    assert len(re.findall(r"^\[[123]/3\] \S+: [\d,]+ images/s$", out, re.MULTILINE)) == 3
    rows = re.findall(r"^(\d| )  (\S+) +([\d,.]+) +(.*\S) +-  1$", out, re.MULTILINE)
    assert [rank for rank, *_ in rows] == ["1", "2", " "]
    assert {name for _, name, *_ in rows} == {"dataloader_sync", "slow_loader.py:Slow", "replay"}
    assert rows[-1][1] == "replay"
    assert rows[-1][3] == "the limit"
    report = Path(unquote(urlparse(out.strip().splitlines()[-1].removeprefix("Report: ")).path))
    assert report == (folder / "results/run/report.html").resolve()
    assert "slow_loader.py:Slow" in report.read_text()
    written = yaml.safe_load((folder / "results/run/config.yaml").read_text())
    assert written["experiments"]["own"]["common"]["model"] == model


def family(process: subprocess.Popen) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


LIBRARIES = [("my_data.py:Squares", "timm:resnet50"), ("synthetic", "torchvision:mobilenet_v3_small")]


@pytest.mark.parametrize(("data", "model"), LIBRARIES)
def test_a_dataset_of_a_file_and_models_of_libraries_are_measured(folder, data, model):
    out = run(folder, data, "--model", model, *FEW, "--loaders", "dataloader_sync")
    assert measured(folder) == {("dataloader_sync", model, "done"), ("replay", model, "done")}
    assert f"{model} on {data.partition(':')[0].removesuffix('.py')}" in out

"""results/reference/measure.py: blocks on several places of a node at once, from a clean clone."""

import json
import os
import subprocess
import sys

import pytest
import yaml
from workflow_fixtures import ROOT, TINY

MEASURE = "results/reference/measure.py"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A clean clone of this checkout's last commit."""
    folder = tmp_path_factory.mktemp("measure") / "checkout"
    subprocess.run(["git", "clone", "--quiet", ROOT, folder], check=True)
    return folder


def measured(checkout, *arguments) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    command = [sys.executable, checkout / MEASURE, *map(str, arguments)]
    return subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True)


def test_two_places_measure_a_block_each_with_one_verdict(checkout, tmp_path):
    config, work = tmp_path / "config.yaml", tmp_path / "work"
    config.write_text(yaml.safe_dump({**TINY, "data": str(tmp_path / "data"), "least_s": 0}))
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    both = ["--gpus", "", "", "--cores", 1, "--only", "{loader: [dataloader_sync]}"]
    done = measured(checkout, work, config, "tiny", *both)
    assert done.returncode == 0, done.stdout + done.stderr
    (cell,) = (work / "results/records/tiny").iterdir()
    records = [json.loads((cell / f"{block}.json").read_text()) for block in (0, 1)]
    assert [record["status"] for record in records] == ["done", "done"]
    assert [record["environment"]["cores_allowed"] for record in records] == [1, 1]
    assert not any(record["environment"]["dirty"] for record in records)
    (verdict,) = (work / "results/gate").rglob("*.json")
    assert json.loads(verdict.read_text())["status"] == "passed"


def test_it_refuses_changes_and_more_cores_than_there_are(checkout, tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(TINY))
    only = ["--only", "{loader: [resident]}"]
    few = measured(checkout, tmp_path / "work", config, "tiny", *only, "--cores", 10**4)
    assert (few.returncode, "10000 for each of 1 GPUs" in few.stderr) == (2, True)
    said = measured(checkout, tmp_path / "work", config, "tiny", "--only", "resident")
    assert (said.returncode, "expected axes with values" in said.stderr) == (2, True)
    (checkout / "README.md").write_text("changed")
    changed = measured(checkout, tmp_path / "work", config, "tiny", *only)
    assert (changed.returncode, "commit them" in changed.stderr) == (2, True)
    assert not (tmp_path / "work").exists()

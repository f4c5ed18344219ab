"""results/reference/measure.py: blocks on several places of a node at once, from a clean clone."""

import json
import os
import signal
import subprocess
import sys

import pytest
import yaml
from process_fixtures import wait_until
from workflow_fixtures import ROOT, TINY

MEASURE = "results/reference/measure.py"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A clean clone of this checkout's last commit."""
    folder = tmp_path_factory.mktemp("measure") / "checkout"
    subprocess.run(["git", "clone", "--quiet", ROOT, folder], check=True)
    return folder


def begun(checkout, *arguments) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    command = [sys.executable, checkout / MEASURE, *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=checkout, env=environment, **pipes)


def measured(checkout, *arguments) -> subprocess.CompletedProcess:
    process = begun(checkout, *arguments)
    out, err = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def of_folder(folder) -> list[int]:
    """Processes that run in it."""
    found = []
    for number in filter(str.isdigit, os.listdir("/proc")):
        try:
            found += [int(number)] * os.readlink(f"/proc/{number}/cwd").startswith(f"{folder}/")
        except OSError:  # it has ended, or is not ours
            continue
    return found


@pytest.mark.slow
def test_two_places_measure_a_block_each_with_one_verdict(checkout, tmp_path):
    config, work = tmp_path / "config.yaml", tmp_path / "work"
    config.write_text(yaml.safe_dump({**TINY, "data": str(tmp_path / "data"), "least_s": 0}))
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    both = ["--gpus", "", "", "--cores", 1, "--only", "{loader: [dataloader_sync]}"]
    done = measured(checkout, work, config, "tiny", *both, "--warm", "{loader: [dataloader_sync]}")
    assert done.returncode == 0, done.stdout + done.stderr
    judging = ["rule gate:" in (work / f"{name}.log").read_text() for name in ("gpu0", "gpu1", "warm")]
    assert judging == [True, False, False]  # two that write one verdict would spoil each other's
    (cell,) = (work / "results/records/tiny").iterdir()
    records = [json.loads((cell / f"{block}.json").read_text()) for block in (0, 1)]
    assert [record["status"] for record in records] == ["done", "done"]
    assert [record["environment"]["cores_allowed"] for record in records] == [1, 1]
    assert not any(record["environment"]["dirty"] for record in records)
    (verdict,) = (work / "results/gate").rglob("*.json")
    assert json.loads(verdict.read_text())["status"] == "passed"


@pytest.mark.slow
def test_who_stops_it_keeps_what_was_measured_and_nothing_goes_on(checkout, tmp_path):
    config, work = tmp_path / "config.yaml", tmp_path / "work"
    loaders = {"loaders": {"loader": ["resident", "replay"], "augment": "torch"}}
    tiny = {**TINY["experiments"]["tiny"], "blocks": loaders}
    asked = {**TINY, "data": str(tmp_path / "data"), "least_s": 300, "experiments": {"tiny": tiny}}
    config.write_text(yaml.safe_dump(asked))
    parts = ["--only", "{loader: [resident]}", "--only", "{loader: [replay]}"]
    process = begun(checkout, work, config, "tiny", "--gpus", "", "--cores", 1, *parts)
    try:
        wait_until(lambda: list(work.glob("gpu0/results/logs/measure_cell/*/*/0.log")), 300)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 1, err
    assert "replay" not in out  # whose block would have been next
    assert not of_folder(work)
    assert len(list((work / "results/gate").rglob("*.json"))) == 1


@pytest.mark.slow
def test_it_refuses_changes_and_more_cores_than_there_are(checkout, tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(TINY))
    only = ["--only", "{loader: [resident]}"]
    few = measured(checkout, tmp_path / "work", config, "tiny", *only, "--cores", 10**4)
    assert (few.returncode, "10000 for each of 1 GPUs" in few.stderr) == (2, True)
    said = measured(checkout, tmp_path / "work", config, "tiny", "--only", "resident")
    assert (said.returncode, "expected axes with values" in said.stderr) == (2, True)
    nowhere = measured(checkout, tmp_path / "work", tmp_path / "other.yaml", "tiny", *only, "--cores", 1)
    assert (nowhere.returncode, "found no file" in nowhere.stderr) == (2, True)
    twice = measured(checkout, tmp_path, config, "tiny", *only, "--cores", 1)
    assert (twice.returncode, "a folder that is made, for this run alone" in twice.stderr) == (2, True)
    (checkout / "README.md").write_text("changed")
    changed = measured(checkout, tmp_path / "work", config, "tiny", *only)
    assert (changed.returncode, "commit them" in changed.stderr) == (2, True)
    assert not (tmp_path / "work").exists()

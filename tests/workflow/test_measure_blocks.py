"""results/reference/measure.py: the next blocks of a tag on several places of a node at once."""

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
import yaml
from process_fixtures import wait_until
from workflow_fixtures import ROOT, TINY

MEASURE = "results/reference/measure.py"
TAG, STUBBED = "reference-test", "reference-stub"
TWICE = [{"experiment": "tiny", "blocks": ["loaders"], "n": 2, "minutes": 5}]
RUN = {**TINY, "least_s": 0, "use_instead": {}, "cache_decoder": "pillow", "reference": TWICE}
# in place of measure_cell.py, where it matters who measures what, and not what comes out
STUB = """
from pathlib import Path
Path(snakemake.output.record).write_text('{"status": "done"}')
Path(snakemake.output.steps).touch()
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A clone of this checkout's last commit, with a tag on it, a commit after that with another plan, and a
    second tag whose cells are not measured.
    """
    folder = tmp_path_factory.mktemp("measure") / "checkout"
    subprocess.run(["git", "clone", "--quiet", ROOT, folder], check=True)
    subprocess.run(["git", "tag", TAG], cwd=folder, check=True)
    own = ["-c", "user.name=x", "-c", "user.email=x@example.com"]
    script = folder / MEASURE
    script.write_text(script.read_text().replace(": block {number}", ": changed {number}"))
    subprocess.run(["git", *own, "commit", "--quiet", "-am", "later"], cwd=folder, check=True)
    (folder / "workflow/scripts/measure_cell.py").write_text(STUB)
    subprocess.run(["git", *own, "commit", "--quiet", "-am", "stub"], cwd=folder, check=True)
    subprocess.run(["git", "tag", STUBBED], cwd=folder, check=True)
    return folder


def begun(checkout, work, config, *arguments, tag=TAG) -> subprocess.Popen:
    path = work.with_name(f"{work.name}.yaml")
    path.write_text(yaml.safe_dump(config))
    asked = ["--tag", tag, "--config", path, "--gpus", "", *arguments]
    command = [sys.executable, checkout / MEASURE, work, *asked]
    if "--minutes" not in arguments:
        command += ["--minutes", 30]
    if "--cores" not in arguments:
        command += ["--cores", 1]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(list(map(str, command)), cwd=checkout, env=environment, **pipes)


def measured(checkout, work, config, *arguments, tag=TAG) -> subprocess.CompletedProcess:
    process = begun(checkout, work, config, *arguments, tag=tag)
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


def records_in(folder) -> dict[str, list]:
    """Number of the repeat -> its records."""
    found = {}
    for path in sorted(folder.glob("records/tiny/*/*.json")):
        found.setdefault(path.stem, []).append(json.loads(path.read_text()))
    return found


@pytest.mark.slow
def test_blocks_of_a_tag_one_machine_after_the_other(checkout, tmp_path):
    """Verdicts alone come first, beside each other. The second machine makes neither these nor the first's
    block again, and uses the time it has.
    """
    commit = subprocess.run(
        ["git", "rev-parse", TAG], cwd=checkout, check=True, capture_output=True, text=True
    ).stdout.strip()
    once, thrice = ({**RUN, "reference": [{**TWICE[0], "n": n}]} for n in (1, 3))
    cores = min(2, len(os.sched_getaffinity(0)))
    verdicts = measured(checkout, tmp_path / "verdicts", RUN, "--verdicts", "--cores", cores)
    assert verdicts.returncode == 0, verdicts.stdout + verdicts.stderr
    beside = [path.read_text().count("rule gate:") for path in (tmp_path / "verdicts").glob("gpu0*.log")]
    assert beside == [2 // cores] * cores
    assert len(list((tmp_path / "verdicts/results/gate").rglob("*.json"))) == 2
    assert records_in(tmp_path / "verdicts/results") == {}
    done = tmp_path / "done"
    shutil.copytree(tmp_path / "verdicts/results", done)
    first = measured(checkout, tmp_path / "first", once, "--done", done)
    assert first.returncode == 0, first.stdout + first.stderr
    assert "now    5.0 min  tiny loaders: block 0" in first.stdout  # the tag's words
    shutil.copytree(tmp_path / "first/results", done, dirs_exist_ok=True)
    assert {number: len(found) for number, found in records_in(done).items()} == {"0": 2}
    short = ["--minutes", 8]  # for one of five minutes, until it has taken less
    second = measured(checkout, tmp_path / "second", thrice, "--done", done, *short)
    assert second.returncode == 0, second.stdout + second.stderr
    assert "later  5.0 min  tiny loaders: block 2" in second.stdout
    shutil.copytree(tmp_path / "second/results", done, dirs_exist_ok=True)
    found = records_in(done)
    assert {number: len(block) for number, block in found.items()} == {"0": 2, "1": 2, "2": 2}
    for record in (record for block in found.values() for record in block):
        assert record["status"] == "done"
        assert record["environment"]["cores_allowed"] == 1
        assert (record["environment"]["commit"], record["environment"]["dirty"]) == (commit, False)
    assert len(list(done.glob("records/tiny/*/*.steps.parquet"))) == 6
    judging = [(tmp_path / f"{name}/gpu0.log").read_text() for name in ("verdicts", "first", "second")]
    assert ["rule gate:" in said for said in judging] == [True, False, False]
    third = measured(checkout, tmp_path / "third", RUN, "--done", done, "--list")
    assert "2 of 2 blocks done, 0 minutes left" in third.stdout
    assert not (tmp_path / "third").exists()


@pytest.mark.slow
def test_two_places_share_blocks_and_verdicts(checkout, tmp_path):
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    subprocess.run(["git", "bundle", "create", "-q", tmp_path / "bundle", STUBBED], cwd=checkout, check=True)
    both = ["--gpus", "", "", "--source", tmp_path / "bundle"]  # as on a machine without the repository
    work = tmp_path / "work"
    done = measured(checkout, work, RUN, *both, tag=STUBBED)
    assert done.returncode == 0, done.stdout + done.stderr
    judging = [(work / f"{name}.log").read_text().count("rule gate:") for name in ("gpu0", "gpu1")]
    assert judging == [1, 1]  # two that write one verdict would spoil each other's
    assert sorted(records_in(work / "results")) == ["0", "1"]
    assert len(list((work / "results/gate").rglob("*.json"))) == 2
    for name in ("gpu0", "gpu1"):
        assert len(records_in(work / name / "results")) == 1


@pytest.mark.slow
def test_models_are_made_before_the_block_that_measures_them(checkout, tmp_path):
    few = {"backends": ["eager"], "precisions": ["fp32"], "batch_sizes": [4], "calls": 4, "rounds": 2}
    asked = {"blocks": ["loaders"], **few, "seconds": 0.001, "calibration": {"images": 20}}
    tiny = {**TINY["experiments"]["tiny"], "inference": asked}
    part = {"experiment": "tiny", "results": "inferences", "only": {"loader": "resident"}}
    config = {**RUN, "experiments": {"tiny": tiny}, "reference": [{**part, "n": 1, "minutes": 2}]}
    done = measured(checkout, tmp_path / "work", config)
    assert done.returncode == 0, done.stdout + done.stderr
    told = [line.split(":")[1].strip() for line in done.stdout.splitlines() if line.startswith("gpu0: ")]
    assert told[:3] == ["data", "verdicts", "models"]
    assert len(list((tmp_path / "work/results/inference/tiny").glob("*.json"))) == 1
    assert not (tmp_path / "work/results/models").exists()


@pytest.mark.slow
def test_who_stops_it_keeps_whole_blocks_and_nothing_goes_on(checkout, tmp_path):
    part = {"experiment": "tiny", "n": 1, "minutes": 2}
    asked = [{**part, "only": {"loader": loader}} for loader in ("resident", "dataloader_sync")]
    work = tmp_path / "work"
    process = begun(checkout, work, {**RUN, "least_s": 300, "reference": asked})
    try:
        wait_until(lambda: list(work.glob("gpu0/results/logs/measure_cell/*/*/0.log")), 300)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 1, err
    assert "not whole" in out
    assert not of_folder(work)
    assert records_in(work / "results") == {}
    assert len(list((work / "results/gate").rglob("*.json"))) == 2


@pytest.mark.slow
def test_what_it_refuses(checkout, tmp_path):
    work = tmp_path / "work"
    few = measured(checkout, work, RUN, "--cores", 10**4)
    assert (few.returncode, "10000 for each of 1 GPUs" in few.stderr) == (2, True)
    untagged = measured(checkout, work, RUN, "--tag", "nowhere")
    assert (untagged.returncode, "found no tag nowhere" in untagged.stderr) == (2, True)
    twice = measured(checkout, work, RUN, "--gpus", "0", "0")
    assert (twice.returncode, "found a GPU twice" in twice.stderr) == (2, True)
    nowhere = measured(checkout, work, RUN, "--done", tmp_path / "other")
    assert (nowhere.returncode, "found no" in nowhere.stderr) == (2, True)
    assert not work.exists()
    work.mkdir()
    again = measured(checkout, work, RUN)
    assert (again.returncode, "a folder that is made, for this run alone" in again.stderr) == (2, True)

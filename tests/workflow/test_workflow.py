"""Whole runs of the workflow: from nothing to the report, again, and after a change."""

import copy
import ctypes
import os
import subprocess
import sys
import time

import pandas as pd
import pytest
from config_fixtures import merged
from data_fixtures import REPOSITORY
from workflow_fixtures import SHORT, TINY

from gpufeed.core.record import Record


def bare(folder):
    """The command for a Snakefile of one rule whose file is there, which it writes to `folder`."""
    folder.mkdir(exist_ok=True)
    (folder / "Snakefile").write_text("rule all:\n    input: 'there'\n")
    (folder / "there").touch()
    return [sys.executable, "-m", "snakemake", "--cores", "2"]


def seconds_of_nothing_to_do(command, folder):
    started = time.monotonic()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=280)
    assert "Nothing to be done" in done.stdout + done.stderr, done.stderr[-6000:]
    return time.monotonic() - started


def test_from_nothing_to_the_report(finished):
    found = [Record.read(path) for path in (finished / "results/records").glob("tiny/*/0.json")]
    assert {record.cell["loader"] for record in found} == {"dataloader_sync", "resident"}
    for record in found:
        assert record.status == "done", record.sentence
        assert record.throughput["images_per_s"] > 0
    cells = pd.read_csv(finished / "results/tables/tiny/cells.csv")
    assert set(cells["cell_id"]) == {record.cell_id for record in found}
    assert "Does it run?" in (finished / "results/report.html").read_text()


@pytest.mark.alone
def test_nothing_to_do_is_found_soon_and_one_change_measures_what_it_touches(measured):
    flow = measured(SHORT)
    flow.run()
    ours, alone = [], []
    for _ in range(3):
        ours.append(seconds_of_nothing_to_do(flow.command(), flow.folder))
        alone.append(seconds_of_nothing_to_do(bare(flow.folder / "bare"), flow.folder / "bare"))
        limit = max(5, 1.5 * min(alone))  # a machine where Snakemake itself needs long cannot show the 5 s
        if min(ours) < limit:
            break
    assert min(ours) < limit, f"runs with nothing to do took {ours} s, of a Snakefile of one rule {alone} s"

    changed = copy.deepcopy(SHORT)
    changed["experiments"]["tiny"]["blocks"]["loaders"]["loader"] = ["dataloader_sync"]
    changed["experiments"]["tiny"]["blocks"]["other"] = {
        "loader": "resident",
        "augment": "torch",
        "batch_size": 16,
    }
    flow.configure(changed)
    (new,) = flow.planned_records() - flow.files("results/records/**/*.json").keys()
    said = flow.run("-n")
    assert said.count("rule measure_cell:") == 1
    assert f"output: {new}" in said


@pytest.mark.slow
def test_new_places_for_the_same_data_and_telemetry_measure_nothing_again_and_new_code_does(measured):
    flow = measured({**SHORT, "archives": ["archives", "elsewhere"], "telemetry": True})
    module = flow.folder / "gpufeed/training/step.py"
    module.write_text(module.read_text() + "\n# a comment\n")
    assert "rule measure_cell" not in flow.run("-n", "--until", "measure_cell")
    module.write_text(module.read_text() + "\nEDITED = True\n")
    said = flow.run("-n", "--until", "measure_cell")
    assert "rule measure_cell" in said
    assert "rule prepare_dataset" not in said


def test_a_wrong_config_stops_before_anything_is_planned(workflow):
    flow = workflow({**TINY, "repeets": 1})
    said = flow.run("-n", ok=False)
    assert "found: key 'repeets'" in said
    assert "write 'repeats' instead" in said
    assert "Traceback" not in said


@pytest.mark.slow
def test_an_experiment_that_is_there_twice_stops_before_anything_is_planned(workflow):
    flow = workflow(TINY)
    file = flow.folder / "test.yaml"
    file.write_text(f"{file.read_text()}mine: {{}}\nmine: {{}}\n")
    said = flow.run("-n", ok=False)
    assert f"'mine' twice in {file}" in said
    assert "Traceback" not in said


@pytest.mark.slow
def test_a_run_elsewhere_has_its_data_and_results_there(workflow, tmp_path):
    flow = workflow(SHORT)
    before = set(flow.folder.rglob("*"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    snakefile, config = flow.folder / "Snakefile", flow.folder / "test.yaml"

    def run(*args):
        command = [sys.executable, "-m", "snakemake", *args, "--cores", "2", "-s", snakefile]
        command += ["--configfile", config]
        done = subprocess.run(command, cwd=elsewhere, capture_output=True, text=True, timeout=280)
        assert done.returncode == 0, done.stderr[-6000:]
        return done.stdout + done.stderr

    run("tiny", "--until", "prepare_dataset")
    assert (elsewhere / "data/synthetic/manifest.parquet").exists()
    said = run("report")
    assert f"report: {elsewhere}/results/report.html" in said
    assert f"snakemake tiny --cores 8 --resources gpu=1 --snakefile {snakefile} --configfile {config}" in said
    made = {path for path in flow.folder.rglob("*") if "__pycache__" not in path.parts}
    assert made <= before


def obey_permissions():
    """Takes from root what opens every folder to it (CAP_DAC_OVERRIDE); nothing from others."""
    ctypes.CDLL(None).prctl(24, 1, 0, 0, 0)  # PR_CAPBSET_DROP


@pytest.mark.slow
def test_a_clone_that_may_not_be_written_is_three_lines(workflow):
    flow = workflow(SHORT)
    flow.folder.chmod(0o555)
    try:
        done = subprocess.run(
            flow.command("-n"), cwd=flow.folder, capture_output=True, text=True, preexec_fn=obey_permissions
        )
    finally:
        flow.folder.chmod(0o755)
    said = done.stdout + done.stderr
    assert done.returncode == 1
    assert f"found: you may not write into {flow.folder}\n" in said
    assert f"snakemake -s {flow.folder}/Snakefile" in said
    assert "Traceback" not in said


LINES = (REPOSITORY / "docs/guide/measure.md").read_text().splitlines()
COMMANDS = [line.split("#")[0].split()[1:] for line in LINES if line.startswith("snakemake ")]
ONE_EXPERIMENT = [words for words in COMMANDS if words[1:] == ["--cores", "8", "--resources", "gpu=1"]]
OTHERS = [words for words in COMMANDS if words not in ONE_EXPERIMENT and "--report" not in words]


@pytest.mark.slow
@pytest.mark.parametrize("command", OTHERS, ids=" ".join)
def test_the_commands_of_the_docs_plan_as_they_stand(workflow, command):
    flow = workflow({})
    words = [os.path.expanduser(word) for word in command]  # as the shell gives them
    planned = [sys.executable, "-m", "snakemake", "-n", *words]
    result = subprocess.run(planned, cwd=flow.folder, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr
    of_files = "report" in command or "--" in command  # and of nothing that is measured
    assert ("jobs to run: measuring " in result.stdout) != of_files


@pytest.mark.slow
def test_every_shipped_experiment_plans_on_a_node_without_a_gpu(workflow):
    experiments = merged("config.yaml")["experiments"]
    assert len(experiments) > 5
    assert ONE_EXPERIMENT
    assert {experiment for experiment, *_ in ONE_EXPERIMENT} <= experiments.keys()
    small = {"imagenette": {"copies": 2, "limit": 1000}}  # for which any disk here has room
    said = workflow({"sources": small}).run("-n", *experiments)
    for experiment in experiments:
        assert f"results/report-{experiment}.html" in said
    assert "rule measure_cell" in said


@pytest.mark.slow
def test_the_notebook_prints_its_batches_as_they_come_and_what_two_workers_save(workflow):
    common = {"steps": 4, "batch_size": 4}
    small = {"noise_224": {"options": {"count": 16}}}
    notebook = {"repeats": 1, "common": common}
    flow = workflow({"run": ["notebook"], "sources": small, "experiments": {"notebook": notebook}})
    said = flow.run("notebook")
    printed = [line.split() for line in said.splitlines()]
    batches = [words for words in printed if len(words) == 5 and words[0] in ("1", "2", "3", "4", "mean")]
    assert [words[0] for words in batches] == ["1", "2", "3", "4", "mean"] * 2
    for *rows, mean in (batches[:5], batches[5:]):
        for column in range(1, 5):
            expected = sum(float(row[column]) for row in rows) / 4
            assert float(mean[column]) == pytest.approx(expected, abs=0.02)
    assert said.count("Setup check: torch") == 2
    assert 'From "without pipelining" to "with pipelining"' in said
    assert said.count("s per 1,000 batches") == 2
    table = (flow.folder / "results/tables/notebook/side_by_side.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in table[1:]] == ["without pipelining", "with pipelining"]
    assert "Side by side" in (flow.folder / "results/report-notebook.html").read_text()
    assert not list((flow.folder / "data/noise_224/images").glob("[!.]*"))

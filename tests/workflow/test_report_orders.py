"""`snakemake report` before, between and after runs: its page never passes for what was not measured."""

import json
import shutil

import pytest
from workflow_fixtures import SHORT, jobs_of

AFTER_A_CELL = {"find_disturbed": 1, "tabulate": 1, "plot": 1, "assemble_report": 1, "all": 1}
EVERY_WAY = ((), ("--rerun-triggers", "mtime", "--profile", "slurm"))


def left(flow, *args):
    """Jobs that Snakemake would run for these targets, for its default one without any: rule -> how many."""
    said = flow.run("-n", *args)
    found = jobs_of(said)
    assert found or "Nothing to be done" in said, said[-6000:]
    return found


def records(flow):
    return sorted(flow.folder.glob("results/records/tiny/*/0.json"))


def break_jobs(flow, rule):
    """Let every job of a rule fail, by code that no digest holds; return what mends it."""
    module = flow.folder / "gpufeed/job.py"
    text = module.read_text()
    planted = f"if sys.argv[0].endswith('{rule}.py'):\n    raise SystemExit('planted')\n"
    module.write_text(text + planted)
    return lambda: module.write_text(text)


@pytest.mark.slow
def test_in_a_fresh_clone_all_is_left_to_measure(workflow):
    flow = workflow(SHORT)
    whole = left(flow)
    assert whole["measure_cell"] == 2
    said, page = flow.run("report"), flow.folder / "results/report.html"
    assert f"report: {page}\n" in said
    assert "missing: tiny: 2 repeats of 2 cells" in said
    assert "snakemake tiny --cores 8 --resources gpu=1 --configfile test.yaml<" in page.read_text()
    assert not records(flow)
    assert left(flow) == whole
    flow.run("--report", "report.zip", ok=False)  # a part is no report of a run
    assert not (flow.folder / "report.zip").exists()


@pytest.mark.slow
def test_after_failures_what_failed_is_left_and_after_the_rest_nothing(measured):
    flow = measured(SHORT)
    shutil.copy(flow.folder / "results/report.html", flow.folder / "results/report-tiny.html")
    records(flow)[0].unlink()
    mend = break_jobs(flow, "measure_cell")
    flow.run("--keep-going", ok=False)
    assert "missing: tiny: 1 repeat of 1 cell" in flow.run("report")
    mend()
    for more in EVERY_WAY:
        assert left(flow, *more) == {"measure_cell": 1, **AFTER_A_CELL}

    flow.run()
    assert "missing" not in flow.run("report")
    assert left(flow) == {}
    flow.run("--report", "report.zip")
    (flow.folder / "results/figures/tiny/timeline.svg").unlink()
    assert left(flow) == {"plot": 1, "assemble_report": 1, "all": 1}


@pytest.mark.slow
def test_blocks_that_a_decision_asks_for_are_left(measured):
    flow = measured({**SHORT, "repeats": {"least": 6, "most": 8}})
    flow.run("report")
    assert left(flow)["measure_cell"] == 2 * 5
    for record in records(flow):
        for repeat in range(1, 6):
            shutil.copy(record, record.with_stem(str(repeat)))
            shutil.copy(record.with_suffix(".steps.parquet"), record.with_name(f"{repeat}.steps.parquet"))
    flow.run("report")
    assert left(flow) == {"count_repeats": 1, **AFTER_A_CELL}
    decision = flow.folder / "results/repeats/tiny/6.json"
    decision.parent.mkdir(parents=True)
    decision.write_text(json.dumps({"more": True}))
    flow.run("report")
    assert left(flow)["measure_cell"] == 2  # of the seventh block

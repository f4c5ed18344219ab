"""A run held against an earlier one: part of `all` where the config names it, and of nothing else."""

import shutil

import pandas as pd
import pytest
from workflow_fixtures import SHORT

from gpufeed.core.record import Record

PAGE, TABLE = "results/comparison/tiny.md", "results/comparison/tiny.csv"


@pytest.mark.slow
def test_a_run_is_held_against_the_baseline_that_the_config_names(measured, finished):
    flow = measured({**SHORT, "baseline": "before"})
    shutil.copytree(finished / "results", flow.folder / "before")
    said = flow.run()
    assert said.count("rule compare:") == 1
    assert "rule measure_cell" not in said
    assert (flow.folder / PAGE).read_text().startswith("## Comparison")
    rows = pd.read_csv(flow.folder / TABLE)
    assert rows["verdict"].tolist() == ["refused"] * 2  # the baseline is a copy of these very repeats
    assert rows["reason"].str.startswith("A and B hold the same repeats").all()
    assert "Nothing to be done" in flow.run()

    (path,) = (flow.folder / "before").glob("records/tiny/*-resident-*/0.json")
    again = Record.read(path)
    again.resolved["threads"] = 3
    again.write(path)
    said = flow.run("-n")
    assert "rule compare" in said
    assert "rule measure_cell" not in said

    shutil.rmtree(flow.folder / "before")
    said = flow.run("-n", ok=False)
    assert "found: no folder before" in said
    assert "what to do: name a folder that a run has filled" in said

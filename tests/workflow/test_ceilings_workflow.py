"""Ceilings as Snakemake measures them: a document, a table, a figure and the part on the page, once."""

import copy
import csv

import pytest
from workflow_fixtures import SHORT

from gpufeed.ceilings import record

pytestmark = pytest.mark.slow

CONFIG = copy.deepcopy(SHORT)
CONFIG["experiments"]["tiny"]["ceilings"] = {"blocks": ["loaders"], "pairs": 6, "least_s": 0.1}


def test_from_a_measured_cell_to_the_page_then_only_what_a_change_touches(measured):
    flow = measured(CONFIG)
    flow.run()
    found = {path.stem: record.read(path) for path in flow.folder.glob("results/ceilings/tiny/*.json")}
    assert len(found) == 2
    by_loader = {one["cell"]["loader"]: one for one in found.values()}
    for one in found.values():
        assert one["status"] == "done", one["sentence"]
        assert len(one["pairs"]) == 6
        assert one["shared_cores"] is True
        assert one["shares"]["au"]["median"] > 0
    assert by_loader["dataloader_sync"]["stages"]["decode"]["seconds"]["n"] == 6
    assert by_loader["resident"]["stages"]["decode"]["reason"] == "The cache holds decoded pixels."

    with (flow.folder / "results/tables/tiny/ceilings.csv").open(newline="") as file:
        assert {row["cell_id"] for row in csv.DictReader(file)} == set(found)
    assert "seconds of an epoch" in (flow.folder / "results/figures/tiny/ceilings.svg").read_text()
    page = (flow.folder / "results/report.html").read_text()
    assert "How far from the limit" in page
    assert "Training and loading share the CPU" in page
    assert "Nothing to be done" in flow.run()

    changed = copy.deepcopy(CONFIG)
    changed["experiments"]["tiny"]["ceilings"]["pairs"] = 7
    flow.configure(changed)
    said = flow.run("-n")
    for rule in ("measure_ceilings", "plot_ceilings", "assemble_report"):
        assert f"rule {rule}" in said
    assert "rule measure_cell" not in said

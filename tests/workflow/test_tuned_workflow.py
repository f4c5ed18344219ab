"""`settings: tuned` in a whole run: one tuning a cell, a verdict on its choice, and records that say so."""

import copy
import json

import pytest
from workflow_fixtures import SHORT

from gpufeed.core.loader_setting import AXES

pytestmark = pytest.mark.slow

TUNED = copy.deepcopy(SHORT)
TUNED["experiments"]["tiny"]["blocks"] = {
    "tuned": {
        "loader": ["dataloader_workers", "resident"],
        "augment": "torch",
        "workers": "auto",
        "settings": "tuned",
    }
}


def documents(flow, pattern):
    return [json.loads(text) for text in flow.files(pattern).values()]


def test_a_cell_is_tuned_once_and_measured_with_what_was_found(prepared):
    flow = prepared(TUNED)
    flow.run()
    (tuning,) = documents(flow, "results/tuned/tiny/*.json")
    assert tuning["status"] == "done", tuning["sentence"]
    best = {axis: tuning["tried"][0][axis] for axis in AXES}
    (verdict,) = documents(flow, "results/tuned/tiny/verdicts/*.json")
    assert verdict["status"] == "passed"
    judged = {"decoder": "pillow", **verdict["settings"]}
    assert {axis: judged[axis] for axis in AXES} == best

    records = documents(flow, "results/records/tiny/*/*.json")
    assert [record["status"] for record in records] == ["done"] * 2
    of_tuned = [record for record in records if record["cell"]["loader"] == "dataloader_workers"]
    assert [record["resolved"]["tuned"] for record in of_tuned] == [best]
    assert {record["cell"]["settings"] for record in of_tuned} == {"tuned"}
    assert {record["cell_id"] for record in of_tuned} == {tuning["cell_id"]}
    others = [record for record in records if record["cell"]["loader"] == "resident"]
    assert {record["cell"]["settings"] for record in others} == {None}
    assert not any("tuned" in record["resolved"] for record in others)

    (page,) = flow.files("results/report-tiny.html").values() or flow.files("results/report.html").values()
    assert b"Tuned settings" in page
    assert f"loader=dataloader_workers workers={best['workers']} ".encode() in page
    table = next(iter(flow.files("results/tables/tiny/cells.csv").values())).decode()
    rows = [line for line in table.splitlines() if "-tuned-" in line]
    assert len(rows) == 1

    assert "Nothing to be done" in flow.run()

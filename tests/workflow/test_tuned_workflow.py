"""`settings: tuned` in a whole run: one tuning a cell, a verdict on its choice, and records that say so."""

import pytest
from workflow_fixtures import with_blocks

from gpufeed.core.loader_setting import AXES

pytestmark = pytest.mark.slow

TUNED = {
    "loader": ["dataloader_workers", "resident"],
    "augment": "torch",
    "workers": "auto",
    "settings": "tuned",
}


def test_a_cell_is_tuned_once_and_measured_with_what_was_found(prepared):
    flow = prepared(with_blocks({"tuned": TUNED}))
    flow.run()
    (tuning,) = flow.documents("results/tuned/tiny/*.json").values()
    assert tuning["status"] == "done", tuning["sentence"]
    best = {axis: tuning["tried"][0][axis] for axis in AXES}
    (verdict,) = flow.documents("results/tuned/tiny/verdicts/*.json").values()
    assert verdict["status"] == "passed"
    judged = {"decoder": "pillow", **verdict["settings"]}
    assert {axis: judged[axis] for axis in AXES} == best

    records = flow.documents("results/records/tiny/*/*.json").values()
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

"""Cells in their jobs: composed as planned, told in the log, measured again only where they are others."""

import os

import pytest
from workflow_fixtures import with_blocks

pytestmark = pytest.mark.slow
UNTIL = ("--until", "measure_cell")
TWO_MODELS = {  # two cells that wait for no gate: a ceiling of each
    "loader": "replay",
    "model": ["simple_cnn", "resnet18"],
    "steps": 4,
    "overrides": [["trainer.learning_rate=0.002"]],
}


def test_a_cell_is_measured_as_planned_and_again_only_if_it_is_another(prepared):
    flow = prepared(with_blocks({"ceilings": TWO_MODELS}))
    flow.run(*UNTIL)
    records = flow.documents("results/records/**/*.json").values()
    assert [record["status"] for record in records] == ["done", "done"]
    tracked = {f"results/tracking/tiny/{record['cell_id']}/0-1.csv" for record in records}
    assert set(flow.files("results/tracking/**/*.csv")) == tracked
    for record in records:
        assert record["cell"]["hyper"]["trainer"]["learning_rate"] == 0.002
        said = (flow.folder / f"results/logs/measure_cell/tiny/{record['cell_id']}/0.log").read_text()
        assert "python -m gpufeed.train" in said
        assert "++data.options.count=60" in said
    assert "rule measure_cell" not in flow.run("-n", *UNTIL)

    stem = flow.folder / "config/hydra/model/resnet18.yaml"
    text = stem.read_text()
    stem.write_text("stem: cifar\n")
    said = flow.run("-n", *UNTIL)
    assert said.count("rule measure_cell:") == 1
    assert "simple_cnn" not in said

    # what is missing is measured where a script before it is new
    stem.write_text(text)
    gone, _ = flow.files("results/records/**/*.json")
    (flow.folder / gone).unlink()
    os.utime(flow.folder / "workflow/scripts/prepare_dataset.py")
    assert "rule measure_cell:" in flow.run("-n")

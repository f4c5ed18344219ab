"""What docs/guide/own_model.md and add_loader.md show, through the workflow: each by a line of a config."""

import json

import pytest
from run_fixtures import files_of_the_page
from workflow_fixtures import COMMON, with_blocks

pytestmark = pytest.mark.slow
BLOCKS = {
    "torchvision": {"model": "torchvision:mobilenet_v3_small"},
    "dataset": {
        "model": "timm:resnet50",
        "dataset": "my_data.py:Squares",
        "loader": "dataloader_workers",
        "workers": 2,
    },
    "mine": {
        "model": "my_model.py:Net",
        "loader": "my_loader.py:Cached",
        "augment": "my_augment.py:Dimmed",
        "overrides": [["model.width=4", "loader.pause_ms=3", "augment.least=0.25"]],
    },
}


def test_what_the_page_shows_is_measured_and_an_edit_measures_again(measured, monkeypatch):
    common = {**COMMON, "augment": "torch", "steps": 4, "loader": "resident"}
    flow = measured(with_blocks(BLOCKS, common=common))
    for name, text in files_of_the_page().items():
        (flow.folder / name).write_text(text)
    monkeypatch.chdir(flow.folder)
    paths = flow.planned_records()
    flow.run(*paths)
    records = {path.split("/")[-2]: json.loads((flow.folder / path).read_text()) for path in paths}
    found = {
        (*map(record["cell"].get, ("model", "dataset", "loader")), record["status"])
        for record in records.values()
    }
    assert found == {
        ("torchvision:mobilenet_v3_small", "synthetic", "resident", "done"),
        ("timm:resnet50", "my_data.Squares", "dataloader_workers", "done"),
        ("my_model.py:Net", "synthetic", "my_loader.py:Cached", "done"),
    }
    (mine,) = (record for cell, record in records.items() if "my_loader.Cached" in cell)
    assert mine["cell"]["hyper"]["model"] == {"width": 4}
    assert mine["cell"]["hyper"]["augment"] == {"least": 0.25}
    assert set(mine["cell"]["hyper"]["code"]) == {"my_model.py", "my_loader.py", "my_augment.py"}
    assert mine["steps"]["wait_ms"]["min"] >= 3
    (of_dataset,) = (record for cell, record in records.items() if "my_data.Squares" in cell)
    assert (of_dataset["dataset"]["samples"], of_dataset["dataset"]["classes"]) == (48, 3)
    assert of_dataset["cell"]["hyper"]["input"]["mean"] == [0.485, 0.456, 0.406]
    verdicts = flow.documents("results/gate/**/*.json").values()
    assert {(verdict["dataset"], verdict["loader"], verdict["status"]) for verdict in verdicts} >= {
        ("synthetic", "my_loader.py:Cached", "passed"),
        ("my_data.Squares", "dataloader_workers", "passed"),
    }

    model = flow.folder / "my_model.py"
    model.write_text(model.read_text().replace("stride=2", "stride=1"))
    (new,) = flow.planned_records() - paths
    assert "my_model.Net" in new

"""What docs/plugins.md shows, through the workflow: each from one line of a config."""

import csv
import json
import re

import pytest
from workflow_fixtures import ROOT, SHORT

pytestmark = pytest.mark.slow
EXPERIMENT = SHORT["experiments"]["tiny"]
COMMON = {**EXPERIMENT["common"], "augment": "torch", "steps": 4, "loader": "resident"}
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
        "overrides": [["model.width=4", "loader.pause_ms=3"]],
    },
}


def files_of_the_page() -> dict[str, str]:
    """The files that docs/plugins.md shows, by name."""
    text = (ROOT / "docs/plugins.md").read_text()
    return dict(re.findall(r"^```python\n# (my_\w+\.py)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))


def test_what_the_page_shows_is_measured_and_an_edit_measures_again(measured):
    tiny = {**EXPERIMENT, "common": COMMON, "blocks": BLOCKS}
    flow = measured({**SHORT, "experiments": {"tiny": tiny}})
    for name, text in files_of_the_page().items():
        (flow.folder / name).write_text(text)
    table = "results/tables/tiny/cells.csv"
    flow.run(table)
    rows = list(csv.DictReader((flow.folder / table).read_text().splitlines()))
    assert {(row["model"], row["loader"], row["status"]) for row in rows} == {
        ("torchvision:mobilenet_v3_small", "resident", "done"),
        ("timm:resnet50", "dataloader_workers", "done"),
        ("my_model.py:Net", "my_loader.py:Cached", "done"),
    }
    (record,) = map(json.loads, flow.files("results/records/tiny/my_data.Squares-*/0.json").values())
    assert (record["dataset"]["samples"], record["dataset"]["classes"]) == (48, 3)
    (record,) = map(json.loads, flow.files("results/records/tiny/*my_loader*/0.json").values())
    assert record["cell"]["hyper"]["model"] == {"width": 4}
    assert record["steps"]["wait_ms"]["min"] >= 3
    verdicts = flow.files("results/gate/synthetic/my_loader.Cached/*.json") | flow.files(
        "results/gate/my_data.Squares/*/*.json"
    )
    assert {(verdict["loader"], verdict["status"]) for verdict in map(json.loads, verdicts.values())} == {
        ("my_loader.py:Cached", "passed"),
        ("dataloader_workers", "passed"),
    }

    model = flow.folder / "my_model.py"
    model.write_text(model.read_text().replace("stride=2", "stride=1"))
    planned = flow.run(table, "-n", "--quiet", "rules")
    assert re.search(r"^measure_cell +1$", planned, re.MULTILINE)

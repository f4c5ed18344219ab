"""A kept model as Snakemake makes it: weights, evaluation, figure, predictions and the page."""

import copy
import csv
import json

import pytest
from workflow_fixtures import SHORT

from gpufeed.trained.model_file import load
from gpufeed.trained.record import EVALUATION

pytestmark = pytest.mark.slow

CONFIG = copy.deepcopy(SHORT)
CONFIG["experiments"]["tiny"]["blocks"]["loaders"]["loader"] = "resident"
CONFIG["experiments"]["tiny"]["models"] = {
    "blocks": ["loaders"],
    "predict": ["pictures", "gone.jpg"],
    "samples": 4,
}


def test_from_a_measured_cell_to_the_page_then_nothing_to_do(measured):
    flow = measured(CONFIG)
    pictures = sorted((flow.folder / "data/synthetic/images").rglob("*.jpg"))[:3]
    (flow.folder / "pictures").mkdir()
    for picture in pictures:
        (flow.folder / "pictures" / picture.name).write_bytes(picture.read_bytes())
    (flow.folder / "gone.jpg").write_bytes(b"not an image")
    flow.run()
    (model,) = flow.folder.glob("results/models/tiny/*/model.pt")
    assert load(model).classes == EVALUATION.read(model.with_name("evaluation.json"))["classes"]
    evaluation = EVALUATION.read(model.with_name("evaluation.json"))
    assert evaluation["status"] == "done", evaluation["sentence"]
    assert sum(map(sum, evaluation["confusion"])) == evaluation["n"] == 12

    (record,) = flow.files("results/records/tiny/*resident*/0.json").values()
    accuracy = json.loads(record)["accuracy"]
    assert (evaluation["n"], evaluation["correct"]) == (accuracy["images"], accuracy["correct"])
    assert evaluation["loss"] == pytest.approx(accuracy["loss"], rel=1e-3)

    with model.with_name("predictions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    names = [f"pictures/{picture.name}" for picture in sorted(pictures)]
    own = [row["file"] for row in rows[4:]]
    assert sorted(row["file"] for row in rows[:4]) == sorted([*names, "gone.jpg"])
    assert [bool(row["reason"]) for row in rows] == [row["file"] == "gone.jpg" for row in rows]
    assert "not an image" in rows[3]["reason"]
    assert len(set(own)) == 4
    assert all(
        file.startswith("data/synthetic/images/test/") and (flow.folder / file).exists() for file in own
    )

    page = (flow.folder / "results/report.html").read_text()
    assert "Kept models" in page
    assert f"of the {evaluation['n']} images of split test" in page
    assert "Predictions for 8 images" in page
    assert f"gpufeed.predict results/models/tiny/{model.parent.name}/model.pt" in page
    assert "Nothing to be done" in flow.run()

"""A kept model as Snakemake makes it: weights, evaluation, figure, predictions and the page."""

import copy
import csv
import json

import pytest
import torch
from workflow_fixtures import TINY

from gpufeed.trained.model_file import load
from gpufeed.trained.record import EVALUATION

pytestmark = pytest.mark.long

CONFIG = copy.deepcopy(TINY) | {"repeats": 1}
CONFIG["experiments"]["tiny"]["blocks"]["loaders"]["loader"] = "resident"
CONFIG["experiments"]["tiny"]["models"] = {"blocks": ["loaders"], "predict": ["pictures", "gone.jpg"]}


def test_from_nothing_to_the_page_then_nothing_to_do(workflow):
    flow = workflow(CONFIG)
    flow.run("data/synthetic/cache/pillow.npy")
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
    assert sorted(row["file"] for row in rows) == sorted([*names, "gone.jpg"])
    assert {bool(row["reason"]) for row in rows if row["file"] in names} == {False}
    assert "not an image" in rows[-1]["reason"]

    page = (flow.folder / "results/report.html").read_text()
    assert "Kept models" in page
    assert f"of the {evaluation['n']} images of split test" in page
    assert f"gpufeed.predict results/models/tiny/{model.parent.name}/model.pt" in page
    assert "Nothing to be done" in flow.run()


def test_without_the_device_a_sentence_that_another_node_tries_again(workflow):
    config = copy.deepcopy(CONFIG) | {"device": "cuda"}
    if torch.cuda.is_available():
        pytest.skip("this node has the CUDA GPU that the cell must not find")
    flow = workflow(config)
    (flow.folder / "pictures").mkdir()
    (flow.folder / "gone.jpg").write_bytes(b"not an image")
    flow.run()
    (path,) = flow.folder.glob("results/models/tiny/*/evaluation.json")
    evaluation = EVALUATION.read(path)
    assert evaluation["status"] == "skipped"
    assert "CUDA" in evaluation["sentence"]
    assert "CUDA" in path.with_name("predictions.csv").read_text()
    assert evaluation["sentence"] in (flow.folder / "results/report.html").read_text().replace("&#39;", "'")
    assert "Nothing to be done" in flow.run()

    about = path.with_name("model.json")
    about.write_text(json.dumps({**json.loads(about.read_text()), "planned_on": "another-node"}))
    said = flow.run("-n")
    for rule in ("train_model", "evaluate_model", "predict", "assemble_report"):
        assert f"rule {rule}" in said

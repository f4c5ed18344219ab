"""Kept models, ceilings and models in use, all of one run; then what a change touches."""

import copy
import csv
import json
from types import SimpleNamespace

import pytest
from workflow_fixtures import Workflow, with_blocks

from gpufeed.benchmarks.inference.exported_files import EXPORTED
from gpufeed.benchmarks.saved_models.model_file import load
from gpufeed.core.record import CEILINGS, EVALUATION, INFERENCE

pytestmark = pytest.mark.slow

BLOCKS = {  # the two cells of SHORT
    "kept": {"loader": "resident", "augment": "torch"},
    "other": {"loader": "dataloader_sync", "augment": "torch"},
}
PARTS = {
    "models": {"blocks": ["kept"], "predict": ["pictures", "gone.jpg"], "samples": 4},
    "ceilings": {"blocks": ["kept", "other"], "pairs": 6, "least_s": 0.1},
    "inference": {
        "blocks": ["kept"],
        "backends": ["eager", "cuda_graphs", "export", "onnxruntime", "onnxruntime_int8"],
        "precisions": ["fp32"],
        "batch_sizes": [4, 8],
        "calls": 4,
        "rounds": 2,
        "seconds": 0.001,
        "calibration": {"images": 20},
    },
}
CONFIG = with_blocks(BLOCKS, **PARTS)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, finished):
    """The run, its page and the names of three pictures that its model was asked about."""
    pytest.importorskip("onnxruntime")
    flow = Workflow(tmp_path_factory.mktemp("whole") / "checkout", CONFIG)
    flow.take(finished, "data", "results")
    pictures = sorted((flow.folder / "data/synthetic/images").rglob("*.jpg"))[:3]
    (flow.folder / "pictures").mkdir()
    for picture in pictures:
        (flow.folder / "pictures" / picture.name).write_bytes(picture.read_bytes())
    (flow.folder / "gone.jpg").write_bytes(b"not an image")
    measured = flow.files("results/records/**/*.json")
    flow.run()
    assert flow.files("results/records/**/*.json") == measured
    page = (flow.folder / "results/report.html").read_text()
    return SimpleNamespace(flow=flow, folder=flow.folder, page=page, names=[one.name for one in pictures])


def rows_of(path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_kept_model_has_its_evaluation_and_predictions(whole):
    (model,) = whole.folder.glob("results/models/tiny/*/model.pt")
    evaluation = EVALUATION.read(model.with_name("evaluation.json"))
    assert load(model).classes == evaluation["classes"]
    assert evaluation["status"] == "done", evaluation["sentence"]
    assert sum(map(sum, evaluation["confusion"])) == evaluation["n"] == 12

    (record,) = whole.flow.files("results/records/tiny/*resident*/0.json").values()
    accuracy = json.loads(record)["accuracy"]
    assert (evaluation["n"], evaluation["correct"]) == (accuracy["images"], accuracy["correct"])
    assert evaluation["loss"] == pytest.approx(accuracy["loss"], rel=1e-3)

    rows = rows_of(model.with_name("predictions.csv"))
    own = [row["file"] for row in rows[4:]]
    assert sorted(row["file"] for row in rows[:4]) == sorted(
        [*(f"pictures/{name}" for name in whole.names), "gone.jpg"]
    )
    assert [bool(row["reason"]) for row in rows] == [row["file"] == "gone.jpg" for row in rows]
    assert len(set(own)) == 4
    assert all(
        file.startswith("data/synthetic/images/test/") and (whole.folder / file).exists() for file in own
    )

    for part in (
        "Kept models",
        f"of the {evaluation['n']} images of split test",
        "Predictions for 8 images",
        f"gpufeed.predict results/models/tiny/{model.parent.name}/model.pt",
    ):
        assert part in whole.page


def test_every_cell_has_its_ceilings(whole):
    found = {path.stem: CEILINGS.read(path) for path in whole.folder.glob("results/ceilings/tiny/*.json")}
    assert len(found) == 2
    by_loader = {one["cell"]["loader"]: one for one in found.values()}
    for one in found.values():
        assert one["status"] == "done", one["sentence"]
        assert len(one["pairs"]) == 6
        assert one["shared_cores"] is True
        assert one["shares"]["au"]["median"] > 0
    assert by_loader["dataloader_sync"]["stages"]["decode"]["seconds"]["n"] == 6
    assert by_loader["resident"]["stages"]["decode"]["seconds"] is None  # its cache holds pixels

    assert {row["cell_id"] for row in rows_of(whole.folder / "results/tables/tiny/ceilings.csv")} == set(
        found
    )
    assert "seconds of an epoch" in (whole.folder / "results/figures/tiny/ceilings.svg").read_text()
    assert "How far from the limit" in whole.page
    assert "Training and loading share the CPU" in whole.page


def test_a_model_in_use_is_exported_quantised_and_measured(whole):
    (path,) = whole.folder.glob("results/inference/tiny/*.json")
    found = INFERENCE.read(path)
    assert found["status"] == "done", found["sentence"]
    rows = {row["backend"]: row for row in found["rows"]}
    skipped = rows.pop("cuda_graphs")
    assert skipped["status"] == "skipped"
    assert "CUDA" in skipped["sentence"]
    for row in rows.values():
        assert row["status"] == "done", row["sentence"]
        assert row["images"] == 12
        assert [entry["batch"] for entry in row["throughput"]] == [4, 8]
    assert rows["onnxruntime"]["agreement"] == rows["export"]["agreement"] == 1
    kept = whole.folder / "results/models/tiny" / path.stem
    quantised = EXPORTED.read(kept / "quantised.json")
    assert quantised["rows"][0]["quantised"]["layers"] == 4  # three convolutions and the head
    assert quantised["calibration"]["images"] == 20
    assert (kept / "quantised/model.int8.onnx").stat().st_size == rows["onnxruntime_int8"]["bytes"]

    table = rows_of(whole.folder / "results/tables/tiny/inference.csv")
    assert [row["backend"] for row in table] == [row["backend"] for row in found["rows"]]
    assert "onnxruntime_int8 int8" in (whole.folder / "results/figures/tiny/inference.svg").read_text()
    assert "Models in use" in whole.page
    assert "At batch 4 INT8" in whole.page


RULES = {
    "ceilings": ("pairs", {"measure_ceilings", "plot_ceilings"}),
    "inference": ("rounds", {"measure_inference", "plot_inference"}),
}


def test_nothing_is_left_and_a_change_touches_its_part_alone(whole):
    flow = whole.flow
    assert "Nothing to be done" in flow.run()
    every = {rule for _, rules in RULES.values() for rule in rules} | {"train_model", "export_model"}
    every |= {"quantise_model", "measure_cell"}
    for part, (key, rules) in RULES.items():
        changed = copy.deepcopy(CONFIG)
        changed["experiments"]["tiny"][part][key] += 1
        flow.configure(changed)
        said = flow.run("-n")
        assert {rule for rule in every if f"rule {rule}:" in said} == rules
        assert "rule assemble_report:" in said

"""Models in use as Snakemake makes them: exported, quantised, measured, tabulated, on the page."""

import copy
import csv

import pytest
from workflow_fixtures import SHORT

from gpufeed.inference import record
from gpufeed.inference.files import EXPORTED

pytestmark = pytest.mark.slow

CONFIG = copy.deepcopy(SHORT)
CONFIG["experiments"]["tiny"]["blocks"]["loaders"]["loader"] = "resident"
CONFIG["experiments"]["tiny"]["inference"] = {
    "blocks": ["loaders"],
    "backends": ["eager", "cuda_graphs", "export", "onnxruntime", "onnxruntime_int8"],
    "precisions": ["fp32"],
    "batch_sizes": [4, 8],
    "calls": 4,
    "rounds": 2,
    "seconds": 0.001,
    "calibration": {"images": 20},
}


def test_from_a_measured_cell_to_the_page_then_only_what_a_change_touches(measured):
    pytest.importorskip("onnxruntime")
    flow = measured(CONFIG)
    flow.run()
    (path,) = flow.folder.glob("results/inference/tiny/*.json")
    found = record.read(path)
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
    kept = flow.folder / "results/models/tiny" / path.stem
    quantised = EXPORTED.read(kept / "quantised.json")
    assert quantised["rows"][0]["quantised"]["layers"] == 4  # three convolutions and the head
    assert quantised["calibration"]["images"] == 20
    assert (kept / "quantised/model.int8.onnx").stat().st_size == rows["onnxruntime_int8"]["bytes"]

    with (flow.folder / "results/tables/tiny/inference.csv").open(newline="") as file:
        assert [row["backend"] for row in csv.DictReader(file)] == [row["backend"] for row in found["rows"]]
    assert "onnxruntime_int8 int8" in (flow.folder / "results/figures/tiny/inference.svg").read_text()
    page = (flow.folder / "results/report.html").read_text()
    assert "Models in use" in page
    assert "At batch 4 INT8" in page
    assert "Nothing to be done" in flow.run()

    changed = copy.deepcopy(CONFIG)
    changed["experiments"]["tiny"]["inference"]["rounds"] = 3
    flow.configure(changed)
    said = flow.run("-n")
    assert "rule measure_inference" in said
    assert "rule plot_inference" in said
    for rule in ("train_model", "export_model", "quantise_model", "measure_cell"):
        assert f"rule {rule}" not in said

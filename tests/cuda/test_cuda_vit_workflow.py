"""vit_lite on Fashion-MNIST's format on a GPU, by the workflow: from four files to a record."""

import hashlib
import json

import pytest
from data_fixtures import write_fashion

pytest.importorskip("snakemake")
from workflow_fixtures import Workflow

from gpufeed.datasets.manifest import Manifest

SMALL = ["trainer.optimiser=adamw", "trainer.learning_rate=0.001", "trainer.evaluate=epoch"]


def config(files, device="cuda") -> dict:
    """One cell on files that are taken from the folder where they lie, since nothing is downloaded here."""
    rows = [{"name": one.name, "sha256": hashlib.sha256(one.read_bytes()).hexdigest()} for one in files]
    return {
        "run": ["gray"],
        "device": device,
        "repeats": 1,
        "archives": [str(files[0].parent)],
        "sources": {"fashion_mnist": {"files": rows}},
        "experiments": {
            "gray": {
                "title": "Four idx files",
                "question": "Does vit_lite train on them?",
                "common": {"dataset": "fashion_mnist", "model": "vit_lite", "batch_size": 64, "epochs": 3},
                "blocks": {
                    "cached": {
                        "loader": "resident",
                        "augment": "torch",
                        "cuda_graphs": "auto",
                        "overrides": [SMALL],
                    }
                },
            }
        },
    }


def test_vit_lite_trains_on_fashion_mnists_format(tmp_path):
    (tmp_path / "files").mkdir()
    files = write_fashion(tmp_path / "files", train=512, test=128, size=(28, 28))
    flow = Workflow(tmp_path / "flow", config(files))
    (path,) = flow.planned_records()
    flow.run(path, "--resources", "gpu=1")
    record = json.loads((flow.folder / path).read_text())
    assert (record["status"], record["sentence"]) == ("done", None)
    assert (record["resolved"]["device"], record["resolved"]["cuda_graphs"]) == ("cuda", True)
    assert [epoch["images"] for epoch in record["epochs"]] == [512] * 3
    assert [epoch["accuracy"]["images"] for epoch in record["epochs"]] == [128] * 3
    info = Manifest.read(flow.folder / "data/fashion_mnist/manifest.parquet").info
    assert (info.layout, len(info.classes)) == ("fashion_mnist", 10)

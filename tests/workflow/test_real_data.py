"""Real images, from archive to report."""

import json
import subprocess
import sys

import pandas as pd
import pytest
from workflow_fixtures import TINY

from gpufeed.datasets.manifest import Manifest

pytestmark = [pytest.mark.slow, pytest.mark.realdata]


def config_for(dataset, loader, **common):
    config = json.loads(json.dumps(TINY))
    config["repeats"] = 1
    config["experiments"]["tiny"]["common"] = {
        "dataset": dataset,
        "model": "simple_cnn",
        "batch_size": 64,
        **common,
    }
    config["experiments"]["tiny"]["blocks"]["loaders"]["loader"] = loader
    return config


def test_tiny_imagenet_40(workflow, real_data):
    config = config_for("tiny_imagenet_40", "replay", steps=20)  # no gate, which would read every epoch
    config["archives"] = [str(real_data)]
    flow = workflow(config)
    flow.run()
    table = Manifest.read(flow.folder / "data/tiny_imagenet_40/manifest.parquet").table
    assert table["split"].value_counts().to_dict() == {"train": 20_000, "val": 2_000}
    assert table.groupby("split")["label"].nunique().to_dict() == {"train": 40, "val": 40}
    assert set(table["height"]) == set(table["width"]) == {64}
    grayscale = table[table["channels"] == 1]
    assert grayscale["split"].value_counts().to_dict() == {"train": 394, "val": 37}
    cells = pd.read_csv(flow.folder / "results/tables/tiny/cells.csv")
    assert set(cells["dataset"]) == {"tiny_imagenet_40"}
    assert (cells["status"] == "done").all()
    assert "tiny_imagenet_40" in (flow.folder / "results/report.html").read_text()


def test_an_archive_of_cifar10(workflow, real_data, tmp_path):
    import hashlib

    archive = tmp_path / "cifar-10-python.tar.gz"
    maker = [sys.executable, str(real_data / "make_cifar10_archive.py"), str(archive), "--per-class", "200"]
    subprocess.run(maker, check=True, timeout=120)
    config = config_for("cifar10_200", ["dataloader_sync", "resident"])
    config["archives"] = [str(tmp_path)]
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    config["sources"]["cifar10_200"] = {
        "layout": "cifar10",
        "files": [{"name": archive.name, "sha256": digest, "size": archive.stat().st_size}],
    }
    flow = workflow(config)
    flow.run()
    table = Manifest.read(flow.folder / "data/cifar10_200/manifest.parquet").table
    assert table["split"].value_counts().to_dict() == {"train": 2_000, "test": 400}
    assert set(table.groupby(["split", "label"]).size()) == {200, 40}
    cells = pd.read_csv(flow.folder / "results/tables/tiny/cells.csv")
    assert set(cells["dataset"]) == {"cifar10_200"}
    assert (cells["status"] == "done").all()
    assert (cells["top1"] > 0.12).all()  # chance is 0.10

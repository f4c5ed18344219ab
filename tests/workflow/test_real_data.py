"""Real images, from archive to report."""

import copy
import hashlib
import subprocess
import sys

import pandas as pd
import pytest
from workflow_fixtures import SHORT

from gpufeed.datasets.manifest import Manifest

pytestmark = [pytest.mark.slow, pytest.mark.realdata]


def test_an_archive_of_cifar10(workflow, real_data, tmp_path):
    archive = tmp_path / "cifar-10-python.tar.gz"
    maker = [sys.executable, str(real_data / "make_cifar10_archive.py"), str(archive), "--per-class", "200"]
    subprocess.run(maker, check=True, timeout=120)
    config = copy.deepcopy(SHORT) | {"archives": [str(tmp_path)]}
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    config["sources"]["cifar10_200"] = {
        "layout": "cifar10",
        "files": [{"name": archive.name, "sha256": digest, "size": archive.stat().st_size}],
    }
    config["experiments"]["tiny"]["common"] |= {"dataset": "cifar10_200", "batch_size": 64}
    config["experiments"]["tiny"]["blocks"]["loaders"]["loader"] = "resident"
    flow = workflow(config)
    flow.run()
    table = Manifest.read(flow.folder / "data/cifar10_200/manifest.parquet").table
    assert table["split"].value_counts().to_dict() == {"train": 2_000, "test": 400}
    assert set(table.groupby(["split", "label"]).size()) == {200, 40}
    cells = pd.read_csv(flow.folder / "results/tables/tiny/cells.csv")
    assert set(cells["dataset"]) == {"cifar10_200"}
    assert (cells["status"] == "done").all()
    assert (cells["top1"] > 0.12).all()  # chance is 0.10

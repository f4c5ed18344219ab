"""A vision transformer on images that come out of idx files, from the source to the report."""

import json

import pandas as pd
import pytest
from workflow_fixtures import SHORT

from gpufeed.datasets.idx import FILES
from gpufeed.datasets.manifest import Manifest

SMALL = ["model.width=24", "model.depth=1", "model.heads=2", "trainer.optimiser=adamw"]


def config() -> dict:
    """Images of 12 pixels in gray, made of another source's of 16; a small transformer with both GELUs."""
    changed = json.loads(json.dumps(SHORT))
    changed["sources"]["gray"] = {"layout": "gray_idx", "options": {"of": "synthetic", "size": 12}}
    tiny = changed["experiments"]["tiny"]
    tiny["common"] = {"dataset": "gray", "model": "vit_lite", "batch_size": 8, "epochs": 2}
    forms = [[SMALL, "model.activation=gelu"], [SMALL, "model.activation=gelu_tanh"]]
    tiny["blocks"] = {"forms": {"loader": "dataloader_sync", "overrides": forms}}
    return changed


@pytest.mark.slow
def test_from_idx_files_to_the_page(prepared):
    flow = prepared(config())
    flow.run()
    folder = flow.folder / "data/gray"
    assert {path.name for path in (folder / "idx").iterdir()} == {n for pair in FILES.values() for n in pair}
    given = Manifest.read(flow.folder / "data/synthetic/manifest.parquet")
    assert Manifest.read(folder / "manifest.parquet").labels().tolist() == given.labels().tolist()

    records = [json.loads(text) for text in flow.files("results/records/tiny/*/*.json").values()]
    assert [record["sentence"] for record in records] == [None] * 2
    first, second = ([epoch["train_loss"] for epoch in record["epochs"]] for record in records)
    assert first == pytest.approx(second, rel=1e-2)  # the same weights, and both forms are near
    assert first != second
    cells = pd.read_csv(flow.folder / "results/tables/tiny/cells.csv")
    assert set(cells["dataset"]) == {"gray"}
    assert not cells["compile"].any()
    assert "vit_lite" in (flow.folder / "results/report.html").read_text()
    assert "Nothing to be done" in flow.run()

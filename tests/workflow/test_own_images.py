"""A folder of images of one's own, planned; prepared again when images come, and never touched."""

import re
import shutil
from pathlib import Path

import pandas as pd
import pytest
from config_fixtures import merged
from workflow_fixtures import jobs_of


def image_files(folder: Path) -> int:
    return sum(path.suffix in (".jpg", ".JPEG") for path in folder.rglob("*"))


@pytest.mark.slow
def test_a_folder_is_planned_and_prepared_again_when_its_images_change(workflow, tmp_path, photographs):
    folder = tmp_path / "own images"
    shutil.copytree(photographs, folder)
    config = merged("own.yaml") | {"device": "cpu"}
    config["sources"]["own"]["folder"] = str(folder)
    small = ["model.stem=imagenet", "recipe.size=48", "recipe.short_side=56"]
    config["experiments"]["own"]["common"] |= {"batch_size": 8, "steps": 4, "overrides": [small]}
    flow = workflow(config)
    quick = flow.run("-n", "--config", "quick=true")
    few = set(re.findall(r"^    output: (results/records/\S+\.json)", quick, re.MULTILINE))
    assert {path.split("-")[1] for path in few} >= {"dataloader_workers", "host_cache", "replay"}
    assert len(few) <= 5
    flow.run("data/own/manifest.parquet")
    table = pd.read_parquet(flow.folder / "data/own/manifest.parquet")
    assert len(table) == 60
    assert len(table[["height", "width"]].drop_duplicates()) > 20
    planned = flow.planned_records()
    assert planned > few
    (folder / "train/class_0/notes.txt").write_text("no image")
    said = flow.run("-n")
    assert jobs_of(said)["measure_cell"] == len(planned)
    assert re.search(r"disk: [\d.]+ MiB or more to write in /dev/shm", said)
    assert "prepare_dataset" not in jobs_of(said)

    shutil.copy(folder / "train/class_0/00.jpg", folder / "train/class_0/new.jpg")
    assert "prepare_dataset" in jobs_of(flow.run("-n"))
    config["sources"]["own"] |= {"limit": 45, "copies": 2, "times": 3}
    flow.configure(config)
    flow.run("data/own/manifest.parquet")
    table = pd.read_parquet(flow.folder / "data/own/manifest.parquet")
    assert table["split"].value_counts().to_dict() == {"train": 45 * 2 * 3, "val": 11}  # of 49 and 12
    assert image_files(flow.folder / "data/own/images") == 45 * 2 + 11
    assert image_files(folder) == 61

    shutil.rmtree(folder)
    said = flow.run("-n", ok=False)
    assert f"no folder {folder}" in said
    assert "what to do: correct `folder` in its source, or mount what it lies on" in said

"""A folder of images of one's own, measured; prepared again when images come, and never touched."""

import copy
import io
import json
import shutil

import pandas as pd
import pytest
from PIL import Image
from workflow_fixtures import SHORT


def jpeg(shade: int, side: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (side, side), (shade, 99, 0)).save(buffer, "JPEG")
    return buffer.getvalue()


def prepared_again(said: str) -> bool:
    return "rule prepare_dataset" in said


@pytest.mark.slow
def test_a_folder_is_measured_and_prepared_again_when_its_images_change(workflow, tmp_path):
    folder = tmp_path / "own images"
    for name in ("b", "a"):
        (folder / name).mkdir(parents=True)
        for number in range(12):
            (folder / name / f"{number}.jpg").write_bytes(jpeg(20 * number, 16 + number % 2))
    config = copy.deepcopy(SHORT)
    config["sources"]["own"] = {"layout": "image_folder", "folder": str(folder), "resize": [12, 16]}
    tiny = config["experiments"]["tiny"]
    tiny["common"] |= {"dataset": "own", "cuda_graphs": "auto"}
    tiny["blocks"]["loaders"]["loader"].append("dali_cpu")
    flow = workflow(config)
    flow.run()
    records = [json.loads(text) for text in flow.files("results/records/**/*.json").values()]
    assert {record["cell"]["loader"] for record in records} == {"dataloader_sync", "resident", "dali_cpu"}
    assert {record["status"] for record in records} == {"done"}
    assert {record["resolved"]["cuda_graphs"] for record in records} == {False}  # on the CPU there are none
    (dali,) = (record for record in records if record["cell"]["loader"] == "dali_cpu")
    assert (dali["loading"]["fell_back"], dali["loading"]["images"] > 0) == ({}, True)
    table = pd.read_parquet(flow.folder / "data/own/manifest.parquet")
    assert len(table) == 24

    (folder / "a/notes.txt").write_text("no image")
    assert not prepared_again(flow.run("-n"))
    (folder / "a/new.jpg").write_bytes(jpeg(7, 16))
    assert prepared_again(flow.run("-n"))
    flow.run("data/own/manifest.parquet")
    assert len(pd.read_parquet(flow.folder / "data/own/manifest.parquet")) == 25
    assert len(list(folder.rglob("*.jpg"))) == 25
    config["sources"]["own"] |= {"limit": 8, "copies": 2, "times": 3}
    flow.configure(config)
    assert prepared_again(flow.run("-n", "data/own/manifest.parquet"))
    flow.run("data/own/manifest.parquet")
    table = pd.read_parquet(flow.folder / "data/own/manifest.parquet")
    assert table["split"].value_counts().to_dict() == {"train": 8 * 2 * 3, "val": 2}
    assert len(list((flow.folder / "data/own/images").rglob("*.jpg"))) == 8 * 2 + 2

    shutil.rmtree(folder)
    said = flow.run("-n", ok=False)
    assert f"no folder {folder}" in said
    assert "what to do: correct `folder` in its source, or mount what it lies on" in said

"""A dataset as folders of files and as one archive: the same samples, verdicts and training."""

import hashlib
import zipfile

import pytest
from data_fixtures import write_zip
from workflow_fixtures import with_blocks

pytestmark = [pytest.mark.slow, pytest.mark.realdata]

TIMES = ("started_at", "finished_at", "attempt")  # of a verdict, which differ from run to run


@pytest.fixture
def config(tmp_path, real_data) -> dict:
    """One loader on three classes of real images, 24 to train on and 6 held out of each."""
    with zipfile.ZipFile(real_data / "tiny-imagenet-40.zip") as archive:
        top = archive.namelist()[0].partition("/")[0]
        rows = archive.read(f"{top}/val/val_annotations.txt").decode().splitlines()
        wnids = archive.read(f"{top}/wnids.txt").decode().split()[:3]
        names, kept = [], []
        for wnid in wnids:
            train = [name for name in archive.namelist() if name.startswith(f"{top}/train/{wnid}/images/")]
            names += [name for name in train if not name.endswith("/")][:24]
            kept += [row for row in rows if row.split("\t")[1] == wnid][:6]
        names += [f"{top}/val/images/{row.split(chr(9))[0]}" for row in kept]
        files = {name: archive.read(name) for name in names}
    files[f"{top}/wnids.txt"] = "\n".join(wnids).encode()
    files[f"{top}/val/val_annotations.txt"] = "\n".join(kept).encode()
    digest = hashlib.sha256(write_zip(tmp_path / "real.zip", files).read_bytes()).hexdigest()
    real = {"layout": "tiny_imagenet", "files": [{"name": "real.zip", "sha256": digest}]}
    block = {"loader": "dataloader_sync", "augment": "torch", "dataset": "real"}
    tiny = with_blocks({"one": block})
    return tiny | {"sources": {"real": real}, "archives": [str(tmp_path)], "cache_decoder": "pillow"}


def judged(flow) -> dict[str, dict]:
    """What the verdicts say of the samples, by loader and setting."""
    found = flow.documents("results/gate/**/*.json")
    assert {verdict["status"] for verdict in found.values()} == {"passed"}
    return {path: {k: v for k, v in verdict.items() if k not in TIMES} for path, verdict in found.items()}


def learnt(records: dict[str, dict]) -> dict[str, tuple]:
    """What each cell, by its path, has learnt from."""
    assert {record["status"] for record in records.values()} == {"done"}
    return {
        path: (record["dataset"], [epoch["train_loss"] for epoch in record["epochs"]], record["accuracy"])
        for path, record in records.items()
    }


def test_an_archive_gives_the_same_results_as_folders(workflow, config, tmp_path, monkeypatch):
    monkeypatch.setenv("GPUFEED_UNPACK", str(tmp_path / "node"))
    flow = workflow(config)
    flow.run("--until", "measure_cell")
    verdicts, records = judged(flow), flow.documents("results/records/**/*.json")
    manifest, cache = flow.files("data/real/manifest.parquet"), flow.files("data/real/cache/*.npy")
    assert len(flow.files("data/real/images/**/*.JPEG")) == 90
    assert not (tmp_path / "node").exists()

    flow.configure(config | {"data_form": "packed"})
    flow.run("--until", "measure_cell")
    shared = [path for path in (flow.folder / "data/real").rglob("*") if path.is_file()]
    assert len(shared) < 20
    assert not (flow.folder / "data/real/images").exists()
    assert flow.files("data/real/manifest.parquet") == manifest
    assert flow.files("data/real/cache/*.npy") == cache
    assert judged(flow) == verdicts
    packed = flow.documents("results/records/**/*.json")
    assert learnt(packed) == learnt(records)  # of the same cells, by their names
    assert len([path for path in (tmp_path / "node").rglob("*.JPEG") if path.is_file()]) == 90
    assert [record["phases"]["unpack_s"] >= 0 for record in packed.values()] == [True]
    assert ["unpack_s" in record["phases"] for record in records.values()] == [False]
    assert "rule " not in flow.run("-n", "--until", "measure_cell")

    (flow.folder / "data/real/images.tar").unlink()  # a job that has to run waits for it
    (flow.folder / next(iter(packed))).unlink()
    assert "rule prepare_dataset:" in flow.run("-n", "--until", "measure_cell")

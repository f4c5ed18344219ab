"""Broken files, a decoder that the node lacks, and timed builds, from archive to report."""

import hashlib
import json

import pytest
import torch
from data_fixtures import jpeg, write_zip
from hostile_fixtures import huge_jpeg
from workflow_fixtures import with_blocks

from gpufeed.benchmarks.store_builds import DOCUMENT
from gpufeed.datasets.manifest import Manifest

pytestmark = pytest.mark.slow


BROKEN = {
    "train/n01/images/n01_cut.JPEG": jpeg(1, side=16)[:-200],
    "train/n02/images/n02_huge.JPEG": huge_jpeg(),
}


def images() -> dict[str, bytes]:
    """Two classes with 24 training and 2 validation images of 16 x 16 pixels each, and two broken files."""
    files, rows = {"wnids.txt": b"n01\nn02\n"}, []
    for number, wnid in enumerate(("n01", "n02")):
        for i in range(24):
            files[f"train/{wnid}/images/{wnid}_{i}.JPEG"] = jpeg(100 * number + i, side=16)
        for i in range(2):
            files[f"val/images/{wnid}_{i}.JPEG"] = jpeg(100 * number + 50 + i, side=16)
            rows.append(f"{wnid}_{i}.JPEG\t{wnid}\t0\t0\t9\t9\n")
    return {**files, **BROKEN, "val/val_annotations.txt": "".join(rows).encode()}


def config(tmp_path) -> dict:
    archive = write_zip(tmp_path / "tiny.zip", images())
    source = {
        "layout": "tiny_imagenet",
        "files": [{"name": "tiny.zip", "sha256": hashlib.sha256(archive.read_bytes()).hexdigest()}],
    }
    builds = {
        "dataset": "broken",
        "decoders": ["simplejpeg", "dali_gpu"],
        "one_core": ["opencv"],
        "counts": [30, 100],
    }
    block = {"loader": "resident", "augment": "torch", "dataset": "broken"}
    return with_blocks({"one": block}, builds=builds) | {
        "sources": {"broken": source},
        "archives": [str(tmp_path)],
        "max_quarantined_share": 0.05,
        "cache_decoder": "dali_gpu",
    }


def test_broken_files_and_timed_builds_reach_the_report(workflow, tmp_path):
    flow = workflow(config(tmp_path))
    flow.run()
    manifest = Manifest.read(flow.folder / "data/broken/manifest.parquet")
    assert len(manifest) == 52
    names = {image["path"].rpartition("/")[2] for image in manifest.info.quarantined}
    assert names == {name.rpartition("/")[2] for name in BROKEN}
    (record,) = flow.files("results/records/tiny/*/0.json").values()
    facts = json.loads(record)["dataset"]
    assert (facts["samples"], facts["quarantined"]) == (52, 2)
    sidecar = json.loads((flow.folder / "data/broken/cache/dali_gpu.json").read_text())
    if not torch.cuda.is_available():
        assert (sidecar["decoder"], sidecar["asked_for"]) == ("simplejpeg", "dali_gpu")
        assert "needs a CUDA GPU" in sidecar["because"]
        log = (flow.folder / "results/logs/build_cache/broken/dali_gpu.log").read_text()
        assert "simplejpeg builds the cache instead" in log
        assert facts["cache"].startswith("simplejpeg")
    times = {
        name: DOCUMENT.read(flow.folder / f"results/builds/tiny/{name}.json")
        for name in ("simplejpeg-all", "dali_gpu-all", "opencv-one")
    }
    assert times["dali_gpu-all"]["status"] == ("done" if torch.cuda.is_available() else "skipped")
    for name, cores in (("simplejpeg-all", 2), ("opencv-one", 1)):
        assert times[name]["cores"] == cores
        assert [(build["count"], build["files"]) for build in times[name]["builds"]] == [(30, 30), (100, 52)]
    page = (flow.folder / "results/report.html").read_text()
    assert "Building the cache" in page
    assert "100 (repeats of 52 real files)" in page
    assert "n02_huge.JPEG" in page
    assert "DecompressionBombError" in page
    assert "Nothing to be done" in flow.run()

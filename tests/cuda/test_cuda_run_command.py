"""gpufeed run on a GPU: one command from photographs to the leaderboard."""

import json
import re

import pytest

pytest.importorskip("snakemake")
from run_fixtures import make_folder, measured, run

MODEL = "torchvision:mobilenet_v3_small"
LOADERS = ("dataloader_workers", "host_cache", "torchvision_cuda")


@pytest.mark.timeout(560)
def test_photographs_are_measured_on_the_gpu(tmp_path, photographs):
    folder = make_folder(tmp_path)
    sizes = ("--size", "64", "--batch-size", "8", "--steps", "8")
    asked = (str(photographs), "--model", MODEL, *sizes, "--quick", "--loaders", *LOADERS)
    out = run(folder, *asked, most_s=530)
    assert measured(folder) == {(loader, MODEL, "done") for loader in (*LOADERS, "replay")}
    assert len(re.findall(r"^[123]  \S+.* 1$", out, re.MULTILINE)) == 3
    for path in (folder / "results/run/records").rglob("*.json"):
        record = json.loads(path.read_text())
        assert (record["resolved"]["device"], record["resolved"]["cuda_graphs"]) == ("cuda", True)

"""Several nodes with a GPU each, which are GPUs of one machine: NCCL talks between them as between nodes."""

import os
import time
from dataclasses import asdict

import ddp_fixtures
import fake_srun
import image_fixtures
import pytest
import torch

from gpufeed.benchmarks.end_to_end import measure
from gpufeed.core.cells import Cell
from gpufeed.core.config import read_hyper
from gpufeed.core.errors import GpufeedError
from gpufeed.core.record import RECORD
from gpufeed.training.distributed.launch_ranks import spread
from gpufeed.training.distributed.rank_files import Call

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs 2 GPUs")


@pytest.fixture(autouse=True)
def job(tmp_path, monkeypatch):
    """Makes this process one of a job with two nodes, each with one GPU of this machine."""
    fake_srun.install(tmp_path / "bin", ["n1", "n2"], "--a-gpu-each")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", str(os.getpid()))


def test_nodes_train_like_one_gpu_with_the_batches_of_all(tmp_path):
    manifest = image_fixtures.write_dataset(tmp_path / "tiny")
    image_fixtures.write_cache(manifest)
    arguments = {"folder": manifest.root, "batch_size": 6, "device": "cuda"}
    call = Call("ddp_fixtures:train_together", arguments, 1, "cuda", 1, nodes=2)
    together = spread(call, scratch=tmp_path / "scratch")
    alone = ddp_fixtures.train_together(manifest.root, 12, trainer="plain", device="cuda")
    for name, tensor in alone["weights"].items():
        torch.testing.assert_close(together["weights"][name], tensor.cpu(), rtol=1e-4, atol=1e-5)
    seen = [id for rank in together["seen"] for batch in rank for id in batch]
    assert sorted(seen) == sorted(manifest.ids("train").tolist() * 2)


def test_a_record_names_the_gpus_of_all_nodes(tmp_path):
    manifest = image_fixtures.write_dataset(tmp_path / "tiny", train=64, test=8)
    cache = image_fixtures.write_cache(manifest)
    hyper = {"model": {"channels": [4], "batch_norm": True}, "trainer": read_hyper("trainer", "lightning")}
    cell = Cell(
        "toys",
        "tiny",
        "resident",
        trainer="lightning",
        batch_size=8,
        device="cuda",
        nodes=2,
        hyper={**hyper, "augment": {}},
    )
    table = manifest.root / "manifest.parquet"
    record, steps = measure(cell.asdict(), 0, table, cache, "login1", scratch=tmp_path / "scratch")
    assert record.status == "done", record.sentence
    RECORD.check(asdict(record), tmp_path)
    uuids = [f"GPU-{torch.cuda.get_device_properties(place).uuid}" for place in (0, 1)]
    ranks = [{"node": node, "gpu": uuid} for node, uuid in zip(("n1", "n2"), uuids, strict=True)]
    assert record.resolved["ranks"] == ranks
    assert set(steps["images"]) == {16}


def test_a_rank_that_dies_ends_the_other_in_its_wait(tmp_path):
    """Which waits on the GPU, and not in a call that the loss of the other would end."""
    start = time.monotonic()
    with pytest.raises(GpufeedError, match="rank 1 of the training ended with SIGKILL"):
        spread(Call("ddp_fixtures:fail", {"how": "is killed"}, 1, "cuda", 1, nodes=2), scratch=tmp_path)
    assert time.monotonic() - start < 120

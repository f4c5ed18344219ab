"""What only a GPU can show of the trainer lightning, of resuming, and of several GPUs."""

import cuda_resume_fixtures as resume
import ddp_fixtures
import image_fixtures
import pytest
import torch
from test_cuda_trainer import losses, need

from gpufeed.benchmarks.end_to_end import measure
from gpufeed.core.cells import Cell
from gpufeed.core.config import read_hyper
from gpufeed.training.checkpoints import Checkpoints
from gpufeed.training.distributed.launch_ranks import spread
from gpufeed.training.distributed.rank_files import Call

PRECISIONS = ["fp32", "tf32", "fp16", "bf16"]
# rounding of the precision: Lightning's autocast keeps no copies of weights, plain's does
TOLERANCE = {"fp32": 1e-5, "tf32": 1e-5, "fp16": 1e-2, "bf16": 1e-2}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("optimiser", ["sgd", "adamw"])
def test_it_takes_the_steps_of_trainer_plain(tmp_path, precision, optimiser):
    need(precision)
    plain, ours = (
        resume.trained(tmp_path, trainer, precision, options={"optimiser": optimiser})[1]
        for trainer in ("plain", "lightning")
    )
    assert losses(ours) == pytest.approx(losses(plain), rel=TOLERANCE[precision], abs=1e-4)
    assert ours.epochs[-1]["train_loss"] < ours.epochs[0]["train_loss"]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_nothing_waits_inside_an_epoch(tmp_path, precision):
    """Neither Lightning nor what we do in its callbacks."""
    need(precision)
    _, result = resume.trained(tmp_path, "lightning", precision, strict=True)
    assert len(result.steps) == 3 * resume.STEPS


def test_the_model_stays_on_the_gpu(tmp_path):
    made, _ = resume.trained(tmp_path, "lightning", "fp32")
    assert {parameter.device.type for parameter in made.job.model.parameters()} == {"cuda"}


def test_a_compiled_model_is_compiled_before_the_clock(tmp_path):
    """Once for each of the two batch sizes, and not again by a step of Lightning's."""
    counters = torch._dynamo.utils.counters
    counters.clear()
    made = resume.made(tmp_path, "lightning", "bf16", compile=True)
    before = counters["stats"]["unique_graphs"]
    result = made.run()
    assert before >= 1
    assert counters["stats"]["unique_graphs"] == before
    assert result.epochs[-1]["train_loss"] < result.epochs[0]["train_loss"]


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("trainer", ["plain", "lightning"])
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_it_goes_on_to_the_same_weights(tmp_path, trainer, precision, graphs):
    need(precision)
    if graphs and trainer == "lightning":
        pytest.skip("trainer lightning has no CUDA graphs")
    whole = resume.trained(tmp_path, trainer, precision, cuda_graphs=graphs)
    kept = Checkpoints(tmp_path / "kept", 2)
    with pytest.raises(resume.PowerCut):
        resume.trained(tmp_path, trainer, precision, cuda_graphs=graphs, checkpoints=kept, ends_after=5)
    made, result = resume.trained(tmp_path, trainer, precision, cuda_graphs=graphs, checkpoints=kept)
    assert losses(result) == losses(whole[1])
    for name, tensor in whole[0].job.model.state_dict().items():
        assert torch.equal(made.job.model.state_dict()[name], tensor)


# --- several GPUs


def several(count: int):
    return pytest.mark.skipif(torch.cuda.device_count() < count, reason=f"needs {count} GPUs")


@pytest.mark.parametrize("devices", [pytest.param(n, marks=several(n)) for n in (2, 4)])
@pytest.mark.parametrize("batch_size", [5, 11])
def test_gpus_train_like_one_with_the_batches_of_all(tmp_path, devices, batch_size):
    """23 images: with 11 of them a step and several ranks, some have nothing left in the last step."""
    manifest = image_fixtures.write_dataset(tmp_path / "tiny")
    image_fixtures.write_cache(manifest)
    arguments = {"folder": manifest.root, "batch_size": batch_size, "device": "cuda"}
    together = spread(Call("ddp_fixtures:train_together", arguments, devices, "cuda", 1))
    alone = ddp_fixtures.train_together(manifest.root, batch_size * devices, trainer="plain", device="cuda")
    for name, tensor in alone["weights"].items():
        torch.testing.assert_close(together["weights"][name], tensor.cpu(), rtol=1e-4, atol=1e-5)
    assert [row["images"] for row in together["rows"]] == [row["images"] for row in alone["rows"]]
    for epoch in (0, 1):
        halves = [rank[epoch * len(rank) // 2 :][: len(rank) // 2] for rank in together["seen"]]
        seen = sorted(i for batches in halves for batch in batches for i in batch)
        assert seen == sorted(manifest.ids("train").tolist())


@several(2)
@pytest.mark.parametrize("loader", ["resident", "dataloader_workers"])
def test_a_cell_with_two_gpus_gives_one_record(tmp_path, loader, monkeypatch):
    monkeypatch.setenv("SLURM_NTASKS", "1")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    manifest = image_fixtures.write_dataset(tmp_path / "tiny", train=64, test=8)
    cache = image_fixtures.write_cache(manifest)
    workers = {"workers": 2, "prefetch_factor": 2} if loader == "dataloader_workers" else {}
    cell = Cell(
        "toys",
        "tiny",
        loader,
        trainer="lightning",
        batch_size=8,
        epochs=3,
        devices=2,
        hyper={
            "model": {"channels": [8, 16], "batch_norm": True},
            "trainer": {**read_hyper("trainer", "lightning"), "evaluate": "epoch"},
            "augment": {},
        },
        **workers,
    )
    record, _ = measure(
        cell.asdict(), 0, manifest.root / "manifest.parquet", cache if loader == "resident" else None, "here"
    )
    assert record.status == "done", record.sentence
    assert (record.resolved["device"], record.resolved["devices"]) == ("cuda", 2)
    assert [epoch["images"] for epoch in record.epochs] == [64] * 3
    assert [epoch["accuracy"]["images"] for epoch in record.epochs] == [8] * 3
    assert record.memory["peak_gpu_mib"] > 0

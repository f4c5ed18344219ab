"""python -m gpufeed.train on a GPU: the command of an interactive node, on images made on the spot."""

import json

import pytest
import torch
from compose_fixtures import train_in

SMALL = ("data.options.count=300", "data.options.size=32", "data.options.classes=3", "batch_size=32")


def about(folder):
    return json.loads((folder / "model.json").read_text())


def test_every_gpu_that_the_command_sees_trains(tmp_path):
    arguments = ("trainer.accelerator=gpu", "trainer.devices=auto", "model=vit_tiny", "model.depth=2")
    done = train_in(tmp_path, *arguments, *SMALL, "hydra.run.dir=run")
    assert done.returncode == 0, done.stderr
    found = about(tmp_path / "run")
    assert found["resolved"]["device"] == "cuda"
    assert found["cell"]["trainer"] == "lightning"
    assert found["cell"]["devices"] == torch.cuda.device_count()
    assert [epoch["images"] for epoch in found["epochs"]] == [240]


def test_the_plain_trainer_takes_one_gpu_and_a_cuda_graph(tmp_path):
    arguments = ("trainer.accelerator=gpu", "trainer=plain", "cuda_graphs=auto", "augment=fused", "epochs=2")
    done = train_in(tmp_path, *arguments, *SMALL, "hydra.run.dir=run")
    if "C compiler" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    found = about(tmp_path / "run")
    assert found["cell"]["devices"] == 1
    assert (found["cell"]["cuda_graphs"], found["resolved"]["cuda_graphs"]) == ("auto", True)

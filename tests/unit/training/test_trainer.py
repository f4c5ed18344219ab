import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from measure_fixtures import (
    CPU,
    OPTIONS,
    LossyLoader,
    Normalise,
    ToyLoader,
    hundred_steps_a_second,
    toy_manifest,
    toy_trainer,
)
from torch import nn

from gpufeed.core.errors import GpufeedError
from gpufeed.loaders.base import LoadRequest
from gpufeed.training.evaluate import answers
from gpufeed.training.optimisers import learning_rates, make_optimiser, set_learning_rate
from gpufeed.training.step import Snapshot


def test_torchs_own_defaults_have_no_fused_optimiser():
    options, weight = {**OPTIONS, "optimiser": "adam"}, nn.Parameter(torch.zeros(2))
    for usual, fused in ((False, True), (True, None)):
        asked = options | {"torch_defaults": usual}
        assert make_optimiser([weight], asked, torch.device("cuda")).defaults["fused"] is fused


def test_evaluation_counts_every_held_out_sample(tmp_path):
    trainer = toy_trainer(tmp_path, epochs=15)
    manifest = toy_manifest(tmp_path)
    loader = ToyLoader(LoadRequest(manifest, "test", batch_size=5, device=CPU, shuffle=False))
    normalise = Normalise(manifest.info.mean, manifest.info.std, 0, {})
    before = answers(trainer.job.model, loader, normalise, CPU, "fp32").accuracy()
    trainer.job.model.train()
    trainer.run()
    after = answers(trainer.job.model, loader, normalise, CPU, "fp32").accuracy()
    assert (after["split"], after["images"]) == ("test", 12)
    assert after["top1"] == after["correct"] / 12 > 0.9 > before["top1"]
    assert after["loss"] < before["loss"]


def test_precision_bf16_trains_in_bf16(tmp_path):
    seen = []
    trainer = toy_trainer(tmp_path, precision="bf16", epochs=15)
    trainer.job.model.classifier.register_forward_hook(lambda m, i, output: seen.append(output.dtype))
    result = trainer.run()
    assert set(seen) == {torch.bfloat16}
    assert all(p.dtype == torch.float32 for p in trainer.job.model.parameters())
    assert result.epochs[-1]["train_loss"] < result.epochs[0]["train_loss"] / 2


def test_a_lost_sample_ends_the_evaluation(tmp_path):
    manifest = toy_manifest(tmp_path)
    loader = LossyLoader(LoadRequest(manifest, "test", batch_size=4, device=CPU, shuffle=False))
    normalise = Normalise(manifest.info.mean, manifest.info.std, 0, {})
    model = toy_trainer(tmp_path).job.model
    with pytest.raises(GpufeedError, match="11 images from LossyLoader in the evaluation"):
        answers(model, loader, normalise, CPU, "fp32")


@pytest.mark.parametrize("optimiser", ["sgd", "adam", "adamw"])
def test_a_snapshot_makes_a_warm_up_leave_no_trace(tmp_path, optimiser):
    """The steps after a warm-up that was put back equal the steps without one."""
    losses = []
    for warm in (False, True):
        trainer = toy_trainer(tmp_path, options={"optimiser": optimiser}, epochs=3)
        if warm:
            snapshot = Snapshot(trainer.train_step)
            for batch in trainer.job.loader:
                trainer.train_step(batch.images, batch.labels, batch.ids, 0)
            snapshot.put_back()
            trainer.job.loader.epoch = 0
        losses.append([row["loss"] for row in trainer.run().steps])
    assert losses[0] == losses[1]


def test_label_smoothing_raises_the_floor_of_the_loss(tmp_path):
    result = toy_trainer(tmp_path, options={"label_smoothing": 0.3}, epochs=40).run()
    assert result.epochs[-1]["train_loss"] > 0.3


@given(st.integers(1, 60), st.floats(0, 1))
def test_one_cycle_rises_to_the_rate_and_falls(total, share):
    rates = learning_rates({**OPTIONS, "schedule": "one_cycle", "warmup_share": share}, total)
    assert len(rates) == total
    assert all(0 < rate <= OPTIONS["learning_rate"] * (1 + 1e-9) for rate in rates)
    top = rates.index(max(rates))
    assert rates[:top] == sorted(rates[:top])
    assert rates[top:] == sorted(rates[top:], reverse=True)


def test_one_cycle_uses_its_range():
    rates = learning_rates({**OPTIONS, "schedule": "one_cycle"}, 100)
    assert rates[29] == pytest.approx(OPTIONS["learning_rate"])
    assert rates[0] < OPTIONS["learning_rate"] / 20 > rates[-1] * 100


def test_constant_stays():
    assert learning_rates(OPTIONS, 3) == [1e-2] * 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"optimiser": "adma"}, "trainer.optimiser 'adma'"),
        ({"schedule": "cosine"}, "trainer.schedule 'cosine'"),
    ],
)
def test_unknown_names_are_refused(tmp_path, change, message):
    with pytest.raises(GpufeedError, match=message):
        toy_trainer(tmp_path, options=change)


def test_weight_decay_can_leave_biases_and_norms_alone():
    """Without a gradient AdamW changes a parameter by its decay alone."""
    model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.Conv2d(1, 1, 2))
    for parameter in model.parameters():
        nn.init.ones_(parameter)
        parameter.grad = torch.zeros_like(parameter)
    options = {**OPTIONS, "optimiser": "adamw", "weight_decay": 0.5}
    make_optimiser(model.parameters(), options | {"decay_matrices_only": True}, CPU).step()
    assert {p.ndim for p in model.parameters() if (p < 1).all()} == {2, 4}
    assert {p.ndim for p in model.parameters() if (p == 1).all()} == {1}
    make_optimiser(model.parameters(), options, CPU).step()
    assert all((p < 1).all() for p in model.parameters())


@pytest.mark.parametrize("decay_matrices_only", [False, True])
def test_groups_of_decay_share_the_learning_rate(decay_matrices_only):
    model, rate = nn.Linear(2, 2), 0.125
    options = {**OPTIONS, "weight_decay": 0.1, "decay_matrices_only": decay_matrices_only}
    optimiser = make_optimiser(model.parameters(), options, CPU, capturable=True)
    assert len(optimiser.param_groups) == 1 + decay_matrices_only
    set_learning_rate(optimiser, rate)
    assert [float(group["lr"]) for group in optimiser.param_groups] == [rate] * len(optimiser.param_groups)
    assert make_optimiser(model.parameters(), {**options, "weight_decay": 0.0}, CPU).param_groups[1:] == []


@pytest.mark.parametrize("capturable", [False, True])
def test_the_learning_rate_reaches_the_step(capturable):
    weight = nn.Parameter(torch.ones(1))
    options = {**OPTIONS, "optimiser": "sgd", "momentum": 0.0}
    optimiser = make_optimiser([weight], options, CPU, capturable)
    set_learning_rate(optimiser, 0.25)
    weight.sum().backward()
    optimiser.step()
    assert weight.item() == pytest.approx(0.75)


def test_what_is_measured_beyond_the_planned_end_is_not_judged(tmp_path, monkeypatch):
    hundred_steps_a_second(monkeypatch)
    asked = []

    def judge():
        asked.append(len(asked))
        return {"top1": 0.5, "loss": 1.0}

    result = toy_trainer(tmp_path, epochs=3, judge=judge).run(least_s=0.2)
    assert len(result.epochs) > 3
    assert asked == [0, 1]  # the end is judged after the run
    assert [epoch["accuracy"] is not None for epoch in result.epochs[:4]] == [True, True, False, False]

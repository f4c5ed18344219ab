"""The trainer lightning: the steps of trainer plain inside PyTorch Lightning, which leaves nothing behind."""

import os
import signal
import warnings

import measure_fixtures as toys
import pytest
import torch
from measure_fixtures import NaNModel
from pytorch_lightning.callbacks import RichProgressBar

from gpufeed.core.cells import Cell, impossible
from gpufeed.core.errors import GpufeedError
from gpufeed.training.engines import lightning
from gpufeed.training.engines.lightning import LightningTrainer, progress_bar
from gpufeed.training.engines.plain import PlainTrainer


def run(tmp_path, trainer=LightningTrainer, **job):
    """(result, final weights) of a toy job."""
    made = toys.prepared(toys.toy_job(tmp_path, **job), trainer)
    return made.run(), made.job.model.state_dict()


@pytest.mark.parametrize("optimiser", ["sgd", "adamw"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("length", [{"epochs": 3}, {"steps": 6}])
def test_it_takes_the_very_steps_of_trainer_plain(tmp_path, optimiser, precision, length):
    options = {"optimiser": optimiser, "schedule": "one_cycle", "weight_decay": 0.01, "label_smoothing": 0.1}
    found = [
        run(tmp_path, trainer, options=options, precision=precision, **length)
        for trainer in (PlainTrainer, LightningTrainer)
    ]
    (plain, plain_weights), (ours, our_weights) = found
    assert [row["loss"] for row in ours.steps] == [row["loss"] for row in plain.steps]
    assert all(torch.equal(our_weights[name], tensor) for name, tensor in plain_weights.items())


def test_it_warns_of_nothing(tmp_path, monkeypatch):
    srun = tmp_path / "bin/srun"
    srun.parent.mkdir()
    srun.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(srun.parent))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(tmp_path, epochs=2)


SLURM = {
    "SLURM_NTASKS": "2",
    "SLURM_JOB_NAME": "train",
    "SLURM_JOB_ID": "7",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS_PER_NODE": "2",
    "SLURM_NODELIST": "node[1-2]",
}


def test_slurms_variables_do_not_mislead_it(tmp_path, monkeypatch):
    for name, value in SLURM.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "hpc_ckpt_1.ckpt").write_text("a requeued job of somebody else left this")
    monkeypatch.chdir(tmp_path)
    result, _ = run(tmp_path, epochs=2)
    assert [epoch["images"] for epoch in result.epochs] == [30, 30]
    assert {name: os.environ[name] for name in SLURM} == SLURM  # for whatever comes after


def test_sigterm_stays_what_it_was(tmp_path):
    """Lightning's own handler would finish a step first, and leave the process waiting in a collective."""
    during = []
    run(tmp_path, epochs=1, on_epoch=lambda entry: during.append(signal.getsignal(signal.SIGTERM)))
    assert during == [signal.getsignal(signal.SIGTERM)]


@pytest.mark.parametrize("every", [0, 1, 3])
def test_a_loss_that_is_not_finite_is_looked_for_as_often_as_asked(tmp_path, every):
    class FailsLater(NaNModel):
        passes = 0

        def forward(self, images):
            self.passes += 1
            poison = float("nan") if self.passes == 2 else 1.0
            return toys.SimpleCNN.forward(self, images) * poison

    model = FailsLater(toys.CLASSES, channels=(8, 16))
    with pytest.raises(GpufeedError, match=r"training loss nan at step 1 \(epoch 0\)"):
        run(tmp_path, model=model, options={"check_every": every}, epochs=3)
    assert model.passes == {0: 4, 1: 2, 3: 3}[every]


@pytest.mark.parametrize(
    ("wanted", "terminal", "bars"),
    [("auto", True, 1), ("auto", False, 0), (True, False, 1), (False, True, 0)],
)
def test_a_progress_bar_is_for_terminals(tmp_path, monkeypatch, wanted, terminal, bars):
    monkeypatch.setattr(lightning.sys.stderr, "isatty", lambda: terminal, raising=False)
    monkeypatch.setattr(lightning.sys.stdout, "isatty", lambda: terminal, raising=False)
    found = progress_bar(toys.toy_job(tmp_path, options={"progress": wanted}))
    assert [type(bar) for bar in found] == [RichProgressBar] * bars


def test_the_progress_bar_runs(tmp_path, capsys):
    result, _ = run(tmp_path, options={"progress": True}, epochs=2)
    assert len(result.steps) == 8
    assert "Epoch" in capsys.readouterr().out


def test_cuda_graphs_are_refused(tmp_path):
    cell = Cell("e", "d", "resident", trainer="lightning", cuda_graphs=True)
    assert impossible(cell).startswith("trainer lightning calls Python between the parts of a step")

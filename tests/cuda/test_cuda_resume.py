"""A repeat on a CUDA GPU that ended before its time goes on at its step, to the losses of a whole one."""

import pytest
from cuda_cell_fixtures import STEPS, made_dataset, measured

from gpufeed.loaders.resident import ResidentLoader
from gpufeed.training.checkpoints import Checkpoints

# Two undisturbed trainings differ by rounding, which Adam magnifies. At this rate, on a CPU with gradients
# that scatter by 0.1 %, by 0.3 % in any step; without Adam's moments by 10 % after one step, 90 % in the end.
SLOW = ("trainer.schedule=constant", "trainer.learning_rate=0.00003")


@pytest.mark.parametrize("axes", STEPS.values(), ids=STEPS)
def test_a_repeat_that_was_interrupted_is_gone_on_with(tmp_path, monkeypatch, axes):
    dataset = made_dataset(tmp_path)
    axes = {"batch_size": 128, "epochs": 3, "overrides": SLOW, **axes}  # 16 steps an epoch
    whole, expected = measured(dataset, **axes)
    checkpoints = Checkpoints(tmp_path / "kept", 5, "this repeat")
    with monkeypatch.context() as until:
        until.setattr(ResidentLoader, "epoch_batches", ending(ResidentLoader.epoch_batches, after=23))
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            measured(dataset, checkpoints, **axes)
    found, steps = measured(dataset, checkpoints, **axes)
    assert (whole.resumed, found.resumed) == (None, [20])
    assert found.throughput is None
    assert steps["loss"].tolist() == pytest.approx(expected["loss"].tolist(), rel=0.05)


def ending(epoch_batches, after):
    """A loader's `epoch_batches`, interrupted when it is asked for one batch more than `after`."""
    left = iter(range(after))

    def interrupted(self, done):
        for batch in epoch_batches(self, done):
            if next(left, None) is None:
                raise KeyboardInterrupt
            yield batch

    return interrupted

"""A GPU whose memory really runs out: the next try has all of it again, and trains as if nothing had been."""

import pytest
import torch
from cuda_cell_fixtures import STEPS, made_dataset, measured

ROOM = 3 * 2**30  # bytes that torch may take


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return made_dataset(tmp_path_factory.mktemp("synthetic"))


@pytest.fixture
def little_memory():
    torch.cuda.empty_cache()
    whole = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(ROOM / whole)
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)


@pytest.mark.alone
@pytest.mark.parametrize("axes", STEPS.values(), ids=STEPS)
def test_a_batch_that_fits_is_found_and_trains_as_if_it_were_the_first(dataset, little_memory, axes):
    """resnet18 with the stem of ImageNet takes about 5.5 MB an image of 64 x 64 in fp32, forward and back."""
    axes = {"steps": 12, **axes}
    found, steps = measured(dataset, batch_size=2048, smallest_batch_size=16, **axes)
    fitted = found.resolved["batch_size"]
    assert 16 <= fitted < 2048
    assert found.memory["peak_gpu_mib"] <= ROOM / 2**20
    alone, own = measured(dataset, batch_size=fitted, **axes)
    assert "batch_size" not in alone.resolved
    assert steps["images"].tolist() == own["images"].tolist()
    assert steps["loss"].tolist() == pytest.approx(own["loss"].tolist(), rel=0.05)
    # as fast, too: nothing of the first try is in the way
    assert found.steps["total_ms"]["median"] == pytest.approx(alone.steps["total_ms"]["median"], rel=0.25)

"""Every test in this folder needs a CUDA GPU and is skipped, with the reason, where there is none."""

from pathlib import Path

import pytest
import torch

from gpufeed import native


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.cuda)
            if not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason="no CUDA GPU on this machine"))


@pytest.fixture
def device():
    return torch.device("cuda", torch.cuda.current_device())


@pytest.fixture(scope="module")
def extension():
    """The library with its CUDA kernels; skips where the node lacks what they need."""
    if sentence := native.status("cuda").sentence:
        pytest.skip(sentence)

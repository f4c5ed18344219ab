"""What tests of several rooms begin with."""

import pytest


@pytest.fixture
def manifest(tmp_path):
    """A dataset of 23 training and 6 test images of 8 x 8 pixels, which tell their id."""
    from image_fixtures import write_dataset  # imports torch

    return write_dataset(tmp_path / "tiny")

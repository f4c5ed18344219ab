"""The pipeline of SPDL's loaders, in this process."""

import gc
import weakref

import pytest
from image_fixtures import request, write_dataset
from process_fixtures import wait_until

pytest.importorskip("spdl.pipeline")
from gpufeed.loaders.spdl_pipeline import made_here


class Made:
    """What a part becomes."""


@pytest.mark.parametrize("taken", [1, 5])
def test_an_epoch_that_is_left_keeps_no_batches(tmp_path, taken):
    asked, made = request(write_dataset(tmp_path / "tiny"), None, workers=2), []

    def attempt(part):
        found = Made()
        made.append(weakref.ref(found))
        return found

    gc.collect()
    gc.disable()  # which would find them, late
    try:
        batches = made_here([*range(20)], attempt, 2, asked, threads=2)
        for _ in range(taken):
            next(batches)
        wait_until(lambda: len(made) >= taken + 5)  # some wait at its end by now
        batches.close()
        assert not any(one() for one in made)
    finally:
        gc.enable()

"""DALI's reading of files beside its decoding: their bytes, whatever is read after them."""

import numpy as np
import pytest
from hostile_fixtures import available

COUNT, BATCH = 48, 8


@pytest.mark.parametrize("threads", [1, 2, 16])
def test_each_batch_has_the_bytes_of_its_files(tmp_path, threads):
    available("dali_cpu")
    from gpufeed.loaders.dali_reader import FilePipeline, Planned

    random = np.random.default_rng(0)
    paths = [tmp_path / f"{number}{'long' * (number % 3)}.jpg" for number in range(COUNT)]
    for path in paths:
        path.write_bytes(random.integers(0, 256, random.integers(1, 500), np.uint8).tobytes())
    pipeline = FilePipeline([str(path) for path in paths], BATCH, threads)
    for epoch in range(20):
        asked = Planned(epoch, random.choice(COUNT, random.integers(1, BATCH + 1), replace=False))
        pipeline.begin(asked)
        batch, files = pipeline.take()
        assert batch is asked
        assert pipeline.batch is None
        read = [np.array(files[row]).tobytes() for row in range(len(asked.ids))]
        assert read == [paths[i].read_bytes() for i in asked.ids]

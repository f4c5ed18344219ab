"""DALI's reading of files beside its decoding: their bytes, and on how many threads."""

import time

import numpy as np
import pytest
from hostile_fixtures import available

COUNT, BATCH = 48, 8


@pytest.fixture
def paths(tmp_path):
    random = np.random.default_rng(0)
    found = [tmp_path / f"{number}.jpg" for number in range(COUNT)]
    for path in found:
        path.write_bytes(random.integers(0, 256, random.integers(1, 500), np.uint8).tobytes())
    return found


def rounds(pipeline, paths, count, working=0.0):
    """Reads batches in random order, each while something else works for some seconds, and compares them."""
    from gpufeed.loaders.dali_reader import Planned

    random = np.random.default_rng(1)
    for epoch in range(count):
        asked = Planned(epoch, random.choice(len(paths), BATCH, replace=False))
        pipeline.begin(asked)
        time.sleep(working)
        batch, files = pipeline.take()
        assert batch is asked
        read = [np.array(files[row]).tobytes() for row in range(BATCH)]
        assert read == [paths[i].read_bytes() for i in batch.ids]


@pytest.fixture
def slow(monkeypatch):
    """Batches come 10 ms later than they are asked for."""
    available("dali_cpu")
    from gpufeed.loaders import dali_files

    class Slow(dali_files.Pipeline):
        def share_outputs(self, *arguments, **options):
            time.sleep(0.01)
            return super().share_outputs(*arguments, **options)

    monkeypatch.setattr(dali_files, "Pipeline", Slow)


@pytest.mark.parametrize(("threads", "few"), [(1, 1), (2, 2), (7, 2), (16, 4)])
def test_a_quarter_of_the_threads_reads_what_comes_in_time(paths, threads, few):
    available("dali_cpu")
    from gpufeed.loaders.dali_files import LATE, FilePipeline

    pipeline = FilePipeline([str(path) for path in paths], BATCH, threads)
    rounds(pipeline, paths, 2 * LATE, working=0.01)
    assert pipeline.threads == few


def test_all_of_them_read_where_files_are_what_is_waited_for(paths, slow):
    from gpufeed.loaders.dali_files import LATE, FilePipeline

    pipeline = FilePipeline([str(path) for path in paths], BATCH, 16)
    rounds(pipeline, paths, LATE)
    assert pipeline.threads == 4
    rounds(pipeline, paths, 2 * LATE)  # the right files, on the way and afterwards
    assert pipeline.threads == 16


def test_now_and_then_a_late_one_changes_nothing(paths, slow):
    from gpufeed.loaders.dali_files import LATE, FilePipeline

    pipeline = FilePipeline([str(path) for path in paths], BATCH, 16)
    for _ in range(3):
        rounds(pipeline, paths, LATE - 1)
        rounds(pipeline, paths, 1, working=0.05)
    assert pipeline.threads == 4

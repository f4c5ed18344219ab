"""Nobody waits for ever: what gives nothing for long is an error, and can be left."""

import os
import signal
import time

import numpy as np
import pytest
import torch
from hostile_fixtures import photo, saved

from gpufeed.decode import parallel
from gpufeed.decode.parallel import Files, open_bulk
from gpufeed.decode.pillow import PillowDecoder
from gpufeed.errors import GpufeedError

CPU = torch.device("cpu")
COUNT = 20


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Paths of 20 JPEGs of 24 x 16 pixels and their pixels by Pillow, (20, 24, 16, 3)."""
    folder = tmp_path_factory.mktemp("images")
    files = [saved("JPEG", photo(24, 16) // 2 + np.uint8(i)) for i in range(COUNT)]
    paths = [folder / f"{i}.jpg" for i in range(COUNT)]
    for path, data in zip(paths, files, strict=True):
        path.write_bytes(data)
    return [str(path) for path in paths], np.stack(PillowDecoder().decode(files).images)


def opened(bulk, paths):
    bulk.open(Files(list(paths), 24, 16, 5))
    return bulk


def run(bulk, images):
    """All batches joined: a batch is only valid until the next one, so copies."""
    return np.concatenate([batch.numpy().copy() for batch in bulk.run(images)])


@pytest.mark.parametrize("stopped", [1, 3])
def test_stuck_processes_cost_one_wait_and_are_killed(images, monkeypatch, stopped):
    """Not one wait an answer that they owe, and none in close(): SIGTERM waits in a stopped process."""
    paths, pixels = images
    with open_bulk("simplejpeg", 3, CPU) as bulk:
        opened(bulk, paths)
        processes = [process for process, _ in bulk.workers]
        for process in processes[:stopped]:
            os.kill(process.pid, signal.SIGSTOP)
        monkeypatch.setattr(parallel, "STUCK_S", 1.0)
        begin = time.perf_counter()
        with pytest.raises(GpufeedError, match=r"a decoding process of simplejpeg said nothing for 1\.0 s"):
            run(bulk, 60)
        assert time.perf_counter() - begin < 2
        assert not any(process.is_alive() for process in processes)
        with pytest.raises(GpufeedError, match="no decoding process of simplejpeg any more"):
            run(bulk, 60)
        with pytest.raises(GpufeedError, match="no decoding process of simplejpeg any more"):
            opened(bulk, paths)
    with open_bulk("simplejpeg", 3, CPU) as bulk:
        assert np.array_equal(run(opened(bulk, paths), 10), pixels[:10])


def test_a_stuck_process_does_not_keep_close_waiting(images):
    bulk = opened(open_bulk("simplejpeg", 2, CPU), images[0])
    os.kill(bulk.workers[1][0].pid, signal.SIGSTOP)
    begin = time.perf_counter()
    bulk.close()
    assert time.perf_counter() - begin < 2

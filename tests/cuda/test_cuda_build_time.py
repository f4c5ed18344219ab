"""Device memory that a decoder takes while it builds a cache."""

import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import pandas as pd
import pytest
import torch
from hostile_fixtures import available, photo, saved
from image_fixtures import MEAN, STD

from gpufeed.benchmarks.store_builds import DOCUMENT, measure_build, peak_mib, used_mib
from gpufeed.core.registry import DECODERS, load
from gpufeed.datasets.manifest import DatasetInfo, Manifest

GPU = [name for name in DECODERS if load("decoder", name).parallel == "device"]


@pytest.mark.alone
@pytest.mark.parametrize("name", GPU)
def test_a_gpu_decoder_s_builds(name, tmp_path):
    available(name)
    rows = []
    for i in range(50):
        (tmp_path / f"{i}.jpg").write_bytes(saved("JPEG", photo(64, 64) // 2 + np.uint8(2 * i)))
        rows.append((f"{i}.jpg", 0, "train", 64, 64, 3))
    table = pd.DataFrame(rows, columns=["path", "label", "split", "height", "width", "channels"])
    path = Manifest(tmp_path, DatasetInfo("shades", "synthetic", ["a"], "test", MEAN, STD), table).write()
    # in a process of its own, as the rule has it: what a library keeps from its last use counts for none
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        arguments = (path, "demo", name, "all", [20, 3000], tmp_path / "out", "here")
        times = process.submit(measure_build, *arguments, threads=2).result()
    DOCUMENT.write(times, tmp_path / "times.json")
    assert (times["status"], times["sentence"]) == ("done", None)
    assert [(build["count"], build["files"]) for build in times["builds"]] == [(20, 20), (3000, 50)]
    assert times["environment"]["gpu"] is not None
    # a call's images are 12 MiB; the libraries keep buffers of their own
    assert 1 < times["builds"][1]["gpu_buffers_mib"] < 8192


def settled() -> float:
    """The device's memory in use, MiB, once the driver has taken back that of processes that have ended."""
    before, now = None, used_mib()
    while now != before:
        time.sleep(0.5)
        before, now = now, used_mib()
    return now


@pytest.mark.alone
def test_the_watch_sees_memory_that_comes_and_goes():
    torch.cuda.empty_cache()
    before = settled()
    with peak_mib(before) as peak:
        block = torch.empty(512 * 2**20, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
        torch.cuda._sleep(40_000_000)  # some 20 ms, in which the watch looks
        torch.cuda.synchronize()
        del block
        torch.cuda.empty_cache()
    assert 500 < peak.mib < 1024

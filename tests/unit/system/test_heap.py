"""Freed blocks stay with the process, whatever it freed before: no page faults in a steady loop."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from gpufeed.decoders.parallel import Files, open_bulk

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the setting is glibc's")

LOOP = """
import contextlib
import resource
import sys
sys.path.insert(0, {root!r})
with contextlib.suppress(Exception):
    {before}
import ctypes
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
def step():
    block = libc.malloc(ctypes.c_size_t(64 * 2**20))  # above the largest threshold that glibc adapts to
    ctypes.memset(block, 1, 64 * 2**20)
    libc.free(block)
step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
# the start of every measurement; what cannot be measured here ends after it
MEASUREMENTS = {
    "a cell": "from gpufeed.training.cell_training import settle_process; settle_process(None)",
    "a sweep": "from gpufeed.benchmarks.decoder_benchmark import measure_decoder as m; "
    "m('e', 'pillow', {}, {}, 'n')",
    "a build": "from gpufeed.benchmarks.store_builds import measure_build as m; "
    "m('none', 'e', 'd', 'all', [], '.', 'n')",
    "kernels": "from gpufeed.benchmarks.kernels.kernel_benchmark import measure_kernels as m; "
    "m('e', {}, 'n', 'cpu')",
}


def faults(root: Path, before: str) -> int:
    """Page faults of five steps after `before`, in a process of its own."""
    code = LOOP.format(root=str(root), before=before)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_without_the_setting_a_steady_loop_faults_pages(request):
    assert faults(request.config.rootpath, "pass") > 100


@pytest.mark.slow
@pytest.mark.parametrize("kind", MEASUREMENTS)
def test_every_measurement_faults_no_pages_in_a_steady_loop(request, kind):
    assert faults(request.config.rootpath, MEASUREMENTS[kind]) < 10


def test_decoding_processes_fault_few_pages(tmp_path):
    side, images = 1024, 4
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8))
    picture.resize((side, side)).save(tmp_path / "a.jpg", quality=90)
    paths = [str(tmp_path / "a.jpg")] * images
    with open_bulk("pillow", 1, torch.device("cpu")) as bulk:
        ((process, _),) = bulk.workers
        bulk.open(Files(paths, side, side, images))
        for _ in range(3):
            list(bulk.run(images))
        before = faults_of(process.pid)
        for _ in range(5):
            list(bulk.run(images))
        assert faults_of(process.pid) - before < 5 * images * 50  # 970 an image where blocks are given back


def faults_of(pid: int) -> int:
    """Minor page faults of a process so far. Source: proc_pid_stat(5), field 10."""
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[7])


POOL = """
import sys
sys.path[:0] = [{root!r}, {here!r}]
from gpufeed.system import processes
from test_heap import own_faults_of_steps
print(max(processes.run(own_faults_of_steps, ([5, 5],), 2)))
"""


def own_faults_of_steps(steps: int) -> int:
    """Page faults of so many large blocks, used and freed, in the process that is asked."""
    block = np.ones(2**23)  # 64 MiB
    del block
    before = faults_of(os.getpid())
    for _ in range(steps):
        block = np.ones(2**23)
        del block
    return faults_of(os.getpid()) - before


@pytest.mark.slow
def test_processes_of_a_pool_fault_no_pages(request):
    """From a parent of its own: in this one some test may have asked for more memory than there is."""
    code = POOL.format(root=str(request.config.rootpath), here=str(Path(__file__).parent))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 100

"""The kernels of `fused` and `chain` on the CPU: Triton's interpreter and Numba's simulator.

Both are switched on by the environment before the import, so each runs in a process of its own.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[3]


def run(code: str, **environment: str) -> str:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), **environment}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no Triton here")
needs_numba = pytest.mark.skipif(importlib.util.find_spec("numba_cuda") is None, reason="no numba-cuda here")

FUSED = """
import torch
from augment_fixtures import ONE_PASS, expected
from image_fixtures import MEAN, STD
from gpufeed.augment.fused import FusedAugment

ids = torch.tensor([0, 7, 2**31 + 5, 2**32 - 1])
seed = 2**40 + 2**31 + 3
worst = 0
for height, width in ((8, 8), (9, 7), (16, 20)):
    for options in ({}, ONE_PASS, {"crop_padding": 0, "brightness": 1.0}, {"salt_pepper": 1.0}):
        store = torch.randint(0, 256, (6, height, width, 3), dtype=torch.uint8)
        rows = torch.tensor([5, 0, 3, 3])
        fused = FusedAugment(MEAN, STD, seed, options)
        epochs = (4, torch.tensor(4)) if height == 8 else (torch.tensor(4), 4)
        out = fused(store[rows], ids, epochs[0])
        assert torch.equal(fused.gather(store, rows, ids, epochs[1]), out)
        assert out.is_contiguous(memory_format=torch.channels_last)
        for n in range(4):
            want = expected(store[rows[n]].numpy(), ids[n].item(), 4, MEAN, STD, seed, options)
            worst = max(worst, (out[n].double() - torch.from_numpy(want)).abs().max().item())
print(worst)
"""

CHAIN = """
import numpy as np
from augment_fixtures import EVERYTHING, expected
from image_fixtures import MEAN, STD
from gpufeed.augment import amounts, chain_kernels as kernels
from gpufeed.system import random_draws

n, height, width, seed, epoch = 3, 8, 10, 2**40 + 5, 4
images = np.random.default_rng(0).integers(0, 256, (n, height, width, 3), np.uint8)
ids, when = np.array([1, 2**31 + 9, 77]), np.array([epoch])
low, high = seed % 2**32, seed >> 32
state = random_draws.fold(random_draws.fold(0, low), high)
sizes = [np.float32(EVERYTHING[name]) for name in ("rotate_degrees", "brightness", "contrast")]
drawn = np.zeros((7, n), np.float32)
padding = EVERYTHING["crop_padding"]
kernels.draw_kernel[1, 4](ids, when, state, padding, 2**31, *sizes, drawn)
values = np.full((n, height * width * 3), np.nan, np.float32)
turned = values.copy()
grid = (n, 1), kernels.THREADS
kernels.window_kernel[grid](images.reshape(-1), drawn, padding, height, width, values.reshape(-1))
kernels.rotation_kernel[grid](values.reshape(-1), drawn[3], drawn[4], height, width, turned.reshape(-1))
kernels.brightness_kernel[grid](turned, drawn[5], turned)
kernels.contrast_kernel[grid](turned, drawn[6], np.float32(255 * EVERYTHING["contrast_pivot"]), turned)
pepper, salt = amounts.pepper_and_salt(EVERYTHING["salt_pepper"])
noise = ids, when, low, high, amounts.NOISE_TAG, pepper, 2**32 - salt
kernels.salt_pepper_kernel[grid](turned, *noise, turned)
out = ((turned.reshape(images.shape) / 255 - MEAN) / STD).transpose(0, 3, 1, 2)
want = [expected(images[k], int(ids[k]), epoch, MEAN, STD, seed, EVERYTHING) for k in range(n)]
print(np.abs(out - want).max())
"""

WITHOUT_ROW_STACK = """
import numpy
if hasattr(numpy, "row_stack"):  # before 2.5
    del numpy.row_stack
from gpufeed.augment.numba_cuda import cuda
import numba.cuda.np.arrayobj
print(hasattr(numpy, "row_stack"))
"""


@pytest.mark.slow
@needs_triton
def test_the_fused_kernel_against_float64():
    assert float(run(FUSED, TRITON_INTERPRET="1")) < 2e-5


@pytest.mark.slow
@needs_numba
def test_the_kernels_of_the_chain_against_float64():
    assert float(run(CHAIN, NUMBA_ENABLE_CUDASIM="1")) < 2e-5


@needs_numba
def test_numba_cuda_loads_with_a_numpy_that_has_no_row_stack():
    assert run(WITHOUT_ROW_STACK, NUMBA_ENABLE_CUDASIM="0") == "False\n"


@pytest.mark.parametrize("augment", ["chain", "fused"])
def test_planned_where_a_gpu_may_be_and_left_out_where_none_can(augment):
    from gpufeed.core.cells import Cell, impossible

    assert impossible(Cell("e", "d", "resident", augment=augment)) is None
    assert impossible(Cell("e", "d", "dataloader_sync", augment=augment, device="cuda")) is None
    for device in ("cpu", "mps"):
        sentence = impossible(Cell("e", "d", "replay", augment=augment, device=device))
        assert sentence == f"augment {augment} runs CUDA kernels, and the config says device {device}"


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
@pytest.mark.parametrize(("name", "package"), [("chain", "cupy"), ("fused", "triton")])
def test_without_a_gpu_the_sentence_says_so(name, package):
    pytest.importorskip(package)
    from image_fixtures import MEAN, STD

    from gpufeed.core.errors import Skip
    from gpufeed.core.registry import load

    with pytest.raises(Skip, match=f"Augment {name} runs its own kernels on a CUDA GPU"):
        load("augment", name)(MEAN, STD, 0, {})


@needs_triton
def test_tiles_of_a_program_are_a_power_of_two_and_leave_enough_programs():
    from gpufeed.augment.fused import PROGRAMS, tiles_each

    for tiles in (1, 3, 16, 49, 196):
        for images in (1, 128, 4096, 100_000):
            each = tiles_each(tiles, images)
            assert each & (each - 1) == 0
            assert each < 2 * tiles
            assert each == 1 or tiles * images / each >= PROGRAMS

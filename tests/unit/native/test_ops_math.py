"""The formulas of the CUDA kernels, on the CPU: every 16-bit value, and float32 where it matters."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from gelu_fixtures import FORMS, all_values, exact, ulps

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def values(tmp_path_factory):
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    library = tmp_path_factory.mktemp("gelu") / "gelu_math.so"
    source, headers = ROOT / "tests/fixtures/gelu_math.cpp", ROOT / "gpufeed/native/csrc"
    options = ["-O2", "-std=c++17", "-shared", "-fPIC", f"-I{headers}"]
    subprocess.run([compiler, *options, source, "-o", library], check=True)
    run = ctypes.CDLL(str(library)).values
    run.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, *[ctypes.c_bool] * 3]
    run.restype = None

    def found(z: np.ndarray, form: str, half_width: bool, derivative: bool = False) -> np.ndarray:
        z = np.ascontiguousarray(z, np.float32)
        to = np.empty_like(z)
        run(z.ctypes.data, to.ctypes.data, z.size, form == "tanh", half_width, derivative)
        return to

    return found


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_16_bit_value_is_within_one_unit_of_the_last_place(values, form, dtype):
    z = all_values(dtype)
    found = torch.from_numpy(values(z.float().numpy(), form, half_width=True)).to(dtype)
    assert ulps(found, torch.from_numpy(exact(z.double().numpy(), form))).max() <= 1


@pytest.mark.parametrize("form", FORMS)
def test_every_derivative_is_within_one_unit_of_bfloat16(values, form):
    z = all_values(torch.bfloat16)
    found = torch.from_numpy(values(z.float().numpy(), form, half_width=True, derivative=True))
    expected = torch.from_numpy(exact(z.double().numpy(), form, derivative=True))
    assert ulps(found.bfloat16(), expected).max() <= 1
    finite = ~z.isnan()
    assert (found.double() - expected)[finite].abs().max() < 1e-5


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("derivative", [False, True])
def test_float32_keeps_its_accuracy_where_the_result_is_small(values, form, derivative):
    z = np.linspace(-13, 13, 400_001).astype(np.float32)
    found, expected = values(z, form, False, derivative), exact(z, form, derivative)
    assert np.abs(found - expected).max() < 5e-7
    small = z < -2  # left of the root of the derivative, relative: an exponent of 100 carries its rounding
    np.testing.assert_allclose(found[small], expected[small], rtol=3e-5, atol=1e-41)


def test_infinities_have_their_limits_and_nan_goes_through(values):
    for form in FORMS:
        for half_width in (True, False):
            found = values(np.array([-np.inf, np.inf, np.nan, -3e38, 3e38]), form, half_width)
            assert found[0] == 0
            assert found[1] == np.inf
            assert np.isnan(found[2])
            assert found[3] == 0
            assert found[4] == np.float32(3e38)
            slopes = values(np.array([-np.inf, np.inf, np.nan]), form, half_width, derivative=True)
            assert slopes[:2].tolist() == [0, 1]
            assert np.isnan(slopes[2])

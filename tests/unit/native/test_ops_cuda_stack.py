"""The CUDA build of the extension, compiled, linked and loaded in both CUDA stacks, without a GPU."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from data_fixtures import REPOSITORY
from uv_fixtures import pinned_uv

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

# with nvcc and what it needs, in versions that belong together: no toolkit has to be installed
PACKAGES = ("torch", "numpy", "setuptools", "ninja", "cuda-toolkit[nvcc,crt,nvvm,cccl]")
BUILD = """
import json, sys
from gpufeed.native.build import build
built = build(sys.argv[1], cuda=True)
print(json.dumps([str(built.library), built.about.cuda, built.about.architectures]))
"""
LOAD = """
import json, sys, torch
from torch._subclasses.fake_tensor import FakeTensorMode
from gpufeed import native
native.load(sys.argv[1])
names = ("bias_gelu", "bias_gelu_backward", "linear_bias_gelu", "column_sum")
names += ("decode_jpegs", "decode_jpeg_files")
kernels = [
    [name, key]
    for name in names
    for key in ("CPU", "CUDA")
    if torch._C._dispatch_has_kernel_for_dispatch_key(f"gpufeed::{name}", key)
]
x = torch.randn(5, 8)
near = torch.nn.functional.gelu(x + 1)
same = torch.allclose(native.bias_gelu(x, torch.ones(8)), near, atol=1e-6)
with FakeTensorMode():
    fake = native.bias_gelu(torch.empty(5, 8, device="cuda"), torch.empty(8, device="cuda"))
print(json.dumps([kernels, same, str(native.status("cuda")), [*fake.shape, fake.device.type]]))
"""


@dataclass(frozen=True)
class Stack:
    """A CUDA stack: its Python, the variables by which a build finds its nvcc, and what it builds for."""

    cuda: str
    python: Path
    architectures: list
    variables: dict = field(default_factory=dict)


@pytest.fixture(scope="module", params=["12", "13"])
def stack(request) -> Stack:
    return cuda_12() if request.param == "12" else cuda_13(request)


def cuda_12() -> Stack:
    """This environment, with a toolkit from elsewhere; one architecture, as each takes ten seconds."""
    if not (torch.version.cuda or "").startswith("12."):
        pytest.skip(f"needs torch of CUDA 12; this is {torch.__version__}")
    home = os.environ.get("GPUFEED_NVCC12")
    if home is None:
        pytest.skip("needs an nvcc of CUDA 12 in the folder GPUFEED_NVCC12: sh containers/nvcc12.sh FOLDER")
    return Stack("12", Path(sys.executable), ["9.0"], {"CUDA_HOME": home, "TORCH_CUDA_ARCH_LIST": "9.0"})


def cuda_13(request) -> Stack:
    """An environment with the CUDA 13 stack and its nvcc; it stays in pytest's cache."""
    uv = pinned_uv()
    folder = Path(request.config.cache.mkdir("cuda13")) / "venv"
    python = folder / "bin/python"
    if not python.exists():
        subprocess.run([uv, "venv", "-q", "--python", sys.executable, folder], check=True)
    constraints = REPOSITORY / "envs/constraints-cuda13.txt"
    command = [uv, "pip", "install", "-q", "--python", python, "--constraint", constraints, *PACKAGES]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode and any(said in done.stderr for said in ("error sending request", "Failed to fetch")):
        pytest.skip(f"the package index cannot be reached: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    # the newest that it builds for: test_bare_debian.py compiles for the oldest, too
    return Stack("13", python, ["9.0+PTX"], {"TORCH_CUDA_ARCH_LIST": "9.0+PTX"})


@pytest.fixture(scope="module")
def built(stack, tmp_path_factory) -> list:
    """[path, toolkit's version, architectures] of the library."""
    return json.loads(run(stack, BUILD, str(tmp_path_factory.mktemp("extension"))))


def run(stack: Stack, code: str, argument: str) -> str:
    """The last line that the code prints, with nothing but that environment and a C++ compiler in sight."""
    hidden = ("CUDA_HOME", "CUDA_PATH", "TORCH_CUDA_ARCH_LIST", "VIRTUAL_ENV", "PYTHONHOME")
    environment = {key: value for key, value in os.environ.items() if key not in hidden}
    compilers = [shutil.which(name) for name in ("c++", "g++")]
    if not any(compilers):
        pytest.skip("needs a C++ compiler")
    # /usr/bin has the compiler's own programs, and no nvcc where CUDA comes from NVIDIA
    folders = [
        str(stack.python.parent),
        *(str(Path(path).parent) for path in compilers if path),
        "/usr/bin",
        "/bin",
    ]
    environment |= {"PATH": os.pathsep.join(folders), "PYTHONPATH": str(REPOSITORY)} | stack.variables
    command = [stack.python, "-c", code, argument]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=Path(argument).parent)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip().splitlines()[-1]


def test_it_compiles_for_the_gpus_of_the_stack(stack, built):
    path, cuda, architectures = built
    assert cuda.startswith(f"{stack.cuda}.")
    assert architectures == stack.architectures
    assert b".nv_fatbin" in Path(path).read_bytes()


def test_it_loads_beside_torch_with_a_cuda_kernel_for_every_op(stack, built):
    kernels, same, status, fake = json.loads(run(stack, LOAD, built[0]))
    assert len(kernels) == 12  # of six ops
    assert same
    assert "implementation='extension'" in status
    assert fake == [5, 8, "cuda"]


def test_it_keeps_no_path_of_the_libraries_that_torch_brings(stack, built):
    readelf = shutil.which("readelf")
    if readelf is None:
        pytest.skip("needs readelf")
    dynamic = subprocess.run([readelf, "-d", built[0]], capture_output=True, text=True, check=True).stdout
    assert f"[libcublasLt.so.{stack.cuda}]" in dynamic
    assert f"[libcudart.so.{stack.cuda}]" in dynamic
    assert "RPATH" not in dynamic
    assert "RUNPATH" not in dynamic

"""The CUDA build of the extension, compiled, linked and loaded in both CUDA stacks, without a GPU.

With that of CUDA 12 only where tests/system/test_bare_debian.py, which does it, cannot run (.ci/run).
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from data_fixtures import REPOSITORY
from ops_fixtures import LOAD, assert_links_to, assert_loaded
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


@pytest.fixture(scope="module", params=["12", "13"])
def stack(request) -> tuple[str, Path, dict[str, str]]:
    """A CUDA version, the Python of its stack, and the variables by which a build finds its nvcc."""
    if request.param == "13":
        return "13", python_13(request), {}
    home = os.environ.get("GPUFEED_NVCC12")
    if home is None or not (torch.version.cuda or "").startswith("12."):
        pytest.skip(
            "needs torch of CUDA 12, and GPUFEED_NVCC12: the folder of sh containers/nvcc12.sh FOLDER"
        )
    return "12", Path(sys.executable), {"CUDA_HOME": home}


def python_13(request) -> Path:
    """That of an environment with the CUDA 13 stack and its nvcc, which stays in pytest's cache."""
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
    return python


def run(python: Path, variables: dict[str, str], code: str, argument: str) -> str:
    """The last line that the code prints, with nothing but that environment and a C++ compiler in sight."""
    hidden = ("CUDA_HOME", "CUDA_PATH", "VIRTUAL_ENV", "PYTHONHOME")
    environment = {key: value for key, value in os.environ.items() if key not in hidden}
    compilers = [path for name in ("c++", "g++") if (path := shutil.which(name))]
    if not compilers:
        pytest.skip("needs a C++ compiler")
    # /usr/bin has the compiler's own programs, and no nvcc where CUDA comes from NVIDIA
    folders = [str(python.parent), *(str(Path(path).parent) for path in compilers), "/usr/bin", "/bin"]
    environment |= {"PATH": os.pathsep.join(folders), "PYTHONPATH": str(REPOSITORY)}
    environment |= {"TORCH_CUDA_ARCH_LIST": "9.0+PTX"} | variables  # one: each takes ten seconds
    command = [python, "-c", code, argument]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=Path(argument).parent)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip().splitlines()[-1]


def test_it_compiles_links_and_loads_beside_torch_without_a_gpu(stack, tmp_path):
    version, *place = stack
    path, cuda, architectures = json.loads(run(*place, BUILD, str(tmp_path / "extension")))
    assert cuda.startswith(f"{version}.")
    assert architectures == ["9.0+PTX"]
    assert_links_to(Path(path), version)
    assert_loaded(run(*place, LOAD, path))

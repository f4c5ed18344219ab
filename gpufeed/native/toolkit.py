"""The compilers of this node, C++ and an nvcc of torch's CUDA major version, and for which GPUs they build.

That a GPU is visible decides nothing but the architecture, so that a login node builds for the GPU nodes.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch

from gpufeed.core.errors import Skip

WANTED = ((7, 0), (7, 5), (8, 0), (8, 6), (8, 9), (9, 0))  # built for where no GPU says which


@dataclass(frozen=True)
class Toolkit:
    """An nvcc that runs. home: where its include is. version: (major, minor). capabilities: all it knows."""

    nvcc: Path
    home: Path
    version: tuple[int, int]
    capabilities: tuple[tuple[int, int], ...]


def cxx() -> str:
    """Return the C++ compiler: what CXX names, else c++, g++ or clang++; raises Skip if there is none."""
    named = os.environ.get("CXX")
    for name in (named,) if named else ("c++", "g++", "clang++"):
        if shutil.which(name):
            return name
    found = (
        f"CXX is {named}, which is no program here" if named else "neither c++ nor g++ nor clang++ is found"
    )
    raise Skip(f"The gpufeed.native extension needs a C++ compiler, and {found}: install g++ or set CXX.")


def ninja() -> Path:
    """Return the ninja that torch.utils.cpp_extension shall find in PATH; raises Skip if there is none."""
    # a virtual environment that nobody activated has it beside its Python, and not in PATH
    beside = str(Path(sys.executable).parent)
    found = shutil.which("ninja") or shutil.which("ninja", path=beside)
    if found is None:
        raise Skip("The gpufeed.native extension needs ninja, which this node lacks: pip install ninja.")
    return Path(found)


def version_line(program: str | Path) -> str:
    """Return the line with the version of what a compiler says of itself."""
    lines = output(program, "--version").strip().splitlines() or [f"{program}, which says no version"]
    return next((line for line in lines if "release" in line), lines[0]).strip()


def cuda_toolkit() -> tuple[Toolkit | None, str | None]:
    """Return the first nvcc of torch's CUDA major version and None, or None and why there is none, as a sentence."""
    if torch.version.cuda is None:
        return None, (
            f"The extension has no CUDA kernels: found torch {torch.__version__}, built without CUDA; "
            "install a torch of a CUDA stack (make setup CUDA=13), and build again."
        )
    major, others = int(torch.version.cuda.split(".")[0]), {}
    for nvcc in dict.fromkeys(candidates()):
        toolkit = examine(nvcc)
        if toolkit and toolkit.version[0] == major:
            return toolkit, None
        if toolkit:
            others.setdefault(toolkit.home, f"nvcc {dotted(toolkit.version)} ({nvcc})")
    found = " and ".join(others.values()) or "no nvcc in CUDA_HOME, PATH, Python's packages and /usr/local"
    # cuda-toolkit, which comes with torch, pins what belongs together; nvcc's package alone takes a later crt
    # with which it compiles nothing. The package for CUDA 12 holds no nvcc.
    wheel = ", or pip install 'cuda-toolkit[nvcc,crt,nvvm,cccl]'" if major >= 13 else ""
    debian = "; docs/containers.md has one for Debian" if major == 12 else ""
    return None, (
        f"The extension has no CUDA kernels: found {found}; torch {torch.__version__} needs an nvcc of CUDA "
        f"{major}; set CUDA_HOME to a CUDA {major} toolkit (on a cluster: module load cuda/{major}{debian})"
        f"{wheel}, and build again."
    )


def candidates() -> Iterator[Path]:
    """Yield every nvcc of this node, the one that the person named first."""
    folders = [Path(home) / "bin" for name in ("CUDA_HOME", "CUDA_PATH") if (home := os.environ.get(name))]
    folders += [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    folders += [include.parent / "bin" for include in wheel_includes()]
    folders += [Path("/usr/local/cuda/bin"), *sorted(Path("/usr/local").glob("cuda-*/bin"))]
    for folder in folders:
        if os.access(folder / "nvcc", os.X_OK):
            yield folder / "nvcc"


def wheel_includes() -> list[Path]:
    """Return the include folders of NVIDIA's Python packages: cuBLAS, CUDA's runtime and, where installed, nvcc."""
    spec = find_spec("nvidia")
    places = (spec.submodule_search_locations or []) if spec else []
    return [include for place in places for include in sorted(Path(place).glob("*/include"))]


def examine(nvcc: Path) -> Toolkit | None:
    """Return what an nvcc says of itself; None if it does not run."""
    version = re.search(r"release (\d+)\.(\d+)", output(nvcc, "--version"))
    if version is None:
        return None
    # a script in PATH may stand for one elsewhere: where it works is what nvcc itself calls TOP
    top = re.search(r"^#\$ TOP=(.+)$", output(nvcc, "--dryrun", "-x", "cu", os.devnull), re.MULTILINE)
    home = Path(top[1].strip()).resolve() if top else nvcc.resolve().parents[1]
    known = re.findall(r"compute_(\d+)(\d)\b", output(nvcc, "--list-gpu-arch"))
    return Toolkit(
        nvcc, home, (int(version[1]), int(version[2])), tuple(sorted((int(a), int(b)) for a, b in known))
    )


def output(*command: str | Path) -> str:
    """Return what a command says, on both streams; "" if it does not run."""
    try:
        done = subprocess.run(
            [*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout if done.returncode == 0 else ""


def architectures(toolkit: Toolkit, arch_list: str | None) -> tuple[tuple[str, ...], str | None]:
    """Return what to build for, and None; or nothing and, as a sentence, why nothing fits.

    arch_list: as TORCH_CUDA_ARCH_LIST, "8.0;9.0+PTX". Without it the present GPUs, and without those all
    of WANTED that the toolkit knows, the last with PTX for later GPUs.
    """
    if arch_list and arch_list != "native":
        return tuple(part for part in re.split(r"[;, ]+", arch_list) if part), None
    present = sorted({torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count())})
    if not present:
        wanted = [dotted(capability) for capability in WANTED if capability in toolkit.capabilities]
        return (*wanted[:-1], f"{wanted[-1]}+PTX"), None
    known, found = toolkit.capabilities, []
    for capability in present:
        older = [other for other in known if other <= capability]
        if not older:
            return (), (
                f"The extension has no CUDA kernels: found a GPU of compute capability {dotted(capability)}; "
                f"nvcc {dotted(toolkit.version)} builds for {dotted(known[0])} and later; use an older stack."
            )
        # a GPU later than this nvcc compiles the PTX of the latest one that it knows
        found.append(dotted(capability) if capability in known else f"{dotted(older[-1])}+PTX")
    return tuple(dict.fromkeys(found)), None


def dotted(pair: tuple[int, int]) -> str:
    return f"{pair[0]}.{pair[1]}"

"""The compilers of this node, C++ and an nvcc of torch's CUDA major version, and their GPU architectures.

A visible GPU only decides the architecture, so that a login node can build for the GPU nodes.
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

WANTED = ((7, 0), (7, 5), (8, 0), (8, 6), (8, 9), (9, 0))  # architectures for a build without a GPU


@dataclass(frozen=True)
class Toolkit:
    """An nvcc that runs.

    home: folder of its include. version: (major, minor). capabilities: all that it supports.
    """

    nvcc: Path
    home: Path
    version: tuple[int, int]
    capabilities: tuple[tuple[int, int], ...]


def cxx() -> str:
    """Return the C++ compiler: what CXX names, else c++, g++ or clang++; raise Skip without one."""
    named = os.environ.get("CXX")
    for name in (named,) if named else ("c++", "g++", "clang++"):
        if shutil.which(name):
            return name
    found = (
        f"CXX is {named}, which is not a program here" if named else "c++, g++ and clang++ are all missing"
    )
    raise Skip(f"The gpufeed.native extension needs a C++ compiler, and {found}: install g++ or set CXX.")


def ninja() -> Path:
    """Return the ninja that torch.utils.cpp_extension must find in PATH; raise Skip without one."""
    # a virtual environment that is not activated has it beside its Python, not in PATH
    beside = str(Path(sys.executable).parent)
    found = shutil.which("ninja") or shutil.which("ninja", path=beside)
    if found is None:
        raise Skip("The gpufeed.native extension needs ninja, which this node lacks: pip install ninja.")
    return Path(found)


def version_line(program: str | Path) -> str:
    """Return the version line of a compiler's output."""
    lines = output(program, "--version").strip().splitlines() or [f"{program}, without a version"]
    return next((line for line in lines if "release" in line), lines[0]).strip()


def cuda_toolkit() -> tuple[Toolkit | None, str | None]:
    """Return the first nvcc of torch's CUDA major version and None, or None and the reason, as a sentence."""
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
    # cuda-toolkit, which torch depends on, pins matching versions; nvcc's package alone would install a later
    # crt, with which it cannot compile. The package for CUDA 12 has no nvcc.
    wheel = ", or pip install 'cuda-toolkit[nvcc,crt,nvvm,cccl]'" if major >= 13 else ""
    debian = "; docs/guide/containers.md has one for Debian" if major == 12 else ""
    return None, (
        f"The extension has no CUDA kernels: found {found}; torch {torch.__version__} needs an nvcc of CUDA "
        f"{major}; set CUDA_HOME to a CUDA {major} toolkit (on a cluster: module load cuda/{major}{debian})"
        f"{wheel}, and build again."
    )


def candidates() -> Iterator[Path]:
    """Yield every nvcc of this node, first the one that variables name."""
    folders = [Path(home) / "bin" for name in ("CUDA_HOME", "CUDA_PATH") if (home := os.environ.get(name))]
    folders += [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    folders += [include.parent / "bin" for include in wheel_includes()]
    folders += [Path("/usr/local/cuda/bin"), *sorted(Path("/usr/local").glob("cuda-*/bin"))]
    for folder in folders:
        if os.access(folder / "nvcc", os.X_OK):
            yield folder / "nvcc"


def wheel_includes() -> list[Path]:
    """Return the include folders of NVIDIA's Python packages: cuBLAS, CUDA's runtime and nvcc."""
    spec = find_spec("nvidia")
    places = (spec.submodule_search_locations or []) if spec else []
    return [include for place in places for include in sorted(Path(place).glob("*/include"))]


def examine(nvcc: Path) -> Toolkit | None:
    """Return the toolkit of an nvcc; None if it does not run."""
    version = re.search(r"release (\d+)\.(\d+)", output(nvcc, "--version"))
    if version is None:
        return None
    # a script in PATH may wrap an nvcc elsewhere, whose home nvcc prints as TOP
    top = re.search(r"^#\$ TOP=(.+)$", output(nvcc, "--dryrun", "-x", "cu", os.devnull), re.MULTILINE)
    home = Path(top[1].strip()).resolve() if top else nvcc.resolve().parents[1]
    known = re.findall(r"compute_(\d+)(\d)\b", output(nvcc, "--list-gpu-arch"))
    return Toolkit(
        nvcc, home, (int(version[1]), int(version[2])), tuple(sorted((int(a), int(b)) for a, b in known))
    )


def output(*command: str | Path) -> str:
    """Return a command's output on both streams; "" if it fails."""
    try:
        done = subprocess.run(
            [*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout if done.returncode == 0 else ""


def architectures(toolkit: Toolkit, arch_list: str | None) -> tuple[tuple[str, ...], str | None]:
    """Return what to build for, and None; or nothing and, as a sentence, why nothing fits.

    arch_list: as TORCH_CUDA_ARCH_LIST, "8.0;9.0+PTX". Without it, use the present GPUs. Without those, use
    all of WANTED that the toolkit supports, the last with PTX for later GPUs.
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
        # a GPU newer than this nvcc compiles the PTX of the newest one that nvcc knows
        found.append(dotted(capability) if capability in known else f"{dotted(older[-1])}+PTX")
    return tuple(dict.fromkeys(found)), None


def dotted(pair: tuple[int, int]) -> str:
    return f"{pair[0]}.{pair[1]}"

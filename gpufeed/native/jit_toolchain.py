"""Whether Triton and torch.compile can compile here: C++ for the CPU, Triton kernels for a GPU.

Triton compiles a Python extension in C for each kernel, on the node that runs it.
"""

import importlib.util
import os
import shutil
import sys
import sysconfig
from pathlib import Path

import torch

from gpufeed.core.errors import Skip

VOLTA = (7, 0)  # first compute capability that Triton compiles for


def interpreted() -> bool:
    """Return whether Triton interprets kernels with numpy on the CPU, by its own environment variable."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def lacking_for_triton() -> str | None:
    """Return what this node lacks of a C compiler and Python.h, searched as Triton does; None if nothing."""
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return "no C compiler: CC is not set, and neither gcc nor clang is found"
    if shutil.which(compiler) is None:
        return f"no C compiler: CC is {compiler}, which is not a program here"
    scheme = sysconfig.get_default_scheme()
    # Debian's Python gives posix_local, a folder without headers
    scheme = "posix_prefix" if scheme == "posix_local" else scheme
    header = Path(sysconfig.get_paths(scheme=scheme)["include"]) / "Python.h"
    return None if header.exists() else f"no {header}"


# Inductor's options: products as with mode="max-autotune", without printing the candidates
MAX_AUTOTUNE = {
    "max_autotune_gemm": True,
    "autotune_num_choices_displayed": 0,
    "max_autotune_report_choices_stats": False,
}


def require_compiler(device: torch.device) -> None:
    """Raise Skip if a model on this device cannot be compiled here."""
    if device.type not in ("cuda", "cpu"):
        raise Skip(f"Models are compiled for CUDA and the CPU, and this cell's device is {device.type}.")
    missing = lacking_for_gpu(device) if device.type == "cuda" else lacking_for_cpu()
    if missing is not None:
        raise Skip(f"torch.compile needs a compiler on the node, which has {missing}.")


def lacking_for_cpu() -> str | None:
    """Return what this node lacks of a C++ compiler, searched as torch's Inductor does; None if nothing."""
    compiler = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    if shutil.which(compiler) is None:
        named = (
            f"CXX is {compiler}, which is not a program here" if os.environ.get("CXX") else f"no {compiler}"
        )
        return f"no C++ compiler: {named}"
    return None


def lacking_for_gpu(device: torch.device) -> str | None:
    """Return what this node lacks of Triton and what it needs; None if nothing."""
    if importlib.util.find_spec("triton") is None:
        return "no package triton"
    capability = torch.cuda.get_device_capability(device)
    if capability < VOLTA:
        return f"a GPU of compute capability {capability[0]}.{capability[1]}, and Triton needs 7.0 or higher"
    return lacking_for_triton()

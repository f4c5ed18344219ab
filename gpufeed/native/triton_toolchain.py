"""What Triton needs beside a GPU: it compiles an extension of Python in C for each kernel, on its node."""

import os
import shutil
import sysconfig
from pathlib import Path


def interpreted() -> bool:
    """Whether Triton runs kernels as numpy on the CPU, which its own switch asks for."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def lacking() -> str | None:
    """What this node lacks of a C compiler, looked for as Triton does, and Python.h; None if nothing."""
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return "no C compiler: CC is not set, and neither gcc nor clang is found"
    if shutil.which(compiler) is None:
        return f"no C compiler: CC is {compiler}, which is no program here"
    scheme = sysconfig.get_default_scheme()
    # Debian's own Python says posix_local, a folder without headers
    scheme = "posix_prefix" if scheme == "posix_local" else scheme
    header = Path(sysconfig.get_paths(scheme=scheme)["include"]) / "Python.h"
    return None if header.exists() else f"no {header}"

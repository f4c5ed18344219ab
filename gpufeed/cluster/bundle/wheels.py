"""Wheels of every package of a stack, for this Python and platform; what is there already stays.

uv resolves, as `make setup` does, and pip downloads, which checks what the index says of each file. Packages
that come as sources alone are built here, so that the other node needs no compiler for them.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from gpufeed.cluster.bundle.contents import ROOT, constraints
from gpufeed.core.errors import GpufeedError

EXTRAS = ("inference", "tracking", "peers", "dev")
BATCH = 8  # packages that pip is asked for at once: a run that is killed loses no more
NVCC = "cuda-toolkit[nvcc,crt,nvvm,cccl]"  # compiles bias-GELU; CUDA 12 has no such package


def resolved(cuda: str, root: Path = ROOT) -> list[str]:
    """`name==version` of all that `make setup` installs of a stack here, and of what it installs by.

    Raises GpufeedError if the versions cannot be had together, or the package index cannot be reached.
    """
    uv = re.search(r"^UV_VERSION := (\S+)$", (root / "Makefile").read_text(), re.MULTILINE)[1]
    command = [Path(sys.executable).with_name("uv"), "pip", "compile", "--quiet", "--python", sys.executable]
    command += ["--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links"]
    command += ["--constraint", constraints(cuda, root), "--extra", f"cuda{cuda}"]
    command += [part for extra in EXTRAS for part in ("--extra", extra)]
    more = [f"uv=={uv}", "setuptools", *([NVCC] if cuda == "13" else [])]
    done = subprocess.run(
        [*command, root / "pyproject.toml", "-"], input="\n".join(more), capture_output=True, text=True
    )
    if done.returncode:
        raise GpufeedError(
            f"no versions for the CUDA {cuda} stack:\n{done.stderr.strip()}",
            "all packages of envs in the package index",
            "check the network; after a change of pyproject.toml run make lock",
        )
    return [line for line in done.stdout.splitlines() if line and not line.startswith("#")]


def missing(requirements: Iterable[str], folder: Path) -> list[str]:
    """The requirements, each of one version, that no wheel in the folder meets."""
    there = {parse_wheel_filename(path.name)[:2] for path in folder.glob("*.whl")}
    return [line for line in requirements if pinned(line) not in there]


def pinned(requirement: str) -> tuple[str, Version]:
    """(name, version) of `name==version`."""
    found = Requirement(requirement)
    return canonicalize_name(found.name), Version(next(iter(found.specifier)).version)


def collect(requirements: list[str], folder: Path) -> None:
    """Brings the wheels that are missing into the folder; each appears there whole or not at all.

    Raises GpufeedError where pip fails; what it brought before is kept.
    """
    partial = folder / ".partial"
    rest = iter(missing(requirements, folder))
    while batch := list(islice(rest, BATCH)):
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        print(f"wheels: {', '.join(batch)}", flush=True)
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
        done = subprocess.run([*command, "--no-deps", "--wheel-dir", partial, *batch])
        if done.returncode:
            raise GpufeedError(
                f"no wheels of {', '.join(batch)} (pip ended with {done.returncode})",
                "packages that can be downloaded, or built from their sources",
                "see pip's lines above; then run make bundle again: it goes on where it stopped",
            )
        for wheel in partial.glob("*.whl"):
            os.replace(wheel, folder / wheel.name)
        partial.rmdir()

"""python -m gpufeed.cluster.base_install CONSTRAINTS: install what the demo needs without a GPU.

The Python of the environment runs it, beside uv. Standard library only: nothing is installed yet.
"""

import os
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ANSWER_S = 20  # for the index of torch's CPU builds, which some networks do not reach
CPU_BUILDS = ["--torch-backend", "cpu"]
IMPATIENT = {"UV_HTTP_TIMEOUT": "5", "UV_HTTP_RETRIES": "0"}
LOCK = ["--quiet", "--format", "pylock.toml"]


def uv(verb: str, *options: str, **how: Any) -> subprocess.CompletedProcess:
    """Run `uv pip VERB` for this Python."""
    command = [str(Path(sys.executable).with_name("uv")), "pip", verb, "--python", sys.executable, *options]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, **how)


def cpu_builds(constrained: list[str]) -> list[str]:
    """Return uv's option for torch's CPU builds; [] where their index does not answer in time."""
    how = {"input": "torch", "stderr": subprocess.DEVNULL, "timeout": ANSWER_S, "env": os.environ | IMPATIENT}
    try:
        answered = not uv("compile", *LOCK, "--no-deps", *constrained, *CPU_BUILDS, "-", **how).returncode
    except subprocess.TimeoutExpired:
        answered = False
    return CPU_BUILDS if answered else []


def downloads(lock: Mapping[str, Any]) -> Iterator[int | None]:
    """Yield the bytes of each package of a lock file; None where its index does not say.

    Of several wheels for this machine the largest counts.
    """
    for package in lock["packages"]:
        files = package.get("wheels") or [package.get("sdist", {})]
        yield max((file["size"] for file in files if "size" in file), default=None)


def installed(folder: Path) -> int:
    """Return the bytes that a folder takes on disk."""
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*"))


def main(constraints: str) -> int:
    """Install, and print what is downloaded before and after; return uv's exit code."""
    constrained = ["--constraint", constraints]
    build = cpu_builds(constrained)
    found = uv("compile", *LOCK, *constrained, *build, "pyproject.toml")
    if found.returncode:
        return found.returncode
    sizes = list(downloads(tomllib.loads(found.stdout)))
    known = f", {sum(sizes) / 1e9:.2f} GB to download but for what uv has cached" if all(sizes) else ""
    of_torch = "without CUDA" if build else "with CUDA: no index with CPU builds answered"
    print(f"The demo needs {len(sizes)} packages{known} (torch {of_torch}).", flush=True)
    began = time.monotonic()
    if code := uv("install", "--quiet", *constrained, *build, "--editable", ".").returncode:
        return code
    size = installed(Path(sys.prefix)) / 1e9
    print(f"Installed in {time.monotonic() - began:.0f} s: {size:.2f} GB in {sys.prefix}.", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

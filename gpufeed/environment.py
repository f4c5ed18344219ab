"""What a number was measured on: machine, driver, versions, commit, clocks."""

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
import torch

from gpufeed import gpu
from gpufeed.software import software

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = (
    "torch",
    "torchvision",
    "numpy",
    "pandas",
    "pyarrow",
    "pillow",
    "snakemake",
    "fastai",
    "pytorch-lightning",
    "numba",
    "numba-cuda",
    "triton",
    "kornia",
    "cupy-cuda12x",
    "cupy-cuda13x",
    "nvidia-cudnn-cu12",
    "nvidia-cudnn-cu13",
    "nvidia-dali-cuda120",
    "nvidia-dali-cuda130",
    "nvidia-nvimgcodec-cu12",
    "nvidia-nvimgcodec-cu13",
    "simplejpeg",
    "opencv-python-headless",
    "onnx",
    "onnxscript",
    "onnxruntime",
    "onnxruntime-gpu",
    "torchao",
    "tensorrt",
    # what other projects' loaders and models are
    "ffcv",
    "spdl-core",
    "spdl-io",
    "timm",
    "webdataset",
)


def environment(device: torch.device) -> dict[str, Any]:
    """The `environment` of a record (gpufeed/schemas/record.schema.yaml), as seen at this moment."""
    nvml = gpu.telemetry(device)
    commit, dirty = checkout(ROOT)
    return {
        "node": platform.node(),
        "os": platform.platform(),
        "python": platform.python_version(),
        "cpu": cpu_model(),
        "cores_allowed": cores_allowed(),
        "memory_gib": psutil.virtual_memory().total / 2**30,
        "gpu": gpu_description(device, nvml),
        "driver": nvml["driver"],
        "stack": stack(torch.version.cuda),
        "versions": versions(),
        "software": software(),
        "commit": commit,
        "dirty": dirty,
    }


def gpu_description(device: torch.device, nvml: dict[str, Any]) -> dict[str, Any] | None:
    """The `gpu` of a record: properties from torch, the rest from NVML's answers; None without CUDA."""
    if device.type != "cuda":
        return None
    properties = torch.cuda.get_device_properties(device)
    return {
        "name": properties.name,
        "uuid": nvml["uuid"],
        "memory_gib": properties.total_memory / 2**30,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "sm_clock_mhz": nvml["sm_clock_mhz"],
        "power_limit_w": nvml["power_limit_w"],
    }


def stack(cuda_version: str | None) -> str:
    """`cuda12` or `cuda13` for torch's CUDA version such as "12.8"; `cpu` if torch was built without."""
    return f"cuda{cuda_version.split('.')[0]}" if cuda_version else "cpu"


def versions() -> dict[str, str]:
    """Versions of the installed packages among PACKAGES, read without importing them."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The CPU's model name as Linux gives it, else what Python's platform module knows."""
    try:
        for line in cpuinfo.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name" and value.strip():
                return value.strip()
    except OSError:
        pass  # no such file outside Linux
    return platform.processor() or platform.machine() or "unknown"


def cores_allowed() -> int:
    """Cores that this process may use: its affinity, cut by the quota of its cgroup."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroup_quota()
    return affinity if quota is None else max(1, min(affinity, int(quota)))


def filesystem(path: str | Path) -> str | None:
    """The type of the filesystem that a path lies on, such as ext4, nfs4 or tmpfs; None if unknown."""
    place, found, longest = Path(path).resolve(), None, -1
    for mount in psutil.disk_partitions(all=True):
        # the last one mounted on a folder hides those before it
        if place.is_relative_to(mount.mountpoint) and len(mount.mountpoint) >= longest:
            found, longest = mount.fstype or None, len(mount.mountpoint)
    return found


def cgroup_quota(proc: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """The tightest CPU quota, in cores, from this process's cgroup up to the root; None if there is none.

    Reads `cpu.max` (version 2) and `cpu.cfs_quota_us` (version 1).
    Source: Linux, cgroup-v2.rst, sched-bwc.rst.
    """
    try:
        lines = proc.read_text().splitlines()
    except OSError:
        return None
    quotas = []
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        base = root if not controllers else root / "cpu"
        folder = base / path.lstrip("/")
        # inside a container the path may name folders that are not mounted; the parents then speak
        quotas += [_folder_quota(f) for f in (folder, *folder.parents) if f == base or base in f.parents]
    return min((quota for quota in quotas if quota is not None), default=None)


def _folder_quota(folder: Path) -> float | None:
    """The quota of one cgroup folder in cores; None if it sets none."""
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()[:2]
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text().strip()
        return None if quota in ("max", "-1") else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def checkout(root: Path) -> tuple[str | None, bool | None]:
    """Commit of the checkout at `root` and whether it has changes.

    A copy without .git (in a container, or carried to a node) may be told its commit by the environment
    variable GPUFEED_COMMIT; whether it has changes is then unknown. Without both: (None, None).
    """
    if not (root / ".git").exists():
        return os.environ.get("GPUFEED_COMMIT") or None, None
    commit, status = _git(root, "rev-parse", "HEAD"), _git(root, "status", "--porcelain")
    return commit, None if status is None else bool(status)


def _git(root: Path, *arguments: str) -> str | None:
    """What git prints; None if it is missing, refuses or takes longer than 20 s."""
    # without optional locks several jobs can ask at once
    command = ["git", "--no-optional-locks", "-C", str(root), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()

"""What a number was measured on: machine, driver, versions, installed software, commit, clocks."""

import hashlib
import os
import platform
import re
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
import pynvml
import torch

from gpufeed.system import devices
from gpufeed.system.commit import checkout
from gpufeed.system.host_memory import cgroup_folders
from gpufeed.system.nvml import ask, session

ROOT = Path(__file__).resolve().parents[2]
IMAGE_VARIABLES = ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER")  # set by Apptainer: the image's path
IN_DOCKER = Path("/.dockerenv")
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
    "torchcodec",
    "opencv-python-headless",
    "onnx",
    "onnxscript",
    "onnxruntime",
    "onnxruntime-gpu",
    "torchao",
    "tensorrt",
    "tensorrt-rtx-cu13-bindings",
    # loaders and models of other projects
    "ffcv",
    "spdl-core",
    "spdl-io",
    "timm",
    "webdataset",
)
METADATA = ("METADATA", "PKG-INFO", "")  # of a wheel, of an old installation, of one that is a single file
FIELDS = re.compile(r"^(Name|Version): *(\S+)", re.MULTILINE)


def environment(device: torch.device) -> dict[str, Any]:
    """Return the present `environment` of a record (gpufeed/core/schemas/record.schema.yaml)."""
    nvml = devices.gpu_state(device)
    commit, dirty = code()
    return {
        "node": platform.node(),
        "machine": machine_id(),
        "os": platform.platform(),
        "python": platform.python_version(),
        "cpu": cpu_model(),
        "cores_allowed": cores_allowed(),
        "memory_gib": psutil.virtual_memory().total / 2**30,
        "gpu": gpu_description(device, nvml),
        "driver": nvml["driver"],
        "stack": stack(torch.version.cuda),
        "versions": dict(versions()),
        "software": software(),
        "commit": commit,
        "dirty": dirty,
    }


def gpu_description(device: torch.device, nvml: dict[str, Any]) -> dict[str, Any] | None:
    """Return the `gpu` of a record, from torch's properties and NVML's answers; None without CUDA."""
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
    """Return `cuda12` or `cuda13` for torch's CUDA version such as "12.8"; `cpu` if torch has no CUDA."""
    return f"cuda{cuda_version.split('.')[0]}" if cuda_version else "cpu"


@cache
def code() -> tuple[str | None, bool | None]:
    """Return `checkout` of the code of this process, asked once: git takes two processes."""
    return checkout(ROOT)


@cache
def versions() -> dict[str, str]:
    """Return the versions of the installed packages among PACKAGES, without importing them."""
    found = {}
    for package in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


@cache
def software() -> dict[str, Any]:
    """Return the `software` of an environment (gpufeed/core/schemas/record.schema.yaml) of this process."""
    lines = installed_packages()
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
    return {"packages": len(lines), "digest": digest, "container": container_image()}


def installed_packages() -> list[str]:
    """Return `name==version` of each installed distribution, sorted, with names normalised as by PyPA.

    It reads two fields of each header: to parse the descriptions too takes a job ten times as long.
    """
    found = set()
    for one in metadata.distributions():
        text = next(filter(None, map(one.read_text, METADATA)), "")
        fields = dict(FIELDS.findall(text.partition("\n\n")[0]))
        if name := fields.get("Name"):  # none in a folder that an aborted installation left
            found.add(f"{re.sub(r'[-_.]+', '-', name).lower()}=={fields.get('Version')}")
    return sorted(found)


def container_image() -> str | None:
    """Return the file name of Apptainer's image, or `docker`; None outside of containers."""
    for variable in IMAGE_VARIABLES:
        if image := os.environ.get(variable):
            return Path(image).name
    return "docker" if IN_DOCKER.exists() else None


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the CPU's model name from Linux, else from Python's platform module."""
    try:
        for line in cpuinfo.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name" and value.strip():
                return value.strip()
    except OSError:
        pass  # no such file outside Linux
    return platform.processor() or platform.machine() or "unknown"


def cores_allowed() -> int:
    """Return the cores that this process may use: its affinity, limited by the quota of its cgroup."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroup_quota()
    return affinity if quota is None else max(1, min(affinity, int(quota)))


def filesystem(path: str | Path) -> str | None:
    """Return the type of a path's filesystem, such as ext4, nfs4 or tmpfs; None if unknown."""
    place, found, longest = Path(path).resolve(), None, -1
    for mount in psutil.disk_partitions(all=True):
        # a later mount on the same folder hides earlier ones
        if place.is_relative_to(mount.mountpoint) and len(mount.mountpoint) >= longest:
            found, longest = mount.fstype or None, len(mount.mountpoint)
    return found


def cgroup_quota(proc: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Return the tightest CPU quota in cores, from this process's cgroup up to the root; None without one.

    Reads `cpu.max` (version 2) and `cpu.cfs_quota_us` (version 1). Source: Linux, cgroup-v2.rst,
    sched-bwc.rst.
    """
    quotas = [_folder_quota(folder) for folder in cgroup_folders("cpu", proc, root)]
    return min((quota for quota in quotas if quota is not None), default=None)


def _folder_quota(folder: Path) -> float | None:
    """Return the quota of one cgroup folder in cores; None if it sets none."""
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()[:2]
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text().strip()
        return None if quota in ("max", "-1") else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def machine_id(proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> str | None:
    """Return a short digest that differs between hosts of one name; None if nothing identifies this one.

    It covers the UUIDs of all GPUs of the host, whichever the job may use. Without GPUs it covers the
    addresses that the makers of its network cards assigned. A virtual machine often has none of these, since
    clones share its address. Then it covers the boot, and changes at a reboot.
    """
    boot = _lines(proc / "sys/kernel/random/boot_id")
    known = gpu_uuids(proc) or card_addresses(sys / "class/net") or boot
    return hashlib.sha256("\n".join(["gpufeed", *known]).encode()).hexdigest()[:8] if known else None


def gpu_uuids(proc: Path) -> list[str]:
    """Return the sorted UUIDs of all GPUs of this host, from the driver's files or else from NVML."""
    files = proc.glob("driver/nvidia/gpus/*/information")
    lines = [line for file in files for line in _lines(file) if line.startswith("GPU UUID:")]
    uuids = sorted(line.partition(":")[2].strip() for line in lines)
    if not uuids or any("?" in uuid for uuid in uuids):  # a GPU that the driver has not opened yet
        return sorted(uuids_by_nvml())
    return uuids


def uuids_by_nvml() -> list[str]:
    """Return the UUIDs of the GPUs that NVML shows to this process."""
    with session():
        handles = [
            ask(pynvml.nvmlDeviceGetHandleByIndex, i) for i in range(ask(pynvml.nvmlDeviceGetCount) or 0)
        ]
        return [uuid for one in handles if one and (uuid := ask(pynvml.nvmlDeviceGetUUID, one))]


def card_addresses(net: Path) -> list[str]:
    """Return the sorted addresses of network cards that their makers assigned, which are unique."""
    found = []
    for card in net.glob("*"):
        address, assigned = _lines(card / "address"), _lines(card / "addr_assign_type")
        # 0: the hardware's own; bit 2 of the first byte: locally administered
        if (card / "device").exists() and address and assigned == ["0"] and not int(address[0][:2], 16) & 2:
            found.append(address[0])
    return sorted(found)


def _lines(path: Path) -> list[str]:
    """Return the lines of a system file; none if it cannot be read."""
    try:
        return path.read_text().splitlines()
    except OSError:
        return []

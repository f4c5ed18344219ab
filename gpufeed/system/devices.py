"""The device and precision of a cell, resolved on its node, and what the GPU reports.

NVML reports its state, nvJPEG its JPEG engines, and torch's allocator its memory.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from importlib import metadata
from typing import Any

import pynvml
import torch

from gpufeed.core.cells import DEVICES, PRECISIONS
from gpufeed.core.errors import Skip, require_known
from gpufeed.system import gpu_locks
from gpufeed.system.nvml import ask, session

AMPERE = (8, 0)  # first compute capability with bf16 and TF32 units (CUDA C++ Programming Guide)
AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
# nvjpeg.h: the backend that uses the JPEG engines, and the results of creating it
NVJPEG_HARDWARE, NVJPEG_SUCCESS = 3, 0
NVJPEG_NO_ENGINES = {7, 9}  # ARCH_MISMATCH, IMPLEMENTATION_NOT_SUPPORTED
UNKNOWN_STATE = {"driver": None, "uuid": None, "sm_clock_mhz": None, "power_limit_w": None}


def resolve_device(name: str) -> torch.device:
    """Return the device for a name; `auto` is cuda, then mps, then cpu.

    Raises Skip if this node lacks the device, or has fewer GPUs than the job needs. With `auto`, Skip also
    means that the job has a GPU which torch, built with CUDA, cannot use. Raises GpufeedError for an unknown
    name.
    """
    require_known("device", name, DEVICES)
    if name in ("auto", "cuda"):
        gpu_locks.refuse()
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.mps.is_available() else "cpu"
        if (
            name == "cpu" and gpu_locks.taken() and torch.version.cuda
        ):  # a GPU's cell must not be timed on the CPU
            raise Skip(
                f"This job has {', '.join(gpu_locks.taken())}, and {no_gpu()} To measure the CPU, set "
                "`device: cpu` in the config."
            )
    if name == "cuda" and not torch.cuda.is_available():
        raise Skip(f"Device cuda is asked for, and {no_gpu()}")
    if name == "mps" and not torch.mps.is_available():
        raise Skip(f"Device mps is asked for, and torch {torch.__version__} finds none on this node.")
    if name != "cuda":
        return torch.device(name)
    gpu_locks.check(uuids_seen)
    return torch.device("cuda", torch.cuda.current_device())


def no_gpu() -> str:
    """Return the end of a sentence: torch finds no CUDA GPU, and the possible reasons."""
    built = torch.version.cuda
    why = (
        "the job has no GPU, its container was started without --nv, or the driver is too old for CUDA "
        f"{built}, which this torch is built for"
        if built
        else "this torch is built without CUDA"
    )
    return f"torch {torch.__version__} finds no CUDA GPU on this node: {why}."


def uuids_seen() -> list[str]:
    """Return the UUIDs, without prefix, of the GPUs that torch sees."""
    return [str(torch.cuda.get_device_properties(index).uuid) for index in range(torch.cuda.device_count())]


def require_devices(count: int, device: torch.device, asked: str) -> None:
    """Raise Skip unless this node has this many devices of the kind. asked: the config's name of the device.

    On the CPU each is a process, but `auto` without a GPU does not mean that.
    """
    if count == 1 or device.type == asked == "cpu":
        return
    seen = torch.cuda.device_count() if device.type == "cuda" else 0
    if seen < count:
        raise Skip(f"The cell trains on {count} GPUs, and this process sees {seen} on this node.")


def resolve_precision(name: str, device: torch.device) -> str:
    """Return the precision for a name: fp32, tf32, fp16 or bf16.

    `auto` is bf16 on CUDA from compute capability 8.0, fp16 on older GPUs, fp32 elsewhere. Raises Skip if the
    device does not support it, GpufeedError for an unknown name.
    """
    require_known("precision", name, PRECISIONS)
    if device.type != "cuda":
        if name in ("tf32", "fp16"):
            raise Skip(f"Precision {name} is run on CUDA GPUs only, and this cell's device is {device.type}.")
        return "fp32" if name == "auto" else name
    capability = torch.cuda.get_device_capability(device)
    if name == "auto":
        return "bf16" if capability >= AMPERE else "fp16"
    if name in ("bf16", "tf32") and capability < AMPERE:
        found = f"{torch.cuda.get_device_name(device)} has {capability[0]}.{capability[1]}"
        raise Skip(f"Precision {name} needs compute capability 8.0 or higher, and {found}.")
    return name


def apply_precision(precision: str) -> None:
    """Allow TF32 for float32 matrix products and convolutions if `precision` is tf32, else forbid it.

    It uses the calls that set torch's older and newer switches together. With only the newer ones set, torch
    2.10 raises in code that reads the older ones.
    """
    tf32 = precision == "tf32"
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32


def autocast(device: torch.device, precision: str) -> AbstractContextManager:
    """Return the context of a forward pass: autocast for bf16 and fp16, none for fp32 and tf32."""
    if precision not in AUTOCAST:
        return nullcontext()
    return torch.autocast(device.type, dtype=AUTOCAST[precision])


def nvml_handle(device: torch.device) -> Any | None:
    """Return NVML's handle of a CUDA device, by UUID: NVML's indices ignore CUDA_VISIBLE_DEVICES.

    A part of a GPU (MIG) has its own UUID, by which NVML finds the part and not the whole GPU.
    """
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    if uuid is None:
        return None
    handles = (ask(pynvml.nvmlDeviceGetHandleByUUID, f"{kind}-{uuid}") for kind in ("GPU", "MIG"))
    return next((handle for handle in handles if handle is not None), None)


def gpu_state(device: torch.device) -> dict[str, Any]:
    """Return driver version, UUID, present SM clock (MHz) and power limit (W); None for what is unknown.

    Without a CUDA device only the driver is known. Source: NVML API reference.
    """
    answers = dict(UNKNOWN_STATE)
    with session():
        answers["driver"] = ask(pynvml.nvmlSystemGetDriverVersion)
        handle = nvml_handle(device) if device.type == "cuda" else None
        if handle is not None:
            power_mw = ask(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle)
            answers["uuid"] = ask(pynvml.nvmlDeviceGetUUID, handle)
            answers["sm_clock_mhz"] = ask(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM)
            answers["power_limit_w"] = power_mw / 1e3 if power_mw is not None else None
    return answers


def forget_peak(device: torch.device) -> None:
    """Reset the peak of `peak_mib`; do nothing without CUDA."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_mib(device: torch.device) -> float | None:
    """Return the most memory that torch has reserved since `forget_peak`, in MiB; None without CUDA."""
    return torch.cuda.max_memory_reserved(device) / 2**20 if device.type == "cuda" else None


def jpeg_engines(device: torch.device) -> int | None:
    """Return the number of a CUDA device's JPEG engines; None if nvJPEG does not say."""
    with torch.cuda.device(device):
        torch.cuda.synchronize()  # creates the context, which nvJPEG uses
        for library in nvjpeg_libraries():
            try:
                return engines_by(library)
            except (OSError, AttributeError):  # no such library, or one without these functions
                continue
    return None


def engines_by(library: str) -> int | None:
    """Return the number of JPEG engines by this nvJPEG; DALI's decoder asks in the same way.

    Source: nvJPEG library guide, nvjpegCreateEx and nvjpegGetHardwareDecoderInfo.
    """
    nvjpeg, handle, engines, cores = ctypes.CDLL(library), ctypes.c_void_p(), ctypes.c_uint(), ctypes.c_uint()
    created = nvjpeg.nvjpegCreateEx(NVJPEG_HARDWARE, None, None, 0, ctypes.byref(handle))
    if created != NVJPEG_SUCCESS:
        return 0 if created in NVJPEG_NO_ENGINES else None
    try:
        status = nvjpeg.nvjpegGetHardwareDecoderInfo(handle, ctypes.byref(engines), ctypes.byref(cores))
    finally:
        nvjpeg.nvjpegDestroy(handle)
    return engines.value * cores.value if status == NVJPEG_SUCCESS else None


def nvjpeg_libraries() -> Iterator[str]:
    """Yield where nvJPEG may be: in the package that DALI and nvImageCodec install, then in the system."""
    for package in ("nvidia-nvjpeg", "nvidia-nvjpeg-cu12"):
        with suppress(metadata.PackageNotFoundError):
            files = metadata.files(package) or []
            yield from (os.fspath(file.locate()) for file in files if file.name.startswith("libnvjpeg.so"))
    yield from ("libnvjpeg.so.13", "libnvjpeg.so.12")

"""What NVML, nvJPEG and torch's allocator tell about the GPU in use."""

import ctypes
import os
from collections.abc import Iterator
from importlib import metadata
from typing import Any

import pynvml
import torch

from gpufeed.system.nvml import ask

# nvjpeg.h: the backend that decodes by the JPEG engines, and what creating it returns
NVJPEG_HARDWARE, NVJPEG_SUCCESS = 3, 0
NVJPEG_NO_ENGINES = {7, 9}  # ARCH_MISMATCH, IMPLEMENTATION_NOT_SUPPORTED
NOTHING = {"driver": None, "uuid": None, "sm_clock_mhz": None, "power_limit_w": None}


def handle_of(device: torch.device) -> Any | None:
    """NVML's handle of torch's device, found by UUID: NVML's indices ignore CUDA_VISIBLE_DEVICES.

    A part of a GPU (MIG) has a UUID of its own, by which NVML knows that part and not the whole.
    """
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    if uuid is None:
        return None
    handles = (ask(pynvml.nvmlDeviceGetHandleByUUID, f"{kind}-{uuid}") for kind in ("GPU", "MIG"))
    return next((handle for handle in handles if handle is not None), None)


def telemetry(device: torch.device) -> dict[str, Any]:
    """Driver version, UUID, present SM clock (MHz) and enforced power limit (W); None where unknown.

    Without a CUDA device only the driver is asked for. Source: NVML API reference.
    """
    answers = dict(NOTHING)
    if ask(lambda: pynvml.nvmlInit() or True) is None:
        return answers
    try:
        answers["driver"] = ask(pynvml.nvmlSystemGetDriverVersion)
        handle = handle_of(device) if device.type == "cuda" else None
        if handle is not None:
            power_mw = ask(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle)
            answers["uuid"] = ask(pynvml.nvmlDeviceGetUUID, handle)
            answers["sm_clock_mhz"] = ask(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM)
            answers["power_limit_w"] = power_mw / 1e3 if power_mw is not None else None
    finally:
        ask(pynvml.nvmlShutdown)
    return answers


def forget_peak(device: torch.device) -> None:
    """Starts the peak of `peak_mib` anew; nothing to do without CUDA."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_mib(device: torch.device) -> float | None:
    """Most memory that torch's allocator has reserved since `forget_peak`, in MiB; None without CUDA."""
    return torch.cuda.max_memory_reserved(device) / 2**20 if device.type == "cuda" else None


def jpeg_engines(device: torch.device) -> int | None:
    """How many JPEG engines a CUDA device has, 0 for none; None where nvJPEG does not tell."""
    with torch.cuda.device(device):
        torch.cuda.synchronize()  # nvJPEG takes the context that is current, which exists from here on
        for library in nvjpeg_libraries():
            try:
                return engines_by(library)
            except (OSError, AttributeError):  # no such library, or one without these functions
                continue
    return None


def engines_by(library: str) -> int | None:
    """What nvJPEG says of the current device; DALI's decoder asks the same.

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
    """Where nvJPEG may be: in the package that DALI and nvImageCodec bring, then where the system has it."""
    for package in ("nvidia-nvjpeg", "nvidia-nvjpeg-cu12"):
        try:
            files = metadata.files(package) or []
        except metadata.PackageNotFoundError:
            continue
        yield from (os.fspath(file.locate()) for file in files if file.name.startswith("libnvjpeg.so"))
    yield from ("libnvjpeg.so.13", "libnvjpeg.so.12")

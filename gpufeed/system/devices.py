"""Which device and precision a cell runs with, decided on the node that runs it, and what that GPU reports.

NVML reports its state, nvJPEG its JPEG engines, torch's allocator its memory.
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
# nvjpeg.h: the backend that decodes by the JPEG engines, and what creating it returns
NVJPEG_HARDWARE, NVJPEG_SUCCESS = 3, 0
NVJPEG_NO_ENGINES = {7, 9}  # ARCH_MISMATCH, IMPLEMENTATION_NOT_SUPPORTED
UNKNOWN_STATE = {"driver": None, "uuid": None, "sm_clock_mhz": None, "power_limit_w": None}


def resolve_device(name: str) -> torch.device:
    """The device behind `auto` (cuda, then mps, then cpu), or the one asked for.

    Raises Skip if this node lacks it, or has fewer than the job wants for itself, and for `auto` where the
    job has a GPU that torch, built with CUDA, cannot use; GpufeedError for a name that is no device.
    """
    require_known("device", name, DEVICES)
    if name in ("auto", "cuda"):
        gpu_locks.refuse()
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.mps.is_available() else "cpu"
        if (
            name == "cpu" and gpu_locks.taken() and torch.version.cuda
        ):  # else a GPU's record would be the CPU's
            raise Skip(
                f"This job has {', '.join(gpu_locks.taken())}, and {no_gpu()} For numbers of the CPU write "
                "`device: cpu` into the config."
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
    """Where torch finds no CUDA GPU: the end of a sentence on that and on what it may come from."""
    built = torch.version.cuda
    why = (
        "the job has no GPU, its container was started without --nv, or the driver is older than CUDA "
        f"{built} needs, with which this torch is built"
        if built
        else "this torch is built without CUDA"
    )
    return f"torch {torch.__version__} finds no CUDA GPU on this node: {why}."


def uuids_seen() -> list[str]:
    """UUIDs, without their prefix, of the GPUs that torch sees."""
    return [str(torch.cuda.get_device_properties(index).uuid) for index in range(torch.cuda.device_count())]


def require_devices(count: int, device: torch.device, asked: str) -> None:
    """Raises Skip unless this node has so many devices of that kind. asked: what `device` was found for.

    On the CPU each is a process; `auto` does not mean that where there is no GPU.
    """
    if count == 1 or device.type == asked == "cpu":
        return
    seen = torch.cuda.device_count() if device.type == "cuda" else 0
    if seen < count:
        raise Skip(f"The cell trains on {count} GPUs, and this node shows {seen} of them to this process.")


def resolve_precision(name: str, device: torch.device) -> str:
    """The precision behind `auto`, or the one asked for: fp32, tf32, fp16 or bf16.

    `auto` is bf16 on CUDA from compute capability 8.0 on, fp16 on older GPUs, fp32 elsewhere. Raises
    Skip where the device cannot do it, GpufeedError for a name that is no precision.
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
    """Lets float32 matrix products and convolutions round to TF32 if `precision` is tf32, else forbids it.

    Set through the calls that torch's older and newer switches both follow: setting only the newer
    ones makes torch 2.10 raise in code that reads the older ones.
    """
    tf32 = precision == "tf32"
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32


def autocast(device: torch.device, precision: str) -> AbstractContextManager:
    """The context for a forward pass: autocast for bf16 and fp16, nothing for fp32 and tf32."""
    if precision not in AUTOCAST:
        return nullcontext()
    return torch.autocast(device.type, dtype=AUTOCAST[precision])


def nvml_handle(device: torch.device) -> Any | None:
    """NVML's handle of torch's device, found by UUID: NVML's indices ignore CUDA_VISIBLE_DEVICES.

    A part of a GPU (MIG) has a UUID of its own, by which NVML knows that part and not the whole.
    """
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    if uuid is None:
        return None
    handles = (ask(pynvml.nvmlDeviceGetHandleByUUID, f"{kind}-{uuid}") for kind in ("GPU", "MIG"))
    return next((handle for handle in handles if handle is not None), None)


def gpu_state(device: torch.device) -> dict[str, Any]:
    """Driver version, UUID, present SM clock (MHz) and enforced power limit (W); None where unknown.

    Without a CUDA device only the driver is asked for. Source: NVML API reference.
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
    """Start a new peak for `peak_mib`; there is nothing to do without CUDA."""
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
        with suppress(metadata.PackageNotFoundError):
            files = metadata.files(package) or []
            yield from (os.fspath(file.locate()) for file in files if file.name.startswith("libnvjpeg.so"))
    yield from ("libnvjpeg.so.13", "libnvjpeg.so.12")

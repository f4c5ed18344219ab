"""What NVML and torch's allocator tell about the GPU in use."""

from typing import Any

import pynvml
import torch

from gpufeed.nvml import ask

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

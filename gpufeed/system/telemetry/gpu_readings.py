"""Readings of one GPU by NVML during a training. Source: NVML API reference."""

from collections.abc import Collection
from contextlib import ExitStack
from typing import Any

import pynvml
import torch

from gpufeed.system.devices import nvml_handle
from gpufeed.system.nvml import ask, session

MIB = 2**20
EVENTS = {
    "gpu_idle": pynvml.nvmlClocksEventReasonGpuIdle,
    "clocks_set_by_user": pynvml.nvmlClocksEventReasonApplicationsClocksSetting,
    "power_cap": pynvml.nvmlClocksEventReasonSwPowerCap,
    "hardware_slowdown": pynvml.nvmlClocksThrottleReasonHwSlowdown,
    "sync_boost": pynvml.nvmlClocksEventReasonSyncBoost,
    "software_thermal_slowdown": pynvml.nvmlClocksEventReasonSwThermalSlowdown,
    "hardware_thermal_slowdown": pynvml.nvmlClocksThrottleReasonHwThermalSlowdown,
    "power_brake": pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown,
    "display_clocks": pynvml.nvmlClocksEventReasonDisplayClockSetting,
}
SAMPLED = (
    "sm_percent", "memory_percent", "jpeg_percent", "power_w", "sm_clock_mhz", "memory_clock_mhz",
    "temperature_c", "process_mib", "other_processes",
)  # fmt: skip


class Gpu:
    """Readings are None without CUDA or NVML, and where NVML does not give them (MIG, permissions)."""

    def __init__(self, device: torch.device):
        self.handle, self.nvml = None, ExitStack()
        if device.type == "cuda":
            self.nvml.enter_context(session())
            self.handle = nvml_handle(device)

    def sample(self, pids: Collection[int]) -> dict[str, Any]:
        """Return SAMPLED, and `events`: the names of EVENTS that are active.

        The utilisations are those of NVML's last interval, which NVML chooses (up to a second).
        """
        if self.handle is None:
            return dict.fromkeys((*SAMPLED, "events"))
        at, clock = self.handle, pynvml.nvmlDeviceGetClockInfo
        busy = ask(pynvml.nvmlDeviceGetUtilizationRates, at)
        jpeg = ask(pynvml.nvmlDeviceGetJpgUtilization, at)
        power_mw = ask(pynvml.nvmlDeviceGetPowerUsage, at)
        bits = ask(pynvml.nvmlDeviceGetCurrentClocksEventReasons, at)
        return {
            "sm_percent": None if busy is None else busy.gpu,
            "memory_percent": None if busy is None else busy.memory,
            "jpeg_percent": None if jpeg is None else jpeg[0],
            "power_w": None if power_mw is None else power_mw / 1e3,
            "sm_clock_mhz": ask(clock, at, pynvml.NVML_CLOCK_SM),
            "memory_clock_mhz": ask(clock, at, pynvml.NVML_CLOCK_MEM),
            "temperature_c": ask(pynvml.nvmlDeviceGetTemperature, at, pynvml.NVML_TEMPERATURE_GPU),
            "process_mib": self.process_mib(pids),
            "other_processes": self.other_processes(pids),
            "events": None if bits is None else named(bits),
        }

    def process_mib(self, pids: Collection[int]) -> float | None:
        """Return the memory of these processes on the device, in MiB.

        None if NVML does not know their ids, as in most containers, or does not give their memory.
        """
        held = sum(process.usedGpuMemory or 0 for process in self.running() if process.pid in pids)
        return held / MIB if held else None

    def other_processes(self, pids: Collection[int]) -> int | None:
        """Return how many other processes have a context on the device.

        None if NVML lists none of these processes, as in containers whose process ids it does not know.
        """
        seen = {process.pid for process in self.running()}
        return len(seen - set(pids)) if seen & set(pids) else None

    def running(self) -> list[Any]:
        """Return the processes with a context on the device, as far as NVML lists them."""
        if self.handle is None:
            return []
        return ask(pynvml.nvmlDeviceGetComputeRunningProcesses, self.handle) or []

    def energy_j(self) -> float | None:
        """Return the energy of the whole device since its driver was loaded; None before Volta."""
        mj = None if self.handle is None else ask(pynvml.nvmlDeviceGetTotalEnergyConsumption, self.handle)
        return None if mj is None else mj / 1e3

    def close(self) -> None:
        """Close NVML; safe to call twice."""
        self.nvml.close()
        self.handle = None


def named(bits: int) -> list[str]:
    """Return the names of EVENTS whose bit is set."""
    return [name for name, bit in EVENTS.items() if bits & bit]

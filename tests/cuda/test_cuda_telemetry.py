"""What only a GPU can show of telemetry: that its numbers are there, and are those of a training."""

import subprocess
import sys
import time
from dataclasses import asdict

import measure_fixtures as toys
import pynvml
import pytest
import torch

from gpufeed.benchmarks.end_to_end import measure
from gpufeed.core import registry
from gpufeed.core.record import RECORD
from gpufeed.system.devices import nvml_handle
from gpufeed.system.nvml import ask
from gpufeed.system.telemetry import gpu_readings, summary, watch
from gpufeed.system.telemetry.gpu_readings import Gpu
from gpufeed.system.telemetry.watch import Watch

SIDE = 8192  # of square matrices whose products keep a large GPU busy
MIB = 2**20


@pytest.fixture
def gpu(device):
    """NVML's view; skipped where NVML has none, as without permission."""
    found = Gpu(device)
    if found.handle is None:
        pytest.skip("NVML does not know the GPU that torch uses")
    yield found
    found.close()


def busy(device, seconds: float) -> None:
    """Products of matrices for so long."""
    a = torch.randn((SIDE, SIDE), device=device, dtype=torch.float16)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for _ in range(10):
            torch.mm(a, a)
        torch.cuda.synchronize(device)


def watched(device, work, epochs: int = 3) -> dict:
    """Telemetry of so many epochs of 10 steps and 1000 images each; the first is warm-up."""
    over = Watch(device)
    tell = over.telling(None)
    with over:
        for _ in range(epochs):
            work()
            tell({"steps": 10, "images": 1000})
    assert not over.broken
    return summary.summarise(over.seen, 10)


@pytest.mark.alone
def test_a_busy_gpu_draws_more_than_an_idle_one(device, gpu):
    torch.zeros(1, device=device)
    time.sleep(2)
    idle = watched(device, lambda: time.sleep(1.5))["gpu"]
    busier = watched(device, lambda: busy(device, 1.5))["gpu"]
    assert busier["energy_j"] > 1.2 * idle["energy_j"] > 0
    assert busier["power_w"]["max"] > idle["power_w"]["median"]
    assert busier["sm_percent"]["max"] > 50
    assert busier["j_per_1000_images"] == pytest.approx(busier["energy_j"] / 2)


def test_every_number_is_in_its_range(device, gpu):
    told = watched(device, lambda: busy(device, 1.0))
    found = told["gpu"]
    limit_w = ask(pynvml.nvmlDeviceGetPowerManagementLimit, gpu.handle)
    assert told["samples"] >= 4
    for name in ("sm_percent", "memory_percent", "jpeg_percent"):
        assert found[name] is None or 0 <= found[name]["min"] <= found[name]["max"] <= 100
    assert 100 <= found["sm_clock_mhz"]["min"] <= found["sm_clock_mhz"]["max"] <= 5000
    assert 100 <= found["memory_clock_mhz"]["median"] <= 20_000
    assert 10 <= found["temperature_c"]["median"] <= 110
    assert limit_w is None or 10 <= found["power_w"]["median"] <= 1.5 * limit_w / 1e3
    assert set(found["clock_events"]) <= set(gpu_readings.EVENTS)
    assert all(0 < share <= 1 for share in found["clock_events"].values())
    assert told["host"]["cpu_s"] > 0


def test_the_counter_agrees_with_the_sampled_power(device, gpu):
    if gpu.energy_j() is None:
        pytest.skip("this GPU has no counter of its energy")
    told = watched(device, lambda: busy(device, 2.0))
    mean_w = told["gpu"]["energy_j"] / told["seconds"]
    assert told["gpu"]["energy_from"] == "counter"
    # power is averaged by the device over a time of its own
    assert 0.5 * told["gpu"]["power_w"]["min"] < mean_w < 1.5 * told["gpu"]["power_w"]["max"]


def test_a_measured_repeat_has_it(device, gpu, tmp_path, monkeypatch):
    toys.register(monkeypatch)
    monkeypatch.setitem(registry.LOADERS, "ToyLoader", registry.LoaderEntry(f"{__name__}:CudaToy"))
    monkeypatch.setitem(registry.AUGMENTS, "none", registry.Entry(f"{__name__}:CudaNormalise"))
    monkeypatch.setattr(watch, "PERIOD_S", 0.02)
    manifest = toys.toy_manifest(tmp_path).write()
    cell = toys.toy_cell(device="cuda", epochs=8)
    record, _ = measure(cell, 0, manifest, None, "login1")
    RECORD.check(asdict(record), tmp_path)
    assert (record.status, record.sentence) == ("done", None)
    told = record.telemetry
    assert told["images"] == 7 * 30
    assert told["gpu"]["energy_j"] is None or told["gpu"]["energy_j"] >= 0
    assert told["growth"]["gpu_allocated"]["epochs"] == 8
    assert abs(told["growth"]["gpu_allocated"]["mib_per_epoch"]) < 1


def test_tensors_that_are_kept_are_a_warning_in_the_record(device, tmp_path, monkeypatch):
    toys.register(monkeypatch)
    monkeypatch.setitem(registry.LOADERS, "ToyLoader", registry.LoaderEntry(f"{__name__}:KeepingToy"))
    monkeypatch.setitem(registry.AUGMENTS, "none", registry.Entry(f"{__name__}:CudaNormalise"))
    manifest = toys.toy_manifest(tmp_path).write()
    record, _ = measure(toys.toy_cell(device="cuda", epochs=7), 0, manifest, None, "login1")
    assert (record.status, record.sentence) == ("done", None)
    assert record.telemetry["growth"]["gpu_allocated"]["suspected_leak_mib"] == pytest.approx(120, rel=0.2)


def test_another_process_on_the_gpu_does_no_harm(device, gpu):
    code = (
        "import torch; a = torch.ones(64 * 2**20, device='cuda'); print(a.sum().item(), flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        try:
            assert float(other.stdout.readline()) > 0
            told = watched(device, lambda: busy(device, 0.6))
            stranger = gpu.process_mib({other.pid})
        finally:
            other.communicate(b"\n")
    assert told["samples"] > 0
    assert told["gpu"]["temperature_c"] is not None
    # where NVML knows processes by our numbers, the other one's memory is the other one's
    assert stranger is None or stranger >= 256
    others = told["gpu"]["other_processes"]
    assert (others is None) == (stranger is None)
    assert others is None or others["min"] >= 1


def test_memory_of_this_process_is_told_or_null(device, gpu):
    import os

    held = torch.ones(256 * MIB, dtype=torch.uint8, device=device)
    told = gpu.process_mib({os.getpid()})
    assert told is None or told >= 256
    assert gpu.process_mib(set()) is None
    assert held.sum().item() == 256 * MIB


def test_what_a_device_does_not_tell_is_null(device, gpu, monkeypatch):
    """As on a part of a GPU (MIG), where most queries are not supported."""

    def refuse(*_):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    queries = (
        "nvmlDeviceGetUtilizationRates", "nvmlDeviceGetJpgUtilization", "nvmlDeviceGetPowerUsage",
        "nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetClockInfo", "nvmlDeviceGetTemperature",
        "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetComputeRunningProcesses",
    )  # fmt: skip
    for query in queries:
        monkeypatch.setattr(pynvml, query, refuse)
    told = watched(device, lambda: time.sleep(0.3))
    assert told["gpu"] is None
    assert told["host"]["cpu_s"] >= 0
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", refuse)
    assert nvml_handle(device) is None
    assert watched(device, lambda: None)["gpu"] is None


def test_nvml_is_left_as_it_was_found(device, gpu):
    for _ in range(3):
        watched(device, lambda: None)
    assert gpu.sample(set())["temperature_c"] is not None  # each of them has ended its own use alone


class CudaToy(toys.ToyLoader):
    def batches(self, order):
        for batch in super().batches(order):
            to = self.request.device
            yield type(batch)(batch.images.to(to), batch.labels.to(to), batch.ids.to(to), batch.load_ms)


class KeepingToy(CudaToy):
    """Keeps 20 MiB on the device of each epoch."""

    def open(self):
        self.kept = []

    def batches(self, order):
        self.kept.append(torch.ones(20 * MIB, dtype=torch.uint8, device=self.request.device))
        yield from super().batches(order)


class CudaNormalise(toys.Normalise):
    def __call__(self, images, ids, epoch):
        self.mean, self.std = self.mean.to(images.device), self.std.to(images.device)
        return super().__call__(images, ids, epoch)

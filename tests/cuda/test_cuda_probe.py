"""Probes on a GPU: steps that are soon queued, a busy device, its memory, and the rate that follows."""

import ceilings_fixtures as made
import pytest
from image_fixtures import write_cache, write_dataset
from test_cuda_ceilings import SETTINGS, LongSteps

from gpufeed.advice.rate_model import COMPUTE, DEVICE, predicted
from gpufeed.benchmarks.ceilings.ceiling_benchmark import measure_ceilings
from gpufeed.benchmarks.probe import probe
from gpufeed.core import registry
from gpufeed.core.record import PROBE
from gpufeed.training.runtime_context import Stores


@pytest.mark.alone
@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("loader", ["dataloader_sync", "overlap", "resident"])
def test_the_rate_of_long_steps_is_predicted(tmp_path, monkeypatch, loader, graphs):
    entry = registry.ModelEntry(f"{LongSteps.__module__}:{LongSteps.__name__}")
    monkeypatch.setitem(registry.MODELS, "LongSteps", entry)
    dataset = write_dataset(tmp_path / "tiny")
    stores = Stores(cache=write_cache(dataset) if loader == "resident" else None)
    manifest = dataset.root / "manifest.parquet"
    cell = made.planted(device="cuda", model="LongSteps", loader=loader, cuda_graphs=graphs)
    found = probe(cell, manifest, stores, "login1")
    PROBE.check(found, tmp_path)
    assert found["status"] == "done", found["sentence"]
    step_s = min(one["seconds"] / one["images"] for one in found["compute"]["rounds"])
    assert (
        found["compute"]["host_s"] < step_s / 2
    )  # of five images; the device works on while the host goes on
    assert found["compute"]["busy"] is None or found["compute"]["busy"] > 0.8
    assert 0 < found["memory"]["device_mib"] < found["memory"]["device_total_mib"]
    rate = predicted(found)
    assert rate["bound"] in (COMPUTE, DEVICE)
    limits = measure_ceilings(cell, manifest, stores, SETTINGS, "login1")
    measured = limits["images_per_s"]["end_to_end"]["median"]
    assert rate["median"] == pytest.approx(measured, rel=0.15)

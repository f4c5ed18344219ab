"""Ceilings on a GPU: graphs shared by all segments, waits on the device's clock, and no wait of the host."""

import ceilings_fixtures as made
import numpy as np
import pytest
import torch
from hostile_fixtures import photo, saved
from image_fixtures import request, write_cache, write_dataset, write_files
from PIL import Image
from test_cuda_trainer import DeviceLoader, StrictLoader, losses, need, trainer

from gpufeed.benchmarks.ceilings import stages
from gpufeed.benchmarks.ceilings.ceiling_benchmark import measure_ceilings
from gpufeed.benchmarks.ceilings.segments import Bench, ReplayedBatch
from gpufeed.benchmarks.ceilings.stages import drain_epoch, example_batch
from gpufeed.core import registry
from gpufeed.core.errors import Skip
from gpufeed.core.record import CEILINGS
from gpufeed.core.registry import load
from gpufeed.decoders import pillow
from gpufeed.loaders.base import NoStage
from gpufeed.loaders.dataloader import SyncLoader
from gpufeed.models.simple_cnn import SimpleCNN
from gpufeed.report.sections import ceilings_verdict as verdicts
from gpufeed.training.runtime_context import Stores

CYCLES = 10_000_000  # about 5 ms at 2 GHz
SETTINGS = {"pairs": 6, "least_s": 0.5}


class SpinningModel(SimpleCNN):
    """The device is busy for some cycles in each forward pass; a graph can hold that."""

    cycles = CYCLES

    def forward(self, images):
        torch.cuda._sleep(self.cycles)
        return super().forward(images)


class LongSteps(SpinningModel):
    """An epoch takes 120 ms: its first batch is 1.0 to 1.3 ms late on the hosts seen so far."""

    cycles = 4 * CYCLES


class ThrottledCopies(SyncLoader):
    """A batch reaches the device after five times the cycles of a step."""

    def batches(self, order):
        for batch in super().batches(order):
            if self.request.device.type == "cuda":
                torch.cuda._sleep(5 * CYCLES)
            yield batch


class StrictReplayed(ReplayedBatch):
    """Inside an epoch any wait for the device raises."""

    def epoch_batches(self, done):
        try:
            torch.cuda.set_sync_debug_mode("error")
            yield from super().epoch_batches(done)
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """The ceilings of a cell on 23 images of 8 pixels, checked against the schema, and their verdict."""
    made.register(monkeypatch)
    here = "test_cuda_ceilings"
    for name in ("SpinningModel", "LongSteps"):
        monkeypatch.setitem(registry.MODELS, name, registry.ModelEntry(f"{here}:{name}"))
    monkeypatch.setitem(registry.LOADERS, "ThrottledCopies", registry.LoaderEntry(f"{here}:ThrottledCopies"))
    manifest = write_dataset(tmp_path / "tiny")
    stores = Stores(cache=write_cache(manifest))

    def measured(decoder=None, **axes):
        if decoder is not None:
            monkeypatch.setattr(pillow, "PillowDecoder", decoder)
        cell = made.planted(**{"device": "cuda", "model": "SpinningModel", **axes})
        found = measure_ceilings(cell, manifest.root / "manifest.parquet", stores, SETTINGS, "login1")
        CEILINGS.check(found, tmp_path)
        assert found["status"] == "done", found["sentence"]
        assert found["shared_cores"] is False
        return found, verdicts.of(found)

    return measured


@pytest.mark.alone
@pytest.mark.parametrize("graphs", [False, True])
def test_resident_is_compute_bound(measured, graphs):
    found, verdict = measured(loader="resident", model="LongSteps", cuda_graphs=graphs)
    assert found["shares"]["au"]["median"] > 0.95
    assert verdict.kind == "compute-bound", verdict.sentence
    assert found["stages"]["decode"]["reason"] == "The cache holds decoded pixels."


@pytest.mark.alone
@pytest.mark.parametrize(
    "axes",
    [
        {"loader": "dataloader_sync"},
        {"loader": "dataloader_sync", "cuda_graphs": True},
        {
            "loader": "dataloader_workers",
            "workers": 1,
            "prefetch_factor": 2,
            "persistent_workers": True,
        },
        {"loader": "overlap"},
    ],
    ids=str,
)
def test_a_sleeping_decoder_is_input_bound(measured, axes):
    """50 ms a batch against steps of 5."""
    found, verdict = measured(decoder=made.SleepingDecoder, **axes)
    assert (verdict.kind, verdict.stage) == ("input-bound", "decode"), verdict.sentence
    assert found["shares"]["wait"]["median"] > 0.5
    assert found["stages"]["decode"]["seconds"]["median"] == pytest.approx(0.23, rel=0.3)
    assert found["stages"]["transfer"]["reason"] is None
    assert verdict.sentence.startswith("input-bound: the GPU waits")


@pytest.mark.alone
def test_a_throttled_copy_is_input_bound_for_transfer(measured):
    found, verdict = measured(loader="ThrottledCopies")
    assert (verdict.kind, verdict.stage) == ("input-bound", "transfer"), verdict.sentence
    assert found["stages"]["decode"]["points"] < 0.2


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("graphs", [False, True])
def test_every_segment_begins_with_the_same_weights(tmp_path, precision, graphs):
    need(precision)
    made_trainer = trainer(tmp_path, precision=precision, cuda_graphs=graphs)
    bench = Bench(made_trainer)
    alone = ReplayedBatch(made_trainer.job.loader.request, example_batch(made_trainer.job.loader))
    first, second = (losses(bench.train(alone, 3)) for _ in range(2))
    assert first[0] == pytest.approx(second[0], rel=1e-4)
    assert second == pytest.approx(first, rel=5e-2, abs=1e-2)
    assert first[-1] < first[0]


@pytest.mark.parametrize("graphs", [False, True])
def test_nothing_waits_inside_a_segment(tmp_path, graphs):
    prepared = trainer(tmp_path, loader=StrictLoader, cuda_graphs=graphs)
    loader = prepared.job.loader
    with DeviceLoader(loader.request) as free:
        batch = example_batch(free)
    bench = Bench(prepared)
    segment = bench.segment(loader, 2)
    assert segment.seconds == pytest.approx(segment.wait_s + segment.step_s)
    assert bench.segment(StrictReplayed(loader.request, batch), 2).seconds > 0


@pytest.mark.alone
def test_a_loader_alone_is_timed_until_its_batches_are_on_the_device(tmp_path):
    class Queued(SyncLoader):
        def batches(self, order):
            for batch in super().batches(order):
                torch.cuda._sleep(CYCLES)
                yield batch

    asked = request(write_dataset(tmp_path / "tiny"), None, device=torch.device("cuda"))
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(1000)
    start.record()
    torch.cuda._sleep(CYCLES)
    end.record()
    torch.cuda.synchronize()
    with Queued(asked) as loader:
        found = drain_epoch(loader, 2)
    assert found.seconds > 2 * 5 * 0.9 * start.elapsed_time(end) / 1e3
    assert len(found.first_batch_s) == 2


@pytest.mark.parametrize("name", ["torchvision_cuda", "torchcodec_cuda", "nvimgcodec"])
def test_a_gpu_decoder_is_taken_out_and_has_no_copy(tmp_path, name):
    files = [saved("JPEG", Image.fromarray(photo(64, 64)), quality=90) for _ in range(23)]
    manifest = write_files(tmp_path / "files", files, "jpg", (64, 64))
    asked, of = request(manifest, None, device=torch.device("cuda")), load("loader", name)
    pixels = np.arange(7, dtype=np.uint8)[:, None, None, None].repeat(64, 1).repeat(64, 2).repeat(3, 3)
    with pytest.raises(NoStage, match="decodes on the device"):
        of.without_transfer(asked)
    try:
        with of.without_decoding(asked, lambda: pixels) as loader:
            taken = [batch.images[:, 0, 0, 0].clone() for batch in loader]
    except Skip as skip:
        pytest.skip(str(skip))
    assert torch.cat(taken).tolist() == [i % 7 for i in range(23)]
    with of(asked) as loader:
        seconds, firsts, reasons = stages.input_runs(loader, asked, 1, 2)
    assert {name: len(runs) for name, runs in seconds.items()} == {"input_only": 2, "decode": 2}
    assert len(firsts) == 2
    assert "decodes on the device" in reasons["transfer"]


def test_the_sentinel_does_notice_a_wait(tmp_path):
    """Without this the test above could pass for nothing."""

    def waiting(images, ids, epoch):
        ids.max().item()
        return images.permute(0, 3, 1, 2).float()

    prepared = trainer(tmp_path, augment=waiting)
    loader = prepared.job.loader
    with pytest.raises(RuntimeError, match="synchroniz"):
        Bench(prepared).segment(StrictReplayed(loader.request, example_batch(loader)), 1)

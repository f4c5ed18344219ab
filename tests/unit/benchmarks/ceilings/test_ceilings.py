"""The ceilings of real trainings on the CPU: planted bottlenecks, and what their documents must hold."""

import copy
import logging

import ceilings_fixtures as made
import numpy as np
import pytest
import torch
from image_fixtures import request, write_cache, write_dataset
from measure_fixtures import CPU, toy_trainer

from gpufeed.benchmarks.ceilings import stages
from gpufeed.benchmarks.ceilings.ceiling_benchmark import epochs_of_a_segment, measure_ceilings
from gpufeed.benchmarks.ceilings.segments import Bench, ReplayedBatch, Segment
from gpufeed.benchmarks.ceilings.stages import Drained, drain_epoch, example_batch
from gpufeed.core.errors import GpufeedError
from gpufeed.core.record import CEILINGS
from gpufeed.core.registry import LOADERS, load
from gpufeed.decoders import pillow
from gpufeed.decoders.pillow import PillowDecoder
from gpufeed.loaders.base import NoStage
from gpufeed.loaders.streaming import PredecodedImages
from gpufeed.report.sections import ceilings_verdict as verdicts
from gpufeed.training.runtime_context import Stores

NEAR = 1e-3  # relative: looking at the clock takes a little
SETTINGS = {"pairs": 6, "least_s": 0.01}


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """The ceilings of a cell on 23 images of 8 pixels, checked against the schema, and their verdict.

    The clock moves by sleeps alone, unless `virtual` is false: compute then takes what the model sleeps.
    """
    made.register(monkeypatch)
    manifest = write_dataset(tmp_path / "tiny").root / "manifest.parquet"
    threads = torch.get_num_threads()

    def measured(virtual=True, decoder=None, **axes):
        if decoder is not None:
            monkeypatch.setattr(pillow, "PillowDecoder", decoder)
        if virtual:
            made.TickingClock(monkeypatch)
        found = measure_ceilings(made.planted(**axes), manifest, Stores(), SETTINGS, "login1", threads=1)
        CEILINGS.check(found, tmp_path)
        assert found["status"] == "done", found["sentence"]
        for pair in found["pairs"]:
            check_pair(pair)
        return found, verdicts.of(found)

    yield measured
    torch.set_num_threads(threads)


def check_pair(pair):
    for side in ("end_to_end", "compute_only"):
        assert pair[side]["seconds"] == pytest.approx(pair[side]["wait_s"] + pair[side]["step_s"])
        assert pair[side]["start_s"] <= pair[side]["wait_s"]


def test_a_sleeping_decoder_is_input_bound_for_decode(measured):
    found, verdict = measured(decoder=made.SleepingDecoder)
    assert (verdict.kind, verdict.stage) == ("input-bound", "decode")
    # 23 files of 10 ms, 5 steps of 10 ms
    assert found["images_per_s"]["end_to_end"]["median"] == pytest.approx(23 / 0.28, NEAR)
    assert found["images_per_s"]["compute_only"]["median"] == pytest.approx(23 / 0.05, NEAR)
    assert found["images_per_s"]["input_only"]["median"] == pytest.approx(23 / 0.23, NEAR)
    assert found["shares"]["au"]["median"] == pytest.approx(0.05 / 0.28, NEAR)
    assert found["shares"]["wait"]["median"] == pytest.approx(0.23 / 0.28, NEAR)
    decode = found["stages"]["decode"]
    assert decode["seconds"]["median"] == pytest.approx(0.23, NEAR)
    assert decode["points"] == pytest.approx(0.23 / 0.28, NEAR)
    assert decode["at_most"] == pytest.approx(0.28 / 0.05, NEAR)
    assert "the CPU waits 82 % of the epoch, 82 points of it for decode" in verdict.sentence


def test_a_throttled_copy_is_input_bound_for_transfer(measured):
    found, verdict = measured(loader="ThrottledLoader")
    assert (verdict.kind, verdict.stage) == ("input-bound", "transfer")
    assert found["stages"]["transfer"]["seconds"]["median"] == pytest.approx(5 * made.SLOW_S, NEAR)
    assert found["stages"]["decode"]["shown"] is False


@pytest.mark.parametrize(
    ("loader", "model"), [("dataloader_sync", "SlowModel"), ("EasyLoader", "PacedModel")]
)
def test_a_slow_model_and_a_loader_without_a_bottleneck_are_compute_bound(measured, loader, model):
    found, verdict = measured(loader=loader, model=model)
    assert (verdict.kind, verdict.stage) == ("compute-bound", None)
    assert found["shares"]["au"]["ci95_low"] > 0.97


def test_a_late_first_batch_is_start_up_bound(measured):
    found, verdict = measured(loader="LateLoader")
    assert verdict.kind == "start-up-bound"
    assert found["start_up"]["epoch_start_s"] == pytest.approx(20 * made.SLOW_S, NEAR)
    assert found["start_up"]["first_batch_s"] == pytest.approx(20 * made.SLOW_S, NEAR)
    assert found["input_only"]["first_batch_s"] == pytest.approx(20 * made.SLOW_S, NEAR)


@pytest.mark.slow
def test_too_few_workers_are_input_bound_for_decode_and_more_of_them_shorten_the_wait(measured):
    """On the real clock: a batch sleeps 50 ms in a worker process. Five batches one after another in one, at
    most two in each of four."""
    axes = {"model": "simple_cnn", "prefetch_factor": 2, "persistent_workers": True, "virtual": False}
    axes |= {"loader": "dataloader_workers", "decoder": made.SleepingDecoder}
    (few, verdict), (more, _) = (measured(workers=workers, **axes) for workers in (1, 4))
    assert (verdict.kind, verdict.stage) == ("input-bound", "decode")
    assert "for decode in 1 worker process" in verdict.sentence
    assert few["stages"]["decode"]["seconds"]["median"] > 0.15
    assert few["shared_cores"] is True
    assert "share the CPU's cores" in verdict.sentence
    rate_of_few, rate_of_more = (found["images_per_s"]["input_only"]["median"] for found in (few, more))
    assert rate_of_more > 1.5 * rate_of_few
    waits = [sum(pair["end_to_end"]["wait_s"] for pair in found["pairs"]) for found in (few, more)]
    assert waits[1] < waits[0] / 1.5


def test_segments_alternate_and_are_as_long_as_asked_for(measured):
    found, _ = measured(loader="EasyLoader")
    assert [pair["first"] for pair in found["pairs"]] == ["end_to_end", "compute_only"] * 3
    assert found["dataset"] == {"images": 23, "batches": 5}
    assert found["segment"] == {"epochs": 1, "images": 23}
    assert epochs_of_a_segment(0.05, {"pairs": 20, "least_s": 3}) == 3
    assert epochs_of_a_segment(9.0, {"pairs": 20, "least_s": 3}) == 1


def test_every_segment_trains_from_the_same_weights_in_the_same_order_of_rates(tmp_path):
    trainer = toy_trainer(tmp_path, options={"optimiser": "adam", "schedule": "one_cycle"}, epochs=2)
    weights = copy.deepcopy(trainer.job.model.state_dict())
    bench = Bench(trainer)
    alone = ReplayedBatch(trainer.job.loader.request, example_batch(trainer.job.loader))
    before = logging.getLogger("gpufeed").level
    first, second = (bench.train(alone, 3) for _ in range(2))
    assert logging.getLogger("gpufeed").level == before
    losses = [row["loss"] for row in first.steps]
    assert losses == [row["loss"] for row in second.steps]
    assert losses[0] > losses[-1]  # it trained
    assert [row["images"] for row in first.steps] == [8, 8, 8, 6] * 3
    bench.snapshot.put_back()
    for name, tensor in trainer.job.model.state_dict().items():
        assert torch.equal(tensor, weights[name]), name


def test_the_start_of_an_epoch_is_what_its_first_step_waits_longer():
    rows = [
        {"epoch": epoch, "wait_ms": wait, "train_ms": 2.0, "total_ms": wait + 2.0}
        for epoch, waits in ((0, (9, 1, 3, 2)), (1, (1, 2, 2)), (2, (50,)))
        for wait in waits
    ]
    found = Segment.of(rows)
    assert found.start_s == pytest.approx(0.007)
    assert (found.seconds, found.wait_s, found.step_s) == pytest.approx((0.086, 0.070, 0.016))


# --- loaders without a stage


@pytest.fixture
def dataset(tmp_path):
    manifest = write_dataset(tmp_path / "tiny")
    return manifest, write_cache(manifest)


@pytest.mark.parametrize(
    ("name", "workers"), [("dataloader_sync", 0), ("dataloader_workers", 1), ("overlap", 0), ("fastai", 0)]
)
def test_a_loader_without_decoding_reads_its_files_and_brings_other_pixels(
    dataset, name, workers, monkeypatch
):
    manifest, _ = dataset
    of = load("loader", name)
    asked = request(manifest, None, workers=workers)
    with of(asked) as whole:
        expected = [(batch.ids.tolist(), batch.labels.tolist()) for batch in whole]
        assert sorted(whole.files()) == sorted(str(manifest.paths()[i]) for i in manifest.ids("train"))
    monkeypatch.setattr(PillowDecoder, "decode", None)  # calling it is an error
    pixels = np.arange(4, dtype=np.uint8)[:, None, None, None].repeat(8, 1).repeat(8, 2).repeat(3, 3)
    with of.without_decoding(asked, lambda: pixels) as without:
        found = list(without)
    assert [(batch.ids.tolist(), batch.labels.tolist()) for batch in found] == expected
    for batch in found:
        assert batch.images.dtype == torch.uint8
        assert batch.images[:, 0, 0, 0].tolist() == [i % 4 for i in batch.ids.tolist()]
    manifest.paths()[int(found[0].ids[0])].unlink()
    with of.without_decoding(asked, lambda: pixels) as without, pytest.raises(GpufeedError, match=r"\.png"):
        list(without)  # files are still read


def test_the_pool_has_the_pixels_of_the_split(dataset, monkeypatch):
    manifest, _ = dataset
    pool = stages.decoded(request(manifest, None))
    assert pool.shape == (23, 8, 8, 3)
    assert pool[:, 0, 0, 0].tolist() == manifest.ids("train").tolist()
    monkeypatch.setattr(stages, "POOL_BYTES", 1000)
    assert len(stages.decoded(request(manifest, None))) == 5


@pytest.mark.parametrize("name", [name for name, entry in LOADERS.items() if not entry.ceiling])
def test_every_pipeline_gives_its_stages_or_says_why_not(dataset, name):
    of = load("loader", name)
    manifest, cache = dataset
    asked = request(manifest, cache)
    with pytest.raises(NoStage, match="The device is the CPU"):
        of.without_transfer(asked)
    if of.no_decoding is not None:
        assert of.no_decoding.endswith(".")
        with pytest.raises(NoStage) as caught:
            of.without_decoding(asked, None)
        assert str(caught.value) == of.no_decoding


def test_a_copy_to_a_device_is_taken_out_where_there_is_one(dataset):
    manifest, _ = dataset
    asked = request(manifest, None, device=torch.device("cuda"))
    assert load("loader", "dataloader_sync").without_transfer(asked).request.device == CPU
    with pytest.raises(NoStage, match="decodes on the device"):
        load("loader", "nvimgcodec").without_transfer(asked)


def test_a_library_gives_pixels_by_turns_instead_of_decoding():
    images = np.arange(7, dtype=np.uint8)[:, None, None, None].repeat(3, 3)
    before = PredecodedImages(PillowDecoder(), images, CPU)
    taken = []
    for count in (3, 3, 10):
        out = torch.zeros((count, 1, 1, 3), dtype=torch.uint8)
        assert [outcome.decoder for outcome in before.decode_into([b""] * count, out)] == ["pillow"] * count
        taken += out[:, 0, 0, 0].tolist()
    assert taken == [i % 7 for i in range(16)]
    assert before.decode([b""] * 2).images[0][0, 0, 0] == 16 % 7
    assert before.version() == PillowDecoder().version()


def test_the_bounds_of_a_stage_by_hand():
    # 10 s end to end, 4 s of compute; the loader alone takes 9, without the stage 5
    found = stages.difference([9.0] * 6, [5.0] * 6, 1000, 10.0, 4.0)
    assert found["seconds"]["median"] == 4
    assert found["at_most"] == 2  # what is left of the input is the limit
    assert found["points"] == pytest.approx(0.4)  # no more than its own time
    assert found["images_per_s_without"] == 200
    # without it compute is the limit, and only a part of the 8 s can be saved
    found = stages.difference([9.0] * 6, [1.0] * 6, 1000, 9.0, 6.0)
    assert (found["at_most"], found["points"]) == (1.5, pytest.approx(1 / 3))
    # noise: it was faster with the stage in one round
    assert stages.difference([9.0] * 3, [5.0] * 3, 1000, 10.0, 4.0)["shown"] is False  # chance in an eighth
    assert stages.difference([9.0] * 6, [5.0] * 5 + [9.1], 1000, 10.0, 4.0)["shown"] is False
    assert stages.COLD_ROUNDS == stages.ROUNDS == 6
    found = stages.difference([9.0, 4.0], [8.0, 5.0], 1000, 10.0, 4.0)
    assert found["shown"] is False
    # nothing comes of it where training is not held up
    found = stages.difference([1.0] * 6, [0.9] * 6, 1000, 10.0, 10.0)
    assert (found["at_most"], found["points"]) == (1, 0)


@pytest.mark.parametrize("keeps_on", [False, True])
def test_a_loader_that_keeps_on_has_a_lead_in_that_is_not_counted(tmp_path, keeps_on):
    trainer = toy_trainer(tmp_path)
    loader, bench = trainer.job.loader, Bench(trainer)
    alone = ReplayedBatch(loader.request, example_batch(loader))
    loader.keeps_on = keeps_on
    began, lead = loader.epoch, int(keeps_on)
    assert len(drain_epoch(loader, 2).first_batch_s) == 2
    assert loader.epoch == began + lead + 2
    bench.segment(loader, 2)
    assert loader.epoch == began + 2 * (lead + 2)
    bench.segment(loader, 1, lead_in=False)
    drain_epoch(loader, lead_in=False)
    assert loader.epoch == began + 2 * (lead + 2) + 2
    seen = []
    loader.batches = lambda order: seen.append(1) or alone.epoch_batches(0)
    assert bench.segment(loader, 3).seconds > 0
    assert len(seen) == lead + 3


def test_lost_images_are_an_error(dataset):
    class Losing(load("loader", "dataloader_sync")):
        def batches(self, order):
            yield from super().batches(order[1:])

    with Losing(request(dataset[0], None)) as loader, pytest.raises(GpufeedError, match="22 images"):
        drain_epoch(loader)


def test_cold_epochs_are_evicted_ones_or_say_why_there_are_none(dataset, monkeypatch):
    manifest, cache = dataset
    with load("loader", "dataloader_sync")(request(manifest, None)) as loader:
        order = []
        monkeypatch.setattr(
            stages, "drain_epoch", lambda loader, **_: order.append("alone") or Drained(1.0, [])
        )
        monkeypatch.setattr(stages, "make_cold", lambda paths: order.append(f"evict {len(paths)}"))
        found = stages.cold_runs(loader, lambda: order.append("train") or 2.0, 3)
    assert order == ["evict 23", "alone", "alone", "evict 23", "train"] * 3
    assert found == stages.Cold([1.0] * 3, [1.0] * 3, [2.0] * 3)
    with load("loader", "resident")(request(manifest, cache)) as loader:
        assert stages.cold_runs(loader, lambda: 2.0, 3) == "An epoch reads no file."

    def refuses(paths):
        raise stages.Refused("The kernel kept them.")

    monkeypatch.setattr(stages, "make_cold", refuses)
    with load("loader", "overlap")(request(manifest, None)) as loader:
        assert stages.cold_runs(loader, lambda: 2.0, 3) == "The kernel kept them."


# --- what does not go well


def test_what_stops_it_is_a_sentence(tmp_path, monkeypatch):
    made.register(monkeypatch)
    manifest = write_dataset(tmp_path / "tiny").root / "manifest.parquet"

    def status(**axes):
        found = measure_ceilings(made.planted(**axes), manifest, Stores(), SETTINGS, "login1", threads=1)
        CEILINGS.check(found, tmp_path)
        return found["status"], found["sentence"]

    assert status(cuda_graphs=True)[0] == "skipped"
    state, sentence = status(trainer="fastai")
    assert state == "failed"
    assert "no separate step" in sentence
    assert status(loader="resident")[0] == "failed"  # no cache

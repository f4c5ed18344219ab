"""What only a GPU can show of the trainer: graphs, precisions, and that nothing waits inside an epoch."""

import gc
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from gpufeed.core.registry import load
from gpufeed.datasets.manifest import DatasetInfo, Manifest
from gpufeed.loaders.base import Batch, DeferredGather, LoadRequest, OrderedLoader, permutation
from gpufeed.loaders.resident import StoredBatch
from gpufeed.models.simple_cnn import SimpleCNN
from gpufeed.system.devices import AMPERE, apply_precision
from gpufeed.system.timing import Mark, synchronise
from gpufeed.training.cuda_graph import GraphedStep, captured
from gpufeed.training.engines.base import TrainJob
from gpufeed.training.engines.plain import PlainTrainer
from gpufeed.training.evaluate import answers
from gpufeed.training.step import TrainStep

SIDE, CLASSES, IMAGES, BATCH = 32, 4, 150, 64  # the last batch has 22
PRECISIONS = ["fp32", "tf32", "fp16", "bf16"]
OPTIONS = {
    "optimiser": "adam",
    "learning_rate": 3e-3,
    "momentum": 0.9,
    "weight_decay": 1e-4,
    "schedule": "one_cycle",
    "warmup_share": 0.3,
    "label_smoothing": 0.1,
}


class DeviceLoader(OrderedLoader):
    """All images on the device, gathered batch by batch. Inside an epoch any wait for the device raises."""

    strict = False

    def open(self):
        generator, device = torch.Generator().manual_seed(1), self.request.device
        labels = torch.from_numpy(self.request.manifest.labels())  # int64 (N,)
        images = torch.randint(156, (len(labels), SIDE, SIDE, 3), dtype=torch.uint8, generator=generator)
        images[torch.arange(len(labels)), :, :, labels % 3] += (labels * 25)[:, None, None].to(torch.uint8)
        self.images, self.labels = images.to(device), labels.to(device)

    def batches(self, order):
        ids = torch.from_numpy(order).to(self.request.device)
        try:
            torch.cuda.set_sync_debug_mode("error" if self.strict else "default")
            for part in ids.split(self.request.batch_size):
                yield Batch(self.images[part], self.labels[part], part, load_ms=0.0)
        finally:
            torch.cuda.set_sync_debug_mode("default")


class StrictLoader(DeviceLoader):
    strict = True


def augment(images, ids, epoch):
    """Normalises, and brightens by a function of id and epoch, so that a stale epoch in a graph shows."""
    scaled = images.permute(0, 3, 1, 2).float() / 255 - 0.5  # (N, 3, H, W)
    return scaled + ((ids * 7 + epoch * 3) % 5)[:, None, None, None] * 0.05


def trainer(tmp_path, loader=DeviceLoader, seed=0, **job) -> PlainTrainer:
    """A prepared trainer; fields of TrainJob by keyword."""
    device = torch.device("cuda", torch.cuda.current_device())
    table = pd.DataFrame(
        {
            "path": [f"{i}.png" for i in range(IMAGES)],
            "label": np.arange(IMAGES) % CLASSES,
            "split": "train",
            "height": SIDE,
            "width": SIDE,
            "channels": 3,
        }
    )
    info = DatasetInfo("toy", "toy", list("abcd"), "test", (0.5,) * 3, (1.0,) * 3)
    source = loader(LoadRequest(Manifest(tmp_path, info, table), "train", BATCH, device))
    source.open()
    torch.manual_seed(seed)
    model = SimpleCNN(CLASSES, channels=(16, 32), batch_norm=True).to(device)
    options = {**OPTIONS, **job.pop("options", {})}
    precision = job.pop("precision", "fp32")
    apply_precision(precision)
    defaults = {"augment": augment, "device": device, "precision": precision, "options": options, "epochs": 4}
    made = PlainTrainer(TrainJob(model=model, loader=source, **{**defaults, **job}))
    images = torch.randint(256, (BATCH, SIDE, SIDE, 3), dtype=torch.uint8, device=device)
    made.prepare(images if source.example() is None else source.example())
    return made


def losses(result) -> list[float]:
    return [row["loss"] for row in result.steps]


def need(precision: str) -> None:
    if precision in ("bf16", "tf32") and torch.cuda.get_device_capability() < AMPERE:
        pytest.skip(f"{precision} needs compute capability 8.0")


# rounding of the precision, amplified over 12 steps
TOLERANCE = {"fp32": 2e-3, "tf32": 1e-2, "fp16": 3e-2, "bf16": 5e-2}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("optimiser", ["sgd", "adam", "adamw"])
def test_a_graph_trains_like_the_eager_step(tmp_path, precision, optimiser):
    need(precision)
    options = {"optimiser": optimiser, "learning_rate": 3e-2 if optimiser == "sgd" else 3e-3}
    eager = trainer(tmp_path, precision=precision, options=options).run()
    made = trainer(tmp_path, precision=precision, options=options, cuda_graphs=True)
    assert isinstance(made.step, GraphedStep)
    graphed = made.run()
    assert losses(graphed) == pytest.approx(losses(eager), rel=TOLERANCE[precision], abs=1e-3)
    assert graphed.epochs[-1]["train_loss"] < graphed.epochs[0]["train_loss"]


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("steps", [None, 7])
def test_a_short_run_goes_on_and_leaves_the_model_as_planned(tmp_path, graphs, steps):
    planned = trainer(tmp_path, cuda_graphs=graphs, steps=steps)
    longer = trainer(tmp_path, cuda_graphs=graphs, steps=steps)
    before, after = planned.run(), longer.run(least_s=0.5)
    assert sum(row["total_ms"] for row in after.steps) >= 500
    count = len(before.steps)
    assert len(after.steps) > count
    assert losses(after)[:count] == pytest.approx(losses(before), rel=TOLERANCE["fp32"], abs=1e-3)
    for name, tensor in longer.job.model.state_dict().items():
        torch.testing.assert_close(tensor, planned.job.model.state_dict()[name], rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("name", ["torch", "chain", "fused"])
def test_a_graph_holds_every_augment_and_its_epoch(tmp_path, name):
    pytest.importorskip({"torch": "torch", "chain": "cupy", "fused": "triton"}[name])
    mean, std = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)

    def run(**job):
        made = trainer(tmp_path, augment=load("augment", name)(mean, std, 1, {}), **job)
        return losses(made.run())

    assert run(cuda_graphs=True) == pytest.approx(run(), rel=TOLERANCE["fp32"], abs=1e-3)


class StoreLoader(StrictLoader):
    """As its parent; a step that gathers gets rows of its store, in an order made on the device."""

    def example(self):
        return DeferredGather(self.images, torch.arange(BATCH, device=self.request.device))

    def epoch_batches(self, done):
        rows = permutation(len(self.images), self.request.seed, self.epoch, self.request.device)
        torch.cuda.set_sync_debug_mode("error")
        try:
            for part in rows.split(self.request.batch_size):
                yield StoredBatch(DeferredGather(self.images, part), self.labels[part], part, 0.0)
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("graphs", [False, True])
def test_a_step_that_gathers_from_the_store_trains_the_same(tmp_path, graphs):
    pytest.importorskip("triton")
    options = {"crop_padding": 4, "salt_pepper": 0.02}
    augment = load("augment", "fused")((0.5,) * 3, (0.25,) * 3, 1, options)
    runs = {}
    for loader in (DeviceLoader, StoreLoader):
        made = trainer(tmp_path, loader=loader, augment=augment, cuda_graphs=graphs)
        if loader is StoreLoader:
            assert (made.step.images.store if graphs else made.job.loader.images) is made.job.loader.images
        runs[loader] = losses(made.run())
    assert runs[StoreLoader] == pytest.approx(runs[DeviceLoader], rel=TOLERANCE["fp32"], abs=1e-3)


def test_the_order_of_an_epoch_is_the_same_on_the_device():
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = [permutation(n, 2**63 + 5, 3, "cuda") for n in (1, 1000, 100_000)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for order in found:
        assert torch.equal(order.cpu(), permutation(len(order), 2**63 + 5, 3))


def test_the_first_loss_is_that_of_the_untouched_model(tmp_path):
    """Warm-up and capture change neither the weights nor what the first step computes."""
    made = trainer(tmp_path)
    torch.manual_seed(0)
    model = SimpleCNN(CLASSES, channels=(16, 32), batch_norm=True).to(made.job.device)
    job = TrainJob(model, made.job.loader, augment, made.job.device, "fp32", OPTIONS)
    batch = next(made.job.loader.batches(made.job.loader.order()))
    expected = TrainStep(job)(batch.images, batch.labels, batch.ids, 0).item()
    for graphs in (False, True):
        first = losses(trainer(tmp_path, cuda_graphs=graphs).run())[0]
        assert first == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_nothing_waits_inside_an_epoch(tmp_path, precision, graphs):
    need(precision)
    result = trainer(tmp_path, loader=StrictLoader, precision=precision, cuda_graphs=graphs).run()
    assert len(result.steps) == 4 * 3


def test_the_sentinel_does_notice_a_wait(tmp_path):
    """Without this the test above could pass for nothing."""

    def waiting(images, ids, epoch):
        ids.max().item()
        return augment(images, ids, epoch)

    made = trainer(tmp_path, loader=StrictLoader, augment=waiting)
    with pytest.raises(RuntimeError, match="synchroniz"):
        made.run()


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_precision_and_layout_learns(tmp_path, precision, channels_last):
    need(precision)
    made = trainer(tmp_path, precision=precision, channels_last=channels_last, epochs=12)
    result = made.run()
    assert result.epochs[-1]["train_loss"] < 0.7 * result.epochs[0]["train_loss"]
    kernel = made.job.model.features[0][0].weight
    assert kernel.is_contiguous(memory_format=torch.channels_last) is channels_last


def test_tf32_rounds_and_fp32_does_not():
    need("tf32")
    generator = torch.Generator("cuda").manual_seed(0)
    a, b = (torch.randn(512, 512, device="cuda", generator=generator) for _ in range(2))
    exact, error = a.double() @ b.double(), {}
    for precision in ("tf32", "fp32"):
        apply_precision(precision)
        error[precision] = (a @ b - exact).abs().max().item()
    assert error["tf32"] > 10 * error["fp32"]


@pytest.mark.alone
@pytest.mark.parametrize("synchronise_", ["epoch", "step"])
def test_times_are_those_of_the_device(tmp_path, synchronise_):
    """A long kernel in the augment counts as train, in either mode, and steps add up to the epoch."""
    cycles = 20_000_000  # about 10 ms at 2 GHz

    def slow(images, ids, epoch):
        torch.cuda._sleep(cycles)
        return augment(images, ids, epoch)

    made = trainer(tmp_path, augment=slow, synchronise=synchronise_)
    device = made.job.device
    start = Mark(device)
    torch.cuda._sleep(cycles)
    end = Mark(device)
    synchronise(device)
    result = made.run()
    assert all(row["train_ms"] > 0.5 * start.ms_until(end) for row in result.steps)
    for epoch in result.epochs:
        total = sum(row["total_ms"] for row in result.steps if row["epoch"] == epoch["epoch"])
        assert total == pytest.approx(epoch["epoch_s"] * 1e3, rel=1e-3)


def test_a_graph_that_becomes_garbage_within_a_capture_does_not_end_it():
    dying, graph = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with captured(dying):
        torch.zeros(1, device="cuda")
    with captured(graph):
        ones = torch.ones(3, device="cuda")
        ring = [dying]
        ring.append(ring)
        del ring, dying
        junk = [[] for _ in range(200_000)]  # enough for collections of every generation
        total = ones.sum()
    graph.replay()
    assert (total.item(), len(junk)) == (3.0, 200_000)


@pytest.mark.parametrize("how", ["memory runs out", "it is invalid"])
def test_a_failed_capture_gives_its_memory_back(how):
    def reserved() -> int:
        gc.collect()
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved()

    def fail() -> None:
        with captured(torch.cuda.CUDAGraph()):
            _held = torch.zeros(2**28, device="cuda")
            if how == "memory runs out":
                torch.zeros(2**50, device="cuda")
            torch.cuda.synchronize()  # which no capture allows

    before, stream = reserved(), torch.cuda.current_stream()
    for _ in range(2):
        with pytest.raises(RuntimeError):
            fail()
        assert (reserved(), torch.cuda.current_stream()) == (before, stream)
    graph = torch.cuda.CUDAGraph()
    with captured(graph):
        total = torch.ones(3, device="cuda").sum()
    graph.replay()
    assert total.item() == 3.0


@pytest.mark.parametrize("graphs", [False, True])
def test_asking_between_epochs_changes_nothing_of_the_training(tmp_path, graphs):
    plain = trainer(tmp_path, cuda_graphs=graphs).run()
    made = trainer(tmp_path, cuda_graphs=graphs)
    job, device = made.job, made.job.device
    test = DatasetInfo("toy", "toy", list("abcd"), "train", (0.5,) * 3, (1.0,) * 3)
    manifest = Manifest(tmp_path, test, job.loader.request.manifest.table)

    def judge():
        with DeviceLoader(LoadRequest(manifest, "train", BATCH, device, shuffle=False)) as held_out:
            return answers(job.model, held_out, augment, device, job.precision).accuracy()

    made.job = replace(job, judge=judge)
    asked = made.run()
    assert losses(asked) == pytest.approx(losses(plain), rel=TOLERANCE["fp32"], abs=1e-3)
    told = [epoch["accuracy"] for epoch in asked.epochs]
    assert [one and one["images"] for one in told] == [IMAGES, IMAGES, IMAGES, None]  # the end comes later
    assert told[2]["loss"] < told[0]["loss"]
    assert job.model.training


def test_torchs_own_defaults_are_those_of_a_script_that_sets_nothing(tmp_path):
    need("tf32")
    for usual in (True, False):
        made = trainer(tmp_path, options={"torch_defaults": usual})
        assert torch.backends.cudnn.benchmark is not usual
        assert torch.backends.cudnn.allow_tf32 is usual
        assert torch.backends.cuda.matmul.allow_tf32 is False
        assert made.train_step.optimiser.defaults["fused"] is (None if usual else True)
        assert all(map(math.isfinite, losses(made.run())))

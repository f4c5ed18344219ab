"""The gate on a GPU: real copies and decoders, and wrong pixels that only a late reader sees."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from data_fixtures import REPOSITORY
from gate_fixtures import judged, register, task_for
from image_fixtures import write_beton, write_cache, write_dataset, write_shards, write_strips
from test_gate import WRONG
from test_window_check import of_recipe, several_sizes

from gpufeed.core import registry
from gpufeed.core.equivalence_verdict import Verdict
from gpufeed.core.errors import Skip
from gpufeed.core.registry import DECODERS, LOADERS
from gpufeed.datasets.synthetic import reorganise
from gpufeed.loaders.base import Batch, OrderedLoader, send
from gpufeed.stores.decoded_cache import build
from gpufeed.stores.strip_backends import BACKENDS, open_backend
from gpufeed.stores.strips_to_cache import build_from_strips


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    manifest = write_dataset(tmp_path_factory.mktemp("tiny"))
    return manifest, write_cache(manifest)


@pytest.fixture(scope="module")
def jpegs(tmp_path_factory):
    """Some hundred JPEG files of 64 pixels, a few of them grayscale, and their reference."""
    root = tmp_path_factory.mktemp("jpegs")
    options = {
        "count": 400,
        "size": 64,
        "classes": 4,
        "format": "jpeg",
        "quality": 90,
        "grayscale_share": 0.05,
        "evaluation_share": 0.2,
        "seed": 0,
    }
    manifest = reorganise([], root, "synthetic", options)
    write_strips(manifest)
    write_shards(manifest)
    write_beton(manifest)
    return manifest, write_cache(manifest)


@pytest.fixture(autouse=True)
def wrong_loaders(monkeypatch):
    register(monkeypatch)
    monkeypatch.setitem(
        LOADERS, "OneBuffer", registry.LoaderEntry("test_cuda_gate:OneBuffer", reads="cache", device="cuda")
    )


class OneBuffer(OrderedLoader):
    """Copies every batch into the same memory on a stream of its own, without waiting for its readers.

    The readers' stream has other work before each batch, as a model that trains gives it.
    """

    def open(self):
        self.pixels = np.load(self.request.cache, mmap_mode="r")
        self.stream = torch.cuda.Stream(self.request.device)
        shape = (self.request.batch_size, *self.pixels.shape[1:])
        self.buffer = torch.empty(shape, dtype=torch.uint8, device=self.request.device)
        self.staging = torch.empty(
            shape, dtype=torch.uint8, pin_memory=True
        )  # now: pinning waits for the device

    def batches(self, order):
        labels = self.request.manifest.labels()
        for start in range(0, len(order), self.request.batch_size):
            ids = order[start : start + self.request.batch_size]
            self.staging[: len(ids)] = torch.from_numpy(self.pixels[ids])
            with torch.cuda.stream(self.stream):
                self.buffer[: len(ids)].copy_(self.staging[: len(ids)], non_blocking=True)
            self.stream.synchronize()  # the copy is done, but work that reads the batch before may not be
            images = self.buffer[: len(ids)]
            # sent before the other work: a copy from pageable memory waits for all that is queued
            batch = Batch(images, send(labels[ids], images.device), send(ids, images.device), load_ms=0.0)
            torch.cuda._sleep(200_000_000)  # some 100 ms
            yield batch


@pytest.mark.parametrize(("loader", "epoch", "said"), WRONG, ids=[case[0] for case in WRONG])
def test_wrong_loaders_are_caught_on_the_device_too(dataset, loader, epoch, said):
    one = judged(task_for(*dataset, loader, device="cuda"))
    assert (one.status, one.epochs, one.device) == ("failed", epoch - 1, "cuda")
    for words in said:
        assert words.format(device="cuda:0") in one.sentence


def test_memory_that_is_overwritten_while_queued_work_reads_it_is_caught(jpegs):
    one = judged(task_for(*jpegs, "OneBuffer", device="cuda", batch_size=64))
    assert one.status == "failed"
    assert "images beyond the tolerance" in one.sentence


@pytest.mark.parametrize("batch_size", [64, 7])
@pytest.mark.parametrize("loader", [name for name, entry in LOADERS.items() if not entry.ceiling])
def test_every_true_loader_passes_on_real_jpegs(jpegs, loader, batch_size):
    workers = {"workers": 2, "prefetch_factor": 2} if LOADERS[loader].workers == "required" else {}
    one = judged(task_for(*jpegs, loader, device="cuda", threads=4, batch_size=batch_size, **workers))
    if one.status == "skipped":
        pytest.skip(one.sentence)
    assert one.status == "passed", one.sentence
    assert (one.epochs, one.compared, one.device) == (4, 3 * 320 + 80, "cuda")
    assert one.max_difference <= one.pixels["max"]


@pytest.mark.parametrize("decoder", [name for name, entry in DECODERS.items() if entry.device == "cuda"])
def test_a_cache_of_a_device_decoder_is_held_to_its_tolerance(jpegs, tmp_path, decoder):
    manifest, reference = jpegs
    try:
        registry.load("decoder", decoder)()
    except Skip as skip:
        pytest.skip(str(skip))
    path = tmp_path / f"{decoder}.npy"
    build(manifest, decoder, path)
    one = judged(
        replace(task_for(manifest, reference, "resident", device="cuda"), built={"cache": str(path)})
    )
    assert one.status == "passed", one.sentence
    assert one.pixels["decoder"] == decoder


@pytest.mark.parametrize("loader", ["resident", "host_cache"])
@pytest.mark.parametrize("backend", sorted(BACKENDS.keys() - {"cpu"}))
def test_a_cache_of_strips_is_held_to_the_tolerance_of_its_backend(
    jpegs, tmp_path, monkeypatch, backend, loader
):
    manifest, reference = jpegs
    device, path = torch.device("cuda"), tmp_path / "strips.npy"
    try:
        made = open_backend(device, 2, backend)
    except Skip as skip:
        pytest.skip(str(skip))
    for other in set(BACKENDS) - {backend}:
        monkeypatch.delitem(BACKENDS, other)
    build_from_strips(manifest, manifest.root / "strips" / "strips.bin", path, device, threads=2)
    one = judged(replace(task_for(manifest, reference, loader, device="cuda"), built={"cache": str(path)}))
    assert one.status == "passed", one.sentence
    assert (one.pixels["decoder"], one.pixels["version"]) == ("strips", made.version())
    assert (one.pixels["max"], one.pixels["mean"]) == (made.tolerance.max, made.tolerance.mean)


def test_the_watched_process_may_use_the_gpu(jpegs, tmp_path):
    """In a fresh interpreter, as its job is: one that has used CUDA cannot fork a child that does."""
    task = task_for(*jpegs, "overlap", device="cuda")
    program = (
        "import sys; from gpufeed.benchmarks.equivalence.equivalence_task import Task\n"
        "from gpufeed.benchmarks.equivalence.supervised import watched;"
        "assert 'torch' not in sys.modules;"
        f"watched({task!r}, 'here').write({str(tmp_path / 'verdict.json')!r})"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=REPOSITORY, timeout=300)
    verdict = Verdict.read(tmp_path / "verdict.json")
    assert (verdict.status, verdict.device) == ("passed", "cuda"), verdict.sentence
    assert verdict.environment["gpu"]["name"] == torch.cuda.get_device_name()


def test_ffcv_draws_windows_by_our_rule_on_the_way_to_a_gpu(tmp_path):
    verdict = judged(of_recipe(several_sizes(tmp_path / "files"), "ffcv", 48, "cuda"))
    if verdict.status == "skipped":
        pytest.skip(verdict.sentence)
    assert (verdict.status, verdict.sentence, verdict.epochs) == ("passed", None, 4)
    assert min(verdict.windows[name]["p"] for name in ("area", "ratio", "x", "y", "flip")) > 2e-4

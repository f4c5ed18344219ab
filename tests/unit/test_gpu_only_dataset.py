"""The front that holds a split on the device; here on the CPU, which is what it falls back to."""

import logging
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from data_fixtures import REPOSITORY
from image_fixtures import pixels, write_dataset

from gpufeed import gpu_only_dataset
from gpufeed.cache import read_info
from gpufeed.errors import GpufeedError
from gpufeed.gpu_only_dataset import GPUOnlyDataset

NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")


@pytest.fixture
def manifest(tmp_path):
    return write_dataset(tmp_path / "tiny")  # 23 training and 6 test images, whose pixels tell their id


def dataset(manifest, **options) -> GPUOnlyDataset:
    return GPUOnlyDataset(manifest, **{"use_gpu_decode": False, "device": "cpu", "workers": 1, **options})


def expected(sample_id: int) -> torch.Tensor:
    return torch.from_numpy(pixels(sample_id, 8)).permute(2, 0, 1)


@pytest.mark.parametrize("split", ["train", "test"])
def test_samples_are_those_of_the_split(manifest, split):
    data = dataset(manifest, split=split)
    assert data.ids.tolist() == manifest.ids(split).tolist()
    assert len(data) == len(manifest.ids(split))
    for place, sample_id in enumerate(data.ids):
        image, label = data[place]
        assert image.dtype == torch.uint8
        assert torch.equal(image, expected(sample_id))
        assert label.item() == manifest.labels()[sample_id]
    assert torch.equal(data[-1][0], expected(data.ids[-1]))
    with pytest.raises(IndexError):
        data[len(data)]
    assert data.classes == manifest.info.classes


def test_from_the_path_of_a_manifest(manifest):
    assert len(dataset(manifest.root / "manifest.parquet")) == 23


@pytest.mark.parametrize("batch_size", [1, 5, 23, 100])
def test_a_shuffled_epoch_has_every_sample_once(manifest, batch_size):
    data, seen = dataset(manifest), []
    for images, labels in data.batches(batch_size, seed=4):
        assert images.shape[1:] == (3, 8, 8)
        assert images.is_contiguous(memory_format=torch.channels_last)
        for image, label in zip(images, labels, strict=True):
            sample_id = int(image[0, 0, 0]) + 256 * int(image[1, 0, 0])
            assert torch.equal(image, expected(sample_id))
            assert label.item() == manifest.labels()[sample_id]
            seen.append(sample_id)
    assert sorted(seen) == data.ids.tolist()
    assert seen != sorted(seen)


def order(data, **options) -> list[int]:
    return [int(image[0, 0, 0]) for images, _ in data.batches(4, **options) for image in images]


def test_order_is_a_function_of_the_seed(manifest):
    data = dataset(manifest)
    assert order(data, seed=1) == order(data, seed=1) != order(data, seed=2)
    assert order(data, shuffle=False) == data.ids.tolist()


def test_max_samples_draws_the_same_ones(manifest):
    first, again = dataset(manifest, max_samples=7), dataset(manifest, max_samples=7)
    assert first.ids.tolist() == again.ids.tolist() == sorted(set(first.ids.tolist()))
    assert len(first) == 7
    assert set(first.ids) < set(manifest.ids("train"))
    assert first.ids.tolist() != manifest.ids("train")[:7].tolist()
    assert torch.equal(first[3][0], expected(first.ids[3]))
    assert len(dataset(manifest, max_samples=1000)) == 23


def test_the_cache_is_built_once_and_again_for_another_manifest(manifest):
    data = dataset(manifest)
    built = data.cache.stat().st_mtime_ns
    assert read_info(data.cache).decoder == "simplejpeg"
    assert dataset(manifest, split="test").cache.stat().st_mtime_ns == built
    manifest.table.loc[data.ids[0], "label"] += 1
    changed = dataset(manifest)
    assert changed.cache.stat().st_mtime_ns > built
    assert changed[0][1] == data[0][1] + 1


TWO_AT_ONCE = """
import logging, sys, time
import numpy as np
from gpufeed import gpu_only_dataset
from gpufeed.decode.simplejpeg import SimpleJpegDecoder
logging.basicConfig(level=logging.INFO)
decode = SimpleJpegDecoder.decode
def slow(self, files):
    print("decodes")
    time.sleep(float(sys.argv[2]))
    return decode(self, files)
SimpleJpegDecoder.decode = slow
print("ready", flush=True)
sys.stdin.readline()
data = gpu_only_dataset.GPUOnlyDataset(sys.argv[1], use_gpu_decode=False, device="cpu", workers=1)
np.save(sys.argv[3], data.images.permute(0, 2, 3, 1).numpy())
"""


def test_of_two_processes_that_lack_the_cache_one_builds_it(manifest, tmp_path):
    def start(name: str, slow_s: float) -> subprocess.Popen:
        where = [manifest.root / "manifest.parquet", str(slow_s), tmp_path / f"{name}.npy"]
        command = [sys.executable, "-c", TWO_AT_ONCE, *where]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, cwd=REPOSITORY)
        assert process.stdout.readline() == "ready\n"
        return process

    def go(process: subprocess.Popen) -> None:
        process.stdin.write("\n")
        process.stdin.flush()

    first, second = start("first", 2.0), start("second", 0.0)
    go(first)
    while first.poll() is None and not list(manifest.root.glob("cache/simplejpeg.*.partial")):
        time.sleep(0.01)
    go(second)
    (out, error), (out_2, error_2) = first.communicate(timeout=60), second.communicate(timeout=60)
    assert (first.returncode, second.returncode) == (0, 0), error + error_2
    assert (out, out_2) == ("decodes\n", "")
    assert "this one waits for it" in error_2
    right = np.stack([pixels(i, 8) for i in manifest.ids("train")])
    for name in ("first", "second"):
        assert np.array_equal(np.load(tmp_path / f"{name}.npy"), right)


@NO_GPU
def test_without_a_gpu_the_cpu_decodes_and_holds(manifest, caplog):
    caplog.set_level(logging.INFO, "gpufeed")
    data = GPUOnlyDataset(manifest, workers=1)
    assert data.device == torch.device("cpu")
    assert "finds no CUDA GPU here" in caplog.text
    assert "simplejpeg builds the cache instead" in caplog.text
    assert read_info(data.cache).asked_for == "dali_gpu"
    assert torch.equal(data[5][0], expected(data.ids[5]))


@NO_GPU
def test_a_device_that_is_not_there_is_an_error(manifest):
    with pytest.raises(GpufeedError, match="finds no CUDA GPU"):
        dataset(manifest, device="cuda")


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"max_samples": 0}, "max_samples 0"),
        ({"max_samples": -3}, "max_samples -3"),
        ({"split": "val"}, "no samples in split 'val'"),
        ({"device": "xla"}, "device 'xla'"),
        ({"device": "gpu"}, "device 'gpu'"),
    ],
)
def test_what_cannot_be_is_an_error(manifest, options, found):
    with pytest.raises(GpufeedError, match=found):
        dataset(manifest, **options)


def test_batches_of_nothing(manifest):
    with pytest.raises(GpufeedError, match="batch size 0"):
        next(dataset(manifest).batches(0))


def test_no_room(manifest, monkeypatch):
    monkeypatch.setattr(gpu_only_dataset, "free_bytes", lambda device: 1000)
    with pytest.raises(GpufeedError, match="GiB free on cpu"):
        dataset(manifest)


def test_a_dataloader_takes_it(manifest):
    loader = torch.utils.data.DataLoader(dataset(manifest), batch_size=10)
    images, labels = next(iter(loader))
    assert images.shape == (10, 3, 8, 8)
    assert labels.tolist() == manifest.labels()[manifest.ids("train")[:10]].tolist()
    assert np.array_equal(images[2].numpy(), expected(manifest.ids("train")[2]).numpy())

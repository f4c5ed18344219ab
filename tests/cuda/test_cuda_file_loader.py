"""What only a GPU shows of the loader `cuda_jpeg`: its kernels and streams, on made and on real files."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from gate_fixtures import judged, task_for
from image_fixtures import request as wanted
from image_fixtures import write_cache, write_files
from photo_fixtures import photos, taken
from test_dali_crops import RECIPE, dataset
from test_file_loader import OPTIONS, OTHERS, by_pillow, mixture

from gpufeed.augment.random_resized_crop import RandomResizedCrop
from gpufeed.core.errors import GpufeedError
from gpufeed.loaders.base import epoch_order
from gpufeed.loaders.cuda_jpeg import CudaJpegLoader

CUDA = torch.device("cuda", 0)
LATE_CYCLES = 400_000
CROP = RandomResizedCrop(224, seed=3)

pytestmark = pytest.mark.usefixtures("extension")


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """Files of many sizes and kinds, OTHERS of every 24 for Pillow."""
    manifest = dataset(tmp_path_factory.mktemp("mixed") / "files", mixture() * 8)
    manifest.write()
    return manifest


def opened(manifest, **changes) -> CudaJpegLoader:
    return CudaJpegLoader(wanted(manifest, None, **{"device": CUDA, "threads": 4, **changes}))


def judge(task):
    """A verdict on the GPU; skips the test where this node cannot run the loader."""
    verdict = judged(task)
    if verdict.status == "skipped":
        pytest.skip(verdict.sentence)
    assert (verdict.status, verdict.sentence) == ("passed", None)
    assert verdict.pixels["decoder"] == "cuda_jpeg"
    return verdict


def test_crops_pass_the_equivalence_check(mixed):
    task = task_for(mixed, None, "cuda_jpeg", device="cuda", batch_size=7, recipe=OPTIONS)
    verdict = judge(replace(task, reference=None))
    assert verdict.compared == 3 * len(mixed)
    assert verdict.max_difference <= 2
    assert verdict.loading["fell_back"] == {"pillow": 3 * OTHERS * len(mixed) // 24}


def test_whole_images_pass_the_equivalence_check_exactly(tmp_path):
    manifest = write_files(tmp_path / "files", photos(), "jpg", (24, 32))
    manifest.write()
    verdict = judge(task_for(manifest, write_cache(manifest), "cuda_jpeg", device="cuda"))
    assert (verdict.compared, verdict.max_difference) == (3 * len(manifest), 0)


@pytest.mark.realdata
def test_real_photographs_pass_the_equivalence_check(real_files, tmp_path):
    files = real_files("imagenet-800.zip")
    manifest = dataset(tmp_path / "files", files)
    manifest.write()
    task = task_for(manifest, None, "cuda_jpeg", device="cuda", batch_size=256, recipe={"size": 224})
    verdict = judge(replace(task, reference=None))
    assert verdict.compared == 3 * len(files)
    assert verdict.max_difference <= 2
    assert verdict.loading["fell_back"].get("pillow", 0) <= 0.01 * verdict.loading["images"]


@pytest.mark.realdata
@pytest.mark.parametrize("batch_size", [256, 1024])
def test_real_small_images_are_pillows(real_files, tmp_path, batch_size):
    files = real_files("tiny-imagenet-40.zip", ".JPEG")[::5]
    manifest = write_files(tmp_path / "real", files, "jpg", (64, 64))
    right = torch.from_numpy(np.stack(by_pillow(manifest)))
    with opened(manifest, batch_size=batch_size) as loader:
        for _ in range(3):
            seen = 0
            for batch in loader:
                assert torch.equal(batch.images.cpu(), right[batch.ids.cpu()])
                seen += len(batch.ids)
            assert seen == len(files)
        assert loader.decode_counts.fell_back == {}


@pytest.mark.parametrize(
    "recipe", [RECIPE, RECIPE.for_evaluation(), CROP], ids=["training", "evaluation", "224"]
)
def test_windows_are_ours_and_samples_within_a_step_or_two(mixed, recipe):
    images = by_pillow(mixed)
    with opened(mixed, recipe=recipe, batch_size=32) as loader:
        for epoch in range(2):
            ids = []
            for batch in loader:
                for i, sample in zip(batch.ids.tolist(), batch.images.cpu().numpy(), strict=True):
                    right = recipe.cut(images[i], recipe.window(i, epoch, *images[i].shape[:2]))
                    assert loader.resampling.exceeded(sample, right) is None
                    ids.append(i)
            assert ids == epoch_order(loader.split_ids, 3, epoch, True, 0, 1).tolist()


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_the_same_samples_come_after_a_resumption(mixed, rank):
    asked = {"recipe": RECIPE, "batch_size": 16, "rank": rank, "world_size": 3}
    with opened(mixed, **asked) as whole, opened(mixed, **asked) as fresh:
        batches = [batch.clone() for _ in range(3) for batch in whole]
        fresh.load_state_dict({"epoch": 1, "next_batch": 2, "seed": 3})
        again = [batch.clone() for _ in range(2) for batch in fresh]
        assert len(again) == 2 * len(whole) - 2
        for found, before in zip(again, batches[len(whole) + 2 :], strict=True):
            assert torch.equal(found.images, before.images)
            assert torch.equal(found.ids, before.ids)
            assert torch.equal(found.labels, before.labels)
        epoch = torch.cat([batch.ids for batch in batches[: len(whole)]]).tolist()
        assert epoch == epoch_order(whole.split_ids, 3, 0, True, rank, 3).tolist()


def test_no_wrong_sample_whatever_stream_takes_a_batch(mixed):
    """Each batch is asked for, and read late, on another stream, and then dropped at once."""
    with opened(mixed, recipe=RECIPE.for_evaluation(), batch_size=16) as loader:
        right = torch.zeros((len(mixed), *loader.shape), dtype=torch.uint8, device=CUDA)
        for batch in loader:
            right[batch.ids] = batch.images
        torch.cuda.synchronize()
        streams = [torch.cuda.default_stream(), *(torch.cuda.Stream() for _ in range(2))]
        wrong = [torch.zeros((), dtype=torch.int64, device=CUDA) for _ in streams]
        torch.cuda.synchronize()
        for _ in range(10):
            batches = iter(loader)
            for number in range(len(loader)):
                place = number % len(streams)
                with torch.cuda.stream(streams[place]):
                    batch = next(batches)
                    torch.cuda._sleep(LATE_CYCLES)
                    wrong[place] += (batch.images != right[batch.ids]).sum()
                    del batch
            assert next(batches, None) is None
        torch.cuda.synchronize()
        assert [int(count) for count in wrong] == [0] * len(streams)


def test_memory_does_not_grow_over_epochs(mixed):
    reserved = []
    with opened(mixed, recipe=RECIPE, batch_size=32) as loader:
        for _ in range(40):
            assert sum(len(batch.ids) for batch in loader) == len(mixed)
            torch.cuda.synchronize()
            reserved.append(torch.cuda.memory_reserved())
    assert reserved[-1] - max(reserved[:20]) <= 64 * 2**20  # pixels of 20 epochs are 187 MB


@pytest.mark.parametrize("recipe", [RECIPE, None], ids=["crops", "whole"])
def test_a_damaged_file_is_for_pillow_and_counted_or_named(tmp_path, recipe):
    files = taken()
    files[20] = files[20][:-2] + b"\xff\xd0" + files[20][-2:]  # a restart marker, which Pillow passes
    manifest = write_files(tmp_path / "files", files, "jpg", (24, 32))
    with opened(manifest, recipe=recipe, batch_size=16, shuffle=False) as loader:
        for epoch in (1, 2, 3):
            assert sum(len(batch.ids) for batch in loader) == len(files)
            assert loader.decode_counts.fell_back == {"pillow": epoch}
        loader.files()  # none of the next epoch is made any more
        manifest.paths()[33].write_bytes(files[33][:200])
        with pytest.raises(GpufeedError, match=r"33\.jpg: OSError"):
            list(loader)
        assert loader.state_dict() == {"epoch": 3, "next_batch": 2, "seed": 3}
    torch.cuda.synchronize()  # raises if the GPU itself has failed

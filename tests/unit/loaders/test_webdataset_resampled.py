"""The endless stream of webdataset: what it draws, how long its workers live, and where it may begin."""

from itertools import islice

import numpy as np
import psutil
import pytest
from image_fixtures import ids_of, request, write_dataset, write_shards

from gpufeed.augment.random_resized_crop import RandomResizedCrop
from gpufeed.core.errors import GpufeedError
from gpufeed.core.registry import load
from gpufeed.decoders.pillow import rgb
from gpufeed.loaders.webdataset_resampled import ResampledLoader
from gpufeed.stores.shards_store import ShardsInfo

pytest.importorskip("webdataset")
WORKERS = {"workers": 2, "prefetch_factor": 2, "persistent_workers": True}


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    made = write_dataset(tmp_path_factory.mktemp("tiny"))
    write_shards(made)
    return made


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children()}


def test_samples_of_the_split_come_about_equally_often(manifest):
    with ResampledLoader(request(manifest, None, **WORKERS)) as loader:
        ids = [i for _ in range(60) for i in ids_of(loader)]
    found, counts = np.unique(ids, return_counts=True)
    assert len(ids) == 60 * 23
    assert ids[:5] != ids[5:10]  # the first batches of two workers
    assert found.tolist() == manifest.ids("train").tolist()
    # shards are drawn, 360 of six: 60 each, with a deviation of 7
    assert 60 - 4 * 7 < counts.min() <= counts.max() < 60 + 4 * 7


def test_workers_live_on_and_an_epoch_begins_with_what_they_have_made(manifest):
    before = children()
    with ResampledLoader(request(manifest, None, **WORKERS)) as loader:
        next(iter(loader))
        workers = children() - before
        assert len(workers) == 2
        for _ in range(3):
            assert len(ids_of(loader)) in (18, 23)
            assert children() - before == workers
        assert loader.keeps_on
    assert children() == before


@pytest.mark.parametrize("workers", [1, 3])
def test_windows_and_labels_are_those_of_seed_epoch_and_sample(manifest, workers):
    """Five batches an epoch: three workers have batches of each epoch in other places."""
    recipe = RandomResizedCrop(size=5, seed=3)
    pixels = [rgb(path.read_bytes()) for path in manifest.paths()]
    asked = request(manifest, None, **{**WORKERS, "workers": workers}, recipe=recipe)
    with ResampledLoader(asked) as loader:
        for epoch in range(3):
            for batch in loader:
                ids = batch.ids.tolist()
                right = [recipe.cut(pixels[i], recipe.window(i, epoch, 8, 8)) for i in ids]
                assert np.array_equal(batch.images.numpy(), right)
                assert batch.labels.tolist() == manifest.labels()[ids].tolist()


def test_a_stream_that_begins_elsewhere_is_another_one_in_its_own_epochs(manifest):
    recipe = RandomResizedCrop(size=5, seed=3)
    with ResampledLoader(request(manifest, None, **WORKERS, recipe=recipe)) as loader:
        begun = ids_of(islice(loader, 2))
        loader.load_state_dict({"epoch": 7, "next_batch": 3, "seed": 3})
        rest = list(loader)
        image = rest[1].images[0].numpy(), rest[1].ids[0].item()
        assert [len(batch.ids) for batch in rest] == [5, 3]
        assert loader.state_dict() == {"epoch": 8, "next_batch": 0, "seed": 3}
        loader.load_state_dict({"epoch": 0, "next_batch": 0, "seed": 3})
        assert ids_of(islice(loader, 2)) == begun
    pixels = rgb(manifest.paths()[image[1]].read_bytes())
    assert np.array_equal(image[0], recipe.cut(pixels, recipe.window(image[1], 7, 8, 8)))


def test_an_evaluation_has_every_sample_once_and_a_training_promises_no_order(manifest):
    with ResampledLoader(request(manifest, None, **WORKERS, split="test", shuffle=False)) as loader:
        assert loader.promises_order
        promised = loader.order().tolist()
        assert ids_of(loader) == promised
        assert sorted(promised) == manifest.ids("test").tolist()
    loader = load("loader", "webdataset_resampled")(request(manifest, None, **WORKERS))
    assert not loader.promises_order
    with pytest.raises(GpufeedError, match="with replacement"):
        loader.order()


def test_after_an_error_a_stream_begins_and_no_epoch_is_empty(tmp_path):
    made = write_dataset(tmp_path / "tiny")
    index = write_shards(made)
    shard = index.with_name(ShardsInfo.read(index).shards[2].name)
    whole = shard.read_bytes()
    with ResampledLoader(request(made, None, **WORKERS)) as loader:
        shard.write_bytes(whole[:700])
        with pytest.raises(GpufeedError) as error:
            list(loader)
        assert str(shard) in error.value.found
        shard.write_bytes(whole)
        assert len(ids_of(loader)) == 23 - 5 * loader.next_batch

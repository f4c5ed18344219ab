"""A training step that gathers its batch by itself, from the store of a loader."""

from dataclasses import replace

import pytest
import torch
from image_fixtures import request, write_cache, write_dataset
from measure_fixtures import OPTIONS, Normalise

from gpufeed.benchmarks.ceilings.segments import Bench, ReplayedBatch
from gpufeed.benchmarks.ceilings.stages import drain_epoch, example_batch
from gpufeed.loaders.base import DeferredGather
from gpufeed.loaders.resident import ResidentLoader, StoredBatch
from gpufeed.models.simple_cnn import SimpleCNN
from gpufeed.training.engines.base import TrainJob
from gpufeed.training.engines.plain import PlainTrainer


class Gathers(Normalise):
    """As its parent, and of rows of a store; counts either way."""

    gathers = True

    def __init__(self, *parts):
        super().__init__(*parts)
        self.calls = {"images": 0, "rows": 0}

    def __call__(self, images, ids, epoch):
        self.calls["images"] += 1
        return super().__call__(images, ids, epoch)

    def gather(self, store, rows, ids, epoch):
        self.calls["rows"] += 1
        return super().__call__(store[rows], ids, epoch)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    manifest = write_dataset(tmp_path_factory.mktemp("rows"))
    return manifest, write_cache(manifest)


@pytest.fixture
def prepared(dataset):
    """(ungathered) -> a prepared trainer over an open resident loader."""
    made = []

    def make(ungathered: bool) -> PlainTrainer:
        loader = ResidentLoader(request(*dataset, ungathered=ungathered))
        loader.open()
        made.append(loader)
        torch.manual_seed(0)
        info = dataset[0].info
        augment = Gathers(info.mean, info.std, 0, {})
        model = SimpleCNN(len(info.classes), channels=(8, 16))
        device = loader.request.device
        trainer = PlainTrainer(TrainJob(model, loader, augment, device, "fp32", OPTIONS, epochs=3))
        trainer.prepare(loader.example() or torch.zeros((5, 8, 8, 3), dtype=torch.uint8))
        return trainer

    yield make
    for loader in made:
        loader.close()


def test_the_same_weights_come_of_rows_as_of_images(prepared):
    gathered, rows = prepared(False), prepared(True)
    losses = [[row["loss"] for row in trainer.run().steps] for trainer in (gathered, rows)]
    assert losses[0] == losses[1]
    for one, other in zip(gathered.job.model.parameters(), rows.job.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert gathered.job.augment.calls == {"images": 15, "rows": 0}
    assert rows.job.augment.calls == {"images": 0, "rows": 15}


def test_the_ceiling_replays_the_step_that_gathers(prepared):
    """Both sides of a pair run the same kernels; the loader alone has to gather."""
    trainer = prepared(True)
    loader, calls = trainer.job.loader, trainer.job.augment.calls
    batch = example_batch(loader)
    assert isinstance(batch, StoredBatch)
    assert batch.source.store.data_ptr() == loader.images.data_ptr()
    Bench(trainer).pairs(loader, ReplayedBatch(loader.request, batch), epochs=1, count=2)
    assert calls == {"images": 0, "rows": 2 * 2 * 5}
    gathered = []
    loader.images = Counting(loader.images, gathered)
    drain_epoch(loader)
    assert gathered == [5, 5, 5, 5, 3]


class Counting:
    """A store that notes how many rows are gathered at a time."""

    def __init__(self, store, gathered):
        self.store, self.gathered = store, gathered

    def index_select(self, dimension, rows):
        self.gathered.append(len(rows))
        return self.store.index_select(dimension, rows)


def test_rows_stand_for_images():
    store = torch.arange(4 * 2 * 2 * 3, dtype=torch.uint8).view(4, 2, 2, 3)
    rows = DeferredGather(store, torch.tensor([3, 0]))
    assert (rows.shape, len(rows), rows.device) == ((2, 2, 2, 3), 2, store.device)
    assert torch.equal(rows.gathered(), store[[3, 0]])
    assert torch.equal(rows[1:].gathered(), store[:1])
    own = rows.clone()
    own.copy_(DeferredGather(store, torch.tensor([1, 1])))
    assert torch.equal(own.gathered(), store[[1, 1]])
    assert rows.rows.tolist() == [3, 0]
    assert own.store is store


def test_who_gathers_is_asked_for_rows(dataset):
    manifest, cache = dataset
    made = request(manifest, cache)
    for ungathered in (False, True):
        with ResidentLoader(replace(made, ungathered=ungathered)) as loader:
            found = loader.example()
            assert (found is not None) is ungathered
            if found is not None:
                assert found.shape == (5, 8, 8, 3)

"""The equivalence check of recipe random_resized_crop: loaders that take our windows, and wrong ones."""

from dataclasses import replace

import pytest
from gate_fixtures import judged, task_for
from image_fixtures import write_shards

from gpufeed.benchmarks.equivalence import crop_reference
from gpufeed.core import registry
from gpufeed.core.registry import LOADERS
from gpufeed.datasets.image_folder import reorganise
from gpufeed.loaders.dataloader import SyncLoader
from gpufeed.loaders.streaming import StreamingLoader
from gpufeed.stores.decoded_cache import build_named

RECIPE = {"size": 48, "scale": [0.08, 1.0], "ratio": [0.75, 4 / 3], "flip_probability": 0.5, "short_side": 56}
TAKING = [name for name, entry in LOADERS.items() if entry.windows == "given" and not entry.ceiling]
CASES = [
    pytest.param(name, "pillow", marks=pytest.mark.slow if LOADERS[name].stays else ()) for name in TAKING
] + [("dataloader_sync", decoder) for decoder in registry.HOST_DECODERS if decoder != "pillow"]


@pytest.fixture(scope="module")
def dataset(photographs, tmp_path_factory):
    root = tmp_path_factory.mktemp("photographs")
    manifest = reorganise([photographs], root, "photographs", {})
    write_shards(manifest)
    build_named(manifest, root / "cache/short56.npy")
    return manifest


def task(manifest, loader: str, **settings):
    entry = LOADERS[loader]
    usual = {"batch_size": 16, "recipe": RECIPE, "workers": 1 if entry.workers == "required" else 0}
    usual |= {"prefetch_factor": 2} if usual["workers"] else {}
    usual |= {"persistent_workers": True} if entry.stays else {}
    cache = manifest.root / "cache/short56.npy"
    return replace(task_for(manifest, cache, loader, **{**usual, **settings}), reference=None)


@pytest.mark.parametrize(("loader", "decoder"), CASES)
def test_a_loader_that_takes_our_windows_yields_the_samples_that_pillow_makes(dataset, loader, decoder):
    one = judged(task(dataset, loader, **({"decoder": decoder} if decoder != "pillow" else {})))
    if one.status == "skipped":
        pytest.skip(one.sentence)
    assert (one.status, one.sentence) == ("passed", None)
    assert (one.epochs, one.compared) == (4, 3 * 48 + 12)
    assert one.reference["sha256"] is None


class OtherSeed(SyncLoader):
    """Draws the windows of another seed."""

    def __init__(self, request):
        super().__init__(replace(request, recipe=replace(request.recipe, seed=request.recipe.seed + 1)))


class SameWindows(SyncLoader):
    """Draws the windows of the first epoch again and again."""

    def batches(self, order):
        samples = self.host.samples
        draw = samples.crops.recipe.window
        object.__setattr__(samples.crops, "recipe", Frozen(samples.crops.recipe, draw))
        return super().batches(order)


class Frozen:
    def __init__(self, recipe, draw):
        self.size, self.cut = recipe.size, recipe.cut
        self.window = lambda sample_id, epoch, height, width: draw(sample_id, 0, height, width)


class Unaligned(SyncLoader):
    """Cuts each window a pixel further to the left, where there is one."""

    def __init__(self, request):
        super().__init__(request)
        recipe = request.recipe
        crops = self.host.samples.crops
        crops.recipe = Frozen(recipe, recipe.window)
        crops.recipe.window = lambda *of: replace(w := recipe.window(*of), left=max(0, w.left - 1))


@pytest.mark.parametrize(
    ("cls", "said"),
    [(OtherSeed, "in epoch 1"), (SameWindows, "in epoch 2"), (Unaligned, "in epoch 1")],
)
def test_other_windows_are_caught(dataset, monkeypatch, cls, said):
    target = f"test_crop_gate:{cls.__name__}"
    entry = registry.LoaderEntry(target, windows="given", decoders=registry.HOST_DECODERS)
    monkeypatch.setitem(registry.LOADERS, cls.__name__, entry)
    one = judged(task(dataset, cls.__name__))
    assert one.status == "failed"
    assert said in one.sentence
    assert "beyond the tolerance" in one.sentence


def test_of_many_samples_the_same_part_is_compared_in_each_epoch(dataset, monkeypatch):
    monkeypatch.setattr(crop_reference, "MOST", 12)
    one = judged(task(dataset, "dataloader_sync"))
    assert one.status == "passed"
    training, evaluation = 48, 12
    in_an_epoch = (one.compared - evaluation) / 3
    assert in_an_epoch == int(in_an_epoch)
    assert 2 <= in_an_epoch < training


class Streaming(StreamingLoader):
    """Decodes whole batches by a library of the CPU, as others do by one of the GPU."""

    decoder = "simplejpeg"


def test_a_loader_that_decodes_whole_batches_resizes_their_windows(dataset, monkeypatch):
    # checked under the name of its decoder, as all such loaders are
    entry = registry.LoaderEntry("test_crop_gate:Streaming", windows="given")
    monkeypatch.setitem(registry.LOADERS, "simplejpeg", entry)
    one = judged(task(dataset, "simplejpeg"))
    assert (one.status, one.sentence, one.compared) == ("passed", None, 3 * 48 + 12)
    assert one.loading["fell_back"] == {}

"""Bulk decoding and the sweep on a GPU: right pixels on the device, memory that is counted, every decoder."""

import numpy as np
import pytest
import torch
from hostile_fixtures import available
from photo_fixtures import allowed, of_many_sizes

from gpufeed.benchmarks.decoder_benchmark import Bench, DeviceMemory, StripsBulk, measure_decoder
from gpufeed.core.config_sources import with_defaults
from gpufeed.core.record import DECODING
from gpufeed.core.registry import DECODERS, load
from gpufeed.datasets import mosaic, synthetic
from gpufeed.datasets.manifest import Manifest
from gpufeed.decoders.encoded_file import read_file
from gpufeed.decoders.parallel import SLOTS, Files, open_bulk
from gpufeed.decoders.pillow import PillowDecoder
from gpufeed.stores.strips_build import build

DEVICE = torch.device("cuda", 0)
DEPTH = 3  # of gpufeed.loaders.dali_reader, which imports DALI
NAMES = [name for name in DECODERS if name != "strips"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Manifests of mosaics of 64 and 128 pixels, 40 images each."""
    root = tmp_path_factory.mktemp("sweep")
    tiles = synthetic.reorganise([], root / "tiles", "tiles", {"count": 40, "size": 64, "classes": 2})
    manifests = {}
    for size in (64, 128):
        name = f"mosaic_{size}"
        options = {"of": "tiles", "size": size, "count": 40}
        mosaic.reorganise([tiles.root / "manifest.parquet"], root / name, name, options)
        manifests[name] = root / name / "manifest.parquet"
    return manifests


def files_of(path, batch_size, strips=None):
    manifest = Manifest.read(path)
    paths = [str(file) for file in manifest.paths()]
    return Files(paths, *manifest.image_size(), batch_size, path, strips)


@pytest.mark.parametrize("name", NAMES)
def test_batches_on_the_device_are_the_files_in_order(data, name):
    available(name)
    tolerance = load("decoder", name).tolerance
    with open_bulk(name, 2, DEVICE) as bulk:
        for path in data.values():
            files = files_of(path, 8)
            right = PillowDecoder().decode([read_file(file) for file in files.paths]).images
            bulk.open(files)
            found = []
            # more batches than slots, none awaited before the next: a slot reused too early would show
            for batch in bulk.run(8 * (2 * SLOTS + 7)):
                assert batch.device == DEVICE
                assert batch.dtype == torch.uint8
                assert batch.is_contiguous()
                found.append(batch.clone())
            for i, image in enumerate(torch.cat(found).cpu().numpy()):
                assert tolerance.exceeded(image, right[i % len(right)]) is None, i
        assert bulk.fell_back == 0


@pytest.mark.parametrize("name", NAMES)
def test_batches_of_several_sizes_come_to_the_device_in_order(tmp_path, name):
    available(name)
    encoded, tolerance = of_many_sizes(), load("decoder", name).tolerance
    paths = [tmp_path / f"{number}.jpg" for number in range(len(encoded))]
    for path, data in zip(paths, encoded, strict=True):
        path.write_bytes(data)
    right = PillowDecoder().decode(encoded).images
    sizes = np.array([image.shape[:2] for image in right])
    files = Files([str(path) for path in paths], None, None, 4, sizes=sizes)
    bench = Bench(name, 2, None, DEVICE)
    with bench:
        bulk = bench.open(files)
        number = 0 if getattr(bulk, "reading", None) is None else 4 * DEPTH
        wraps = len(right) if number == 0 else 12  # DALI's reader has whole batches, again and again
        found = [image.clone() for batch in bulk.run(4 * (2 * SLOTS + 7)) for image in batch]
        assert len(found) == 4 * (2 * SLOTS + 7)
        for place, image in enumerate(found, number):
            assert image.device == DEVICE
            expected = right[place % wraps % len(right)]
            assert allowed(tolerance, expected).exceeded(image.cpu().numpy(), expected) is None, place
        assert bulk.fell_back == 0


def test_shared_memory_is_page_locked_while_it_is_open(data):
    with open_bulk("pillow", 1, DEVICE) as bulk:
        bulk.open(files_of(data["mosaic_64"], 8))
        assert bulk.slots.host.is_pinned()
        bulk.open(files_of(data["mosaic_128"], 4))
        assert bulk.slots.host.is_pinned()
        host = bulk.slots.host
    assert not host.is_pinned()


def test_strips_give_the_same_images_in_any_order(data, tmp_path):
    path = data["mosaic_64"]
    strips = tmp_path / "strips.bin"
    manifest = Manifest.read(path)
    build(manifest, strips)
    bulk = StripsBulk(2, DEVICE)
    bulk.open(files_of(path, 2**20, strips))
    with bulk:
        images = torch.cat([batch.clone() for batch in bulk.run(40)]).cpu().numpy()
        right = np.stack(PillowDecoder().decode([read_file(str(file)) for file in manifest.paths()]).images)
        assert len(images) == 40
        means = sorted(images.reshape(40, -1).mean(axis=1)), sorted(right.reshape(40, -1).mean(axis=1))
        assert np.abs(np.subtract(*means)).max() < 3
        assert "strips" in bulk.version()


@pytest.mark.parametrize("name", [*NAMES, "strips"])
def test_a_sweep_of_every_decoder(data, tmp_path, name):
    available(name)
    strips = {}
    for dataset, path in data.items():
        strips[dataset] = tmp_path / dataset / "strips.bin"
        build(Manifest.read(path), strips[dataset])
    settings = {
        **with_defaults("sweep", {}),
        "datasets": list(data),
        "decoders": [name],
        "cores": [1],
        "batch_size": 16,
        "batch_sizes": {"mosaic_64": [4]},
        "cold": ["mosaic_64"],
        "seconds": 0.01,
        "rounds": 2,
    }
    sweep = measure_decoder("tiny", name, settings, data, planned_on="here", device="cuda", strips=strips)
    assert sweep["status"] == "done", sweep["sentence"]
    assert sweep["device"] == "cuda"
    on_gpu = name == "strips" or DECODERS[name].device == "cuda"
    assert (sweep["parallel"] == "device") == on_gpu
    for point in sweep["points"]:
        assert point["status"] in ("done", "refused"), point["sentence"]
        assert point["fell_back"] == 0
        if point["status"] == "done":
            assert point["buffers_mib"] >= 0
    if on_gpu:
        assert len({point["cores"] for point in sweep["points"]}) == 1
    DECODING.write(sweep, tmp_path / "sweep.json")


@pytest.mark.alone
def test_memory_of_other_libraries_is_counted_and_torchs_is_not():
    memory = DeviceMemory(DEVICE)
    kept = torch.empty(2**28, dtype=torch.uint8, device=DEVICE)
    assert memory.buffers_mib() < 64
    cupy = pytest.importorskip("cupy")
    other = cupy.cuda.alloc(2**28)  # not from torch's allocator
    assert 256 <= memory.buffers_mib() < 256 + 64
    del kept, other

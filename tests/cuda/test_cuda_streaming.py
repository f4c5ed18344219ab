"""The loaders' contract on JPEG files, which GPU decoders really decode, and what only they can do wrong."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from hostile_fixtures import photo, saved, scaled_gray
from image_fixtures import request, write_beton, write_cache, write_files, write_shards, write_strips
from PIL import Image

# The contract's tests run again here, with the `dataset` and `device` fixtures of this module.
from test_loader_contract import *  # noqa: F403

from gpufeed.core.errors import GpufeedError, Skip
from gpufeed.core.registry import DECODERS, LOADERS, load
from gpufeed.datasets.manifest import Manifest
from gpufeed.decoders.dali_gpu import share_of_engines
from gpufeed.loaders.base import Loader
from gpufeed.loaders.dali import DaliLoader
from gpufeed.system.devices import jpeg_engines

STREAMING = [name for name in LOADERS if name in DECODERS and LOADERS[name].reads == "files"]
DALI = [name for name in STREAMING if name.startswith("dali")]
WAYS = [*STREAMING, *(f"{name}, fed" for name in DALI)]
SIZE = 64
COUNT = 600
SLEEP_CYCLES = 1_000_000_000  # about half a second


@pytest.fixture
def device():
    return torch.device("cuda")


def shades(count: int) -> list[bytes]:
    """JPEGs whose brightness tells neighbours apart; every seventh one is gray."""
    images = [photo(SIZE, SIZE) // 2 + np.uint8(2 * (i % 60)) for i in range(count)]
    modes = ["L" if i % 7 == 6 else "RGB" for i in range(count)]
    return [
        saved("JPEG", Image.fromarray(image).convert(mode), quality=90)
        for image, mode in zip(images, modes, strict=True)
    ]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """As the contract's own: 23 training and 6 test samples of 5 classes, but JPEG files."""
    manifest = write_files(tmp_path_factory.mktemp("jpegs") / "files", shades(29), "jpg", (SIZE, SIZE))
    table = manifest.table.assign(label=[i * 7 % 5 for i in range(29)])
    table.loc[[1, 6, 12, 17, 23, 28], "split"] = "test"
    info = replace(manifest.info, classes=[f"class {label}" for label in range(5)])
    manifest = Manifest(manifest.root, info, pd.DataFrame(table))
    write_strips(manifest)
    write_shards(manifest)
    write_beton(manifest)
    return manifest, write_cache(manifest)


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("many") / "files", shades(COUNT), "jpg", (SIZE, SIZE))


@pytest.fixture(params=WAYS)
def loader(request, many, device, monkeypatch):
    """An open loader over 600 JPEGs in batches of 32, warmed up by one epoch.

    DALI's in two ways: it reads them itself, or is fed with bytes.
    """
    name, _, way = request.param.partition(", ")
    if way == "fed":
        monkeypatch.setattr(DaliLoader, "not_taken", lambda self: "a file")
    made = usual(many, device)
    try:
        with load("loader", name)(made) as loader:
            assert getattr(loader, "reads", False) == (name in DALI and way != "fed")
            assert sum(len(batch.ids) for batch in loader) == COUNT
            torch.cuda.synchronize()
            yield loader
    except Skip as skip:
        pytest.skip(str(skip))


def usual(manifest, device, **changes):
    return request(manifest, None, **{"device": device, "batch_size": 32, "threads": 4, **changes})


def pixels_by_id(loader: Loader) -> torch.Tensor:
    """Every sample of an epoch at its id, uint8 (N, H, W, 3), each batch awaited before the next."""
    found = torch.zeros((COUNT, SIZE, SIZE, 3), dtype=torch.uint8, device="cuda")
    for batch in loader:
        found[batch.ids] = batch.images
        torch.cuda.synchronize()
    return found


def test_no_wrong_image_beside_a_busy_stream(loader):
    expected = pixels_by_id(loader)
    busy = torch.cuda.Stream()
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(10):
        for batch in loader:
            with torch.cuda.stream(busy):
                torch.cuda._sleep(200_000)
            torch.cuda._sleep(400_000)  # the batch is read late, when later ones have long been queued
            difference = (batch.images.float() - expected[batch.ids].float()).abs()
            wrong += (difference.mean((1, 2, 3)) > 1).sum()  # shades are two steps apart
    assert wrong.item() == 0


@pytest.mark.alone
def test_decoding_does_not_wait_for_the_step_before(loader):
    """The batches that follow are made while the device is still at the step of the first one."""
    iterator = iter(loader)
    next(iterator)
    compute = torch.cuda.Stream()
    with torch.cuda.stream(compute):
        torch.cuda._sleep(SLEEP_CYCLES)
        step = compute.record_event()
        for _ in range(12):  # more than can have been waiting
            next(iterator)
        assert not step.query()
    iterator.close()
    torch.cuda.synchronize()


@pytest.mark.alone
def test_memory_does_not_grow_over_epochs(loader):
    def used() -> int:
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        return total - free

    before = used()
    for _ in range(20):
        assert sum(len(batch.ids) for batch in loader) == COUNT
    assert used() - before <= 32 * 2**20  # 20 epochs are 150 MB of pixels


def test_memory_of_strips_does_not_grow_over_epochs(many, device, monkeypatch):
    """Several windows an epoch; torch's allocator keeps apart what was freed on each stream."""
    monkeypatch.setattr("gpufeed.loaders.strips.WINDOW_BYTES", COUNT * SIZE * SIZE * 3 // 3)
    if not (many.root / "strips" / "strips.bin").exists():
        write_strips(many)
    with load("loader", "strips")(usual(many, device)) as loader:
        assert len(loader.windows(0)) > 1
        reserved = []
        for _ in range(20):
            assert sum(len(batch.ids) for batch in loader) == COUNT
            torch.cuda.synchronize()
            reserved.append(torch.cuda.memory_reserved())
    assert reserved[-1] <= reserved[2]


def test_usual_batches_are_decoded_by_the_library_in_one_call(loader, monkeypatch):
    def fail(files):
        raise AssertionError("image by image")

    monkeypatch.setattr(loader.library, "decode_taken", fail, raising=False)  # cuda_jpeg has none
    assert sum(len(batch.ids) for batch in loader) == COUNT


@pytest.mark.parametrize("scaled", [False, True])
def test_dali_gives_large_files_to_the_engines_unless_they_get_one_wrong(tmp_path, device, scaled):
    """Read by DALI itself either way; small files are decoded without them."""
    side = 512
    noise = np.random.default_rng(0).integers(0, 32, (side, side, 3), dtype=np.uint8)
    images = [photo(side, side) // 2 + noise + np.uint8(2 * i) for i in range(40)]
    files = [saved("JPEG", image, quality=90, subsampling="4:2:0") for image in images]
    if scaled:
        files[17] = scaled_gray(side)
    manifest = write_files(tmp_path / "files", files, "jpg", (side, side))
    small = write_files(tmp_path / "small", shades(40), "jpg", (SIZE, SIZE))
    engines = jpeg_engines(torch.device("cuda", 0))
    right = torch.from_numpy(np.stack(load("decoder", "pillow")().decode(files).images))
    try:
        with load("loader", "dali_gpu")(usual(manifest, device)) as loader:
            for _ in range(2):
                found = {i: image for b in loader for i, image in zip(b.ids.tolist(), b.images, strict=True)}
            assert loader.reads
            told = loader.decode_counts.asdict()
            tolerance = loader.library.tolerance
        with load("loader", "dali_gpu")(usual(small, device)) as loader:
            assert loader.decode_counts.settings["hw_decoder_load"] == 0.0
    except Skip as skip:
        pytest.skip(str(skip))
    assert sorted(found) == list(range(40))
    for i, image in found.items():
        assert tolerance.exceeded(image.cpu().numpy(), right[i].numpy()) is None
    assert told["jpeg_engines"] == engines
    assert told["hw_decoder_load"] == (0.0 if scaled else share_of_engines(100_000, engines))
    assert told["fell_back"] == {}


@pytest.mark.parametrize("name", DALI)
@pytest.mark.parametrize("damage", ["cut", "gone", "resized", "gif"])
def test_file_that_dalis_reader_finds_changed(tmp_path, device, name, damage):
    """Right when the loader was opened, and DALI has not come to it yet: named, or decoded by Pillow."""
    manifest = write_files(tmp_path / "files", shades(300), "jpg", (SIZE, SIZE))
    bad = manifest.paths()[290]
    contents = {
        "cut": bad.read_bytes()[:200],
        "resized": saved("JPEG", photo(40, 40)),
        "gif": saved("GIF", photo(SIZE, SIZE)),
    }
    try:
        with load("loader", name)(usual(manifest, device, shuffle=False)) as loader:
            assert loader.reads
            if damage == "gone":
                bad.unlink()
            else:
                bad.write_bytes(contents[damage])
            iterator = iter(loader)
            before = [i for _ in range(9) for i in next(iterator).ids.tolist()]
            assert before == list(range(288))
            if damage == "gif":
                last = next(iterator)
                expected = np.asarray(Image.open(bad).convert("RGB"))
                assert np.array_equal(last.images[2].cpu().numpy(), expected)
                assert sum(len(batch.ids) for batch in loader) == 300
            else:
                with pytest.raises(GpufeedError) as error:
                    next(iterator)
                assert str(bad) in error.value.found
            assert not loader.reads
    except Skip as skip:
        pytest.skip(str(skip))
    torch.cuda.synchronize()  # raises if the GPU itself has failed

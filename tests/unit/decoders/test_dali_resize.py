"""Images of several sizes in loader dali_cpu, and in dali_gpu where tests/cuda runs this again."""

import io
from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
import pytest
import torch
from gate_fixtures import judged, task_for
from hostile_fixtures import photo, saved
from image_fixtures import MEAN, STD, write_cache
from image_fixtures import request as wanted
from PIL import Image

from gpufeed.augment.base import Normalise
from gpufeed.augment.dali import DaliAugment
from gpufeed.core.registry import DECODERS, load
from gpufeed.datasets.manifest import DatasetInfo, Manifest
from gpufeed.decoders.base import EXACT, Tolerance
from gpufeed.decoders.fallback import resize_tolerance

# up and down, wide, high and tiny; among them the target itself
SIDES = [(48, 64), (24, 32), (200, 20), (20, 200), (7, 5), (1, 1), (150, 130), (31, 33), (64, 48), (300, 400)]
SIZES = [(24, 32), (8, 40), (90, 75), (224, 224)]
STILL = dict.fromkeys(("rotate_degrees", "brightness", "contrast", "saturation", "hue"), 0.0)


@pytest.fixture
def name():
    return "dali_cpu"


@pytest.fixture
def device():
    return torch.device("cpu")


def scene(number: int, height: int, width: int) -> np.ndarray:
    """A photo with noise, uint8 (H, W, 3), that no other number has."""
    noise = np.random.default_rng(number).integers(0, 96, (height, width, 3), dtype=np.uint8)
    return photo(height, width) // 2 + noise


def taken() -> list[tuple[bytes, tuple[int, int]]]:
    """Three files of each size in SIDES, with it: a JPEG in colour, one in gray, a PNG."""
    found = []
    for number, (height, width) in enumerate(SIDES):
        image = scene(number, height, width)
        gray = Image.fromarray(image).convert("L")
        files = saved("JPEG", image, quality=92), saved("JPEG", gray, quality=92), saved("PNG", image)
        found += [(data, (height, width)) for data in files]
    return found


def others() -> list[tuple[bytes, tuple[int, int]]]:
    """Files that DALI is not given."""
    image = Image.fromarray(scene(77, 50, 70))
    deep = Image.fromarray(np.arange(50 * 70, dtype=np.uint16).reshape(50, 70) * 18)
    files = saved("JPEG", image.convert("CMYK")), saved("GIF", image), saved("PNG", deep)
    return [(data, (50, 70)) for data in files]


def written(root, files: list[tuple[bytes, tuple[int, int]]], resize: tuple[int, int]) -> Manifest:
    root.mkdir()
    rows = []
    for i, (data, (height, width)) in enumerate(files):
        (root / f"{i}.img").write_bytes(data)
        rows.append((f"{i}.img", i % 3, "test" if i % 7 == 3 else "train", height, width, 3))
    table = pd.DataFrame(rows, columns=["path", "label", "split", "height", "width", "channels"])
    info = DatasetInfo("mixed", "synthetic", ["a", "b", "c"], "test", MEAN, STD, resize=resize)
    manifest = Manifest(root, info, table)
    manifest.write()
    return manifest


@pytest.fixture(params=["read", "fed"])
def way(request):
    """Who reads the files: DALI, or gpufeed where some are not for DALI."""
    return request.param


@pytest.fixture
def mixed(tmp_path, way):
    """size -> a manifest of images that are to be brought to it."""
    files = taken() if way == "read" else [*taken()[:9], *others(), *taken()[9:]]
    return lambda size: written(tmp_path / f"{size[0]}x{size[1]}", files, size)


@pytest.fixture
def opened(name, device, open_loader):
    """(manifest, changes of the request) -> an open loader, closed in the end."""
    return lambda manifest, **changes: open_loader(name, wanted(manifest, None, device=device, **changes))


def by_pillow(manifest: Manifest) -> list[np.ndarray]:
    """Every sample by Pillow alone."""
    found = []
    for path in manifest.paths():
        with Image.open(io.BytesIO(path.read_bytes())) as image:
            plain = to_rgb(image).resize(manifest.info.resize[::-1], Image.Resampling.BILINEAR)
            found.append(np.array(plain))
    return found


def to_rgb(image: Image.Image) -> Image.Image:
    """Of 16 bits Pillow's convert keeps the lowest; the project's decoder keeps the highest."""
    if image.mode.startswith("I"):
        image = Image.fromarray((np.asarray(image).astype(np.uint32) >> 8).astype(np.uint8))
    return image.convert("RGB")


def same(found: np.ndarray, expected: np.ndarray, decoder: Tolerance, whole: Tolerance) -> str | None:
    """What is wrong with an image: within the decoder's tolerance and rounding, but for its four sides."""
    inner = replace(decoder, max=decoder.max + 1, mean=decoder.mean + 0.5)  # for rounding, of noise
    return whole.exceeded(found, expected) or inner.exceeded(found[1:-1, 1:-1], expected[1:-1, 1:-1])


@pytest.mark.parametrize("size", SIZES)
def test_three_epochs_of_what_pillow_makes_of_them(mixed, opened, name, way, size):
    manifest = mixed(size)
    loader, expected, of_files = opened(manifest), by_pillow(manifest), load("decoder", name).tolerance
    assert loader.reads == (way == "read")
    for _ in range(3):
        order, came = loader.order().tolist(), []
        for batch in loader:
            assert batch.images.shape == (len(batch.ids), *size, 3)
            assert batch.images.dtype == torch.uint8
            assert batch.images.is_contiguous()
            assert batch.images.device.type == loader.request.device.type
            came += batch.ids.tolist()
            images = dict(zip(batch.ids.tolist(), batch.images.cpu().numpy(), strict=True))
            wrong = {i: same(images[i], expected[i], of_files, loader.library.tolerance) for i in images}
            assert {i: what for i, what in wrong.items() if what} == {}
            assert batch.labels.tolist() == manifest.labels()[batch.ids.tolist()].tolist()
        assert came == order
        assert sorted(came) == loader.split_ids.tolist()
    assert loader.reads == (way == "read")


@pytest.mark.parametrize("way", ["fed"], indirect=True)
def test_what_dali_does_not_take_is_pillow_s_to_the_last_bit_and_counted(mixed, opened, name):
    manifest = mixed((24, 32))
    loader, expected = opened(manifest, batch_size=64), by_pillow(manifest)
    left = [i for i in range(9, 12) if i in loader.split_ids]
    assert len(left) == 2
    (batch,) = loader
    images = dict(zip(batch.ids.tolist(), batch.images.cpu().numpy(), strict=True))
    assert all(np.array_equal(images[i], expected[i]) for i in left)
    assert loader.decode_counts.fell_back == {"pillow": 2}
    assert loader.decode_counts.by[name] == len(loader.split_ids) - 2


@pytest.mark.parametrize("way", ["read"], indirect=True)
def test_a_file_that_has_become_another_is_resized_by_others(mixed, opened):
    manifest = mixed((24, 32))
    loader = opened(manifest, shuffle=False)
    late = loader.split_ids[20]
    manifest.paths()[late].write_bytes(saved("GIF", scene(5, 90, 60)))
    expected = by_pillow(manifest)[late]
    for _ in range(2):
        images = {
            i: image for batch in loader for i, image in zip(batch.ids.tolist(), batch.images, strict=True)
        }
        assert list(images) == loader.split_ids.tolist()
        assert np.array_equal(images[late].cpu().numpy(), expected)
    assert not loader.reads


def one_by_one(batch):
    return zip(batch.ids.tolist(), batch.images.cpu(), strict=True)


def test_augment_dali_stands_behind_the_resize(mixed, opened):
    """Switched off it is Normalise of the same images; with a size of its own it has that."""
    manifest = mixed((24, 32))
    plain = {i: image for batch in opened(manifest) for i, image in one_by_one(batch)}
    normalise = Normalise(MEAN, STD, 3, {})
    for size, shape in ((None, (3, 24, 32)), (16, (3, 16, 16))):
        augment = DaliAugment(MEAN, STD, 3, {**STILL, "size": size})
        loader = opened(manifest, sample_transform=augment)
        found = {i: image for batch in loader for i, image in one_by_one(batch)}
        assert sorted(found) == loader.split_ids.tolist()
        for i, image in found.items():
            assert image.shape == shape
            if size is None:
                right = normalise(plain[i][None], torch.tensor([i]), 0)[0]
                torch.testing.assert_close(image, right, atol=1e-5, rtol=0)


def test_the_gate_passes_it_and_tells_both_tolerances_together(mixed, name, device):
    manifest = mixed((24, 32))
    verdict = judged(task_for(manifest, write_cache(manifest), name, device.type, batch_size=8))
    if verdict.status == "skipped":
        pytest.skip(verdict.sentence)
    assert verdict.status == "passed", verdict.sentence
    assert verdict.compared == 3 * len(manifest.ids("train")) + len(manifest.ids("test"))
    together = load("decoder", name).tolerance.then(resize_tolerance((24, 32)))
    assert (verdict.pixels["max"], verdict.pixels["mean"]) == (together.max, together.mean)


@pytest.mark.parametrize("wrong", [Image.Resampling.NEAREST, Image.Resampling.BICUBIC, "nearest four"])
@pytest.mark.parametrize("size", [(64, 64), (90, 75), (224, 224)])
def test_the_tolerance_tells_another_resize(wrong, size):
    """An image of noise at three times the size, by another filter, or from the nearest four pixels alone."""
    sides = (3 * size[0], 3 * size[1], 3)
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, sides, dtype=np.uint8))
    right = np.array(image.resize(size[::-1], Image.Resampling.BILINEAR))
    if wrong == "nearest four":
        planes = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None].float()
        found = torch.nn.functional.interpolate(planes, size=size, mode="bilinear", antialias=False)
        found = found[0].permute(1, 2, 0).round().to(torch.uint8).numpy()
    else:
        found = np.array(image.resize(size[::-1], wrong))
    assert resize_tolerance(size).exceeded(found, right)
    assert resize_tolerance(size).exceeded(right, right) is None


@pytest.mark.parametrize(
    ("side", "size"),
    [
        *product([60, 500], [(8, 8), (24, 32), (224, 224)]),
        pytest.param(3000, (8, 8), marks=pytest.mark.slow),
    ],
)
def test_the_tolerance_is_what_can_happen_and_hardly_more(tmp_path, opened, side, size):
    """A frame of one pixel, white on black, is what the two treat most differently."""
    image = np.zeros((side, side, 3), np.uint8)
    image[0] = image[-1] = 255
    image[:, 0] = image[:, -1] = 255
    files = [(saved("PNG", picture), (side, side)) for picture in (image, 255 - image)] * 2
    manifest = written(tmp_path / "frames", files, size)
    loader, expected = opened(manifest), by_pillow(manifest)
    allowed = resize_tolerance(size)
    for batch in loader:
        for i, found in one_by_one(batch):
            assert allowed.exceeded(found.numpy(), expected[i]) is None
            if side == 3000:
                assert Tolerance(allowed.max - 4, 255).exceeded(found.numpy(), expected[i])
                assert Tolerance(255, allowed.mean - 1.5).exceeded(found.numpy(), expected[i])


def test_rounding_everywhere_is_within_the_tolerance(tmp_path, opened):
    """Columns of two neighbouring values, halved: all lie between two steps, and Pillow rounds up."""
    image = np.zeros((1024, 1024, 3), np.uint8) + (np.arange(1024) % 2 + 100).astype(np.uint8)[:, None]
    manifest = written(tmp_path / "columns", [(saved("PNG", image), (1024, 1024))] * 4, (512, 512))
    loader, expected = opened(manifest), by_pillow(manifest)
    for batch in loader:
        for i, found in one_by_one(batch):
            assert loader.library.tolerance.exceeded(found.numpy(), expected[i]) is None


def test_without_resize_a_decoder_is_as_before(name):
    assert name in DECODERS
    decoder = load("decoder", name)
    assert decoder.resize is None
    assert (decoder.tolerance == EXACT) == (name == "dali_cpu")

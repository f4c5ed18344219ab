"""Strips of real photographs: 600 files of Tiny ImageNet, colour and grayscale."""

import zipfile

import numpy as np
import pandas as pd
import pytest
from image_fixtures import MEAN, STD, strip_bytes

from gpufeed.datasets.manifest import DatasetInfo, Manifest
from gpufeed.datasets.staging import header_shape
from gpufeed.decoders.pillow import PillowDecoder
from gpufeed.decoders.simplejpeg import decode_jpeg
from gpufeed.stores.strip_backends.cpu import decode_strip
from gpufeed.stores.strips_build import build
from gpufeed.stores.strips_store import open_strips

pytestmark = pytest.mark.realdata
EVERY = 33  # of 20,000 training files


@pytest.fixture(scope="module")
def manifest(real_data, tmp_path_factory) -> Manifest:
    root = tmp_path_factory.mktemp("real")
    rows = []
    with zipfile.ZipFile(real_data / "tiny-imagenet-40.zip") as archive:
        names = [name for name in archive.namelist() if "/train/" in name and name.endswith(".JPEG")]
        for name in names[::EVERY]:
            data = archive.read(name)
            path = root / name.rpartition("/")[2]
            path.write_bytes(data)
            rows.append((path.name, 0, "train", *header_shape(data)))
    table = pd.DataFrame(rows, columns=["path", "label", "split", "height", "width", "channels"])
    info = DatasetInfo("tiny_imagenet_40", "tiny_imagenet", ["one"], "train", MEAN, STD)
    return Manifest(root, info, table)


@pytest.fixture(scope="module")
def strips(manifest):
    build(manifest, manifest.root / "strips.bin")
    return open_strips(manifest.root / "strips.bin", manifest, verify=True)


def decoded(strips, fancy: bool) -> np.ndarray:
    """uint8 (N, 64, 64, 3) by sample id."""
    images = np.zeros((strips.info.count, 64, 64, 3), np.uint8)
    for strip in strips.strips:
        images[strip.ids] = decode_strip(strip_bytes(strips, strip), strip, fancy)
    return images


def test_all_files_are_joined(manifest, strips):
    assert strips.info.joined == strips.info.count == len(manifest) > 600
    assert strips.info.left_over == {}
    assert {(s.sampling, s.components) for s in strips.strips} == {("4:2:0", 3), ("grayscale", 1)}
    headers = strips.info.file_bytes - strips.info.entropy_bytes
    assert 0.30 < headers / strips.info.file_bytes < 0.34  # in the files
    assert strips.info.strip_bytes < 1.005 * strips.info.entropy_bytes


def test_plain_upsampling_is_bit_exact(manifest, strips):
    alone = np.stack([decode_jpeg(path.read_bytes(), fancy=False) for path in manifest.paths()])
    assert np.array_equal(decoded(strips, fancy=False), alone)


def test_fancy_upsampling_differs_in_the_outer_rows_only(manifest, strips):
    alone = np.stack([decode_jpeg(path.read_bytes(), fancy=True) for path in manifest.paths()])
    difference = np.abs(decoded(strips, fancy=True).astype(np.int16) - alone)
    assert not difference[:, 1:-1].any()
    assert difference[:, [0, -1]].any()


def test_pillow_agrees_but_for_the_outer_rows(manifest, strips):
    files = [path.read_bytes() for path in manifest.paths()]
    reference = np.stack(PillowDecoder().decode(files).images)
    difference = np.abs(decoded(strips, fancy=True).astype(np.int16) - reference)
    # two builds of libjpeg-turbo, both with its defaults
    assert difference[:, 1:-1].max() <= 1

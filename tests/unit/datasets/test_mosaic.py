"""Mosaics: pixels of real files where they belong, the same bytes each time, and files that strips take."""

import io

import numpy as np
import pytest
from data_fixtures import files_below
from image_fixtures import encode, write_dataset
from PIL import Image
from test_config import broken

from gpufeed.core.cell_matrix import source_options
from gpufeed.core.config import planned
from gpufeed.core.config_sources import checked_options
from gpufeed.core.errors import GpufeedError
from gpufeed.datasets.mosaic import Options, Tile, colour_ids, plan, reorganise
from gpufeed.datasets.mosaic import encode as encode_tiles
from gpufeed.datasets.synthetic import reorganise as synthetic
from gpufeed.decoders.jpeg_parser import parse
from gpufeed.decoders.strip_joiner import kind_digest

OPTIONS = {"of": "tiny", "size": 48, "count": 6, "quality": 100, "seed": 1}


@pytest.fixture
def tiles(tmp_path):
    """Gratings of 20 x 20 pixels, a quarter of them grayscale."""
    options = {"count": 24, "size": 20, "classes": 3, "format": "png", "grayscale_share": 0.25}
    return synthetic([], tmp_path / "tiny", "tiny", options)


def brightness(path) -> np.ndarray:
    """int (H, W): what a JPEG keeps at full resolution, where colour runs over the edges of tiles."""
    return np.asarray(Image.open(path).convert("L")).astype(int)


def made(tiles, out, **changes):
    return reorganise([tiles.root / "manifest.parquet"], out, "mosaic", {**OPTIONS, **changes})


def test_each_tile_stands_where_its_file_says(tiles, tmp_path):
    manifest = made(tiles, tmp_path / "out")
    assert manifest.image_size() == (48, 48)
    assert set(manifest.table["split"]) == {"train"}
    colour, labels = colour_ids(tiles), tiles.labels()
    for index, path in enumerate(manifest.paths()):
        first, drawn = plan(index, tiles, colour, Options(**OPTIONS))
        assert manifest.labels()[index] == labels[first]
        assert len(drawn) == 9  # 20 + 20 + 8 pixels, both ways
        image = brightness(path)
        for tile in drawn:
            part = brightness(tile.file)[: 48 - tile.row, : 48 - tile.column]
            found = image[tile.row : tile.row + len(part), tile.column : tile.column + part.shape[1]]
            assert np.abs(found - part).mean() < 2


def test_a_size_below_the_tile_is_a_crop_of_it(tiles, tmp_path):
    manifest = made(tiles, tmp_path / "out", size=16, count=20)
    corners = set()
    for index, path in enumerate(manifest.paths()):
        _, (tile,) = plan(index, tiles, colour_ids(tiles), Options(**{**OPTIONS, "size": 16}))
        part = brightness(tile.file)
        part = part[tile.top : tile.top + 16, tile.left : tile.left + 16]
        assert np.abs(brightness(path) - part).mean() < 2
        corners.add((tile.top, tile.left))
    assert len(corners) > 5


def test_same_seed_same_bytes_and_another_seed_others(tiles, tmp_path):
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        made(tiles, tmp_path / name, seed=seed)
    a, b, c = (files_below(tmp_path / name / "images") for name in "abc")
    assert a == b
    assert set(a.values()).isdisjoint(c.values())


def test_all_files_fit_one_strip_and_their_bytes_are_counted(tiles, tmp_path):
    manifest = made(tiles, tmp_path / "out", quality=80)
    data = [path.read_bytes() for path in manifest.paths()]
    (kind,) = {kind_digest(parse(one).kind) for one in data}
    assert kind
    assert parse(data[0]).kind.sampling == "4:2:0"
    source = manifest.info.source
    assert source["bytes_per_pixel"] == pytest.approx(sum(map(len, data)) / (6 * 48 * 48))
    assert {key: source[key] for key in OPTIONS} == {**OPTIONS, "quality": 80}


def test_processes_write_what_one_process_writes(tiles, tmp_path, monkeypatch):
    made(tiles, tmp_path / "one")
    monkeypatch.setattr("gpufeed.datasets.mosaic.processes", lambda options: 2)
    made(tiles, tmp_path / "two")
    assert files_below(tmp_path / "one/images") == files_below(tmp_path / "two/images")


def test_tiles_without_colour_are_an_error(tmp_path):
    manifest = write_dataset(tmp_path / "tiny", size=16)
    manifest.table["channels"] = 1
    manifest.write()
    with pytest.raises(GpufeedError, match="no colour image in tiny"):
        made(manifest, tmp_path / "out")
    assert not (tmp_path / "out/manifest.parquet").exists()


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"size": 0}, "size: 0"),
        ({"size": 16.0}, "size: 16.0"),
        ({"count": 0}, "count: 0"),
        ({"quality": 101}, "quality: 101"),
        ({"sise": 16}, "key 'sise'"),
    ],
)
def test_impossible_options_are_refused(options, found):
    with pytest.raises(GpufeedError) as error:
        checked_options("mosaic", {**OPTIONS, **options})
    assert found in error.value.found


def test_a_missing_option_and_more_than_one_manifest_are_refused(tiles, tmp_path):
    with pytest.raises(GpufeedError, match="no 'of'"):
        checked_options("mosaic", {"size": 16, "count": 1})
    with pytest.raises(GpufeedError, match="0 files for layout mosaic: none"):
        reorganise([], tmp_path / "out", "mosaic", OPTIONS)


def test_tile_pixels_survive_at_the_best_quality(tmp_path):
    path = tmp_path / "a.png"
    pixels = np.full((16, 16, 3), (200, 40, 90), np.uint8)
    path.write_bytes(encode(pixels))
    data = encode_tiles([Tile(path, 0, 0, 0, 0)], Options(**{**OPTIONS, "size": 16}))
    assert np.abs(np.asarray(Image.open(io.BytesIO(data))).astype(int) - pixels).max() <= 2


MOSAIC = ["sources", "mosaic_32"]


@pytest.mark.parametrize(
    ("path", "value", "found"),
    [
        ([*MOSAIC, "options", "of"], "tiny_imagnet", "dataset 'tiny_imagnet' in sources.mosaic_32"),
        ([*MOSAIC, "options", "of"], "mosaic_128", "dataset 'mosaic_128' in sources.mosaic_32.options.of"),
        (["use_instead"], {"tiny_imagenet": "mosaic_128"}, "dataset 'mosaic_128'"),
        ([*MOSAIC, "options", "size"], 40, "size: 40"),
        ([*MOSAIC, "options", "grayscale_share"], 0.1, "key 'grayscale_share'"),
        ([*MOSAIC, "options"], {"of": "tiny_imagenet", "size": 32}, "no 'count'"),
        (MOSAIC, {"layout": "mosaic"}, "no options in sources.mosaic_32"),
        ([*MOSAIC, "files"], [{"name": "a.zip", "sha256": "0" * 64}], "files in sources.mosaic_32"),
        (["experiments", "pipelining", "sweep"], {"datasets": ["mosaic_32"]}, "no 'decoders'"),
        (
            ["experiments", "vit_lite", "common", "dataset"],
            "mosaic_32",
            "trains whole epochs on 'mosaic_32', which has no evaluation split",
        ),
    ],
)
def test_a_wrong_mosaic_stops_before_the_plan(path, value, found):
    with pytest.raises(GpufeedError) as error:
        planned(broken(path, value))
    assert found in error.value.found


def test_the_tiles_come_from_the_stand_in():
    config = broken(["use_instead"], {"tiny_imagenet": "tiny_imagenet_40"})
    assert source_options(config, "mosaic_32")["of"] == "tiny_imagenet_40"
    assert config["sources"]["mosaic_32"]["options"]["of"] == "tiny_imagenet"
    assert source_options(config, "cifar10") == {}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["use_instead"], {"tiny_imagenet": "tiny_imagenet_40"}),
        (["sources", "tiny_imagenet", "files", 0, "sha256"], "0" * 64),
    ],
)
def test_a_cell_on_a_mosaic_of_other_tiles_is_another_cell(path, value):
    def cells(config):
        blocks = {"one": {"dataset": "mosaic_32", "loader": "resident", "steps": 4}}
        experiment = {"title": "t", "question": "q", "blocks": blocks}
        config = {**config, "run": ["mosaics"], "experiments": {"mosaics": experiment}}
        return set(planned(config).cells["mosaics"])

    shipped = broken(["seed"], 0)
    assert cells(shipped) == cells(broken(["seed"], 0))
    assert not cells(shipped) & cells(broken(path, value))

"""Files of FFCV's format: FFCV's own bytes, JPEGs as they are, and nothing taken for a file that is none."""

import os
from dataclasses import replace
from zipfile import ZipFile

import numpy as np
import pytest
from config_fixtures import merged
from data_fixtures import files_of_at_most
from hostile_fixtures import hostile_files, photo, saved
from image_fixtures import encode, write_beton, write_dataset, write_files, write_mixed
from photograph_fixtures import waves

from gpufeed.core.dataset_size import FFCV_JPEGS, FFCV_SIDE, amount_of, ffcv_bytes
from gpufeed.core.errors import GpufeedError
from gpufeed.datasets.prepare import prepare
from gpufeed.decoders.pillow import resized, rgb
from gpufeed.stores import ffcv_store as beton
from gpufeed.stores.ffcv_build import build
from gpufeed.stores.ffcv_store import TOLERANCE, BetonInfo, open_beton, verify_bytes


def contents(path) -> tuple[np.ndarray, list[bytes]]:
    """The rows of a .beton file and each sample's data, found by the table at its end."""
    data = path.read_bytes()
    header = np.frombuffer(data, beton.HEADER, 1)[0]
    start = beton.HEADER.itemsize + beton.FIELDS.nbytes
    rows = np.frombuffer(data, beton.ROW, int(header["samples"]), start)
    table = np.frombuffer(data, beton.PLACED, offset=int(header["table"]))
    assert rows["image"]["place"].tolist() == table["place"].tolist()
    assert table["sample"].tolist() == list(range(len(rows)))
    return rows, [data[place : place + size] for _, place, size in table.tolist()]


def of_files(root, *files: bytes, size: tuple[int, int] = (48, 64)):
    return write_files(root / "files", list(files), "JPEG", size)


def test_lossless_files_stand_as_their_pixels(manifest):
    path = write_beton(manifest)
    rows, data = contents(path)
    assert rows["label"].tolist() == manifest.labels().tolist()
    assert set(rows["image"]["mode"]) == {beton.PIXELS}
    assert [np.frombuffer(one, np.uint8).reshape(8, 8, 3).tolist() for one in data] == [
        rgb(file.read_bytes()).tolist() for file in manifest.paths()
    ]
    info = BetonInfo.read(path)
    assert (info.count, info.jpegs, info.size) == (len(manifest), 0, path.stat().st_size)


@pytest.mark.slow
def test_the_bytes_are_those_of_ffcvs_own_writer(manifest, tmp_path, monkeypatch):
    pytest.importorskip("ffcv", exc_type=ImportError)
    import torch

    threads = torch.get_num_threads()
    from ffcv.fields import IntField, RGBImageField
    from ffcv.writer import DatasetWriter

    torch.set_num_threads(threads)  # FFCV sets them when it is imported
    monkeypatch.setattr(beton, "PAGE", 2**21)
    large = [np.full((700, 700, 3), i, dtype=np.uint8) for i in range(5)]  # one a page
    manifest = of_files(tmp_path, *(saved("PNG", image) for image in large), size=(700, 700))
    fields = {"image": RGBImageField(write_mode="raw"), "label": IntField()}
    writer = DatasetWriter(os.fspath(tmp_path / "theirs.beton"), fields, page_size=2**21, num_workers=1)
    writer.from_indexed_dataset([(image, 0) for image in large])
    assert write_beton(manifest).read_bytes() == (tmp_path / "theirs.beton").read_bytes()


def test_a_jpeg_stands_as_it_is_where_ffcv_decodes_it_as_pillow_does(tmp_path):
    names = [name for name, file in hostile_files().items() if file.decodes]
    kept = {name for name in names if taken(tmp_path / name, hostile_files()[name].data)}
    assert {"progressive JPEG", "gray JPEG", "gray JPEG with factors 2x2", "RGB JPEG"} <= kept
    assert not kept & {"CMYK JPEG", "JPEG of random bytes", "gray PNG", "GIF"}


def taken(root, data: bytes) -> bool:
    """Whether a file stands in a .beton file as it is; checks that otherwise Pillow's pixels do."""
    image = rgb(data)
    path = write_beton(of_files(root, data, size=image.shape[:2]))
    rows, (found,) = contents(path)
    assert found == (data if BetonInfo.read(path).jpegs else image.tobytes())
    assert rows["image"]["mode"].tolist() == [beton.JPEG if BetonInfo.read(path).jpegs else beton.PIXELS]
    return BetonInfo.read(path).jpegs == 1


def test_a_jpeg_that_the_fast_transform_spoils_stands_as_pixels(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (48, 64, 3), dtype=np.uint8)
    assert taken(tmp_path / "usual", saved("JPEG", noise, quality=90))
    assert not taken(tmp_path / "finest", saved("JPEG", noise, quality=100))


def test_images_that_are_resized_stand_as_pixels(tmp_path):
    manifest = of_files(tmp_path, saved("JPEG"), saved("JPEG", photo(30, 20)))
    manifest.info = replace(manifest.info, resize=(30, 20))
    rows, data = contents(write_beton(manifest))
    assert rows["image"]["mode"].tolist() == [beton.PIXELS, beton.JPEG]
    first, second = (file.read_bytes() for file in manifest.paths())
    assert data == [resized(rgb(first), (30, 20)).tobytes(), second]


def mixed(root):
    """Files of many sizes and kinds: a CMYK JPEG, a gray one, a PNG; and what Pillow decodes of each."""
    random = np.random.default_rng(0)
    sizes = [(60, 60), (375, 500), (1000, 600), (501, 3), (40, 2000), (300, 400), (500, 501), (77, 91)] * 2
    images = [waves(height, width, random) for height, width in sizes]
    forms = {3: ("PNG", "RGB"), 5: ("JPEG", "CMYK"), 6: ("JPEG", "L")}
    files = []
    for number, image in enumerate(images):
        format, mode = forms.get(number, ("JPEG", "RGB"))
        files.append(encode(image, format, mode))
    return write_mixed(root, files), [rgb(data) for data in files]


def test_images_of_several_sizes_are_stored_as_ffcvs_writer_does_it(tmp_path):
    rgb_image = pytest.importorskip("ffcv.fields.rgb_image", exc_type=ImportError)
    manifest, images = mixed(tmp_path / "mixed")
    path = write_beton(manifest)
    rows, data = contents(path)
    info = BetonInfo.read(path)
    assert (info.max_resolution, info.jpegs) == (500, (rows["image"]["mode"] == beton.JPEG).sum())
    assert 0 < info.jpegs < len(rows)
    assert rows["label"].tolist() == manifest.labels().tolist()
    for row, found, image in zip(rows["image"], data, images, strict=True):
        expected = rgb_image.resizer(image, 500)
        assert (row["height"], row["width"]) == expected.shape[:2]
        if row["mode"] == beton.JPEG:
            assert found == rgb_image.encode_jpeg(expected, 90).tobytes()
        else:
            assert found == expected.tobytes()


def test_half_of_the_images_of_several_sizes_are_jpegs_whatever_builds_them(tmp_path):
    image = np.zeros((8, 8, 3), np.uint8)
    jpegs = [beton.rewritten(sample_id, image).mode == beton.JPEG for sample_id in range(2000)]
    assert 920 < sum(jpegs) < 1080
    manifest, _ = mixed(tmp_path / "mixed")
    infos = [build(manifest, tmp_path / str(n) / "images.beton", workers=n) for n in (1, 2)]
    assert infos[0] == infos[1]
    assert infos[0].in_words.startswith("a file with long sides of at most 500 pixels, ")
    assert BetonInfo.read(write_beton(write_dataset(tmp_path / "equal"))).in_words is None


def test_a_line_of_pixels_stays_one(tmp_path):
    found = beton.rewritten(0, np.zeros((1, 3000, 3), np.uint8))
    assert (found.height, found.width) == (1, 500)


def test_a_bad_file_among_several_sizes_is_named(tmp_path):
    manifest, _ = mixed(tmp_path / "mixed")
    bad = manifest.paths()[2]
    for data in (bad.read_bytes()[:300], saved("PNG", photo(9, 9))):
        bad.write_bytes(data)
        with pytest.raises(GpufeedError) as error:
            write_beton(manifest)
        assert str(bad) in error.value.found
        assert not list((manifest.root / "beton").glob("images*"))


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("damage", ["gone", "cut", "resized"])
def test_a_bad_file_is_named_and_leaves_nothing(manifest, damage, workers):
    bad = manifest.paths()[5]
    if damage == "gone":
        bad.unlink()
    elif damage == "cut":
        bad.write_bytes(bad.read_bytes()[:50])
    else:
        bad.write_bytes(saved("PNG", photo(9, 9)))
    path = manifest.root / "beton" / "images.beton"
    with pytest.raises(GpufeedError) as error:
        build(manifest, path, workers=workers)
    assert str(bad) in error.value.found
    assert [file.name for file in path.parent.iterdir() if not file.name.endswith(".lock")] == []


def test_a_full_disk_is_told_and_leaves_nothing(manifest):
    with files_of_at_most(1_000), pytest.raises(GpufeedError, match="no room to write"):
        write_beton(manifest)
    assert not list((manifest.root / "beton").glob("images*"))


def test_what_is_no_file_of_this_manifest_is_refused(manifest, tmp_path):
    path = write_beton(manifest)
    data = path.read_bytes()
    verify_bytes(path, manifest)
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    open_beton(path, manifest)
    with pytest.raises(GpufeedError, match="sha256"):
        verify_bytes(path, manifest)
    path.write_bytes(data[:-1])
    with pytest.raises(GpufeedError, match="bytes in"):
        open_beton(path, manifest)
    with pytest.raises(GpufeedError, match="another manifest"):
        open_beton(write_beton(manifest), write_dataset(tmp_path / "other", size=9))


def test_the_tolerance_lets_no_exchange_of_colours_pass():
    image = photo()
    assert TOLERANCE.exceeded(image[..., ::-1], image)


def test_the_size_that_is_expected_of_real_photographs_is_about_that_of_their_file(real_data, tmp_path):
    with ZipFile(real_data / "imagenet-800.zip") as archive:
        names = [info.filename for info in archive.infolist() if not info.is_dir()][::3]
        sizes = [archive.getinfo(name).file_size for name in names]
        for name in names:
            archive.extract(name, tmp_path / "some")
    manifest = prepare("image_folder", [tmp_path / "some"], tmp_path / "own", "own", {})
    written = build(manifest, tmp_path / "images.beton").size
    config = merged("config.yaml")
    folder, files = {"folder": str(tmp_path / "some")}, {"files": [{"name": "a.zip", "size": sum(sizes)}]}
    for where in (folder, files):
        source = config["sources"]["own"] = {"layout": "image_folder", **where}
        assert ffcv_bytes(amount_of(config, "own"), source) == pytest.approx(written, rel=0.15)
    resized = source | {"resize": [64, 48]}
    kept = replace(amount_of(config, "own"), kept=64 * 48)
    assert ffcv_bytes(kept, resized) == 3 * 64 * 48
    assert (FFCV_SIDE, FFCV_JPEGS) == (beton.MAX_RESOLUTION, beton.JPEG_SHARE)

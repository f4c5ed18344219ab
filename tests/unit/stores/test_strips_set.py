"""The strip set of whole datasets: what is joined, what is left over, and that nothing is lost."""

import io
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from data_fixtures import disk_full
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from image_fixtures import MEAN, STD, strip_bytes
from PIL import Image
from workflow_fixtures import Named, run_script

from gpufeed.core.errors import GpufeedError
from gpufeed.datasets.manifest import DatasetInfo, Manifest
from gpufeed.decoders.simplejpeg import decode_jpeg
from gpufeed.stores import strips_build as building
from gpufeed.stores.base import info_path
from gpufeed.stores.strip_backends.cpu import decode_strip
from gpufeed.stores.strips_build import build
from gpufeed.stores.strips_store import index_path, open_strips


def encoded(seed: int, side: int = 32, mode: str = "RGB", format: str = "JPEG", **options) -> bytes:
    """A smooth picture that differs by seed, side x side pixels."""
    coarse = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    image = Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC).convert(mode)
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def flipped(data: bytes, place: int) -> bytes:
    """Damage in the entropy-coded bytes that leaves the markers alone."""
    return data[:-place] + bytes([data[-place] ^ 0x55 or 1]) + data[1 - place :]


# what a dataset may hold: how it is made, and whether it may stand in a strip beside its like
FILES = {
    "colour": lambda seed: encoded(seed, subsampling="4:2:0"),
    "444": lambda seed: encoded(seed, subsampling="4:4:4"),
    "grayscale": lambda seed: encoded(seed, mode="L"),
    "smaller": lambda seed: encoded(seed, side=16, subsampling="4:2:0"),
    "odd size": lambda seed: encoded(seed, side=31),
    "progressive": lambda seed: encoded(seed, progressive=True),
    "cmyk": lambda seed: encoded(seed, mode="CMYK"),
    "png": lambda seed: encoded(seed, format="PNG"),
    "truncated": lambda seed: encoded(seed)[:-40],
    "coded too short": lambda seed: encoded(seed, subsampling="4:2:0")[:-42] + b"\xff\xd9",
    "coded too long": lambda seed: encoded(seed, subsampling="4:2:0")[:-2] + b"\x12" * 9 + b"\xff\xd9",
    "a byte too long": lambda seed: encoded(seed, subsampling="4:2:0")[:-2] + b"\x12" + b"\xff\xd9",
    "damaged": lambda seed: flipped(encoded(seed, subsampling="4:2:0"), 40),
    "empty": lambda seed: b"",
    "not an image": lambda seed: b"not an image",
}
JOINABLE = ("colour", "444", "grayscale", "smaller")


def dataset(
    root: Path, kinds: list[str], splits: tuple[str, ...] = ("train",), folder: str = "."
) -> Manifest:
    """One file for each of `kinds` in a folder of `root`, in order; splits take turns."""
    rows = []
    for id, kind in enumerate(kinds):
        path = root / folder / f"{id}.jpg"
        path.write_bytes(FILES[kind](id))
        side = {"smaller": 16, "odd size": 31}.get(kind, 32)
        rows.append((str(path.relative_to(root)), 0, splits[id % len(splits)], side, side, 3))
    table = pd.DataFrame(rows, columns=["path", "label", "split", "height", "width", "channels"])
    manifest = Manifest(root, DatasetInfo("mixed", "synthetic", ["one"], splits[-1], MEAN, STD), table)
    manifest.write()
    return manifest


@pytest.fixture
def manifest(tmp_path):
    return dataset(tmp_path, ["colour"] * 9 + ["grayscale"] * 3 + ["png", "colour"], ("train", "test"))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "strips" / "strips.bin"


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kinds=st.lists(st.sampled_from(list(FILES)), min_size=1, max_size=20),
    images_per_strip=st.integers(1, 6),
    seed=st.integers(0, 5),
)
def test_every_sample_once_and_every_pixel_its_own(tmp_path_factory, kinds, images_per_strip, seed):
    root = tmp_path_factory.mktemp("mixed")
    manifest = dataset(root, kinds)
    info = build(manifest, root / "strips.bin", images_per_strip, seed=seed)
    strips = open_strips(root / "strips.bin", manifest, verify=True)
    seen = strips.left_over().tolist()
    for strip in strips.strips:
        assert 1 <= len(strip.ids) <= images_per_strip
        seen += strip.ids.tolist()
        images = decode_strip(strip_bytes(strips, strip), strip, fancy=False)
        for id, image in zip(strip.ids, images, strict=True):
            assert np.array_equal(image, decode_jpeg((root / f"{id}.jpg").read_bytes(), fancy=False))
    assert sorted(seen) == list(range(len(kinds)))
    assert info.joined + sum(map(len, info.left_over.values())) == info.count == len(kinds)
    for id in strips.left_over():  # nothing sound is left over unless it is alone of its kind
        assert kinds[id] not in JOINABLE or id in info.left_over.get(building.ALONE, [])
    for kind, count in Counter(kinds).items():
        if kind in JOINABLE and count > 1:
            assert not {id for id, k in enumerate(kinds) if k == kind} & set(strips.left_over().tolist())


def test_reasons(tmp_path, path):
    manifest = dataset(tmp_path, ["colour", *FILES])
    manifest.table.loc[1, "height"] = 64
    (tmp_path / "4.jpg").unlink()
    info = build(manifest, path)
    reasons = {list(FILES)[id - 1]: reason for reason, ids in info.left_over.items() for id in ids if id}
    assert reasons["colour"] == "its size is not the manifest's"
    assert reasons["grayscale"] == building.ALONE
    assert reasons["smaller"] == "cannot be read: No such file or directory"
    assert reasons["progressive"] == "not baseline: progressive"
    assert reasons["truncated"] == "no end of image"
    assert reasons["coded too short"].startswith("damaged: Corrupt JPEG data")
    assert reasons["coded too long"].startswith("damaged: Corrupt JPEG data")
    assert reasons["a byte too long"] == building.UNEQUAL
    assert reasons["empty"] == "not a JPEG file"


def test_index_and_counts(manifest, path):
    info = build(manifest, path, images_per_strip=3)
    strips = open_strips(path, manifest)
    assert (info.count, info.joined, info.strips) == (14, 12, len(strips.strips))
    assert info.left_over == {
        "no other file has its size, sampling and tables": [10],
        "not a JPEG file": [12],
    }
    assert info.strip_bytes == path.stat().st_size == sum(strip.length for strip in strips.strips)
    assert info.file_bytes == sum(
        manifest.paths()[id].stat().st_size for strip in strips.strips for id in strip.ids
    )
    for split in ("train", "test"):
        of_split = strips.of_split(split)
        ids = {int(id) for strip in of_split for id in strip.ids}
        assert ids == set(manifest.ids(split).tolist()) - {10, 12}
        assert max(len(strip.ids) for strip in of_split) == 3
    assert {(s.components, s.sampling) for s in strips.strips} == {(3, "4:2:0"), (1, "grayscale")}
    names = sorted(p.name for p in path.parent.iterdir() if not p.name.startswith("."))  # but the lock
    assert names == ["strips.bin", "strips.json", "strips.parquet"]


def test_one_split(manifest, path):
    info = build(manifest, path, splits=["train"])
    strips = open_strips(path, manifest)
    assert info.count == 7
    assert {strip.split for strip in strips.strips} == {"train"}
    with pytest.raises(GpufeedError, match="split 'test'"):
        strips.of_split("test")


def test_seed_decides_who_stands_together(manifest, path):
    def layout(**options):
        build(manifest, path, images_per_strip=3, **options)
        return path.read_bytes(), index_path(path).read_bytes()

    assert layout(seed=1) == layout(seed=1, workers=2)
    assert layout(seed=1) != layout(seed=2)


def test_limits_of_a_strip(manifest, path, monkeypatch):
    monkeypatch.setattr(building, "MAX_ROWS", 70)  # two images of 32 rows
    build(manifest, path)
    assert max(len(strip.ids) for strip in open_strips(path, manifest).strips) == 2
    monkeypatch.setattr(building, "MAX_PIXELS", 32 * 32 - 1)
    assert build(manifest, path).left_over[building.TOO_LARGE] == [*range(12), 13]


def test_decoding_into_a_buffer(manifest, path):
    build(manifest, path)
    strips = open_strips(path, manifest)
    strip = max(strips.strips, key=lambda strip: len(strip.ids))
    data, out = strip_bytes(strips, strip), np.zeros(strip.shape, np.uint8)
    images = decode_strip(data, strip, out=out)
    assert np.shares_memory(images, out)
    assert np.array_equal(out, decode_strip(data, strip))
    with pytest.raises(ValueError, match="expected contiguous uint8"):
        decode_strip(data, strip, out=out[:, ::-1])


def test_damaged_strip_is_an_error(manifest, path):
    build(manifest, path)
    strips = open_strips(path, manifest)
    whole, strip = path.read_bytes(), strips.strips[0]
    path.write_bytes(bytes(len(whole)))
    with pytest.raises(GpufeedError, match="is damaged"):
        decode_strip(strip_bytes(strips, strip), strip)
    with pytest.raises(GpufeedError, match="sha256"):
        open_strips(path, manifest, verify=True)
    path.write_bytes(whole[:-9])
    with pytest.raises(GpufeedError, match="bytes in"):
        open_strips(path, manifest)
    path.unlink()
    with pytest.raises(GpufeedError, match="no readable"):
        open_strips(path, manifest)


def test_other_manifest_index_and_sidecar_are_refused(manifest, path):
    build(manifest, path)
    manifest.table.loc[0, "label"] = 1
    with pytest.raises(GpufeedError, match="another manifest"):
        open_strips(path, manifest)
    manifest.table.loc[0, "label"] = 0
    index_path(path).write_bytes(b"PAR1")
    with pytest.raises(GpufeedError, match="sha256"):
        open_strips(path, manifest)
    for text in ("", "[]", "{}"):
        info_path(path).write_text(text)
        with pytest.raises(GpufeedError, match="built completely"):
            open_strips(path, manifest)


def test_lost_sample_is_found(manifest, path):
    build(manifest, path)
    text = info_path(path).read_text()
    info_path(path).write_text(text.replace("[\n   12\n  ]", "[]"))
    assert info_path(path).read_text() != text
    with pytest.raises(GpufeedError, match="13 sample ids"):
        open_strips(path, manifest)


def test_file_that_changes_during_the_build_is_left_over(manifest, path, monkeypatch):
    def change(*arguments):
        manifest.paths()[0].write_bytes(encoded(0, subsampling="4:4:4"))
        return joining(*arguments)

    joining = building.join_files
    monkeypatch.setattr(building, "join_files", change)
    assert build(manifest, path).left_over[building.CHANGED] == [0]
    open_strips(path, manifest)


def test_failed_build_leaves_nothing_that_looks_finished(manifest, path, monkeypatch):
    build(manifest, path)
    monkeypatch.setattr(building, "write_index", disk_full)
    with pytest.raises(GpufeedError, match="no room to write"):
        build(manifest, path)
    assert not list(path.parent.glob("*.partial"))
    with pytest.raises(GpufeedError, match="built completely"):
        open_strips(path, manifest)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"images_per_strip": 0}, "0 images a strip"),
        ({"splits": ["dev"]}, "split 'dev'"),
        ({"splits": []}, "no split"),
    ],
)
def test_bad_requests(manifest, path, options, sentence):
    with pytest.raises(GpufeedError, match=sentence):
        build(manifest, path, **options)


def test_script(manifest, path, tmp_path):
    run_script(
        "build_strips",
        input=Named(manifest=manifest.root / "manifest.parquet"),
        output=Named(strips=path),
        log=[tmp_path / "log"],
        threads=1,
    )
    assert open_strips(path, manifest).info.joined == 12
    text = (tmp_path / "log").read_text()
    assert "12 of 14 files in 3 strips" in text
    assert "left over: 1, not a JPEG file" in text


@settings(max_examples=60)
@given(data=st.data())
def test_damage_stays_in_its_own_image(tmp_path_factory, data):
    """Whatever is changed in one file, its neighbours keep their pixels, and it has its own or a reason."""
    root = tmp_path_factory.mktemp("damage")
    manifest = dataset(root, ["colour"] * 4)
    file = bytearray((root / "1.jpg").read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(file) - 1))
        file[place : place + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
    (root / "1.jpg").write_bytes(file)
    build(manifest, root / "strips.bin")
    strips = open_strips(root / "strips.bin", manifest)
    images = {}
    for strip in strips.strips:
        rows = decode_strip(strip_bytes(strips, strip), strip, fancy=False)
        images.update(zip(strip.ids.tolist(), rows, strict=True))
    assert set(images) | set(strips.left_over().tolist()) == {0, 1, 2, 3}
    assert {0, 2, 3} <= set(images)
    for id, image in images.items():
        assert np.array_equal(image, decode_jpeg((root / f"{id}.jpg").read_bytes(), fancy=False))

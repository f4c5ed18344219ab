"""Loaders of other projects beyond the contract: packages that lack, hostile files, damaged shards."""

import itertools
import sys
import threading
import time

import numpy as np
import psutil
import pytest
import torch
from hostile_fixtures import hostile_files, photo, saved
from image_fixtures import ids_of, request, write_cache, write_dataset, write_files, write_shards
from PIL import Image
from process_fixtures import left_after

from gpufeed.core.errors import GpufeedError, Skip
from gpufeed.core.registry import load
from gpufeed.decoders.pillow import rgb
from gpufeed.loaders import webdataset
from gpufeed.loaders.base import epoch_order
from gpufeed.loaders.pixel_tolerance import pixel_source
from gpufeed.loaders.spdl_batches import Ffmpeg
from gpufeed.stores.cache_format import open_cache
from gpufeed.stores.shards_store import ShardsInfo, open_shards

PACKAGES = {"spdl": ["spdl.io", "spdl.pipeline"], "webdataset": ["webdataset"]}


@pytest.fixture
def manifest(tmp_path):
    made = write_dataset(tmp_path / "tiny")
    write_shards(made)
    return made


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_that_lacks_is_a_skip_that_names_what_to_install(manifest, monkeypatch, name):
    for module in PACKAGES[name]:
        monkeypatch.setitem(sys.modules, module, None)
    loader = load("loader", name)(request(manifest, None))
    with pytest.raises(Skip, match=r"needs the package .* lacks .* pip install '.*\[all\]'.*\.$"):
        loader.open()
    loader.close()


# SPDL


@pytest.fixture
def ffmpeg():
    try:
        return Ffmpeg()
    except Skip as skip:
        pytest.skip(str(skip))


def test_libraries_of_ffmpeg_that_lack_are_a_skip(manifest, monkeypatch):
    io = pytest.importorskip("spdl.io")

    def lacking(**_):
        raise RuntimeError("Failed to import libspdl.")

    monkeypatch.setattr(io, "decode_config", lacking)
    with pytest.raises(Skip, match=r"FFmpeg's shared libraries.* LD_LIBRARY_PATH"):
        load("loader", "spdl")(request(manifest, None)).open()


# whole images of more than 8 bits, which preparation leaves out
LEFT_OUT = ("16-bit gray TIFF, 0 for white", "12-bit gray TIFF", "16-bit PGM")


@pytest.mark.parametrize("name", hostile_files())
def test_hostile_files_decode_as_pillow_does_or_are_refused(ffmpeg, name):
    hostile = hostile_files()[name]
    frame = ffmpeg.decode(hostile.data)
    if frame is None:
        return
    if name in LEFT_OUT:
        return
    assert hostile.decodes, "Pillow refuses it"
    found, expected = ffmpeg.pixels([frame])[0], rgb(hostile.data)
    assert found.dtype == np.uint8
    assert found.shape == expected.shape
    assert hostile.damaged or ffmpeg.tolerance.exceeded(found, expected) is None


def test_what_ffmpeg_takes_is_decoded_by_it(ffmpeg):
    """So that the test above does not pass by refusing all there is."""
    names = ("progressive JPEG", "gray JPEG", "4:2:0 JPEG of odd sides", "gray PNG")
    assert all(ffmpeg.decode(hostile_files()[name].data) is not None for name in names)


def test_graphs_that_are_kept_give_the_pixels_of_new_ones(ffmpeg):
    """Whatever came before: another format of pixels, another size, a file that is refused."""
    image = photo()
    files = [
        saved("JPEG", image),
        saved("JPEG", image, subsampling=0),
        saved("JPEG", Image.fromarray(image).convert("L")),
        saved("PNG", image),
        saved("PNG", Image.fromarray(image).convert("RGBA")),
        saved("JPEG", photo(40, 40)),
        saved("JPEG", image)[:-40],
    ]
    taken = 0
    for first, second in itertools.permutations(files, 2):
        ffmpeg.kept = threading.local()  # as in a new thread
        for data in (first, second, first):
            frame, expected = ffmpeg.decode(data, image.shape[:2]), ffmpeg.decode(data)
            if expected is None or (expected.height, expected.width) != image.shape[:2]:
                assert frame is None
                continue
            taken += 1
            np.testing.assert_array_equal(
                ffmpeg.pixels([frame]).reshape(image.shape), ffmpeg.pixels([expected]).reshape(image.shape)
            )
    assert taken > 60


def jpegs(root, *files: bytes):
    """A dataset of JPEG files of 48 x 64 pixels."""
    return write_files(root / "files", list(files), "JPEG", (48, 64))


def test_what_ffmpeg_refuses_pillow_decodes_and_is_counted(tmp_path, open_loader):
    hostile = hostile_files()
    usual = [saved("JPEG", photo() // (2 + i)) for i in range(3)]
    others = [name for name, file in hostile.items() if file.damaged and file.data[:2] == b"\xff\xd8"]
    manifest = jpegs(tmp_path, *usual, *(hostile[name].data for name in others))
    loader = open_loader("spdl", request(manifest, None, shuffle=False, threads=2, batch_size=2))
    images = torch.cat([batch.images for batch in loader]).numpy()
    left = [i for i, file in enumerate(manifest.paths()) if loader.library.decode(file.read_bytes()) is None]
    assert left
    for i in left:
        assert np.array_equal(images[i], rgb(manifest.paths()[i].read_bytes()))
    assert loader.decode_counts.asdict() == {
        "decoder": "spdl",
        "images": len(manifest),
        "fell_back": {"pillow": len(left)},
    }


@pytest.mark.parametrize("damage", ["cut", "gone", "resized", "end"])
def test_spdl_names_a_bad_file_and_leaves_no_thread(tmp_path, damage, open_loader):
    manifest = jpegs(tmp_path, *(saved("JPEG", photo() // (2 + i)) for i in range(12)))
    before, bad = set(threading.enumerate()), manifest.paths()[7]
    if damage == "gone":
        bad.unlink()
    elif damage == "resized":
        bad.write_bytes(saved("JPEG", photo(24, 32)))
    else:
        bad.write_bytes(bad.read_bytes()[: 700 if damage == "cut" else -1])
    loader = open_loader("spdl", request(manifest, None, shuffle=False, batch_size=3))
    with pytest.raises(GpufeedError) as error, loader:
        list(loader)
    assert str(bad) in error.value.found
    assert set(threading.enumerate()) == before


@pytest.mark.parametrize("name", PACKAGES)
def test_without_their_decoders_files_are_still_read(manifest, name, open_loader):
    pool = np.arange(7, dtype=np.uint8)[:, None, None, None].repeat(8, 1).repeat(8, 2).repeat(3, 3)
    of = load("loader", name)
    open_loader(name, request(manifest, None)).close()
    with of.without_decoding(request(manifest, None), lambda: pool) as loader:
        for batch in loader:
            assert batch.images[:, 0, 0, 0].tolist() == [i % 7 for i in batch.ids.tolist()]
    victim = manifest.paths()[int(manifest.ids("train")[3])]
    if name == "webdataset":
        shards = open_shards(request(manifest, None).shards, manifest)
        victim = shards.file(shards.of_split("train")[1])
    with of.without_decoding(request(manifest, None), lambda: pool) as loader:
        victim.unlink()
        with pytest.raises(GpufeedError, match=victim.name):
            list(loader)


@pytest.mark.parametrize(("workers", "threads", "expected"), [(1, 8, 1), (4, 1, 4), (0, 3, 3)])
def test_spdl_takes_workers_for_threads(manifest, workers, threads, expected, open_loader):
    seen, turns, together = [], itertools.count(), threading.Barrier(expected, timeout=60)

    def noting(image, sample_id, epoch):
        seen.append(threading.get_ident())
        if next(turns) < expected:
            together.wait()
        return image.permute(2, 0, 1).float()

    asked = request(manifest, None, workers=workers, threads=threads, sample_transform=noting, batch_size=1)
    list(open_loader("spdl", asked))
    assert len(set(seen)) == expected


def test_a_pipeline_of_spdl_that_gives_nothing_is_an_error(manifest, monkeypatch, open_loader):
    spdl_pipeline = pytest.importorskip("gpufeed.loaders.spdl_pipeline")
    monkeypatch.setattr(spdl_pipeline, "STUCK_S", 0.2)

    def slow(image, sample_id, epoch):
        time.sleep(0.5)

    loader = open_loader("spdl", request(manifest, None, sample_transform=slow, batch_size=1))
    with pytest.raises(GpufeedError, match=r"no batch from SPDL's pipeline for 0\.2 s"):
        list(loader)


def test_the_gate_is_told_who_decodes(manifest, ffmpeg, open_loader):
    source = pixel_source("spdl", open_loader("spdl", request(manifest, None)), None)
    assert (source.decoder, source.tolerance) == ("spdl", ffmpeg.tolerance)
    assert source.version.startswith("spdl 0.")
    assert "libavcodec" in source.version


# webdataset


@pytest.mark.parametrize(
    ("workers", "batch_size"),
    [(0, 1), (0, 4), (0, 40), (1, 4), (3, 1), (3, 40), (9, 4)],  # nine workers share six shards
)
def test_any_number_of_workers_gives_the_promised_order(manifest, workers, batch_size, open_loader):
    asked = request(
        manifest, None, workers=workers, prefetch_factor=2 if workers else None, batch_size=batch_size
    )
    loader = open_loader("webdataset", asked)
    for _ in range(2):
        promised = loader.order().tolist()
        batches = list(loader)
        assert ids_of(batches) == promised
        assert sorted(promised) == manifest.ids("train").tolist()
        assert {len(batch.ids) for batch in batches[:-1]} <= {batch_size}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_rank_goes_on_in_mid_epoch(manifest, workers, open_loader):
    changes = {"workers": workers, "prefetch_factor": 2 if workers else None, "batch_size": 3}
    for rank in range(2):
        asked = request(manifest, None, rank=rank, world_size=2, **changes)
        whole, rest = open_loader("webdataset", asked), open_loader("webdataset", asked)
        expected = ids_of(whole)
        assert sorted(expected) == sorted(epoch_order(whole.split_ids, 3, 0, True, rank, 2).tolist())
        rest.load_state_dict({"epoch": 0, "next_batch": 2, "seed": 3})
        assert ids_of(rest) == expected[6:]
        assert ids_of(rest) == ids_of(whole)


def test_repeats_whose_seeds_are_neighbours_share_no_epoch(manifest, open_loader):
    orders = []
    for seed in range(3):
        loader = open_loader("webdataset", request(manifest, None, seed=seed))
        for epoch in range(3):
            loader.load_state_dict({"epoch": epoch, "next_batch": 0, "seed": seed})
            orders.append(tuple(loader.order().tolist()))
    assert len(set(orders)) == 9


def damaged(data: bytes, damage: str) -> bytes:
    """A shard of three or four samples, of one and two blocks each, damaged without another size."""
    half = len(data) // 512 // 2 * 512
    if damage == "ends early":
        place = data.index(b".png", 512) // 512 * 512  # the header of the second sample
        return data[:place] + bytes(len(data) - place)
    if damage == "no tar":
        return bytes(range(256)) * (len(data) // 256)
    if damage == "empty":
        return bytes(len(data))
    if damage == "other name":
        first = data[:9]
        return data.replace(first, b"000000099", 1)
    return data[: half // 2]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("damage", ["ends early", "no tar", "empty", "other name", "cut", "gone"])
def test_a_damaged_shard_is_named(manifest, damage, workers, open_loader):
    path = manifest.root / "shards" / "shards.json"
    bad = path.with_name(ShardsInfo.read(path).shards[2].name)
    loader = open_loader(
        "webdataset", request(manifest, None, workers=workers, prefetch_factor=2 if workers else None)
    )
    before = set(psutil.Process().children())
    if damage == "gone":
        bad.unlink()
    else:
        bad.write_bytes(damaged(bad.read_bytes(), damage))
    with pytest.raises(GpufeedError) as error, loader:
        list(loader)
    assert str(bad) in error.value.found
    assert not left_after(10, set(psutil.Process().children()) - before)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("damage", ["cut", "resized"])
def test_a_bad_image_in_a_shard_is_named_by_its_file(tmp_path, damage, workers, open_loader):
    made = write_dataset(tmp_path / "tiny")
    bad = made.paths()[int(made.ids("train")[2])]
    other = write_dataset(tmp_path / "other", size=6).paths()[2].read_bytes()
    bad.write_bytes(bad.read_bytes()[:50] if damage == "cut" else other)
    write_shards(made)
    loader = open_loader("webdataset", request(made, None, workers=workers))
    with pytest.raises(GpufeedError) as error, loader:
        list(loader)
    assert str(bad) in error.value.found


def test_short_chunks_become_whole_batches(manifest):
    parts = [(3, 1.0), (0, 2.0), (2, 4.0), (5, 8.0), (9, 16.0), (1, 32.0)]
    start, chunks = 0, []
    for count, load_ms in parts:
        ids = torch.arange(start, start + count)
        images = ids[:, None].repeat(1, 2) if count else torch.empty(0)
        chunks.append(webdataset.HostBatch(images, ids, ids, load_ms))
        start += count
    found = list(webdataset.cut((chunk for chunk in chunks), request(manifest, None)))
    assert [batch.ids.tolist() for batch in found] == [[*range(n, min(n + 5, 20))] for n in range(0, 20, 5)]
    assert all(torch.equal(batch.images[:, 1], batch.ids) for batch in found)
    assert found[1].images.data_ptr() == chunks[3].images.data_ptr()  # passed on as it is
    assert [batch.load_ms for batch in found] == [7.0, 8.0, 16.0, 32.0]


def test_the_verdict_on_shards_reads_every_byte(manifest, open_loader):
    from gate_fixtures import judged, task_for

    open_loader("webdataset", request(manifest, None)).close()
    cache = write_cache(manifest)
    assert len(open_cache(cache, manifest)) == len(manifest)
    assert judged(task_for(manifest, cache, "webdataset")).status == "passed"
    path = manifest.root / "shards" / "shards.json"
    bad = path.with_name(ShardsInfo.read(path).shards[0].name)
    data = bytearray(bad.read_bytes())
    data[-1] ^= 1  # behind the end of the archive, where nobody reads
    bad.write_bytes(bytes(data))
    one = judged(task_for(manifest, cache, "webdataset"))
    assert one.status == "failed"
    assert "sha256" in one.sentence

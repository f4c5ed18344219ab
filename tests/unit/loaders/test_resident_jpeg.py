"""The loader whose coded images lie on the device, on the CPU: kinds, rounds, what goes to Pillow, room."""

import numpy as np
import pytest
import torch
from gate_fixtures import judged, task_for
from hostile_fixtures import saved
from image_fixtures import loader_threads, request, write_cache, write_files
from jpeg_fixtures import encoded, picture

from gpufeed.core.errors import GpufeedError
from gpufeed.datasets.manifest import Manifest
from gpufeed.decoders.pillow import PillowDecoder
from gpufeed.loaders import coded_store, resident_jpeg
from gpufeed.loaders.base import epoch_order
from gpufeed.loaders.resident_jpeg import ResidentJpegLoader

HEIGHT, WIDTH = 24, 40

pytestmark = pytest.mark.usefixtures("extension")


def image(number: int) -> np.ndarray:
    return picture(HEIGHT, WIDTH, number % 50, number)


def files(count: int = 60) -> list[bytes]:
    """Three kinds of baseline JPEG between each other, and files that go to Pillow: 5 of 60."""
    found = [encoded("4:2:0", image(number)) for number in range(count)]
    found[3::7] = [encoded("grayscale", image(number)) for number in range(count)[3::7]]
    found[5::11] = [encoded("4:4:4", image(number), 60) for number in range(count)[5::11]]
    found[8] = saved("PNG", image(8))
    found[20] = saved("JPEG", image(20), progressive=True)
    found[21] = saved("JPEG", image(21), restart_marker_blocks=1)
    found[40] = encoded("4:2:0", image(40))[:-2] + b"\0\0\xff\xd9"  # bytes are left over, which Pillow passes
    found[59] = saved("GIF", image(59))
    return found


def written(folder, own: list[bytes]) -> Manifest:
    manifest = write_files(folder / "files", own, "jpg", (HEIGHT, WIDTH))
    manifest.write()
    return manifest


@pytest.fixture
def mixed(tmp_path):
    return written(tmp_path, files())


def by_pillow(manifest: Manifest) -> torch.Tensor:
    found = PillowDecoder().decode([path.read_bytes() for path in manifest.paths()])
    return torch.from_numpy(np.stack(found.images))


@pytest.mark.parametrize("batch_size", [1, 7, 20, 64])
@pytest.mark.parametrize("batches_a_round", [1, 3, 100])
def test_every_image_is_pillows_in_the_usual_order(mixed, monkeypatch, batch_size, batches_a_round):
    monkeypatch.setattr(resident_jpeg, "ROUND_BYTES", batches_a_round * batch_size * HEIGHT * WIDTH * 3)
    monkeypatch.setattr(coded_store, "CHUNK", 17)
    right = by_pillow(mixed)
    with ResidentJpegLoader(request(mixed, None, batch_size=batch_size)) as loader:
        for epoch in range(3):
            batches = list(loader)
            order = epoch_order(loader.split_ids, 3, epoch, True, 0, 1)
            assert torch.cat([batch.ids for batch in batches]).tolist() == order.tolist()
            assert torch.equal(torch.cat([batch.images for batch in batches]), right[order])


def test_it_says_who_decoded_and_passes_the_gate(mixed):
    with ResidentJpegLoader(request(mixed, None, batch_size=8)) as loader:
        for epoch in (1, 2):
            assert sum(len(batch.ids) for batch in loader) == 60
            told = {"decoder": "cuda_jpeg", "images": 60 * epoch, "fell_back": {"pillow": 5 * epoch}}
            assert loader.decode_counts.asdict() == told
    verdict = judged(task_for(mixed, write_cache(mixed), "resident_jpeg"))
    assert (verdict.status, verdict.max_difference) == ("passed", 0), verdict.sentence
    assert verdict.pixels["decoder"] == "cuda_jpeg"


def test_only_what_stays_coded_is_kept_coded(mixed):
    with ResidentJpegLoader(request(mixed, None)) as loader:
        store = loader.store
        assert len(store.codings) == 3
        assert store.kept.shape == (5, HEIGHT, WIDTH, 3)
        assert np.bincount(store.kinds).tolist()[-1] == 5
        lengths = (store.ends - store.starts).numpy()
        for kind, longest in enumerate(store.longest):
            assert lengths[store.kinds == kind].max() == longest


def test_a_rare_kind_is_kept_as_pixels_until_it_is_common(tmp_path, monkeypatch):
    monkeypatch.setattr(coded_store, "CHUNK", 20)
    monkeypatch.setattr(coded_store, "LEAST_SHARE", 1 / 4)
    own = [encoded("4:2:0", image(number)) for number in range(60)]
    for number in (3, 21, 22, 23, 24, 25, 45):  # one in the first chunk, five in the second, one in the third
        own[number] = encoded("grayscale", image(number))
    manifest = written(tmp_path, own)
    with ResidentJpegLoader(request(manifest, None, shuffle=False)) as loader:
        assert np.flatnonzero(loader.store.kinds == loader.store.pixels).tolist() == [3]
        assert torch.equal(torch.cat([batch.images for batch in loader]), by_pillow(manifest))


def test_most_are_kept_as_pixels(tmp_path):
    own = [saved("PNG", image(number)) for number in range(20)]
    own[4:10:2] = [encoded("4:2:0", image(number)) for number in (4, 6, 8)]
    manifest = written(tmp_path, own)
    with ResidentJpegLoader(request(manifest, None, shuffle=False)) as loader:
        assert np.flatnonzero(loader.store.kinds == 0).tolist() == [4, 6, 8]
        assert torch.equal(torch.cat([batch.images for batch in loader]), by_pillow(manifest))
        assert loader.decode_counts.fell_back == {"pillow": 17}


def test_resuming_gives_the_rest_of_the_epoch_and_the_next_one(mixed, monkeypatch):
    monkeypatch.setattr(resident_jpeg, "ROUND_BYTES", 2 * 7 * HEIGHT * WIDTH * 3)
    right = by_pillow(mixed)
    with ResidentJpegLoader(request(mixed, None, batch_size=7)) as loader:
        loader.load_state_dict({"epoch": 4, "next_batch": 3, "seed": 3})
        came = [list(loader), list(loader)]
        loader.load_state_dict({"epoch": 4, "next_batch": 0, "seed": 3})
        came.append(list(loader))
    orders = [epoch_order(loader.split_ids, 3, epoch, True, 0, 1) for epoch in (4, 5, 4)]
    for batches, order in zip(came, (orders[0][21:], *orders[1:]), strict=True):
        assert torch.cat([batch.ids for batch in batches]).tolist() == order.tolist()
        assert torch.equal(torch.cat([batch.images for batch in batches]), right[order])


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (b"\xff\xd8\xff", "not an image that Pillow knows"),
        (encoded("4:2:0", picture(HEIGHT, WIDTH + 8, 0)), r"decoded to \(24, 48, 3\), the manifest says"),
    ],
)
def test_a_file_that_nobody_can_decode_is_named_when_it_is_opened(tmp_path, bad, said):
    own = files()
    own[30] = bad
    manifest = written(tmp_path, own)
    with pytest.raises(GpufeedError, match=rf"30\.jpg: {said}"):
        ResidentJpegLoader(request(manifest, None)).open()
    assert loader_threads() == []


def test_a_missing_file_is_named_when_it_is_opened(mixed):
    mixed.paths()[12].unlink()
    with pytest.raises(GpufeedError, match=r"12\.jpg: No such file"):
        ResidentJpegLoader(request(mixed, None)).open()


def test_files_are_read_once(mixed):
    right = by_pillow(mixed)
    with ResidentJpegLoader(request(mixed, None, shuffle=False)) as loader:
        for path in mixed.paths():
            path.unlink()
        assert loader.files() == []
        assert torch.equal(torch.cat([batch.images for batch in loader]), right)


@pytest.mark.parametrize("place", ["free_bytes", "free_host_bytes"])
def test_it_says_when_there_is_no_room(mixed, monkeypatch, place):
    monkeypatch.setattr(coded_store, place, lambda *device: 10_000)
    with pytest.raises(
        GpufeedError, match=r"GiB of coded images and .* GiB of pixels or more in split 'train'"
    ):
        ResidentJpegLoader(request(mixed, None)).open()


@pytest.mark.realdata
def test_real_files_are_pillows(real_files, tmp_path):
    jpegs = real_files("tiny-imagenet-40.zip", ".JPEG")[::20]
    manifest = write_files(tmp_path / "real", jpegs, "jpg", (64, 64))
    right = by_pillow(manifest)
    with ResidentJpegLoader(request(manifest, None, batch_size=64)) as loader:
        assert len(loader.store.codings) == 2
        assert not len(loader.store.kept)
        for batch in loader:
            assert torch.equal(batch.images, right[batch.ids])

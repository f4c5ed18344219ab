"""The loader strips: its order with one window and with several, and its batches across windows."""

import gc
import time
import weakref

import numpy as np
import pytest
from image_fixtures import request
from process_fixtures import wait_until
from test_strips_set import dataset

from gpufeed.core.errors import GpufeedError
from gpufeed.decoders.pillow import rgb
from gpufeed.loaders import strips as module
from gpufeed.loaders.base import epoch_order
from gpufeed.stores.strips_build import build

KINDS = ["colour"] * 20 + ["grayscale"] * 5 + ["png", "progressive"] + ["444"] * 4
IMAGE_BYTES = 32 * 32 * 3


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    root = tmp_path_factory.mktemp("strips")
    manifest = dataset(root, KINDS)
    build(manifest, root / "strips.bin", images_per_strip=4)
    return manifest


@pytest.fixture
def make(manifest, open_loader):
    """(changes of the request) -> an open loader."""
    usual = {"strips": manifest.root / "strips.bin", "threads": 2}
    return lambda **changes: open_loader("strips", request(manifest, None, **usual, **changes))


@pytest.fixture(params=[4, 9, 14])
def images_a_window(request, monkeypatch):
    monkeypatch.setattr(module, "WINDOW_BYTES", request.param * IMAGE_BYTES)
    return request.param


def check_epoch(loader, manifest) -> list[int]:
    """The ids of one epoch, whose order, pixels and labels are what they should be."""
    order, seen = loader.order().tolist(), []
    for batch in loader:
        ids = batch.ids.tolist()
        for id, image in zip(ids, batch.images.numpy(), strict=True):
            expected = rgb(manifest.paths()[id].read_bytes())
            assert np.array_equal(image[1:-1], expected[1:-1])
            assert loader.reader.backend.tolerance.exceeded(image, expected) is None
        assert batch.labels.tolist() == manifest.labels()[ids].tolist()
        seen += ids
    assert seen == order
    return seen


def test_one_window_has_the_order_of_every_loader(make, manifest):
    loader = make()
    for epoch in range(2):
        expected = epoch_order(loader.split_ids, 3, epoch, True, 0, 1).tolist()
        assert check_epoch(loader, manifest) == expected


def test_several_windows_are_whole_and_shuffled(make, manifest, images_a_window):
    loader, again = make(), make()
    epochs = [check_epoch(loader, manifest) for _ in range(3)]
    assert all(sorted(ids) == list(range(len(KINDS))) for ids in epochs)
    assert len({tuple(ids) for ids in epochs}) == 3
    assert [check_epoch(again, manifest) for _ in range(3)] == epochs


def test_no_window_is_larger_than_its_limit(make, images_a_window):
    windows = make().windows(0)
    sizes = [sum(len(unit.ids) for unit in units) for units in windows]
    assert len(windows) > 1
    assert sum(sizes) == len(KINDS)
    assert max(sizes) <= images_a_window


def test_windows_are_about_as_large(make, monkeypatch):
    """Else the last one, in whose time the next epoch's first is decoded, could be of a few images."""
    monkeypatch.setattr(module, "WINDOW_BYTES", (len(KINDS) - 1) * IMAGE_BYTES)
    sizes = [sum(len(unit.ids) for unit in units) for units in make().windows(0)]
    assert len(sizes) == 2
    assert min(sizes) >= len(KINDS) // 3


def test_ranks_share_several_windows(make, manifest, images_a_window):
    ranks = [make(rank=rank, world_size=3) for rank in range(3)]
    shares = [check_epoch(loader, manifest) for loader in ranks]
    assert sorted(id for share in shares for id in share) == list(range(len(KINDS)))


def test_goes_on_in_mid_epoch_in_a_later_window(make, manifest, images_a_window):
    whole, loader = make(), make()
    expected = [batch.ids.tolist() for batch in whole]
    loader.load_state_dict({"epoch": 0, "next_batch": 4, "seed": 3})
    assert [batch.ids.tolist() for batch in loader] == expected[4:]


def test_goes_on_at_the_start_of_a_window_that_was_decoded_ahead(make, monkeypatch):
    monkeypatch.setattr(module, "WINDOW_BYTES", 12 * IMAGE_BYTES)
    whole, loader = make(batch_size=1), make(batch_size=1)
    expected = [batch.ids.tolist() for batch in whole]
    first = sum(len(unit.ids) for unit in loader.windows(0)[0])
    iterator = iter(loader)
    assert [next(iterator).ids.tolist() for _ in range(first)] == expected[:first]
    iterator.close()
    assert [batch.ids.tolist() for batch in loader] == expected[first:]


@pytest.fixture
def reads(monkeypatch):
    """The ids of each reading of units, in order."""
    plain, found = module.StripReader.read, []

    def read(self, units):
        found.append(sorted(id for unit in units for id in unit.ids.tolist()))
        return plain(self, units)

    monkeypatch.setattr(module.StripReader, "read", read)
    return found


def test_the_next_epoch_is_decoded_while_the_last_window_is_in_use(make, reads):
    loader, all_ids = make(), list(range(len(KINDS)))
    for epoch in range(3):
        iterator = iter(loader)
        next(iterator)
        wait_until(lambda expected=epoch + 2: len(reads) == expected)
        assert sum(len(batch.ids) for batch in iterator) < len(KINDS)
    assert reads == [all_ids] * 4


def test_who_evaluates_decodes_one_epoch(make, reads):
    loader = make(shuffle=False)
    for batch in loader:
        time.sleep(0.01 if len(batch.ids) else 0)  # while which another epoch would be decoded
    loader.close()
    assert reads == [list(range(len(KINDS)))]


def test_a_window_goes_when_the_next_one_is_taken(make, monkeypatch):
    monkeypatch.setattr(module, "WINDOW_BYTES", 8 * IMAGE_BYTES)
    loader, taken = make(), []
    for epoch in range(2):  # the second one's first window is made ahead
        for window in loader._decoded(loader.order_of(epoch), epoch):
            taken.append(weakref.ref(window))
            del window
            gc.collect()
            assert [found() is not None for found in taken] == [False] * (len(taken) - 1) + [True]
    assert len(taken) > 8


def test_what_was_decoded_ahead_is_not_taken_for_another_epoch(make, manifest, reads):
    loader, again = make(), make()
    check_epoch(loader, manifest)
    loader.load_state_dict({"epoch": 5, "next_batch": 0, "seed": 3})
    again.load_state_dict({"epoch": 5, "next_batch": 0, "seed": 3})
    assert check_epoch(loader, manifest) == check_epoch(again, manifest)


def test_who_asks_for_the_files_finds_nothing_read_ahead(make, reads):
    loader = make()
    list(loader)
    loader.files()
    before = len(reads)
    list(loader)
    wait_until(lambda: len(reads) == before + 2)  # this epoch's, and the next one's


@pytest.mark.parametrize("times", [1, 2])
def test_an_error_ahead_is_raised_where_it_is_still_there(make, manifest, monkeypatch, times):
    loader = make()
    plain, calls = loader.reader.read, []

    def broken(units):
        calls.append(len(units))
        if 1 < len(calls) <= 1 + times:
            raise GpufeedError("a strip that cannot be read", "a whole one", "look at the disk")
        return plain(units)

    monkeypatch.setattr(loader.reader, "read", broken)
    check_epoch(loader, manifest)
    if times == 2:
        with pytest.raises(GpufeedError, match="a strip that cannot be read"):
            list(loader)
    check_epoch(loader, manifest)


def test_unshuffled_windows_come_strip_by_strip(make, manifest, images_a_window):
    loader = make(shuffle=False)
    first, second = check_epoch(loader, manifest), check_epoch(loader, manifest)
    assert first == second
    assert sorted(first) == list(range(len(KINDS)))

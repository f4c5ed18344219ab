"""DALI's own reader in its loader: the batches that it brings, and files that it does not take."""

import gc
import weakref
from contextlib import suppress
from dataclasses import replace

import numpy as np
import psutil
import pytest
import torch
from hostile_fixtures import available, saved
from image_fixtures import by_pillow, ids_of, write_files
from photo_fixtures import COUNT, dali_loader, shaded, taken
from process_fixtures import wait_until

from gpufeed.core.errors import GpufeedError
from gpufeed.decoders.pillow import rgb


@pytest.fixture
def clean(tmp_path):
    """A split that DALI's own reader can have."""
    return write_files(tmp_path / "clean", taken(), "jpg", (24, 32))


def test_a_split_with_a_bad_file_is_not_for_dalis_reader(clean):
    for damage in (lambda path: path.write_bytes(b"no image"), lambda path: path.unlink()):
        damage(clean.paths()[13])
        with dali_loader(clean) as loader:
            assert not loader.reads
            assert loader.not_taken() == str(clean.paths()[13])
            with pytest.raises(GpufeedError, match=str(clean.paths()[13])):
                list(loader)


@pytest.mark.parametrize("name", ["with spaces and ü ", "two\nlines", "car\rriage", "caf\udce9"])
def test_dali_reads_files_of_any_name(tmp_path, name):
    manifest = write_files(tmp_path / name, taken(), "jpg", (24, 32))
    with dali_loader(manifest) as loader:
        batches = list(loader)
        assert loader.reads
    expected = by_pillow(manifest)
    found = {i: batch.images[row] for batch in batches for row, i in enumerate(batch.ids.tolist())}
    assert sorted(found) == list(range(COUNT))
    # libjpeg-turbo decodes for both
    assert all(np.array_equal(found[i].numpy(), expected[i]) for i in range(COUNT))


def test_what_dali_refuses_on_the_way_is_decoded_by_others(clean, caplog):
    late = clean.paths()[50]  # DALI has read the first batches ahead
    with dali_loader(clean, batch_size=8, shuffle=False) as loader:
        list(loader)
        late.write_bytes(saved("GIF", shaded(COUNT)[50]))
        expected = rgb(late.read_bytes())
        for _ in range(2):
            batches = list(loader)
            assert ids_of(batches) == list(range(COUNT))
            assert np.array_equal(batches[6].images[2].numpy(), expected)
        told = {"decoder": "dali_cpu", "images": 3 * COUNT, "fell_back": {"pillow": 2}}
        assert loader.decode_counts.asdict() == told
    (record,) = caplog.records
    assert (
        "dali_cpu is fed with bytes from now on: its own reader found nvImageCodec failure" in record.message
    )


@pytest.fixture
def pipelines(monkeypatch):
    """Grows with every pipeline of DALI that is built to read."""
    available("dali_cpu")
    from gpufeed.loaders.dali_reader import ReadingPipeline

    built: list[int] = []
    plain = ReadingPipeline._build
    monkeypatch.setattr(ReadingPipeline, "_build", lambda self: built.append(1) or plain(self))
    return built


def check_epoch(loader, expected: np.ndarray) -> None:
    """The rest of an epoch has its samples in their order, and their pixels in `expected`."""
    order = loader.order()[loader.next_batch * loader.request.batch_size :]
    batches = [(batch.ids.numpy(), batch.images.numpy()) for batch in loader]
    assert np.array_equal(np.concatenate([ids for ids, _ in batches]), order)
    assert np.array_equal(np.concatenate([images for _, images in batches]), expected[order])


def test_one_pipeline_of_dali_serves_all_epochs(clean, pipelines):
    expected = np.stack(by_pillow(clean))
    with dali_loader(clean, batch_size=8) as loader:
        for _ in range(40):
            check_epoch(loader, expected)
        state = loader.state_dict()
        for _ in loader:
            break
        check_epoch(loader, expected)  # the rest
        loader.load_state_dict(state)  # DALI has begun the next epoch
        check_epoch(loader, expected)
        loader.load_state_dict({**state, "epoch": 3, "next_batch": 6})
        check_epoch(loader, expected)
        assert loader.reads
    assert len(pipelines) == 1


def test_two_iterations_at_once_end_in_an_error_and_spoil_nothing(clean):
    with dali_loader(clean, batch_size=4) as loader:
        for trial in range(40):
            first = iter(loader)
            for _ in range(trial % 5):
                next(first)
            second = iter(loader)
            with suppress(GpufeedError):
                for _ in range(8):
                    next(second)
                    next(first)
            first.close()
            second.close()
            loader.load_state_dict({**loader.state_dict(), "epoch": trial, "next_batch": 0})
            order = loader.order().tolist()
            assert ids_of(loader) == order
        assert loader.reads


def test_an_interrupt_while_dali_throws_away_costs_nothing(clean, monkeypatch):
    with dali_loader(clean, batch_size=8) as loader:
        order = loader.order()
        loader.reading.follow(loader.planned(order, 0))
        assert len(loader.reading.coming()) == 8

        def interrupted():
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(loader.reading.pipeline, "release_outputs", interrupted)
            with pytest.raises(KeyboardInterrupt):
                loader.reading.follow(loader.planned(order, 9))
        for _ in range(2):
            order = loader.order().tolist()
            assert ids_of(loader) == order
        assert loader.reads


def test_dali_throws_away_what_nobody_has_asked_for(clean, pipelines):
    with dali_loader(clean, batch_size=8, shuffle=False) as loader:
        out, order, bad = torch.empty((8, 24, 32, 3), dtype=torch.uint8), loader.order(), clean.paths()[8]
        bad.write_bytes(b"no image")
        loader.reading.follow(loader.planned(order, 0))
        assert loader.reading.fill(order[:8], out)  # the batch behind it has begun, with the bad file
        loader.reading.follow(loader.planned(order[16:], 0))
        assert loader.reading.fill(order[16:24], out)
        assert np.array_equal(out, [rgb(path.read_bytes()) for path in clean.paths()[16:24]])
    assert len(pipelines) == 2


def test_a_file_that_cannot_be_read_stops_dali_at_its_batch(clean, pipelines):
    from gpufeed.loaders.dali_reader import DEPTH

    with dali_loader(clean, batch_size=8, shuffle=False) as loader:
        out, order = torch.empty((8, 24, 32, 3), dtype=torch.uint8), loader.order()
        bad = 8 * DEPTH  # those before it are begun at once
        clean.paths()[order[bad]].unlink()
        for _ in range(2):
            loader.reading.follow(loader.planned(order, 0))
            for start in range(0, bad, 8):
                assert loader.reading.fill(order[start : start + 8], out)
            with pytest.raises(RuntimeError, match=clean.paths()[order[bad]].name):
                loader.reading.fill(order[bad : bad + 8], out)
            loader.reading.follow(loader.planned(order[bad + 8 :], 0))
            assert loader.reading.fill(order[bad + 8 : bad + 16], out)
    assert len(pipelines) == 3


def test_what_stops_dali_keeps_neither_it_nor_its_threads(clean):
    with dali_loader(clean, batch_size=8, shuffle=False) as loader:
        clean.paths()[1].unlink()
        threads, reading, out = psutil.Process().num_threads(), loader.reading, torch.empty(8, 24, 32, 3)
        reading.follow(loader.planned(loader.order(), 0))
        with pytest.raises(RuntimeError):
            reading.fill(loader.order()[:8], out)
        kept, loader.reading = weakref.ref(reading), None
        gc.disable()
        try:
            del reading
            assert kept() is None
        finally:
            gc.enable()
        wait_until(lambda: psutil.Process().num_threads() < threads)


def test_a_run_that_dali_refuses_is_told_and_loses_nothing(clean, monkeypatch, caplog):
    expected = np.stack(by_pillow(clean))
    with dali_loader(clean, batch_size=8) as loader:
        pipeline, runs = loader.reading.pipeline, []
        plain = pipeline.schedule_run

        def run():
            runs.append(1)
            if len(runs) == 4:
                raise RuntimeError("encountered: no memory")
            plain()

        monkeypatch.setattr(pipeline, "schedule_run", run)
        check_epoch(loader, expected)
    assert "its own reader found no memory" in caplog.text


@pytest.mark.parametrize("where", ["names", "files", "ids", "reading", "decoding"])
@pytest.mark.parametrize("goes_on", [True, False])
def test_an_interrupt_between_two_inputs_gives_no_wrong_image(clean, monkeypatch, where, goes_on):
    expected = np.stack(by_pillow(clean))
    with dali_loader(clean, batch_size=8) as loader:
        reading, order = loader.reading, loader.order()
        out = torch.empty((8, 24, 32, 3), dtype=torch.uint8)
        reading.follow(loader.planned(order, 0))
        assert reading.fill(order[:8], out)
        pipeline = reading.files.pipeline if where in ("names", "reading") else reading.pipeline
        plain = {name: getattr(pipeline, name) for name in ("feed_input", "schedule_run")}

        def interrupted(*inputs):
            plain["feed_input" if inputs else "schedule_run"](*inputs)
            if not inputs or inputs[0] == where:
                raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            feeds = where in ("names", "files", "ids")
            patched.setattr(pipeline, "feed_input" if feeds else "schedule_run", interrupted)
            with pytest.raises(KeyboardInterrupt):
                reading.fill(order[8:16], out)
        if not goes_on:
            loader.load_state_dict({**loader.state_dict(), "epoch": 5})
        check_epoch(loader, expected)


def test_other_samples_than_the_promised_ones_are_an_error(clean):
    with dali_loader(clean, batch_size=8) as loader:
        out, order = torch.empty((8, 24, 32, 3), dtype=torch.uint8), loader.order()
        with pytest.raises(GpufeedError, match="as in the epoch's order"):
            loader.reading.fill(order[:8], out)  # nothing is planned
        loader.reading.follow(loader.planned(order, 0))
        assert loader.reading.fill(order[:8], out)
        with pytest.raises(GpufeedError, match="as in the epoch's order"):
            loader.reading.fill(order[:8], out)
        loader.reading.begun[0] = replace(loader.reading.begun[0], ids=order[16:24])  # DALI has order[8:16]
        with pytest.raises(GpufeedError, match="as in the epoch's order"):
            loader.reading.fill(order[16:24], out)
        assert ids_of(loader) == order.tolist()


def test_dalis_threads_end_with_the_loader(clean):
    process = psutil.Process()
    with dali_loader(clean, batch_size=8, threads=3) as loader:
        list(loader)
    before = process.num_threads()
    for batches in (1, 3, COUNT):
        loader = dali_loader(clean, batch_size=8, threads=3)
        loader.open()
        for _, _ in zip(range(batches), loader, strict=False):
            pass
        assert process.num_threads() > before
        loader.close()
        wait_until(lambda: process.num_threads() <= before)

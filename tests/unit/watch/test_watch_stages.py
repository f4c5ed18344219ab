"""The stages of a loader, told apart without a change to the training."""

import io
import json
import logging
import multiprocessing
import os
import random
import socket
import sqlite3
import subprocess
import sys
import threading

import numpy as np
import pandas as pd
import pytest
import torch
import watch_fixtures as fixtures
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset
from torchvision import transforms
from torchvision.io import decode_jpeg

from gpufeed.watch import stages


class Samples(Dataset):
    """Reading waits, decoding works; every sample draws from all generators."""

    def __init__(self):
        self.transform = self.slowly
        self.made: list[int] = []

    def __len__(self) -> int:
        return 64

    def slowly(self, sample: torch.Tensor) -> torch.Tensor:
        stages.time.sleep(0.002)
        return sample + random.random() + np.random.rand() + torch.rand(1)

    def decode(self, data: int) -> torch.Tensor:
        stages.time.sleep(0.001)
        return torch.full((4,), float(data))

    def __getitem__(self, index: int) -> torch.Tensor:
        self.made.append(index)
        stages.time.sleep(0.004)
        return self.transform(self.decode(index))


@pytest.mark.parametrize("wrapped", [lambda data: data, lambda data: Subset(data, range(64))])
def test_stages_are_told_apart_by_their_names_and_move_no_state(wrapped):
    data = Samples()

    def states():
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()

    before = states()
    told = stages.measure(DataLoader(wrapped(data), 8))
    assert states() == before
    assert data.made == []  # another process made them
    assert data.transform == data.slowly
    seconds = told["seconds"]
    # a sleep ends late, and a busy machine makes it later
    assert seconds["read"] > seconds["transform"] > seconds["decode"] > seconds["collate"]
    assert 0.03 < seconds["read"] < 0.3
    assert 0.008 < seconds["transform"] < 0.15
    assert told["named"] == ["decode", "transform"]


class Jpegs(Dataset):
    """Decodes by a function that this module has imported, or that it imports at its first sample."""

    def __init__(self, late: bool):
        file = io.BytesIO()
        Image.effect_noise((600, 600), 50).save(file, "JPEG")
        self.data, self.late = torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8), late

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> torch.Tensor:
        if not self.late:
            return decode_jpeg(self.data)
        import torchvision.io

        return torchvision.io.decode_jpeg(self.data)


@pytest.mark.parametrize("late", [False, True])
def test_a_decoder_is_known_however_it_was_imported(monkeypatch, late):
    if late:
        monkeypatch.delitem(sys.modules, "torchvision.io")
    seconds = stages.measure(DataLoader(Jpegs(late), 4))["seconds"]
    assert seconds["decode"] > 4 * seconds["sample"]


class Endless(IterableDataset):
    def __iter__(self):
        yield from range(100)


class Broken(Samples):
    def __getitem__(self, index):
        raise KeyError("no such sample")


@pytest.mark.parametrize(
    ("loader", "said"),
    [
        (lambda: DataLoader(Endless(), 4), "an IterableDataset yields samples in its own order"),
        (lambda: [torch.ones(2)] * 40, "the loader is a list"),
        (lambda: DataLoader(Samples(), None), "no fixed size"),
    ],
)
def test_where_stages_cannot_be_told_apart_a_sentence_says_why(loader, said):
    watched = fixtures.watch(loader(), deep=True)
    assert sum(1 for _ in watched) >= 20
    result = watched.result()
    assert result["stages"] is None
    assert any(said in sentence for sentence in result["not_measured"])


def test_a_list_is_a_dataset_too():
    assert stages.measure(DataLoader([1, 2, 3, 4], 2))["seconds"]["collate"] > 0


class Inline(Samples):
    """Works in __getitem__ alone; on an image and with a transform that no attribute names."""

    def __getitem__(self, index):
        image = Image.open(io.BytesIO(JPEG))
        pixels = RESIZE(image)
        end = stages.time.thread_time() + 0.004
        while stages.time.thread_time() < end:
            pass
        return pixels


def image_bytes() -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.zeros((1200, 1200, 3), np.uint8)).save(file, "jpeg")
    return file.getvalue()


JPEG = image_bytes()
RESIZE = transforms.Compose([transforms.Resize(100), transforms.ToTensor()])


def test_decoders_and_transforms_of_libraries_are_known_and_other_work_is_not_blamed_on_them():
    seconds = stages.measure(DataLoader(Inline(), 8))["seconds"]
    # 32 ms of work; a busy machine makes all of it longer
    assert 0.025 < seconds["sample"] < 0.3
    assert seconds["decode"] > 0.004  # a JPEG of 1.4 million pixels takes more than half a millisecond
    assert seconds["transform"] > 0.0005


class Records(Samples):
    """Reads on in one open file, whatever the index is."""

    def __init__(self, file):
        self.file = file

    def __getitem__(self, index):
        line = self.file.readline()
        if not line:
            self.file.seek(0)
            line = self.file.readline()
        return float(line)


class Counted(Samples):
    def __init__(self, count):
        self.count = count

    def __getitem__(self, index):
        self.count.value += 1
        return self.count.value


def test_an_open_file_or_a_shared_counter_of_a_loader_without_workers_is_left_alone(tmp_path):
    lines = tmp_path / "lines"
    lines.write_text("".join(f"{n:06d}\n" for n in range(3000)))

    def seen(dataset, deep):
        watched = fixtures.watch(DataLoader(dataset, 8), deep=deep)
        values = [batch.tolist() for _ in range(2) for batch in watched]
        return values, " ".join(watched.result()["not_measured"])

    for make in (lambda: Records(lines.open()), lambda: Counted(multiprocessing.Value("i", 0))):
        (alone, _), (deep, why) = seen(make(), False), seen(make(), True)
        assert deep == alone
        assert "which a second process must not use" in why


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (lambda: {"db": sqlite3.connect(":memory:")}, "Connection"),
        (lambda: [socket.socket()], "socket"),
        (lambda: Subset(Records(io.FileIO(os.devnull)), [0]), "FileIO"),
        (lambda: [threading.Lock(), logging.getLogger(), os, len, lambda: 0, torch.Generator()], None),
        (lambda: Subset(Samples(), range(64)), None),
        (lambda: RESIZE, None),
        (lambda: [Image.new("RGB", (2, 2)), np.zeros(2), pd.DataFrame({"path": ["a"]})], None),
    ],
)
def test_what_two_processes_must_not_share_is_found(part, expected):
    assert stages.unshared(part()) == expected


def scaled(_: int) -> None:
    torch.utils.data.get_worker_info().dataset.scale = 2


class Scaled(Samples):
    def __getitem__(self, index):
        return index * self.scale


def test_a_worker_init_fn_may_change_the_dataset():
    loader = DataLoader(Scaled(), 8, num_workers=1, worker_init_fn=scaled)
    assert stages.measure(loader)["batches"] == 8


@pytest.mark.slow
def test_after_an_error_of_the_training_nobody_waits_for_stages(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import gpufeed, torch\n"
        "from torch.utils.data import DataLoader\n"
        "for step, _ in enumerate(gpufeed.watch(DataLoader([1.0] * 80, 2), deep=True)):\n"
        "    if step == 20: raise KeyboardInterrupt\n"
    )
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True)
    assert "KeyboardInterrupt" in done.stderr
    result = json.loads((tmp_path / "watch.json").read_text())
    assert result["stages"] is None
    assert any("ended with an error" in sentence for sentence in result["not_measured"])


def test_an_error_of_the_dataset_is_the_reason():
    with pytest.raises(stages.Unmeasured, match="no such sample"):
        stages.measure(DataLoader(Broken(), 4))


def test_deep_changes_no_loss_and_is_measured_after_the_first_epoch():
    unwatched = fixtures.train(fixtures.loader_of(40, workers=1), 2)
    watched = fixtures.watch(fixtures.loader_of(40, workers=1), deep=True)
    kept = []

    def seen(step: int) -> None:
        kept.append(watched.record.stages is not None)

    assert fixtures.train(watched, 2, each=seen) == unwatched
    assert kept == [False] * 40 + [True] * 40

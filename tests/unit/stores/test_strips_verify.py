"""Where every byte of a strip set is held against its digest: at the gate and once a sweep, nowhere else."""

import numpy as np
import pytest
import torch
from gate_fixtures import judged, task_for
from image_fixtures import request, write_cache
from test_strips_set import dataset

from gpufeed.benchmarks.decoder_benchmark import StripsBulk
from gpufeed.core import file_writes
from gpufeed.core.errors import GpufeedError
from gpufeed.decoders.parallel import Files
from gpufeed.loaders.strips import StripsLoader
from gpufeed.stores import strips_store
from gpufeed.stores.strips_build import build
from gpufeed.stores.strips_reader import StripReader
from gpufeed.stores.strips_store import open_strips, verify_bytes

CPU = torch.device("cpu")


@pytest.fixture
def manifest(tmp_path):
    manifest = dataset(tmp_path, ["444"] * 12, ("train", "test"))
    build(manifest, path_of(manifest), images_per_strip=3)
    return manifest


def path_of(manifest):
    return manifest.root / "strips" / "strips.bin"


def damage(manifest) -> None:
    """Changes a byte that decoding does not look at: the density in a strip's JFIF header."""
    path = path_of(manifest)
    strip = open_strips(path, manifest).strips[0]
    with path.open("r+b") as file:
        file.seek(strip.offset)
        assert file.read(11) == b"\xff\xd8\xff\xe0\x00\x10JFIF\x00"
        file.seek(strip.offset + 14)
        (byte,) = file.read(1)
        file.seek(strip.offset + 14)
        file.write(bytes([byte ^ 1]))


def test_the_gate_finds_damage_that_no_pixel_shows(manifest):
    task = task_for(manifest, write_cache(manifest), "strips")
    assert judged(task).status == "passed"
    damage(manifest)
    one = judged(task)
    assert (one.status, one.epochs) == ("failed", 0)
    assert "sha256" in one.sentence
    assert "move the folder of the strips away" in one.sentence


def test_a_reader_verifies_unless_it_is_told_not_to(manifest):
    damage(manifest)
    with pytest.raises(GpufeedError, match="sha256"):
        StripReader(manifest, path_of(manifest), CPU, threads=1)
    reader = StripReader(manifest, path_of(manifest), CPU, threads=1, verify=False)
    assert len(reader.units("train")) == 2
    reader.close()


@pytest.fixture
def whole_reads(monkeypatch):
    """Grows with each whole reading of a strips.bin."""
    read = []
    plain = strips_store.verify_bytes
    monkeypatch.setattr(
        strips_store, "verify_bytes", lambda strips: read.append(strips.path) or plain(strips)
    )
    return read


def test_a_loader_reads_no_byte_that_it_does_not_decode(manifest, whole_reads):
    made = request(manifest, None, strips=path_of(manifest))
    for _ in range(2):
        with StripsLoader(made) as loader:
            assert sum(len(batch.ids) for batch in loader) == 6
    assert whole_reads == []


def test_a_sweep_verifies_once_for_all_its_points(manifest, whole_reads):
    files = Files([], 32, 32, 6, manifest.root / "manifest.parquet", path_of(manifest))
    for cores in (1, 2):
        with StripsBulk(cores, CPU) as bulk:
            for _ in range(2):
                bulk.open(files)
                assert sum(len(batch) for batch in bulk.run(6)) == 6
    assert whole_reads == [path_of(manifest)]


def test_a_sweep_measures_nothing_of_a_damaged_set(manifest):
    damage(manifest)
    files = Files([], 32, 32, 6, manifest.root / "manifest.parquet", path_of(manifest))
    with StripsBulk(1, CPU) as bulk:
        for _ in range(2):  # each point of it fails
            with pytest.raises(GpufeedError, match="sha256"):
                bulk.open(files)


@pytest.mark.parametrize("piece", [1, 7, 2**24])
def test_verifying_is_told_while_it_goes_on(manifest, monkeypatch, piece):
    monkeypatch.setattr(file_writes, "PIECE", piece)
    strips, told = open_strips(path_of(manifest), manifest), []
    verify_bytes(strips, lambda: told.append(1))
    assert len(told) == -(-strips.info.strip_bytes // piece)
    assert strips.info.strip_bytes == np.sum([strip.length for strip in strips.strips])

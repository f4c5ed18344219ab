"""Who decoded a loader's images: counted, written down, told; a decoder that takes none is skipped."""

import json
from dataclasses import asdict, replace

import measure_fixtures
import numpy as np
import pandas as pd
import pytest
import record_fixtures as made
import torch
from data_fixtures import published_results
from gate_fixtures import SETTINGS, judged, task_for
from hostile_fixtures import available, saved
from image_fixtures import request, write_cache, write_dataset, write_files
from measure_fixtures import toy_cell
from photo_fixtures import dali_loader, photos, shaded, taken
from test_strips_set import dataset as strips_dataset

from gpufeed.augment.dali import DaliAugment
from gpufeed.benchmarks.end_to_end import measure
from gpufeed.core import registry
from gpufeed.core.document import now
from gpufeed.core.equivalence_verdict import Verdict
from gpufeed.core.errors import Skip
from gpufeed.core.record import Record
from gpufeed.datasets.manifest import Manifest
from gpufeed.decoders.base import DecodeCounts, Outcome, sum_counts
from gpufeed.loaders.streaming import StreamingLoader
from gpufeed.loaders.strips import StripsLoader
from gpufeed.report import load_records, tables, verdicts
from gpufeed.report.sections import equivalence
from gpufeed.stores.strips_build import build
from gpufeed.stores.strips_reader import StripReader
from gpufeed.training import cell_training

CPU = torch.device("cpu")
TAKES_NONE = (
    "Decoder simplejpeg takes none of these files: all {} images that it was given were decoded by pillow."
)


class SimpleJpegLoader(StreamingLoader):
    """A loader that runs everywhere and, as those on a GPU, takes JPEG files alone."""

    decoder = "simplejpeg"


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    entry = registry.LoaderEntry("test_decode_counts:SimpleJpegLoader")
    monkeypatch.setitem(registry.LOADERS, "simplejpeg", entry)


def mixed(root):
    """20 JPEG files, three of which simplejpeg leaves to Pillow (PNG, CMYK and GIF), as training split."""
    files = taken(20)
    files[3], files[9] = saved("PNG", shaded(20)[3]), photos(20)[7]
    files[11] = saved("GIF", shaded(20)[11])
    manifest = write_files(root, files, "jpg", (24, 32))
    manifest.write()
    return manifest


def test_a_tally_counts_by_decoder():
    counts = DecodeCounts("ours")
    counts.check()  # nothing was decoded, so nothing can be said
    counts.add("ours", 0)
    counts.take([Outcome("pillow"), Outcome("pillow"), Outcome("other")])
    with pytest.raises(Skip, match="all 3 images that it was given were decoded by other and pillow"):
        counts.check()
    counts.take([Outcome("ours")])
    counts.check()
    assert counts.asdict() == {"decoder": "ours", "images": 4, "fell_back": {"other": 1, "pillow": 2}}
    assert sum_counts([counts, counts]).asdict()["fell_back"] == {"other": 2, "pillow": 4}
    assert counts.images == 4


@pytest.mark.parametrize("augmented", [False, True])
@pytest.mark.parametrize(("files", "others"), [(taken, {}), (photos, {"pillow": 1})])
def test_dali_counts_whoever_reads_its_files(tmp_path, files, others, augmented):
    manifest = write_files(tmp_path / "files", files(20), "jpg", (24, 32))
    transform = DaliAugment(manifest.info.mean, manifest.info.std, 0, {}) if augmented else None
    with dali_loader(manifest, batch_size=20, sample_transform=transform) as loader:
        assert loader.reads == (not others)
        list(loader)
    # of an augmented batch with a file that is none for DALI, the others are decoded by DALI itself
    assert loader.decode_counts.asdict() == {"decoder": "dali_cpu", "images": 20, "fell_back": others}


def test_the_record_says_how_dali_was_set_for_files_that_it_resizes(measured, monkeypatch, tmp_path):
    available("dali_cpu")
    monkeypatch.setitem(registry.DECODERS, "dali_cpu", registry.DecoderEntry("photo_fixtures:SizedDali"))
    manifest = write_files(tmp_path / "files", taken(24), "jpg", (24, 32))
    manifest.table["split"] = ["train"] * 20 + ["test"] * 4
    mean = sum(path.stat().st_size for path in manifest.paths()[:20]) / 20  # of the split alone
    resized = Manifest(manifest.root, replace(manifest.info, resize=(16, 16)), manifest.table)
    resized.write()
    record = measured(resized, loader="dali_cpu")
    assert record.status == "done", record.sentence
    told = {"decoder": "dali_cpu", "fell_back": {}, "hw_decoder_load": mean / 1e6, "jpeg_engines": None}
    assert {name: value for name, value in record.loading.items() if name != "images"} == told
    counts = [DecodeCounts("dali_cpu", settings={"hw_decoder_load": 0.25}) for _ in range(2)]
    assert sum_counts(counts).asdict()["hw_decoder_load"] == 0.25
    assert cell_training.together([one.asdict() for one in counts])["hw_decoder_load"] == 0.25


def test_strips_count_left_over_files_and_strips_that_the_backend_refuses(tmp_path):
    kinds = ["444"] * 8 + ["png", "progressive"]
    manifest = strips_dataset(tmp_path, kinds)
    build(manifest, tmp_path / "strips.bin", images_per_strip=4)
    with StripsLoader(request(manifest, None, shuffle=False, strips=tmp_path / "strips.bin")) as loader:
        list(loader)
    expected = {"pillow": 1, "simplejpeg": 1}
    assert loader.decode_counts.asdict() == {"decoder": "strips", "images": 10, "fell_back": expected}

    reader = StripReader(manifest, tmp_path / "strips.bin", CPU, threads=1)
    whole = reader.backend.decode_into
    reader.backend.decode_into = lambda *arguments: [*whole(*arguments), 1]
    reader.read(reader.units("train"))
    reader.close()
    expected = {"pillow": 1, "simplejpeg": 5}
    assert reader.decode_counts.asdict() == {"decoder": "strips", "images": 10, "fell_back": expected}


@pytest.fixture(scope="module")
def pngs(tmp_path_factory):
    manifest = write_dataset(tmp_path_factory.mktemp("pngs"))
    return manifest, write_cache(manifest)


def verdict_of(task) -> Verdict:
    """The whole verdict, as it is written."""
    about = {"dataset": task.dataset, "loader": task.loader, "settings": task.settings, "attempt": 1}
    times = dict.fromkeys(("started_at", "finished_at"), now())
    return Verdict(**about, **times, planned_on="here", **vars(judged(task)))


def test_the_gate_skips_a_decoder_that_takes_no_file(pngs, tmp_path):
    verdict = verdict_of(task_for(*pngs, "simplejpeg"))
    assert (verdict.status, verdict.sentence) == ("skipped", TAKES_NONE.format(23))
    assert (verdict.epochs, verdict.compared, verdict.beyond_tolerance) == (1, 23, 0)
    assert verdict.loading == {"decoder": "simplejpeg", "images": 23, "fell_back": {"pillow": 23}}
    verdict.write(tmp_path / "verdict.json")
    assert Verdict.read(tmp_path / "verdict.json").loading == verdict.loading


def test_the_gate_writes_down_what_others_decoded(tmp_path):
    manifest = mixed(tmp_path / "mixed")
    verdict = verdict_of(task_for(manifest, write_cache(manifest), "simplejpeg"))
    assert (verdict.status, verdict.sentence) == ("passed", None)
    assert verdict.loading == {"decoder": "simplejpeg", "images": 60, "fell_back": {"pillow": 9}}
    verdict.write(tmp_path / "verdict.json")
    assert verdict_of(task_for(manifest, write_cache(manifest), "dataloader_sync")).loading is None


def test_an_evaluation_split_of_other_files_is_no_reason_to_skip(tmp_path):
    files = [*taken(20), *[saved("PNG", shade) for shade in shaded(4)]]
    manifest = write_files(tmp_path / "files", files, "jpg", (24, 32))
    manifest.table["split"] = ["train"] * 20 + ["test"] * 4
    manifest.write()
    verdict = verdict_of(task_for(manifest, write_cache(manifest), "simplejpeg"))
    assert (verdict.status, verdict.epochs) == ("passed", 4)
    assert verdict.loading == {"decoder": "simplejpeg", "images": 64, "fell_back": {"pillow": 4}}


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """(manifest, axes of a cell) -> the record, measured without a gate and read back from its file."""
    measure_fixtures.register(monkeypatch)
    return lambda manifest, **axes: record_of(manifest, tmp_path, **axes)


def record_of(manifest, tmp_path, **axes) -> Record:
    cell = toy_cell(dataset="files", epochs=1, steps=None, model="simple_cnn", **axes)
    record, _ = measure(cell, 0, manifest.root / "manifest.parquet", None, "here")
    path = tmp_path / record.experiment / record.cell_id / "0.json"
    record.write(path)
    return Record.read(path)


def test_a_record_says_who_decoded(measured, tmp_path):
    manifest = mixed(tmp_path / "mixed")
    manifest.table.loc[15:, "split"] = "test"
    manifest.write()
    record = measured(manifest, loader="simplejpeg")
    assert record.status == "done", record.sentence
    assert record.loading == {"decoder": "simplejpeg", "images": 15, "fell_back": {"pillow": 3}}
    assert measured(manifest, loader="dataloader_sync").loading is None


def test_a_cell_whose_decoder_takes_no_file_is_skipped_with_a_sentence(measured, pngs):
    record = measured(pngs[0], loader="simplejpeg")
    assert (record.status, record.sentence) == ("skipped", TAKES_NONE.format(23))
    assert (record.throughput, record.loading) == (None, None)


def test_records_and_verdicts_of_older_versions_are_still_read(tmp_path):
    record = made.record(made.cell("overlap"))
    older = {name: value for name, value in asdict(record).items() if name != "loading"}
    path = tmp_path / record.experiment / record.cell_id / "0.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(older))
    assert Record.read(path) == record
    published = sorted(published_results().glob("*/records/*/*/*.json"))
    before = [path for path in published if "loading" not in json.loads(path.read_text())][::40]
    assert before
    assert [Record.read(path).loading for path in before] == [None] * len(before)
    table = load_records.read_records(before)
    assert set(table["status"]) <= {"done", "skipped", "failed"}
    assert table["fell_back_share"].isna().all()


def cells_of(tmp_path, loading: dict) -> pd.DataFrame:
    """The table of cells of one pipeline for each entry of `loading`: name -> what fell back, of 4,000."""
    for loader, others in loading.items():
        for repeat in range(2):
            record = made.record(made.cell(loader, "gpu_decoding"), repeat, 900 + repeat)
            told = {"decoder": loader, "images": 4000, "fell_back": others}
            record.loading = None if others is None else told
            made.write(tmp_path, record)
    return tables.cells(load_records.read_records(sorted(tmp_path.glob("records/*/*/*.json"))))


def test_the_report_says_who_decoded_beside_the_pipeline(tmp_path):
    loading = {
        "dali_gpu": {},
        "nvimgcodec": {"pillow": 1000},
        "strips": {"pillow": 1, "simplejpeg": 1},
        "resident": None,
    }
    cells = cells_of(tmp_path, loading)
    (verdict,) = verdicts.answers(cells)
    assert (
        "Not decoded by the pipeline's own decoder were 25 % of the images of nvimgcodec by pillow and "
        "less than 0.1 % of the images of strips by pillow and simplejpeg." in verdict.sentence
    )
    shares = cells.set_index("loader")["fell_back_share"]
    assert shares["dali_gpu"] == 0
    assert shares["nvimgcodec"] == 0.25
    assert np.isnan(shares["resident"])
    (verdict,) = verdicts.answers(cells_of(tmp_path / "own", {"dali_gpu": {}, "resident": None}))
    assert "own decoder" not in verdict.sentence
    assert "reads" not in verdict.sentence


def test_the_report_says_what_was_made_of_the_images_beside_the_pipeline(tmp_path):
    counts = DecodeCounts("ffcv", images_from="a file of smaller images")
    counts.add("ffcv", 4000)
    record = made.record(made.cell("ffcv", "gpu_decoding"), 0, 900)
    record.loading = counts.asdict()
    made.write(tmp_path, record)
    made.write(tmp_path, made.record(made.cell("overlap", "gpu_decoding"), 0, 800))
    cells = tables.cells(load_records.read_records(sorted(tmp_path.glob("records/*/*/*.json"))))
    (verdict,) = verdicts.answers(cells)
    assert verdict.sentence.count("reads a file of smaller images.") == 1
    assert sum_counts([counts, counts]).asdict() == {**counts.asdict(), "images": 8000}


def test_the_gates_table_says_who_decoded(tmp_path):
    manifest = mixed(tmp_path / "mixed")
    cache = write_cache(manifest)
    paths = [tmp_path / f"gate/files/simplejpeg/b{size}.json" for size in (4, 20)]
    for path, size in zip(paths, (4, 20), strict=True):
        verdict_of(task_for(manifest, cache, "simplejpeg", batch_size=size)).write(path)
    (row,) = equivalence.judged(paths)
    assert row.decoder.endswith("; of 120 images 18 by pillow")
    assert row.decoder.startswith("simplejpeg")
    assert SETTINGS["batch_size"] == 5

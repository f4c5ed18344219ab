"""The sweep of a decoder: which points, what is timed, and what a node that says no leaves."""

import json
import os
import subprocess
import sys

import pytest
import torch
from data_fixtures import REPOSITORY, needs_eviction
from hostile_fixtures import available
from hypothesis import given
from hypothesis import strategies as st
from photo_fixtures import of_many_sizes

from gpufeed.benchmarks import decoder_benchmark
from gpufeed.benchmarks.decoder_benchmark import images_of_a_pass, measure_decoder, stored
from gpufeed.core import record
from gpufeed.core.config_sources import with_defaults
from gpufeed.core.errors import GpufeedError
from gpufeed.core.plan_decoding import (
    Images,
    Point,
    batch_of,
    check_sweep,
    core_counts,
    points,
    settings,
)
from gpufeed.core.registry import DECODERS, DecoderEntry
from gpufeed.datasets import mosaic, synthetic
from gpufeed.datasets.manifest import Manifest
from gpufeed.datasets.prepare import prepare
from gpufeed.decoders.encoded_file import mean_size, read_file
from gpufeed.report.sections import decoding_tables
from gpufeed.stores.strips_build import build
from gpufeed.system import page_cache
from gpufeed.system.environment import cores_allowed

DEFAULTS = with_defaults("sweep", {})
SMALL = {**DEFAULTS, "cores": [1], "batch_size": 8, "seconds": 0.005, "rounds": 2, "images": 24}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Manifests of two mosaics, 16 and 48 pixels a side, on the disk of the repository, not on tmpfs."""
    root = tmp_path_factory.mktemp("sweep")
    tiles = synthetic.reorganise([], root / "tiles", "tiles", {"count": 20, "size": 32, "classes": 2})
    manifests = {}
    for size, count in ((16, 40), (48, 10)):
        name = f"mosaic_{size}"
        options = {"of": "tiles", "size": size, "count": count}
        mosaic.reorganise([tiles.root / "manifest.parquet"], root / name, name, options)
        manifests[name] = root / name / "manifest.parquet"
    return manifests


@pytest.fixture(scope="module")
def strips(data):
    """The strip set of each dataset."""
    found = {}
    for name, path in data.items():
        found[name] = path.parent / "strips/strips.bin"
        build(Manifest.read(path), found[name])
    return found


def swept(decoder, data, strips=None, **changes):
    chosen = {**SMALL, "datasets": list(data), "decoders": [decoder], **changes}
    return measure_decoder("tiny", decoder, chosen, data, planned_on="here", device="cpu", strips=strips)


@pytest.mark.parametrize("decoder", ["simplejpeg", "dali_cpu"])
def test_every_point_is_measured_and_the_sweep_can_be_read_again(data, tmp_path, decoder):
    sweep = swept(decoder, data, batch_sizes={"mosaic_16": [4]})
    if sweep["status"] == "skipped":
        pytest.skip(sweep["sentence"])
    assert (sweep["status"], sweep["sentence"], sweep["device"]) == ("done", None, "cpu")
    assert decoder in sweep["version"]
    found = {(p["dataset"], p["cores"], p["batch_size"]): p for p in sweep["points"]}
    most = cores_allowed()
    expected = {(name, cores, 8) for name in data for cores in (1, most)} | {("mosaic_16", most, 4)}
    assert set(found) == expected
    for (_, _, batch), point in found.items():
        assert point["status"] == "done", point["sentence"]
        assert len(point["images_per_s"]) == len(point["images"]) == 2
        assert all(count % batch == 0 for count in point["images"])
        assert point["fell_back"] == 0
        assert point["buffers_mib"] is None
        assert point["quality"] == 90
    record.DECODING.write(sweep, tmp_path / "a.json")
    assert record.DECODING.read(tmp_path / "a.json") == json.loads(json.dumps(sweep))


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """The manifest of nine JPEGs of several sizes to train on, and the pixels of these."""
    root = tmp_path_factory.mktemp("photographs")
    for split, label in (("train", "a"), ("train", "b"), ("val", "a")):
        (root / "own" / split / label).mkdir(parents=True)
    for number, data in enumerate(of_many_sizes()):
        (root / "own/train" / "ab"[number % 2] / f"{number}.jpg").write_bytes(data)
    (root / "own/val/a/0.jpg").write_bytes(data)
    manifest = prepare("image_folder", [root / "own"], root / "out", "photographs", {})
    rows = manifest.table[manifest.table["split"] == "train"]
    return root / "out/manifest.parquet", int((rows["height"] * rows["width"]).sum())


@pytest.mark.parametrize("decoder", ["pillow", "dali_cpu"])
def test_images_of_several_sizes_are_swept(photographs, tmp_path, decoder):
    available(decoder)
    path, pixels = photographs
    sweep = swept(decoder, {"photographs": path}, cores=[1], batch_size=4)
    assert sweep["status"] == "done", sweep["sentence"]
    for point in sweep["points"]:
        assert point["status"] == "done", point["sentence"]
        assert (point["height"], point["width"], point["batch_size"]) == (None, None, 4)
        assert point["pixels"] == pytest.approx(pixels / 9)
        assert all(count % 4 == 0 for count in point["images"])
    record.DECODING.write(sweep, tmp_path / "sweep.json")
    table, _ = decoding_tables.read_sweeps([tmp_path / "sweep.json"])
    row = table.iloc[-1]
    assert row[["height", "width"]].isna().all()
    assert row["side"] == round((pixels / 9) ** 0.5)
    assert row["megapixels_per_s"] == pytest.approx(row["images_per_s"] * pixels / 9 / 1e6)


def test_strips_of_several_sizes_are_a_failed_point_with_a_sentence(photographs, tmp_path):
    path, _ = photographs
    build(Manifest.read(path), tmp_path / "strips.bin")
    sweep = swept("strips", {"photographs": path}, strips={"photographs": tmp_path / "strips.bin"})
    assert sweep["status"] == "failed"
    assert "image sizes in photographs" in sweep["sentence"]


def test_a_point_says_how_its_decoder_was_set_for_the_size(data, tmp_path, monkeypatch):
    available("dali_cpu")
    monkeypatch.setitem(DECODERS, "dali_cpu", DecoderEntry("photo_fixtures:SizedDali"))
    sweep = swept("dali_cpu", data, cores=[1], datasets=list(data))
    told = {point["dataset"]: point["hw_decoder_load"] for point in sweep["points"]}
    assert told == {name: mean_size(stored(path, None, 24).paths) / 1e6 for name, path in data.items()}
    assert 0 < told["mosaic_16"] < told["mosaic_48"]
    record.DECODING.write(sweep, tmp_path / "a.json")  # as the schema has it


def test_points_tell_how_many_physical_cores_they_had(data, tmp_path, monkeypatch):
    """As on a machine whose hardware threads are all of one core."""
    allowed = os.sched_getaffinity(0)
    for cpu in allowed:
        (tmp_path / f"cpu{cpu}/topology").mkdir(parents=True)
        (tmp_path / f"cpu{cpu}/topology/thread_siblings_list").write_text(",".join(map(str, allowed)))
    monkeypatch.setattr("gpufeed.system.cores.CPUS", tmp_path)
    points = swept("pillow", data)["points"]
    assert {point["cores"] for point in points} == {1, cores_allowed()}
    assert {point["physical_cores"] for point in points} == {1}
    monkeypatch.setattr("gpufeed.system.cores.CPUS", tmp_path / "none")
    assert swept("pillow", data, cores=[1])["points"][0]["physical_cores"] is None


@pytest.mark.parametrize("decoder", ["strips", "strips_cpu"])
def test_strips_decode_the_same_images(data, strips, decoder):
    sweep = swept(decoder, data, strips=strips, batch_sizes={"mosaic_16": [4]})
    assert sweep["status"] == "done", sweep["sentence"]
    assert {point["status"] for point in sweep["points"]} == {"done"}
    assert {(point["dataset"], point["batch_size"]) for point in sweep["points"]} == {
        ("mosaic_16", 40),  # the whole set
        ("mosaic_48", 10),
    }
    assert all(count % 40 == 0 for point in sweep["points"][:1] for count in point["images"])  # whole strips


def test_a_gpu_decoder_says_why_it_is_not_measured_without_a_gpu(data):
    sweep = swept("torchvision_cuda", data)
    assert sweep["status"] == "skipped"
    assert "CUDA GPU" in sweep["sentence"]
    assert sweep["points"] == []


def test_a_point_that_fails_does_not_stop_the_others(data, tmp_path):
    options = {"count": 6, "size": 16, "classes": 2, "evaluation_share": 0.0}
    broken = synthetic.reorganise([], tmp_path / "broken", "broken", options)
    broken.paths()[2].write_bytes(b"\xff\xd8 no image")
    assert Manifest.read(broken.root / "manifest.parquet")
    sweep = swept("pillow", {"broken": broken.root / "manifest.parquet", **data}, batch_size=3)
    by_name = {}
    for point in sweep["points"]:
        by_name.setdefault(point["dataset"], set()).add(point["status"])
    assert by_name == {"broken": {"failed"}, "mosaic_16": {"done"}, "mosaic_48": {"done"}}
    sentence = next(point["sentence"] for point in sweep["points"] if point["status"] == "failed")
    assert str(broken.paths()[2]) in sentence
    alone = swept("pillow", {"broken": broken.root / "manifest.parquet"})
    assert alone["status"] == "failed"
    assert "no point of pillow" in alone["sentence"]


@pytest.mark.parametrize("decoder", ["simplejpeg", "dali_cpu", "strips"])
def test_cold_passes_read_evicted_files_once(data, strips, decoder):
    needs_eviction(data["mosaic_16"])
    sweep = swept(decoder, data, strips=strips, cold=["mosaic_16"])
    if sweep["status"] == "skipped":
        pytest.skip(sweep["sentence"])
    (cold,) = [point for point in sweep["points"] if point["cache"] == "cold"]
    assert cold["status"] == "done", cold["sentence"]
    assert all(share >= page_cache.COLD for share in cold["evicted_share"])
    assert all(count <= 40 for count in cold["images"])


def test_files_that_stay_in_memory_are_a_refusal(data, monkeypatch):
    monkeypatch.setattr(page_cache, "evict", lambda paths: None)
    sweep = swept("simplejpeg", data, cold=["mosaic_16"])
    (cold,) = [point for point in sweep["points"] if point["cache"] == "cold"]
    assert cold["status"] == "refused"
    assert "100 %" in cold["sentence"]
    assert sweep["status"] == "done"


@pytest.fixture
def on_disk():
    """A file of 1 MiB on the disk of the repository."""
    path = REPOSITORY / f".evict-{os.getpid()}"
    path.write_bytes(os.urandom(2**20))
    yield str(path)
    path.unlink()


def test_eviction_is_seen_and_reading_brings_back(on_disk):
    needs_eviction(on_disk)
    page_cache.read_in([on_disk])
    assert page_cache.evicted_share([on_disk]) == 0
    page_cache.evict([on_disk])
    assert page_cache.evicted_share([on_disk]) == 1
    assert len(read_file(on_disk)) == 2**20
    assert page_cache.evicted_share([on_disk]) == 0
    assert page_cache.evicted_share([]) is None


class Clockwork:
    """A bulk whose pass of n images takes n / rate seconds by a clock of its own."""

    device = torch.device("cpu")

    def __init__(self, rate, monkeypatch):
        self.rate, self.now, self.ran = rate, 0.0, []
        monkeypatch.setattr(decoder_benchmark.time, "perf_counter", lambda: self.now)

    def run(self, images):
        self.now += images / self.rate
        self.ran.append(images)
        yield torch.empty(images)


@pytest.mark.parametrize(("rate", "expected"), [(10, 8), (1000, 104), (1_000_000, 100_000)])
def test_a_pass_has_as_many_batches_as_take_the_time(monkeypatch, rate, expected):
    bulk = Clockwork(rate, monkeypatch)
    assert images_of_a_pass(bulk, 8, 0.1, None, lambda: None) == pytest.approx(expected, abs=8)
    assert bulk.ran[0] == 8
    assert sum(bulk.ran) <= 2.5 * max(expected, 8)


def test_a_pass_is_never_longer_than_it_may_be(monkeypatch):
    chilled = []
    bulk = Clockwork(1_000_000, monkeypatch)
    assert images_of_a_pass(bulk, 8, 0.1, 40, lambda: chilled.append(1)) == 40
    assert max(bulk.ran) == 40
    assert len(chilled) == len(bulk.ran)


def test_points_of_a_node():
    sizes = {"small": Images(64 * 64, 5000, 9000), "large": Images(1024 * 1024, 20, 20)}
    chosen = {**DEFAULTS, "batch_sizes": {"small": [32, 256]}, "cold": ["large"], "batch_pixels": 2**24}
    assert points(chosen, sizes, [1, 4]) == [
        Point("small", 1, 256),
        Point("large", 1, 16),
        Point("small", 4, 256),
        Point("large", 4, 16),
        Point("small", 4, 32),
        Point("large", 4, 16, "cold"),
    ]
    assert points(chosen, sizes, [4], whole=True) == [
        Point("small", 4, 9000),
        Point("large", 4, 20),
        Point("large", 4, 20, "cold"),
    ]


@given(st.integers(1, 10**6), st.integers(1, 5000), st.integers(1, 5000), st.integers(1, 10**6))
def test_a_batch_fits_its_bounds(wanted, height, width, count):
    batch = batch_of(wanted, Images(height * width, count, count), 2**20)
    assert 1 <= batch <= min(wanted, count)
    assert batch == 1 or batch * height * width <= 2**20


def test_no_point_has_more_cores_than_the_job(data, monkeypatch):
    monkeypatch.setattr(decoder_benchmark, "cores_allowed", lambda: 64)
    chosen = {**SMALL, "cores": [1, 4], "datasets": ["mosaic_16"]}
    sweep = measure_decoder("tiny", "simplejpeg", chosen, data, planned_on="here", device="cpu", threads=1)
    assert {point["cores"] for point in sweep["points"]} == {1}
    assert sweep["left_out"] == ["Left out: 4 cores, since this run has 1."]


def test_core_counts():
    assert core_counts([1, 4, 8, 16], 16, True, True) == ([1, 4, 8, 16], [])
    counts, left_out = core_counts([16, 1, 8], 6, True, True)
    assert counts == [1, 6]
    assert left_out == ["Left out: 8, 16 cores, since this run has 6."]
    assert core_counts([1, 4], 6, False, True) == ([6], [])
    counts, left_out = core_counts([1, 4], 4, True, False)
    assert counts == [4]
    assert len(left_out) == 1


def config(**sweep):
    return {
        "sources": {"a": {}, "b": {}},
        "use_instead": {"a": "b"},
        "experiments": {"x": {"sweep": {"datasets": ["a"], "decoders": ["pillow"], **sweep}}, "y": {}},
    }


def test_settings_have_defaults_and_stand_ins():
    found = settings(config(batch_sizes={"a": [4]}, cold=["a"], rounds=1), "x")
    assert found == {
        **DEFAULTS,
        "datasets": ["b"],
        "decoders": ["pillow"],
        "batch_sizes": {"b": [4]},
        "cold": ["b"],
        "rounds": 1,
    }
    assert settings(config(datasets=["a", "b"]), "x")["datasets"] == ["b"]
    assert settings(config(), "y") is None


@pytest.mark.parametrize(
    ("sweep", "found"),
    [
        ({"datasets": ["c"]}, "dataset 'c'"),
        ({"decoders": ["pilow"]}, "decoder 'pilow'"),
        ({"cold": ["b"]}, "dataset 'b'"),
        ({"batch_sizes": {"b": [4]}}, "dataset 'b'"),
    ],
)
def test_a_wrong_name_is_refused(sweep, found):
    with pytest.raises(GpufeedError) as error:
        check_sweep(config(**sweep), "x")
    assert found in error.value.found


@pytest.mark.parametrize("text", [None, "", "{", "[]", '{"schema_version": 1}'])
def test_a_missing_or_damaged_sweep_is_an_error(tmp_path, text):
    if text is not None:
        (tmp_path / "a.json").write_text(text)
    with pytest.raises(GpufeedError):
        record.DECODING.read(tmp_path / "a.json")


def test_a_decoding_process_does_not_import_torch_with_its_script():
    """It imports the script of the job again, as `__mp_main__`; 16 processes took a minute for it once."""
    script = str(REPOSITORY / "workflow/scripts/measure_decoder.py")
    code = f"import runpy, sys; runpy.run_path({script!r}, run_name='__mp_main__')"
    code += "; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"

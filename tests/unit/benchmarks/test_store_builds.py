"""What is written down of timed builds, and what stands in the config of them."""

import os
import time

import numpy as np
import pytest

from gpufeed.benchmarks import store_builds
from gpufeed.benchmarks.store_builds import DOCUMENT, measure_build, peak_mib, repeats, rounds_of
from gpufeed.core.errors import GpufeedError, Skip
from gpufeed.core.plan_builds import planned_builds
from gpufeed.stores import cache_fill


@pytest.fixture
def measured(manifest, tmp_path):
    def measured(decoder="pillow", cores="all", counts=(5, 40), threads=2):
        times = measure_build(
            manifest.root / "manifest.parquet",
            "demo",
            decoder,
            cores,
            list(counts),
            tmp_path / "out",
            "login1",
            attempt=2,
            threads=threads,
        )
        DOCUMENT.write(times, tmp_path / "times.json")
        read = DOCUMENT.read(tmp_path / "times.json")
        assert read == {**times, "image": list(times["image"]) if times["image"] else None}
        return times

    return measured


def left_in(folder):
    """What lies there beside the locks, which stay."""
    return [path for path in folder.rglob("*") if not path.name.endswith(".lock")]


def test_a_decoder_on_all_cores(measured, tmp_path):
    times = measured()
    assert (times["status"], times["sentence"], times["attempt"], times["planned_on"]) == (
        "done",
        None,
        2,
        "login1",
    )
    assert times["decoder_version"].startswith("pillow ")
    assert (times["cores"], times["real_files"], times["image"]) == (2, 29, (8, 8))
    assert [(build["count"], build["files"]) for build in times["builds"]] == [(5, 5), (40, 29)]
    for build in times["builds"]:
        assert len(build["rounds_s"]) == 3
        assert build["images_per_s"] == pytest.approx(build["count"] / np.median(build["rounds_s"]))
        assert build["gpu_buffers_mib"] is None
        assert build["strips_s"] is None
        assert build["bytes_written"] == 128 + build["count"] * 8 * 8 * 3
    assert times["environment"]["gpu"] is None
    assert left_in(tmp_path / "out") == []


def test_what_a_killed_run_left_is_cleared_by_the_next(measured, tmp_path, monkeypatch):
    class Killed(BaseException):
        pass

    def killed(manifest, decoder, path, *rest, **options):
        path.write_bytes(b"much")
        raise Killed

    with monkeypatch.context() as patch:  # SIGKILL clears nothing
        patch.setattr(store_builds.shutil, "rmtree", lambda *arguments, **options: None)
        patch.setattr(store_builds, "build", killed)
        with pytest.raises(Killed):
            measured()
    assert [path.name for path in left_in(tmp_path / "out")][-1] == "pillow.npy"
    assert measured()["status"] == "done"
    assert left_in(tmp_path / "out") == []


@pytest.mark.parametrize("decoder", ["opencv", "simplejpeg", "dali_cpu", "strips"])
def test_nobody_waits_for_the_disk(measured, monkeypatch, decoder):
    waits = []
    monkeypatch.setattr(np.memmap, "flush", lambda array: waits.append("map"))
    monkeypatch.setattr(os, "fsync", lambda descriptor: waits.append("file"))
    assert measured(decoder, "one")["status"] == "done"
    assert waits == []


def test_the_decoder_of_notebooks_on_one_core(measured, monkeypatch):
    started = []
    monkeypatch.setattr(
        cache_fill, "run", lambda function, tasks, n: started.append(n) or map(function, *tasks)
    )
    times = measured("opencv", "one", threads=8)
    assert times["cores"] == 1
    assert set(started) == {1}


def test_strips_are_made_before_and_timed_apart(measured, tmp_path):
    times = measured("strips", counts=[40])
    assert (times["status"], times["sentence"]) == ("done", None)
    assert times["decoder_version"].startswith("strips by simplejpeg")
    (build,) = times["builds"]
    assert build["strips_s"] > 0
    assert len(build["rounds_s"]) == 3
    assert left_in(tmp_path / "out") == []


def test_every_round_makes_its_decoder_anew(measured, monkeypatch):
    made = []
    load = cache_fill.load
    monkeypatch.setattr(cache_fill, "load", lambda kind, name: made.append(name) or load(kind, name))
    cache_fill.decoder.cache_clear()
    measured("dali_cpu", counts=[4])
    assert made == ["dali_cpu"] * 4  # the first tells the version


def test_what_the_node_lacks_is_a_sentence(measured, monkeypatch):
    def lacking(threads):
        raise Skip("This decoder is not for this node.")

    monkeypatch.setattr(cache_fill, "load", lambda kind, name: lacking)
    cache_fill.decoder.cache_clear()
    times = measured("dali_gpu")
    assert (times["status"], times["sentence"]) == ("skipped", "This decoder is not for this node.")
    assert times["builds"] == []


def test_an_error_is_a_sentence_and_leaves_nothing(measured, manifest, tmp_path):
    manifest.paths()[3].write_bytes(b"no image")
    times = measured()
    assert times["status"] == "failed"
    assert "1 of 40 images cannot be decoded" in times["sentence"] or "2 of 40" in times["sentence"]
    assert left_in(tmp_path / "out") == []


def test_repeats_take_every_file_as_often_as_any_other(manifest):
    many = repeats(manifest, 70)
    counts = many.table["path"].value_counts()
    assert len(many) == 70
    assert len(counts) == 29
    assert set(counts) == {2, 3}
    assert many.table["path"].tolist() == repeats(manifest, 70).table["path"].tolist()
    few = repeats(manifest, 10)
    assert few.table["path"].is_unique
    assert few.table["path"].tolist() == many.table["path"].tolist()[:10]
    assert many.paths()[0].exists()


def test_large_sets_are_built_twice():
    assert [rounds_of(count) for count in (1000, 20_000, 50_000, 200_000)] == [3, 3, 2, 2]


def test_the_most_memory_is_seen_and_nothing_is_asked_without_a_device(monkeypatch):
    values, seen = iter([150.0, 900.0]), []

    def used_mib():
        seen.append(next(values, 300.0))
        return seen[-1]

    monkeypatch.setattr(store_builds, "used_mib", used_mib)
    with peak_mib(100.0) as peak:
        while len(seen) < 3:
            time.sleep(0.001)
    assert peak.mib == 800.0
    monkeypatch.setattr(store_builds, "used_mib", None)
    with peak_mib(None) as peak:
        pass
    assert peak.mib is None


def test_what_breaks_the_schema_is_not_written(measured, tmp_path):
    times = measured(counts=[3])
    before = (tmp_path / "times.json").read_bytes()
    wrong = {"status": "perhaps", "builds": [{"count": 1}], "cores": 0}
    for key, value in wrong.items():
        with pytest.raises(GpufeedError, match=key):
            DOCUMENT.write({**times, key: value}, tmp_path / "times.json")
    assert (tmp_path / "times.json").read_bytes() == before


def config(**builds) -> dict:
    block = {"dataset": "a", "decoders": ["dali_gpu", "pillow"], "counts": [20, 10], **builds}
    return {
        "sources": {"a": {}, "b": {}},
        "use_instead": {"a": "b"},
        "experiments": {"x": {"builds": block}, "y": {}},
    }


def test_builds_of_the_config():
    builds = planned_builds(config(one_core=["opencv"]), "x")
    assert builds.dataset == "b"
    assert builds.counts == [10, 20]
    assert builds.runs == [("dali_gpu", "all"), ("pillow", "all"), ("opencv", "one")]
    assert planned_builds(config(), "y") is None


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"dataset": "c"}, "dataset 'c' in experiments.x.builds"),
        ({"decoders": ["pilow"]}, "decoder 'pilow'"),
        ({"one_core": ["cv2"]}, "decoder 'cv2'"),
    ],
)
def test_builds_of_nothing_are_errors(change, found):
    with pytest.raises(GpufeedError) as error:
        planned_builds(config(**change), "x")
    assert found in error.value.found

"""Build times and quarantined files in the report."""

from dataclasses import replace

import pytest
import record_fixtures as made
from report_fixtures import page_of

from gpufeed.benchmarks.store_builds import DOCUMENT
from gpufeed.report import load_records
from gpufeed.report.sections import builds, provenance

SENTENCE = "Decoder nvimgcodec needs <a GPU> & this node has none."
SHOWN = ("images", "decoder", "cores", "seconds", "n", "buffers")


def one(count: int, files: int, rounds: list[float], mib: float | None = None) -> dict:
    speed = count / sorted(rounds)[len(rounds) // 2]
    size = {"count": count, "files": files, "bytes_written": 12288 * count}
    return {**size, "rounds_s": rounds, "images_per_s": speed, "gpu_buffers_mib": mib, "strips_s": None}


def times(decoder: str, cores: str, *built: dict, gpu: str | None = None) -> dict:
    return {
        "schema_version": 1,
        "experiment": "pipelining",
        "dataset": "tiny",
        "decoder": decoder,
        "cores_asked": cores,
        "attempt": 1,
        "planned_on": "node-a",
        "started_at": "2026-01-02T03:04:05+00:00",
        "finished_at": "2026-01-02T03:05:05+00:00",
        "environment": made.environment(gpu),
        "status": "done",
        "sentence": None,
        "decoder_version": f"{decoder} 9.1",
        "cores": 16 if cores == "all" else 1,
        "image": (64, 64),
        "real_files": 20_000,
        "builds": list(built),
    }


@pytest.fixture
def results(tmp_path):
    """Build times of two decoders, one that was skipped, one damaged file; and records that tell of files."""
    folder = tmp_path / "builds/pipelining"
    small, large = [2.0, 1.0, 1.5], [10.0, 12.0]
    opencv = times("opencv", "one", one(1000, 1000, small), one(50_000, 20_000, large))
    DOCUMENT.write(opencv, folder / "opencv-one.json")
    sizes = one(1000, 1000, [0.5], 700.0), one(50_000, 20_000, [5.0], 1500.0)
    DOCUMENT.write(times("dali_gpu", "all", *sizes, gpu=made.H200), folder / "dali_gpu-all.json")
    nothing = dict.fromkeys(("decoder_version", "cores", "image", "real_files"))
    skipped = times("nvimgcodec", "all") | nothing | {"status": "skipped", "sentence": SENTENCE}
    DOCUMENT.write(skipped, folder / "nvimgcodec-all.json")
    (folder / "pillow-all.json").write_text("{")
    (tmp_path / "builds/other").mkdir()
    example = {"path": "a/<b>.jpg", "reason": "cut & gone"}
    facts = {"samples": 990, "quarantined": 3, "filesystem": "nfs4", "examples": [example], "cache": None}
    cells = [made.cell(loader) for loader in ("dataloader_sync", "resident", "overlap")]
    old, cached, new = (made.record(cell) for cell in cells)
    made.write(
        tmp_path,
        old,  # without the field, as older versions wrote it
        replace(cached, dataset={**facts, "quarantined": 5, "cache": "dali_gpu 9.1"}),
        replace(new, dataset=facts, finished_at="2026-01-02T03:09:05+00:00"),
    )
    plan = made.plan_info({"pipelining": [cell.id for cell in cells]}, repeats=1)
    plan["experiments"]["pipelining"]["builds"] = [path.stem for path in folder.glob("*.json")]
    return tmp_path, plan


def test_rows_by_size_then_speed(results):
    folder, _ = results
    table = builds.section(sorted(folder.glob("builds/*/*.json")), "pipelining")
    shown = [tuple(row[name] for name in SHOWN) for row in table["rows"]]
    repeated = "50,000 (repeats of 20,000 real files)"
    assert shown == [
        ("1,000", "dali_gpu 9.1", "16 cores", "0.50 (0.50 to 0.50)", 1, "700 MiB"),
        ("1,000", "opencv 9.1", "1 core", "1.50 (1.00 to 2.00)", 3, "-"),
        (repeated, "dali_gpu 9.1", "16 cores", "5.00 (5.00 to 5.00)", 1, "1,500 MiB"),
        (repeated, "opencv 9.1", "1 core", "11.00 (10.00 to 12.00)", 2, "-"),
    ]
    assert {row["machine"] for row in table["rows"]} == {made.CPU, f"{made.H200}, {made.CPU}"}
    troubles = {one["who"]: one["status"] for one in table["troubles"]}
    assert troubles == {"pillow-all": "unusable", "nvimgcodec": "skipped"}
    assert builds.section(sorted(folder.glob("builds/*/*.json")), "hybrid_gpu") is None


@pytest.mark.parametrize(("mib", "word"), [(1500, "less than"), (3000, "within"), (5000, "more than")])
def test_memory_against_the_guide(mib, word):
    sizes = one(1000, 1000, [0.5], 10.0), one(50_000, 20_000, [5.0], mib)
    found = times("dali_gpu", "all", *sizes, gpu=made.H200)
    sentence = builds.memory([builds.row(found, built) for built in sizes])
    of = "by dali_gpu 9.1, of a set of 50,000 (repeats of 20,000 real files)"
    assert f"{mib:,} MiB ({of}): {word} the 2" in sentence
    assert builds.memory([]) == ""


def test_the_newest_record_tells_of_a_dataset(results):
    folder, _ = results
    (row,) = provenance.dataset_rows(load_records.read_records(sorted(folder.glob("records/*/*/*.json"))))
    told = {"dataset": "synthetic_224", "samples": 990, "quarantined": 3, "unnamed": 2}
    assert row.items() >= (told | {"caches": ["dali_gpu 9.1"]}).items()


def test_the_page_shows_both(results):
    folder, plan = results
    page_of(folder, plan)
    text = made.text_of(folder / "report.html")
    assert "Building the cache" in text
    assert "1,500 MiB" in text
    assert f"nvimgcodec: {SENTENCE}" in text
    assert "990 images; 3 files quarantined" in text
    assert "a/<b>.jpg : cut & gone" in text
    assert "and 2 more, all in the log of prepare_dataset" in text
    assert "cache built by dali_gpu 9.1; read from nfs4" in text


def test_a_page_without_either(tmp_path):
    cell = made.cell()
    made.write(tmp_path, made.record(cell))
    page = page_of(tmp_path, made.plan_info({"pipelining": [cell.id]}))
    assert "Building the cache" not in page
    assert "<h3>Datasets</h3>" not in page

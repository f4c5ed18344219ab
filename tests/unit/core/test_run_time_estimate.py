"""The minutes that a run is expected to take: what earlier documents tell, else what its kind takes."""

import json
from datetime import datetime, timedelta
from pathlib import Path

import pytest
import record_fixtures as made
from config_fixtures import merged
from hypothesis import given
from hypothesis import strategies as st

from gpufeed.core import run_time_estimate
from gpufeed.core.dataset_size import amount_of, counted
from gpufeed.core.errors import GpufeedError
from gpufeed.core.run_time_estimate import (
    KINDS,
    STARTING_S,
    beyond,
    check_room,
    disks,
    lasted,
    measured_seconds,
    table,
    usual_seconds,
)

CELL = made.cell("resident")
TOOK = 60  # seconds, of every record of the fixtures


@pytest.fixture(autouse=True)
def nothing_published(tmp_path, monkeypatch):
    monkeypatch.setattr(run_time_estimate, "PUBLISHED", tmp_path / "durations.json")
    run_time_estimate.published.cache_clear()


def paths(results, kind, names):
    return [f"{results}/{kind}/e/{name}.json" for name in names]


def seconds_of(results):
    """Document -> what an Estimate says of it, with a usual dataset."""

    def found(path):
        place = Path(path).relative_to(results)
        lasts = measured_seconds(place, results)
        return (usual_seconds(place), True) if lasts is None else (lasts, False)

    return found


def numbers(text):
    """Row -> minutes."""
    rows = [line.split() for line in text.splitlines()[1:] if "disk: " not in line]
    return {row[0]: float(row[1]) for row in rows}


def test_a_repeat_takes_what_another_of_its_cell_took(tmp_path):
    made.write(tmp_path, made.record(CELL, 1, images_per_s=100))
    path = Path(f"records/pipelining/{CELL.id}/0.json")
    assert measured_seconds(path, tmp_path) == pytest.approx(TOOK + STARTING_S)
    assert measured_seconds(path, tmp_path / "empty") is None
    assert usual_seconds(path) == KINDS["records"].seconds


def test_where_nothing_was_measured_published_seconds_count_those_of_an_h200_first(tmp_path):
    for name, seconds in (("h200", 60), ("a100", 600)):
        record = made.record(CELL)
        record.throughput["seconds"] = 1.0
        record.finished_at = (
            datetime.fromisoformat(record.started_at) + timedelta(seconds=seconds)
        ).isoformat()
        made.write(tmp_path / name, record)
    found = run_time_estimate.durations([tmp_path / "h200", tmp_path / "a100"])
    assert found == {f"records/pipelining/{CELL.id}": (60 + STARTING_S, 1.0)}
    run_time_estimate.PUBLISHED.write_text(json.dumps(found))
    path = f"records/pipelining/{CELL.id}/7.json"
    said = table({"e": [f"out/{path}"]}, "out", {}, seconds_of("out"))
    assert numbers(said)["e"] == pytest.approx(65.5 / 60, abs=0.06)
    assert measured_seconds(Path(path), "out", least_s=3) == pytest.approx(60 + STARTING_S + 2)
    assert measured_seconds(Path(path), tmp_path / "a100") == pytest.approx(600 + STARTING_S)


def test_a_repeat_that_was_too_short_would_take_what_it_lacked_longer(tmp_path):
    record = made.record(CELL)
    record.throughput["seconds"] = 1.0
    (path,) = made.write(tmp_path, record)
    assert lasted(path, least_s=3) == pytest.approx(TOOK + STARTING_S + 2)
    assert lasted(path, least_s=0.5) == pytest.approx(TOOK + STARTING_S)


@pytest.mark.parametrize("text", ["", "[]", "null", "{}", '{"status": "done", "started_at": 3}'])
def test_a_damaged_document_tells_nothing(tmp_path, text):
    (tmp_path / "0.json").write_text(text)
    assert lasted(tmp_path / "0.json") is None


def test_what_failed_tells_nothing(tmp_path):
    failed = made.unfinished(CELL, "failed", "It broke.")
    (path,) = made.write(tmp_path, failed)
    assert lasted(path) is None


def test_the_sum_and_what_is_left_of_it(tmp_path):
    results = str(tmp_path)
    (path,) = made.write(tmp_path, made.record(CELL))
    records = [str(path), str(path.with_name("1.json"))]
    shared = paths(results, "gate", ["a", "b"])
    parts = {"one": [*records, *shared], "two": [*shared, *paths(results, "ceilings", "xyz")]}
    said = table(
        parts, results, {str(tmp_path / "manifest.parquet"): run_time_estimate.DATASET_S}, seconds_of(results)
    )
    repeat, verdict = TOOK + STARTING_S, KINDS["gate"].seconds
    one, two = 2 * repeat + 2 * verdict, 3 * KINDS["ceilings"].seconds
    whole = one + two + run_time_estimate.DATASET_S
    found = numbers(said)
    assert found["one"] == pytest.approx(one / 60, abs=0.06)
    assert found["two"] == pytest.approx(two / 60, abs=0.06)  # verdicts count once
    assert found["together"] == pytest.approx(whole / 60, abs=0.06)
    assert f"{(whole - repeat) / 60:.1f} of them left" in said
    assert "disk" not in said
    assert "2 repeats, 2 equivalence checks" in said
    assert "3 cells' limits" in said


def test_a_finished_run_has_nothing_left(tmp_path):
    (path,) = made.write(tmp_path, made.record(CELL))
    said = table({"one": [str(path)]}, str(tmp_path), {}, seconds_of(tmp_path))
    assert said.splitlines()[-1].split(maxsplit=2) == ["together", "1.1", "all measured before"]


def test_what_no_document_tells_is_said(tmp_path):
    (path,) = made.write(tmp_path, made.record(CELL))
    untold = f"{tmp_path}/records/e/another/0.json"
    parts = {"told": [str(path), untold], "untold": [untold.replace("0.json", "1.json")], "none": []}
    told, untold, none, *_ = table(parts, str(tmp_path), {}, seconds_of(tmp_path)).splitlines()[1:]
    assert "guess" in untold
    assert "guess" not in told
    assert none.split() == ["none", "-", "nothing", "to", "measure"]


@given(st.dictionaries(st.sampled_from(list(KINDS)), st.integers(1, 40), min_size=1))
def test_every_kind_counts(counts):
    results = "nowhere"
    jobs = [path for kind, n in counts.items() for path in paths(results, kind, range(n))]
    said = table({"e": jobs}, results, {}, seconds_of(results))
    assert numbers(said)["together"] == pytest.approx(
        sum(KINDS[kind].seconds * n for kind, n in counts.items()) / 60, abs=0.06
    )
    for kind, n in counts.items():
        assert f"{n} {KINDS[kind].words[n != 1]}" in said


def test_large_data_take_longer():
    assert beyond(10**7, 8) == 0
    assert beyond(10**12, 16) > 1800
    assert beyond(10**12, 8) == pytest.approx(2 * beyond(10**12, 16))


def test_the_amount_of_a_folder_is_counted_by_names_and_sizes(tmp_path):
    for name, size in (("a/1.jpg", 100), ("a/deep/2.JPEG", 300), ("b/3.png", 500), ("b/notes.txt", 9000)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(bytes(size))
    (tmp_path / "a/.hidden.jpg").write_bytes(bytes(7))
    (tmp_path / "b/around").symlink_to(tmp_path)
    for number in range(4):
        (tmp_path / f"a/gone{number}.jpg").symlink_to("nowhere")
    found = counted(tmp_path)
    assert (found.images, found.files, found.whole) == (3, 900, True)
    assert not counted(tmp_path, seconds=0).whole
    assert counted(tmp_path / "gone").images == 0
    config = merged("config.yaml", "own.yaml")
    config["sources"]["own"] |= {"folder": str(tmp_path), "resize": [20, 10]}
    assert amount_of(config, "own").kept == 3 * 20 * 10
    assert amount_of(config, "own").files == 900


@pytest.mark.parametrize("layout", ["image_folder", "a_new_one"])
def test_of_an_archive_of_images_only_its_bytes_are_known(layout):
    config = merged("config.yaml")
    config["sources"]["own"] = {"layout": layout, "files": [{"name": "a.zip", "size": 3000}]}
    found = amount_of(config, "own")
    assert (found.images, found.files, found.kept) == (0, 3000, 5000)


@pytest.mark.parametrize(
    ("dataset", "images", "side"),
    [
        ("cifar10", 60_000, 32),
        ("tiny_imagenet", 110_000, 64),
        ("tiny_imagenet_40", 22_400, 64),
        ("synthetic", 2500, 64),
        ("mosaic_512", 256, 512),
        ("cifar10_gray_28", 60_000, 28),
    ],
)
def test_known_datasets_have_their_counts_and_sizes(dataset, images, side):
    found = amount_of(merged("config.yaml"), dataset)
    assert found.images == pytest.approx(images, rel=0.01)
    assert found.kept == found.read == found.images * side**2


def test_a_short_disk_is_told_with_what_is_needed_and_what_is_free(tmp_path):
    there, new, huge = (str(tmp_path / name) for name in ("there", "deep/new", "huge"))
    (tmp_path / "there").write_bytes(b"")
    places = {str(tmp_path / "data/deep"): {there: 10**18, new: 1000}, str(tmp_path / "results"): {huge: 24}}
    (disk,) = disks(places)  # one file system
    assert disk.needed == 1024
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/new.partial").write_bytes(bytes(600))  # what a download has brought
    assert disks(places)[0].needed == 424
    check_room([disk])
    places[str(tmp_path / "results")][huge] = 2**60
    (disk,) = disks(places)
    with pytest.raises(GpufeedError, match="GiB free") as error:
        check_room([disk])
    assert f"{2**30:.1f} GiB or more" in error.value.found
    assert f"{disk.free / 2**30:.1f} GiB free" in error.value.found
    assert str(tmp_path / "results") in error.value.found

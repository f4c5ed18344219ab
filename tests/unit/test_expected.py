"""The minutes that a run is expected to take: what earlier documents tell, else what its kind takes."""

from pathlib import Path

import pytest
import record_fixtures as made
from hypothesis import given
from hypothesis import strategies as st

from gpufeed import expected
from gpufeed.expected import KINDS, STARTING_S, lasted, seconds_of, table

CELL = made.cell("resident")
TOOK = 60  # seconds, of every record of the fixtures


@pytest.fixture(autouse=True)
def nothing_published(tmp_path, monkeypatch):
    monkeypatch.setattr(expected, "PUBLISHED", tmp_path / "reference")


def paths(results, kind, names):
    return [f"{results}/{kind}/e/{name}.json" for name in names]


def numbers(text):
    """Row -> minutes."""
    rows = [line.split() for line in text.splitlines()[1:]]
    return {row[0]: float(row[1]) for row in rows}


def test_a_repeat_takes_what_another_of_its_cell_took(tmp_path):
    made.write(tmp_path, made.record(CELL, 1, images_per_s=100))
    path = Path(f"records/pipelining/{CELL.id}/0.json")
    assert seconds_of(path, [tmp_path]) == pytest.approx(TOOK + STARTING_S)
    assert seconds_of(path, [tmp_path / "empty", tmp_path]) == pytest.approx(TOOK + STARTING_S)
    assert seconds_of(path, [tmp_path / "empty"]) == KINDS["records"].seconds


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
    said = table(parts, results, [str(tmp_path / "manifest.parquet")])
    repeat, verdict = TOOK + STARTING_S, KINDS["gate"].seconds
    one, two = 2 * repeat + 2 * verdict, 3 * KINDS["ceilings"].seconds
    whole = one + two + expected.DATASET_S
    found = numbers(said)
    assert found["one"] == pytest.approx(one / 60, abs=0.06)
    assert found["two"] == pytest.approx(two / 60, abs=0.06)  # verdicts count once
    assert found["together"] == pytest.approx(whole / 60, abs=0.06)
    assert f"{(whole - repeat) / 60:.1f} of them left" in said
    assert "2 repeats, 2 verdicts" in said
    assert "3 cells' ceilings" in said


@given(st.dictionaries(st.sampled_from(list(KINDS)), st.integers(1, 40), min_size=1))
def test_every_kind_counts(counts):
    results = "nowhere"
    jobs = [path for kind, n in counts.items() for path in paths(results, kind, range(n))]
    said = table({"e": jobs}, results, [])
    assert numbers(said)["together"] == pytest.approx(
        sum(KINDS[kind].seconds * n for kind, n in counts.items()) / 60, abs=0.06
    )
    for kind, n in counts.items():
        assert f"{n} {KINDS[kind].one if n == 1 else KINDS[kind].several}" in said

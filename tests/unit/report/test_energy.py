"""Energy and CPU time in the table of cells, and tables of records that tell neither."""

from dataclasses import replace

import pytest
import record_fixtures as made
from report_fixtures import cells_of, read

from gpufeed.core.record import Record
from gpufeed.report.sections import leaderboard

OF = made.cell("overlap", workers=2, prefetch_factor=2)
ENERGY, CPU = "J / 1000 images", "CPU s / 1000 images"


def told(record: Record, cpu_s: float, joules: float | None) -> Record:
    """The record with telemetry that knows CPU time, and energy where there is a GPU."""
    found = made.telemetry(energy_j=joules, energy_from="counter", j_per_1000_images=joules)
    found["host"] |= {"cpu_s": cpu_s, "cpu_s_per_1000_images": cpu_s}
    return replace(record, telemetry=found if joules else found | {"gpu": None})


def columns(paths) -> dict[str, str]:
    """Heading -> text in the first row of the leaderboard."""
    board = leaderboard.board(*read(paths))
    titles = [column.title for column in board.columns]
    return dict(zip(titles, (field.text for field in board.rows[0].fields), strict=True))


def test_a_cell_has_the_medians_of_its_repeats(tmp_path):
    repeats = [told(made.record(OF, i), cpu_s, 100.0 + i) for i, cpu_s in enumerate((3.0, 1.0, 2.0))]
    row = cells_of(paths := made.write(tmp_path, *repeats)).iloc[0]
    assert (row["cpu_s_per_1000_images"], row["j_per_1000_images"]) == (2.0, 101.0)
    assert (columns(paths)[CPU], columns(paths)[ENERGY]) == ("2", "101")


def test_without_a_gpu_there_is_the_cpus_time_alone(tmp_path):
    table = cells_of(paths := made.write(tmp_path, told(made.record(OF, gpu=None), 4.0, None)))
    assert table["cpu_s_per_1000_images"].tolist() == [4.0]
    assert table["j_per_1000_images"].isna().all()
    assert CPU in columns(paths)
    assert ENERGY not in columns(paths)


def test_records_of_older_versions_and_skipped_ones_tell_neither(tmp_path):
    skipped = made.unfinished(OF, "skipped", "No GPU.", repeat=1)
    table = cells_of(paths := made.write(tmp_path, made.record(OF), skipped))
    assert table[["cpu_s_per_1000_images", "j_per_1000_images"]].isna().all(axis=None)
    assert not {CPU, ENERGY} & {*columns(paths)}


def test_repeats_that_tell_nothing_do_not_count(tmp_path):
    paths = made.write(tmp_path, made.record(OF), told(made.record(OF, 1), 5.0, 70.0))
    assert cells_of(paths).iloc[0]["j_per_1000_images"] == pytest.approx(70.0)

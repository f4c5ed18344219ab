"""Energy and CPU time in the table of cells, and tables of records that tell neither."""

from dataclasses import replace

import pandas as pd
import pytest
import record_fixtures as made

from gpufeed.core.record import Record
from gpufeed.report import load_records, tables
from gpufeed.report.sections import leaderboard
from gpufeed.system.telemetry.gpu_readings import SAMPLED

OF = made.cell("overlap", workers=2, prefetch_factor=2)
ENERGY, CPU = "J / 1000 images", "CPU s / 1000 images"


def told(record: Record, cpu_s: float, joules: float | None) -> Record:
    """The record with telemetry of 1000 images in 10 s."""
    host = {
        "rss_mib": None,
        "processes": None,
        "cpu_s": cpu_s,
        "cpu_s_per_1000_images": cpu_s,
        "storage_mib": None,
        "read_mib": None,
        "page_cache_share": None,
    }
    gpu = dict.fromkeys((*SAMPLED, "clock_events"))
    gpu |= {"energy_j": joules, "energy_from": "counter", "j_per_1000_images": joules}
    growth = dict.fromkeys(("host", "gpu_allocated", "gpu_process"))
    whole = {"period_s": 0.25, "samples": 0, "seconds": 10.0, "images": 1000, "growth": growth}
    return replace(record, telemetry=whole | {"host": host, "gpu": gpu if joules is not None else None})


def table_of(paths) -> pd.DataFrame:
    return tables.cells(load_records.read_records(paths))


def columns(paths) -> dict[str, str]:
    """Heading -> text in the first row of the leaderboard."""
    records = load_records.read_records(paths)
    board = leaderboard.board(tables.cells(records), records)
    titles = [column.title for column in board.columns]
    return dict(zip(titles, (field.text for field in board.rows[0].fields), strict=True))


def test_a_cell_has_the_medians_of_its_repeats(tmp_path):
    repeats = [told(made.record(OF, i), cpu_s, 100.0 + i) for i, cpu_s in enumerate((3.0, 1.0, 2.0))]
    row = table_of(paths := made.write(tmp_path, *repeats)).iloc[0]
    assert (row["cpu_s_per_1000_images"], row["j_per_1000_images"]) == (2.0, 101.0)
    assert (columns(paths)[CPU], columns(paths)[ENERGY]) == ("2", "101")


def test_without_a_gpu_there_is_the_cpus_time_alone(tmp_path):
    table = table_of(paths := made.write(tmp_path, told(made.record(OF, gpu=None), 4.0, None)))
    assert table["cpu_s_per_1000_images"].tolist() == [4.0]
    assert table["j_per_1000_images"].isna().all()
    assert CPU in columns(paths)
    assert ENERGY not in columns(paths)


def test_records_of_older_versions_and_skipped_ones_tell_neither(tmp_path):
    skipped = made.unfinished(OF, "skipped", "No GPU.", repeat=1)
    table = table_of(paths := made.write(tmp_path, made.record(OF), skipped))
    assert table[["cpu_s_per_1000_images", "j_per_1000_images"]].isna().all(axis=None)
    assert not {CPU, ENERGY} & {*columns(paths)}


def test_repeats_that_tell_nothing_do_not_count(tmp_path):
    paths = made.write(tmp_path, made.record(OF), told(made.record(OF, 1), 5.0, 70.0))
    assert table_of(paths).iloc[0]["j_per_1000_images"] == pytest.approx(70.0)

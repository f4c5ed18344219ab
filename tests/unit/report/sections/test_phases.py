"""Where the seconds of a repeat go, and the time line of a batch."""

from dataclasses import replace

import pandas as pd
import pytest
import record_fixtures as made
from report_fixtures import page_of, read, steps_of

from gpufeed.report import style
from gpufeed.report.sections import phases, timeline

SPLIT = {"start_s": 1.0, "import_s": 2.0, "load_s": 0.5, "compile_s": 4.0, "run_s": 10.0, "wall_s": 20.0}


def told(record, **seconds):
    return replace(record, phases=record.phases | SPLIT | seconds)


def test_parts_are_means_that_add_up_to_the_whole(tmp_path):
    of = made.cell("overlap")
    repeats = [told(made.record(of, 0)), told(made.record(of, 1), run_s=14.0, wall_s=24.0, evaluation_s=1.5)]
    cells, table = read(made.write(tmp_path, *repeats))
    found = phases.section(cells, table)
    (row,) = found["rows"]
    assert (row["label"], row["n"], row["whole"]) == ("overlap", 2, "22.0")
    assert row["seconds"] == ["1.00", "2.00", "0.500", "4.00", "12.0", "0.750", "1.75"]
    assert sum(row["widths"]) == pytest.approx(100)
    assert found["sentence"].startswith("A repeat takes 22.0 to 22.0 s from the start")
    share = "55 % of all that time is measurement; of the rest, most goes into compile (18 %)."
    assert share in found["sentence"]


def test_rows_of_several_tasks_say_what_tells_these_apart(tmp_path):
    both = [made.cell("overlap", model=name) for name in ("resnet18", "resnet50")]
    paths = made.write(tmp_path, *(told(made.record(of)) for of in both))
    labels = {row["label"] for row in phases.section(*read(paths))["rows"]}
    assert labels == {"overlap, resnet18", "overlap, resnet50"}


def test_unpacking_has_a_column_where_a_dataset_was_packed(tmp_path):
    paths = made.write(tmp_path, told(made.record(made.cell("overlap"))))
    assert "Unpack" not in [part.title for part in phases.section(*read(paths))["parts"]]
    paths += made.write(tmp_path, told(made.record(made.cell("dataloader_sync")), unpack_s=1.5))
    found = phases.section(*read(paths))
    place = [part.title for part in found["parts"]].index("Unpack")
    assert [part.title for part in found["parts"]][place - 1 : place + 2] == ["Import", "Unpack", "Load"]
    seconds = {row["label"]: row["seconds"] for row in found["rows"]}
    assert (seconds["overlap"][place], seconds["dataloader_sync"][place]) == ("0", "1.50")
    assert seconds["overlap"][-1] == "2.50"
    assert seconds["dataloader_sync"][-1] == "1.00"  # what is left of the whole


def test_records_of_older_versions_have_no_such_part(tmp_path):
    assert phases.section(*read([])) is None
    paths = made.write_speeds(tmp_path, made.cell("overlap"), [100, 110])
    paths += made.write(tmp_path, made.unfinished(made.cell("resident"), "skipped", "No GPU."))
    assert phases.section(*read(paths)) is None
    by_hand = {name: value for name, value in SPLIT.items() if name not in ("start_s", "import_s")}
    record = made.record(made.cell("replay"))
    paths += made.write(tmp_path, replace(record, phases=record.phases | by_hand))
    assert phases.section(*read(paths)) is None
    paths += made.write(tmp_path, told(made.record(made.cell("host_cache"))))
    assert [row["label"] for row in phases.section(*read(paths))["rows"]] == ["host_cache"]


def test_the_page_shows_it(tmp_path):
    of = made.cell("overlap")
    made.write(tmp_path, told(made.record(of)))
    html = page_of(tmp_path, made.plan_info({"pipelining": [of.id]}))
    assert "Where the seconds of a repeat go" in html
    assert 'class="part part4" style="width:50.00%"' in html


# --- the time line


def step(load=0.0, transfer=0.0, train=5.0, total=5.0, before=5.0):
    return timeline.Step("one", "task", load, transfer, train, total, before)


def test_what_the_device_waited_for_lies_right_before_the_training():
    one = step(load=10, transfer=2, total=17)
    assert one.waited
    assert one.starts == {"load_ms": 0, "transfer_ms": 10, "train_ms": 12}
    early = step(load=14, transfer=2, total=17)  # the host began while the batch before was trained on
    assert early.starts["load_ms"] == -4
    assert early.starts["train_ms"] == 12


def test_what_nobody_waited_for_has_no_place():
    ahead = step(load=0.1, transfer=3, total=5.01)
    assert not ahead.waited
    assert ahead.starts == {"load_ms": 0, "transfer_ms": 0, "train_ms": pytest.approx(0.01)}
    assert not step(transfer=3, total=7).waited  # the copy is longer than the wait: part of it ran beside


def measured(tmp_path, speeds):
    """Cells by loader, with step tables of two epochs of 20 batches."""
    paths = []
    for loader, speed in speeds.items():
        of = made.cell(loader, augment="cpu")
        record = made.record(of, 0, speed, wait_share=0.5)
        paths += made.write(tmp_path, record)
        made.steps(record, 40, start_ms=500.0).to_parquet(paths[-1].with_name("0.steps.parquet"))
    return *read(paths), steps_of(paths)


@pytest.mark.usefixtures("drawn")
def test_the_fastest_and_the_slowest_loader_are_drawn_on_one_scale(tmp_path):
    speeds = {"overlap": 400, "dataloader_sync": 100, "fastai": 200, "replay": 999}
    cells, table, steps = measured(tmp_path, speeds)
    best, worst = timeline.best_and_worst(cells, table, steps)
    assert (best.label, worst.label) == ("overlap", "dataloader_sync")
    assert worst.total_ms == pytest.approx(128 / 100 * 1e3, rel=0.01)  # no first batch, with its 500 ms
    assert worst.before_ms == pytest.approx(worst.train_ms, rel=0.01)
    figure = timeline.draw([best, worst])
    assert len({axis.get_xlim() for axis in figure.axes}) == 1
    svg = style.to_svg(figure)
    for words in ("overlap: 320 ms from batch to batch", "dataloader_sync: 1,280 ms", "compute"):
        assert words in svg


def test_without_two_loaders_or_their_steps_there_is_no_time_line(tmp_path):
    cells, table, steps = measured(tmp_path, {"overlap": 400, "replay": 999})
    assert timeline.best_and_worst(cells, table, steps) == []
    cells, table, steps = measured(tmp_path, {"overlap": 400, "fastai": 100})
    assert timeline.best_and_worst(cells, table, steps.iloc[:0]) == []
    assert timeline.best_and_worst(*read([]), pd.DataFrame(columns=steps.columns)) == []

import re
import xml.etree.ElementTree as ET

import pandas as pd
import pytest
import record_fixtures as made

from gpufeed.report import figures, load_records, publish, style, tables
from gpufeed.report.sections import learning, timeline

pytestmark = pytest.mark.usefixtures("drawn")


@pytest.fixture(scope="module")
def pipelining(tmp_path_factory):
    """(records, cells) of a whole pipelining experiment."""
    results = tmp_path_factory.mktemp("results")
    made.write_pipelining(results)
    table = load_records.read_records(sorted(results.glob("records/*/*/*.json")))
    return table, tables.cells(table)


def text_of(figure) -> str:
    svg = style.to_svg(figure)
    return " ".join(ET.fromstring(svg[svg.index("<svg") :]).itertext())


def test_throughput_shows_every_number_as_text(pipelining):
    _, cells = pipelining
    said = text_of(figures.throughput(cells))
    assert "19,000 (93 % of limit)" in said
    assert "n = 3 repeats" in said
    assert "NVIDIA H200" in said
    assert "slower ones are in the table" in said  # 18 pipelines do not fit


def test_bars_have_the_median_and_whiskers_the_range(tmp_path):
    paths = made.write_speeds(tmp_path, made.cell("overlap"), [100, 120, 180])
    axis = figures.throughput(tables.cells(load_records.read_records(paths))).axes[0]
    assert [bar.get_width() for bar in axis.patches] == [120]
    (whisker,) = axis.collections[0].get_segments()
    assert sorted(point[0] for point in whisker) == [100, 180]


def test_a_pipeline_that_is_compared_with_nothing_is_drawn_only_alone(tmp_path):
    paths = made.write_speeds(tmp_path, made.cell("overlap", batch_size=64), [100])
    (axis,) = figures.throughput(tables.cells(load_records.read_records(paths))).axes
    assert [label.get_text() for label in axis.get_yticklabels()] == ["overlap: 100"]
    paths += made.write_speeds(tmp_path, made.cell("resident", batch_size=128), [120])
    (axis,) = figures.throughput(tables.cells(load_records.read_records(paths))).axes
    assert [label.get_text() for label in axis.get_yticklabels()] == [
        "batch 128, resident: 120",
        "batch 64, overlap: 100",
    ]
    assert "synthetic_224" in axis.get_title(loc="left")  # what they share
    assert "batch" not in axis.get_title(loc="left")
    paths += made.write_speeds(tmp_path, made.cell("resident", batch_size=64), [130])
    (axis,) = figures.throughput(tables.cells(load_records.read_records(paths))).axes
    assert "batch 64" in axis.get_title(loc="left")


def test_a_bar_says_that_its_limit_was_not_measured_where_others_have_one(tmp_path):
    paths = made.write_speeds(tmp_path, made.cell("resident"), [120])
    cells = tables.cells(load_records.read_records(paths))
    assert "limit" not in text_of(figures.throughput(cells))
    for loader, graphs in (("overlap", True), ("replay", True)):
        paths += made.write_speeds(tmp_path, made.cell(loader, cuda_graphs=graphs), [100])
    said = text_of(figures.throughput(tables.cells(load_records.read_records(paths))))
    assert "120 (limit not measured)" in said
    assert "limit: compute only (replay), one repeat" in said


def cells_of(tmp_path, batches, loaders):
    """Cells of so many tasks, which differ in their batch; the last task has one pipeline more."""
    paths = []
    for batch in range(1, batches + 1):
        for loader in [*loaders, *["overlap"] * (batch == batches and len(loaders) > 1)]:
            one = made.record(made.cell(loader, batch_size=batch), 0, 100.0 + batch)
            one.write(path := tmp_path / "records" / one.experiment / one.cell_id / "0.json")
            paths.append(path)
    return tables.cells(load_records.read_records(paths))


def test_of_many_tasks_those_with_most_pipelines_are_drawn_and_the_others_counted(tmp_path):
    figure = figures.throughput(cells_of(tmp_path, style.MOST_PANELS + 3, ["resident", "dataloader_sync"]))
    titles = [axis.get_title(loc="left") for axis in figure.axes]
    assert len(titles) == style.MOST_PANELS
    assert "batch 1," in titles[0]
    assert f"batch {style.MOST_PANELS + 3}," in titles[-1]
    assert "3 more panels are not drawn: the table has the numbers" in text_of(figure)


def test_of_many_tasks_with_one_pipeline_the_fastest_are_drawn(tmp_path):
    (axis,) = figures.breakdown(cells_of(tmp_path, figures.MOST_ROWS + 5, ["resident"])).axes
    names = [label.get_text() for label in axis.get_yticklabels()]
    assert len(names) == figures.MOST_ROWS
    assert names[0].startswith(f"batch {figures.MOST_ROWS + 5}: ")
    assert "5 slower ones are in the table" in axis.get_title(loc="left")


def test_of_too_many_pipelines_those_without_jpeg_engines_stay_in_the_figure(tmp_path):
    paths = []
    for workers in range(1, figures.MOST_BARS + 1):
        paths += made.write_speeds(tmp_path, made.cell("overlap", workers=workers, prefetch_factor=2), [100])
    for share, graphs in ((None, True), (0.0, True), (None, False)):
        of = made.cell("dali_gpu", hw_decoder_load=share, cuda_graphs=graphs)
        paths += made.write_speeds(tmp_path, of, [200 + graphs])
    (axis,) = figures.throughput(tables.cells(load_records.read_records(paths))).axes
    names = [label.get_text() for label in axis.get_yticklabels()]
    assert [re.split(", CUDA|:", name)[0] for name in names[:2]] == [
        "dali_gpu",
        "dali_gpu, without JPEG engines",
    ]
    assert "1 slower one is in the table" in axis.get_title(loc="left")


def test_the_time_line_has_a_batch_that_takes_what_a_batch_takes_in_the_mean(tmp_path):
    paths = []
    for loader in ("overlap", "resident"):
        (path,) = made.write_speeds(tmp_path, made.cell(loader), [100])
        steps = pd.read_parquet(steps_path := path.with_name("0.steps.parquet"))
        steps["total_ms"] = [*[10.0, 10.0, 10.0, 12.0] * 4, 100.0, 30.0, 30.0, 100.0]  # most are quick
        steps.to_parquet(steps_path)
        paths.append(path)
    table = load_records.read_records(paths)
    steps, _ = load_records.read_steps([path.with_name("0.steps.parquet") for path in paths])
    two = timeline.best_and_worst(tables.cells(table, steps), table, steps)
    assert [step.total_ms for step in two] == [30.0, 30.0]


def test_breakdown_adds_up_to_the_total(tmp_path):
    paths = made.write_speeds(tmp_path, made.cell("overlap", batch_size=100), [1000], wait_share=0.5)
    axis = figures.breakdown(tables.cells(load_records.read_records(paths))).axes[0]
    assert [bar.get_width() for bar in axis.patches] == pytest.approx([40, 10, 50])  # load, transfer, train
    assert len({bar.get_hatch() for bar in axis.patches}) == 3  # told apart without colour
    assert "100 ms, wait 50 %" in text_of(axis.figure)


def test_workers_has_a_panel_for_each_setting(pipelining):
    _, cells = pipelining
    said = text_of(figures.workers(cells))
    for words in ("Batches ahead", "Host memory", "Between epochs", "times dataloader_sync", "limit"):
        assert words in said


def test_a_setting_that_differs_between_loaders_alone_has_no_panel(tmp_path):
    paths = []
    for workers in (2, 4, 8):
        for loader, ahead in (("dataloader_workers", 2), ("ffcv", 3)):
            of = made.cell(loader, workers=workers, prefetch_factor=ahead)
            paths += made.write_speeds(tmp_path, of, [100 * workers, 101 * workers])
    said = text_of(figures.workers(tables.cells(load_records.read_records(paths))))
    assert "Worker processes" in said
    assert "Batches ahead" not in said


def test_learning_draws_epochs_and_accuracy(tmp_path):
    paths = made.write_speeds(tmp_path, made.cell("resident", epochs=3), [100, 110], epochs=3, top1=0.81)
    table = load_records.read_records(paths)
    said = text_of(learning.draw(tables.cells(table), load_records.read_epochs(table))[0])
    assert "top-1 81 %" in said


def learners(tmp_path, count, losses):
    """(cells, epochs) of so many pipelines with two epochs; losses: the last one of each repeat."""
    paths = []
    for number in range(count):
        of = made.cell("overlap", workers=number + 1, prefetch_factor=2, epochs=2)
        for repeat, loss in enumerate(losses[number % len(losses)]):
            one = made.record(of, repeat, 100 + number, epochs=2)
            one.epochs[-1]["train_loss"] = loss
            paths += made.write(tmp_path, one)
    table = load_records.read_records(paths)
    return tables.cells(table), load_records.read_epochs(table)


@pytest.mark.parametrize(
    ("losses", "words"),
    [
        ([(1.0, 2.0), (1.25, 2.0)], ["between pipelines of one task", "is 0.25;", "lie up to 1 apart."]),
        ([(1.0,), (1.25,)], ["is 0.25."]),
        ([(1.0, 2.0)], ["No two pipelines trained equally long in the same repeat"]),
    ],
)
def test_the_difference_of_the_final_losses_is_stated(tmp_path, losses, words):
    said = learning.difference(*learners(tmp_path, len(losses), losses))
    for part in words:
        assert part in said


def test_what_touches_the_ceiling_has_no_percentage(tmp_path):
    paths = made.write_speeds(tmp_path, made.cell("overlap"), [210, 220])
    paths += made.write_speeds(tmp_path, made.cell("replay"), [200, 210, 215])
    said = text_of(figures.throughput(tables.cells(load_records.read_records(paths))))
    assert "not distinguishable" in said
    assert "%" not in said
    assert "limit: compute only (replay), median over n = 3, band: range" in said


@pytest.mark.parametrize(
    ("speeds", "words"),
    [
        ([580, 620], "(286 % of limit: disturbed)"),
        ([217, 218], "(3.6 % above limit)"),
        ([60, 300], "(machine too busy to tell it from limit)"),
        ([850], "(405 % of limit: disturbed)"),
    ],
)
def test_what_is_above_the_ceiling_is_not_called_indistinguishable(tmp_path, speeds, words):
    paths = made.write_speeds(tmp_path, made.cell("overlap"), speeds)
    paths += made.write_speeds(tmp_path, made.cell("replay"), [200, 210, 215])
    said = " ".join(text_of(figures.throughput(tables.cells(load_records.read_records(paths)))).split())
    assert words in said
    assert "not distinguishable" not in said


def test_the_sweep_shows_the_rate_within_epochs_where_starts_matter(tmp_path):
    paths = []
    for workers in (1, 2, 4):
        paths += made.write_speeds(tmp_path, made.cell("overlap", workers=workers), [100, 101])
    table = load_records.read_records(paths)
    cells = tables.cells(table)
    assert "first batches left out" not in text_of(figures.workers(cells))
    slow = cells.assign(epoch_start_share=0.8, within_epoch_images_per_s=400.0)
    assert "overlap, first batches left out" in text_of(figures.workers(slow))


def test_a_figure_without_data_says_so(tmp_path):
    paths = made.write(tmp_path, made.unfinished(made.cell("resident"), "skipped", "no GPU here"))
    kinds = ("throughput", "breakdown", "workers", "timeline")
    publish.plot(paths, *(tmp_path / f"{name}.svg" for name in kinds))
    for path in tmp_path.glob("*.svg"):
        assert "Nothing to draw" in path.read_text()
    assert {path.stem for path in tmp_path.glob("*.svg")} == set(kinds)


def test_the_same_records_give_the_same_bytes(pipelining):
    _, cells = pipelining
    assert style.to_svg(figures.throughput(cells)) == style.to_svg(figures.throughput(cells))


def test_ids_of_inline_figures_do_not_clash(pipelining):
    _, cells = pipelining
    svg = style.to_svg(figures.throughput(cells))
    one, other = (style.inline_svg(svg, prefix, 'a "title" & more') for prefix in ("one", "other"))
    ids = [
        {element.get("id") for element in ET.fromstring(text).iter() if element.get("id")}
        for text in (one, other)
    ]
    assert ids[0]
    assert not ids[0] & ids[1]

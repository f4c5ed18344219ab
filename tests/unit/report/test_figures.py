import re
import xml.etree.ElementTree as ET

import pytest
import record_fixtures as made
from report_fixtures import cells_of, read, steps_of, words_of

from gpufeed.report import figures, publish, style
from gpufeed.report.sections import timeline

pytestmark = pytest.mark.usefixtures("drawn")


@pytest.fixture(scope="module")
def pipelining(tmp_path_factory):
    """The cells of a whole pipelining experiment."""
    results = tmp_path_factory.mktemp("results")
    made.write_pipelining(results)
    return cells_of(sorted(results.glob("records/*/*/*.json")))


def throughput(paths):
    return figures.throughput(cells_of(paths))


def names_in(axis):
    return [label.get_text() for label in axis.get_yticklabels()]


def test_throughput_shows_every_number_as_text(pipelining):
    said = words_of(figures.throughput(pipelining))
    assert "19,000 (93 % of limit)" in said
    assert "n = 3 repeats" in said
    assert "NVIDIA H200" in said
    assert "slower ones are in the table" in said  # 18 pipelines do not fit


def test_bars_have_the_median_and_whiskers_the_range(tmp_path):
    paths = made.write_speeds(tmp_path, made.cell("overlap"), [100, 120, 180])
    axis = throughput(paths).axes[0]
    assert [bar.get_width() for bar in axis.patches] == [120]
    (whisker,) = axis.collections[0].get_segments()
    assert sorted(point[0] for point in whisker) == [100, 180]


def test_a_pipeline_that_is_compared_with_nothing_is_drawn_only_alone(tmp_path):
    paths = made.write_speeds(tmp_path, made.cell("overlap", batch_size=64), [100])
    (axis,) = throughput(paths).axes
    assert names_in(axis) == ["overlap: 100"]
    paths += made.write_speeds(tmp_path, made.cell("resident", batch_size=128), [120])
    (axis,) = throughput(paths).axes
    assert names_in(axis) == ["batch 128, resident: 120", "batch 64, overlap: 100"]
    assert "synthetic_224" in axis.get_title(loc="left")  # what they share
    assert "batch" not in axis.get_title(loc="left")
    paths += made.write_speeds(tmp_path, made.cell("resident", batch_size=64), [130])
    (axis,) = throughput(paths).axes
    assert "batch 64" in axis.get_title(loc="left")


def test_a_bar_says_that_its_limit_was_not_measured_where_others_have_one(tmp_path):
    paths = made.write_speeds(tmp_path, made.cell("resident"), [120])
    assert "limit" not in words_of(throughput(paths))
    for loader, graphs in (("overlap", True), ("replay", True)):
        paths += made.write_speeds(tmp_path, made.cell(loader, cuda_graphs=graphs), [100])
    said = words_of(throughput(paths))
    assert "120 (limit not measured)" in said
    assert "limit: compute only (replay), one repeat" in said


def tasks_of(tmp_path, batches, loaders):
    """Cells of so many tasks, which differ in their batch; the last task has one pipeline more."""
    paths = []
    for batch in range(1, batches + 1):
        for loader in [*loaders, *["overlap"] * (batch == batches and len(loaders) > 1)]:
            one = made.record(made.cell(loader, batch_size=batch), 0, 100.0 + batch)
            paths += made.write_records(tmp_path, one)
    return cells_of(paths)


def test_of_many_tasks_those_with_most_pipelines_are_drawn_and_the_others_counted(tmp_path):
    figure = figures.throughput(tasks_of(tmp_path, style.MOST_PANELS + 3, ["resident", "dataloader_sync"]))
    titles = [axis.get_title(loc="left") for axis in figure.axes]
    assert len(titles) == style.MOST_PANELS
    assert "batch 1," in titles[0]
    assert f"batch {style.MOST_PANELS + 3}," in titles[-1]
    assert "3 more panels are not drawn: the table has the numbers" in words_of(figure)


def test_of_many_tasks_with_one_pipeline_the_fastest_are_drawn(tmp_path):
    (axis,) = figures.breakdown(tasks_of(tmp_path, figures.MOST_ROWS + 5, ["resident"])).axes
    names = names_in(axis)
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
    (axis,) = throughput(paths).axes
    names = [re.split(", CUDA|:", name)[0] for name in names_in(axis)[:2]]
    assert names == ["dali_gpu", "dali_gpu, without JPEG engines"]
    assert "1 slower one is in the table" in axis.get_title(loc="left")


def test_the_time_line_has_a_batch_that_takes_what_a_batch_takes_in_the_mean(tmp_path):
    paths = []
    for loader in ("overlap", "resident"):
        paths += made.write_speeds(tmp_path, made.cell(loader), [100])
    cells, repeats = read(paths)
    total_ms = [*[10.0, 10.0, 10.0, 12.0] * 4, 100.0, 30.0, 30.0, 100.0]  # most are quick
    steps = steps_of(paths).assign(total_ms=2 * total_ms)
    two = timeline.best_and_worst(cells, repeats, steps)
    assert [step.total_ms for step in two] == [30.0, 30.0]


def test_breakdown_adds_up_to_the_total(tmp_path):
    paths = made.write_speeds(tmp_path, made.cell("overlap", batch_size=100), [1000], wait_share=0.5)
    axis = figures.breakdown(cells_of(paths)).axes[0]
    assert [bar.get_width() for bar in axis.patches] == pytest.approx([40, 10, 50])  # load, transfer, train
    assert len({bar.get_hatch() for bar in axis.patches}) == 3  # told apart without colour
    assert "100 ms, wait 50 %" in words_of(axis.figure)


def test_workers_has_a_panel_for_each_setting(pipelining):
    said = words_of(figures.workers(pipelining))
    for words in ("Batches ahead", "Host memory", "Between epochs", "times dataloader_sync", "limit"):
        assert words in said


def test_a_setting_that_differs_between_loaders_alone_has_no_panel(tmp_path):
    paths = []
    for workers in (2, 4, 8):
        for loader, ahead in (("dataloader_workers", 2), ("ffcv", 3)):
            of = made.cell(loader, workers=workers, prefetch_factor=ahead)
            paths += made.write_speeds(tmp_path, of, [100 * workers, 101 * workers])
    said = words_of(figures.workers(cells_of(paths)))
    assert "Worker processes" in said
    assert "Batches ahead" not in said


def test_what_touches_the_ceiling_has_no_percentage(tmp_path):
    paths = made.write_speeds(tmp_path, made.cell("overlap"), [210, 220])
    paths += made.write_speeds(tmp_path, made.cell("replay"), [200, 210, 215])
    said = words_of(throughput(paths))
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
    said = " ".join(words_of(throughput(paths)).split())
    assert words in said
    assert "not distinguishable" not in said


def test_the_sweep_shows_the_rate_within_epochs_where_starts_matter(tmp_path):
    paths = []
    for workers in (1, 2, 4):
        paths += made.write_speeds(tmp_path, made.cell("overlap", workers=workers), [100, 101])
    cells = cells_of(paths)
    assert "first batches left out" not in words_of(figures.workers(cells))
    slow = cells.assign(epoch_start_share=0.8, within_epoch_images_per_s=400.0)
    assert "overlap, first batches left out" in words_of(figures.workers(slow))


def test_a_figure_without_data_says_so(tmp_path):
    paths = made.write(tmp_path, made.unfinished(made.cell("resident"), "skipped", "no GPU here"))
    kinds = ("throughput", "breakdown", "workers", "timeline")
    publish.plot(paths, *(tmp_path / f"{name}.svg" for name in kinds))
    for path in tmp_path.glob("*.svg"):
        assert "Nothing to draw" in path.read_text()
    assert {path.stem for path in tmp_path.glob("*.svg")} == set(kinds)


def test_the_same_records_give_the_same_bytes(pipelining):
    one, other = (style.to_svg(figures.throughput(pipelining)) for _ in range(2))
    assert one == other


def test_ids_of_inline_figures_do_not_clash(pipelining):
    svg = style.to_svg(figures.throughput(pipelining))
    one, other = (style.inline_svg(svg, prefix, 'a "title" & more') for prefix in ("one", "other"))
    elements = ([*ET.fromstring(text).iter()] for text in (one, other))
    ids, others = ({element.get("id") for element in each} - {None} for each in elements)
    assert ids == {f"one-i{number}" for number in range(len(ids))}
    assert len(ids) == len(others) > 0
    assert not ids & others

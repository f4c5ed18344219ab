import xml.etree.ElementTree as ET

import pytest
import record_fixtures as made

from gpufeed.analysis import figures, publish, records, style, tables


@pytest.fixture(scope="module")
def pipelining(tmp_path_factory):
    """(records, cells) of a whole pipelining experiment."""
    results = tmp_path_factory.mktemp("results")
    made.write_pipelining(results)
    table = records.read_records(sorted(results.glob("records/*/*/*.json")))
    return table, tables.cells(table)


def text_of(figure) -> str:
    svg = style.to_svg(figure)
    return " ".join(ET.fromstring(svg[svg.index("<svg") :]).itertext())


def test_throughput_shows_every_number_as_text(pipelining):
    _, cells = pipelining
    said = text_of(figures.throughput(cells))
    assert "19,000 (93 % of ceiling)" in said
    assert "n = 3 repeats" in said
    assert "NVIDIA H200" in said
    assert "slower ones are in the table" in said  # 18 pipelines do not fit


def test_bars_have_the_median_and_whiskers_the_range(tmp_path):
    paths = made.write_speeds(tmp_path, made.cell("overlap"), [100, 120, 180])
    axis = figures.throughput(tables.cells(records.read_records(paths))).axes[0]
    assert [bar.get_width() for bar in axis.patches] == [120]
    (whisker,) = axis.collections[0].get_segments()
    assert sorted(point[0] for point in whisker) == [100, 180]


def test_breakdown_adds_up_to_the_total(tmp_path):
    paths = made.write_speeds(tmp_path, made.cell("overlap", batch_size=100), [1000], wait_share=0.5)
    axis = figures.breakdown(tables.cells(records.read_records(paths))).axes[0]
    assert [bar.get_width() for bar in axis.patches] == pytest.approx([40, 10, 50])  # load, transfer, train
    assert len({bar.get_hatch() for bar in axis.patches}) == 3  # told apart without colour
    assert "100 ms, wait 50 %" in text_of(axis.figure)


def test_workers_has_a_panel_for_each_setting(pipelining):
    _, cells = pipelining
    said = text_of(figures.workers(cells))
    for words in ("Batches ahead", "Host memory", "Between epochs", "times dataloader_sync", "ceiling"):
        assert words in said


def test_learning_draws_epochs_and_accuracy(tmp_path):
    paths = made.write_speeds(tmp_path, made.cell("resident", epochs=3), [100, 110], epochs=3, top1=0.81)
    table = records.read_records(paths)
    said = text_of(figures.learning(tables.cells(table), records.read_epochs(table)))
    assert "top-1 81 %" in said


def test_a_figure_without_data_says_so(tmp_path):
    paths = made.write(tmp_path, made.unfinished(made.cell("resident"), "skipped", "no GPU here"))
    publish.plot(paths, *(tmp_path / f"{name}.svg" for name in ("throughput", "breakdown", "workers")))
    for path in tmp_path.glob("*.svg"):
        assert "Nothing to draw" in path.read_text()
    assert len(list(tmp_path.glob("*.svg"))) == 3


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

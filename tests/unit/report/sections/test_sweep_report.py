"""The sweep's table, figures and section of the report, from made-up sweeps."""

import json
import re

import pandas as pd
import pytest
import record_fixtures as made
import sweep_fixtures as swept
from report_fixtures import page_of

from gpufeed.core import record
from gpufeed.report import publish
from gpufeed.report.sections import decoding, decoding_tables

DECODERS = [*swept.DECODERS]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    return folder, swept.write_sweeps(folder)


def report_of(folder, planned=DECODERS):
    of = made.cell("overlap", "gpu_decoding")
    made.write_speeds(folder, of, [100, 110])
    plan = made.plan_info({"gpu_decoding": [of.id]}, repeats=2)
    plan["experiments"]["gpu_decoding"]["sweep"] = list(planned)
    return re.sub(r"\s+", " ", page_of(folder, plan))


def test_the_table_has_a_row_a_point_with_median_and_range(results, tmp_path):
    _, paths = results
    publish.tabulate_sweep(paths, tmp_path / "decoders.csv")
    table = pd.read_csv(tmp_path / "decoders.csv")
    assert list(table.columns) == decoding_tables.COLUMNS
    assert len(table) == sum(len(record.DECODING.read(path)["points"]) for path in paths)
    row = table[(table["decoder"] == "simplejpeg") & (table["dataset"] == "mosaic_64")].iloc[0]
    assert (row["cores"], row["n"], row["images_per_s"]) == (1, 3, 23_000)
    assert row["images_per_s_min"] == pytest.approx(0.94 * 23_000)
    assert row["images_per_s_max"] == pytest.approx(1.05 * 23_000)
    assert row["megapixels_per_s"] == pytest.approx(23_000 * 4096 / 1e6)
    assert set(table.groupby("kind")["decoder"].nunique().items()) == {("cpu", 3), ("gpu", 3), ("strips", 1)}
    other = table[~table["main"]]
    assert set(other["batch_size"]) == {32, 1024}


@pytest.mark.usefixtures("drawn")
def test_figures_are_drawn_and_name_what_they_show(results, tmp_path):
    _, paths = results
    publish.plot_sweep(paths, tmp_path / "a.svg", tmp_path / "b.svg")
    crossing, decoding = ((tmp_path / name).read_text() for name in ("a.svg", "b.svg"))
    for words in (
        "16 cores: simplejpeg",
        "GPU: torchvision_cuda",
        "strips on the GPU",
        "CPU cores that the best GPU decoder is worth",
        ">1.6</text>",
        "NVIDIA H200",
    ):
        assert words in crossing, words
    for words in ("Batch size", "Page cache", "images a call", "dali_cpu"):
        assert words in decoding, words


def test_the_note_under_the_figure_says_what_a_core_is(tmp_path):
    """Nothing where each core is one, how they share where some do, and that it is unknown where it is."""
    (path,) = swept.write_sweeps(tmp_path, decoders=["simplejpeg"], counts=(1, 4, 16))
    sweep, found = record.DECODING.read(path), {}

    def note():
        points, _ = decoding_tables.read_sweeps([path])
        return decoding.say_threads(points)

    found["older"] = note()  # without the field
    for name, of in {"own": lambda n: n, "shared": lambda n: -(-n // 2), "unknown": lambda n: None}.items():
        for point in sweep["points"]:
            point["physical_cores"] = of(point["cores"])
        record.DECODING.write(sweep, path)
        found[name] = note()
    threads = "Cores are hardware threads"
    assert found["own"] == ""
    shared = f"{threads}, of which several share a physical core: 4 are on 2 and 16 are on 8."
    assert found["shared"] == shared
    unknown = f"{threads}; whether two of them share a physical core is not known."
    assert found["unknown"] == found["older"] == unknown
    assert f"{unknown}</figcap" in report_of(tmp_path)


@pytest.mark.parametrize("gpu", [made.H200, None])
def test_few_sweeps_are_drawn_too(tmp_path, gpu):
    paths = swept.write_sweeps(tmp_path, gpu, ["simplejpeg", "torchvision_cuda"], counts=(2,))
    points, _ = decoding_tables.read_sweeps(paths)
    assert decoding.draw_crossover(points).axes
    nothing = decoding.draw_crossover(points[points["decoder"] == "none"])
    assert "Nothing to draw" in nothing.texts[0].get_text()
    one_dataset = decoding.draw_decoding(points[points["side"] == 64])
    assert len(one_dataset.axes) == 2  # batch sizes above page caches
    nothing = decoding.draw_decoding(points[points["main"] & (points["cache"] == "warm")])
    assert "Nothing to draw" in nothing.texts[0].get_text()


def test_the_page_answers_when_gpu_decoding_pays(results):
    folder, _ = results
    html = report_of(folder)
    for words in (
        "On this node (NVIDIA H200, 16 cores), decoding single JPEGs on the GPU pays",
        "Strips change this",
    ):
        assert html.count(words) == 2  # in the answer and in the section
    for words in (
        "Strips change this: decoded on the GPU",
        "mosaic_64, quality 90, 0.50 bytes a pixel",
        "dali_gpu 350 MiB",
        "nvimgcodec 1.2.3",
    ):
        assert words in html, words
    assert "Not measured yet" not in html


def test_images_of_several_sizes_are_shown_by_their_mean(tmp_path):
    for path in swept.write_sweeps(tmp_path, decoders=["simplejpeg", "torchvision_cuda"]):
        sweep = record.DECODING.read(path)
        for point in sweep["points"]:
            if point["dataset"] == "mosaic_512":
                point |= {"height": None, "width": None, "pixels": 187_500.0, "dataset": "photographs"}
        record.DECODING.write(sweep, path)
    html = report_of(tmp_path)
    for words in ("mixed sizes, as many pixels as 433 x 433 in the mean", "64 x 64", "about 433", "at 1024"):
        assert words in html, words
    publish.tabulate_sweep([path], tmp_path / "decoders.csv")
    table = pd.read_csv(tmp_path / "decoders.csv", dtype={"height": str})
    assert set(table["height"].dropna()) == {"32", "64", "128", "256", "1024"}
    row = table[table["dataset"] == "photographs"].iloc[0]
    assert pd.isna(row["height"])
    assert row["megapixels_per_s"] == pytest.approx(row["images_per_s"] * 0.1875)


def test_without_a_gpu_the_page_says_who_was_skipped_and_who_is_missing(tmp_path):
    swept.write_sweeps(tmp_path, None, ["simplejpeg", "torchvision_cuda"], counts=(1, 2))
    html = report_of(tmp_path)
    assert "no GPU decoder was measured, so it cannot be said when the GPU pays" in html
    assert "torchvision_cuda: Decoder torchvision_cuda decodes on a CUDA GPU." in html
    assert "Not measured yet: pillow, dali_cpu, dali_gpu, nvimgcodec, strips" in html


def test_damaged_failed_and_refused_are_told(tmp_path):
    (path,) = swept.write_sweeps(tmp_path, decoders=["simplejpeg"])
    sweep = record.DECODING.read(path)
    none = {"images": [], "images_per_s": [], "evicted_share": []}
    sweep["points"][0] |= {"status": "failed", "sentence": "Too large <b>.", **none}
    sweep["points"][-1] |= {"status": "refused", "sentence": "The kernel kept 90 %.", **none}
    sweep["left_out"] = ["Left out: 32 cores, since this node allows 16."]
    record.DECODING.write(sweep, path)
    path.with_name("pillow.json").write_text("{")
    html = report_of(tmp_path)
    for words in (
        "mosaic_32, warm, 1 core, batch 256: Too large &lt;b&gt;.",
        "The kernel kept 90 %.",
        "Left out: 32 cores",
        "pillow: no readable sweep",
    ):
        assert words in html, words


def elsewhere(folder, decoder, node, **environment):
    """The sweep of a decoder as another node wrote it; environment: what differs there."""
    sweep = swept.sweep(decoder)
    sweep["environment"] |= {"node": node, **environment}
    path = folder / "sweeps/gpu_decoding" / f"{decoder}.json"
    record.DECODING.write(json.loads(json.dumps(sweep)), path)
    return path


def test_nodes_with_the_same_hardware_and_versions_are_compared(tmp_path):
    for number, decoder in enumerate(("simplejpeg", "torchvision_cuda", "nvimgcodec")):  # a job a node
        elsewhere(tmp_path, decoder, f"node-{number}")
    points, _ = decoding_tables.read_sweeps(sorted(tmp_path.glob("sweeps/*/*.json")))
    assert len(decoding_tables.machines(points)) == 1
    html = report_of(tmp_path)
    assert "On these 3 nodes (NVIDIA H200, 16 cores), decoding single JPEGs on the GPU pays" in html
    assert "3 nodes alike (node-0, node-1 and node-2)" in html
    assert "no CPU decoder was measured" not in html
    assert "no GPU decoder was measured" not in html


@pytest.mark.parametrize(
    "other",
    [
        {"cpu": "Imaginary CPU 4.0"},
        {"cores_allowed": 8},
        {"driver": "590.2"},
        {"stack": "cuda13"},
        {"versions": {"torch": "2.11.0"}},
        {"gpu": {**made.environment()["gpu"], "name": "NVIDIA L4"}},
    ],
    ids=lambda other: next(iter(other)),
)
def test_machines_that_differ_are_not_compared_with_each_other(tmp_path, other):
    paths = swept.write_sweeps(tmp_path / "a", decoders=["simplejpeg"])
    path = elsewhere(tmp_path / "b", "torchvision_cuda", "node-a", **other)
    points, _ = decoding_tables.read_sweeps([*paths, path])
    assert len(decoding_tables.machines(points)) == 2

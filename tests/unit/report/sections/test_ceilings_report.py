"""What the report says, draws and tabulates of ceilings, what is planned, and what the scripts write."""

import base64
import csv
import io
import re

import ceilings_fixtures as made
import measure_fixtures as toys
import pandas as pd
import pytest
import record_fixtures as records
from config_fixtures import with_tiny
from image_fixtures import write_dataset
from report_fixtures import words_of
from workflow_fixtures import Named, run_script

from gpufeed.benchmarks.ceilings.stages import difference
from gpufeed.core import plan_ceilings
from gpufeed.core.cells import cell_id
from gpufeed.core.config import planned
from gpufeed.core.errors import GpufeedError
from gpufeed.core.record import CEILINGS
from gpufeed.report import publish
from gpufeed.report.sections import ceilings, ceilings_rows

TASK = "vit_tiny on synthetic_224, bf16"


def several():
    """Three pipelines of one task: fed, waiting for decode, and one that was skipped."""
    return [
        made.document(made.pairs(1.63), decode_s=1.25, transfer_s=0.05, input_s=2.63, cell={"workers": 4}),
        made.document(made.pairs(0.01), input_s=0.5),
        made.document(made.pairs(1.63), cell={"workers": 8})
        | {"status": "skipped", "sentence": "There is no GPU."}
        | dict.fromkeys(("resolved", "shared_cores", "dataset", "segment", "start_up", "shares"))
        | dict.fromkeys(("images_per_s", "input_only", "stages", "cached_share"))
        | {"pairs": []},
    ]


def test_parts_of_the_bar_add_up_to_the_epoch():
    found, fed, _ = several()
    parts = ceilings_rows.parts(found)
    assert sum(parts.values()) == pytest.approx(2.63)
    assert parts["compute"] == pytest.approx(1)
    assert parts["decode"] == pytest.approx(1.25)
    assert parts["transfer"] == pytest.approx(0.05)
    assert parts["other wait"] == pytest.approx(0.33)
    assert ceilings_rows.parts(fed)["decode"] == 0
    late = made.document(made.pairs(1.0, start_s=0.8, growth_s=0.5), decode_s=0.9, input_s=2.0)
    parts = ceilings_rows.parts(late)
    assert (parts["first batch"], parts["growth"]) == (pytest.approx(0.8), pytest.approx(0.5))
    assert parts["decode"] == pytest.approx(0.2)  # no more than what is left of the wait


@pytest.mark.usefixtures("drawn")
def test_the_table_and_the_figure(tmp_path):
    paths = [made.write(tmp_path, found) for found in several()]
    publish.plot_ceilings(paths, tmp_path / "t.csv", tmp_path / "f.svg")
    with (tmp_path / "t.csv").open(newline="") as file:
        slow, fed, skipped = csv.DictReader(file)
    assert (slow["verdict"], slow["stage"], fed["verdict"]) == ("input-bound", "decode", "compute-bound")
    assert slow["evidence"].startswith("input-bound: the GPU waits 62 % of the epoch, 48 points")
    assert float(slow["au_median"]) == pytest.approx(1 / 2.63)
    assert float(slow["images_per_s_compute_only_median"]) == pytest.approx(1000)
    assert float(slow["decode_at_most"]) == pytest.approx(2.63 / 1.38)
    assert (slow["fetch_s"], slow["fetch_reason"]) == ("", "The kernel kept the files.")
    assert skipped.items() >= {"status": "skipped", "sentence": "There is no GPU.", "au_median": ""}.items()
    words = words_of((tmp_path / "f.svg").read_text())
    for text in ("overlap, 4 workers", "AU 38.0 %, input-bound", "wait, decode", TASK):
        assert text in words
    assert "first batch" not in words
    publish.plot_ceilings(paths[2:], tmp_path / "t.csv", tmp_path / "f.svg")
    assert "Nothing to draw" in (tmp_path / "f.svg").read_text()


@pytest.mark.usefixtures("drawn")
def test_speed_against_au_has_every_pipeline_that_is_done():
    figure = ceilings.draw_speeds(several())
    words = words_of(figure)
    for text in ("overlap, 4 workers", "100%", "images per second, end to end", TASK):
        assert text in words
    assert "8 workers" not in words
    (axis,) = figure.axes
    points = [container.lines[0].get_xydata()[0].tolist() for container in axis.containers]
    assert points == [pytest.approx([1 / 1.01, 1000 / 1.01]), pytest.approx([1 / 2.63, 1000 / 2.63])]
    assert "Nothing to draw" in words_of(ceilings.draw_speeds(several()[2:]))
    lone = made.document(made.pairs(0.01), input_s=0.5, cell={"batch_size": 512})
    assert len(ceilings.draw_speeds([*several(), lone]).axes) == 1  # compared with nothing
    assert len(ceilings.draw_speeds([lone]).axes) == 1


def write_page(folder, damaged=False, planned=(), repeats=(), cells=()):
    """Write a page with `several`; return what was found, the plan, its HTML and its text.

    planned, cells: names of more limits and of cells that are planned. repeats: records to write too.
    """
    names = [made.write(folder, found).stem for found in several()]
    if damaged:
        (folder / "ceilings/limits/broken.json").write_text("{")
    records.write(folder, *repeats)
    info = records.plan_info({"limits": [*cells, *(one.cell_id for one in repeats)]}, repeats=2)
    info["experiments"]["limits"]["ceilings"] = [*names, *planned]
    out = folder / "report.html"
    found = publish.report(folder, ["limits"], info, out)
    return found, info, out.read_text(encoding="utf-8"), records.text_of(out)


def test_the_page_has_the_part_and_what_is_missing(tmp_path):
    found, info, _, text = write_page(tmp_path, damaged=True, planned=["broken", "to-come"])
    part = text[text.index("How far from the limit") :]
    for words in (
        f"{TASK}, batch 128; NVIDIA H200, torch 2.10.0. 8 pairs of segments",
        "segments of 1 epoch each",
        "overlap, 4 workers 38.0 % 38.02 to 38.02 62.0 % 0.0 % 380 1,000 380 not told apart from end to end "
        "input-bound",
        "The GPU waits 62 % of the epoch, 48 points of it for decode in 4 worker processes",
        "decode: 1.25 s an epoch of the loader alone (median of 6 rounds); without it at most 1.9x, "
        "48 points of the epoch",
        "fetch: not measured. The kernel kept the files.",
        "first epoch 5.26 s, steady epochs 2.63 s",
        "unusable broken:",
        f"skipped {several()[2]['cell_id']}: There is no GPU.",
        "1 more of its cells has not been compared",
    ):
        assert words in part
    assert part.index("99.0 %") < part.index("38.0 %")  # the fastest first
    assert "1 measurement of limits" in publish.missing_lines(found, info)


@pytest.fixture(scope="module")
def ceilings_alone(tmp_path_factory):
    """(HTML, text) of a page with ceilings, whose repeats are still to come."""
    return write_page(tmp_path_factory.mktemp("alone"), planned=["to-come"], cells=["never-measured"])[2:]


def test_ceilings_without_repeats_are_the_answer(ceilings_alone):
    _, text = ceilings_alone
    top = text[: text.index("How far from the limit Each cell")]
    assert f"How far from the limit, {TASK}, batch 128; NVIDIA H200" in top
    answer = (
        "overlap: AU 99.0 %, 990 images/s, the highest AU of 2 pipelines; next overlap, 4 workers 38.0 %, "
        "61 points below. Compute-bound: the GPU waits 1.0 % of the epoch"
    )
    assert answer in top
    assert "Limits only, of 2 cells; no repeat of a cell was measured · 1 skipped" in top
    assert "input-bound" not in top[: top.index("How fast each is")]
    assert "overlap not judged" in text


def test_a_page_of_ceilings_alone_misses_no_table_of_cells(ceilings_alone):
    html, text = ceilings_alone
    assert "Leaderboard" not in html
    assert "Not measured yet 2 repeats of 1 cell and 1 measurement of limits This command" in text
    for words in (
        "finished ·",
        "Wait of repeats",
        "Total less train",
        "No pipeline has a finished repeat yet.",
        "No loader was measured yet.",
    ):
        assert words not in text


def test_a_page_with_repeats_too_has_both(tmp_path):
    repeat = records.record(records.cell("overlap", "limits"))
    _, _, html, text = write_page(tmp_path, repeats=[repeat])
    assert 'id="board-limits"' in html
    assert "1 finished · limits of 2 cells" in text
    assert "Not measured yet 1 repeat of 1 cell" in text
    assert "Wait of repeats Total less train" in text
    assert "Wait The gaps between training steps on the compute stream" in text


def test_ceilings_alone_have_their_machine_downloads_and_calls(ceilings_alone):
    html, text = ceilings_alone
    place, commit = ceilings_rows.origin(several()[0])
    environment = text[text.rindex("Environment") :]
    assert f"NVIDIA H200 on {place}, 2 of 3 measurements finished" in environment
    assert commit in environment
    assert "warm-up an epoch or more of each side before the pairs, not counted" in environment
    assert "| overlap, 4 workers | 38.0 % (38.02 to 38.02) | 62.0 % |" in text
    assert "The loader overlap of gpufeed, by its public API." in text
    href = re.search(r'download="limits-ceilings.csv" href="data:text/csv;base64,([^"]*)"', html)
    table = pd.read_csv(io.BytesIO(base64.b64decode(href.group(1))))
    assert table["gpu_uuid"].tolist() == [place] * 3
    assert sorted(table["au_median"].dropna()) == pytest.approx([1 / 2.63, 1 / 1.01])
    assert 'download="limits-ceilings.parquet"' in html


def test_a_stage_that_is_not_shown_takes_no_time():
    found = several()[0]["stages"]["decode"] | {"shown": False}
    assert ceilings.stage("decode", found) == (
        "decode: not shown to take any time (in the median of 6 rounds 1.25 s an epoch of the loader alone)"
    )
    found["seconds"] = found["seconds"] | {"median": -0.1}
    assert ceilings.stage("decode", found).endswith("(in the median of 6 rounds below zero)")


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (
            [0.58, 0.6, -0.4, 0.65, 0.7, 0.79],
            "fetch: not settled. One or more of 6 rounds say that it takes nothing or less, the median 0.625 "
            "s an epoch of the loader alone, the longest 0.790 s",
        ),
        (
            [0.01, 0.02, -0.4, 0.01, 0.02, 0.79],
            "fetch: not shown to take any time (in the median of 6 rounds 0.0150 s an epoch of the loader "
            "alone)",
        ),
    ],
)
def test_rounds_that_disagree_settle_nothing_and_are_said_to(seconds, said):
    found = difference([1 + one for one in seconds], [1.0] * 6, 1000, 1.5, 1.0)
    assert not found["shown"]
    assert ceilings.stage("fetch", found) == said


# --- the config


def config(ceilings):
    blocks = {
        "one": {"loader": ["resident", "replay"]},
        "two": {"loader": "replay"},
        "three": {"loader": "overlap", "trainer": "fastai"},
        "four": {"loader": "overlap", "trainer": ["lightning"], "devices": 2},
    }
    return with_tiny(blocks, common={"dataset": "synthetic"}, ceilings=ceilings)


def test_cells_and_settings_with_defaults():
    found = config({"blocks": ["one"], "pairs": 30})
    (cell,) = plan_ceilings.cells(found, planned(found), "tiny")
    assert "resident" in cell
    assert plan_ceilings.settings(found, "tiny") == {"pairs": 30, "least_s": 3.0}
    del found["experiments"]["tiny"]["ceilings"]
    assert plan_ceilings.settings(found, "tiny") is None
    assert plan_ceilings.cells(found, planned(found), "tiny") == []


@pytest.mark.parametrize(
    ("ceilings", "found"),
    [
        ({}, "no 'blocks' in experiments.tiny.ceilings"),
        ({"blocks": ["five"]}, "block 'five' in experiments.tiny.ceilings.blocks"),
        ({"blocks": ["two"]}, "no cell but the limit"),
        ({"blocks": ["one", "three"]}, "trainer fastai has no separate step"),
        ({"blocks": ["four"]}, "trainer lightning"),
        ({"blocks": ["one"], "pairs": 5}, "experiments.tiny.ceilings.pairs: 5"),
        ({"blocks": ["one"], "least_s": 0}, "experiments.tiny.ceilings.least_s: 0"),
    ],
)
def test_a_wrong_key_is_told_before_anything_is_planned(ceilings, found):
    with pytest.raises(GpufeedError) as caught:
        planned(config(ceilings))
    assert found in caught.value.found


# --- the scripts


def test_the_script_writes_the_document_and_says_the_verdict(tmp_path, monkeypatch, capfd):
    made.register(monkeypatch)
    monkeypatch.setenv("GPUFEED_PLANNED_ON", "login2")
    cell = made.planted(model="SlowModel")
    toys.give_cell(monkeypatch, cell)
    found_at = tmp_path / cell["experiment"] / f"{cell_id(cell)}.json"
    manifest = write_dataset(tmp_path / "tiny", train=5).root / "manifest.parquet"
    run_script(
        "measure_ceilings",
        input=Named(manifest=str(manifest), cache=[]),
        output=Named(ceilings=str(found_at)),
        params=Named(settings={"pairs": 6, "least_s": 0.01}, attempt=4),
        wildcards=Named(cell="planted"),
        log=[str(tmp_path / "job.log")],
        threads=1,
        resources={},
    )
    found = CEILINGS.read(found_at)
    assert (found["status"], found["attempt"], found["planned_on"]) == ("done", 4, "login2")
    assert "limits of planted, done: " in (tmp_path / "job.log").read_text() + capfd.readouterr().err


def test_figures_leave_out_what_another_version_or_an_editor_wrote(tmp_path, caplog):
    paths = [made.write(tmp_path, found) for found in several()]
    paths[0].write_text(paths[0].read_text().replace('"schema_version": 1', '"schema_version": 0'))
    paths[2].write_text("{")
    outs = tmp_path / "ceilings.csv", tmp_path / "ceilings.svg"
    publish.plot_ceilings(paths, *outs)
    assert list(pd.read_csv(outs[0])["cell_id"]) == [paths[1].stem]
    assert ["schema version 0" in caplog.messages[0], "no readable" in caplog.messages[1]] == [True, True]
    assert outs[1].exists()
    (evaluation := tmp_path / "evaluation.json").write_text("{")
    publish.plot_confusion(evaluation, tmp_path / "confusion.svg")
    publish.plot_inference([evaluation], *outs)
    assert pd.read_csv(outs[0]).empty

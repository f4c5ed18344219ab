import re
from html import unescape

import pytest
import record_fixtures as made

from gpufeed.analysis import publish, records, tables, verdicts

HOSTILE = "failed </script><script>alert(1)</script> & <b>bold</b>"


def cells_of(paths):
    return tables.cells(records.read_records(paths))


def free(loader, workers=0, **axes):
    axes = {"augment": "cpu", "batch_size": 32, "workers": workers, **axes}
    return made.cell(loader, prefetch_factor=2 if workers else None, **axes)


def answer(paths) -> str:
    (verdict,) = verdicts.answers(cells_of(paths))
    return verdict.sentence


def test_the_answer_names_the_best_its_ceiling_n_and_hardware(tmp_path):
    paths = made.write_speeds(tmp_path, free("dataloader_sync"), [100, 101])
    paths += made.write_speeds(tmp_path, free("overlap", 2), [300, 310])
    paths += made.write_speeds(tmp_path, free("replay"), [610, 610])
    said = answer(paths)
    assert said.startswith(
        "overlap, 2 workers: 305 images/s (median, range 300 to 310, n = 2) on NVIDIA H200"
    )
    assert "50 % of the compute-only ceiling of 610 images/s" in said
    assert "It is faster than dataloader_sync" in said
    assert "3.03x" in said


def test_overlapping_ranges_are_not_called_faster(tmp_path):
    paths = made.write_speeds(tmp_path, free("dataloader_sync"), [100, 120])
    paths += made.write_speeds(tmp_path, free("overlap", 2), [115, 130])
    said = answer(paths)
    assert "is faster" not in said
    assert "not shown to be faster" in said
    assert "no replay cell was measured" in said


def test_one_repeat_is_too_few_to_call(tmp_path):
    paths = made.write_speeds(tmp_path, free("dataloader_sync"), [100])
    paths += made.write_speeds(tmp_path, free("overlap", 2), [900])
    said = answer(paths)
    assert "is faster" not in said
    assert "n = 1" in said


def test_nothing_finished_no_answer(tmp_path):
    paths = made.write(tmp_path, made.unfinished(free("overlap"), "skipped", "no GPU here"))
    assert verdicts.answers(cells_of(paths)) == []
    assert verdicts.notebook_claims(cells_of(paths)) == []


def claims(tmp_path, speeds, wait_share=0.5, gpu=made.H200, repeats=2):
    """Answers by claim, for {(workers, synchronise): images/s}."""
    paths = []
    for (workers, synchronise), speed in speeds.items():
        of = free("dataloader_workers" if workers else "dataloader_sync", workers, synchronise=synchronise)
        paths += made.write_speeds(
            tmp_path, of, [speed, speed * 1.01][:repeats], wait_share=wait_share, gpu=gpu
        )
    return {verdict.claim: verdict for verdict in verdicts.notebook_claims(cells_of(paths))}


@pytest.mark.parametrize(
    ("two", "step_two", "expected"),
    [
        (200, 200, "holds"),
        (120, 120, "does not hold"),
        (400, 400, "does not hold"),
        (151, 151, "cannot be judged"),
        (200, 110, "does not hold"),
        (200, None, "holds"),
        (None, None, "cannot be judged"),
    ],
)
def test_claim_of_a_speedup(tmp_path, two, step_two, expected):
    speeds = {(0, "epoch"): 100, (2, "epoch"): two, (0, "step"): 100, (2, "step"): step_two}
    found = claims(tmp_path, {key: speed for key, speed in speeds.items() if speed})
    verdict = found["1.5x - 3x faster"]
    assert verdict.answer == expected, verdict.sentence
    if two == 200:
        assert "2.00x (range 1.98x to 2.02x" in verdict.sentence


@pytest.mark.parametrize(
    ("sweep", "expected", "enough"),
    [
        ({0: 10, 2: 20, 4: 40, 8: 41, 16: 30}, "holds", 8),
        ({0: 10, 2: 40, 4: 40, 8: 40, 16: 40}, "does not hold", 2),
        ({0: 10, 2: 20, 4: 30, 8: 40, 16: 80}, "does not hold", 16),
        ({0: 10, 2: 20}, "cannot be judged", 2),
    ],
)
def test_claim_of_the_right_number_of_workers(tmp_path, sweep, expected, enough):
    speeds = {(workers, "epoch"): speed for workers, speed in sweep.items()}
    verdict = claims(tmp_path, speeds)["use 4-8 workers"]
    assert verdict.answer == expected, verdict.sentence
    assert f"overlaps it is {enough}." in verdict.sentence


def test_claim_that_the_gpu_never_waits(tmp_path):
    speeds = {(0, "epoch"): 10, (2, "epoch"): 20}
    judged = {
        name: claims(tmp_path / name, speeds, share, gpu)["the GPU never waits"]
        for name, share, gpu in (("busy", 0.004, made.H200), ("idle", 0.6, made.H200), ("cpu", 0.0, None))
    }
    assert {name: verdict.answer for name, verdict in judged.items()} == {
        "busy": "holds",
        "idle": "does not hold",
        "cpu": "cannot be judged",
    }
    assert "60 % of the time" in judged["idle"].sentence


def test_one_repeat_judges_no_claim_of_speed(tmp_path):
    speeds = {(workers, "epoch"): 10 + workers for workers in (0, 2, 4, 16)}
    found = claims(tmp_path, speeds, repeats=1)
    assert found["1.5x - 3x faster"].answer == "cannot be judged"
    assert found["use 4-8 workers"].answer == "cannot be judged"


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """(found, html) of a report with finished, skipped, failed, damaged, missing and stale repeats."""
    results = tmp_path_factory.mktemp("results")
    ids = made.write_pipelining(results)
    lacking, broken = made.cell("overlap", "demo"), made.cell("resident", "demo")
    made.write(results, made.unfinished(lacking, "skipped", "CUDA is not available on this node"))
    (damaged,) = made.write(results, made.unfinished(broken, "failed", HOSTILE))
    damaged.with_name("1.json").write_text("{")
    made.write(results, made.record(made.cell("replay", "demo")))  # the plan does not have it
    ids["demo"] = [lacking.id, broken.id, "never-measured"]
    found = publish.report(results, list(ids), made.plan_info(ids), results / "report.html")
    return found, (results / "report.html").read_text(encoding="utf-8")


def test_the_page_says_what_there_is_and_what_is_not(report):
    found, html = report
    for words in (
        "resident: 19,000 images/s, 93 % of the ceiling",
        "Question of pipelining?",
        "What the notebook claimed",
        "CUDA is not available on this node",
        "snakemake --cores 8 --resources gpu=1 demo",
        "never-measured",
        "replay has no worker processes",
        "of cells that the config no longer plans",
        "cpu, 1,500 images/s",
        "compute capability 9.0",
    ):
        assert words in html, words
    assert "reference records" not in html
    assert {missing.cell_id for missing in found.missing} >= {"never-measured"}


def test_what_records_say_is_text_not_markup(report):
    _, html = report
    assert "<script>alert(1)" not in html
    assert "&lt;script&gt;alert(1)" in html


def test_the_page_asks_the_network_for_nothing(report):
    _, html = report
    assert "default-src 'none'" in unescape(html)
    assert not re.search(r"<(script|img|iframe|link)[^>]+(src|href)=[\"']?(https?:)?//", html)
    assert html.count("injectModule(") == 2  # its definition and one use: the library is there once
    assert html.rstrip().endswith("</html>")


def test_every_cell_is_in_the_table(report):
    found, html = report
    table = records.read_records(found.paths)
    for cell_id in table["cell_id"].unique():
        assert html.count(cell_id) >= 1


def test_the_same_records_give_the_same_page(tmp_path):
    of = free("overlap")
    made.write_speeds(tmp_path, of, [100, 110])
    plan = made.plan_info({"pipelining": [of.id]}, repeats=2)
    pages = []
    for name in ("a.html", "b.html"):
        publish.report(tmp_path, ["pipelining"], plan, tmp_path / name)
        pages.append((tmp_path / name).read_bytes())
    assert pages[0] == pages[1]


def test_without_own_records_the_published_ones_are_shown_and_named(tmp_path):
    of = free("overlap")
    made.write_speeds(tmp_path / "reference/h200", of, [100, 110])
    found = publish.report(
        tmp_path, ["pipelining"], made.plan_info({"pipelining": ["x"]}), tmp_path / "r.html"
    )
    html = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert found.reference
    assert "These are reference records" in html
    assert "shows published runs on NVIDIA H200" in " ".join(html.split())
    assert len(found.missing) == 3


def test_own_records_win_over_published_ones(tmp_path):
    of = free("overlap")
    made.write_speeds(tmp_path / "reference/h200", of, [100])
    own = made.write_speeds(tmp_path, of, [200])
    plan = made.plan_info({"pipelining": [of.id]}, repeats=1)
    found = publish.report(tmp_path, ["pipelining"], plan, tmp_path / "r.html")
    assert (found.paths, found.reference) == (own, False)
    assert publish.say_missing(found, plan) == ""


def test_without_any_record_the_page_lists_all_as_missing(tmp_path):
    plan = made.plan_info({"pipelining": ["a", "b"]})
    found = publish.report(tmp_path, ["pipelining"], plan, tmp_path / "r.html")
    html = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "6 missing repeats" in html
    assert "No record exists yet" in html
    said = publish.say_missing(found, plan)
    assert said.startswith("missing: pipelining: 6 repeats of 2 of its 2 cells")

"""What a report shows, misses and leaves out, for every kind of result, from made-up files."""

from pathlib import Path

import pytest
import record_fixtures as made
import sweep_fixtures as swept
from test_build_report import one, times
from test_gate_report import write as write_verdict

from gpufeed.benchmarks.store_builds import DOCUMENT
from gpufeed.core.folders import records_below
from gpufeed.report import find_results, publish
from gpufeed.report.load_records import read_records
from gpufeed.report.sections import equivalence

OURS = "gpu_decoding"
GATE = "synthetic_224/overlap/b128-w0-pinned-s0"


def plan_of(cells, repeats=2, **kinds):
    """plan_info of OURS and of `other`, which plans nothing beyond cells."""
    plan = made.plan_info({OURS: cells, "other": ["other-cell"]}, repeats)
    plan["experiments"][OURS] |= kinds
    return plan


def write_build(results, decoder, experiment=OURS):
    built = times(decoder, "all", one(1000, 1000, [1.0])) | {"experiment": experiment}
    DOCUMENT.write(built, results / f"builds/{experiment}/{decoder}-all.json")


def measured(results, speeds=(100, 110)):
    """Write the repeats of a cell of OURS; return its plan's cells."""
    of = made.cell("overlap", OURS)
    made.write_speeds(results, of, speeds)
    return [of.id]


def report(results, plan, experiments=(OURS,)):
    """(found, text of the page, what the command line says is missing)."""
    found = publish.report(results, experiments, plan, results / "report.html")
    return found, made.text_of(results / "report.html"), publish.missing_lines(found, plan)


def test_every_kind_that_is_planned_and_not_there_is_missing(tmp_path):
    (cell,) = measured(tmp_path, [100])
    swept.write_sweeps(tmp_path, decoders=["simplejpeg"])
    write_build(tmp_path, "pillow")
    kinds = {"sweep": ["simplejpeg", "strips", "pillow"], "builds": ["pillow-all", "opencv-one"]}
    plan = plan_of([cell], gates=[GATE], kernels={"lines": []}, models=[cell], **kinds)
    found, text, said = report(tmp_path, plan)
    expected = (
        "1 repeat of 1 cell, 1 equivalence check, 2 decoders alone, 1 timed build of caches, "
        "1 kernel benchmark and 1 evaluation of a model"
    )
    assert find_results.in_words(found.missing) == expected
    assert text.index(f"Not measured yet {expected}") > text.index("Leaderboard")  # not before the answer
    assert said == (
        f"missing: {OURS}: {expected} (measure them: snakemake --cores 8 --resources gpu=1 {OURS})"
    )
    for words in (f"{cell} repeat 1", f"{GATE} equivalence check", "opencv-one timed build of caches"):
        assert words in text[text.index("Which ones") :], words


def test_builds_that_nobody_has_measured_have_a_section_that_says_so(tmp_path):
    plan = plan_of(measured(tmp_path), builds=["pillow-all", "opencv-one"])
    _, text, said = report(tmp_path, plan)
    section = text[text.index("Building the cache") :]
    assert "Not measured yet: pillow-all, opencv-one" in section
    assert "2 timed builds of caches" in said


def test_nothing_is_missing_where_all_is_there(tmp_path):
    swept.write_sweeps(tmp_path, decoders=["simplejpeg"])
    found, text, said = report(tmp_path, plan_of(measured(tmp_path), sweep=["simplejpeg"]))
    assert (found.missing, said) == ([], "")
    assert "Not measured yet" not in text


def test_only_experiments_that_were_asked_for_have_a_section(tmp_path):
    plan = plan_of(measured(tmp_path), sweep=["simplejpeg"])
    made.write_speeds(tmp_path, made.cell("resident", "other"), [100])
    swept.write_sweeps(tmp_path, decoders=["simplejpeg"])
    found, text, _ = report(tmp_path, plan, ["other"])
    assert found.sweeps == []
    assert "Title of other" in text
    assert f"Title of {OURS}" not in text
    assert "NVIDIA H200, 16 cores" not in text


def test_results_that_are_no_longer_planned_are_named_and_not_shown(tmp_path):
    plan = plan_of(measured(tmp_path), gates=[GATE], sweep=["simplejpeg"])
    stale = made.write_speeds(tmp_path, made.cell("resident", OURS), [1])
    swept.write_sweeps(tmp_path, decoders=["simplejpeg", "dali_gpu"])
    write_build(tmp_path, "pillow")
    write_verdict(tmp_path, "overlap")
    write_verdict(tmp_path, "overlap", "failed", "It was wrong then.", batch_size=512)
    found, text, _ = report(tmp_path, plan)
    assert set(found.stale) == {
        *stale,
        tmp_path / "sweeps/gpu_decoding/dali_gpu.json",
        tmp_path / "builds/gpu_decoding/pillow-all.json",
        tmp_path / "gate/synthetic_224/overlap/b512-w0-pinned-s0.json",
    }
    before, after = text.split("Not shown")
    assert "dali_gpu" not in before.split("How fast each is")[0]  # the headline
    assert "on the GPU pays" not in before
    assert "It was wrong then." not in text
    assert "Building the cache" not in text
    (row,) = equivalence.rows(found.gates, read_records(found.paths))
    assert row.status == "passed"
    for path in found.stale:
        assert str(path) in after


def test_what_another_experiment_plans_is_not_stale(tmp_path):
    write_verdict(tmp_path, "overlap", batch_size=512)
    plan = plan_of(measured(tmp_path))
    plan["experiments"]["other"]["gates"] = ["synthetic_224/overlap/b512-w0-pinned-s0"]
    found, _, _ = report(tmp_path, plan)
    assert (found.stale, found.gates) == ([], [])


def test_a_repeat_that_was_measured_twice_is_one_and_its_second_record_is_not_stale(tmp_path):
    of = made.cell("overlap", OURS)
    first, quiet = made.beside(made.record(of, 0, 100.0), 0.25), made.record(of, 1, 300.0)
    made.write(tmp_path, first, quiet)
    marked = "1 of 2 repeats of overlap"
    _, text, _ = report(tmp_path, plan_of([of.id]))
    assert f"more than 5 % of the cores, up to 25 %, during {marked}" in text
    assert "others on the cores in 1" in text
    made.write(tmp_path, made.beside(made.record(of, 0, 200.0), 0.01), name="{}-again")
    found, text, _ = report(tmp_path, plan_of([of.id]))
    assert [path.stem for path in found.paths] == ["0", "0-again", "1"]
    assert (found.missing, found.stale) == ([], [])
    assert "2 finished" in text
    assert "250 images/s (median, range 200 to 300, n = 2)" in text
    assert f"the first time: {marked}; of each the quieter measurement counts" in text
    assert "of the cores, up to" not in text
    assert "others on the cores" not in text
    # published with both
    (tmp_path / "reference/h200").mkdir(parents=True)
    (tmp_path / "records").rename(tmp_path / "reference/h200/records")
    found, text, _ = report(tmp_path, plan_of([of.id]))
    assert "250 images/s (median, range 200 to 300, n = 2)" in text
    assert len(records_below(tmp_path / "reference/h200")) == 3


def test_where_all_repeats_were_disturbed_no_cell_is_named(tmp_path):
    cells = [made.cell(loader, OURS) for loader in ("overlap", "resident")]
    made.write(tmp_path, *(made.beside(made.record(of, n, 100.0), 0.25) for of in cells for n in range(2)))
    _, text, _ = report(tmp_path, plan_of([of.id for of in cells]))
    assert "more than 5 % of the cores, up to 25 %, during all 4 repeats" in text


@pytest.mark.parametrize("kind", ["paths", "sweeps", "builds", "evaluations"])
def test_own_results_of_any_kind_win_over_published_ones(tmp_path, kind):
    (cell,) = measured(tmp_path / "reference/h200")
    evaluation = tmp_path / f"models/{OURS}/{cell}/evaluation.json"
    match kind:
        case "paths":
            measured(tmp_path, [200])
        case "sweeps":
            swept.write_sweeps(tmp_path, decoders=["simplejpeg"])
        case "builds":
            write_build(tmp_path, "pillow")
        case "evaluations":
            evaluation.parent.mkdir(parents=True)
            evaluation.write_text("{")  # damaged, and own all the same
    found, text, _ = report(tmp_path, plan_of([cell], sweep=["simplejpeg"], builds=["pillow-all"]))
    assert not found.reference
    assert len(found.paths) == (kind == "paths")
    assert len(getattr(found, kind)) == 1
    assert "Nothing has been measured here yet" not in text


def test_published_sweeps_are_shown_where_there_is_nothing_else(tmp_path):
    swept.write_sweeps(tmp_path / "reference/h200")
    write_verdict(tmp_path, "overlap")  # a verdict is no measurement
    found, text, _ = report(tmp_path, plan_of(["x"], sweep=["simplejpeg"]))
    assert found.reference
    assert "decoding single JPEGs on the GPU pays" in text
    assert "the page shows published runs." in text


def test_a_verdict_that_two_experiments_wait_for_is_missing_once():
    parts = [find_results.Part(name, "gates", Path(f"gate/{GATE}.json")) for name in ("a", "b")]
    assert find_results.in_words(parts) == "1 equivalence check"
    assert find_results.in_words([]) == "nothing"


def test_the_records_of_a_folder_of_several_runs_are_no_decisions_of_theirs(tmp_path):
    for number in range(2):
        made.write(tmp_path / f"machine-{number}", made.record(made.cell("overlap", OURS), number))
        decision = tmp_path / f"machine-{number}/again/{OURS}/{number}.json"
        decision.parent.mkdir(parents=True)
        decision.write_text('{"again": []}')
    found = records_below(tmp_path)
    assert [path.stem for path in found] == ["0", "1"]
    assert all("records" in path.parts for path in found)

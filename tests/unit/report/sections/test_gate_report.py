"""The gate's verdicts in the report: what passed, what failed and why, and what has none."""

import re
from html import unescape

import pytest
import record_fixtures as made
from report_fixtures import page_of

from gpufeed.core.equivalence_verdict import Verdict, variant
from gpufeed.report import load_records, publish
from gpufeed.report.sections import equivalence

AXES = ("batch_size", "workers", "prefetch_factor", "persistent_workers", "pin_memory", "seed")
SETTINGS = {name: made.cell().asdict()[name] for name in AXES}
WRONG = "in epoch 2 of 3 of split train it was wrong: found <b>label</b> 3 & more."


def write(
    results,
    loader: str,
    status="passed",
    sentence=None,
    largest=0,
    mean=0.0,
    gpu: str | None = made.H200,
    windows: dict | None = None,
    loading: dict | None = None,
    **axes,
):
    """A verdict on `loader`; axes: changes of SETTINGS."""
    settings = {**SETTINGS, **axes}
    Verdict(
        dataset="synthetic_224",
        loader=loader,
        settings=settings,
        attempt=1,
        planned_on="node-a",
        started_at="2026-01-02T03:04:05+00:00",
        finished_at="2026-01-02T03:05:05+00:00",
        environment=made.environment(gpu),
        status=status,
        sentence=sentence,
        device="cuda" if gpu else "cpu",
        samples={"train": 500},
        pixels={"decoder": "pillow", "version": "pillow 9.1", "max": 16, "mean": 2.0},
        reference={"decoder_version": "pillow 13.0.0", "sha256": "0", "manifest_sha256": "1"},
        epochs=4,
        compared=2500,
        max_difference=largest,
        mean_difference=mean,
        windows=windows,
        loading=loading,
    ).write(results / "gate/synthetic_224" / loader / f"{variant(settings)}.json")


@pytest.fixture
def results(tmp_path):
    """Records of five loaders; verdicts on three of them, and one on a loader without a record."""
    loaders = ("dataloader_sync", "overlap", "resident", "replay", "dataloader_workers")
    ids = [made.cell(loader).id for loader in loaders]
    made.write(tmp_path, *(made.record(made.cell(loader)) for loader in loaders if loader != "overlap"))
    made.write(tmp_path, made.unfinished(made.cell("overlap"), "failed", f"overlap did not pass: {WRONG}"))
    write(tmp_path, "dataloader_sync")
    write(tmp_path, "overlap", "failed", WRONG)
    write(tmp_path, "overlap", "failed", WRONG, workers=2)
    write(tmp_path, "overlap", seed=4)
    write(tmp_path, "resident", largest=13, mean=0.51)
    write(tmp_path, "resident", largest=14, mean=0.52, batch_size=64)
    write(tmp_path, "unplanned")
    plan = made.plan_info({"pipelining": ids}, repeats=1)
    verdicts = (path.relative_to(tmp_path / "gate") for path in tmp_path.glob("gate/*/*/*.json"))
    plan["experiments"]["pipelining"]["gates"] = [str(path.with_suffix("")) for path in verdicts]
    return tmp_path, plan


def test_a_row_for_each_loader_with_a_record(results):
    folder, _ = results
    paths = sorted(folder.glob("records/*/*/*.json"))
    verdicts = sorted(folder.glob("gate/*/*/*.json"))
    found = {row.loader: row for row in equivalence.rows(verdicts, load_records.read_records(paths))}
    assert {loader: row.status for loader, row in found.items()} == {
        "dataloader_sync": "passed",
        "overlap": "failed",
        "resident": "passed",
        "replay": "exempt",
        "dataloader_workers": "not judged",
    }
    resident = found["resident"]
    assert (resident.largest, resident.mean) == ("13 to 14", "0.51 to 0.52")
    assert resident.compared == "5,000 images in 8 epochs, 2 settings"
    assert (resident.decoder, resident.allowed, resident.machine) == ("pillow 9.1", "16 (mean 2)", made.H200)
    assert found["dataloader_sync"].largest == "0"
    settings = "batch size 128, 0 workers, pinned, seed 0 and 1 more setting"
    assert found["overlap"].troubles == ((settings, WRONG),)


def test_the_page_shows_what_failed_and_why_and_gives_it_no_timing(results):
    folder, plan = results
    html = page_of(folder, plan)
    section = html[html.index('<section id="same">') :]
    section = section[: section.index("</section>")]
    assert "<b>label</b>" not in section
    text = " ".join(unescape(re.sub(r"<[^>]+>", " ", section)).split())
    assert "overlap failed pillow 9.1" in text
    assert f"0 workers, pinned, seed 0 and 1 more setting {WRONG}" in text
    assert "replay exempt" in text
    assert "dataloader_workers not judged" in text
    assert "unplanned" not in text
    table = load_records.read_records(sorted(folder.glob("records/*/*/*.json"))).set_index("loader")
    assert table.loc["overlap", ["images_per_s"]].isna().all()


def test_a_damaged_verdict_is_a_row_that_says_so(results):
    folder, plan = results
    path = folder / "gate/synthetic_224/resident/b64-w0-pinned-s0.json"
    path.write_text(path.read_text()[:50])
    whole, damaged = equivalence.judged(sorted(path.parent.glob("*.json")))
    assert (whole.status, whole.largest, damaged.status) == ("passed", "13", "unusable")
    assert "no readable verdict" in damaged.troubles[0][1]
    assert "no readable verdict" in page_of(folder, plan)


def test_published_verdicts_are_shown_with_published_records(results, tmp_path_factory):
    _, plan = results
    other = tmp_path_factory.mktemp("site")
    made.write(other / "reference/a", made.record(made.cell("overlap")))
    write(other / "reference/a", "overlap")
    write(other / "reference/b", "overlap", gpu=None)
    found = publish.report(other, ["pipelining"], plan, other / "report.html")
    assert found.reference
    shown = equivalence.rows(found.gates, load_records.read_records(found.paths))
    assert [row.machine for row in shown] == [made.H200, made.CPU]


def own_windows(why: str | None = None, **p: float) -> dict:
    """`windows` of a verdict; p: of measures that are not those of two equal rules."""
    measures = ("area", "ratio", "x", "y", "flip")
    found = {name: {"statistic": 0.3 if name in p else 0.01, "p": p.get(name, 0.5)} for name in measures}
    return {"count": 10_000, "why": why, **found}


def test_windows_of_a_librarys_own_are_compared_with_ours(tmp_path):
    paths = [
        tmp_path / f"gate/synthetic_224/overlap/{variant({**SETTINGS, 'seed': seed})}.json" for seed in (0, 1)
    ]
    write(tmp_path, "overlap", windows=own_windows(y=0.004))
    (row,) = equivalence.judged(paths[:1])
    assert row.notes == (
        "It draws its windows itself, by our rule, as far as can be seen. The Kolmogorov-Smirnov statistic "
        "of 10,000 windows: place in y 0.300 (p 0.004).",
    )
    write(tmp_path, "overlap", seed=1, windows=own_windows("It keeps to a grid.", area=1e-30, x=0.0))
    (row,) = equivalence.judged(paths)
    assert row.status == "passed"
    assert row.notes == (
        "It draws its windows itself, by another rule than ours. The Kolmogorov-Smirnov statistic of "
        "10,000 windows: area 0.300 (p 1e-30) and place in x 0.300 (p 0). It keeps to a grid.",
    )


def test_a_verdict_notes_why_samples_differ(tmp_path):
    recipe = {"size": 224, "short_side": 300}
    write(tmp_path, "host_cache", recipe=recipe)
    write(tmp_path, "webdataset_resampled")
    write(tmp_path, "overlap", largest=17, recipe=recipe)
    write(tmp_path, "dataloader_sync", largest=16, recipe=recipe)
    notes = {path.parts[-2]: equivalence.judged([path])[0].notes for path in tmp_path.rglob("*.json")}
    assert notes["dataloader_sync"] == ()
    (cache,), (replacement,), (reduced,) = map(notes.get, ("host_cache", "webdataset_resampled", "overlap"))
    assert "short sides of at most 300 pixels" in cache
    assert "with replacement" in replacement
    assert "at a fraction of its size" in reduced


def test_the_page_says_what_was_made_of_the_images(results):
    folder, plan = results
    words = "a file with long sides of at most 500 pixels"
    write(folder, "resident", loading={"decoder": "a", "images": 1, "fell_back": {}, "images_from": words})
    assert f"It reads {words}." in page_of(folder, plan)

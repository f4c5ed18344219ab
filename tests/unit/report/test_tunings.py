"""What tunings tried, in the page of an experiment."""

import record_fixtures as made

from gpufeed.core.record import TUNED
from gpufeed.report.sections import tunings

SETTING = {"decoder": "pillow", "persistent_workers": True, "prefetch_factor": 2, "pin_memory": True}


def written(folder, status="done", sentence=None, tried=()):
    """The path of a tuning of a cell of experiment `pipelining`."""
    cell = made.cell("dataloader_workers", workers=2, prefetch_factor=2)
    about = {"experiment": cell.experiment, "cell_id": cell.id, "cell": cell.asdict(), "sentence": sentence}
    about |= {"schema_version": 1, "attempt": 1, "status": status, "planned_on": "here", "resolved": None}
    about |= dict.fromkeys(("started_at", "finished_at"), "2026-01-01T00:00:00.000+00:00")
    done = {"limits": None, "decoders": {}, "settings": [], "budget_s": None, "spent_s": None}
    if tried:
        done |= {"settings": [{**SETTING, "workers": n} for n in (1, 2, 4)], "budget_s": 9.0, "spent_s": 8.1}
    path = folder / cell.experiment / f"{cell.id}.json"
    path.parent.mkdir(parents=True)
    TUNED.write({**about, **done, "tried": list(tried), "environment": made.environment()}, path)
    return path


def row(workers, rate, rung):
    return {**SETTING, "workers": workers, "images_per_s": rate, "seconds": 1.25, "rung": rung}


def test_a_tuning_is_a_table_with_the_lines_to_paste(tmp_path):
    path = written(tmp_path, tried=[row(4, 2000.0, 3), row(2, 1500.0, 1)])
    (found,) = tunings.section([path], "pipelining")
    assert [(one["rate"], one["share"], one["rung"]) for one in found["rows"]] == [
        ("2,000", "100%", 3),
        ("1,500", "75%", 1),
    ]
    assert (found["settings"], found["spent"]) == (3, "8")
    assert found["lines"][1].startswith("loader=dataloader_workers workers=4 ")
    assert tunings.section([path], "another") == []


def test_a_tuning_that_came_to_nothing_says_why(tmp_path):
    (found,) = tunings.section([written(tmp_path, "skipped", "No GPU.")], "pipelining")
    assert (found["rows"], found["trouble"]) == ([], "No GPU.")


def test_a_damaged_tuning_says_so(tmp_path):
    path = written(tmp_path, "skipped", "No GPU.")
    path.write_text("{")
    (found,) = tunings.section([path], "pipelining")
    assert "no readable tuning" in found["trouble"]

"""Which records are final."""

import json

import pytest

from gpufeed.core.retry_policy import attempt, ended, outdate

GPU = {"environment": {"gpu": {"name": "Some GPU"}}}
CPU = {"environment": {"gpu": None}}


def written(tmp_path, document):
    path = tmp_path / "0.json"
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"status": "done", "attempt": 1, "planned_on": "a", **CPU}, 1),
        ({"status": "done", "attempt": 3, "planned_on": "b", **GPU}, 3),
        ({"status": "passed", "attempt": 3, "planned_on": "b", **GPU}, 3),
        ({"status": "skipped", "attempt": 1, "planned_on": "a", **CPU}, 1),
        ({"status": "skipped", "attempt": 1, "planned_on": "b", **GPU}, 2),
        ({"status": "partial", "attempt": 1, "planned_on": "a"}, 1),
        ({"status": "partial", "attempt": 1, "planned_on": "b"}, 2),
        ({"status": "failed", "attempt": 1, "planned_on": "a", **GPU}, 2),
        ({"status": "failed", "attempt": 2, "planned_on": "a", **GPU}, 3),
        ({"no": "record"}, 2),
        ([], 2),
    ],
)
def test_failed_records_and_those_skipped_elsewhere_are_tried_again(tmp_path, record, expected):
    assert attempt(written(tmp_path, record), node="a") == expected


@pytest.mark.parametrize("status", ["done", "passed"])
@pytest.mark.parametrize(
    ("environment", "node", "device", "expected"),
    [
        (CPU, "a", "auto", 1),
        (CPU, "b", "auto", 2),  # which may have the GPU that auto did not find
        (CPU, "b", "cpu", 1),
        (GPU, "b", "auto", 1),
        (GPU, "b", "cuda", 1),
    ],
)
def test_what_auto_made_without_cuda_is_final_where_it_was_planned(
    tmp_path, status, environment, node, device, expected
):
    record = {"status": status, "attempt": 1, "planned_on": "a", **environment}
    assert attempt(written(tmp_path, record), node, device) == expected


@pytest.mark.parametrize("parts", ["rows", "points"])
@pytest.mark.parametrize(
    ("status", "here", "elsewhere"), [("done", 1, 1), ("skipped", 1, 2), ("refused", 1, 2), ("failed", 2, 2)]
)
def test_a_part_that_failed_or_was_skipped_counts_for_the_whole(tmp_path, parts, status, here, elsewhere):
    document = {"status": "done", "attempt": 1, "planned_on": "a", **GPU}
    path = written(tmp_path, {**document, parts: [{"status": "done"}, {"status": status}]})
    assert (attempt(path, "a"), attempt(path, "b")) == (here, elsewhere)


def test_an_outdated_verdict_is_made_again_once(tmp_path):
    verdict = {"status": "passed", "planned_on": "a", **CPU}
    path = written(tmp_path, {**verdict, "attempt": 1})
    ended(path, 1)
    outdate(path, 1)
    assert attempt(path, "a") == 2
    path.unlink()  # as Snakemake does before the job asks again
    assert attempt(path, "a") == 2
    written(tmp_path, {**verdict, "attempt": 2})
    ended(path, 2)
    assert attempt(path, "a") == 2


def test_without_a_record_it_is_the_first(tmp_path):
    assert attempt(tmp_path / "0.json", node="a") == 1


@pytest.mark.parametrize("text", ['{"status": "do', '{"status": "done", "planned_on": "a", "attempt": "x"}'])
def test_a_torn_record_is_tried_again(tmp_path, text):
    (tmp_path / "0.json").write_text(text)
    assert attempt(tmp_path / "0.json", node="a", first=True, keep=True) == 2
    (tmp_path / "0.json").unlink()
    assert attempt(tmp_path / "0.json", node="a") == 2


@pytest.mark.parametrize(
    ("status", "text", "node", "expected"),
    [
        ("done", None, "a", 1),  # its code or settings have changed
        ("failed", None, "a", 2),
        ("skipped", None, "b", 2),
        ("done", "{", "a", 2),
        ("failed", "{", "a", 2),
        ("done", "", "a", 2),  # moved away
    ],
)
def test_what_is_planned_is_what_the_job_gets_and_the_next_run_finds(tmp_path, status, text, node, expected):
    """Otherwise each run would measure again what an earlier one had to measure again."""
    document = {"status": status, "attempt": 1, "planned_on": "a", **GPU}
    path = written(tmp_path, document)
    ended(path, 1)
    if text is not None:
        path.write_text(text)
    if text == "":
        path.unlink()
    assert attempt(path, node, first=True) == expected  # a dry run, which leaves nothing behind
    assert not path.with_suffix(".outdated").exists()
    planned = attempt(path, node, first=True, keep=True)
    path.unlink(missing_ok=True)  # as Snakemake does before it asks for the job
    made = {"status": "done", "attempt": attempt(path, node), "planned_on": node, **GPU}
    written(tmp_path, made)
    ended(path, made["attempt"])
    assert (planned, made["attempt"], attempt(path, node, first=True)) == (expected, expected, expected)

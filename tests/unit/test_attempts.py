"""Which records are final."""

import json

import pytest

from gpufeed.attempts import attempt


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"status": "done", "attempt": 1, "planned_on": "a"}, 1),
        ({"status": "done", "attempt": 3, "planned_on": "b"}, 3),
        ({"status": "skipped", "attempt": 1, "planned_on": "a"}, 1),
        ({"status": "skipped", "attempt": 1, "planned_on": "b"}, 2),
        ({"status": "failed", "attempt": 1, "planned_on": "a"}, 2),
        ({"status": "failed", "attempt": 2, "planned_on": "a"}, 3),
        ({"no": "record"}, 2),
        ([], 2),
    ],
)
def test_failed_records_and_those_skipped_elsewhere_are_tried_again(tmp_path, record, expected):
    path = tmp_path / "0.json"
    path.write_text(json.dumps(record))
    assert attempt(path, node="a") == expected


def test_without_a_record_it_is_the_first(tmp_path):
    assert attempt(tmp_path / "0.json", node="a") == 1


def test_a_torn_record_is_tried_again(tmp_path):
    (tmp_path / "0.json").write_text('{"status": "do')
    assert attempt(tmp_path / "0.json", node="a") == 2

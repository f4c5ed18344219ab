"""What the report says and draws of kept models."""

import re

import numpy as np
import pytest
import record_fixtures as made
from hypothesis import given
from hypothesis import strategies as st
from report_fixtures import page_of
from trained_fixtures import evaluation, unfinished, write_evaluation

from gpufeed.core.errors import GpufeedError
from gpufeed.report import publish
from gpufeed.report.sections import confusion

BY_HAND = np.array([[8, 2, 0], [1, 4, 5], [0, 0, 1]])  # red, green, blue


def test_sentences_by_hand():
    first, second, third = confusion.sentences(evaluation(BY_HAND))
    assert first == "13 of the 21 images of split test get their own class (62 %), loss 0.75."
    assert second == "Recognised best is blue (100 % of its images), least green (40 %)."
    assert third == (
        "Confused most often: green taken for blue (5 of 10 images), red taken for green (2 of 10 images) "
        "and green taken for red (1 of 10 images)."
    )


def test_a_model_that_is_always_right_confuses_nothing():
    said = confusion.sentences(evaluation(np.diag([3, 4, 5])))
    assert said[1:] == ["No class is taken for another one."]
    assert "100 %" in said[0]


def test_a_class_without_images_is_in_no_sentence():
    said = " ".join(confusion.sentences(evaluation(np.array([[3, 1, 0], [0, 0, 0], [2, 0, 2]]))))
    assert "least blue" in said
    assert "best is red" in said


matrices = st.integers(1, 6).flatmap(
    lambda n: st.lists(st.lists(st.integers(0, 9), min_size=n, max_size=n), min_size=n, max_size=n)
)


@given(matrices)
def test_the_confused_pairs_are_all_that_is_off_the_diagonal(rows):
    matrix = np.array(rows)
    names = [f"class {i}" for i in range(len(matrix))]
    pairs = confusion.confused(matrix, names)
    assert sum(pair.count for pair in pairs) == matrix.sum() - matrix.trace()
    assert [pair.count for pair in pairs] == sorted((pair.count for pair in pairs), reverse=True)
    for pair in pairs:
        row, column = names.index(pair.true), names.index(pair.predicted)
        assert row != column
        assert (pair.count, pair.of) == (matrix[row, column], matrix[row].sum())


def measured(results):
    """Writes one cell; returns the plan's {experiment: cell ids}."""
    of = made.cell("resident")
    made.write_speeds(results, of, [100])
    return {"pipelining": [of.id]}


def test_the_pages_section_has_the_model_and_its_troubles(tmp_path):
    results = tmp_path / "results"
    ids = measured(results)
    path = write_evaluation(results, evaluation(BY_HAND))
    path.with_name("model.pt").touch()
    skipped = write_evaluation(results, unfinished("skipped", "No CUDA GPU <here>."), seed=1)
    damaged = write_evaluation(results, evaluation(BY_HAND), seed=2)
    damaged.write_text("{")
    plan = made.plan_info(ids)
    there = [one.parent.name for one in (path, skipped, damaged)]
    plan["experiments"]["pipelining"]["models"] = [*there, "never"]
    html = page_of(results, plan)
    assert "green taken for blue (5 of 10 images)" in html
    assert f"gpufeed.predict {path.parent.as_posix()}/model.pt" in html
    assert "No CUDA GPU &lt;here&gt;." in html
    assert re.search(rf"unusable</span> <code>{damaged.parent.name}</code>", html)
    assert "1 of the models that are to be kept has no evaluation yet" in html
    section = html[html.index("<h3>Kept models</h3>") :]
    assert section.index("<svg ") < section.index("skipped</span>")


@pytest.mark.usefixtures("drawn")
def test_a_figure_of_nothing_says_why(tmp_path):
    path = write_evaluation(tmp_path, unfinished("failed", "Found evaluation loss nan."))
    publish.plot_confusion(path, tmp_path / "confusion.svg")
    assert "evaluation loss nan" in (tmp_path / "confusion.svg").read_text()


@pytest.mark.parametrize("matrix", [[], [[1, 2], [3, 4]], [[1, 2, 3], [4, 5], [6, 7, 8]]])
def test_a_matrix_that_is_not_that_of_its_classes_is_damage(tmp_path, matrix):
    path = write_evaluation(tmp_path, evaluation(BY_HAND, confusion=matrix))
    with pytest.raises(GpufeedError, match="rows for 3 classes"):
        confusion.read(path)


@pytest.mark.usefixtures("drawn")
def test_predictions_beside_an_evaluation_are_shown_and_their_text_is_only_text(tmp_path):
    published = tmp_path / "results/reference/h200"
    ids = measured(published)
    evaluated = write_evaluation(published, evaluation(BY_HAND))
    evaluated.with_name("predictions.csv").write_text(
        "file,reason,class_1,probability_1,class_2,probability_2,class_3,probability_3\n"
        "data/toys/images/test/red/7.png,,red,0.912345,blue,0.050000,green,0.037655\n"
        "<b>/8.png,no <i>image</i>,,,,,,\n"
    )
    page = page_of(tmp_path / "results", made.plan_info(ids))
    assert "Predictions for 2 images" in page
    assert "<code>red/7.png</code></td><td>red (91 %)</td><td>blue (5.0 %)</td>" in page
    assert "no &lt;i&gt;image&lt;/i&gt;" in page
    assert "<b>" not in page


@pytest.mark.parametrize("text", ["file,reason,class_1,probability_1\nred/7.png,,red,much\n", "one\n1\n"])
def test_damaged_predictions_are_told_and_stop_no_report(tmp_path, text):
    path = write_evaluation(tmp_path, evaluation(BY_HAND))
    path.with_name("predictions.csv").write_text(text)
    found = confusion.section([path], path.parent.parent.name, [])
    assert found["models"] == []
    assert [trouble["status"] for trouble in found["troubles"]] == ["unusable"]
    assert "predictions.csv" in found["troubles"][0]["sentence"]

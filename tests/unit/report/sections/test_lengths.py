"""Accuracy by the length of the run: what is compared, and from which length on more epochs bring little."""

from dataclasses import replace

import pytest
import record_fixtures as made
from report_fixtures import page_of

from gpufeed.report import load_records
from gpufeed.report.sections import run_lengths


def written(results, accuracies: dict[int, list[float]], **axes):
    """Records of one model by number of epochs: the top-1 of each repeat."""
    paths = []
    for epochs, each in accuracies.items():
        of = made.cell("resident", "accuracy", model="resnet18", epochs=epochs, **axes)
        paths += made.write(
            results, *(made.record(of, n, epochs=epochs, top1=top1) for n, top1 in enumerate(each))
        )
    return paths


def read(tmp_path, accuracies, **axes):
    return run_lengths.section(load_records.read_records(written(tmp_path, accuracies, **axes)))


def test_the_gain_is_that_of_twenty_more_epochs(tmp_path):
    (found,) = read(tmp_path, {20: [0.40, 0.41, 0.42], 60: [0.449, 0.45, 0.46], 80: [0.4505, 0.451, 0.452]})
    assert found["title"] == "resnet18 on synthetic_224"
    assert [row["epochs"] for row in found["rows"]] == [20, 60, 80]
    assert [row["gain"] for row in found["rows"]] == pytest.approx([float("nan"), 0.02, 0.001], nan_ok=True)
    assert (found["rows"][0]["low"], found["rows"][0]["high"]) == pytest.approx((0.40, 0.42))
    assert found["sentence"] == (
        "45.10 % after 80 epochs (range 45.05 % to 45.20 %, n = 3). "
        "From 60 epochs on 20 more bring less than 0.2 points."
    )


def test_a_late_gain_is_not_passed_over(tmp_path):
    (found,) = read(tmp_path, {20: [0.400], 40: [0.4001], 60: [0.41]})
    assert "At the end 20 more epochs still bring 0.99 points" in found["sentence"]
    (found,) = read(tmp_path / "b", {20: [0.40], 40: [0.42], 60: [0.4201], 80: [0.419]})
    assert "From 40 epochs on" in found["sentence"]


@pytest.mark.parametrize("axes", [{"steps": 10}, {}])
def test_one_length_and_runs_of_a_few_steps_are_no_series(tmp_path, axes):
    lengths_of = {20: [0.4, 0.5]} if not axes else {20: [0.4], 40: [0.5]}
    assert read(tmp_path, lengths_of, **axes) == []


def evaluated(results, *accuracies, every=1):
    """Records of one length, by seed: top-1 after each epoch, or each `every`-th."""
    of = made.cell("resident", "accuracy", model="resnet18", epochs=len(accuracies[0]))
    repeats = []
    for number, each in enumerate(accuracies):
        one = made.record(of, number, epochs=len(each), top1=each[-1])
        told = [one.accuracy | {"top1": top1, "correct": round(10_000 * top1)} for top1 in each]
        epochs = [
            row | {"accuracy": accuracy if place % every == 0 else None}
            for place, (row, accuracy) in enumerate(zip(one.epochs, told, strict=True), 1)
        ]
        repeats.append(replace(one, epochs=epochs))
    return run_lengths.section(load_records.read_records(made.write(results, *repeats)))


def test_what_the_last_twenty_epochs_of_a_run_brought(tmp_path):
    (found,) = evaluated(tmp_path / "a", [0.1, *[0.5] * 20], [0.3, *[0.51] * 20], [0.509, *[0.51] * 20])
    assert found["sentence"] == (
        "51.00 % after 21 epochs (range 50.00 % to 51.00 %, n = 3). "
        "Its last 20 brought +21.00 points (range +0.10 to +40.00): not trained out."
    )
    (found,) = evaluated(tmp_path / "b", [0.0, 0.5, *[0.4] * 19, 0.5019])
    late = "Its last 20 brought +0.19 points (range +0.19 to +0.19): less than 0.2 within the run."
    assert late in found["sentence"]
    (row,) = found["rows"]
    assert (row["late"], row["gain"]) == pytest.approx((0.0019, float("nan")), nan_ok=True)


def test_a_run_that_was_not_asked_twenty_epochs_before_its_end_says_nothing_of_it(tmp_path):
    assert evaluated(tmp_path / "short", [0.4] * 20) == []
    assert evaluated(tmp_path / "seldom", [0.4] * 23, every=23) == []


def test_models_are_apart_and_the_page_shows_both(tmp_path):
    paths = written(tmp_path, {20: [0.4], 40: [0.5]})
    paths += written(tmp_path, {20: [0.6], 40: [0.6]}, batch_size=64)
    table = load_records.read_records(paths)
    assert len(run_lengths.section(table)) == 2
    text = page_of(tmp_path, made.plan_info({"accuracy": sorted(set(table["cell_id"]))}, repeats=1))
    assert "Accuracy by the length of the run" in text
    assert "40 50.00 % 50.00 % to 50.00 % 1" in made.text_of(tmp_path / "report.html")
    assert text.count("From 20 epochs on") == 2  # in the answer, and in its section
    answer = text.split('<section id="answer"')[1].split("</section>")[0]
    assert "images/s" not in answer  # the rate of one pipeline answers nothing
    assert "No pipeline has a finished repeat" not in answer

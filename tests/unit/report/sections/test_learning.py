"""Loss and accuracy by epoch, by activation and pipeline: what is drawn, and what is said of differences."""

import pytest
import record_fixtures as made
import report_fixtures

from gpufeed.report import load_records
from gpufeed.report.sections import learning

FORMS = ("gelu", "bias_gelu")
VIT = "trainer.optimiser=adamw"


def of(activation: str, loader: str = "resident", epochs: int = 3, **axes):
    """A cell of a model with that activation, as an override says it."""
    overrides = (VIT, f"model.activation={activation}") if activation else (VIT,)
    hyper = {"model": {"activation": activation} if activation else {}}
    return made.cell(loader, model="vit_tiny", epochs=epochs, overrides=overrides, hyper=hyper, **axes)


def write(folder, cell, losses, top1=None) -> list:
    """A repeat for each of `losses`, its last training loss; top1: after each epoch, where it was asked."""
    paths = []
    for repeat, loss in enumerate(losses):
        one = made.record(cell, repeat, 100 + repeat, epochs=cell.epochs, top1=top1 and top1[-1])
        one.epochs[-1]["train_loss"] = loss
        for epoch, share in zip(one.epochs, top1 or (), strict=False):
            accuracy = {"split": "val", "images": 1000, "correct": round(1000 * share), "top1": share}
            epoch["accuracy"] = {**accuracy, "loss": 1 - share}
        paths += made.write(folder, one)
    return paths


def read(paths):
    """(cells, epochs) of records."""
    cells, repeats = report_fixtures.read(paths)
    return cells, load_records.read_epochs(repeats)


def test_what_was_asked_after_each_epoch_is_read_and_older_records_have_none(tmp_path):
    paths = write(tmp_path, of("gelu"), [1.0], top1=[0.2, 0.4, 0.5])
    _, epochs = read(paths)
    assert epochs["top1"].tolist() == [0.2, 0.4, 0.5]
    assert epochs["held_out_loss"].tolist() == pytest.approx([0.8, 0.6, 0.5])
    _, older = read(write(tmp_path / "older", of("gelu"), [1.0]))
    assert older[["held_out_loss", "top1"]].isna().all().all()
    assert older["train_loss"].notna().all()


def test_activations_are_of_one_task_and_other_overrides_are_not(tmp_path):
    paths = [path for form in FORMS for path in write(tmp_path, of(form), [1.0])]
    wide = made.cell(
        "resident", model="vit_tiny", epochs=3, overrides=(VIT, "model.heads=6", "model.activation=gelu"),
        hyper={"model": {"activation": "gelu"}},
    )  # fmt: skip
    cells, epochs = read(paths + write(tmp_path, wide, [1.0]))
    merged, other = learning.tasks(cells)
    assert sorted(merged["activation"]) == ["bias_gelu", "gelu"]
    assert set(merged["variant"]) == {""}  # the task is named without what varies in it
    assert list(other["variant"]) == ["model.heads=6; model.activation=gelu"]
    assert len(learning.learners(cells, epochs)) == 2


def test_what_is_too_high_for_a_sheet_of_paper_goes_on_in_another_figure(tmp_path):
    paths = []
    for number in range(6):
        cell = of("gelu", batch_size=32 + number)
        paths += write(tmp_path, cell, [1.0], top1=[0.1, 0.2, 0.3])
    sheets = learning.draw(*read(paths))
    assert sum(len(sheet.axes) for sheet in sheets) == 6 * 4  # no task is in two pieces or left out
    assert len(sheets) > 1
    assert all(sheet.get_figheight() <= learning.SHEET_IN for sheet in sheets)
    assert learning.draw(*read(write(tmp_path, of("gelu", epochs=1), [1.0]))) == []


def test_the_band_is_the_range_of_the_repeats(tmp_path):
    axis = learning.draw(*read(write(tmp_path, of("gelu"), [1.0, 1.5, 3.0])))[0].axes[0]
    (band,) = axis.collections
    ends = [point[1] for point in band.get_paths()[0].vertices if point[0] == 3]
    assert (min(ends), max(ends)) == (1.0, 3.0)
    assert axis.lines[0].get_ydata()[-1] == 1.5


@pytest.mark.parametrize(
    ("other", "words", "verdict"),
    [
        ((1.1, 1.6), "bias_gelu and gelu 0.1 (0.5)", "No two differ by more than two seeds do."),
        (
            (2.0, 2.4),
            "bias_gelu and gelu 1 (0.5)",
            "bias_gelu and gelu: they differ by more than two seeds do.",
        ),
    ],
)
def test_two_activations_are_held_against_two_seeds(tmp_path, other, words, verdict):
    paths = write(tmp_path, of("gelu"), [1.0, 1.5]) + write(tmp_path, of("bias_gelu"), other)
    said = learning.difference(*read(paths))
    assert words in " ".join(said.split())
    assert said.endswith(verdict)


def test_the_worst_pipeline_speaks_for_a_pair(tmp_path):
    paths = []
    for loader, loss in {"resident": 1.01, "overlap": 1.7}.items():
        paths += write(tmp_path, of("bias_gelu", loader), [1.0, 1.2])
        paths += write(tmp_path, of("gelu", loader), [loss, 1.2])
    said = learning.between_activations(*read(paths))
    assert "bias_gelu and gelu 0.7 (0.5)" in said


def test_activations_in_different_pipelines_or_with_one_seed_are_not_compared(tmp_path):
    paths = write(tmp_path, of("gelu"), [1.0, 1.5]) + write(tmp_path, of("bias_gelu", "overlap"), [1.0, 2.0])
    assert learning.between_activations(*read(paths)) == ""
    one = write(tmp_path / "one", of("gelu"), [1.0]) + write(tmp_path / "one", of("bias_gelu"), [2.0])
    assert learning.between_activations(*read(one)) == ""


@pytest.mark.parametrize(
    ("losses", "words"),
    [
        ([(1.0, 2.0), (1.25, 2.0)], ["between pipelines of one task", "is 0.25;", "lie up to 1 apart."]),
        ([(1.0,), (1.25,)], ["is 0.25."]),
        ([(1.0, 2.0)], ["No two pipelines trained equally long in the same repeat"]),
    ],
)
def test_the_difference_of_the_final_losses_is_stated(tmp_path, losses, words):
    paths = []
    for loader, each in zip(("resident", "overlap"), losses, strict=False):
        paths += write(tmp_path, of("", loader), each)
    said = learning.difference(*read(paths))
    for part in words:
        assert part in said


@pytest.mark.usefixtures("drawn")
def test_what_a_repeat_learnt_that_was_taken_up_again_counts(tmp_path):
    paths = []
    for loader, loss in (("resident", 0.5), ("overlap", 0.25)):
        one = made.record(of("gelu", loader), epochs=3, top1=0.5)
        one.epochs[-1]["train_loss"] = loss
        paths += made.write(tmp_path, made.resumed(one, 200))
    cells, epochs = read(paths)
    (figure,) = learning.draw(cells, epochs)
    assert "top-1 50 %" in report_fixtures.words_of(figure)
    assert "with the same seed, is 0.25" in learning.difference(cells, epochs)

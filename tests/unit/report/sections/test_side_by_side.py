"""Two pipelines side by side: which cells, what is printed as they are trained, and the arithmetic."""

import pandas as pd
import pytest
import record_fixtures as made
import torch
from config_fixtures import merged
from measure_fixtures import toy_trainer
from report_fixtures import page_of, steps_of

from gpufeed.core.config import planned
from gpufeed.core.errors import GpufeedError
from gpufeed.core.plan_side_by_side import block_of, pair
from gpufeed.report import load_records, publish
from gpufeed.report.claims import FAILS, HOLDS, OPEN
from gpufeed.report.sections import side_by_side
from gpufeed.report.sections.side_by_side import OWN, WHOLE
from gpufeed.training.batch_printing import printed, setup_check

NAMES = ("without_pipelining", "with_pipelining")


@pytest.fixture
def config():
    return merged("config.yaml")


def test_the_notebooks_two_cells_are_what_its_code_says(config):
    plan = planned(config)
    without, within = (plan.cells["notebook"][cell] for cell in pair(config, plan, "notebook").values())
    for c in (without, within):
        axes = (c.dataset, c.model, c.augment, c.batch_size, c.steps, c.synchronise)
        assert axes == ("noise_224", "notebook_cnn", "cpu", 32, 20, "step")
    assert (without.workers, without.pin_memory, without.persistent_workers) == (0, False, False)
    assert (within.workers, within.pin_memory, within.prefetch_factor) == (2, True, 2)
    assert within.persistent_workers
    assert without.hyper == within.hyper
    assert without.hyper["trainer"]["optimiser"] == "adam"
    assert without.hyper["trainer"]["torch_defaults"] is True
    assert (without.hyper["augment"]["pil"], without.hyper["augment"]["crop_padding"]) == (True, 0)
    assert "notebook" not in config["run"]
    assert pair(config, plan, "pipelining") == {}


def test_a_jobs_cell_finds_the_name_of_its_block(config):
    blocks = config["experiments"]["notebook"]["blocks"]
    blocks["larger"] = {**blocks["without_pipelining"], "compile": True}
    plan = planned(config)
    cells = plan.cells["notebook"]
    for block, cell in pair(config, plan, "notebook").items():
        assert block_of(config, "notebook", cells[cell].asdict()) == block
    other = cells[cell].asdict() | {"workers": 4}
    assert block_of(config, "notebook", other) is None
    assert block_of(config, "pipelining", other) is None
    (larger,) = plan.blocks["notebook"]["larger"]  # all axes of a block of the pair, and one more
    assert block_of(config, "notebook", cells[larger].asdict()) is None


def test_blocks_that_differ_in_an_override_alone_keep_their_names(config):
    experiment = config["experiments"]["notebook"]
    same = experiment["blocks"]["with_pipelining"]
    own = [*experiment["common"]["overrides"][0], "model.dropout=0.25"]
    experiment["blocks"]["without_pipelining"] = {**same, "overrides": [own]}
    plan = planned(config)
    for block, cell in pair(config, plan, "notebook").items():
        assert block_of(config, "notebook", plan.cells["notebook"][cell].asdict()) == block


def test_two_blocks_that_are_one_cell_are_no_pair(config):
    blocks = config["experiments"]["notebook"]["blocks"]
    blocks["without_pipelining"] = blocks["with_pipelining"]
    with pytest.raises(GpufeedError, match="same cell"):
        planned(config)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"side_by_side": ["without_pipelining", "with_pipelinin"]}, "block 'with_pipelinin'"),
        ({"synchronise": "epoch"}, "1 cells, synchronise epoch"),
        ({"batch_size": [16, 32]}, "2 cells"),
    ],
)
def test_blocks_that_are_no_pair_are_refused(config, change, found):
    experiment = config["experiments"]["notebook"]
    for key, value in change.items():
        (experiment if key in experiment else experiment["common"])[key] = value
    with pytest.raises(GpufeedError, match=found):
        planned(config)


def test_a_pair_of_which_one_is_impossible_is_none(config):
    config["experiments"]["notebook"]["blocks"]["with_pipelining"]["workers"] = 0
    assert pair(config, planned(config), "notebook") == {}


@pytest.mark.parametrize("synchronise", ["step", "epoch"])
def test_batches_are_printed_as_they_are_trained(tmp_path, capsys, synchronise):
    trainer = toy_trainer(tmp_path, synchronise=synchronise, epochs=2)
    with printed("without pipelining, repeat 1"):
        result = trainer.run()
    said = capsys.readouterr().out.splitlines()
    assert "torch" in said[1]
    assert said[3].split() == ["Batch", "Load", "Transfer", "Train", "Total"]
    rows = [text.split() for text in said[4:] if text.split()[0].isdigit()]
    if synchronise == "epoch":
        assert rows == []
        return
    columns = ("load_ms", "transfer_ms", "train_ms", "total_ms")
    expected = [[step["step"] + 1, *(round(step[name], 2) for name in columns)] for step in result.steps]
    assert [[int(number), *map(float, times)] for number, *times in rows] == expected
    mean = sum(step["train_ms"] for step in result.steps) / len(result.steps)
    assert float(said[-2].split()[3]) == pytest.approx(mean, abs=0.01)
    trainer.run()
    assert capsys.readouterr().out == ""  # the handler is gone


@pytest.mark.skipif(
    torch.cuda.is_available() or not torch.version.cuda, reason="needs torch with CUDA, and no GPU"
)
def test_a_gpu_that_is_seen_and_cannot_be_used_stops_nothing(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert "GPU: none" in setup_check()


def measured(folder, *repeats, gpu=made.H200):
    """Records of both cells, a pair of images/s and share of waiting for each; (paths, pair)."""
    axes = {"experiment": "notebook", "batch_size": 32, "synchronise": "step", "steps": 20}
    cells = (
        made.cell("dataloader_sync", **axes),
        made.cell("dataloader_workers", workers=2, prefetch_factor=2, **axes),
    )
    paths = []
    for number, sides in enumerate(repeats):
        for cell, (speed, wait) in zip(cells, sides, strict=True):
            paths += made.write(folder, made.record(cell, number, speed, wait_share=wait, gpu=gpu))
    return paths, dict(zip(NAMES, (cell.id for cell in cells), strict=True))


def means_of(paths, two):
    return side_by_side.means(load_records.read_records(paths), steps_of(paths), two)


def test_the_two_totals_differ_by_the_wait_for_data(tmp_path):
    # 100 and 50 ms a batch, of which 60 and 10 are waited for, four fifths of that for loading
    paths, two = measured(tmp_path, ((320, 0.6), (640, 0.2)))
    (rows,) = side_by_side.machines(means_of(paths, two))
    middle = side_by_side.medians(rows)
    assert list(middle.index) == ["without pipelining", "with pipelining"]
    assert middle["load_ms", "median"].tolist() == pytest.approx([48, 8], abs=0.2)
    assert middle["total_ms", "median"].tolist() == pytest.approx([100, 50], abs=0.2)
    assert middle[OWN, "median"].tolist() == pytest.approx([12 + 40, 2 + 40], abs=0.3)
    whole, own = side_by_side.saved(rows, WHOLE), side_by_side.saved(rows, OWN)
    assert (whole.speedup["median"], whole.ms["median"]) == pytest.approx((2.0, 50), abs=0.1)
    assert (own.speedup["median"], own.ms["median"]) == pytest.approx((52 / 42, 10), abs=0.1)
    assert whole.answer == own.answer == OPEN


def test_repeats_are_paired_and_judge_the_claim(tmp_path):
    repeats = (((320, 0.6), (640, 0.2)), ((300, 0.6), (640, 0.2)), ((320, 0.6), (600, 0.2)))
    paths, two = measured(tmp_path, *repeats)
    (rows,) = side_by_side.machines(means_of(paths, two))
    found = side_by_side.saved(rows, WHOLE)
    assert found.speedup["n"] == 3
    assert (found.speedup["min"], found.speedup["max"]) == pytest.approx((600 / 320, 640 / 300), abs=0.01)
    assert found.answer == HOLDS
    assert side_by_side.saved(rows, OWN).answer == FAILS
    said = "\n".join(side_by_side.lines(means_of(paths, two)))
    middle, low, high = (found.speedup[end] for end in ("median", "min", "max"))
    assert f"speed-up {middle:.2f} ({low:.2f} to {high:.2f})" in said
    ms, low, high = (found.ms[end] for end in ("median", "min", "max"))
    assert ms == pytest.approx(50, abs=0.5)
    assert f"{ms:.2f} ({low:.2f} to {high:.2f}) ms saved per batch" in said
    assert f"{ms:.1f} ({low:.1f} to {high:.1f}) s per 1,000 batches" in said


def test_two_machines_are_two_comparisons_and_one_side_alone_is_none(tmp_path):
    paths, two = measured(tmp_path / "a", ((320, 0.6), (640, 0.2)))
    more, _ = measured(tmp_path / "b", ((160, 0.6), (640, 0.2)), gpu=None)
    assert len(side_by_side.machines(means_of(paths + more, two))) == 2
    first = [path for path in paths if two["without_pipelining"] in path.parts]
    assert side_by_side.lines(means_of(first, two)) == [
        "No comparison: no machine has a finished repeat of both pipelines."
    ]


@pytest.mark.usefixtures("drawn")
def test_table_figures_and_page_have_the_numbers(tmp_path):
    paths, two = measured(tmp_path, ((320, 0.6), (640, 0.2)), ((300, 0.6), (640, 0.2)))
    outs = [tmp_path / name for name in ("table.csv", "phases.svg", "totals.svg")]
    publish.plot_side_by_side(paths, two, *outs)
    table = pd.read_csv(outs[0])
    assert table["pipeline"].tolist() == ["without pipelining"] * 2 + ["with pipelining"] * 2
    assert all(text in outs[1].read_text() for text in ("Load", "Transfer", "Train", "Total", "8.10"))
    assert "mean total" in outs[2].read_text()
    repeats, steps = load_records.read_records(paths), steps_of(paths)
    (machine,) = side_by_side.section(repeats, steps, two, "notebook")
    assert (machine["n"], machine["batches"]) == (2, 20)
    assert [name for name, _ in machine["rows"]] == ["without pipelining", "with pipelining"]
    assert "whole total the claim holds" in machine["claim"]
    assert side_by_side.section(repeats, steps, {}, "notebook") == []


def unmeasured(results, status):
    """Writes a pair of which the second has this status; returns the cells by their place in the pair."""
    axes = {"experiment": "notebook", "synchronise": "step", "steps": 20}
    done, stopped = made.cell("dataloader_sync", **axes), made.cell("overlap", **axes)
    made.write(results, made.record(done))
    made.write(results, made.unfinished(stopped, status, "why it was not"))
    return dict(zip(NAMES, (done.id, stopped.id), strict=True))


def test_a_pair_that_was_not_measured_is_told_on_the_page(tmp_path):
    two = unmeasured(tmp_path, "skipped")
    plan = made.plan_info({"notebook": list(two.values())})
    for planned_pair, times in (({}, 0), (two, 1)):
        plan["experiments"]["notebook"]["side_by_side"] = planned_pair
        assert page_of(tmp_path, plan).count(side_by_side.NOTHING) == times


@pytest.mark.usefixtures("drawn")
@pytest.mark.parametrize("status", ["skipped", "failed"])
def test_figures_of_a_pair_that_was_not_measured_say_so(tmp_path, status):
    two = unmeasured(tmp_path / "results", status)
    paths = sorted(tmp_path.glob("results/records/notebook/*/*.json"))
    outs = [tmp_path / name for name in ("table.csv", "phases.svg", "totals.svg")]
    assert publish.plot_side_by_side(paths, two, *outs) == [side_by_side.NOTHING]
    assert "Nothing to draw" in outs[1].read_text()

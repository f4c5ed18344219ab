import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import record_fixtures as made
import sweep_fixtures
from hypothesis import given, settings
from hypothesis import strategies as st
from report_fixtures import cells_of, steps_of

from gpufeed.report import load_records, publish, significance, tables, wording
from gpufeed.report.sections import ceilings_rows, decoding_tables, provenance
from gpufeed.report.tables import epoch_starts


def test_a_row_has_the_median_and_range_of_its_repeats(tmp_path):
    of = made.cell("overlap", workers=2, prefetch_factor=2)
    table = cells_of(made.write_speeds(tmp_path, of, [1100, 1000, 1300]))
    assert len(table) == 1
    row = table.iloc[0]
    assert (row["images_per_s"], row["images_per_s_min"], row["images_per_s_max"]) == (1100, 1000, 1300)
    assert (row["n_repeats"], row["status"], row["workers"], row["precision"]) == (3, "done", 2, "bf16")
    assert row["total_ms"] == pytest.approx(128 / 1100 * 1e3)
    assert row["load_ms"] + row["transfer_ms"] + row["train_ms"] == pytest.approx(row["total_ms"])
    assert pd.isna(row["images_per_s_ci95_low"])


def test_two_gpu_models_never_share_a_row(tmp_path):
    of = made.cell("resident")
    paths = made.write(tmp_path / "a", made.record(of, 0, 1000, gpu="NVIDIA H200"))
    paths += made.write(tmp_path / "b", made.record(of, 1, 9000, gpu="NVIDIA L4"))
    paths += made.write(tmp_path / "c", made.record(of, 2, 5000, torch="2.11.0"))
    table = cells_of(paths)
    assert sorted(table["images_per_s"]) == [1000, 5000, 9000]
    assert set(table["hardware"]) == {"NVIDIA H200", "NVIDIA L4"}


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"dirty": False}, "012345678"),
        ({"dirty": True}, "012345678 with local changes"),
        ({"dirty": None}, "012345678 (changes unknown)"),
        ({"commit": None, "dirty": None}, "unknown"),
    ],
)
def test_a_commit_whose_changes_nobody_knows_is_not_shown_as_clean(tmp_path, told, said):
    one = made.record(made.cell("resident"))
    paths = made.write(tmp_path, made.elsewhere(one, **told))
    assert cells_of(paths)["commit"].tolist() == [said]
    (machine,) = provenance.machine_rows(load_records.read_records(paths))
    assert machine["facts"]["commit"] == said
    ceilings = {"environment": one.environment | told}
    assert ceilings_rows.origin(ceilings)[1] == said
    (path, *_) = sweep_fixtures.write_sweeps(tmp_path)
    path.write_text(json.dumps(json.loads(path.read_text()) | ceilings))
    assert set(decoding_tables.read_sweeps([path])[0]["commit"]) == {said}


def test_a_machine_that_was_used_by_its_cores_in_part_is_one(tmp_path):
    repeats = [made.record(made.cell("resident"), number) for number in range(3)]
    told = [made.elsewhere(one, cores_allowed=n) for one, n in zip(repeats, (2, 16, 2), strict=True)]
    paths = made.write(tmp_path, *told)
    (machine,) = provenance.machine_rows(load_records.read_records(paths))
    assert machine["records"] == 3
    assert "2 and 16 cores allowed" in machine["facts"]["CPU"]


def test_hosts_of_one_name_are_told_apart_by_their_machine_ids(tmp_path):
    hosts, paths = ("0123abcd", "4567cdef", None), []
    for number, machine in enumerate(hosts):
        one = made.record(made.cell("resident"), number, gpu=None)
        paths += made.write(tmp_path, made.elsewhere(one, machine=machine))
    table = load_records.read_records(paths)
    assert significance.places(table[:2])[0].tolist() == ["0123abcd", "4567cdef"]
    assert significance.places(table)[0].tolist() == ["node-a"] * 3  # one does not tell its machine
    assert significance.one_place(table[:1], table[2:])
    assert not significance.one_place(table[:1], table[1:2])
    told = [machine["facts"]["machine"] for machine in provenance.machine_rows(table)]
    assert told == ["0123abcd", "4567cdef", "unknown"]
    assert cells_of(paths)["repeats"].iloc[0]["machine"].dropna().tolist() == list(hosts[:2])
    points = decoding_tables.read_sweeps(sweep_fixtures.write_sweeps(tmp_path)[:2])[0]
    assert decoding_tables.nodes(points) == ["node-a"]
    points["machine"] = [hosts[number % 2] for number in range(len(points))]
    assert decoding_tables.nodes(points) == ["node-a (0123abcd)", "node-a (4567cdef)"]


def test_the_ceiling_is_that_of_the_same_work_on_the_same_machine(tmp_path):
    work = {"augment": "torch", "batch_size": 64}
    paths = made.write_speeds(tmp_path, made.cell("resident", **work), [900, 900])
    paths += made.write_speeds(tmp_path, made.cell("replay", **work), [1000, 1000])
    paths += made.write_speeds(tmp_path, made.cell("replay", augment="cpu", batch_size=64), [2000])
    paths += made.write_speeds(tmp_path, made.cell("replay", augment="torch", batch_size=32), [3000])
    paths += made.write_speeds(tmp_path / "cpu", made.cell("replay", **work), [4000], gpu=None)
    paths += made.write_speeds(tmp_path, made.cell("overlap", augment="none", batch_size=64), [800])
    table = cells_of(paths).set_index(["loader", "augment", "hardware", "batch_size"])
    assert table.loc[("resident", "torch", made.H200, 64), "ceiling_share"] == pytest.approx(0.9)
    assert table.loc[("replay", "cpu", made.H200, 64), "ceiling_share"] == 1.0
    assert pd.isna(table.loc[("overlap", "none", made.H200, 64), "ceiling_share"])


def test_a_cold_pass_is_named_and_has_neither_ceiling_nor_rivals_among_the_warm(tmp_path):
    cold = ("trainer.cold_files=true",)
    paths = made.write_speeds(tmp_path, made.cell("replay"), [1000])
    for loader, overrides, speed in (("dali_gpu", (), 900), ("dali_gpu", cold, 90), ("overlap", cold, 80)):
        paths += made.write_speeds(tmp_path, made.cell(loader, overrides=overrides), [speed])
    warm, cold = tables.tasks(cells_of(paths))
    assert warm.set_index("loader")["ceiling_share"].to_dict() == {"replay": 1.0, "dali_gpu": 0.9}
    assert cold.set_index("loader")["ceiling_share"].isna().to_dict() == {"dali_gpu": True, "overlap": True}
    words = wording.OPTIONS["trainer.cold_files=true"]
    assert [words in wording.task(rows) for rows in (warm, cold)] == [False, True]


def test_a_task_is_named_by_the_overrides_that_not_all_cells_share(tmp_path):
    common = "model.channels=[8, 16, 32]"
    stems = ("cifar", "imagenet")
    cells = [made.cell("resident", overrides=(common, f"model.stem={stem}")) for stem in stems]
    table = cells_of(made.write(tmp_path, *map(made.record, cells)))
    assert sorted(table["variant"]) == ["model.stem=cifar", "model.stem=imagenet"]
    assert tables.shared_overrides(table) == [common]
    assert len(list(tables.tasks(table))) == 2


def test_a_partly_failed_cell_counts_what_finished_and_says_why(tmp_path):
    of = made.cell("overlap")
    failed = made.unfinished(of, "failed", "CUDA out of memory", repeat=1, gpu=made.H200)
    skipped = made.unfinished(made.cell("resident"), "skipped", "no GPU here")
    table = cells_of(made.write(tmp_path, made.record(of, 0), failed, skipped)).set_index("loader")
    told = table[["status", "n_repeats", "sentence"]].T.to_dict("list")
    assert told == {"overlap": ["partly", 1, "CUDA out of memory"], "resident": ["skipped", 0, "no GPU here"]}
    assert pd.isna(table.loc["resident", "images_per_s"])


any_json = st.recursive(st.none() | st.integers() | st.text(), st.lists)
any_content = st.binary(max_size=200) | any_json.map(lambda value: json.dumps(value).encode())


@settings(max_examples=8)
@given(st.lists(any_content, min_size=5, max_size=5))
def test_a_damaged_record_is_a_row_that_says_so(tmp_path_factory, contents):
    paths = []
    for number, content in enumerate(contents):
        path = tmp_path_factory.mktemp("x") / f"records/pipelining/cell-{number}/4.json"
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
        paths.append(path)
    table = load_records.read_records(paths)
    told = table[["experiment", "cell_id", "repeat", "status"]].to_numpy().tolist()
    assert told == [["pipelining", f"cell-{number}", 4, "unusable"] for number in range(5)]
    assert table["sentence"].all()
    assert tables.cells(table)["status"].tolist() == ["unusable"] * 5


def test_no_records_no_rows():
    table = cells_of([])
    assert table.empty
    assert "images_per_s" in table


def test_batches_are_medians_of_the_step_synchronised_cells(tmp_path):
    noted = made.cell("dataloader_workers", workers=2, prefetch_factor=2, synchronise="step", batch_size=32)
    paths = made.write_speeds(tmp_path, noted, [1000, 2000, 4000])
    paths += made.write_speeds(tmp_path, made.cell("overlap"), [500])
    table = tables.batches(load_records.read_records(paths), steps_of(paths))
    assert table["batch"].tolist() == list(range(1, 21))
    assert set(table["loader"]) == {"dataloader_workers"}
    assert set(table["n_repeats"]) == {3}
    first = table.iloc[0]
    assert first["Total(ms)"] == pytest.approx(16.0)  # 32 images at 2,000 images/s
    assert first["Load(ms)"] + first["Transfer(ms)"] + first["Train(ms)"] == pytest.approx(16.0)


def test_batches_beyond_the_step_limit_are_for_the_times_alone(tmp_path):
    few = made.cell("dataloader_sync", synchronise="step", steps=7)
    all_of_it = made.cell("overlap", synchronise="step")
    paths = made.write_speeds(tmp_path, few, [1000, 2000]) + made.write_speeds(tmp_path, all_of_it, [1000])
    batches = tables.batches(load_records.read_records(paths), steps_of(paths))
    assert batches.groupby("loader")["batch"].max().to_dict() == {"dataloader_sync": 7, "overlap": 20}


def test_a_bad_step_table_is_named_and_the_rest_is_read(tmp_path):
    paths = made.write_speeds(tmp_path, made.cell("overlap", synchronise="step"), [500, 600])
    steps_paths = [path.with_suffix(".steps.parquet") for path in paths]
    steps_paths[0].write_bytes(b"not parquet")
    steps, (damaged,) = load_records.read_steps(steps_paths)
    assert "0.steps.parquet" in damaged
    assert set(steps["repeat"]) == {1}


def test_tabulate_writes_whole_files(tmp_path):
    paths = made.write_speeds(tmp_path, made.cell("overlap", synchronise="step"), [500, 600])
    paths += made.write_speeds(tmp_path, made.cell("resident"), [900])
    cells, batches = tmp_path / "out/cells.csv", tmp_path / "out/batches.csv"
    publish.tabulate(paths, cells, batches)
    assert pd.read_csv(cells)["loader"].tolist() == ["overlap", "resident"]
    written = pd.read_csv(batches)
    assert len(written) == 20
    assert {"Load(ms)", "Transfer(ms)", "Train(ms)", "Total(ms)"} <= set(written)
    assert {path.name for path in cells.parent.iterdir()} == {"cells.csv", "batches.csv"}


def test_a_step_table_that_is_gone_is_told_in_the_log(tmp_path, caplog):
    paths = made.write_speeds(tmp_path, made.cell("overlap"), [500, 600])
    (gone := paths[0].with_suffix(".steps.parquet")).unlink()
    publish.tabulate(paths, tmp_path / "cells.csv", tmp_path / "batches.csv")
    (said,) = caplog.messages
    assert f"the step table {gone} cannot be read" in said
    assert len(pd.read_csv(tmp_path / "cells.csv")) == 1


def epochs_of(batches, waits, warmup):
    """How epochs of so many batches begin; waits: of all steps (ms), each of which trains for 2 ms."""
    steps = pd.DataFrame({"path": "a", "step": range(len(waits)), "wait_ms": waits, "images": 10})
    steps = steps.assign(epoch=steps["step"] // batches, total_ms=steps["wait_ms"] + 2.0)
    records = pd.DataFrame({"path": ["a", "skipped"], "warmup_steps": pd.array([warmup, None], "Int64")})
    (row,) = epoch_starts(records, steps).to_dict("records")
    return row


@pytest.mark.parametrize(
    ("waits", "warmup", "share", "rate"),
    [
        ([90, 1, 1, 6, 1, 1], 3, 6 / 8, 20 / 0.006),  # the first epoch is warm-up
        ([90, 1, 1, 6, 1, 1], 0, 96 / 100, 40 / 0.012),
        ([90, 1, 1], 1, float("nan"), 20 / 0.006),  # no epoch starts after warm-up
        ([0, 0, 0, 0, 0, 0], 0, float("nan"), 40 / 0.008),  # nothing waits
    ],
)
def test_epoch_starts_are_taken_apart_after_warmup(waits, warmup, share, rate):
    row = epochs_of(3, waits, warmup)
    assert (row["path"], row["epoch_batches"]) == ("a", 3)
    assert row["epoch_start_share"] == pytest.approx(share, nan_ok=True)
    assert row["within_epoch_images_per_s"] == pytest.approx(rate)


def test_repeats_whose_longest_epochs_differ_have_the_longer(tmp_path):
    paths = made.write_speeds(tmp_path, made.cell("overlap"), [1000, 1000])
    steps = steps_of(paths)
    steps = steps.assign(epoch=steps["step"] // 5)
    steps.loc[(steps["path"] == steps["path"].iloc[0]) & (steps["epoch"] == 0), "epoch"] = 1  # ten steps
    assert cells_of(paths, steps)["epoch_batches"].tolist() == [10]


def test_epochs_of_one_batch_have_no_rate_within():
    row = epochs_of(1, [5.0, 5.0], warmup=1)
    assert row["epoch_start_share"] == 1
    assert pd.isna(row["within_epoch_images_per_s"])


def test_the_table_of_cells_has_the_median_share_of_epoch_starts(tmp_path):
    of = made.cell("overlap")
    paths = made.write_speeds(tmp_path, of, [1000, 1000, 1000])
    steps = steps_of(paths)
    steps = steps.assign(epoch=steps["step"] // 5)
    row = cells_of(paths, steps).iloc[0]
    assert row["epoch_batches"] == 5
    # 17 steps, three of them start an epoch
    assert row["epoch_start_share"] == pytest.approx(3 / 17, abs=0.01)
    assert row["within_epoch_images_per_s"] == pytest.approx(1000, rel=0.01)
    assert pd.isna(cells_of(paths)["epoch_start_share"]).all()


def test_the_ceiling_has_its_range_and_n(tmp_path):
    paths = made.write_speeds(tmp_path, made.cell("overlap"), [100])
    paths += made.write_speeds(tmp_path, made.cell("replay"), [200, 210, 250])
    row = cells_of(paths).iloc[0]
    assert row[tables.CEILING[:4]].tolist() == [210, 200, 250, 3]
    assert row["ceiling_train_ms"] == pytest.approx(0.75 * 128 / 210 * 1e3)


def test_a_repeat_that_was_taken_up_again_counts_for_accuracy_and_not_for_rates(tmp_path):
    of = made.cell("resident", synchronise="step")
    whole = [made.record(of, repeat, 1000.0 + repeat, top1=0.5) for repeat in range(3)]
    again = [made.resumed(made.record(of, repeat, 10.0, top1=0.7), 200) for repeat in range(3, 8)]
    (row,) = cells_of(made.write(tmp_path, *whole, *again)).to_dict("records")
    assert (row["status"], row["n_repeats"], len(row["repeats"])) == ("done", 3, 3)
    assert (row["images_per_s"], row["images_per_s_min"], row["top1"]) == (1001.0, 1000.0, 0.7)
    assert pd.isna(row["images_per_s_ci95_low"])
    assert row["epoch_s"] == pytest.approx(20 * of.batch_size / 1001.0)


def test_a_ceiling_from_before_a_hyper_parameter_came_bounds_what_came_later(tmp_path):
    now = {"trainer": {"momentum": 0.9, "torch_defaults": False}}
    for number, old in enumerate(({"trainer": {"momentum": 0.9}}, {"trainer": {"momentum": 0.8}}, now)):
        cells = replace(made.cell("replay"), hyper=old), replace(made.cell("resident"), hyper=now)
        paths = [path for cell in cells for path in made.write(tmp_path / str(number), made.record(cell))]
        table = cells_of(paths).set_index("loader")
        assert (table.loc["resident", "ceiling_share"] == 1) == (number != 1)


def of_epochs(of, batches, start_s, ahead, rate, epochs=3, cut=None):
    """Steps of epochs that cost start_s at their start, and of which the first `ahead` then come at once."""
    steps, of_a_step = made.steps(of, epochs * batches, batches), 128 / rate * 1e3
    place = steps["step"] % batches
    total = np.where(place < ahead, 1e-3, of_a_step)
    total += np.where(place == 0, 1e3 * start_s + ahead * of_a_step, 0.0)
    return steps.assign(total_ms=total).iloc[:cut]


def rates_of(tmp_path, **shape):
    one = made.record(made.cell("overlap"), images_per_s=5000)
    whole = shape.get("epochs", 3) > 1 and shape.get("cut", 99) >= 2 * shape["batches"]
    one = replace(one, warmup={"steps": shape["batches"] if whole else 3, "policy": ""})
    paths = made.write(tmp_path, one)
    steps = of_epochs(one, **shape).assign(path=str(paths[0]))
    (row,) = cells_of(paths, steps).to_dict("records")
    return [row[name] for name in tables.RATES], row["epoch_start_n"]


@pytest.mark.parametrize("ahead", [0, 5, 10])
def test_an_epoch_of_any_length_follows_from_its_start_and_the_steady_rate(tmp_path, ahead):
    """Whatever comes at once since it was loaded ahead."""
    rates, n = rates_of(tmp_path, batches=20, start_s=0.5, ahead=ahead, rate=2000)
    assert (rates, n) == (pytest.approx([2000, 0.5], rel=1e-3), 1)


def test_without_an_epoch_that_began_after_warm_up_there_is_no_start(tmp_path):
    ((rate, start), n) = rates_of(tmp_path / "a", batches=40, start_s=0.5, ahead=3, rate=2000, epochs=1)
    assert (rate, pd.isna(start), n) == (pytest.approx(2000), True, 0)
    # the second epoch was cut short: half of its steps are enough
    shape = {"batches": 40, "start_s": 0.5, "ahead": 3, "rate": 2000}
    ((_, start), _) = rates_of(tmp_path / "b", **shape, cut=59)
    assert pd.isna(start)
    (rates, _) = rates_of(tmp_path / "c", **shape, cut=60)
    assert rates == pytest.approx([2000, 0.5], rel=1e-3)
    # what is loaded ahead is all of such short epochs
    (rates, _) = rates_of(tmp_path / "d", batches=7, start_s=0.5, ahead=3, rate=2000)
    assert all(map(pd.isna, rates))

"""The leaderboard: its order, what is in it, the files that travel with it, and calls that really run."""

import base64
import io
from dataclasses import replace

import ceilings_fixtures
import pandas as pd
import pytest
import record_fixtures as made
from report_fixtures import read

from gpufeed.report import downloads, load_records, tables, verdicts
from gpufeed.report.sections import ceilings, ceilings_rows, leaderboard

COMMON = {"augment": "cpu", "batch_size": 32}


def board_of(paths):
    return leaderboard.board(*read(paths))


def titles(board):
    return [column.title for column in board.columns]


def texts(board, title):
    return [row.fields[titles(board).index(title)].text for row in board.rows]


def several(folder):
    paths = made.write_speeds(folder, made.cell("dataloader_sync", **COMMON), [100, 110])
    paths += made.write_speeds(folder, made.cell("replay", **COMMON), [900, 910])
    six = [300, 310, 320, 330, 340, 350]
    paths += made.write_speeds(folder, made.cell("overlap", workers=2, **COMMON), six)
    resident = made.cell("resident", **COMMON)
    return paths + made.write(folder, made.unfinished(resident, "skipped", "No <GPU> | here", gpu=made.H200))


def test_the_fastest_first_its_ceiling_behind_what_was_not_measured_last(tmp_path):
    board = board_of(several(tmp_path))
    assert texts(board, "Pipeline") == ["overlap, 2 workers", "dataloader_sync", "replay", "resident"]
    assert [row.ceiling for row in board.rows] == [False, False, True, False]
    assert texts(board, "images/s") == ["325", "105", "905", "-"]
    small = [row.fields[titles(board).index("images/s")].small for row in board.rows]
    assert small[0].startswith("95 %: 3")
    assert small[0].endswith(", n = 6")
    assert small[1:] == ["100 to 110, n = 2", "900 to 910, n = 2", ""]
    assert texts(board, "Share of limit") == ["36 %", "12 %", "-", "-"]
    assert [row.facets["status"] for row in board.rows] == ["done", "done", "done", "skipped"]


def test_columns_without_any_value_or_with_one_for_all_are_left_out(tmp_path):
    board = board_of(several(tmp_path))
    for title in ("AU", "J / 1000 images", "Device"):
        assert title not in titles(board)
    paths = made.write_speeds(tmp_path / "one", made.cell("overlap", **COMMON), [100, 110])
    other = made.write_speeds(tmp_path / "two", made.cell("overlap", **COMMON), [50, 60], gpu="NVIDIA L4")
    board = board_of(paths + other)
    assert texts(board, "Device") == ["NVIDIA H200", "NVIDIA L4"]
    assert board.choices == {"device": ["NVIDIA H200", "NVIDIA L4"]}
    assert board_of([]) is None


def test_what_all_tasks_share_is_said_once_and_in_every_line_of_the_markdown(tmp_path):
    paths = made.write(tmp_path, *(made.record(made.cell("resident", cores=cores)) for cores in (2, 16)))
    board = board_of(paths)
    assert texts(board, "Task") == ["2 cores", "16 cores"]
    assert board.shared.startswith("simple_cnn on synthetic_224, ")
    assert all(f"{board.shared}, {cores} cores" in board.markdown for cores in (2, 16))
    paths += made.write(tmp_path, made.record(made.cell("resident")))  # nothing would be left of its task
    board = board_of(paths)
    assert board.shared == ""
    assert all("synthetic_224" in text for text in texts(board, "Task"))


def test_each_row_says_once_whether_its_step_was_a_cuda_graph(tmp_path):
    paths = []
    for batch_size, loader, graphs in (
        *((32, "resident", True), (64, "resident", False), (128, "resident", True), (128, "overlap", False)),
        *((256, "resident", True), (512, "resident", False)),
    ):
        of = made.cell(loader, batch_size=batch_size, cuda_graphs=graphs, compile=graphs)
        skipped = made.unfinished(of, "skipped", "No GPU", gpu=made.H200)
        paths += made.write(tmp_path, made.record(of) if batch_size < 256 else skipped)
    board = board_of(paths)
    pipelines, tasks = texts(board, "Pipeline"), texts(board, "Task")
    sizes = [int(task.split("batch ")[1].split(",")[0]) for task in tasks]
    found = {
        (size, name.split(",")[0]): (name.partition(", ")[2], task.endswith(", CUDA graphs, compiled"))
        for size, name, task in zip(sizes, pipelines, tasks, strict=True)
    }
    assert found == {
        (32, "resident"): ("", True),
        (64, "resident"): ("", False),
        (128, "resident"): ("CUDA graphs, compiled", False),
        (128, "overlap"): ("eager, not compiled", False),
        (256, "resident"): ("", True),
        (512, "resident"): ("", False),
    }


def test_the_markdown_has_every_cell_and_no_row_of_a_sentence_breaks_it(tmp_path):
    board = board_of(several(tmp_path))
    head, rule, *lines = board.markdown.splitlines()
    assert head.startswith("| Pipeline | ")
    assert len(lines) == len(board.rows) == 4
    bars = head.count("|")
    assert [line.count("|") - line.count("\\|") for line in (rule, *lines)] == [bars] * 5
    assert "skipped (No <GPU> \\| here)" in lines[-1]


def test_a_damaged_record_is_a_row(tmp_path):
    path = tmp_path / "records/pipelining/cell-1/0.json"
    path.parent.mkdir(parents=True)
    path.write_text("{")
    board = board_of([path])
    assert [row.facets for row in board.rows] == [{"status": "unusable"}]
    assert board.calls == []


def with_ceilings(tmp_path, experiment="limits"):
    """Cells of two loaders, of which one has an AU of 38 %."""
    found = ceilings_fixtures.document(ceilings_fixtures.pairs(1.63), decode_s=1.25, input_s=2.63)
    of = made.cell("overlap", experiment, model="vit_tiny")
    assert found["cell_id"] == of.id
    slow = made.cell("dataloader_sync", experiment, model="vit_tiny")
    paths = made.write_speeds(tmp_path, of, [300, 310]) + made.write_speeds(tmp_path, slow, [100, 110])
    cells, table = read(paths)
    return ceilings.joined(cells, [ceilings_fixtures.write(tmp_path, found)], experiment), table


def test_measured_ceilings_stand_in_the_board_and_in_the_answer(tmp_path):
    cells, table = with_ceilings(tmp_path)
    board = leaderboard.board(cells, table)
    assert texts(board, "AU") == ["38.0 %", "-"]
    assert board.rows[0].fields[titles(board).index("AU")].small == "38.02 to 38.02, input-bound"
    (answer,) = verdicts.answers(cells)
    assert answer.lead == "overlap: 305 images/s, 2.90x the rate of dataloader_sync, AU 38.0 %"
    assert "with an AU of 38.0 %" in answer.sentence
    keeps = "overlap keeps an AU of 38.0 % (8 pairs, 95 % interval 38.02 to 38.02 %): input-bound."
    assert keeps in answer.sentence
    without = cells.drop(columns=list(ceilings_rows.LIMITS))
    assert "AU" not in verdicts.answers(without)[0].sentence


def test_ceilings_of_another_machine_are_not_joined(tmp_path):
    found = ceilings_fixtures.document(ceilings_fixtures.pairs(1.63))
    found["environment"] = made.environment("NVIDIA L4")
    of = made.cell("overlap", "limits", model="vit_tiny")
    cells, _ = read(made.write_speeds(tmp_path, of, [300, 310]))
    joined = ceilings.joined(cells, [ceilings_fixtures.write(tmp_path, found)], "limits")
    assert joined["au"].isna().all()
    assert verdicts.fed(joined) == ""


def test_the_downloads_hold_the_whole_table(tmp_path):
    cells, _ = with_ceilings(tmp_path)
    links = downloads.links("limits", ceilings.whole(cells))
    found = {link.name: link.href.split(";base64,") for link in links}
    kinds = {name: kind for name, (kind, _) in found.items()}
    assert kinds == {"limits.csv": "data:text/csv", "limits.parquet": "data:application/vnd.apache.parquet"}
    files = {name: io.BytesIO(base64.b64decode(data)) for name, (_, data) in found.items()}
    for frame in (pd.read_csv(files["limits.csv"]), pd.read_parquet(files["limits.parquet"])):
        assert frame["images_per_s"].tolist() == [305, 105]
        assert frame["au"].iloc[0] == pytest.approx(1 / 2.63)
        assert set(tables.CELL_COLUMNS) < set(frame)
    assert downloads.links("limits", cells.iloc[:0]) == []


# --- the code to paste


def test_the_script_is_that_of_the_cell_with_what_its_record_knows(tmp_path):
    made_of = {"layout": "tiny_imagenet", "files": {}, "options": {}, "resize": [32, 24]}
    workers = {"workers": 3, "prefetch_factor": 5, "persistent_workers": True}
    of = made.cell("dataloader_workers", augment="cpu", batch_size=4, **workers)
    (call,) = board_of(made.write(tmp_path, made.record(replace(of, source=made_of)))).calls
    for part in ("num_workers=3", "prefetch_factor=5", "persistent_workers=True", "pin_memory=True"):
        assert part in call.text
    assert "v2.Resize((32, 24))" in call.text
    assert "MEAN, STD = (0.4802, 0.4481, 0.3975)" in call.text
    assert 'torch.device("cuda")' in call.text
    compile(call.text, "call", "exec")


def test_the_script_has_the_share_of_the_jpeg_engines_that_the_loader_took(tmp_path):
    of, loading = made.cell("dali_gpu", batch_size=4), {"decoder": "dali_gpu", "images": 8, "fell_back": {}}
    record = replace(made.record(of), loading=loading | {"hw_decoder_load": 0.0, "jpeg_engines": 7})
    (call,) = board_of(made.write(tmp_path, record)).calls
    assert '"hw_decoder_load": 0.0,' in call.text
    record = replace(made.record(replace(of, hw_decoder_load=0.9)), loading=record.loading)
    (call,) = board_of(made.write(tmp_path / "given", record)).calls
    assert '"hw_decoder_load": 0.9,' in call.text


def test_cells_with_the_same_call_share_it_and_ceilings_have_none(tmp_path):
    paths = several(tmp_path)
    paths += made.write_speeds(tmp_path, made.cell("dataloader_sync", epochs=3, **COMMON), [90])
    board = board_of(paths)
    calls = dict(zip(texts(board, "Pipeline"), [row.call for row in board.rows], strict=True))
    assert calls["dataloader_sync, 3 epochs"] == calls["dataloader_sync, 1 epoch"]
    assert calls["replay"] is None
    assert len(board.calls) == 3
    assert "Images(FOLDER, TRANSFORM, " in board.calls[calls["dataloader_sync, 3 epochs"]].text


def test_a_rate_is_told_as_the_start_of_an_epoch_and_the_steady_rate(tmp_path):
    short, whole = made.record(made.cell("overlap", **COMMON)), made.record(made.cell("resident", **COMMON))
    whole = replace(whole, warmup={"steps": 20, "policy": "the first epoch"})
    paths = made.write(tmp_path, short, whole)
    steps = [made.steps(short, 20), made.steps(whole, 60, start_ms=500)]
    steps = pd.concat([one.assign(path=str(path)) for one, path in zip(steps, paths, strict=True)])
    table = load_records.read_records(paths)
    board = leaderboard.board(tables.cells(table, steps), table)
    column = titles(board).index("Steady (images/s)")
    fields = {row.fields[0].text: row.fields[column] for row in board.rows}
    assert fields["overlap"].small == "no start after warm-up"
    steady = fields["resident"]
    assert float(steady.small.split()[1]) == pytest.approx(0.5, abs=0.01)
    assert steady.small.endswith("s, n = 1")
    assert steady.value == pytest.approx(float(steady.text.replace(",", "")), rel=0.01)

"""Two runs cell by cell: planted regressions, refusals with their sentences, and what the command answers."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from record_fixtures import H200, cell, elsewhere, record, resumed, telemetry, unfinished
from record_fixtures import write_records as write

from gpufeed.compare import NOTHING, REFUSED, REGRESSED, main
from gpufeed.core.errors import GpufeedError
from gpufeed.core.folders import baseline_records, records_below
from gpufeed.core.record import Record
from gpufeed.report.load_records import read_records

SIX = (100.0, 101.0, 99.0, 100.5, 99.5, 100.2)
FACTS = {"samples": 500, "classes": 10, "height": 224, "width": 224, "quarantined": 0, "examples": []}


def made(loader="resident", speeds=SIX, gpu=H200, facts=None, card=None, environment=None, **axes):
    """Finished repeats of a cell. card, environment: other than the fixtures'; facts: of the dataset."""
    found = []
    for repeat, speed in enumerate(speeds):
        one = elsewhere(record(cell(loader, **axes), repeat, speed, gpu=gpu), card, **(environment or {}))
        found.append(replace(one, dataset={**FACTS, "cache": None} | (facts or {})))
    return found


def faster(factor):
    return tuple(factor * speed for speed in SIX)


def earlier(records):
    """The repeats of another run, the day before."""
    return [replace(one, started_at=one.started_at.replace("-02T", "-01T")) for one in records]


def damage(results):
    """Add a file that is no record; return its path."""
    path = results / "records/pipelining/broken/0.json"
    path.parent.mkdir(parents=True)
    path.write_text("{")
    return path


@pytest.fixture
def run(tmp_path, capsys):
    """Writes both sides, B of the day before, and compares; returns exit code, output, rows of the CSV."""

    def run(ours, base, *options):
        a, b, table = tmp_path / "new", tmp_path / "old", tmp_path / "rows.csv"
        write(a, *ours)
        write(b, *earlier(base))
        code = main([str(a), str(b), "--csv", str(table), *options])
        said = capsys.readouterr()
        return code, said.out + said.err, pd.read_csv(table, keep_default_na=False, na_values=[""])

    return run


def test_a_planted_regression_is_found_first_and_fails(run, tmp_path):
    ours = [*made("overlap", faster(1.2)), *made("resident", faster(0.9)), *made("replay", faster(1.001))]
    page = tmp_path / "page.md"
    base = [*made("resident"), *made("overlap"), *made("replay")]
    code, said, rows = run(ours, base, "--markdown", str(page))
    assert code == REGRESSED
    assert rows["verdict"].tolist() == ["slower", "no difference shown", "faster"]
    assert "-resident-" in rows["cell_id"][0]
    assert rows["ratio"].tolist() == pytest.approx([0.9, 1.001, 1.2])
    first = rows.iloc[0]
    assert first["low"] <= first["ratio"] <= first["high"] < 1 / 1.03
    assert (first["bounds"], first["a_n"], first["b_n"], first["paired"]) == ("interval", 6, 6, False)
    assert said.index("slower") < said.index("-resident-") < said.index("-replay-") < said.index("-overlap-")
    assert "Of 3 cells: 1 slower, 1 no difference shown, 1 faster." in said
    assert "\n| slower | 0.900 | " in page.read_text()


def test_too_few_repeats_show_nothing_and_rule_nothing_out(run):
    code, said, rows = run(made(speeds=(50.0, 51.0, 52.0)), made(speeds=(100.0, 101.0)))
    assert (code, rows["verdict"].tolist()) == (REFUSED, ["too few repeats"])
    assert "ranges apart" in said
    assert "0.495 to 0.520 (range)" in said
    assert "rules none out" in said


def test_one_cell_that_can_be_judged_is_an_answer(run):
    few = made("overlap", (50.0, 51.0))
    assert run([*made(), *few], [*made(), *few])[0] == NOTHING


def test_a_cell_that_fails_now_is_a_regression_and_one_that_is_skipped_is_not(run):
    base = [*made("resident"), *made("overlap")]
    failed = [unfinished(cell("resident"), "failed", "RuntimeError: no luck", repeat) for repeat in range(6)]
    code, said, rows = run([*failed, *made("overlap")], base)
    assert code == REGRESSED
    assert rows["verdict"].tolist() == ["failed", "no difference shown"]
    assert "failed in A: RuntimeError: no luck" in said

    skipped = [unfinished(cell("resident"), "skipped", "No GPU here.", repeat) for repeat in range(6)]
    code, said, rows = run([*skipped, *made("overlap")], base)
    assert (code, set(rows["verdict"])) == (NOTHING, {"no difference shown", "not measured"})
    assert "skipped in A: No GPU here." in said


def test_a_cell_that_left_no_record_is_no_success(run):
    code, said, _ = run(made("resident"), [*made("resident"), *made("overlap")])
    assert code == REFUSED
    assert "A has no record of 1 of B's cells" in said
    assert run([*made("resident"), *made("overlap")], made("resident"))[0] == NOTHING
    elsewhere = [replace(one, experiment="other") for one in made("overlap")]
    assert run(made("resident"), [*made("resident"), *elsewhere])[0] == NOTHING


def test_a_cell_of_one_machine_more_is_no_cell_without_a_record(run):
    others = [replace(one, repeat=6 + one.repeat) for one in made(gpu="NVIDIA A100")]
    code, said, _ = run(made(), [*made(), *others])
    assert code == NOTHING
    assert "A has no record" not in said
    assert "Only in B, 1 cell" in said


SOURCE = {"source": {"layout": "synthetic", "options": {"seed": 0}}}
OTHER_SOURCE = {"source": {"layout": "synthetic", "options": {"seed": 1}}}


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"gpu": "NVIDIA L4"}, "GPU model: NVIDIA L4 in A, NVIDIA H200 in B"),
        ({"gpu": None}, "GPU or CPU model: Imaginary CPU 3.0 in A, NVIDIA H200 in B"),
        ({"card": {"power_limit_w": 500.0}}, "power limit: 500 W in A, 700 W in B (more than 1 % apart)"),
        ({"card": {"sm_clock_mhz": 1200}}, "SM clock: 1200 MHz in A, 1980 MHz in B (more than 10 % apart)"),
        ({"facts": {"samples": 400}}, "data: 400 images in A, 500 images in B"),
        ({"facts": {"cache": "pillow 12.0"}}, "data: the cache was built by pillow in A, dali_gpu in B"),
        (OTHER_SOURCE, "data: synthetic_224 was made of other options in A than in B"),
    ],
)
def test_what_is_refused_and_why(run, changed, sentence):
    cached = {"cache": "dali_gpu 2.4.0"} if "cache" in changed.get("facts", {}) else {}
    base, sentence = made(facts=cached, **SOURCE), f"other {sentence}"
    ours = made(speeds=faster(0.5), **{**SOURCE, **changed})
    code, said, rows = run([*ours, *made("overlap")], [*base, *made("overlap")])
    assert code == REFUSED
    assert sentence in said
    refused = rows.iloc[0]
    assert (refused["verdict"], refused["reason"].split(" | ")[0]) == ("refused", sentence)
    assert pd.isna(refused["ratio"])
    assert rows["verdict"][1] == "no difference shown"  # the others are compared all the same

    code, said, rows = run(ours, base, "--force")
    assert code == REGRESSED
    assert said.startswith("FORCED")
    assert "slower (forced)" in said
    assert sentence in said
    assert rows.loc[0, ["verdict", "forced", "reason"]].tolist() == ["slower", True, refused["reason"]]
    assert rows.loc[1, ["verdict", "forced"]].tolist() == ["no difference shown", False]


@pytest.mark.parametrize("shared", [1, 6])
def test_repeats_that_are_on_both_sides_repeat_nothing(tmp_path, capsys, shared):
    base = earlier(made())
    write(tmp_path / "new", *base[:shared], *made()[shared:])
    write(tmp_path / "copy", *base)
    command = [str(tmp_path / "new"), str(tmp_path / "copy")]
    assert main(command) == REFUSED
    said = capsys.readouterr()
    assert f"A and B hold the same repeats: {shared} of 6 in A, of 6 in B; compare two runs" in said.out
    assert "holds 1" not in said.out
    assert "--force compares them all the same" in said.err
    assert main([*command, "--force"]) == NOTHING
    assert capsys.readouterr().out.startswith("FORCED")


def test_one_start_and_rate_on_two_gpus_are_two_repeats(tmp_path):
    for uuid in ("GPU-1", "GPU-2"):
        write(tmp_path / uuid, *made(card={"uuid": uuid}))
    assert main([str(tmp_path / "GPU-1"), str(tmp_path / "GPU-2")]) == NOTHING


def test_force_marks_nothing_where_nothing_is_refused(run):
    assert "FORCED" not in run(made(), made(), "--force")[1]


@pytest.mark.parametrize("card", [{"sm_clock_mhz": 1900}, {"power_limit_w": 699.0}, {"uuid": "GPU-2"}])
def test_cards_that_differ_as_cards_of_a_model_do_are_compared(run, card):
    assert run(made(card=card), made(card={"uuid": "GPU-1"}))[0] == NOTHING


def test_an_older_stack_fewer_cores_and_what_nobody_knows_are_kept_in_mind(run):
    ours = made(
        card={"power_limit_w": None},
        environment={
            **{"stack": "cuda13", "versions": {"torch": "2.11.0"}, "cores_allowed": 8},
            "software": {"packages": 9, "digest": "0a", "container": None},
        },
        facts={"cache": "simplejpeg 1.8", "filesystem": "nfs4"},
    )
    theirs = {"software": {"packages": 9, "digest": "0b", "container": None}}
    base = made(environment=theirs, facts={"cache": "simplejpeg 1.9", "filesystem": "ext4"})
    code, said, rows = run(ours, base)
    assert (code, rows["forced"].tolist()) == (NOTHING, [False])
    for note in (
        "other stack: cuda13, torch 2.11.0, driver 580.1 in A, cuda12, torch 2.10.0, driver 580.1 in B",
        "other packages, by their digest: 0a in A, 0b in B",
        "other CPU or cores: Imaginary CPU 3.0, cores allowed: 8 in A, ",
        "the power limit was not recorded in A",
        "the cache was built by another version: simplejpeg 1.8 in A, simplejpeg 1.9 in B",
        "the data lay on another filesystem: nfs4 in A, ext4 in B",
    ):
        assert f"- {note}" in said


def test_clocks_of_the_training_speak_before_one_reading_at_its_end(run):
    def clocked(mhz, at_end):
        sampled = {"n": 9, "median": mhz, "min": mhz, "max": mhz}
        told = telemetry(sm_clock_mhz=sampled)
        return [replace(one, telemetry=told) for one in made(card={"sm_clock_mhz": at_end})]

    assert run(clocked(1900, at_end=400), clocked(1980, at_end=1980))[0] == NOTHING
    assert "other SM clock: 1500 MHz in A, 1980 MHz in B" in run(clocked(1500, 1980), clocked(1980, 1980))[1]


def test_sides_that_differ_in_number_and_spread_are_told_to_measure_as_many_of_both(run):
    wide = (100.0, 120.0, 80.0, 110.0, 90.0, 105.0)
    seven = made(speeds=(*faster(0.5), 50.0))
    code, said, rows = run(seven, made(speeds=wide))
    assert (code, rows["verdict"].tolist()) == (REFUSED, ["number and spread of repeats differ"])
    assert rows[["bounds", "apart", "a_n", "b_n"]].values.tolist() == [["range", True, 7, 6]]
    assert "too few" not in said
    assert "measure as many of both" in said
    code, _, rows = run(seven, made(speeds=(*wide, 95.0)))
    assert (code, rows["verdict"].tolist()) == (REGRESSED, ["slower"])


def test_repeats_that_failed_beside_finished_ones_are_told(run):
    broken = unfinished(cell("resident"), "failed", "Found a; expected b", repeat=6)
    code, said, rows = run([*made(), broken], made())
    assert (code, rows["verdict"].tolist()) == (NOTHING, ["no difference shown"])
    assert "- 1 of 7 repeats failed in A: Found a; expected b" in said


def test_machines_of_one_cell_meet_their_likes_and_the_others_stand_alone(run):
    slow = "NVIDIA RTX 2060"
    ours = [*made(speeds=SIX[:3]), *made(speeds=faster(0.1), gpu=slow)[3:]]  # three repeats on each
    code, said, rows = run(ours, made())
    assert code == REFUSED
    assert rows[["verdict", "a_n", "b_n"]].values.tolist() == [["too few repeats", 3, 6]]
    assert rows["machine"].tolist() == ["NVIDIA H200, cuda12, torch 2.10.0"]
    assert f"({slow}, cuda12, torch 2.10.0)" in said[said.index("Only in A") :]


def test_cells_of_one_side_are_named_and_damaged_files_counted(run, tmp_path):
    write(tmp_path / "old", *made("replay"))
    damage(tmp_path / "old")
    elsewhere = [*made(experiment="hybrid_gpu"), *made("overlap", experiment="hybrid_gpu")]
    code, said, _ = run([*made(), *made("overlap"), *elsewhere], made())
    assert code == REFUSED  # that of replay may have failed in A
    assert "Only in A, 3 cells:\n\n- hybrid_gpu: 2 cells\n- pipelining/synthetic_224-overlap-" in said
    assert "- pipelining/synthetic_224-replay-" in said[said.index("Only in B") :]
    assert "Left out of B: 1 file is no record" in said


def test_a_damaged_file_of_the_new_side_is_no_success(run, tmp_path):
    write(tmp_path / "new", *made("replay"))
    path = damage(tmp_path / "new")
    code, said, rows = run(made(), made())
    assert (code, rows["verdict"].tolist()) == (REFUSED, ["no difference shown"])
    assert f"Left out of A: 1 file is no record, the first no readable record at {path} (Expecting" in said


NO_RECORDS = {
    "no time": {"started_at": "yesterday"},
    "a day that no calendar has": {"started_at": "2026-02-30T03:04:05+00:00"},
    "a time of nowhere": {"finished_at": "2026-01-02T03:04:05"},
    "infinite": {"throughput": {"images_per_s": float("inf")}},
    "no number": {"throughput": {"images_per_s": float("nan")}},
    "too large": {"throughput": {"images_per_s": "1e999"}},
    "too large a count": {"throughput": {"images": 10**400}},
    "a rate of nothing": {"throughput": {"images_per_s": 0}},
    "a list as source": {"cell": {"source": ["synthetic"]}},
    "a string as source": {"cell": {"source": "synthetic"}},
    "a list as loader": {"cell": {"loader": ["resident"]}},
    **{
        f"done without {part}": {part: None}
        for part in ("resolved", "phases", "warmup", "steps", "throughput", "memory")
    },
}


@pytest.mark.parametrize("what", NO_RECORDS)
def test_what_no_repeat_can_have_written_is_damaged_and_named(tmp_path, what):
    (path,) = write(tmp_path, made()[0])
    data = json.loads(path.read_text())
    for key, value in NO_RECORDS[what].items():
        data[key] = data[key] | value if isinstance(value, dict) else value
    path.write_text(json.dumps(data).replace('"1e999"', "1e999"))
    with pytest.raises(GpufeedError) as raised:
        Record.read(path)
    assert str(path) in raised.value.found
    (row,) = read_records([path]).to_dict("records")
    assert row["status"] == "unusable"
    assert str(path) in row["sentence"]


def test_a_cell_that_a_later_choice_renamed_matches_by_its_settings(run):
    hyper = {"trainer": {"learning_rate": 0.1}}
    later = {"trainer": {"learning_rate": 0.1, "evaluate": "last"}}
    ours, base = made(hyper=later, seed=1), made(hyper=hyper)
    assert ours[0].cell_id != base[0].cell_id
    assert run(ours, base)[0] == NOTHING
    # but never where two cells could be meant
    code, said, rows = run([*ours, *made(hyper=later, seed=2)], base)
    assert (code, len(rows)) == (REFUSED, 0)
    assert "Only in A, 2 cells" in said
    assert "nothing was compared" in said


def test_a_side_without_a_repeat_was_measured_on_no_machine(run):
    _, said, _ = run(made(), [unfinished(cell("resident"), "skipped", "no GPU")])
    assert "new, measured on " in said
    assert "old, without a repeat to compare" in said


def test_one_experiment_of_several(run, tmp_path, capsys):
    ours = [*made(speeds=faster(0.5)), *made(experiment="hybrid_gpu")]
    base = [*made(), *made(experiment="hybrid_gpu")]
    assert run(ours, base)[0] == REGRESSED
    assert run(ours, base, "--experiment", "hybrid_gpu")[0] == NOTHING
    folders = [str(tmp_path / "new"), str(tmp_path / "old")]
    assert main([*folders, "--experiment", "hybrid"]) == REFUSED
    assert "write 'hybrid_gpu' instead" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--csv", "--markdown"])
def test_a_file_that_cannot_be_written_is_an_error_with_its_option(option, tmp_path, capsys):
    write(tmp_path / "new", *made())
    write(tmp_path / "old", *earlier(made()))
    (tmp_path / "file").touch()
    sides = [str(tmp_path / "new"), str(tmp_path / "old")]
    assert main([*sides, option, str(tmp_path / "file/rows")]) == REFUSED
    found, _, remedy = capsys.readouterr().err.splitlines()
    assert found == f"found: {tmp_path / 'file/rows'} cannot be written: File exists"
    assert remedy == f"what to do: name another with {option}"


def test_folders_of_records_and_folders_that_are_none(tmp_path, capsys):
    write(tmp_path / "new", *made())
    write(tmp_path / "old", *earlier(made()))
    for folder in ("new", "new/records", "new/records/pipelining"):
        assert len(records_below(tmp_path / folder)) == 6
        assert main([str(tmp_path / folder), str(tmp_path / "old")]) == NOTHING
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty/again/pipelining").mkdir(parents=True)
    (tmp_path / "empty/again/pipelining/2.json").write_text('{"again": []}')
    (tmp_path / "new.zip").touch()
    for folder, found in (("empty", "no record below"), ("none", "no folder"), ("new.zip", "unpack it")):
        assert main([str(tmp_path / "new"), str(tmp_path / folder)]) == REFUSED
        assert found in capsys.readouterr().err
    with pytest.raises(SystemExit) as error:
        main([str(tmp_path / "new")])
    assert error.value.code == REFUSED


def test_published_results_are_not_those_of_the_folder_that_holds_them(tmp_path):
    write(tmp_path / "results/reference/h200", *made())
    with pytest.raises(GpufeedError, match="no record"):
        records_below(tmp_path / "results")
    assert len(records_below(tmp_path / "results/reference/h200")) == 6
    assert len(baseline_records(tmp_path / "results/reference/h200", "pipelining")) == 6
    assert baseline_records(tmp_path / "results/reference/h200", "demo") == []


def test_machines_side_by_side_by_their_own_ceilings(tmp_path, capsys):
    other = "NVIDIA RTX 2060"
    fast = [*made("resident", (1000.0, 1010.0)), *made("replay", (2000.0, 2010.0))]
    slow = [*made("resident", (95.0, 96.0), other), *made("replay", (100.0, 101.0), other)]
    lone = made("overlap", (50.0, 51.0), other)
    write(tmp_path / "a", *fast)
    write(tmp_path / "b", *slow, *lone)
    table, page = tmp_path / "shares.csv", tmp_path / "page.md"
    folders = [str(tmp_path / "a"), str(tmp_path / "b")]
    assert main(["--across", *folders, "--csv", str(table), "--markdown", str(page)]) == NOTHING
    said = capsys.readouterr().out
    assert f"[1] {H200}, cuda12" in said
    assert f"[2] {other}, cuda12" in said
    (shared,) = (line for line in said.splitlines() if "-resident-" in line)
    assert shared.split("  ")[:2] == ["50 % (n = 2)", "95 % (n = 2)"]
    (alone,) = (line for line in said.splitlines() if "-overlap-" in line)
    assert alone.split()[:4] == ["-", "50", "%", "(n"]
    # no line has the rates of two machines, and none sets one against the other
    assert [line.split()[:2] for line in said.splitlines() if "-replay-" in line] == [
        ["[1]", "2,005"],
        ["[2]", "100"],
    ]
    assert "1,005" not in said
    assert "| 50 % (n = 2) | 95 % (n = 2) |" in page.read_text()
    rows = pd.read_csv(table)
    assert rows.groupby("machine").size().tolist() == [1, 2]
    assert "images_per_s" not in rows
    assert "no limit was measured" not in said


def test_cells_without_a_ceiling_are_counted_for_each_machine(tmp_path, capsys):
    for number, gpu in enumerate((H200, "NVIDIA RTX 4090"), 1):
        bounded = [*made("resident", (95.0, 96.0), gpu), *made("replay", (100.0, 101.0), gpu)]
        others = [one for size in range(number) for one in made("overlap", (50.0,), gpu, batch_size=size + 1)]
        write(tmp_path / str(number), *bounded, *others)
    page = tmp_path / "page.md"
    folders = [str(tmp_path / name) for name in "12"]
    assert main(["--across", *folders, "--markdown", str(page)]) == NOTHING
    for text in (capsys.readouterr().out, page.read_text()):
        assert re.search(r"no limit was measured: 1 on NVIDIA H200,.*; 2 on NVIDIA RTX 4090,", text)


def test_machines_without_a_ceiling_have_nothing_to_show(tmp_path, capsys):
    write(tmp_path / "a", *made())
    assert main(["--across", str(tmp_path / "a")]) == REFUSED
    assert "replay" in capsys.readouterr().err


def test_the_published_repeatability_is_what_its_records_give(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(Path(__file__).parents[3])
    folder, page = Path("results/reference/h200/repeatability"), tmp_path / "comparison.md"
    assert main([str(folder / "second"), str(folder / "first"), "--markdown", str(page)]) == NOTHING
    assert page.read_text() == (folder / "comparison.md").read_text()
    assert "holds 1 and is narrower than +-5 % in 8 of 8." in capsys.readouterr().out


@pytest.mark.slow
def test_the_published_table_across_gpus_is_what_its_records_give(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(Path(__file__).parents[3])
    reference, page = Path("results/reference"), tmp_path / "across.md"
    folders = [str(reference / node) for node in ("h200", "h100_cuda12")]
    assert main(["--across", *folders, "--experiment", "hybrid_gpu", "--markdown", str(page)]) == NOTHING
    assert page.read_text() == (reference / "across-hybrid_gpu.md").read_text()
    assert "[2] NVIDIA H100 80GB HBM3, cuda12, torch 2.10.0" in capsys.readouterr().out


def test_repeats_that_were_taken_up_again_are_not_compared(run):
    again = [resumed(one, 200) for one in made("resident", faster(0.1))]
    mixed = [*made("overlap")[:3], *(resumed(one, 200) for one in made("overlap", faster(0.1))[3:])]
    code, _, rows = run([*again, *mixed], [*made("resident"), *made("overlap")])
    found = rows.set_index("verdict")
    assert code == REFUSED  # three repeats are too few: nothing could be judged
    assert "taken up again after a stop" in found.loc["not measured", "reason"]
    (judged,) = found.drop("not measured").to_dict("records")
    assert (judged["a_n"], judged["ratio"] > 0.9) == (3, True)


def test_a_record_of_several_processes_has_no_rate_and_any_other_has_one(tmp_path):
    whole = made()[0]
    for damaged in (
        replace(whole, resumed=[200]),
        replace(whole, throughput=None),
        replace(resumed(whole, 200), resumed=[]),
    ):
        with pytest.raises(GpufeedError):
            damaged.write(tmp_path / "0.json")
    (path,) = write(tmp_path, resumed(whole, 200, 200))
    assert Record.read(path).resumed == [200, 200]

"""The command that measures what telemetry costs: its turns, its lengths, its sentence, and a run of it."""

import importlib.util
import json
import sys

import pytest
from data_fixtures import REPOSITORY

spec = importlib.util.spec_from_file_location("telemetry_cost", REPOSITORY / "tests/bench/telemetry_cost.py")
telemetry_cost = sys.modules["telemetry_cost"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(telemetry_cost)
Turn = telemetry_cost.Turn


def test_pairs_take_turns_and_keep_their_sides():
    order = []

    def turn(telemetry):
        order.append(telemetry)
        return Turn(float(len(order)), 5 if telemetry else None)

    pairs = telemetry_cost.alternate(4, turn)
    assert order == [True, False, False, True] * 2
    assert [(on.samples, off.samples) for on, off in pairs] == [(5, None)] * 4
    assert [(on.images_per_s, off.images_per_s) for on, off in pairs] == [(1, 2), (4, 3), (5, 6), (8, 7)]


@pytest.mark.parametrize(("epoch_s", "epochs"), [(0.1, 31), (2.0, 3), (60.0, 3)])
def test_a_training_is_as_long_as_asked_and_has_two_epochs_to_time(epoch_s, epochs):
    asked = []
    found = telemetry_cost.epochs_for(3.0, lambda n: asked.append(n) or [9.0, epoch_s, 2 * epoch_s])
    assert (found, asked) == (epochs, [3])


def test_the_sentence_has_ratio_interval_and_n():
    pairs = [(Turn(100.0, 12), Turn(101.0 + i % 3, None)) for i in range(20)]
    said = telemetry_cost.verdict(pairs)
    assert said.startswith("with telemetry a step takes 1.0200 times as long (95 % interval 1.0")
    assert "single pairs 1.0100 to 1.0300); n = 20 pairs in turns" in said
    assert "12 samples a training" in said
    assert "(range 1.0100 to 1.0300" in telemetry_cost.verdict(pairs[:3])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--pairs", "0"], "found: --pairs 0"),
        (["--batch-size", "-3"], "found: --batch-size -3"),
        (["--workers", "2"], "resident has no worker processes"),
        (["--loader", "dali_gpu", "--device", "cpu"], "dali_gpu decodes on a CUDA GPU"),
        (["--cuda-graphs", "--device", "cpu"], "CUDA graphs need device cuda"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_is_made(tmp_path, capsys, options, said):
    assert telemetry_cost.main(["--data", str(tmp_path), *options]) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_whole_run_prints_a_ratio_and_keeps_its_pairs(tmp_path, capsys):
    options = ["--pairs", "2", "--seconds", "0.01", "--images", "40", "--batch-size", "16"]
    options += ["--model", "simple_cnn", "--device", "cpu", "--data", str(tmp_path)]
    assert telemetry_cost.main([*options, "--output", str(tmp_path / "pairs.json")]) == 0
    assert (
        "resident (0 workers), simple_cnn, batch 16: with telemetry a step takes" in capsys.readouterr().out
    )
    told = json.loads((tmp_path / "pairs.json").read_text())
    assert told["columns"] == ["on_images_per_s", "off_images_per_s", "samples"]
    assert len(told["pairs"]) == 2
    assert all(on > 0 and off > 0 for on, off, _ in told["pairs"])
    assert told["epochs"] >= 3

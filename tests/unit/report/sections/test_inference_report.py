"""What the report says, draws and tabulates of models in use."""

import csv
from xml.etree import ElementTree

import inference_fixtures as made
import pytest
import record_fixtures as records
from config_fixtures import with_tiny
from workflow_fixtures import Named, run_script

from gpufeed.core import plan_inference
from gpufeed.core.config import planned
from gpufeed.core.errors import GpufeedError
from gpufeed.core.registry import BACKENDS
from gpufeed.report import publish, wording
from gpufeed.report.sections import inference


def measured(int8=1200.0, host_ms=0.5, **changes):
    """Eager rows, a fast one, one in INT8 with this rate and latency, and one that did not run."""
    return made.measurement(
        made.row("eager", "fp32", 500, 2.0, over_bf16=0.001),
        made.row("eager", "bf16", 800, 2.0, over_fp32=-0.001),
        made.row("compiled_graphs", "bf16", 1000, 0.25),
        made.row(
            "torchao_int8",
            "int8",
            int8,
            host_ms,
            over_fp32=-0.003,
            over_bf16=-0.002,
            agreement=0.985,
            layers={"layers": 48, "of": 50},
            note="A note on int8.",
        ),
        made.without("tensorrt_int8", "int8", "skipped", "TensorRT is not installed here."),
        made.without("tensorrt", "fp32", "skipped", "TensorRT is not installed here."),
        **changes,
    )


@pytest.mark.parametrize(
    ("rate", "said"),
    [
        (1073, "At batch 1024 torchao_int8 is fastest: 2,146"),
        (1071, "1024 torchao_int8 has the highest median, not distinguishable from compiled_graphs bf16"),
        (990, "1024 compiled_graphs bf16 has the highest median, not distinguishable from torchao_int8"),
    ],
)
def test_the_headline_calls_fastest_only_what_keeps_apart_by_three_percent(rate, said):
    assert said in inference.headline(measured(int8=float(rate)))


def test_the_headline_has_no_factor_over_what_the_fastest_is_not_shown_to_beat():
    near = made.measurement(made.row("eager", "fp32", 500, 2.0), made.row("compiled", "fp32", 510, 0.25))
    assert inference.headline(near) == (
        "At batch 1024 compiled fp32 has the highest median, not distinguishable from eager fp32: 1,020 "
        "images/s. With one image compiled fp32 is fastest: 0.25 ms, 8.00x the speed of eager fp32."
    )


def test_sentences_by_hand():
    said = inference.sentences(measured())
    assert said == [
        "At batch 256 INT8 pays: its fastest route, torchao_int8, has 1,200 images/s, 1.20x the speed of the "
        "fastest without, compiled_graphs bf16 (1,000 images/s).",
        "At batch 1024 INT8 pays: its fastest route, torchao_int8, has 2,400 images/s, 1.20x the speed of "
        "the fastest without, compiled_graphs bf16 (2,000 images/s).",
        "At one image INT8 does not pay: its fastest route, torchao_int8, has 0.5 ms, 0.50x the speed of "
        "the fastest without, compiled_graphs bf16 (0.25 ms).",
        "The accuracy of torchao_int8 is -0.20 points from eager bf16 (within 0.5 points) on 1,000 images, "
        "of which 98 % get the class that eager fp32 gives.",
    ]


@pytest.mark.parametrize(
    ("rate", "answer"),
    [(1073, "INT8 pays"), (1071, "is not shown"), (934, "is not shown"), (932, "INT8 does not pay")],
)
def test_ranges_that_meet_show_nothing(rate, answer):
    """980 to 1,020 without: 0.98 and 1.02 of the rate must lie beyond, by more than 1.03."""
    assert answer in inference.sentences(measured(int8=rate))[0]


@pytest.mark.parametrize(
    ("factor", "said"),
    [
        (0.0, "0.00x"),
        (422 / 318139, "0.0013x"),
        (0.052, "0.052x"),
        (0.1, "0.10x"),
        (0.994, "0.99x"),
        (2.345, "2.35x"),
        (12.44, "12.4x"),
        (310.2, "310x"),
    ],
)
def test_a_factor_is_never_rounded_to_nothing(factor, said):
    assert wording.ratio(factor) == said


def test_an_accuracy_further_away_is_said_to_be():
    found = measured()
    found["rows"][3] |= {"over_bf16": -0.0051}
    assert "-0.51 points from eager bf16 (more than 0.5 points)" in inference.sentences(found)[-1]
    for row in found["rows"]:
        row["over_bf16"] = None  # as on a GPU without bf16
    assert "-0.30 points from eager fp32" in inference.sentences(found)[-1]


def test_without_a_route_that_ran_that_is_the_sentence():
    found = measured()
    del found["rows"][3]
    (said,) = inference.sentences(found)
    assert said == "No INT8 route ran to its end here: see the reasons below."
    assert inference.sentences(made.measurement(made.row("eager", "fp32"))) == []


def test_rates_are_divided_by_eager_of_the_same_precision():
    rows = inference.done(measured())
    assert inference.rival(rows, "fp32") is rows["eager", "fp32"]
    assert inference.rival(rows, "int8") is rows["eager", "bf16"]
    assert inference.rival(rows, "fp16") is None
    del rows["eager", "bf16"]
    assert inference.rival(rows, "int8") is rows["eager", "fp32"]


@pytest.mark.usefixtures("drawn")
def test_table_and_figure_are_written_by_the_script(tmp_path):
    paths = [made.write(tmp_path, measured())]
    paths.append(made.write(tmp_path / "another", stopped()))
    out = Named(table=str(tmp_path / "t.csv"), figure=str(tmp_path / "f.svg"))
    run_script("plot_inference", input=paths, output=out, log=[str(tmp_path / "job.log")])
    with open(out.table, newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 7
    assert [row["backend"] for row in rows[:2]] == ["eager", "eager"]
    int8 = rows[3]
    assert float(int8["times_eager_256"]) == pytest.approx(1.5)
    assert float(int8["images_per_s_1024_max"]) == pytest.approx(2448)
    assert float(int8["latency_host_ms_p99"]) == pytest.approx(0.75)
    assert (rows[6]["status"], rows[6]["sentence"]) == ("skipped", "There are no weights.")
    drawn = ElementTree.parse(out.figure)
    words = "".join(drawn.getroot().itertext())
    for text in ("torchao_int8 int8", "batch 1024", "vit_tiny on synthetic_224", "NVIDIA H200"):
        assert text in words
    assert "tensorrt" not in words


def stopped(**changes):
    nothing = {"rows": [], "trained": None, "resolved": None, "split": None}
    return measured(status="skipped", sentence="There are no weights.", **nothing, **changes)


def test_the_page_has_the_answer_the_table_and_what_is_missing(tmp_path):
    found = measured()
    made.write(tmp_path, found)
    (tmp_path / "inference/in_use/broken.json").write_text("{")
    info = records.plan_info({"in_use": []}, repeats=1)
    info["experiments"]["in_use"]["inference"] = [found["cell_id"], "broken", "still-to-come"]
    told = publish.report(tmp_path, ["in_use"], info, tmp_path / "report.html")
    text = records.text_of(tmp_path / "report.html")
    assert "Models in use vit_tiny on synthetic_224; NVIDIA H200, torch 2.10.0" in text
    assert "At batch 256 INT8 pays" in text
    assert "No pipeline has a finished repeat" not in text
    assert "At batch 1024 torchao_int8 is fastest: 2,400 images/s, 2.40x the speed of eager fp32." in text
    assert "With one image compiled_graphs bf16 is fastest: 0.25 ms, 8.00x the speed of eager fp32." in text
    assert "torchao_int8 1 int8 48 of 50 layers 70.00 % -0.30 to fp32 -0.20 to bf16" in text
    assert "1,200 1,176 to 1,224 1.50x" in text
    assert "A note on int8." in text
    missing = "tensorrt_int8 int8 and tensorrt fp32: TensorRT is not installed"
    assert f"vit_tiny on synthetic_224, {missing}" in text
    assert "1 of the models that are to be measured in use is not measured yet." in text
    assert "unusable broken:" in text
    assert "1 measurement of a model in use" in publish.missing_lines(told, info)
    assert "Accuracy: all 1,000 images of split val." in text


# --- the config


def config(inference, **changes):
    blocks = {"one": {"loader": ["resident", "replay"]}, "two": {"loader": "replay"}}
    return with_tiny(blocks, **{"common": {"dataset": "synthetic"}, "inference": inference, **changes})


def test_settings_have_defaults_and_calibration_is_apart():
    found = config({"blocks": ["one"], "rounds": 2, "calibration": {"images": 7}})
    own = planned(found)
    assert len(own.cells_for(found, "tiny", "inference")) == 1  # without the ceiling
    assert plan_inference.settings(found, "tiny") == {
        "backends": list(BACKENDS),
        "precisions": ["fp32", "fp16", "bf16"],
        "batch_sizes": [256, 1024],
        "calls": 500,
        "rounds": 2,
        "seconds": 0.3,
    }
    assert plan_inference.calibration(found, "tiny") == {"images": 7, "method": "minmax", "seed": 0}
    del found["experiments"]["tiny"]["inference"]
    assert plan_inference.settings(found, "tiny") is None
    assert planned(found).cells_for(found, "tiny", "inference") == []


@pytest.mark.parametrize(
    ("inference", "found"),
    [
        ({}, "no 'blocks' in experiments.tiny.inference"),
        ({"blocks": ["three"]}, "block 'three' in experiments.tiny.inference.blocks"),
        ({"blocks": ["two"]}, "no cell but the limit"),
        (
            {"blocks": ["one"], "backends": ["egaer"]},
            "backend 'egaer' in experiments.tiny.inference.backends",
        ),
        ({"blocks": ["one"], "backends": ["export"], "precisions": ["bf16"]}, "backend export"),
        ({"blocks": ["one"], "batch_sizes": [1]}, "experiments.tiny.inference.batch_sizes.0: 1"),
        ({"blocks": ["one"], "calibration": {"method": "guess"}}, "calibration.method: 'guess'"),
    ],
)
def test_a_wrong_key_is_told_before_anything_is_planned(inference, found):
    with pytest.raises(GpufeedError) as caught:
        planned(config(inference))
    assert found in caught.value.found


def test_a_dataset_that_holds_nothing_out_is_refused():
    wrong = config({"blocks": ["one"]}, common={"dataset": "synthetic_224", "steps": 9})
    with pytest.raises(GpufeedError, match=r"tiny.inference whose dataset 'synthetic_224' has no"):
        planned(wrong)

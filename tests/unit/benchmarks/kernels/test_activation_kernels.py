"""The benchmark of the MLP's activation without a GPU: the same function by all, what it counts and says."""

import copy
import math

import pytest
import torch
from config_fixtures import merged
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from gpufeed import native
from gpufeed.benchmarks.kernels import activation_work, kernel_benchmark
from gpufeed.benchmarks.kernels.activation_work import Case, check, inputs_of, runner, task_of, tasks_of
from gpufeed.core import record
from gpufeed.core.config import planned
from gpufeed.core.errors import GpufeedError, Skip
from gpufeed.core.plan_kernels import ACTIVATION_WORKS, lines, settings
from gpufeed.report import style
from gpufeed.report.find_results import Found
from gpufeed.report.page import page
from gpufeed.report.sections import kernel_activation, kernel_claims
from gpufeed.report.sections import kernels as kernel_section

CPU = torch.device("cpu")
CASE = Case(70, 64, torch.float32, CPU)
SETTINGS = {"family": "activation", "rows": 64, "columns": [32, 64], "launches": 5, "dtype": "bfloat16"}
SHARE = {"work": "bias_gelu_forward", "form": "tanh", "share": 0.9, "times": {"compiled": 1.4}}
ALL = [(work, form) for work, forms in ACTIVATION_WORKS.items() for form in forms]


def rows(ms, spread=0.01) -> list[dict]:
    """A done row for each (work, form, implementation, columns) of `ms`; a copy or triad takes 0.9 ms."""
    made = []
    for (work, form, name, columns), value in ms.items():
        task = task_of(Case(64, columns, torch.bfloat16, CPU), work, form, name)
        times = [value * (1 - spread), value, value * (1 + spread)]
        found = {"status": "done", "sentence": None, "times": times, "call_ms": value, "copy_ms": None}
        found["copy_ms"] = 0.9 if task.yardstick else None
        made.append({**task.names, **task.facts, **kernel_benchmark.against(found, task)})
    return made


def benchmark(made: list[dict]) -> dict:
    found = kernel_benchmark.measure_kernels("e", SETTINGS, "here", "cpu")
    return found | {"status": "done", "sentence": None, "rows": made}


def done(made: list[dict]) -> dict:
    return {(row["work"], row["form"], row["implementation"], row["columns"]): row for row in made}


def whole() -> list[dict]:
    """Every row: the extension 1 ms, epilogue 2, compiled 3, eager 4, gelu_alone 5."""
    ms = {}
    for work, form in ALL:
        for number, name in enumerate(activation_work.ACTIVATION_IMPLEMENTATIONS, start=1):
            alone = name == "gelu_alone" and activation_work.WORKS[work].block
            fused = name == "epilogue" and not activation_work.WORKS[work].block
            if not alone and not fused:
                ms |= {(work, form, name, columns): float(number) for columns in SETTINGS["columns"]}
    return rows(ms)


# --- the works ---


@pytest.mark.parametrize(("work", "form"), ALL)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_plain_torch_does_every_work_and_agrees_with_float64(work, form, dtype):
    run = activation_work.make(Case(70, 64, dtype, CPU), work, form, "eager")
    first, second = run(), run()  # a kept graph can be run again
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    assert {out.dtype for out in first} == {dtype}


def test_the_backward_pass_gives_the_gradients_of_x_and_bias_in_closed_form():
    x, bias = (tensor.double() for tensor in CASE.activation)
    dx, dbias = runner(
        lambda x, bias: activation_work.bias_gelu(x, bias, "none"), (x, bias), CASE.grad.double(), "backward"
    )()
    z = x + bias
    normal = torch.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    want = CASE.grad.double() * (torch.special.ndtr(z) + z * normal)
    torch.testing.assert_close(dx, want)
    torch.testing.assert_close(dbias, want.sum(0))


def test_the_block_gives_its_result_and_a_gradient_for_each_input():
    out, *gradients = activation_work.make(CASE, "mlp", "tanh", "eager")()
    assert out.shape == (70, 16)
    assert [tuple(gradient.shape) for gradient in gradients] == [tuple(one.shape) for one in CASE.block]
    assert not out.requires_grad


@pytest.mark.parametrize(("work", "form"), ALL)
def test_a_wrong_result_is_told(work, form, monkeypatch):
    """One element, beyond the first chunk of rows, by a twentieth of the largest."""
    monkeypatch.setattr(activation_work, "CHUNK", 32)
    passes, approximate = activation_work.WORKS[work].passes, activation_work.APPROXIMATE[form]
    inputs = inputs_of(CASE, work, "eager")
    grad = CASE.grad_of_block if work == "mlp" else CASE.grad

    def plain(*tensors):
        return activation_work.PLAIN[work](*tensors, approximate)

    right = runner(plain, inputs, grad, passes)()
    check(right, plain, inputs, grad, passes)
    for index in range(len(right)):
        wrong = [out.clone() for out in right]
        wrong[index].view(-1)[-1] += wrong[index].abs().max() / 20
        with pytest.raises(GpufeedError, match=rf"result {index + 1} of {len(right)} up to"):
            check(tuple(wrong), plain, inputs, grad, passes)
        wrong[index].view(-1)[-1] = float("nan")
        with pytest.raises(GpufeedError, match="up to nan away"):
            check(tuple(wrong), plain, inputs, grad, passes)


@pytest.mark.parametrize("work", ["bias_gelu_forward", "bias_gelu_backward"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_other_form_of_gelu_is_told_where_each_value_is_looked_at(work, dtype):
    case, passes = Case(4100, 64, dtype, CPU), activation_work.WORKS[work].passes
    inputs, forms = case.activation, {}
    for approximate in ("none", "tanh"):
        exact = runner(
            lambda *given, form=approximate: activation_work.PLAIN[work](*given, form),
            tuple(tensor.double() for tensor in inputs),
            case.grad.double(),
            passes,
        )()
        forms[approximate] = tuple(out.to(dtype) for out in exact)

    def plain(*tensors):
        return activation_work.PLAIN[work](*tensors, "none")

    check(forms["none"], plain, inputs, case.grad, passes, closely=True)
    with pytest.raises(GpufeedError, match="away from float64"):
        check(forms["tanh"], plain, inputs, case.grad, passes, closely=True)


def test_a_wrong_implementation_has_no_time(monkeypatch):
    monkeypatch.setitem(
        activation_work.MAKERS, "eager", lambda case, work, approximate: lambda x, bias: x + bias
    )
    task = task_of(CASE, "bias_gelu_forward", "erf", "eager")
    found = kernel_benchmark.measured(task, None, None)
    row = kernel_benchmark.against(found, task)
    assert (row["status"], row["ms_median"], row["share_of_copy"]) == ("failed", None, None)
    assert "away from float64" in row["sentence"]


def test_what_an_implementation_does_not_do_gets_no_row(monkeypatch):
    monkeypatch.setattr(activation_work, "extension_for", lambda device: native)
    made = {
        name: {key for key in ALL if not refused(*key, name)}
        for name in activation_work.ACTIVATION_IMPLEMENTATIONS
    }
    assert made["extension"] == made["compiled"] == made["eager"] == set(ALL)
    assert made["gelu_alone"] == {key for key in ALL if key[0].startswith("bias_gelu")}
    assert made["epilogue"] == {("linear_gelu", "tanh"), ("mlp", "tanh")}


def refused(work: str, form: str, name: str) -> bool:
    try:
        activation_work.MAKERS[name](CASE, work, activation_work.APPROXIMATE[form])
    except activation_work.NotDone:
        return True
    return False


def test_without_the_extension_its_rows_are_skipped_with_the_sentence(monkeypatch):
    def missing(device):
        raise Skip("No extension here.")

    monkeypatch.setattr(activation_work, "extension_for", missing)
    task = task_of(CASE, "mlp", "tanh", "epilogue")
    row = kernel_benchmark.against(kernel_benchmark.measured(task, None, None), task)
    assert (row["status"], row["sentence"]) == ("skipped", "No extension here.")


def test_bytes_and_flops():
    case = Case(1000, 64, torch.bfloat16, CPU)
    of = {
        (task.names["work"], task.names["implementation"]): {**task.facts, **task.amounts}
        for task in tasks_of(case)
    }
    forward, backward = of["bias_gelu_forward", "extension"], of["bias_gelu_backward", "eager"]
    assert (forward["bytes"], forward["bytes_are"], forward["yardstick"]) == (
        2 * 1000 * 64 * 2 + 64 * 2,
        "moved",
        "copy",
    )
    assert (backward["bytes"], backward["bytes_are"], backward["yardstick"]) == (
        3 * 1000 * 64 * 2 + 2 * 64 * 2,
        "at least",
        "triad",
    )
    assert of["bias_gelu_backward", "gelu_alone"]["bytes"] == 3 * 1000 * 64 * 2
    assert of["linear_gelu", "eager"]["flops"] == 2 * 1000 * 16 * 64
    assert of["mlp", "eager"]["flops"] == 12 * 1000 * 16 * 64
    assert of["mlp", "eager"]["bytes"] is None
    assert of["mlp", "eager"]["tflop_per_s"] == 12 * 1000 * 16 * 64 / 1e9  # of one run in one millisecond


# --- the document ---


def test_a_benchmark_is_written_and_read(tmp_path):
    found = benchmark(whole())
    record.KERNELS.write(found, tmp_path / "e.json")
    assert record.KERNELS.read(tmp_path / "e.json") == found
    for change in (
        {"rows": [{**found["rows"][0], "batch_size": 4}]},
        {"rows": [{key: value for key, value in found["rows"][0].items() if key != "yardstick"}]},
        {"settings": {key: value for key, value in found["settings"].items() if key != "columns"}},
        {"settings": found["settings"] | {"size": [8]}},
        {"settings": found["settings"] | {"lines": []}},
    ):
        with pytest.raises(GpufeedError, match=r"kernel\.schema"):
            record.KERNELS.write({**copy.deepcopy(found), **change}, tmp_path / "e.json")


def test_a_document_from_before_there_were_families_is_of_the_augments(tmp_path):
    augments = {"batch_size": [2], "size": [8], "launches": 5, "dtype": "float32"}
    old = benchmark([]) | {"settings": augments | {"flush_mib": 256, "warmup": 3}}
    record.KERNELS.write(old, tmp_path / "e.json")
    assert kernel_section.family_of(record.KERNELS.read(tmp_path / "e.json")) is kernel_section.kernel_augment


def test_the_lines_are_no_part_of_what_is_measured():
    config = {"experiments": {"e": {"kernels": {"family": "activation", "rows": 8, "lines": [SHARE]}}}}
    measured = {"family": "activation", "rows": 8, "columns": [768, 1536, 3072]}
    assert settings(config, "e") == measured | {"launches": 50, "dtype": "bfloat16"}
    assert lines(config, "e") == [SHARE]
    assert lines({"experiments": {"e": {}}}, "e") == []


# --- what is said ---


def judged(ms: float, spread: float = 0.01) -> list[tuple[str, str]]:
    """(measured, answer) of the line SHARE where the extension takes `ms` and compiled 1.5 ms."""
    made = rows({("bias_gelu_forward", "tanh", "extension", 32): ms}, spread)
    made += rows({("bias_gelu_forward", "tanh", "compiled", 32): 1.5}, spread)
    return [
        (claim.measured, claim.answer) for claim in kernel_claims.activation_claims(done(made), [SHARE], [32])
    ]


def test_a_line_is_judged_by_the_quartiles():
    (share, holds), (times, also) = judged(0.96)
    assert (share, holds) == ("94% (93% to 94%)", "holds")
    assert times.startswith("1.56 times (")
    assert also == "holds"
    assert [answer for _, answer in judged(2.0)] == ["does not hold", "does not hold"]
    assert [answer for _, answer in judged(1.0, spread=0.2)] == ["cannot be judged", "cannot be judged"]


def test_a_line_is_judged_at_every_width_and_says_what_is_missing():
    made = done(rows({("bias_gelu_forward", "tanh", "extension", 32): 0.5}))
    found = kernel_claims.activation_claims(made, [SHARE], [32, 64])
    assert [claim.answer for claim in found] == ["holds", "not measured", "not measured", "not measured"]
    assert found[0].claim == "extension, bias and GELU, forward, tanh, 32 columns"
    assert found[0].line == "at least 90% of copy"
    assert found[1].line == "at least 1.4 times as fast as torch.compile"


def test_the_sentences_say_who_wins_at_which_width():
    made = {("mlp", "tanh", "epilogue", 32): 1.0, ("mlp", "tanh", "compiled", 32): 1.3}
    made |= {("mlp", "tanh", "extension", 32): 1.5, ("mlp", "tanh", "eager", 32): 2.0}
    made |= {("mlp", "tanh", "epilogue", 64): 1.0, ("mlp", "tanh", "compiled", 64): 1.005}
    made |= {
        ("bias_gelu_backward", "erf", name, 32): ms for name, ms in {"extension": 1.0, "eager": 4.0}.items()
    }
    share, block = kernel_activation.sentences(done(rows(made)), [32, 64])
    assert share == (
        "Bias and GELU, backward with the bias's gradient, erf: at 32 columns the extension has 90% of the "
        "speed of a triad of as many bytes, 4 times the speed of eager."
    )
    assert (
        "at 32 columns cuBLASLt epilogue (1 ms, 0 TFLOP/s) is fastest, 1.30 times the speed of torch" in block
    )
    assert ", 1.50 times that of extension;" in block
    assert (
        "at 64 columns cuBLASLt epilogue (1 ms, 0 TFLOP/s) and torch.compile cannot be told apart." in block
    )


@pytest.mark.slow
@hypothesis_settings(max_examples=10)  # each draws a figure
@given(
    st.dictionaries(
        st.tuples(
            st.sampled_from(ALL),
            st.sampled_from(activation_work.ACTIVATION_IMPLEMENTATIONS),
            st.sampled_from([32, 64]),
        ),
        st.floats(1e-4, 1e4),
    )
)
def test_any_set_of_rows_can_be_shown(found):
    ms = {(*key, name, columns): value for (key, name, columns), value in found.items()}
    shown = kernel_activation.shown(benchmark(rows(ms)), [SHARE], "p")
    assert sum(len([cell for cell in row["cells"] if cell]) for row in shown["tables"][0]["rows"]) == len(ms)
    assert len(shown["claims"]) == 4


def test_the_figure_has_a_panel_for_each_work_and_form_with_every_value():
    figure = kernel_activation.draw(done(whole()), SETTINGS)
    panels = [axis for axis in figure.axes if axis.get_visible()]
    assert len(panels) == len(ALL)
    first = panels[0]  # bias_gelu_forward, tanh
    assert [round(bar.get_height(), 3) for bar in first.patches] == [
        0.9,
        0.9,
        0.3,
        0.3,
        0.225,
        0.225,
        0.18,
        0.18,
    ]
    assert {bar.get_hatch() for bar in first.patches} == {"", "//", "..", "xx"}  # told apart without colour
    text = style.to_svg(figure)
    for words in ("cuBLASLt epilogue", "of the speed of a triad", "TFLOP/s", "64 columns"):
        assert words in text


def test_the_page_shows_figure_table_and_verdicts(tmp_path):
    failed = {**whole()[0], "status": "failed", "sentence": "no kernel", "ms_median": None}
    record.KERNELS.write(benchmark([failed, *whole()[1:]]), tmp_path / "e.json")
    plan = {"title": "T", "question": "Q?", "repeats": 1, "cells": [], "kernels": {"lines": [SHARE]}}
    info = {"experiments": {"e": plan}, "left_out": [], "command": "snakemake {target}"}
    shown = page(Found([], kernels=[tmp_path / "e.json"]), info)
    assert "<svg role=" in shown
    assert "at least 1.4 times as fast as torch.compile" in shown
    assert "MLP block (linear, bias, GELU, linear), forward and backward, tanh" in shown
    assert "extension, bias and GELU, forward, tanh at 64 x 32: no kernel" in shown
    assert "TFLOP/s" in shown


def kernels(**changes) -> dict:
    """The shipped config with other `kernels` in accelerated_vit."""
    config = merged("config.yaml")
    config["experiments"]["accelerated_vit"]["kernels"] = changes
    return config


def test_the_shipped_lines_are_those_of_the_two_kernels_in_both_forms():
    config = merged("config.yaml")
    planned(config)
    held = lines(config, "accelerated_vit")
    assert {(line["work"], line["form"]) for line in held} == {key for key in ALL if "bias_gelu" in key[0]}
    assert settings(config, "accelerated_vit")["columns"] == [768, 1536, 3072]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"family": "activations"}, "'activations'"),
        ({"family": "activation", "size": [32]}, "size"),
        ({"rows": 8}, "rows"),
        ({"family": "activation", "columns": [100]}, "a multiple of 32"),
        ({"family": "activation", "lines": [{"work": "mlp", "form": "tanh"}]}, "lines.0"),
        ({"family": "activation", "lines": [{**SHARE, "times": {"nobody": 2}}]}, "nobody"),
        (
            {"family": "activation", "lines": [SHARE, {**SHARE, "form": "erf", "work": "mlp"}]},
            "form erf of mlp in experiments.accelerated_vit.kernels.lines.1",
        ),
        ({"family": "activation", "lines": [{**SHARE, "work": "mlp"}]}, "share of mlp"),
        (
            {"family": "activation", "lines": [{**SHARE, "implementation": "epilogue"}]},
            "bias_gelu_forward by the epilogue",
        ),
    ],
)
def test_kernels_that_cannot_be_meant_are_refused_before_anything_is_planned(changes, words):
    with pytest.raises(GpufeedError) as caught:
        planned(kernels(**changes))
    assert words in str(caught.value)

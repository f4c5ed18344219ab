"""Verdicts by hand, on documents with known numbers."""

import ceilings_fixtures as made
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufeed.benchmarks.ceilings.shares import epoch_parts, shares
from gpufeed.report.sections import ceilings_verdict


def of(*args, **changes):
    return ceilings_verdict.of(made.document(*args, **changes))


def test_the_sentence_names_the_wait_the_stage_and_what_their_removal_brings():
    # 1 s of compute in an epoch of 2.63 s, of which the loader alone needs all; without decode it needs 1.38
    found = of(made.pairs(1.63), decode_s=1.25, transfer_s=0.05, input_s=2.63, cell={"workers": 4})
    assert found.kind == "input-bound"
    assert found.stage == "decode"
    assert found.sentence == (
        "input-bound: the GPU waits 62 % of the epoch, 48 points of it for decode in 4 worker processes; "
        "removing decode would lift it to at most 1.9x, removing all input to at most 2.6x (AU 38.0 %, 95 "
        "% interval 38.02 to 38.02 %, 8 pairs)."
    )


@pytest.mark.parametrize(
    ("waits", "kind"),
    [((-0.03, 0.0, 0.02), "compute-bound"), ((0.06, 0.1), "balanced"), ((0.2,), "input-bound")],
)
def test_kinds_by_what_the_input_costs(waits, kind):
    """A negative wait is an AU a few percent above 1: noise."""
    assert {of(made.pairs(wait)).kind for wait in waits} == {kind}


@pytest.mark.parametrize(("wait", "jitter"), [(0.0, 0.1), (0.05, 0.1)])
def test_an_interval_that_holds_a_border_decides_nothing(wait, jitter):
    found = of(made.pairs(wait, jitter=jitter))
    assert found.kind == "no verdict"
    assert "but AU may lie on either side of " in found.sentence
    assert ("97 %" in found.sentence) == (wait == 0)


@pytest.mark.parametrize("count", [4, 8])
@pytest.mark.parametrize(("end_s", "more_s"), [(0.36, 0.0), (0.9, 0.0), (0.7, 0.35)])
def test_training_faster_than_its_compute_alone_is_a_busy_machine_and_no_verdict(end_s, more_s, count):
    """AU of 278 %, of 111 %, and of 143 % in every second pair."""
    found = of(made.pairs(end_s - 1, count, jitter=more_s))
    assert found.kind == "machine too busy"
    assert found.stage is None
    assert "nothing else on the machine" in found.sentence
    assert f"{count} pairs" in found.sentence


def test_too_few_pairs_decide_nothing():
    found = of(made.pairs(0.0, count=4))
    assert found.kind == "no verdict"
    assert "too few pairs for an interval (AU 100.0 %, 4 pairs)" in found.sentence


def test_steps_that_grow_are_input_too_and_are_said_to():
    found = of(made.pairs(0.1, growth_s=0.9))
    assert (found.kind, found.stage) == ("input-bound", "step")
    assert found.sentence.startswith(
        "input-bound: its steps take 45 points of the epoch longer beside the loader; the GPU waits 5.0 % of "
        "the epoch; removing all input would lift it to at most 2.0x"
    )
    found = of(made.pairs(0.1, growth_s=0.9), decode_s=0.5, input_s=1.5)
    removed = "removing decode would lift it to at most 2.0x, removing all input to at most 2.0x"
    assert f"the epoch; {removed}" in found.sentence
    found = of(made.pairs(1.0, growth_s=0.2), decode_s=1.0, input_s=2.2)
    assert (found.kind, found.stage) == ("input-bound", "decode")
    assert "its steps take 9.1 points of the epoch longer" in found.sentence
    assert "removing all input to at most 2.2x" in found.sentence


@pytest.mark.parametrize(
    ("of_pairs", "kind", "points"),
    [
        ({"wait_s": 0.0, "growth_s": 0.028}, "compute-bound", 2.7),
        ({"wait_s": 0.006, "growth_s": 0.006}, "compute-bound", 0.6),
        ({"wait_s": 0.05, "growth_s": 0.02}, "balanced", 1.9),
        ({"wait_s": 1.0, "growth_s": 0.02}, "input-bound", 1.0),
        ({"wait_s": 1.0, "growth_s": 0.02, "start_s": 0.9}, "start-up-bound", 1.0),
        ({"wait_s": 0.05, "growth_s": 0.02, "jitter": 0.1}, "no verdict", 1.8),
        ({"wait_s": 0.02, "growth_s": 0.004}, "compute-bound", None),
    ],
)
def test_growth_is_told_from_half_a_point_on_whatever_the_verdict(of_pairs, kind, points):
    found = of(made.pairs(**of_pairs))
    assert found.kind == kind
    assert (f"{points} points of the epoch longer" if points else "waits") in found.sentence
    assert ("longer" in found.sentence) == (points is not None)


def test_most_of_the_wait_for_the_first_batch_is_start_up():
    found = of(made.pairs(1.0, start_s=0.9), decode_s=0.9, input_s=2.0)
    assert found.kind == "start-up-bound"
    said = "45 points of it for the first batch of each epoch (0.900 s), of which longer epochs would"
    assert said in found.sentence
    workers = of(made.pairs(1.0, start_s=0.9), cell={"workers": 2})
    assert "longer epochs (or persistent_workers) would have fewer" in workers.sentence
    for loader in ("fastai", "spdl"):  # their workers and pipelines are new in any case
        anew = of(made.pairs(1.0, start_s=0.9), cell={"loader": loader, "workers": 2})
        assert "of which longer epochs would have fewer" in anew.sentence
    assert of(made.pairs(1.0, start_s=0.4), decode_s=0.9, input_s=2.0).kind == "input-bound"


FALLS = "points of the wait fall on the first batch of each epoch"


@pytest.mark.parametrize(
    ("of_wait", "changes", "before", "included"),
    [
        ({"wait_s": 1.0, "start_s": 0.4}, {"decode_s": 0.9}, "20", ", the decode of it included"),
        (
            {"wait_s": 1.0, "start_s": 0.4},
            {"decode_s": 0.1, "transfer_s": 0.9},
            "20",
            ", the transfer of it included",
        ),
        ({"wait_s": 0.1, "growth_s": 0.9, "start_s": 0.08}, {}, "waits 5.0 % of the epoch; 4.0", ""),
        ({"wait_s": 0.06, "start_s": 0.05}, {}, "waits 5.7 % of the epoch; 4.7", ""),
        ({"wait_s": 1.0, "start_s": 0.05}, {"decode_s": 0.9}, None, ""),
    ],
)
def test_what_falls_on_the_first_batches_is_said_beside_the_stage(of_wait, changes, before, included):
    sentence = of(made.pairs(**of_wait), input_s=2.0, **changes).sentence
    assert ("first batch" in sentence) == (before is not None)
    assert before is None or f"{before} {FALLS}{included}; removing" in sentence


def test_no_stage_is_named_without_half_of_the_wait():
    found = of(made.pairs(1.0), decode_s=0.3, transfer_s=0.1, input_s=2.0)
    assert (found.kind, found.stage) == ("input-bound", None)
    said = "no stage is shown to have half of that (15 points for decode, 5.0 points for transfer)"
    assert said in found.sentence


def test_a_stage_that_noise_could_explain_is_not_named():
    document = made.document(made.pairs(1.0), decode_s=0.9, input_s=2.0)
    document["stages"]["decode"]["shown"] = False
    assert ceilings_verdict.of(document).stage is None
    assert "half of that;" in ceilings_verdict.of(document).sentence  # and nothing is said of it


def test_shared_cores_are_said():
    resolved = {"device": "cpu", "precision": "fp32", "threads": 2}
    found = of(made.pairs(1.0), shared_cores=True, resolved=resolved)
    assert "the CPU waits" in found.sentence
    assert found.sentence.endswith("each would be faster without the other.")


TIMES = st.floats(0, 1e3)


@given(
    st.lists(
        st.tuples(st.floats(1e-3, 1e3), TIMES, st.floats(0, 1), st.floats(1e-3, 1e3), TIMES),
        min_size=6,
        max_size=9,
    ),
    st.integers(1, 5),
)
def test_every_document_has_a_verdict_and_its_parts_add_up(times, epochs):
    pairs = [
        {
            "first": "end_to_end",
            "end_to_end": made.segment(step, wait, wait * start),
            "compute_only": made.segment(alone, gaps),
        }
        for step, wait, start, alone, gaps in times
    ]
    found = shares(pairs)
    for pair in pairs:
        wait, growth, au = (shares([pair])[name]["median"] for name in ("wait", "growth", "au"))
        assert wait + growth == pytest.approx(1 - au, abs=1e-6)
    whole = epoch_parts(pairs, epochs)
    total = sum(pair["end_to_end"]["seconds"] for pair in pairs) / (epochs * len(pairs))
    assert sum(whole.values()) == pytest.approx(total)
    assert all(seconds >= 0 for name, seconds in whole.items() if name != "compute")
    document = made.document(pairs)
    assert document["shares"] == found
    told = ceilings_verdict.of(document)
    au = found["au"]
    busy = au["median"] > 1.05 or au["ci95_high"] > 1.25
    assert (told.kind == "machine too busy") is busy
    says = "end to end was faster" if busy else "the GPU waits"
    assert told.sentence.startswith(f"{told.kind}: {says}") or told.stage == "step"
    assert told.sentence.endswith(".")


def test_threads_are_not_called_processes():
    cell = {"loader": "spdl", "workers": 4}
    found = of(made.pairs(1.63), decode_s=1.25, transfer_s=0.05, input_s=2.63, cell=cell)
    assert "48 points of it for decode in 4 threads; removing" in found.sentence


def test_a_loader_that_cannot_be_taken_apart_says_why():
    found = of(made.pairs(1.0))
    assert (found.kind, found.stage) == ("input-bound", None)
    said = "no stage is shown to have half of that (decode was not told apart: DALI reads and decodes in one"
    assert said in found.sentence

"""The notebook's and the guide's claims, judged on records."""

import pytest
import record_fixtures as made
from report_fixtures import cells_of
from test_verdicts import free

from gpufeed.report import claims, verdicts


def claims_on(paths) -> dict[str, verdicts.Verdict]:
    """The answers to the notebook's claims by claim."""
    return {verdict.claim: verdict for verdict in claims.notebook_claims(cells_of(paths))}


def claims_of(tmp_path, speeds, repeats=2):
    """As `claims_on`, for {(workers, synchronise): images/s}."""
    paths = []
    for (workers, synchronise), speed in speeds.items():
        of = free("dataloader_workers" if workers else "dataloader_sync", workers, synchronise=synchronise)
        paths += made.write_speeds(tmp_path, of, [speed, speed * 1.01][:repeats], wait_share=0.5)
    return claims_on(paths)


@pytest.mark.parametrize(
    ("two", "step_two", "expected"),
    [
        (200, 200, "holds"),
        (120, 120, "does not hold"),
        (400, 400, "does not hold"),
        (151, 151, "cannot be judged"),
        (200, 110, "does not hold"),
        (200, 151, "cannot be judged"),
        (151, 200, "cannot be judged"),
        (151, 110, "cannot be judged"),
        (200, None, "holds"),
        (None, None, "cannot be judged"),
    ],
)
def test_claim_of_a_speedup(tmp_path, two, step_two, expected):
    speeds = {(0, "epoch"): 100, (2, "epoch"): two, (0, "step"): 100, (2, "step"): step_two}
    found = claims_of(tmp_path, {key: speed for key, speed in speeds.items() if speed})
    verdict = found["1.5x - 3x faster"]
    assert verdict.answer == expected, verdict.sentence
    if two == 200:
        assert "2.00x (range 1.98x to 2.02x" in verdict.sentence


@pytest.mark.parametrize(
    ("sweep", "expected", "enough"),
    [
        ({0: 10, 2: 20, 4: 40, 8: 41, 16: 30}, "holds", 4),
        ({0: 10, 2: 40, 4: 40, 8: 40, 16: 40}, "does not hold", 2),
        ({0: 10, 2: 20, 4: 30, 8: 40, 16: 80}, "does not hold", 16),
        ({0: 10, 2: 20}, "cannot be judged", 2),
    ],
)
def test_claim_of_the_right_number_of_workers(tmp_path, sweep, expected, enough):
    speeds = {(workers, "epoch"): speed for workers, speed in sweep.items()}
    verdict = claims_of(tmp_path, speeds)["use 4-8 workers"]
    assert verdict.answer == expected, verdict.sentence
    assert f"not shown to be slower is {enough}." in verdict.sentence


@pytest.mark.parametrize(
    ("shares", "gpu", "expected"),
    [
        ((0.004, 0.006), made.H200, "holds"),
        ((0.6, 0.62), made.H200, "does not hold"),
        ((0.004, 0.004, 0.02), made.H200, "cannot be judged"),
        ((0.004, 0.02, 0.02), made.H200, "cannot be judged"),
        ((0.6,), made.H200, "cannot be judged"),
        ((0.0, 0.0), None, "cannot be judged"),
    ],
)
def test_claim_that_the_gpu_never_waits_is_judged_by_the_range(tmp_path, shares, gpu, expected):
    repeats = (
        made.record(free("dataloader_workers", 2), number, 20, wait_share=share, gpu=gpu)
        for number, share in enumerate(shares)
    )
    paths = made.write(tmp_path, *repeats)
    verdict = claims_on(paths)["the GPU never waits"]
    assert verdict.answer == expected, verdict.sentence
    if shares == (0.6, 0.62):
        assert "for 61 % (range 60 % to 62 %) of the time" in verdict.sentence


def test_the_number_of_workers_is_judged_at_the_settings_of_the_sweep(tmp_path):
    """Eight batches ahead at 2 workers alone are fast: the sweep with two ahead still needs 4 workers."""
    paths = []
    for workers, speed in {1: 10, 2: 20, 4: 40, 8: 41, 16: 30}.items():
        paths += made.write_speeds(tmp_path, free("dataloader_workers", workers), [speed, speed * 1.03])
    paths += made.write_speeds(tmp_path, free("dataloader_workers", 2, prefetch_factor=8), [50, 51])
    verdict = claims_on(paths)["use 4-8 workers"]
    assert verdict.answer == "holds", verdict.sentence
    assert "not shown to be slower is 4." in verdict.sentence


def test_one_repeat_judges_no_claim_of_speed(tmp_path):
    speeds = {(workers, "epoch"): 10 + workers for workers in (0, 2, 4, 16)}
    found = claims_of(tmp_path, speeds, repeats=1)
    assert found["1.5x - 3x faster"].answer == "cannot be judged"
    assert found["use 4-8 workers"].answer == "cannot be judged"

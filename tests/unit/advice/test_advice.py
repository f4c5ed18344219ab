"""What follows from probes: who is measured, who is advised, and the sentences."""

import pytest
from advice_fixtures import probe

from gpufeed.advice.ranking import advise, change, measured_next, why_not
from gpufeed.advice.words import lines
from gpufeed.core.record import ADVICE, PROBE

FASTER = {"loader": "overlap", "input_s": 0.001}


@pytest.fixture
def probes():
    return [
        probe(),  # 333 images/s
        probe("dataloader_workers", input_s=0.0016, cell={"workers": 2}),  # 625
        probe(**FASTER),  # 1,000
        probe("host_cache", input_s=0.0005, compute_s=0.0008),  # 1,250
        probe("dali_gpu", status="skipped"),
        probe("resident", input_s=0.0001, memory={"host_mib": 9800}),
    ]


def test_the_best_are_measured_and_those_that_cannot_run_are_told(probes, tmp_path):
    found = advise(probes, probes[0]["cell_id"], best=2)
    ADVICE.check(found, tmp_path)
    for one in probes:
        PROBE.check(one, tmp_path)
    names = [one["cell_id"].split("-")[1] for one in found["candidates"]]
    assert names == ["host_cache", "overlap", "dataloader_workers", "dataloader_sync", "dali_gpu", "resident"]
    assert [one["rank"] for one in found["candidates"]] == [1, 2, 3, 4, None, None]
    assert [one["chosen"] for one in found["candidates"]] == [True, True, False, False, False, False]
    assert [one["advised"] for one in found["candidates"]] == [True, True, False, False, False, False]
    assert found["input_share"] == pytest.approx(2 / 3)
    assert (found["cause"], found["candidates"][0]["bound"]) == ("host", "compute")
    said = lines(found)
    assert said[0] == (
        "By short probes, what you do today reaches 33 % of the limit, which is the training alone. Largest "
        "cause of the loss: the training thread, which also loads or receives each batch."
    )
    assert said[1] == (
        "Do this: loader host_cache in place of dataloader_sync. Predicted 1,250 images/s (1,250 to 1,250)."
    )
    assert said[2].startswith("Next: loader overlap")
    assert said[3] == "Not advised: loader dali_gpu in place of dataloader_sync. The node lacks it."
    assert said[4].endswith("It needs 9.57 GiB of host memory, and there are 9.77 GiB.")
    assert len(said) == 5


def test_what_was_measured_decides(probes):
    found = advise(probes, probes[0]["cell_id"], best=2)
    best, second, of = (found["candidates"][n]["cell_id"] for n in (0, 1, 3))
    said = lines(found, {of: 400, best: 900, second: 990})
    assert said[0].startswith("What you do today reaches 40 % of the limit")  # 400 of 1,000
    limited = lines(found, {of: 400, "d-replay-none": 800})  # the measured limit counts
    assert limited[0].startswith("What you do today reaches 50 % of the limit")
    assert said[1] == (
        "Do this: loader overlap in place of dataloader_sync. Predicted 1,000 images/s (1,000 to 1,000), "
        "measured 990, 2.48 times today's 400."
    )
    assert said[2].endswith("measured 900 (28 % below the prediction).")
    slower = lines(found, {of: 400, best: 402, second: 390})
    assert slower[1] == (
        "Leave it as it is: none of the 2 measured changes is faster than today's 400 images/s by 3 % or "
        "more."
    )
    alone = advise(probes[:2], probes[0]["cell_id"], best=2)
    one = next(one["cell_id"] for one in alone["candidates"] if one["chosen"] and one["cell_id"] != of)
    assert lines(alone, {of: 400, one: 390})[1] == (
        "Leave it as it is: the measured change is not faster than today's 400 images/s by 3 % or more."
    )
    assert measured_next(alone) == "Measured next: today's settings, the limit, and the alternative."


def test_a_gain_within_its_interval_is_not_advised():
    today, noisy = probe("overlap", jitter=0.1), probe("host_cache", input_s=0.0018, jitter=0.1)
    found = advise([today, noisy], today["cell_id"], best=3)
    assert [(one["chosen"], one["advised"]) for one in found["candidates"]] == [(True, False), (False, False)]
    assert lines(found)[1].startswith("Leave it as it is")


def test_where_today_could_not_be_probed_nothing_is_left_as_it_is():
    today = probe(status="failed")
    found = advise([today], today["cell_id"], best=3)
    assert found["compute_images_per_s"] is None
    assert not any("Leave it" in line or "Do this" in line for line in lines(found))


def test_a_cell_that_is_surely_slower_is_not_measured():
    today, slower = probe("overlap"), probe("dataloader_workers", input_s=0.004, cell={"workers": 1})
    found = advise([today, slower], today["cell_id"], best=3)
    assert not any(one["chosen"] for one in found["candidates"])


def test_the_cause_is_a_stage_where_ceilings_were_measured(probes):
    points = {"decode": 0.5, "fetch": 0.2, "transfer": 0.9}
    stages = {name: {"shown": name != "transfer", "points": points[name]} for name in points}
    ceilings = {"stages": stages}
    found = advise(probes, probes[0]["cell_id"], 2, ceilings)
    assert lines(found)[0].endswith("Largest cause of the loss: decoding.")


def test_nothing_is_known_of_a_gain_where_today_cannot_run():
    found = advise([probe(status="skipped"), probe("overlap")], probe()["cell_id"], 1)
    said = lines(found)
    assert said[0] == "What you do today could not be probed here, so no gain over it is known."
    assert said[1].startswith("Do this: loader overlap")
    assert said[2] == "Not advised: what you do today. The node lacks it."


@pytest.mark.parametrize(
    ("memory", "words"),
    [
        ({"shm_mib": 63, "shm_free_mib": 64}, "0.06 GiB in /dev/shm"),
        ({"device_mib": 79000, "device_total_mib": 81000}, "77.15 GiB of the GPU's memory"),
        ({"shm_mib": None}, None),
        ({"host_mib": 9000}, None),
    ],
)
def test_what_does_not_fit(memory, words):
    reason = why_not(probe(memory=memory))
    assert (reason is None) if words is None else words in reason


def test_a_change_in_words():
    today = probe("dataloader_workers", cell={"workers": 2, "prefetch_factor": 2})["cell"]
    more = probe("dataloader_workers", cell={"workers": 8, "prefetch_factor": 4, "cuda_graphs": True})["cell"]
    assert change(today, more) == (
        "workers 8 in place of 2, prefetch_factor 4 in place of 2, cuda_graphs on in place of off"
    )
    assert change(today, today) == ""
    cached = probe("host_cache")["cell"]  # which has no workers, and decodes nothing in them
    simple = {**today, "decoder": "simplejpeg"}
    assert change(simple, cached) == "loader host_cache in place of dataloader_workers"
    synchronous = {**simple, "loader": "dataloader_sync", "workers": 0}
    assert change(today, synchronous) == (
        "loader dataloader_sync in place of dataloader_workers, decoder simplejpeg in place of pillow"
    )


def test_a_rate_above_the_limit_is_told_as_it_is(probes):
    found = advise(probes, probes[0]["cell_id"], best=2)  # the limit is 1,000
    of = probes[0]["cell_id"]
    assert lines(found, {of: 1020})[0] == (
        "What you do today reaches 102 % of the limit, which is the training alone. The model itself is the "
        "limit."
    )
    above = lines({**found, "device": "cuda"}, {of: 1200})[0]
    assert above.startswith("Your GPU waits less than 1 % of the time: what you do today reaches 120 % of ")
    assert "One of the two was disturbed" in above
    assert "cause" not in above


def test_at_the_limit_only_a_faster_step_is_advised(probes):
    """overlap trains as today does, host_cache in 0.8 of the time: with CUDA graphs, say."""
    found = advise(probes, probes[0]["cell_id"], best=2)
    step, same, of = (found["candidates"][n]["cell_id"] for n in (0, 1, 3))
    said = lines(found, {of: 990, same: 1050})
    assert said[0].endswith("The model itself is the limit.")
    assert said[1].startswith("Leave it as it is: training alone is not faster, so")
    assert said[2].startswith("Measured too: loader overlap")
    said = lines(found, {of: 990, same: 1050, step: 1200})
    assert said[1].startswith("Do this: loader host_cache")
    assert said[2].startswith("Measured too: loader overlap")
    assert lines(found, {of: 900, same: 1050})[1].startswith("Do this: loader overlap")
    # a limit that today's rate is far above says nothing
    assert lines(found, {of: 1200, same: 1500})[1].startswith("Do this: loader overlap")


def test_what_is_measured_next_has_alternatives_only_where_one_was_chosen(probes):
    of = probes[0]["cell_id"]
    assert measured_next(advise(probes, of, best=2)) == (
        "Measured next: today's settings, the limit, and the best 2 of 5 alternatives."
    )
    alone = measured_next(advise(probes[:1], of, best=2))
    assert alone == "Measured next: today's settings and the limit."

"""What a watched loop is said to be: utilization near the planted truth, stretches, the file, ranks."""

import json
import math
import queue
import re
import threading
import time
from inspect import signature
from itertools import groupby, pairwise
from pathlib import Path
from statistics import median

import pytest
import torch
import watch_fixtures as fixtures
from data_fixtures import REPOSITORY
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from watch_fixtures import stepped, watch

import gpufeed
from gpufeed.training.distributed.launch_ranks import spread
from gpufeed.training.distributed.rank_files import Call
from gpufeed.watch import batches, signs, stretches
from gpufeed.watch.result import counted, finish, pairs, utilization
from gpufeed.watch.stretches import (
    ALONE,
    APART,
    END,
    OFTEN,
    ORDER,
    Clock,
    Sizes,
    Stretch,
    Stretches,
    drained,
    sizes,
)


def threaded(count: int, seconds: float, ahead: int):
    """A loader of our own kind, whose queue nobody can look into."""

    def work():
        for number in range(count):
            time.sleep(seconds)
            batches.put(torch.full((4, 1), float(number)))
        batches.put(None)

    batches = queue.Queue(ahead)
    threading.Thread(target=work, daemon=True).start()
    while (batch := batches.get()) is not None:
        yield batch


def workers(count: int, seconds: float) -> DataLoader:
    """A loader whose workers together need so many seconds a batch."""
    return DataLoader(fixtures.Sleeping(STEPS, count * seconds), 1, num_workers=count)


STEPS = 160
# how a loader is made that needs so many seconds a batch; how long a batch and a step take; the truth
PLANTED = {
    "in this process": (lambda s: DataLoader(fixtures.Sleeping(STEPS, s), 1), 0.01, 0.02, 2 / 3),
    "nearly fed": (lambda s: workers(2, s), 0.04, 0.034, 0.85),
    "fed": (lambda s: workers(2, s), 0.01, 0.04, 1.0),
    "a thread": (lambda s: threaded(STEPS, s, 8), 0.04, 0.02, 0.5),
    "nothing held": (lambda s: DataLoader(fixtures.Sleeping(STEPS, s), 1), 0.01, 0.02, 2 / 3),
}


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED)
def test_utilization_is_near_the_truth(name):
    make, batch_s, step_s, truth = PLANTED[name]
    burst = 0 if name == "nothing held" else 8
    found = stepped(make(batch_s), step_s=step_s, burst=burst).result()
    assert found["method"] == ("between_batches" if name == "nothing held" else "stock_and_burst")
    assert found["au"]["n"] >= 4
    assert found["au"]["value"] == pytest.approx(truth, abs=0.07)
    assert found["data_stall_share"] == pytest.approx(1 - truth, abs=0.07)
    samples = found["batch_samples"]
    assert found["compute_only"]["samples_per_second"] == pytest.approx(samples / step_s, rel=0.12)
    assert found["end_to_end"]["samples_per_second"] == pytest.approx(truth * samples / step_s, rel=0.12)


@pytest.mark.alone
@pytest.mark.parametrize(("batch_s", "truth"), [(0.06, 0.5), (0.002, 1.0)], ids=["half fed", "fed"])
def test_what_watching_costs_a_step_is_not_counted(monkeypatch, batch_s, truth):
    """Steps of 30 ms, and this package's own of 4 ms before a fetch, after it and at the end."""
    for module, name in ((stretches.Clock, "idle"), (batches, "samples"), (signs.Signs, "leave")):
        before = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *args, before=before: time.sleep(0.004) or before(*args))
    loader = DataLoader(fixtures.Sleeping(100, 2 * batch_s), 1, num_workers=2)
    found = stepped(loader, step_s=0.03, burst=8).result()
    assert found["compute_only"]["samples_per_second"] == pytest.approx(1 / 0.03, rel=0.1)
    assert found["au"]["value"] == pytest.approx(truth, abs=0.1)
    assert found["data_stall_share"] == pytest.approx(1 - truth, abs=0.1)


def test_a_loop_that_stops_each_epoch_early_is_measured_from_the_third():
    watched = watch(fixtures.loader_of(40))
    for _ in range(8):
        for step, _ in enumerate(watched, 1):
            if step == 8:
                break
    assert watched.record.epochs == 8
    watched.result()  # reads all of them
    assert min(one["first_step"] // 8 for one in watched.record.done) == 2
    for _ in watched:  # the whole of it again
        pass
    assert watched.record.seen_length == 40


@pytest.mark.parametrize(
    ("own_s", "waited_s", "seconds", "wait_s"),
    [(0.5, 0.0, 1.5, 0.0), (0.5, 0.4, 1.9, 0.4), (3.0, 0.0, 0.6, 0.0)],
)
def test_a_stretch_is_never_shorter_than_its_steps(own_s, waited_s, seconds, wait_s):
    """Two seconds with 0.6 in the loop; what this package took is the host's time, which may be off."""
    times = {"own_s": own_s, "waited_s": waited_s, "body_s": [0.3, 0.3], "entered": [0.0, 1.0, 2.0]}
    row = Stretch(ALONE, 0, 0, steps=2, **times).measured(Clock(torch.device("cpu")))
    assert (row["seconds"], row["wait_s"]) == pytest.approx((seconds, wait_s))


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.parametrize("ahead", [1, 3])
def test_a_loader_that_shares_the_device_rests_during_a_burst(ahead):
    """A step of 4 ms and a batch of 4 ms take turns on one device, so half of it is the training's."""
    device = threading.Lock()

    def batches():
        made = queue.Queue(ahead)

        def work():
            for _ in range(400):
                with device:
                    time.sleep(0.004)
                made.put(torch.zeros(1))
            made.put(None)

        threading.Thread(target=work, daemon=True).start()
        while (batch := made.get()) is not None:
            yield batch

    watched = watch(batches(), burst=4)
    for _ in watched:
        with device:
            time.sleep(0.004)
    assert watched.result()["au"]["value"] == pytest.approx(0.5, abs=0.05)


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.parametrize("burst", [0, 8])
def test_a_queue_that_filled_between_epochs_gives_nothing_away(burst):
    """The loader works on between epochs, nobody can look into its queue, and a batch takes two steps."""
    made = queue.Queue(8)

    def work():
        while True:
            time.sleep(0.02)
            made.put(torch.zeros(1))

    class Endless:
        def __len__(self) -> int:
            return 45

        def __iter__(self):
            return (made.get() for _ in range(len(self)))

    threading.Thread(target=work, daemon=True).start()
    watched = watch(Endless(), burst=burst)
    for _ in range(6):
        for _ in watched:
            time.sleep(0.01)
        time.sleep(0.3)
    found = watched.result()["au"]
    assert found["n"] >= 6
    assert found["value"] == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("burst", [0, 8])
@pytest.mark.parametrize(("length", "accumulate"), [(12, 4), (24, 8), (45, 1), (60, 8), (100, 4)])
def test_every_epoch_is_measured_where_nobody_can_look_into_the_queue(length, accumulate, burst):
    class Batches:
        def __len__(self) -> int:
            return length

        def __iter__(self):
            return (torch.zeros(1) for _ in range(length))

    watched = stepped(Batches(), epochs=5, burst=burst, accumulate=accumulate)
    watched.result()
    assert {one["first_step"] // length for one in watched.record.done} == {0, 1, 2, 3, 4}


def test_the_device_is_waited_for_around_bursts_where_batches_arrive_on_it(monkeypatch):
    """On the CPU the calls are recorded instead."""
    seen = []

    def loader():
        for number in range(160):
            seen.append("fetch")
            yield torch.full((4, 1), float(number))

    monkeypatch.setattr(batches, "held_bytes", lambda batch: (0, 16))
    monkeypatch.setattr(Stretches, "wait_for_device", lambda record: record.on_device and seen.append("wait"))
    for _ in watch(loader(), device="cpu"):
        seen.append("step")
    told = " ".join(f"{name}*{len(list(same))}" for name, same in groupby(seen))
    steps = re.sub(r"(fetch\*1 step\*1 ?)+", "steps ", told)
    burst = "wait*1 fetch*32 wait*1 step*32 "
    assert steps.startswith(f"steps {2 * burst}wait*1 steps")


def test_bursts_become_rare():
    watched = stepped(fixtures.loader_of(6000), burst=4)
    watched.result()
    starts = [one["first_step"] for one in watched.record.done if one["kind"] == ALONE]
    gaps = [later - one for one, later in pairwise(starts)]
    assert max(gaps[: OFTEN - 1]) < APART * 8 <= max(gaps[OFTEN - 1 :])
    assert len(starts) < 6000 / (APART * 8 / 2) + OFTEN


def test_stretches_follow_in_abba_order_and_lie_within_epochs():
    watched = stepped(fixtures.loader_of(150), epochs=4, accumulate=3)
    watched.result()
    found = watched.record.done  # those with a pause too: the machine may be busy
    assert tuple(one["kind"] for one in found[:8]) == 2 * ORDER
    for one, later in pairwise(found):
        assert one["first_step"] + one["steps"] <= later["first_step"]
    for one in found:
        first, last = one["first_step"], one["first_step"] + one["steps"] - 1
        assert first // 150 == last // 150
        assert first % 150 % 3 == one["steps"] % 3 == 0


def test_the_file_holds_the_result(tmp_path):
    loader, path = fixtures.loader_of(100), tmp_path / "watch.json"
    for _ in range(2):
        for _ in gpufeed.watch(loader, out=path, quiet=True):  # wrapped anew for each epoch
            pass
        written = json.loads(path.read_text())
    assert written["schema"] == 1
    assert (written["epochs"], written["steps"], written["ranks"]) == (2, 200, 1)
    assert written["batch_samples"] == 8
    assert len(written["epoch_start_seconds"]) == 2
    assert written["au"]["n"] == written["end_to_end"]["n"] == written["compute_only"]["n"] >= 2
    assert written["copy_seconds"] is None
    assert written["versions"]["torch"].split("+")[0] == torch.__version__.split("+")[0]


def test_a_file_that_several_loaders_write_is_said_once(tmp_path, caplog):
    path = tmp_path / "watch.json"
    train, held_out, apart = (watch(fixtures.loader_of(count), out=path) for count in (60, 30, 20))
    apart.out = tmp_path / "apart.json"
    for _ in range(2):
        assert sum(1 for _ in train) == 60
        assert sum(1 for _ in apart) == 20
    assert not caplog.messages
    for epoch in (1, 2):
        assert sum(1 for _ in held_out) == 30
        assert json.loads(path.read_text())["steps"] == epoch * 30  # of the last that wrote
    (said,) = caplog.messages
    assert str(path) in said


@pytest.mark.parametrize("out", ["file/watch.json", "x" * 300, "", "/", "a\0b", "folder"])
def test_a_file_that_cannot_be_written_stops_nothing_and_is_said_once(tmp_path, caplog, monkeypatch, out):
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    Path("folder").mkdir()
    lost = watch(fixtures.loader_of(60), out=out)
    assert [sum(1 for _ in lost) for _ in range(2)] == [60, 60]
    assert "not written" not in caplog.text
    finish(lost.record, lost.out, quiet=True)
    assert caplog.text.count("was not written") == 1


def test_the_result_of_a_device_that_failed_is_a_sentence(caplog, monkeypatch):
    watched = watch(fixtures.loader_of(60))
    assert sum(1 for _ in watched) == 60

    def failed(*_):
        raise RuntimeError("an illegal memory access")

    monkeypatch.setattr(watched.record.clock, "passed", failed)
    watched.record.unread.append(Stretch(END, 0, 0))
    finish(watched.record, None, quiet=False)
    watched.record.unread.clear()  # the process ends quietly
    assert "could not read its last stretches: an illegal memory access" in caplog.text


def test_a_step_with_an_evaluation_in_it_is_left_out():
    watched = watch(fixtures.loader_of(200))
    for step, _ in enumerate(watched):
        time.sleep(0.3 if step == 20 else 0.001)
    found = watched.result()
    assert any(" with a pause in a step" in sentence for sentence in found["not_measured"])
    assert all(not one["first_step"] <= 20 < one["first_step"] + one["steps"] for one in found["stretches"])


@pytest.mark.parametrize("accumulate", [1, 3])
def test_epochs_too_short_to_measure_say_how_long_they_must_be(accumulate):
    def watched(steps):
        return stepped([torch.zeros(4)] * steps, 3, accumulate=accumulate).result()

    short = watched(2 * accumulate)
    (least,) = re.findall(r"at least (\d+) steps", short["verdict"])
    assert short["au"]["n"] == watched(int(least) - 1)["au"]["n"] == 0
    assert watched(int(least))["au"]["n"]


def test_the_table_has_at_most_ten_lines():
    watched = stepped(fixtures.loader_of(200))
    table = watched.table()
    assert 7 <= len(table.splitlines()) <= 10
    assert "accelerator utilization" in table
    assert watched.result()["verdict"] in table


@pytest.mark.parametrize(("ranks", "on_device"), [(1, False), (1, True), (2, False), (2, True)])
@pytest.mark.parametrize("queue", [None, (0, 0), (3, 6), (16, 32)])
@pytest.mark.parametrize("length", [None, 1, 7, 60, 1000])
@pytest.mark.parametrize("accumulate", [1, 4, 6])
def test_sizes_are_multiples_of_the_accumulation_and_fit_an_epoch(
    ranks, on_device, queue, length, accumulate
):
    found = sizes(32, accumulate, length, 1000, queue, queue is not None, ranks, on_device)
    assert all(one % accumulate == 0 for one in (found.burst, found.stretch, found.first, found.longest))
    assert found.stretch > 0
    assert (found.burst == 0) == (found.why is not None)
    if found.burst:
        assert found.burst >= 2 * accumulate
        if length is not None:
            assert found.first + found.burst < length
            assert found.epoch + found.stretch < length
    if length in (None, 1000):
        assert found.burst == {1: 32, 4: 32, 6: 24}[accumulate]
        assert found.stretch % math.lcm(accumulate, queue[0] or 1 if queue else 1) == 0
        assert not on_device or found.longest >= found.settle >= 16


@pytest.mark.parametrize(
    ("burst", "fit", "length", "why"),
    [
        (0, 100, 1000, r"burst=0"),
        (3, 100, 1000, r"burst=3 is too short"),
        (32, 3, 1000, r"only 3 batches fit"),
        (32, 100, 12, r"epochs of 12 steps are too short"),
    ],
)
def test_without_bursts_a_sentence_says_why_and_stretches_stay_long(burst, fit, length, why):
    found = sizes(burst, 1, length, fit, (0, 0), False, 1)
    assert why in found.why
    assert found.burst == 0
    assert found.stretch == (32 if length == 1000 else 2)


def test_ranks_whose_batches_differ_a_little_hold_as_many():
    found = {sizes(32, 1, 1000, fit, (4, 8), True, 2) for fit in range(16, 32)}
    assert len(found) == 1
    assert found.pop() == Sizes(burst=16, stretch=16, first=16, epoch=4, settle=8, longest=8)


def test_the_page_says_the_defaults_and_its_code_is_python():
    page = (REPOSITORY / "docs/reference/watch.md").read_text()
    for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        compile(code, "docs/reference/watch.md", "exec")
    options = signature(gpufeed.watch.watch).parameters
    for name in options:
        assert name == "loader" or f"`{name}`" in page
    assert f"batches held at most, {options['burst'].default} by default" in page
    host, device = (options[f"held_{one}_bytes"].default // 2**30 for one in ("host", "device"))
    assert f"{host} GiB of the host's and {device} GiB of the GPU's" in page


def stretch(kind: str, pair: int, seconds: float, **more) -> dict:
    row = {"kind": kind, "pair": pair, "first_step": 0, "steps": 10, "samples": 40, "seconds": seconds}
    return {**row, "steady_s": seconds, "wait_s": 0.0, "paused": False, **more}


def ten_steps(drained: int, fetch_s: float, body_s: float) -> Stretch:
    return Stretch(END, 0, 0, drained=drained, steps=10, fetch_s=fetch_s, body_s=[body_s] * 10)


def test_batches_that_a_full_queue_gave_away_do_not_count():
    """Two of ten steps were fed by a queue that got shorter: eight batches were made in that time."""
    assert ten_steps(2, 4.0, 0.4).steady_s(8.0, ahead=False) == pytest.approx(10.0)
    assert ten_steps(0, 4.0, 0.4).steady_s(8.0, ahead=False) == pytest.approx(8.0)


@pytest.mark.parametrize(
    ("before", "after", "gave"),
    [
        ((4, 0), (4, 0), 0),
        ((4, 0), (1, 3), 3),
        ((2, 2), (0, 4), 2),
        ((4, 0), (2, 0), 0),  # all that was left of the epoch lies ready
        ((4, 0), (1, 1), 1),
        ((2, 2), (0, 2), 2),  # its last batches, and every worker busy: they are too slow
        ((0, 4), (2, 0), 0),
    ],
)
def test_a_queue_that_the_end_of_an_epoch_empties_gave_nothing_away(before, after, gave):
    assert drained(before, after, workers=2) == gave


@pytest.mark.alone
def test_the_last_stretches_of_an_epoch_are_as_long_as_they_took():
    loader = DataLoader(fixtures.Sleeping(30, 0.002), 1, num_workers=2)
    watched = stepped(loader, epochs=3, step_s=0.02)
    watched.result()
    last = [
        one["steady_s"] / one["seconds"]
        for one in watched.record.done
        if one["kind"] == END and one["first_step"] % 30 >= 24
    ]
    assert len(last) >= 2
    assert median(last) < 1.2  # one may be late: the machine may be busy


def test_work_that_the_device_still_had_does_not_count():
    """The device did ten steps in 5 s, out of work asked for before; the host needed 8 s to fetch them."""
    assert ten_steps(0, 7.0, 0.1).steady_s(5.0, ahead=True) == pytest.approx(8.0)
    assert ten_steps(2, 7.0, 0.1).steady_s(5.0, ahead=True) == pytest.approx(10.0)
    assert ten_steps(5, 1.0, 0.1).steady_s(5.0, ahead=True) == pytest.approx(
        5.0
    )  # it is the device that limits
    waits = Stretch(END, 0, 0, steps=10, fetch_s=1.0, body_s=[0.1] * 9 + [9.0])  # for the device, once
    assert waits.steady_s(5.0, ahead=True) == pytest.approx(5.0)


def test_pairs_without_a_partner_or_with_a_pause_do_not_count():
    done = [
        stretch(END, 0, 10.0),
        stretch(ALONE, 0, 8.0),
        stretch(ALONE, 1, 8.0),
        stretch(END, 1, 10.0, paused=True),
        stretch(END, 2, 10.0),
    ]
    assert pairs(counted(done, between=False)) == [(4.0, 5.0)]
    found = utilization(pairs(counted(done, between=False)))
    assert found == {"value": pytest.approx(0.8), "low": None, "high": None, "n": 1}
    six = utilization([(4.0 + number / 10, 5.0) for number in range(6)])
    assert (six["low"], six["high"]) == (pytest.approx(0.8), pytest.approx(0.9))


def test_the_time_between_batches_is_compute_only():
    done = [stretch(END, 0, 10.0, wait_s=4.0), stretch(ALONE, 0, 5.0)]
    assert pairs(counted(done, between=True)) == [(4.0, pytest.approx(40 / 6))]


def losses_of_a_rank(device: str = "cpu") -> list:
    """Losses watched and unwatched, and stretches, of both ranks, gathered on each."""
    rank = distributed.get_rank()
    data = fixtures.samples(2 * 8 * 150)

    def slow_rank(step: int) -> None:
        time.sleep(0.001 * rank)

    def losses(loader) -> list[float]:
        net = DistributedDataParallel(fixtures.model().to(device))
        return fixtures.train(loader, 2, 2, device, each=slow_rank, net=net)

    def loader() -> DataLoader:
        return DataLoader(data, 8, sampler=DistributedSampler(data, seed=3), num_workers=1)

    watched = gpufeed.watch(loader(), accumulate=2, out="watch.json", quiet=True)
    of_both = losses(watched), losses(loader())
    watched.result()
    rows = [(one["kind"], one["first_step"], one["steps"]) for one in watched.record.done]
    both: list = [None, None]
    distributed.all_gather_object(both, (*of_both, rows))
    return both


@pytest.mark.slow
def test_two_ranks_train_as_unwatched_and_measure_the_same_steps(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ranks = spread(Call("test_watch_measures:losses_of_a_rank", {}, 2, "cpu", 1))
    for watched, unwatched, _ in ranks:
        assert watched == unwatched
        assert len(watched) == 300
    assert ranks[0][2] == ranks[1][2]
    assert {kind for kind, _, _ in ranks[0][2]} == {END, ALONE}
    assert json.loads((tmp_path / "watch.json").read_text())["ranks"] == 2

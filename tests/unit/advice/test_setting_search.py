"""The space of settings and the search in it, over made rates; nothing here takes time."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as some
from tuning_fixtures import AMPLE, DECODERS, Surface, cell

from gpufeed.advice.setting_search import LEAST_S, MOST, SHARE, Limits, Search, Stretch, space
from gpufeed.core.cells import TUNED, Cell, impossible, settle, tunable, untunable
from gpufeed.core.loader_setting import Setting
from gpufeed.core.registry import LOADERS
from gpufeed.core.run_time_estimate import waiting

ROOM = Limits(16, AMPLE, AMPLE, 10**6)
# cores, device, surfaces to search: a larger space takes longer
HOSTS = {"two cores": (2, "cpu", 150), "four cores": (4, "cpu", 150), "a GPU and 16 cores": (16, "cuda", 50)}


@pytest.mark.parametrize("host", HOSTS)
def test_the_search_finds_the_best_within_three_percent_in_a_tenth_of_the_time(host):
    cores, device, count = HOSTS[host]
    found, shares = [], []
    for seed in range(count):
        made = Surface(seed, cores, device)
        search = made.search()
        chosen = search.run()[0].setting
        found.append(made.rate(chosen) / max(map(made.rate, made.settings)))
        shares.append(search.spent_s / made.exhaustive_s())
    assert sum(share >= 0.97 for share in found) >= 0.95 * len(found)
    assert min(found) > 0.9
    assert max(shares) <= SHARE


@pytest.mark.parametrize("host", HOSTS)
def test_without_noise_the_search_is_closer(host):
    cores, device, _ = HOSTS[host]
    for seed in range(20):
        made = Surface(seed, cores, device, noise=0.0)
        chosen = made.search().run()[0].setting
        assert made.rate(chosen) >= 0.93 * max(map(made.rate, made.settings)), seed


def test_a_decoder_that_takes_much_more_cpu_time_is_not_measured():
    made = Surface(0, 2)
    search = Search(made.settings, made.measure, {"pillow": 2.0, "simplejpeg": 1.0, "torchvision_cpu": 1.05})
    tried = {one.setting.decoder for one in search.run()}
    assert "pillow" not in tried
    assert {"simplejpeg", "torchvision_cpu"} <= tried


def test_the_cells_own_setting_is_measured_though_its_decoder_cannot_win():
    made = Surface(0, 2)
    own = replace(Setting.of(made.cell), decoder="pillow")
    search = Search(made.settings, made.measure, {"pillow": 2.0, "simplejpeg": 1.0}, own)
    assert own in {one.setting for one in search.run()}


def test_a_long_stretch_goes_before_a_short_one_that_was_lucky():
    one, other = Surface(0, 2).settings[:2]

    def measure(setting, seconds, most_s, best):
        return Stretch(100.0, 3.0, 0.5) if setting == one else Stretch(101.0, 0.6, 0.5)

    assert next(tried.setting for tried in Search([one, other], measure).run()) == one


@pytest.mark.parametrize("loader", [name for name in LOADERS if tunable(name)])
def test_each_loader_has_a_space_of_settings_that_can_exist(loader):
    entry = LOADERS[loader]
    workers = 0 if entry.workers == "never" else 4
    own = settle(cell(loader, workers, persistent_workers=entry.stays))
    names = list(entry.decoders or ["pillow"])
    found = space(own, ROOM, "cuda", names if entry.workers == "never" else names[:1])
    assert 1 < len(found) <= MOST
    assert len(set(found)) == len(found)
    assert Setting.of(own) in found
    assert [impossible(one.of_cell(own)) for one in found] == [None] * len(found)
    counts = {one.workers for one in found}
    assert (0 in counts) == (entry.workers != "required")
    assert counts == {0} if entry.workers == "never" else max(counts) == 16
    assert not entry.anew or not any(one.persistent_workers for one in found)
    assert not entry.stays or all(one.persistent_workers for one in found)
    assert {one.decoder for one in found} <= {*names}
    assert len(space(own, ROOM, "cuda", names)) <= MOST


def test_without_a_gpu_there_is_no_choice_of_pinned_memory():
    found = space(cell(pin_memory=False), ROOM, "cpu", DECODERS)
    assert {one.pin_memory for one in found} == {False}


def test_values_may_be_given():
    found = space(cell(), ROOM, "cpu", DECODERS, {"workers": [1, 3], "prefetch_factor": [8]})
    assert {one.workers for one in found} == {1, 3}
    assert {one.prefetch_factor for one in found} == {8}


def test_queues_that_do_not_fit_into_shared_memory_are_left_out_but_for_threads():
    small = Limits(16, AMPLE, waiting(10**6, 4, 2), 10**6)
    found = space(cell(), small, "cpu", ["pillow"])
    assert {(one.workers, one.prefetch_factor) for one in found} == {
        *((4, 2), (2, 2), (2, 4), (1, 2), (1, 4)),
    }
    threads = space(cell("spdl"), small, "cpu", ["pillow"])
    assert (16, 4) in {(one.workers, one.prefetch_factor) for one in threads}


def test_a_cell_with_nothing_to_choose_keeps_its_settings():
    assert settle(Cell("e", "d", "resident", settings=TUNED)).settings is None
    assert settle(Cell("e", "d", "overlap", settings=TUNED)).settings == TUNED
    assert "resident has no workers" in untunable(Cell("e", "d", "resident"))
    for axes in ({"trainer": "lightning"}, {"trainer": "lightning", "devices": 2}):
        assert "trainer plain" in impossible(
            Cell("e", "d", "dataloader_workers", workers=1, settings=TUNED, **axes)
        )
    assert impossible(Cell("e", "d", "dataloader_workers", workers=1, settings=TUNED)) is None


def test_published_ids_stay_and_a_tuned_cell_has_its_own():
    plain, tuned = cell(), cell(settings=TUNED)
    assert "settings" not in plain.identity()
    assert tuned.id != plain.id
    assert "-tuned-" in tuned.id


@hypothesis_settings(max_examples=60, deadline=None)
@given(
    loader=some.sampled_from([name for name in LOADERS if tunable(name)]),
    workers=some.integers(0, 300),
    cores=some.integers(1, 256),
    host=some.integers(0, 10**11),
    shm=some.integers(0, 10**10),
    batch=some.integers(1, 10**9),
    device=some.sampled_from(["cpu", "cuda"]),
    decoders=some.lists(some.sampled_from(DECODERS), min_size=1, unique=True),
    draw=some.randoms(use_true_random=False),
)
def test_no_setting_is_tried_that_does_not_fit_and_the_budget_holds(
    loader, workers, cores, host, shm, batch, device, decoders, draw
):
    limits = Limits(cores, host, shm, batch)
    own = settle(cell(loader, workers))
    found = space(own, limits, device, decoders)
    assert len(found) <= MOST
    granted = []

    def measure(setting, seconds, most_s, best):
        assert setting in found
        assert setting.workers <= cores
        queue = waiting(batch, setting.workers, setting.prefetch_factor)
        assert queue <= host
        assert LOADERS[loader].threads or queue <= shm
        assert seconds >= LEAST_S
        start_s = most_s * draw.random()
        granted.append(most_s)
        return Stretch(draw.choice([0.0, draw.uniform(1, 10**5)]), draw.uniform(start_s, most_s), start_s)

    costs = {name: draw.uniform(1e-6, 1e-1) for name in decoders}
    search = Search(found, measure, costs, Setting.of(own))
    if found:
        tried = search.run()
        assert search.spent_s <= search.budget_s
        assert 0 < len(tried) <= len(found)
        assert len({one.setting for one in tried}) == len(tried)
        assert all(one.rung >= other.rung for one, other in pairwise(tried))
        assert sum(one.seconds for one in tried) == pytest.approx(search.spent_s)

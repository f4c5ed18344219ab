"""The cores of jobs that run at once: of one size, apart, and whole where there are enough."""

import json
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lease_fixtures import made

from gpufeed.system.cores import TASKS, can_restrict
from gpufeed.system.gpu_locks import file_locks, taking
from gpufeed.system.gpu_locks.taking import share_lock_name, split_cores, take_share

ABOUT = {"pid": 1}
ALLOWED = sorted(os.sched_getaffinity(0)) if can_restrict() else []
TWO = pytest.mark.skipif(len(ALLOWED) < 2, reason="needs two CPUs, and a system that lets a process choose")


@pytest.fixture
def stays(lease_folder):
    """Puts this process back where it was."""
    yield
    for task in TASKS.iterdir():
        os.sched_setaffinity(int(task.name), ALLOWED)


def node(monkeypatch, threads: int, packages: int = 1, far: bool = False, count: int = 16) -> None:
    """A node with so many hardware threads a core, neighbours or far apart, in so many processors."""
    physical = count // threads

    def core(cpu):
        return cpu % physical if far else cpu // threads

    monkeypatch.setattr(
        taking, "siblings", lambda cpu: frozenset(one for one in range(count) if core(one) == core(cpu))
    )
    monkeypatch.setattr(taking, "processor_of", lambda cpu: core(cpu) * packages // physical)


def test_shares_are_of_whole_cores(monkeypatch):
    node(monkeypatch, threads=2)
    assert split_cores(range(16), 4) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]
    node(monkeypatch, threads=2, far=True)
    assert split_cores(range(16), 4) == [[0, 8, 1, 9], [2, 10, 3, 11], [4, 12, 5, 13], [6, 14, 7, 15]]
    assert split_cores(range(16), 3) == [[0, 8, 1, 9], [2, 10, 3, 11], [4, 12, 5, 13]]


def test_a_core_is_divided_where_there_are_more_shares_than_cores(monkeypatch):
    node(monkeypatch, threads=2, count=4)
    assert split_cores(range(4), 3) == [[0], [1], [2]]
    assert split_cores(range(4), 5) == []
    assert split_cores(range(4), 0) == []
    assert split_cores([], 2) == []


def test_a_core_of_which_a_part_is_allowed_makes_no_share_larger(monkeypatch):
    node(monkeypatch, threads=2, count=8)
    assert split_cores([0, 1, 2, 4, 5, 6, 7], 3) == [[0, 1], [2, 4], [5, 6]]


def test_a_share_stays_in_one_processor(monkeypatch):
    monkeypatch.setattr(taking, "siblings", lambda cpu: frozenset([cpu]))
    monkeypatch.setattr(taking, "processor_of", lambda cpu: cpu % 2)  # as some makers count
    assert split_cores(range(8), 2) == [[0, 2, 4, 6], [1, 3, 5, 7]]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    threads=st.sampled_from([1, 2, 4]),
    packages=st.sampled_from([1, 2]),
    far=st.booleans(),
    allowed=st.sets(st.integers(0, 15)),
    shares=st.integers(1, 20),
)
def test_shares_are_apart_and_alike(threads, packages, far, allowed, shares):
    with pytest.MonkeyPatch.context() as monkeypatch:
        node(monkeypatch, threads, packages, far)
        parts = split_cores(allowed, shares)
    assert len(parts) == (shares if shares <= len(allowed) else 0)
    assert len({len(part) for part in parts}) <= 1
    taken = [cpu for part in parts for cpu in part]
    assert len(set(taken)) == len(taken)
    assert set(taken) <= allowed


@TWO
def test_a_process_and_what_it_starts_stay_on_its_share(stays):
    first, last = split_cores(ALLOWED, 2)
    held, cpus = take_share(1, 2, len(ALLOWED), near=last, about=ABOUT)  # that of the cores near its GPU
    assert cpus == sorted(last)
    assert os.sched_getaffinity(0) == set(last)
    assert file_locks.holder(share_lock_name(last)) == ABOUT
    assert file_locks.holder(share_lock_name(first)) is None
    for one in held:
        one.release()


@TWO
def test_jobs_have_cores_of_their_own_and_no_more_than_they_have_reserved(lease_folder):
    takers = made(lease_folder)
    make = next(takers)
    then = "print(json.dumps(sorted(os.sched_getaffinity(0))), flush=True)"
    try:
        found = []
        for _ in range(2):
            one = make(3, more="cores=1, shares=2", then=then)
            found.append(json.loads(one.process.stdout.readline()))
            one.mask()
        assert [len(cpus) for cpus in found] == [1, 1]
        assert found[0] != found[1]
        third = make(3, more="cores=1, shares=2", then=then)
        assert json.loads(third.process.stdout.readline()) == ALLOWED
        assert "other jobs hold the 2 shares of the cores" in third.log()
    finally:
        next(takers, None)


@TWO
def test_a_job_with_several_gpus_has_as_many_shares(stays):
    held, cpus = take_share(2, 2, len(ALLOWED), near=(), about=ABOUT)
    assert len(held) == 2
    assert cpus == sorted(cpu for part in split_cores(ALLOWED, 2) for cpu in part)
    for one in held:
        one.release()


def test_shares_of_other_cpus_are_others():
    shares = [[0, 1], [2, 3], [0, 1, 2], [0, 2], [0, 1, 3]]
    assert len(set(map(share_lock_name, shares))) == len(shares)
    assert share_lock_name([1, 0]) == share_lock_name([0, 1])

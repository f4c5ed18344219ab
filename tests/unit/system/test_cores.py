"""Which hardware threads a number of cores means, on machines of any topology."""

import os
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpufeed.system import cores
from gpufeed.system.cores import apart, on_cores, physical_cores, siblings


def topology(root, lists: dict[int, str], monkeypatch) -> None:
    """A /sys/devices/system/cpu in which each CPU has this list of siblings."""
    for cpu, text in lists.items():
        folder = root / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "thread_siblings_list").write_text(text + "\n")
    monkeypatch.setattr(cores, "CPUS", root)


NEIGHBOURS = {cpu: f"{cpu // 2 * 2}-{cpu // 2 * 2 + 1}" for cpu in range(8)}
FAR = {cpu: f"{cpu % 4},{cpu % 4 + 4}" for cpu in range(8)}
SINGLE = {cpu: str(cpu) for cpu in range(8)}


@pytest.mark.parametrize(
    ("lists", "allowed", "order"),
    [
        (NEIGHBOURS, range(8), [0, 2, 4, 6, 1, 3, 5, 7]),
        (FAR, range(8), [0, 1, 2, 3, 4, 5, 6, 7]),
        (FAR, [0, 4, 5, 7], [0, 5, 7, 4]),
        (SINGLE, range(8), list(range(8))),
        (NEIGHBOURS, [1, 2, 3], [1, 2, 3]),  # where only a part is allowed
        ({}, [3, 1, 0], [0, 1, 3]),  # nothing is known
        ({0: "0-1", 1: "not a list"}, [0, 1], [0, 1]),
    ],
)
def test_one_thread_of_each_core_comes_first(tmp_path, monkeypatch, lists, allowed, order):
    topology(tmp_path, lists, monkeypatch)
    assert apart(allowed) == order


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), threads=st.integers(1, 4), count=st.integers(1, 6))
def test_as_many_physical_cores_as_there_are(tmp_path_factory, data, threads, count):
    with pytest.MonkeyPatch.context() as monkeypatch:
        ids = data.draw(st.permutations(range(threads * count)))
        groups = [sorted(ids[core * threads : (core + 1) * threads]) for core in range(count)]
        lists = {cpu: ",".join(map(str, group)) for group in groups for cpu in group}
        topology(tmp_path_factory.mktemp("cpus"), lists, monkeypatch)
        order = apart(ids)
        assert sorted(order) == sorted(ids)
        for number in range(1, len(ids) + 1):
            assert physical_cores(order[:number]) == min(number, count)


def test_what_a_number_of_cores_means(tmp_path, monkeypatch):
    topology(tmp_path, NEIGHBOURS, monkeypatch)
    assert siblings(5) == {4, 5}
    assert [physical_cores(cpus) for cpus in ([0, 1], [0, 2], range(8))] == [1, 2, 4]
    assert physical_cores([0, 9]) is None  # one of them is unknown
    assert physical_cores(None) is None


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core only, so there is no choice")
def test_threads_are_kept_on_different_cores(tmp_path, monkeypatch):
    first, *rest = sorted(os.sched_getaffinity(0))
    other = rest[-1]
    # all but the last are threads of one core
    lists = {cpu: ",".join(map(str, [first, *rest[:-1]])) for cpu in [first, *rest[:-1]]}
    topology(tmp_path, {**lists, other: str(other)}, monkeypatch)
    with on_cores(2) as chosen:
        assert chosen == [first, other]
        assert os.sched_getaffinity(0) == {first, other}
    assert len(os.sched_getaffinity(0)) == len(rest) + 1


@pytest.mark.skipif(not cores.can_restrict(), reason="this system lets no process choose its cores")
def test_all_that_a_process_starts_stays_on_its_cores():
    code = (
        "import multiprocessing, os, threading; from gpufeed.system.cores import pin_to\n"
        "waiting = threading.Event(); older = threading.Thread(target=waiting.wait); older.start()\n"
        "kept, found = pin_to(1), [os.sched_getaffinity(older.native_id), os.sched_getaffinity(0)]\n"
        "waiting.set()\n"
        "if __name__ == '__main__':\n"
        "    for way in ('fork', 'spawn', 'forkserver'):\n"
        "        with multiprocessing.get_context(way).Pool(1) as pool:\n"
        "            found.append(pool.apply(os.sched_getaffinity, (0,)))\n"
        "    print(kept, found == [set(kept)] * 5)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == [f"[{min(os.sched_getaffinity(0))}]", "True"]

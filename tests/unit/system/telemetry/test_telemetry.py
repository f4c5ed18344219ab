"""Telemetry of a real training on the CPU, and what becomes of a loader that leaks."""

import mmap
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import asdict, replace
from types import SimpleNamespace

import leak_fixtures
import measure_fixtures as toys
import pytest
import torch

from gpufeed.benchmarks.end_to_end import measure
from gpufeed.core import registry
from gpufeed.core.record import RECORD
from gpufeed.core.repeats import is_disturbed
from gpufeed.system.cores import can_restrict, on_cores
from gpufeed.system.telemetry import gpu_readings, process_load, watch
from gpufeed.system.telemetry.summary import summarise, together
from gpufeed.system.telemetry.watch import Watch
from gpufeed.training.runtime_context import page_cached_share

CPU = torch.device("cpu")
EPOCHS = 7


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Measures a toy cell with telemetry and checks its record against the schema."""
    toys.register(monkeypatch)
    for name in leak_fixtures.LOADERS:
        monkeypatch.setitem(registry.LOADERS, name, registry.LoaderEntry(f"leak_fixtures:{name}"))
    manifest = toys.toy_manifest(tmp_path).write()

    def run(telemetry=True, least_s=0.0, **axes):
        told = {"telemetry": telemetry, "least_s": least_s}
        record, _ = measure(toys.toy_cell(**axes), 0, manifest, None, "login1", **told)
        RECORD.check(asdict(record), tmp_path)
        return record

    return run


def test_a_record_has_what_the_training_took(run, monkeypatch):
    monkeypatch.setattr(watch, "PERIOD_S", 0.01)
    record = run(loader="SlowLoader", epochs=4)
    told = record.telemetry
    assert told["images"] == 3 * 30  # the first epoch is warm-up
    assert told["seconds"] >= sum(epoch["epoch_s"] for epoch in record.epochs[1:])
    assert 1 <= told["samples"] <= told["seconds"] / 0.01
    host = told["host"]
    assert host["rss_mib"]["n"] == told["samples"]
    assert 10 < host["rss_mib"]["min"] <= host["rss_mib"]["median"] <= host["rss_mib"]["max"]
    assert host["processes"]["min"] >= 1
    assert 0 <= host["cpu_s"] < told["seconds"] * os.cpu_count() * 1.5
    assert host["cpu_s_per_1000_images"] == pytest.approx(host["cpu_s"] / 90 * 1e3)
    assert host["page_cache_share"] is None  # the toy has no files
    assert told["gpu"] is None
    assert told["growth"]["gpu_allocated"] is told["growth"]["gpu_process"] is None
    assert told["growth"]["host"]["epochs"] == 4


@contextmanager
def busy_process():
    """A process that is none of this one's descendants, and computes on the same cores."""
    code = "import time; end = time.time() + 60\nwhile time.time() < end: pass"
    started = ["sh", "-c", '"$0" -c "$1" >/dev/null 2>&1 & echo $!', sys.executable, code]
    pid = int(subprocess.run(started, stdout=subprocess.PIPE, check=True).stdout)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.alone
def test_a_process_beside_it_marks_a_repeat(run):
    if process_load.core_counters(0.0) is None:
        pytest.skip("this system does not tell how busy its cores are")
    with on_cores(2) as cores, busy_process():
        record = run(loader="SlowLoader", least_s=2.2)
    assert is_disturbed(record.telemetry)
    host, whole_s = record.telemetry["host"], len(cores) * record.telemetry["seconds"]
    others_s = host["others_cpu_share"] * whole_s
    assert 0.6 * record.telemetry["seconds"] < others_s < 1.1 * whole_s - host["cpu_s"]


def stat(folder, busy_s, passed_s=100.0, cpus=None, **ticks):
    """A /proc/stat in which each core that this process may run on was busy so long, of 100 s.

    ticks: of the other fields by name; they are no time of a process.
    """
    names = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal", "guest", "guest_nice")
    busy = {"user": 60 * busy_s, "nice": 10 * busy_s, "system": 30 * busy_s}
    fields = dict.fromkeys(names, 0) | busy | {"idle": 100 * (passed_s - busy_s), **ticks}
    line = " ".join(str(round(fields[name])) for name in names)
    foreign = " ".join(["99999999"] * len(names))
    whose = sorted(os.sched_getaffinity(0) if cpus is None else cpus)
    lines = [f"cpu  {foreign}", *(f"cpu{cpu} {line}" for cpu in whose), f"cpu4095 {foreign}", "intr 12 0"]
    (folder / "stat").write_text("\n".join(lines) + "\n")
    return folder / "stat"


needs_a_mask = pytest.mark.skipif(not can_restrict(), reason="needs a system with affinity masks")


@needs_a_mask
@pytest.mark.parametrize(
    ("busy_s", "tree_share", "ticks", "expected"),
    [
        (5.0, 0.20, {}, 0.30),
        (5.0, 0.47, {}, 0.03),
        (5.0, 0.50, {}, 0.0),
        (5.0, 0.54, {}, 0.0),  # by a few ticks
        (5.0, 0.56, {}, None),  # more than was busy: these are not the counters of this machine
        (10.0, 0.0, {}, 1.0),
        (2.0, 0.2, {"iowait": 300, "irq": 100, "softirq": 100, "steal": 200, "guest": 100}, 0.0),
    ],
)
def test_what_others_use_is_what_was_busy_without_the_tree(tmp_path, busy_s, tree_share, ticks, expected):
    count = len(os.sched_getaffinity(0))
    before = process_load.core_counters(7.0, stat(tmp_path, 50.0))
    after = process_load.core_counters(
        7.0 + tree_share * count * 10, stat(tmp_path, 50.0 + busy_s, 110.0, **ticks)
    )
    found = process_load.others_share([(before, after)], 10.0)
    assert found == (None if expected is None else pytest.approx(expected, abs=0.001))
    assert process_load.others_share([(before, before), (before, after)], 10.0) == found
    assert process_load.others_share([(before, after), (None, after)], 10.0) is None
    assert process_load.others_share([(before, after)], 1.9) is None  # too short to tell
    assert process_load.others_share([], 10.0) is None


def test_what_other_processes_use_is_told_the_most_first():
    process_load.used_by_others()
    _, found = process_load.used_by_others()
    assert found == sorted(found, reverse=True)
    assert found
    assert f"(process {os.getpid()})" not in str(found)


@needs_a_mask
def test_processes_on_the_cores_of_other_jobs_do_not_count(monkeypatch):
    ours, foreign = min(os.sched_getaffinity(0)), max(os.sched_getaffinity(0)) + 1
    made = [
        SimpleNamespace(pid=pid, info={"pid": pid, "name": "x", "cpu_percent": 100.0, "cpu_num": core})
        for pid, core in ((-1, ours), (-2, foreign))
    ]
    monkeypatch.setattr(process_load.psutil, "process_iter", lambda asked: made)
    cores, found = process_load.used_by_others()
    assert cores == len(os.sched_getaffinity(0))
    assert found == [(1.0, "x (process -1)")]


@needs_a_mask
def test_only_this_process_s_own_cores_count(tmp_path):
    allowed = os.sched_getaffinity(0)
    path, first = stat(tmp_path, 50.0), min(allowed)
    os.sched_setaffinity(0, {first})
    try:
        found = process_load.core_counters(7.0, path)
    finally:
        os.sched_setaffinity(0, allowed)
    assert (found.cpus, found.busy_s) == ({first}, 50.0)


@needs_a_mask
def test_where_counters_are_hidden_nothing_is_said(tmp_path):
    mask = os.sched_getaffinity(0)
    stood = process_load.core_counters(0.0, stat(tmp_path, 50.0))
    assert process_load.others_share([(stood, stood)], 10.0) is None  # idle time passes, too
    assert process_load.others_share([(stood, replace(stood, cpus=frozenset({4095})))], 10.0) is None
    assert process_load.core_counters(0.0, stat(tmp_path, 1.0, cpus=sorted(mask)[1:])) is None  # renumbered
    assert process_load.core_counters(0.0, tmp_path / "absent") is None
    for text in ("", "cpu 0 0 0\n", "".join(f"cpu{cpu} 1\n" for cpu in mask), "cpu0 x y z w\n"):
        (tmp_path / "stat").write_text(text)
        assert process_load.core_counters(0.0, tmp_path / "stat") is None


@needs_a_mask
def test_children_that_end_within_the_time_are_no_others(tmp_path):
    def read(busy_s):
        busy_s, passed_s = busy_s / len(os.sched_getaffinity(0)), 50.0 + 10 * busy_s
        return process_load.core_counters(
            process_load.used(process_load.tree(os.getpid())).cpu_s, stat(tmp_path, busy_s, passed_s)
        )

    before = read(1.0)
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.5: pass"], check=True)
    found = process_load.others_share(
        [(before, read(2.5))], 5.0
    )  # 1.5 s of the machine, 0.5 s and a little of the child
    assert 0.5 < found * 5.0 * len(os.sched_getaffinity(0)) < 1.02


def watch_as_one_of_several(pipe) -> None:
    over = Watch(CPU, together=True)
    with over:
        (reading,) = over.seen.readings
    pipe.send((reading.cores.tree_s, reading.used.cpu_s))


@needs_a_mask
def test_a_rank_takes_the_others_for_its_own(monkeypatch, tmp_path):
    monkeypatch.setattr(
        watch, "core_counters", lambda tree_s: process_load.core_counters(tree_s, stat(tmp_path, 1.0))
    )
    spin(0.3)  # what the parent, and so any rank beside, has used
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=watch_as_one_of_several, args=(theirs,))
    child.start()
    theirs.close()  # so that a child that fails is no endless wait
    whole_s, own_s = ours.recv()
    child.join()
    assert whole_s >= own_s + 0.29


def test_without_it_nothing_is_told(run):
    record = run(telemetry=False)
    assert (record.status, record.telemetry) == ("done", None)


def test_a_leaking_loader_is_a_warning_in_its_record(run, caplog):
    record = run(loader="LeakingLoader", epochs=EPOCHS)
    assert record.status == "done"
    growth = record.telemetry["growth"]["host"]
    assert growth["suspected_leak_mib"] == pytest.approx((EPOCHS - 1) * leak_fixtures.KEPT_MIB, rel=0.2)
    assert growth["mib_per_epoch"] == pytest.approx(leak_fixtures.KEPT_MIB, rel=0.2)
    assert growth["mib_per_1000_steps"] == pytest.approx(growth["mib_per_epoch"] / 4 * 1e3)
    assert "suspected leak: host memory of the process tree grew by 1" in caplog.text
    assert "MiB over 6 epochs after the first and did not settle" in caplog.text


@pytest.mark.parametrize("loader", ["TightLoader", "FillingLoader"])
def test_memory_that_is_given_back_or_taken_once_passes(run, loader):
    record = run(loader=loader, epochs=EPOCHS)
    assert (record.status, record.sentence) == ("done", None)
    assert record.telemetry["growth"]["host"]["mib_per_epoch"] < leak_fixtures.KEPT_MIB / 2
    assert record.telemetry["growth"]["host"]["suspected_leak_mib"] is None


def test_a_run_shorter_than_an_epoch_is_told_from_its_start(run):
    told = run(steps=3).telemetry
    assert told["images"] == 24
    assert told["growth"]["host"] is None


@pytest.mark.parametrize("broken", ["tree", "own_mib", "used", "Gpu"])
def test_an_error_of_its_own_leaves_null_and_fails_nothing(run, monkeypatch, caplog, broken):
    def fail(*_):
        raise RuntimeError("no such file in /proc")

    monkeypatch.setattr(watch, broken, fail)
    record = run(epochs=3)
    assert (record.status, record.telemetry) == ("done", None)
    assert "no telemetry of this training: RuntimeError: no such file in /proc" in caplog.text


def test_an_error_of_the_thread_ends_it_alone(run, monkeypatch):
    monkeypatch.setattr(watch, "PERIOD_S", 0.001)
    monkeypatch.setattr(watch, "rss_mib", lambda processes: 1 / 0)
    record = run(loader="SlowLoader", epochs=3)
    assert (record.status, record.telemetry) == ("done", None)


def test_the_thread_ends_with_the_training_and_with_its_failure(run):
    def watching():
        return [thread for thread in watch.threading.enumerate() if thread.name == watch.NAME]

    for loader in ("ToyLoader", "BreakingLoader"):
        run(loader=loader)
        assert not watching()
    with Watch(CPU):
        assert len(watching()) == 1
    assert not watching()


def test_what_is_asked_between_epochs_does_not_count():
    over = Watch(CPU)
    tell, judge = over.telling(None), over.apart(lambda: spin(0.3) or {"top1": 1.0})
    with over:
        tell({"steps": 4, "images": 30})
        spin(0.1)
        assert judge() == {"top1": 1.0}
        spin(0.1)
        tell({"steps": 4, "images": 30})
    told = summarise(over.seen, 4)
    assert told["images"] == 30
    assert 0.15 < told["host"]["cpu_s"] < 0.4  # with the judge it would be half a second
    assert told["seconds"] > 0.19
    assert Watch(CPU).apart(None) is None


def spin(seconds: float) -> None:
    """Uses so much CPU time."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_epochs_are_told_on():
    told = []
    with Watch(CPU) as over:
        over.telling(told.append)({"steps": 1, "images": 2})
    assert told == [{"steps": 1, "images": 2}]


def spin_in_a_child(pipe) -> None:
    spin(0.3)
    memory = leak_fixtures.taken(30)
    pipe.send(len(memory))
    pipe.recv()


def test_children_count_while_they_live_and_after():
    before = process_load.used(process_load.tree(os.getpid()))
    level = process_load.own_mib(process_load.tree(os.getpid()))
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=spin_in_a_child, args=(theirs,))
    child.start()
    ours.recv()
    processes = process_load.tree(os.getpid())
    assert [process.pid for process in processes].index(child.pid) > 0
    alive = process_load.used(processes)
    assert process_load.own_mib(processes) > level + 30
    assert process_load.rss_mib(processes) >= process_load.own_mib(processes)
    ours.send("end")
    child.join()
    after = process_load.used(process_load.tree(os.getpid()))
    assert after.cpu_s >= alive.cpu_s - 0.05 >= before.cpu_s + 0.2
    assert child.pid not in [process.pid for process in process_load.tree(os.getpid())]


def test_grandchildren_belong_to_the_tree_however_it_is_found(monkeypatch):
    context, (ours, theirs) = multiprocessing.get_context("fork"), multiprocessing.Pipe()
    child = context.Process(target=with_a_child, args=(theirs,))
    child.start()
    grandchild = ours.recv()
    found = [process.pid for process in process_load.tree(os.getpid())]
    monkeypatch.setattr(process_load, "has_children_files", lambda: False)
    otherwise = [process.pid for process in process_load.tree(os.getpid())]
    ours.send("end")
    child.join()
    for pids in (found, otherwise):
        assert pids[0] == os.getpid()
        assert pids.index(child.pid) < pids.index(grandchild)
    assert sorted(found) == sorted(otherwise)


def with_a_child(pipe) -> None:
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=ours.recv)
    child.start()
    pipe.send(child.pid)
    pipe.recv()
    theirs.send("end")
    child.join()


def test_reads_are_counted(tmp_path):
    (tmp_path / "file").write_bytes(b"x" * 5 * 2**20)
    before = process_load.used(process_load.tree(os.getpid()))
    if before.read_bytes is None:
        pytest.skip("this system does not tell what a process reads")
    (tmp_path / "file").read_bytes()
    after = process_load.used(process_load.tree(os.getpid()))
    assert after.read_bytes - before.read_bytes >= 5 * 2**20
    assert after.storage_bytes >= before.storage_bytes


def test_pages_of_mapped_files_are_no_memory_of_ours(tmp_path):
    (tmp_path / "file").write_bytes(b"x" * 40 * 2**20)
    processes = process_load.tree(os.getpid())[:1]
    before = process_load.own_mib(processes), process_load.rss_mib(processes)
    with open(tmp_path / "file", "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert sum(mapped[place] for place in range(0, len(mapped), 4096)) > 0
        after = process_load.own_mib(processes), process_load.rss_mib(processes)
    assert after[1] - before[1] > 30
    assert after[0] - before[0] < 10


def test_processes_that_have_ended_are_left_out():
    child = multiprocessing.get_context("fork").Process(target=os.getpid)
    child.start()
    process = process_load.psutil.Process(child.pid)
    child.join()
    assert process_load.rss_mib([process]) == process_load.own_mib([process]) == 0
    assert process_load.used([process]).cpu_s == 0
    assert process_load.children(child.pid) == []


def test_a_file_just_written_is_in_the_page_cache(tmp_path):
    paths = [tmp_path / f"{i}" for i in range(100)]
    for path in paths:
        path.write_bytes(b"x" * 5000)
    share = page_cached_share(paths)
    if share is None:
        pytest.skip("this system does not tell what is in the page cache")
    assert share > 0.9
    assert page_cached_share([tmp_path / "not there"]) is None
    (tmp_path / "empty").touch()
    assert page_cached_share([tmp_path / "empty"]) is None


def test_without_a_gpu_every_answer_is_none():
    gpu = gpu_readings.Gpu(CPU)
    assert set(gpu.sample({1}).values()) == {None}
    assert set(gpu.sample({1})) == {*gpu_readings.SAMPLED, "events"}
    assert gpu.energy_j() is gpu.process_mib({1}) is gpu.other_processes({1}) is None
    gpu.close()
    gpu.close()


def test_others_on_the_gpu_are_counted_where_numbers_of_processes_are_ours(monkeypatch):
    def running(*pids):
        processes = [SimpleNamespace(pid=pid, usedGpuMemory=2**20) for pid in pids]
        monkeypatch.setattr(
            gpu_readings.pynvml, "nvmlDeviceGetComputeRunningProcesses", lambda handle: processes
        )

    gpu = gpu_readings.Gpu(CPU)
    gpu.handle = object()
    for there, count in (((), None), ((7,), 0), ((7, 8, 9, 20), 2), ((20, 21), None)):
        running(*there)
        assert gpu.other_processes({7, 8}) == count, there
    running(7, 8, 9)
    assert gpu.process_mib({7, 8}) == 2


def test_reasons_of_the_clocks_have_names():
    assert gpu_readings.named(0) == []
    assert gpu_readings.named(0b101) == ["gpu_idle", "power_cap"]
    assert gpu_readings.named(2**40) == []  # a reason of a later driver
    assert len(set(gpu_readings.EVENTS.values())) == len(gpu_readings.EVENTS)


def used(cpu_s: float) -> process_load.Used:
    return process_load.Used(cpu_s, None, None)


def seen(energies=(None,) * 3, watts=None) -> watch.Seen:
    """Two epochs of 10 s and 100 images by hand, sampled each second where there are watts."""
    told = dict.fromkeys((*gpu_readings.SAMPLED, "events"))
    told |= {"power_w": watts, "events": ["power_cap"]} if watts else {}
    readings = [
        watch.Reading(10.0 * i, 5 * i, 100 * i, i, i > 0, False, used(2.0 * i), joules, 500.0, None, None)
        for i, joules in enumerate(energies)
    ]
    return watch.Seen(readings, [watch.Sample(s + 0.5, 600.0, 3, told) for s in range(20)], 0.5)


def test_energy_is_the_counters_difference_or_power_times_time():
    counted = summarise(seen((1000.0, 5000.0, 12000.0), watts=300.0), 5)["gpu"]
    assert (counted["energy_j"], counted["energy_from"]) == (7000.0, "counter")
    assert counted["j_per_1000_images"] == 70_000
    sampled = summarise(seen(watts=300.0), 5)["gpu"]
    assert (sampled["energy_j"], sampled["energy_from"]) == (3000.0, "power")
    assert sampled["power_w"] == {"n": 10, "median": 300.0, "min": 300.0, "max": 300.0}
    assert sampled["clock_events"] == {"power_cap": 1.0}
    assert sampled["jpeg_percent"] is None
    assert summarise(seen(), 5)["gpu"] is None
    assert summarise(seen(watts=300.0), 3)["gpu"]["energy_j"] == 6000.0  # no whole epoch is left out


def test_counters_never_fall():
    dipped = seen()
    dipped.readings[1] = replace(dipped.readings[1], used=used(-1.0))
    dipped.readings.append(replace(dipped.readings[2], at_s=30.0, steps=15, images=300, epochs=3))
    assert summarise(dipped, 3)["host"]["cpu_s"] == 4.0


def with_others(fields, share):
    return fields | {"host": fields["host"] | {"others_cpu_share": share}}


def test_ranks_are_one_training():
    one = summarise(seen((0.0, 1000.0, 3000.0), watts=1.0), 5)
    both = together([one, one])
    assert both["gpu"]["energy_j"] == 4000.0
    assert both["gpu"]["j_per_1000_images"] == 40_000
    assert both["host"]["cpu_s"] == 4.0
    assert both["host"]["cpu_s_per_1000_images"] == 40.0
    assert both["host"]["storage_mib"] is both["host"]["others_cpu_share"] is None
    quiet, busy = (with_others(one, share) for share in (0.01, 0.2))
    assert together([quiet, busy, quiet])["host"]["others_cpu_share"] == 0.2
    assert together([one, busy])["host"]["others_cpu_share"] is None
    assert together([one]) == one
    assert together([one, None]) is None
    assert one["gpu"]["energy_j"] == 2000.0

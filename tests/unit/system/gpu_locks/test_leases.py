"""GPUs that jobs take for themselves: real processes, real locks, planted GPUs."""

import json
import os
import re
import select
import stat
import time

import pytest
import torch
from lease_fixtures import planted, uuid
from workflow_fixtures import wait_until

from gpufeed.benchmarks.end_to_end import start_up
from gpufeed.core.errors import GpufeedError, Skip
from gpufeed.system import devices, gpu_locks
from gpufeed.system.gpu_locks import __main__ as shown
from gpufeed.system.gpu_locks import file_locks, gpu_listing, taking

ABOUT = {"pid": 1, "job": "test"}


@pytest.fixture
def here(lease_folder, monkeypatch):
    """Lets this process take GPUs of a node with so many, as if it had taken none before."""
    monkeypatch.setattr(taking, "_allocation", None)
    monkeypatch.setattr(taking, "SETTLE_S", 0)
    monkeypatch.setattr(taking.atexit, "register", lambda release: None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "9")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")  # given back as it was

    def here(there: int, **named):
        monkeypatch.setattr(gpu_listing, "on_node", lambda: planted(there))
        return gpu_locks.take(**named)

    yield here
    if taking._allocation:
        taking._allocation.release()


def test_a_node_without_a_gpu_has_nothing_to_take(here, lease_folder, monkeypatch):
    assert here(0) is None
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert here(2) is None
    assert gpu_locks.waited_s() == 0
    gpu_locks.refuse()
    gpu_locks.check(lambda: pytest.fail("nothing is to be checked"))
    assert not lease_folder.exists()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.parametrize("asked", [{"device": "cpu"}, {"device": "mps"}, {"count": 0}])
def test_what_needs_no_gpu_takes_none(here, lease_folder, asked):
    assert here(2, **asked) is None
    assert "CUDA_VISIBLE_DEVICES" not in os.environ
    assert not lease_folder.exists()


def test_jobs_have_different_gpus_and_one_waits_for_the_first_to_end(taker):
    first, second = taker(2), taker(2)
    masks = [first.mask(), second.mask()]
    assert sorted(masks) == [[uuid(0)], [uuid(1)]]
    third = taker(2)
    wait_until(lambda: "waiting for 1 of 2 GPUs" in third.log())
    for one in (first, second):
        assert f"is held by process {one.process.pid} (" in third.log()
    second.end()
    told = third.told()
    assert [told["mask"]] == masks[1]
    assert told["waited_s"] > 0


def test_a_killed_job_gives_its_gpu_back_at_once(taker, lease_folder):
    first = taker(1)
    first.mask()
    second = taker(1)
    wait_until(lambda: "waiting for 1 of 1 GPUs" in second.log())
    first.kill()
    assert second.mask() == [uuid(0)]
    assert json.loads((lease_folder / f"{uuid(0)}.lock").read_text())["pid"] == second.process.pid


def test_children_do_not_keep_what_a_killed_job_had(taker):
    """Forked, spawned and started as other programs, they outlive it here as none in a job does."""
    first = taker(
        1,
        then="""
import multiprocessing, subprocess
kept = [multiprocessing.get_context(how).Process(target=time.sleep, args=(60,)) for how in ("fork", "spawn")]
for one in kept: one.start()
kept += [subprocess.Popen(["sleep", "60"]), subprocess.Popen(["sleep", "60"], close_fds=False)]
print(json.dumps([one.pid for one in kept]), flush=True)
""",
    )
    children = json.loads(first.process.stdout.readline())
    first.mask()
    first.kill()
    try:
        assert taker(1).mask() == [uuid(0)]
        assert len(children) == 4
        for child in children:
            os.kill(child, 0)  # still there
    finally:
        for child in children:
            os.kill(child, 9)


def test_a_mask_is_what_a_job_chooses_from(taker):
    assert taker(4, mask="2").mask() == [uuid(2)]
    assert taker(4, mask=f"{uuid(2)},{uuid(1)}").mask() == [uuid(1)]
    assert taker(4, count=2).mask() == [uuid(0), uuid(3)]


def test_gpus_that_others_compute_on_come_last(here, monkeypatch):
    there = planted(3)
    there[0] = gpu_listing.Gpu(there[0].uuid, there[0].kind, 0, busy=True)
    monkeypatch.setattr(gpu_listing, "on_node", lambda: there)
    assert [gpu.number for gpu in gpu_locks.take().gpus] == [1]


def test_several_are_taken_together_or_not_at_all(taker):
    """Two jobs that want all but one GPU each would wait for each other with half of them in hand."""
    both = [taker(4, count=3), taker(4, count=3)]
    early = first_to_tell(both)
    (late,) = set(both) - {early}
    assert len(set(early.mask())) == 3
    wait_until(lambda: "waiting for 3 of 4 GPUs" in late.log())
    early.end()
    assert len(set(late.mask())) == 3


def test_a_job_with_several_is_not_passed_for_ever(taker):
    first, second = taker(2), taker(2)
    masks = [*first.mask(), *second.mask()]
    both = taker(2, count=2)
    wait_until(lambda: "waiting for 2 of 2 GPUs" in both.log())
    first.end()
    wait_until(lambda: (file_locks.holder(f"{masks[0]}.lock") or {}).get("pid") == both.process.pid)
    passing = taker(2, mask=masks[0])
    wait_until(lambda: "waiting for 1 of 1 GPUs" in passing.log())
    second.end()
    assert sorted(both.mask()) == sorted(masks)
    both.end()
    assert passing.mask() == [masks[0]]


def test_of_jobs_that_wait_one_alone_keeps_some(taker):
    """Two of them could each have what the other waits for. And nobody else waits for their turn."""
    for number in (0, 2):
        taker(6, mask=str(number)).mask()
    waiting = {1: taker(6, count=2, mask="0,1"), 3: taker(6, count=2, mask="2,3")}
    for one in waiting.values():
        wait_until(lambda one=one: "waiting for 2 of 2 GPUs" in one.log())
    keeps = file_locks.holder("gathering")["pid"]
    (free,) = (number for number, one in waiting.items() if one.process.pid != keeps)
    assert taker(6, mask=str(free)).mask() == [uuid(free)]
    assert taker(6, count=2, mask="4,5").mask() == [uuid(4), uuid(5)]


def first_to_tell(takers):
    """The first of them that has its GPUs."""
    by_pipe = {one.process.stdout: one for one in takers}
    ready, _, _ = select.select(list(by_pipe), [], [], 90)
    return by_pipe[ready[0]]


def test_many_jobs_at_once_never_share(taker):
    """Each tells when it had its GPUs and when it was about to end, as hard as a killed one."""
    then = """
begun = time.monotonic()
time.sleep(0.05)
print(json.dumps([lease.gpus[0].uuid, lease.gpus[-1].uuid, begun, time.monotonic()]), flush=True)
os._exit(0)
"""
    jobs = [taker(3, count=1 + number % 2, then=then) for number in range(9)]
    said = [json.loads(job.process.stdout.read()) for job in jobs]
    spans = [(name, begun, until) for *names, begun, until in said for name in set(names)]
    assert len(spans) == 5 + 2 * 4
    for index, (one, begun, until) in enumerate(spans):
        for other, begun_too, until_too in spans[:index]:
            assert one != other or until <= begun_too or until_too <= begun, "two had one GPU at a time"


def test_more_than_there_are_is_refused_at_once(here, lease_folder, monkeypatch):
    lease = here(1, count=2)
    assert lease.refused == "The job asks for 2 GPUs, and this node has 1 whole GPU."
    for name in ("auto", "cuda"):
        with pytest.raises(Skip, match="asks for 2 GPUs"):
            devices.resolve_device(name)
    assert devices.resolve_device("cpu").type == "cpu"
    assert not lease_folder.exists()
    assert "CUDA_VISIBLE_DEVICES" not in os.environ


@pytest.mark.parametrize("mask", ["7", "GPU-typo", "1gpu,0"])
def test_a_mask_that_names_no_gpu_is_refused(here, lease_folder, monkeypatch, mask):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", mask)
    said = f"CUDA_VISIBLE_DEVICES={mask} names no GPU of this node, which has {uuid(0)}."
    assert here(1).refused == said
    with pytest.raises(Skip, match=re.escape(said)):
        devices.resolve_device("auto")
    assert not lease_folder.exists()


@pytest.mark.parametrize("mask", ["", " ", "-1", "NoDevFiles"])
def test_a_mask_that_means_no_gpu_takes_none(here, monkeypatch, mask):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", mask)
    assert here(2) is None
    gpu_locks.refuse()


@pytest.mark.parametrize(("built", "refused"), [("13.0", True), (None, False)])
def test_a_taken_gpu_that_torch_cannot_use_is_no_cpu(here, monkeypatch, built, refused):
    """As where the driver is too old, or a container was started without --nv."""
    monkeypatch.setattr(torch.version, "cuda", built)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    here(1)
    if refused:
        with pytest.raises(Skip, match=rf"^This job has {uuid(0)}, and torch .* `device: cpu`"):
            devices.resolve_device("auto")
    else:
        assert devices.resolve_device("auto").type in ("cpu", "mps")
    assert devices.resolve_device("cpu").type == "cpu"


def test_the_refusal_tells_what_a_mask_leaves(here, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    assert here(4, count=3).refused.endswith(
        "asks for 3 GPUs, and this node has 4 whole GPUs, of which CUDA_VISIBLE_DEVICES=3,1 leaves it 2."
    )


def test_another_order_of_gpus_in_cuda_is_found_out(here):
    here(2)
    seen = [uuid(0).removeprefix("GPU-")]
    gpu_locks.check(lambda: seen)
    seen.append(uuid(1).removeprefix("GPU-"))
    with pytest.raises(RuntimeError, match=r"CUDA sees 00000000-.*, 00000001-"):
        gpu_locks.check(lambda: seen)


def test_the_wait_is_in_no_phase_of_a_repeat(monkeypatch):
    whole = start_up(None)["start_to_ready_s"]
    monkeypatch.setattr(taking, "_allocation", gpu_locks.Allocation(waited_s=whole / 2))
    assert gpu_locks.waited_s() == whole / 2
    begun = time.monotonic()
    now = start_up(None)["start_to_ready_s"]
    assert now < whole or time.monotonic() - begun > whole / 2  # a process that was stopped in between


def test_a_second_call_changes_nothing(here):
    first = here(3)
    assert here(3, count=2) is first
    assert os.environ["CUDA_VISIBLE_DEVICES"] == uuid(0)


def test_a_waiting_job_ends_with_the_workflow(taker):
    """Where no thread looks for that: the gate forks, and has none by then."""
    taker(1).mask()
    waiting = taker(1, more="runs=lambda: False")
    assert waiting.process.wait(90) == 1
    assert "waiting for" in waiting.log()


def test_a_process_holds_a_lock_until_it_gives_it_back(lease_folder):
    one = file_locks.lock("a", ABOUT)
    assert not one.left
    assert file_locks.lock("a", ABOUT) is None
    assert file_locks.holder("a") == ABOUT
    one.release()
    assert file_locks.holder("a") is None
    again = file_locks.lock("a", {"pid": 2})
    assert not again.left
    again.release()
    assert [path.name for path in lease_folder.iterdir()] == ["a"]


def test_a_lock_that_a_killed_process_had_says_so(lease_folder):
    file_locks.lock("a", ABOUT).release()
    (lease_folder / "a").write_text(json.dumps(ABOUT))
    one = file_locks.lock("a", ABOUT)
    assert one.left
    one.release()


def test_every_user_may_lock(lease_folder):
    before = os.umask(0o077)
    try:
        file_locks.lock("a", ABOUT).release()
    finally:
        os.umask(before)
    assert stat.S_IMODE(lease_folder.stat().st_mode) == 0o1777
    assert stat.S_IMODE((lease_folder / "a").stat().st_mode) == 0o666


@pytest.mark.parametrize("what", ["link", "file", "linked lock"])
def test_a_folder_that_cannot_be_trusted_is_refused(lease_folder, tmp_path, what):
    (tmp_path / "elsewhere").mkdir()
    if what == "link":
        lease_folder.symlink_to(tmp_path / "elsewhere")
    elif what == "file":
        lease_folder.touch()
    else:
        lease_folder.mkdir()
        (lease_folder / "a").symlink_to(tmp_path / "precious")
    with pytest.raises(GpufeedError) as caught:
        file_locks.lock("a", ABOUT)
    assert "GPUFEED_LEASES" in caught.value.remedy
    assert not list((tmp_path / "elsewhere").iterdir())
    assert not (tmp_path / "precious").exists()


@pytest.mark.parametrize("text", [b"", b"{", b"[1]", b"\xff\xfe", b"null", b'{"pid": 1'])
def test_what_stands_in_a_file_need_not_be_whole(lease_folder, text):
    one = file_locks.lock("a", ABOUT)
    (lease_folder / "a").write_bytes(text)
    assert file_locks.holder("a") == {}
    assert "an unknown process" in taking.in_words(file_locks.holder("a"))
    one.release()


def test_who_holds_what_is_told(taker, lease_folder, monkeypatch, capsys):
    monkeypatch.setattr(gpu_listing, "on_node", lambda: planted(2))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert shown.main([]) == 0
    assert not lease_folder.exists()
    assert capsys.readouterr().out.count("free") == 2
    one = taker(2)
    one.mask()
    shown.main([])
    lines = capsys.readouterr().out.splitlines()
    assert f"held by process {one.process.pid} (" in lines[1]
    assert lines[1].endswith("no job of this shell takes it")
    assert lines[2].endswith("free")
    assert lines[3] == "CUDA_VISIBLE_DEVICES=1"
    monkeypatch.setattr(gpu_listing, "on_node", list)
    shown.main([])
    assert "nothing to lock" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="0"):
        shown.main(["--help"])
    assert "process that holds it" in " ".join(capsys.readouterr().out.split())


def test_a_removed_file_does_not_make_two_holders(lease_folder, monkeypatch):
    """A cleaner of /tmp that comes between the opening of a file and the lock on it."""
    opened = file_locks.opened

    def cleaned(path):
        number = opened(path)
        monkeypatch.setattr(file_locks, "opened", opened)
        path.unlink()
        return number

    monkeypatch.setattr(file_locks, "opened", cleaned)
    one = file_locks.lock("a", ABOUT)
    assert file_locks.lock("a", ABOUT) is None
    assert file_locks.holder("a") == ABOUT
    one.release()

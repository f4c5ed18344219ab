"""A training on several nodes of a Slurm job, by an srun that starts its tasks on this machine."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict

import ddp_fixtures
import fake_srun
import psutil
import pytest
from process_fixtures import left_after, words
from resume_fixtures import write_images
from test_ddp import check_like_one_device, check_resumed, toy_cell

from gpufeed.benchmarks.end_to_end import measure
from gpufeed.core.cells import Cell
from gpufeed.core.errors import GpufeedError, Skip
from gpufeed.core.record import RECORD
from gpufeed.system import gpu_locks, sigterm_handler
from gpufeed.system.gpu_locks import taking
from gpufeed.training.checkpoints import CHECKPOINT, KEY, load
from gpufeed.training.distributed import node_task, rank_commands
from gpufeed.training.distributed.launch_ranks import spread
from gpufeed.training.distributed.rank_files import Call


@pytest.fixture
def job(tmp_path, monkeypatch):
    """Makes this process one of a job with these nodes."""

    def job(*nodes: str) -> None:
        fake_srun.install(tmp_path / "bin", list(nodes))
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setenv("SLURM_JOB_ID", str(os.getpid()))  # from which the port follows
        monkeypatch.setenv("SLURM_NTASKS", "2")  # of the job, and no matter of the ranks

    return job


@pytest.fixture
def images(tmp_path):
    """23 training images, and their cache."""
    return write_images(tmp_path / "tiny")


@pytest.mark.slow
def test_nodes_train_like_one_device_with_the_batches_of_all(images, tmp_path, job):
    job("n1", "n2", "n3")  # one more than is asked for
    arguments = {"folder": images.root, "batch_sizes": [3]}  # shares of 6, 6, 6 and 5
    call = Call("ddp_fixtures:train_and_resume", arguments, 2, "cpu", 1, nodes=2)
    ((whole, resumed),) = spread(call, scratch=tmp_path / "results/scratch")
    check_like_one_device(whole, ddp_fixtures.train_together(images.root, 12, trainer="plain"), images)
    assert len(whole["seen"]) == 4
    # which of four numbers are added first follows from DDP's buckets, laid out anew after its first step
    check_resumed(resumed, whole, near=1e-6)
    assert not list((tmp_path / "results/scratch").iterdir())


@pytest.mark.slow
def test_a_cell_on_two_nodes_gives_one_record_that_names_both(images, tmp_path, job):
    job("n1", "n2")
    manifest = images.root / "manifest.parquet"
    cell, scratch = toy_cell(nodes=2), tmp_path / "s"
    record, steps = measure(cell, 0, manifest, None, "login1", threads=1, scratch=scratch)
    assert record.status == "done", record.sentence
    RECORD.check(asdict(record), tmp_path)
    assert record.resolved["ranks"] == [{"node": "n1", "gpu": None}, {"node": "n2", "gpu": None}]
    assert steps["images"].tolist() == [8, 8, 7]


@pytest.mark.slow
def test_a_rank_that_is_killed_on_one_node_ends_all_and_its_reason_is_told(job, tmp_path):
    job("n1", "n2")
    before = set(psutil.Process().children(recursive=True))
    with pytest.raises(GpufeedError) as error:
        spread(
            Call("ddp_fixtures:fail", {"how": "is killed"}, 1, "cpu", 1, nodes=2),
            scratch=tmp_path / "scratch",
        )
    assert "rank 1 of the training ended with SIGKILL" in error.value.found
    assert not set(psutil.Process().children(recursive=True)) - before


@pytest.mark.slow
@pytest.mark.parametrize("whom", ["step", "starter"])
def test_sigterm_to_the_step_and_a_lost_starter_end_all_nodes(job, tmp_path, whom):
    """step: Slurm asks the tasks of the step, and the starter not at all. A starter that is asked: below."""
    job("n1", "n2")
    code = f"import ddp_fixtures; ddp_fixtures.spread_waiting({str(tmp_path)!r}, 1, 2)"
    starter, family = ddp_fixtures.started(code, tmp_path)
    if whom == "step":
        for member in [one for one in family if "gpufeed.training.distributed.node_task" in words(one)[:3]]:
            member.terminate()  # all found before: the others end with the first
    else:
        starter.kill()
    assert starter.wait() == (sigterm_handler.STATUS if whom == "step" else -signal.SIGKILL)
    assert not psutil.wait_procs(family, timeout=60)[1]
    assert whom == "starter" or not list((tmp_path / "scratch").iterdir())


def test_a_node_whose_starter_has_taken_the_folder_away_ends_what_it_started(tmp_path):
    told = {"SLURM_NODEID": "1", "SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": "0"}
    command = [
        sys.executable,
        "-m",
        "gpufeed.training.distributed.node_task",
        str(tmp_path / "gone"),
        "127.0.0.1",
        "2",
        "1",
    ]
    task = subprocess.Popen(command, env=os.environ | told, stdin=subprocess.DEVNULL)
    while not (begun := psutil.Process(task.pid).children()):
        assert task.poll() is None
        time.sleep(0.1)
    task.terminate()
    assert task.wait(timeout=60) == 128 + signal.SIGTERM
    assert not left_after(0, begun)


WAITING = """
import sys
from lease_fixtures import planted
from gpufeed.system.gpu_locks import gpu_listing
from gpufeed.training.distributed import node_task
gpu_listing.on_node = lambda: planted(1)
sys.exit(node_task.main())
"""


def test_a_node_that_waits_for_its_gpus_ends_when_asked(taker, lease_folder, tmp_path):
    taker(1).mask()
    told = {"SLURM_NODEID": "1", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", taking.TAKEN: "elsewhere GPU-a"}
    told |= {"GPUFEED_LEASES": str(lease_folder), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    free = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    command = [sys.executable, "-c", WAITING, str(tmp_path), "127.0.0.1", "2", "1"]
    with subprocess.Popen(command, env=free | told, stdout=subprocess.PIPE, text=True) as task:
        assert "waiting for 1 of 1 GPUs" in task.stdout.readline()
        task.terminate()
        assert task.wait(60) == 1
    assert rank_commands.was_end_requested(tmp_path, 2) is False
    assert (tmp_path / "asked-1").exists()


@pytest.mark.slow
def test_nodes_whose_starter_is_asked_to_end_keep_their_state(job, images):
    """Whose step Slurm asks, and the starter not at all: test_real_slurm.py."""
    from gpufeed.training.engines.lightning import ASK_EVERY

    job("n1", "n2")
    code = f"import ddp_fixtures; ddp_fixtures.spread_training({str(images.root)!r}, 1, 2, waits_after=2)"
    starter, family = ddp_fixtures.started(code, images.root)
    starter.send_signal(signal.SIGTERM)
    assert starter.wait(timeout=60) == sigterm_handler.STATUS
    assert not psutil.wait_procs(family, timeout=60)[1]
    assert load(images.root / "kept" / CHECKPOINT)[KEY]["step"] == 2 * ASK_EVERY
    assert not list((images.root / "scratch").iterdir())


# --- without any rank


def test_outside_of_a_job_a_cell_on_several_nodes_is_skipped(monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with pytest.raises(Skip, match=r"on 2 nodes, .* not in a job of Slurm: run it by `snakemake --profile "):
        rank_commands.nodes_of_job(2)


def test_a_job_with_too_few_nodes_is_a_skip(job):
    job("n1", "n2")
    assert rank_commands.nodes_of_job(2) == {"n1": "127.0.0.1", "n2": "127.0.0.1"}
    with pytest.raises(Skip, match=r"trains on 3 nodes, and job .* has 2 .*: run it by .*salloc --nodes=3"):
        rank_commands.nodes_of_job(3)


def test_a_slurm_that_does_not_answer_is_an_error(job, monkeypatch):
    job("n1")
    monkeypatch.setenv("SLURM_JOB_ID", "")
    with pytest.raises(Skip):
        rank_commands.nodes_of_job(1)
    monkeypatch.setattr(rank_commands, "scontrol", lambda *words: None)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    with pytest.raises(GpufeedError, match="no answer of scontrol about the nodes of job 7"):
        rank_commands.nodes_of_job(1)


def test_steps_of_a_job_meet_at_ports_of_their_own():
    assert len({node_task.port(4711, step) for step in range(50)}) == 50
    assert all(node_task.port(job, 3) in node_task.PORTS for job in (0, 1, 10**9))


def test_a_node_takes_gpus_of_its_own_unless_the_starter_has_taken_them(monkeypatch):
    taken = []
    monkeypatch.setattr(taking, "take", lambda *asked, runs: taken.append(asked))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    gpu_locks.take_part(2)  # the starter has taken nothing: by hand, or on the CPU
    monkeypatch.setenv(taking.TAKEN, "elsewhere GPU-a,GPU-b")
    gpu_locks.take_part(2)
    assert (taken, os.environ["CUDA_VISIBLE_DEVICES"]) == ([(2, "cuda")], "0,1")
    gpus = tuple(taking.Gpu(uuid, "NVIDIA H200", 0) for uuid in ("GPU-c", "GPU-d"))
    monkeypatch.setattr(taking, "_allocation", taking.Allocation(gpus))
    for name, value in gpu_locks.hand_on().items():
        monkeypatch.setenv(name, value)
    gpu_locks.take_part(2)
    assert (len(taken), os.environ["CUDA_VISIBLE_DEVICES"]) == (1, "GPU-c,GPU-d")


def test_the_name_of_a_cell_says_its_nodes():
    one = Cell("e", "d", "resident", trainer="lightning", devices=4)
    two = Cell("e", "d", "resident", trainer="lightning", devices=4, nodes=2)
    assert (one.ranks, two.ranks) == (4, 8)
    assert "-x4-n2-" in two.id

"""Several ranks train as one device with a batch of all their images would, and end together."""

import logging
import signal
from dataclasses import asdict

import ddp_fixtures
import psutil
import pytest
import torch
from resume_fixtures import write_images

from gpufeed.benchmarks.end_to_end import measure
from gpufeed.core.cells import Cell, impossible
from gpufeed.core.config import read_hyper
from gpufeed.core.errors import GpufeedError, Skip
from gpufeed.core.record import RECORD
from gpufeed.models.make import make
from gpufeed.system import sigterm_handler
from gpufeed.system.devices import require_devices
from gpufeed.training.checkpoints import CHECKPOINT, KEY, load
from gpufeed.training.distributed import rank_files
from gpufeed.training.distributed.launch_ranks import blame, spread
from gpufeed.training.distributed.process_group import check_world
from gpufeed.training.distributed.rank_commands import check_one_task, torchrun_environment
from gpufeed.training.distributed.rank_files import Call

SLURM = {"SLURM_NTASKS": "1", "SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NODELIST": "node1"}


@pytest.fixture
def images(tmp_path):
    """23 training images, and their cache."""
    return write_images(tmp_path / "tiny")


def check_like_one_device(whole: dict, alone: dict, images) -> None:
    """Ranks took the steps of one device, and together saw each image once an epoch."""
    for name, tensor in alone["weights"].items():
        torch.testing.assert_close(whole["weights"][name], tensor, rtol=1e-6, atol=1e-6)
    for ours, theirs in zip(whole["rows"], alone["rows"], strict=True):
        assert (ours["step"], ours["images"]) == (theirs["step"], theirs["images"])
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
    assert [epoch["images"] for epoch in whole["epochs"]] == [23, 23]
    every = sorted(images.ids("train").tolist())
    for epoch in (0, 1):
        halves = [rank[epoch * len(rank) // 2 :][: len(rank) // 2] for rank in whole["seen"]]
        assert sorted(i for batches in halves for batch in batches for i in batch) == every


def check_resumed(resumed: dict, whole: dict, near: float) -> None:
    """Ranks that lost their power after one step went on to the same weights."""
    for name, tensor in resumed["weights"].items():
        torch.testing.assert_close(tensor, whole["weights"][name], rtol=near, atol=near)
    assert len(resumed["rows"]) == len(whole["rows"])
    assert [len(rank) for rank in resumed["seen"]] == [len(rank) - 1 for rank in whole["seen"]]


@pytest.mark.slow
def test_ranks_train_like_one_device_with_the_batches_of_all(images):
    """Four: test_nodes.py."""
    # shares of 12 and 11: by 11, rank 1 has nothing left in the second step; by 5, less in the third
    sizes = [11, 5]
    call = Call("ddp_fixtures:train_and_resume", {"folder": images.root, "batch_sizes": sizes}, 2, "cpu", 1)
    for batch_size, (whole, resumed) in zip(sizes, spread(call), strict=True):
        alone = ddp_fixtures.train_together(images.root, 2 * batch_size, trainer="plain")
        check_like_one_device(whole, alone, images)
        check_resumed(resumed, whole, near=0)


def toy_cell(evaluate: str = "last", **axes) -> dict:
    """A cell on the images in batches of 4, with BatchNorm."""
    trainer = {**read_hyper("trainer", "lightning"), "evaluate": evaluate}
    hyper = {"model": {"channels": [4], "batch_norm": True}, "trainer": trainer, "augment": {}}
    on_cpu = {"trainer": "lightning", "device": "cpu", "precision": "fp32", "batch_size": 4}
    return Cell("toys", "tiny", "dataloader_sync", hyper=hyper, **on_cpu, **axes).asdict()


@pytest.mark.slow
def test_a_cell_with_two_devices_gives_one_record(images, tmp_path, monkeypatch, caplog):
    for name, value in SLURM.items():
        monkeypatch.setenv(name, value)
    caplog.set_level(logging.INFO, "gpufeed")
    cell = toy_cell(evaluate="epoch", epochs=2, devices=2)
    record, steps = measure(cell, 0, images.root / "manifest.parquet", None, "login1", threads=2)
    assert record.status == "done", record.sentence
    RECORD.check(asdict(record), tmp_path)
    assert record.resolved["devices"] == 2
    assert [rank["gpu"] for rank in record.resolved["ranks"]] == [None, None]
    assert [epoch["images"] for epoch in record.epochs] == [23, 23]
    assert [epoch["accuracy"]["images"] for epoch in record.epochs] == [6, 6]
    assert steps["images"].tolist() == [8, 8, 7] * 2
    assert record.throughput["images"] == 23  # of the epoch after the first
    assert record.telemetry["images"] == 23
    assert record.telemetry["host"]["rss_mib"] is None or record.telemetry["host"]["rss_mib"]["min"] > 10
    assert any(message.startswith("[rank0]:") for message in caplog.messages)


@pytest.mark.slow
def test_a_rank_that_fails_ends_all_and_its_reason_is_told():
    """One that is killed: test_nodes.py."""
    before = set(psutil.Process().children(recursive=True))
    with pytest.raises(GpufeedError) as error:
        spread(Call("ddp_fixtures:fail", {"how": "raises"}, 2, "cpu", 1))
    assert "a stone in the road" in error.value.found
    assert not set(psutil.Process().children(recursive=True)) - before


@pytest.mark.slow
def test_ctrl_c_ends_all_ranks(tmp_path):
    # a shell in the background may have told everybody to ignore SIGINT
    code = "import ddp_fixtures, signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    code += f"ddp_fixtures.spread_waiting({str(tmp_path)!r})"
    starter, family = ddp_fixtures.started(code, tmp_path)
    starter.send_signal(signal.SIGINT)
    assert starter.wait() == -signal.SIGINT
    assert not psutil.wait_procs(family, timeout=60)[1]


@pytest.mark.slow
@pytest.mark.parametrize("whom", ["starter", "rank"])
def test_ranks_that_are_asked_to_end_keep_their_state_and_go_on_to_the_same_weights(images, whom):
    """rank: one alone hears it, as where Slurm's signal comes to the others later; the state is the same."""
    from gpufeed.training.engines.lightning import ASK_EVERY

    code = f"import ddp_fixtures; ddp_fixtures.spread_training({str(images.root)!r}, waits_after=2)"
    starter, family = ddp_fixtures.started(code, images.root)
    waiting = int((images.root / "pid-0").read_text())
    (starter if whom == "starter" else psutil.Process(waiting)).send_signal(signal.SIGTERM)
    status = starter.wait(timeout=60)
    assert status == sigterm_handler.STATUS if whom == "starter" else status != 0
    assert not psutil.wait_procs(family, timeout=60)[1]
    state = load(images.root / "kept" / CHECKPOINT)
    # asked in the first steps, of 12, and answered so much later
    assert state[KEY]["step"] == 2 * ASK_EVERY
    if whom == "rank":
        return
    told = {"folder": images.root, "batch_size": 2}
    resumed, whole = spread(Call("ddp_fixtures:resume_and_train", told, 2, "cpu", 1))
    assert [len(rank) for rank in resumed["seen"]] == [12 - state[KEY]["step"]] * 2
    assert [row["loss"] for row in resumed["rows"]] == [row["loss"] for row in whole["rows"]]
    for name, tensor in resumed["weights"].items():
        assert torch.equal(tensor, whole["weights"][name])


# --- without any rank


def test_what_describes_the_tasks_of_a_slurm_job_does_not_reach_the_ranks(monkeypatch):
    monkeypatch.setenv("SLURM_NTASKS", "1")
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "0")
    found = torchrun_environment(threads=3)
    assert not [name for name in found if name.startswith("SLURM_")]
    assert (found["NCCL_NVLS_ENABLE"], found["OMP_NUM_THREADS"]) == ("0", "3")


def test_another_number_of_ranks_than_devices_is_an_error():
    check_world(2, 2)
    with pytest.raises(GpufeedError, match="1 rank of a training") as error:
        check_world(1, 2)
    assert error.value.expected.startswith("2, one for each")


def test_more_gpus_than_the_node_has_is_a_skip(monkeypatch):
    cpu, cuda = torch.device("cpu"), torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    require_devices(1, cpu, "auto")
    require_devices(3, cpu, "cpu")
    require_devices(2, cuda, "auto")
    with pytest.raises(Skip, match="trains on 4 GPUs, and this process sees 2"):
        require_devices(4, cuda, "cuda")
    with pytest.raises(Skip, match="trains on 2 GPUs, and this process sees 0"):
        require_devices(2, cpu, "auto")


@pytest.mark.parametrize(
    ("axes", "sentence"),
    [
        ({"devices": 2}, "trainer plain trains on one device, so devices must be 1"),
        ({"nodes": 2}, "trainer plain trains on one device, so devices and nodes must be 1"),
        ({"devices": 2, "trainer": "fastai"}, "trainer fastai trains on one device"),
        ({"devices": 2, "trainer": "lightning", "device": "mps"}, "several devices must be CUDA GPUs"),
        ({"nodes": 2, "trainer": "lightning", "device": "mps"}, "several devices must be CUDA GPUs"),
        ({"devices": 2, "trainer": "lightning"}, None),
        ({"nodes": 2, "trainer": "lightning"}, None),
        ({"devices": 2, "trainer": "lightning", "device": "cpu"}, None),
    ],
)
def test_several_devices_or_nodes_are_for_lightning(axes, sentence):
    found = impossible(Cell("e", "d", "resident", **axes))
    assert found is None if sentence is None else found.startswith(sentence)


def test_the_first_error_of_ours_is_to_blame_and_not_those_that_follow_from_it():
    ours, lost = GpufeedError("x", "y", "z"), RuntimeError("Connection closed by peer")
    failures = [rank_files.Failure(0, 1.0, lost), rank_files.Failure(1, 2.0, ours)]
    assert blame(failures, [], 1) is ours
    report = [
        line
        for rank, code in ((2, -15), (1, -9), (0, 1))
        for line in (f"  rank      : {rank} (local_rank: {rank})", f"  exitcode  : {code} (pid: 7)")
    ]
    mixed = [line for each in report for line in (each, "[rank3]: a line of another node")]
    for said in (report, mixed):
        assert "rank 1 of the training ended with SIGKILL" in blame(failures[:1], said, 1).found
    assert blame(failures[:1], [], 1) is lost
    assert "before any rank started" in blame([], [], 1).found


def test_errors_travel_as_they_are_or_as_a_sentence(tmp_path):
    class Local(Exception):
        pass

    rank_files.write_failure(tmp_path, 1, Skip("no such package"))
    rank_files.write_failure(tmp_path, 0, Local("cannot be pickled"))
    first, second = rank_files.read_failures(tmp_path, 2)
    assert (first.rank, type(first.error), str(first.error)) == (1, Skip, "no such package")
    assert (second.rank, str(second.error)) == (0, "Local: cannot be pickled")


@pytest.mark.parametrize("name", ["simple_cnn", "resnet18", "vit_lite"])
def test_a_model_comes_back_from_its_ranks(tmp_path, name):
    model = make(name, 3, (32, 32), read_hyper("model", name))
    model.to(memory_format=torch.channels_last)
    rank_files.write_result(tmp_path, model)
    found = rank_files.read_result(tmp_path)
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(found.eval()(images), model.eval()(images))


def test_epochs_are_told_once_each(tmp_path):
    epochs = rank_files.Epochs(tmp_path)
    assert epochs.new() == []
    rank_files.tell_epoch(tmp_path, {"epoch": 0})
    rank_files.tell_epoch(tmp_path, {"epoch": 1})
    with (tmp_path / "epochs.jsonl").open("a") as file:
        file.write('{"epoch"')  # being written
    assert epochs.new() == [{"epoch": 0}, {"epoch": 1}]
    assert epochs.new() == []
    with (tmp_path / "epochs.jsonl").open("a") as file:
        file.write(": 2}\n")
    assert epochs.new() == [{"epoch": 2}]


@pytest.mark.parametrize(
    ("environment", "refused"),
    [
        ({}, None),
        ({"SLURM_NTASKS": "4", "SLURM_PROCID": "0"}, None),  # a batch script
        ({"SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "1"}, None),  # srun -n1
        ({"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0"}, "2 tasks of Slurm"),
        ({"WORLD_SIZE": "1", "RANK": "0"}, None),  # torchrun --nproc-per-node=1
        ({"WORLD_SIZE": "2", "RANK": "1"}, "WORLD_SIZE=2"),
    ],
)
def test_one_of_several_tasks_of_slurm_or_ranks_of_torchrun_is_refused(environment, refused):
    if refused is None:
        check_one_task(environment)
        return
    with pytest.raises(GpufeedError, match=refused):
        check_one_task(environment)

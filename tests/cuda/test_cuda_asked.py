"""SIGTERM to ranks on GPUs: they agree on a step without waiting for the device, and keep their state."""

import signal
import socket

import ddp_fixtures
import image_fixtures
import psutil
import pytest
import torch
from torch import distributed

from gpufeed.system import sigterm_handler
from gpufeed.training.checkpoints import CHECKPOINT, KEY, load
from gpufeed.training.engines.lightning import ASK_EVERY, EndRequest


@pytest.fixture
def group():
    """A group of NCCL of this process alone."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    distributed.init_process_group(
        "nccl", init_method=f"tcp://localhost:{port}", rank=0, world_size=1, device_id=torch.device("cuda", 0)
    )
    yield
    distributed.destroy_process_group()


def test_the_answer_comes_a_few_steps_later_and_asking_waits_for_nothing(group, monkeypatch):
    asked = EndRequest(torch.device("cuda", 0), world_size=2)
    assert not any(asked.after(step) for step in range(1, 2 * ASK_EVERY))
    torch.cuda.synchronize()
    monkeypatch.setattr(sigterm_handler._state, "received", True)
    torch.cuda._sleep(10**9)  # about half a second of work before the question
    behind = torch.cuda.Event()
    behind.record()
    assert not asked.after(2 * ASK_EVERY)
    assert not behind.query()
    assert not any(asked.after(step) for step in range(2 * ASK_EVERY + 1, 3 * ASK_EVERY))
    assert asked.after(3 * ASK_EVERY)
    assert behind.query()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs 2 GPUs")
def test_two_gpus_keep_the_state_of_one_step_and_go_on(tmp_path):
    manifest = image_fixtures.write_dataset(tmp_path / "tiny")
    image_fixtures.write_cache(manifest)
    told = f"{str(manifest.root)!r}, waits_after=2, device='cuda'"
    starter, family = ddp_fixtures.started(
        f"import ddp_fixtures; ddp_fixtures.spread_training({told})", manifest.root
    )
    starter.send_signal(signal.SIGTERM)
    assert starter.wait(timeout=60) == sigterm_handler.STATUS
    assert not psutil.wait_procs(family, timeout=60)[1]
    step = load(manifest.root / "kept" / CHECKPOINT)[KEY]["step"]
    assert step == 2 * ASK_EVERY
    resumed = ddp_fixtures.spread_training(str(manifest.root), device="cuda")
    assert [len(rank) for rank in resumed["seen"]] == [12 - step] * 2

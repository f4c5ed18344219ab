"""SIGTERM to a training: it keeps its state after the step that it is at, and goes on from there."""

import os
import random
import signal
import subprocess
import sys
from contextlib import suppress

import measure_fixtures as toys
import pytest
import resume_fixtures
import torch

from gpufeed.system import sigterm_handler
from gpufeed.training.checkpoints import heeding, resumable

STEPS = 18  # of resume_fixtures.train


@pytest.fixture(autouse=True)
def deaf_afterwards():
    """A process that was asked to end stays so, and this one goes on."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)
    sigterm_handler._state.handled = sigterm_handler._state.received = False


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trainer", "loader", "seed"),
    [
        ("plain", "dataloader_workers", 1),
        ("lightning", "resident", 3),
    ],
)
def test_it_goes_on_at_the_step_to_the_same_weights(tmp_path, trainer, loader, seed, one_thread):
    resume_fixtures.write_images(tmp_path)
    expected = resume_fixtures.train(tmp_path, trainer, loader, None)
    command = [sys.executable, resume_fixtures.__file__, str(tmp_path), trainer, loader]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ends = sorted(random.Random(seed).sample(range(1, STEPS), 2))
    done = 0
    for end in ends:
        one = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        for _ in range(end - done):
            assert one.stdout.readline() == "step\n"
        os.killpg(one.pid, signal.SIGTERM)  # its workers, too, as Slurm does
        with suppress(ProcessLookupError):
            os.killpg(one.pid, signal.SIGTERM)  # and once more
        rest, _ = one.communicate(timeout=60)
        assert one.returncode == sigterm_handler.STATUS
        done = end + rest.count("step\n")
        assert not (tmp_path / f"{trainer}.pt").exists()
        if done == STEPS:
            pytest.fail("it went on to its end")
    last = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    assert last.stdout.count("step\n") == STEPS - done  # no step is made twice
    found = torch.load(tmp_path / f"{trainer}.pt", weights_only=True)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_who_keeps_no_state_is_ended_at_once(tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    with heeding(toys.toy_job(tmp_path)):
        assert signal.getsignal(signal.SIGTERM) is before


def test_what_was_heeded_ends_with_the_block():
    before = signal.getsignal(signal.SIGTERM)
    with sigterm_handler.handling():
        assert not sigterm_handler.received()
        terminate()
        terminate()
        assert sigterm_handler.received()
    assert not sigterm_handler.received()
    assert signal.getsignal(signal.SIGTERM) is before


def test_an_error_while_it_has_to_end_is_none_of_the_work():
    with pytest.raises(OSError, match="the disk"), sigterm_handler.handling():
        raise OSError("the disk went away")

    def work() -> None:
        terminate()
        raise OSError("the helper went away")

    with pytest.raises(sigterm_handler.Ended) as found, sigterm_handler.handling():
        work()
    assert found.value.code == 143
    terminate()  # heard again, and no end before its time
    assert sigterm_handler.received()


SHOWN = "JobId=7 JobName=x UserId=me(1)\n JobState=RUNNING Requeue=1 Comment=rule_train_model_wildcards_a "


@pytest.mark.parametrize(
    ("job", "shown", "asks"),
    [
        ("7", SHOWN, True),
        ("", SHOWN, False),  # no job of Slurm's
        ("7", SHOWN.replace("RUNNING", "CANCELLED"), False),
        ("7", SHOWN.replace("Requeue=1", "Requeue=0"), False),
        ("7", SHOWN.replace("Comment=rule_train_model_wildcards_a", "Comment=(null)"), False),  # of its user
        ("7", None, False),  # scontrol fails
    ],
)
def test_a_job_asks_to_be_started_again_where_it_may(tmp_path, monkeypatch, job, shown, asks):
    (tmp_path / "shown").write_text(shown or "")
    program = f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n[ $1 = requeue ] || cat {tmp_path}/shown\n'
    program += "" if shown else "exit 1\n"
    (tmp_path / "scontrol").write_text(program)
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", job)
    with pytest.raises(sigterm_handler.Ended), resumable(tmp_path):
        raise sigterm_handler.Ended
    asked = (tmp_path / "asked").read_text().splitlines() if (tmp_path / "asked").exists() else []
    assert ("requeue 7" in asked) == asks
    assert asked[:1] == (["-o show job 7"] if job else [])
    with resumable(tmp_path):  # a training that came to its end
        pass
    with pytest.raises(OSError, match="x"), resumable(tmp_path):
        raise OSError("x")
    assert asked == ((tmp_path / "asked").read_text().splitlines() if job else [])

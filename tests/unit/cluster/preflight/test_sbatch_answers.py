"""What Slurm's own judgement of the lines becomes, from an `sbatch` that is a script.

tests/workflow/test_real_slurm.py asks a real one.
"""

import os
from dataclasses import replace

import pytest
from preflight_fixtures import cpu_job, gpu_job

from gpufeed.cluster.preflight import sbatch_answers
from gpufeed.cluster.preflight.sbatch_answers import refused


@pytest.fixture
def sbatch(tmp_path, monkeypatch):
    """Puts an `sbatch` on the path that runs this shell code; returns the file with what it was asked."""

    def sbatch(code: str):
        script, asked = tmp_path / "bin/sbatch", tmp_path / "asked"
        script.parent.mkdir(exist_ok=True)
        script.write_text(f'#!/bin/sh\necho "$@" >> {asked}\n{code}\n')
        script.chmod(0o755)
        monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")
        return asked

    return sbatch


def test_each_request_is_asked_about_once_and_nothing_is_submitted(found, sbatch):
    asked = sbatch('echo "sbatch: Job 7 to start at 2026-11-28T08:00:00" >&2')
    retried = replace(gpu_job("train_model"), last_line=gpu_job(minutes=120).line)
    assert found(refused, gpu_job(), gpu_job("gate"), cpu_job(), retried, replace(cpu_job(), line="")) == ""
    calls = asked.read_text().splitlines()
    assert len(calls) == 3  # with a GPU, without one, and the retry
    assert all(call.endswith(" --test-only --wrap=true") for call in calls)


def test_what_slurm_refuses_is_told_in_its_words_with_the_rules(found, sbatch):
    sbatch('case "$*" in *gpus=*) echo "allocation failure: Invalid account" >&2; exit 1;; esac')
    said = found(refused, gpu_job(), gpu_job("gate", minutes=30), cpu_job())
    assert said.startswith("found: Slurm refuses gate, measure_cell: allocation failure: Invalid account\n")
    assert "sacctmgr list associations" in said
    assert said.count("expected:") == 1


def test_only_the_retry_is_refused(found, sbatch):
    sbatch('case "$*" in *"-t 120"*) echo "Requested time limit is invalid" >&2; exit 1;; esac')
    assert found(refused, gpu_job()) == ""
    said = found(refused, replace(gpu_job(), last_line=gpu_job(minutes=120).line))
    assert "found: Slurm refuses measure_cell: Requested time limit is invalid\n" in said


def test_nodes_that_are_down_for_now_are_a_note(found, sbatch):
    sbatch('echo "allocation failure: Required node not available (down, drained or reserved)" >&2; exit 1')
    assert found(refused, gpu_job()).startswith("note: Slurm refuses measure_cell: ")
    sbatch('echo "allocation failure: Requested node configuration is not available" >&2; exit 1')
    assert found(refused, gpu_job()).startswith("found: Slurm refuses measure_cell: ")


@pytest.mark.parametrize(
    "said",
    [
        "allocation failure: Unable to contact slurm controller (connect failure)",
        "fatal: Could not establish a configuration source",
        "allocation failure: Socket timed out on send/recv operation",
        "allocation failure: Protocol authentication error",
        "",
    ],
)
def test_where_slurm_is_silent_a_note_says_what_is_unchecked(found, sbatch, said):
    asked = sbatch(f'echo "sbatch: {said}" | sed "s/sbatch: $//" >&2; exit 1')
    told = found(refused, gpu_job(), cpu_job())
    unchecked = "account, qos, partition, GPUs, constraint and time are not checked by Slurm: "
    assert told.startswith(f"note: {unchecked}{said or 'sbatch ended with 1'}\n")
    assert "login-ice.pace.gatech.edu" in told
    assert "found:" not in told
    assert len(asked.read_text().splitlines()) == 1  # which may have taken a minute


def test_an_sbatch_that_hangs(found, sbatch, monkeypatch):
    monkeypatch.setattr(sbatch_answers, "SECONDS", 0.1)
    sbatch("exec sleep 60")
    assert "not checked by Slurm: no answer within 0.1 s\n" in found(refused, gpu_job())


def test_no_sbatch(found, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "not checked by Slurm: no sbatch here, No such file" in found(refused, gpu_job())
    assert found(refused) == ""  # nothing is asked for

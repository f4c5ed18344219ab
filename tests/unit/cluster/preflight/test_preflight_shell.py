"""Variables of the shell that sbatch takes as options: those that change a line, and those that do not."""

from dataclasses import replace

import pytest
from preflight_fixtures import NODE, cpu_job, gpu_job

from gpufeed.cluster.preflight import login_node as preflight_node
from gpufeed.cluster.preflight.asked_extra import ADDED, shell
from gpufeed.cluster.preflight.login_node import look


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("SBATCH_GPUS_PER_NODE", "--gpus-per-node"),
        ("SBATCH_CONSTRAINT", "--constraint"),
        ("SBATCH_GRES", "--gres"),
        ("SBATCH_GPUS", "--gpus"),  # of jobs without a GPU
        ("SBATCH_MEM_PER_NODE", "--mem"),
        ("SBATCH_EXCLUSIVE", "--exclusive"),
    ],
)
def test_a_variable_that_changes_lines(found, name, option):
    said = found(shell, gpu_job(), cpu_job(), node=replace(NODE, variables=(name,)))
    assert f"found: {name} in the shell: sbatch adds {option} to every line without it" in said
    assert f"unset {name}; put what you mean by it into slurm/pace-ice/config.yaml" in said


@pytest.mark.parametrize(
    "name",
    [
        "SBATCH_ACCOUNT",  # the executor's own way
        "SBATCH_NO_REQUEUE",  # each line has --requeue
        *("SBATCH_PARTITION", "SBATCH_QOS", "SBATCH_TIMELIMIT", "SBATCH_NODES"),  # and these
        *("SBATCH_DEBUG", "SBATCH_WCKEY"),  # change no job
    ],
)
def test_a_variable_that_changes_none(found, name):
    assert found(shell, gpu_job(), cpu_job(), node=replace(NODE, variables=(name,))) == ""


def test_a_line_without_its_option(found):
    bare = replace(cpu_job(), line="sbatch --gres=gpu:0")
    node = replace(NODE, variables=tuple(ADDED))
    assert "SBATCH_QOS, " in found(shell, bare, node=node)
    assert "SBATCH_GRES," not in found(shell, bare, node=node)
    assert found(shell, node=node) == ""


def test_the_variables_of_this_shell(monkeypatch):
    monkeypatch.setattr(preflight_node, "ask_torch", lambda: ("", (), ""))
    monkeypatch.setenv("SBATCH_EXCLUSIVE", "")  # empty is set, to sbatch
    assert "SBATCH_EXCLUSIVE" in look().variables
    for name in ("APPTAINER_NV", "SINGULARITY_NV"):
        monkeypatch.delenv(name, raising=False)
    assert look().nv == {}
    monkeypatch.setenv("SINGULARITY_NV", "1")
    assert look().nv == {"SINGULARITY_NV": "1"}

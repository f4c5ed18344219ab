"""The node, the environment, modules, the container: what the jobs would run with."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from preflight_fixtures import CUDA13, NODE, cpu_job, gpu_job

from gpufeed.cluster.preflight import software_checks
from gpufeed.cluster.preflight.login_node import min_job_age


def test_inside_of_an_allocation_and_on_a_laptop(found):
    said = found(software_checks.slurm_commands, node=replace(NODE, inside_job="42"))
    assert "inside of Slurm's job 42" in said
    said = found(software_checks.slurm_commands, node=replace(NODE, missing_commands=("sbatch",)))
    assert "note: no sbatch: accounts and partitions are unchecked" in said


def test_a_profile_with_a_key_twice(found, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert found(software_checks.keys_twice) == ""
    profile = tmp_path / "slurm/pace-ice/config.yaml"
    profile.parent.mkdir(parents=True)
    profile.write_text("set-resources:\n  gate: {runtime: 60}\nset-resources:\n  tabulate: {runtime: 30}\n")
    said = found(software_checks.keys_twice)
    assert "'set-resources' twice in slurm/pace-ice/config.yaml, in lines 1 and 3" in said


def test_squeue_that_forgets_jobs_before_snakemake_asks(found):
    said = found(software_checks.slurm_commands, node=replace(NODE, min_job_age=150))
    assert "squeue here forgets a job 150 s after its end" in said
    assert "slurm-status-command: sacct" in said
    for age in (None, 30, 300):  # unknown; the executor takes sacct by itself; long enough
        assert found(software_checks.slurm_commands, node=replace(NODE, min_job_age=age)) == ""
    assert min_job_age(frozenset({"MinJobAge               = 300 sec", "MaxJobCount = 5"})) == 300


def test_an_old_module(found):
    node = replace(NODE, modules=("gcc/12.3.0", "python/3.9.12-rkxvr6", "cuda/11.8", "anaconda3/2023.03"))
    said = found(software_checks.modules, node=node)
    assert "module python/3.9.12-rkxvr6\n  expected: python 3.11 or newer" in said
    assert "module cuda/11.8\n  expected: cuda 12 or newer" in said
    assert said.count("found:") == 2


def test_v100_with_cuda_13(found):
    node = replace(NODE, cuda="13.0", architectures=CUDA13)
    said = found(software_checks.stack, gpu_job(model="V100"), node=node)
    assert "GPU V100 (compute capability 7.0) with CUDA 13.0: torch has code for sm_75" in said
    assert "make setup CUDA=12, or another sweep_gpu_model: RTX_6000, A40, A100, H100, H200, L40S" in said
    assert found(software_checks.stack, gpu_job(model="V100")) == ""  # CUDA 12.8 has sm_70


@pytest.mark.parametrize("deployment", ["apptainer", "conda"])
def test_v100_with_an_image_or_with_conda_has_the_cuda_12_stack_whatever_this_python_has(found, deployment):
    check = partial(software_checks.stack, deployment=deployment)
    assert found(check, gpu_job(model="V100"), node=replace(NODE, cuda="13.0", architectures=CUDA13)) == ""


def test_torch_without_cuda_or_no_torch(found):
    assert "torch without CUDA" in found(
        software_checks.stack, gpu_job(), node=replace(NODE, cuda="", architectures=())
    )
    node = replace(NODE, cuda=None, no_torch="ModuleNotFoundError: No module named 'torch'")
    assert "torch does not start: ModuleNotFoundError" in found(software_checks.environment, node=node)


def test_an_environment_that_compute_nodes_do_not_see(found):
    node = replace(NODE, python=Path("/tmp/env/bin/python"))
    assert "Python in /tmp/env/bin, which compute nodes do not see" in found(
        software_checks.environment, node=node
    )


def test_a_checkout_that_compute_nodes_do_not_see(found, tmp_path, monkeypatch):
    (tmp_path / "home").symlink_to("/dev/shm")
    monkeypatch.setattr(software_checks, "LOCAL", (Path("/dev/shm"),))  # tmp_path itself may lie in /tmp
    for checkout in (Path("/dev/shm/gpufeed"), tmp_path / "home/gpufeed"):
        said = found(software_checks.environment, node=replace(NODE, checkout=checkout))
        assert f"found: the checkout in {checkout}, which compute nodes do not see" in said


def test_logs_that_stay_on_the_nodes(found):
    said = found(software_checks.environment, logs="/tmp/logs")
    assert "found: slurm-logdir: /tmp/logs, which the login node does not share" in said
    assert "leave it out in slurm/pace-ice/config.yaml or on the command line" in said
    for logs in ("", "logs", "/home/g/logs"):
        assert found(software_checks.environment, logs=logs) == ""


def test_no_container_and_no_conda(found):
    said = found(partial(software_checks.environment, deployment="apptainer"))
    assert "no command apptainer" in said
    assert "no command conda" in found(partial(software_checks.environment, deployment="conda"))


IN_CONTAINER = partial(software_checks.environment, deployment="apptainer")


def test_a_container_does_not_see_scratch_by_itself(found, site):
    said = found(IN_CONTAINER)
    assert f"--apptainer-args ' --bind {site.scratch.folder}', unless" in said
    inside = {key: str(software_checks.ROOT / key) for key in ("data", "results")}
    assert "--bind" not in found(IN_CONTAINER, config=inside)
    assert "--bind" not in found(software_checks.environment)


@pytest.mark.parametrize(("bind", "shows"), [("", True), (":FOLDER:rw", True), (":/scratch", False)])
def test_a_container_that_is_told_to_show_scratch(found, site, bind, shows):
    bound = f"{site.scratch.folder}{bind.replace('FOLDER', str(site.scratch.folder))}"
    said = found(IN_CONTAINER, gpu_job(), apptainer_args=f" --nv --bind /opt,{bound}")
    assert ("outside of the checkout" not in said) == shows
    assert "--nv for" not in said


def test_a_container_without_gpus(found, site):
    said = found(IN_CONTAINER, gpu_job(), cpu_job())
    assert "found: no --nv for the container: no GPU in it for measure_cell\n" in said
    assert said.count(f"--apptainer-args ' --nv --bind {site.scratch.folder}'") == 2  # one for both
    said = found(IN_CONTAINER, gpu_job(), apptainer_args=f"-B {site.scratch.folder}")
    assert f"what to do: --apptainer-args ' -B {site.scratch.folder} --nv'" in said
    assert "--nv" not in found(IN_CONTAINER, cpu_job())
    assert "no --nv for" not in found(IN_CONTAINER, gpu_job(), apptainer_args="--nv=true")
    assert "no --nv for" in found(IN_CONTAINER, gpu_job(), apptainer_args="--nv --nv=false")


def nv(apptainer="/bin/apptainer", **variables):
    """A node with these variables of the shell, and both commands or singularity alone."""
    return replace(NODE, nv=variables, commands={"apptainer": apptainer, "singularity": "/bin/singularity"})


@pytest.mark.parametrize("value", ["1", "true", " T "])
@pytest.mark.parametrize("name", ["APPTAINER_NV", "SINGULARITY_NV"])
def test_a_container_with_gpus_by_a_variable(found, name, value):
    assert "--nv for" not in found(IN_CONTAINER, gpu_job(), node=nv(**{name: value}))


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"APPTAINER_NV": "0"}, ", and APPTAINER_NV=0"),
        ({"APPTAINER_NV": ""}, ", and APPTAINER_NV="),
        ({"SINGULARITY_NV": "false"}, ", and SINGULARITY_NV=false"),
        ({"APPTAINER_NV": "0", "SINGULARITY_NV": "1"}, ", and APPTAINER_NV=0"),  # apptainer's own goes first
    ],
)
def test_a_container_without_gpus_by_a_variable(found, variables, said):
    node = nv(**variables)
    assert f"found: no --nv for the container{said}: no GPU in it for measure_cell\n" in found(
        IN_CONTAINER, gpu_job(), node=node
    )
    assert "--nv for" not in found(IN_CONTAINER, gpu_job(), node=node, apptainer_args="--nv")  # goes first


def test_singularity_reads_its_own_variable_alone(found):
    node = nv(apptainer=None, APPTAINER_NV="1")
    assert "no --nv for the container: no GPU" in found(IN_CONTAINER, gpu_job(), node=node)
    node = nv(apptainer=None, APPTAINER_NV="0", SINGULARITY_NV="1")
    assert "--nv for" not in found(IN_CONTAINER, gpu_job(), node=node)


def test_a_variable_at_which_apptainer_ends(found):
    """Whatever the job needs: the value is read before the container starts."""
    node = nv(APPTAINER_NV="yes")
    said = found(IN_CONTAINER, cpu_job(), gpu_job(), node=node)
    assert (
        "found: APPTAINER_NV=yes in the shell, at which apptainer ends with an error in every job\n" in said
    )
    assert "what to do: export APPTAINER_NV=1, for containers with GPUs, or unset APPTAINER_NV" in said
    assert "--nv for" not in said
    assert "APPTAINER_NV" not in found(IN_CONTAINER, gpu_job(), node=node, apptainer_args="--nv")


@given(st.integers(5, 12), st.integers(0, 9), st.integers(5, 12), st.integers(0, 9))
def test_machine_code_runs_on_its_major_version_and_ptx_on_all_later_gpus(major, minor, theirs, their_minor):
    same = theirs == major and their_minor <= minor
    assert software_checks.served(f"{major}.{minor}", (f"sm_{theirs}{their_minor}",)) == same
    later = (theirs, their_minor) <= (major, minor)
    assert software_checks.served(f"{major}.{minor}", (f"compute_{theirs}{their_minor}",)) == later
    assert software_checks.served(f"{major}.{minor}", (f"sm_{theirs}{their_minor}a",)) == (
        (theirs, their_minor) == (major, minor)
    )

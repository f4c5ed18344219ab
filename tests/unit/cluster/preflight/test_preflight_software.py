"""The node, the environment, the container: what the jobs would run with."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from preflight_fixtures import CUDA13, NODE, cpu_job, gpu_job

from gpufeed.cluster.preflight import login_node, software_checks


def test_a_profile_with_a_key_twice(found, tmp_path):
    profile = tmp_path / "config.yaml"
    profile.write_text("set-resources:\n  gate: {runtime: 60}\n")
    assert found(software_checks.keys_twice, profiles=[str(profile)]) == ""
    profile.write_text("set-resources:\n  gate: {runtime: 60}\nset-resources:\n  tabulate: {runtime: 30}\n")
    said = found(software_checks.keys_twice, profiles=[str(profile)])
    assert f"'set-resources' twice in {profile}, in lines 1 and 3" in said


def test_squeue_that_forgets_jobs_before_snakemake_asks(found):
    said = found(software_checks.login_node, node=replace(NODE, min_job_age=150))
    assert "squeue here forgets a job 150 s after its end" in said
    assert "slurm-status-command: sacct" in said
    for age in (None, 30, 300):  # unknown; the executor takes sacct by itself; long enough
        assert found(software_checks.login_node, node=replace(NODE, min_job_age=age)) == ""
    assert login_node.min_job_age("MaxJobCount = 5\nMinJobAge               = 300 sec\n") == 300
    assert login_node.min_job_age("") is None


def test_v100_with_cuda_13(found):
    node = replace(NODE, cuda="13.0", architectures=CUDA13)
    said = found(software_checks.stack, gpu_job(model="V100"), node=node)
    assert "GPU V100 (compute capability 7.0) with CUDA 13.0: torch has code only for sm_75" in said
    assert "make setup CUDA=12, or another sweep_gpu_model: RTX_6000, A40, A100, H100, H200, L40S" in said
    assert found(software_checks.stack, gpu_job(model="V100")) == ""  # CUDA 12.8 has sm_70


@pytest.mark.parametrize("deployment", ["apptainer", "conda"])
def test_v100_with_an_image_or_with_conda_has_the_cuda_12_stack_whatever_this_python_has(found, deployment):
    check = partial(software_checks.stack, deployment=deployment)
    assert found(check, gpu_job(model="V100"), node=replace(NODE, cuda="13.0", architectures=CUDA13)) == ""


def test_torch_without_cuda_or_no_torch(found):
    said = found(software_checks.stack, gpu_job(), node=replace(NODE, cuda="", architectures=()))
    assert "GPU H200 (compute capability 9.0) with CUDA none: torch has code only for no GPU" in said
    node = replace(NODE, cuda=None, no_torch="ModuleNotFoundError: No module named 'torch'")
    assert found(software_checks.stack, gpu_job(), node=node) == ""
    assert "torch does not start: ModuleNotFoundError" in found(software_checks.environment, node=node)


def test_an_environment_that_compute_nodes_do_not_see(found):
    node = replace(NODE, python=Path("/tmp/env/bin/python"))
    said = found(software_checks.environment, node=node)
    assert "Python in /tmp/env/bin, which compute nodes do not see" in said
    assert "Python in" not in found(IN_CONTAINER, node=node)


def test_a_checkout_that_compute_nodes_do_not_see(found, tmp_path, monkeypatch):
    (tmp_path / "home").symlink_to("/dev/shm")
    monkeypatch.setattr(software_checks, "LOCAL", (Path("/dev/shm"),))  # tmp_path itself may lie in /tmp
    for checkout in (Path("/dev/shm/gpufeed"), tmp_path / "home/gpufeed"):
        said = found(software_checks.environment, node=replace(NODE, checkout=checkout))
        assert f"found: the checkout in {checkout}, which compute nodes do not see" in said


def test_logs_that_stay_on_the_nodes(found):
    said = found(software_checks.environment, logs="/tmp/logs")
    assert "found: slurm-logdir in /tmp/logs, which compute nodes do not see" in said
    for logs in ("", "logs", "/home/g/logs"):
        assert found(software_checks.environment, logs=logs) == ""


def test_no_container_and_no_conda(found):
    assert "no command apptainer" in found(IN_CONTAINER)
    assert "no command conda" in found(partial(software_checks.environment, deployment="conda"))


IN_CONTAINER = partial(software_checks.environment, deployment="apptainer")


def test_a_container_does_not_see_scratch_by_itself(found, site):
    said = found(IN_CONTAINER)
    assert f"--apptainer-args ' --bind {site.scratch.folder}', unless" in said
    inside = {key: str(software_checks.ROOT / key) for key in ("data", "results")}
    assert "--bind" not in found(IN_CONTAINER, config=inside)
    assert "--bind" not in found(software_checks.environment)


@pytest.mark.parametrize("bind", ["", ":FOLDER:rw"])
def test_a_container_that_is_told_to_show_scratch(found, site, bind):
    bound = f"{site.scratch.folder}{bind.replace('FOLDER', str(site.scratch.folder))}"
    said = found(IN_CONTAINER, gpu_job(), apptainer_args=f" --nv --bind=/opt,{bound}")
    assert "outside of the checkout" not in said
    assert "outside of the checkout" in found(IN_CONTAINER, apptainer_args=" --nv --bind /opt")


def test_a_container_without_gpus(found, site):
    said = found(IN_CONTAINER, gpu_job(), cpu_job())
    assert "found: no --nv for the container: no GPU in it for measure_cell\n" in said
    assert said.count(f"--apptainer-args ' --nv --bind {site.scratch.folder}'") == 2  # one for both
    said = found(IN_CONTAINER, gpu_job(), apptainer_args=f"-B {site.scratch.folder}")
    assert f"what to do: --apptainer-args ' -B {site.scratch.folder} --nv', or export APPTAINER_NV=1" in said
    assert "--nv" not in found(IN_CONTAINER, cpu_job())
    assert "no --nv for" not in found(IN_CONTAINER, gpu_job(), node=replace(NODE, nv=True))


@pytest.mark.parametrize(
    ("value", "gives"), [("1", True), ("true", True), (" T ", True), ("0", False), ("", False)]
)
@pytest.mark.parametrize("name", login_node.NV)
def test_variables_that_give_containers_the_gpus(monkeypatch, name, value, gives):
    monkeypatch.setattr(login_node, "ask_torch", lambda: ("", (), ""))
    for variable in login_node.NV:
        monkeypatch.delenv(variable, raising=False)
    assert not login_node.look().nv
    monkeypatch.setenv(name, value)
    assert login_node.look().nv == gives


@given(st.integers(5, 12), st.integers(0, 9), st.integers(5, 12), st.integers(0, 9))
def test_machine_code_runs_on_its_major_version_and_ptx_on_all_later_gpus(major, minor, theirs, their_minor):
    same = theirs == major and their_minor <= minor
    assert software_checks.served(f"{major}.{minor}", (f"sm_{theirs}{their_minor}",)) == same
    later = (theirs, their_minor) <= (major, minor)
    assert software_checks.served(f"{major}.{minor}", (f"compute_{theirs}{their_minor}",)) == later
    assert software_checks.served(f"{major}.{minor}", (f"sm_{theirs}{their_minor}a",)) == (
        (theirs, their_minor) == (major, minor)
    )

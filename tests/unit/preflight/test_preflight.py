"""Planted mistakes, each found with its sentence, and what is right passing without one."""

import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from preflight_fixtures import CUDA13, NODE, by_gres, cpu_job, gpu_job, no_gpu

from gpufeed.errors import GpufeedError
from gpufeed.preflight import asked, software, storage
from gpufeed.preflight import node as preflight_node
from gpufeed.preflight.__main__ import findings, main, snakemake_arguments
from gpufeed.preflight.naming import near
from gpufeed.preflight.node import COMMANDS, look, min_job_age, qos_by_account
from gpufeed.preflight.plan import Ask, Plan, read_plan, reason
from gpufeed.preflight.site import PROFILES, make_site, read_site, sites


def test_a_right_plan_is_found_right(found):
    right = (gpu_job(), gpu_job("train_model", gpus=2, minutes=480), cpu_job())
    for check in (
        *asked.CHECKS,
        software.slurm_commands,
        software.environment,
        software.stack,
        software.modules,
    ):
        assert found(check, *right) == ""
    assert found(storage.folders, *right) == ""


WRONG = {  # one sentence of each check, in its order
    "executor": "an executor other than Slurm's",
    "profiles": "set-resource in mine.yaml",
    "set_resources": "lost by a later set-resources: gate",
    "gpus_asked_once": "GPUs asked for twice, by gpu and by gres: measure_cell",
    "gpus_asked_once: gpu: 0": "by gpu and by gres: measure_cell, predict",
    "gpus_in_extra": "GPUs asked for by slurm_extra alone: export_model",
    "submittable": "Slurm's executor refuses plot: no",
    "unknown": "no mem_mb, where Snakemake would go by the size of input files: tabulate",
    "account": "no account",
    "partition": "no partition for",
    "quality_of_service": "qos embers",
    "time": "no time limit: gate",
    "time: gres": "predict: 8 GPUs for 15 h are 120 GPU-hours",
    "one_model": "several models of GPU in one sweep",
    "one_model: gres": "A100: quantise_model",
    "constraint": "constraint A100-80GB with GPU V100",
    "constraint: forms": "GPU A100 in any of its forms: quantise_model",
    "rules_without_gpu": "rules that need no GPU ask for one: tabulate",
    "rules_with_gpu": "rules that need a GPU ask for none: evaluate_model",
    "gpus_of_rules": "GPUs: the rule wants 1, the line asks for 8: measure_decoder",
    "cores_of_rules": "cores: the rule wants 8, the line asks for 1: measure_decoder",
    "memory": "mem_mb of 32: measure_decoder",
    "one_node": "tasks for jobs with GPUs: train_model",
    "shell": "SBATCH_GRES in the shell",
    "slurm_commands": "inside of Slurm's job 42",
    "default_profile": "set-resources in profiles/default/config.yaml",
    "environment": "Python in /tmp/env/bin, which compute nodes do not see",
    "environment: checkout": "the checkout in /tmp/gpufeed, which compute nodes do not see",
    "environment: container": "no --nv for the container",
    "stack": "GPU V100 (compute capability 7.0) with CUDA 13.0",
    "modules": "module cuda/11.8",
    "folders": "data in /dev/shm/none",
    "space": "GiB free in",
    "file_count": "files to come",
    "data": "a.tar of made: neither here nor reachable",
}


def test_every_check_is_called(site, tmp_path, monkeypatch):
    """Where all is wrong each speaks by a sentence that no other has."""
    (tmp_path / "containers").symlink_to(software.ROOT / "containers")
    monkeypatch.setattr(software, "ROOT", tmp_path)
    (tmp_path / "profiles/default").mkdir(parents=True)
    (tmp_path / "profiles/default/config.yaml").write_text("set-resources: {gate: {mem_mb: 1}}\n")
    bare = "sbatch --qos=embers"
    jobs = [
        gpu_job(gres="gpu:H200:1"),
        replace(
            gpu_job("train_model", model="V100", constraint="A100-80GB"), line=f"{bare} --ntasks-per-gpu=1"
        ),
        gpu_job("gate", minutes=0),
        replace(cpu_job("plot"), line="", error="no"),
        cpu_job(rest="--gpus=1"),
        by_gres("predict", "gpu:H200:8", "--gpus=H200:0", minutes=900, gpu_model="H200"),
        by_gres("quantise_model", "gpu:A100:4"),
        no_gpu("evaluate_model"),
        replace(cpu_job("export_model", slurm_extra="-G 1"), wants_gpu=True),
        replace(cpu_job(), line="", unknown=("mem_mb",)),
        replace(
            gpu_job("measure_decoder", gpus=8, cpus_per_task=1, mem_mb=32), own={"gpu": 1, "cpus_per_task": 8}
        ),
    ]
    source = {"layout": "synthetic", "options": {"count": 2000}}
    source["files"] = [{"name": "a.tar", "urls": ["/none"], "size": 2**60}]
    config = {"data": "/dev/shm/none", "results": "/dev/shm/none", "sources": {"made": source}}
    lost = (("slurm/config.yaml", ["gate"]),)
    unheard = (("mine.yaml", "set-resource", ""),)
    plan = Plan("local", jobs, [], config, ["made"], 0, unheard, lost)
    node = replace(NODE, cuda="13.0", architectures=CUDA13, inside_job="42", modules=("cuda/11.8",))
    node = replace(node, python=Path("/tmp/env/bin/python"), variables=("SBATCH_GRES",))
    node = replace(node, checkout=Path("/tmp/gpufeed"))
    said = [str(one) for way in ("none", "apptainer") for one in findings(plan, site, node, way)]
    for check, sentence in WRONG.items():
        assert any(sentence in one for one in said), check
    assert not any("the profile" in one for one in said)  # but for its path


@pytest.fixture
def default_profile(tmp_path, monkeypatch):
    """profiles/default/config.yaml in a folder of the test: a function that writes it."""
    monkeypatch.setattr(software, "ROOT", tmp_path)
    path = tmp_path / "profiles/default/config.yaml"
    path.parent.mkdir(parents=True)
    return path.write_text


def test_what_follows_from_the_default_profile_is_left_out(site, default_profile):
    """By mem_mb there the defaults of the cluster's profile are lost, and nothing is to be written there."""
    default_profile("default-resources: {mem_mb: 4}\n")
    lost = replace(cpu_job(minutes=0), line="sbatch --nodes=1")
    wide = replace(cpu_job("plot"), line=cpu_job("plot").line + " --gpus=1")
    folders = {key: str(site.scratch.folder / key) for key in ("data", "results")}
    places = {"": "mine.yaml", "default-resources": "profiles/default/config.yaml", "gpu": "mine.yaml"}
    plan = Plan("slurm", [lost, wide], [], folders, [], 0, written=places)
    said = [finding.found for finding in findings(plan, site, NODE)]
    assert said[0] == "default-resources in profiles/default/config.yaml"
    assert "rules that need no GPU ask for one: plot" in said
    for name in ("no account", "no qos", "no time limit: tabulate"):
        assert name not in said
    default_profile("cores: all\n")
    assert "no account" in [finding.found for finding in findings(plan, site, NODE)]


def test_remedies_name_the_file_in_which_a_key_stands():
    written = {"": "mine.yaml", "default-resources": "b.yaml", "qos": "b.yaml", "set-resources": "a.yaml"}
    plan = Plan("slurm", [], [], {}, [], 0, written=written)
    assert plan.file("qos", "default-resources") == "b.yaml"
    assert plan.file("gres", "set-resources") == "a.yaml"
    assert plan.file("slurm-requeue") == "mine.yaml"
    assert plan.defaults == "default-resources of b.yaml"


@pytest.mark.parametrize("given", ["", "-A '$SBATCH_ACCOUNT'"])
def test_no_account(found, given):
    job = cpu_job()
    said = found(asked.account, replace(job, line=job.line.replace("-A coc", given)))
    assert "found: no account" in said
    assert "your accounts here: coc" in said
    assert "export SBATCH_ACCOUNT=ACCOUNT" in said


def test_an_account_of_somebody_else(found):
    node = replace(NODE, accounts=frozenset({"gts-mine"}))
    assert "account coc, which Slurm does not know for you" in found(asked.account, cpu_job(), node=node)


def a_site_without(tmp_path, before, after):
    """PACE ICE's file, copied and changed."""
    text = (PROFILES / "pace-ice/site.yaml").read_text()
    for old, new in zip(before, after, strict=True):
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/site.yaml").write_text(text)
    return read_site("mine", tmp_path)


NO_ACCOUNT = "account: 'the code of your college, such as coc'"
QOS = "qos:\n  coc-ice: {hours: 16, gpu_hours: 16}\n  pace-ice: {hours: 16, gpu_hours: 16}\n"


@pytest.mark.parametrize(("account", "qos"), [("account: ''", "qos: {}\n"), ("account:", "qos:\n")])
def test_a_site_without_accounts_and_qos(found, tmp_path, account, qos):
    site = a_site_without(tmp_path, (NO_ACCOUNT, QOS), (account, qos))
    job = cpu_job()
    bare = replace(job, line=job.line.replace("-A coc", "").replace("--qos=coc-ice", ""))
    for check in asked.CHECKS:
        assert found(check, bare, site=site) == ""
    assert found(asked.account, bare, node=replace(NODE, accounts=frozenset()), site=site) == ""
    said = found(asked.quality_of_service, job, site=site)  # the line copied with the profile
    assert "found: qos coc-ice\n  expected: no qos: PACE ICE has none, by its site.yaml" in said
    assert "take qos out of slurm/pace-ice/config.yaml" in said
    copied = replace(job, line=job.line.replace("-A coc", "-A '$SBATCH_ACCOUNT'"))
    said = found(asked.account, copied, site=site)
    assert "found: account $SBATCH_ACCOUNT, which the shell does not have" in said
    assert "take slurm_account out of slurm/pace-ice/config.yaml" in said


def test_a_scratch_by_variables(tmp_path, monkeypatch):
    monkeypatch.setenv("USER", "gp")
    site = a_site_without(tmp_path, ["folder: ~/scratch"], ["folder: '/scratch/$USER/${USER}s'"])
    assert site.scratch.folder == Path("/scratch/gp/gps")


def test_no_partition_takes_the_job(found):
    job = gpu_job(model="A40", gpus=16)
    said = found(asked.partition, replace(job, line=job.line.replace("-p ice-gpu", "")))
    assert "no partition for measure_cell (such as 16 x A40, 1 h)" in said


def test_a_resource_that_follows_from_files_that_are_not_there(found):
    job = replace(gpu_job(), line="", unknown=("mem_mb",))
    said = found(asked.unknown, job, cpu_job())
    assert "no mem_mb, where Snakemake would go by the size of input files: measure_cell\n" in said
    assert "write mem_mb under default-resources of slurm/pace-ice/config.yaml" in said
    for check in asked.CHECKS:
        assert check is asked.unknown or found(check, job) == ""


def test_a_partition_that_the_cluster_lacks(found):
    node = replace(NODE, partitions=frozenset({"cpu", "gpu"}))
    said = found(asked.partition, gpu_job(), node=node)
    assert "partition ice-gpu, which this cluster does not have" in said
    assert "one of: cpu, gpu" in said


def on(partition, job, taking=()):
    """The job on a partition, where the file has ice-cpu and ice-gpu."""
    line = job.line.replace("-p ice-gpu", f"-p {partition}").replace("-p ice-cpu", f"-p {partition}")
    return replace(job, line=line, taking=taking)


ICE = ("ice-cpu", "ice-gpu")


def test_a_partition_that_does_not_take_its_jobs(found):
    jobs = on("ice-cpu", gpu_job(), ("ice-gpu",)), on("ice-cpu", cpu_job(), ICE)
    said = found(asked.partition, *jobs, partitions=ICE)
    assert "partition ice-cpu for measure_cell (such as 1 x H200, 1 h), which it does not take" in said
    assert "this one fits: ice-gpu" in said
    assert said.count("found:") == 1
    assert "take slurm_partition out of slurm/pace-ice/config.yaml" in said
    assert found(asked.partition, on("ice-gpu", gpu_job(), ("ice-gpu",)), partitions=ICE) == ""


def test_a_partition_that_is_not_in_the_file(found):
    said = found(asked.partition, on("icegpu", gpu_job(), ("ice-gpu",)), partitions=ICE)
    assert "found: partition icegpu, not in the file that slurm-partition-config" in said
    assert "nobody asks whether it takes measure_cell\n  expected: one of: ice-cpu, ice-gpu" in said
    node = replace(NODE, partitions=frozenset({"ice-gpu", "grade"}))
    grade = on("ice-gpu,grade", gpu_job(), ("ice-gpu",))
    said = found(asked.partition, grade, partitions=ICE, node=node)
    assert "note: partition grade, not in the file" in said  # Slurm knows it
    assert "found:" not in said
    assert found(asked.partition, grade, node=node) == ""  # without such a file


def test_a_quality_of_service_of_another_site(found):
    said = found(asked.quality_of_service, gpu_job(qos="embers"))
    assert "qos embers" in said
    assert "one of PACE ICE's: coc-ice, pace-ice" in said
    said = found(asked.quality_of_service, gpu_job(qos="pace_ice"))
    assert "write qos: pace-ice into slurm/pace-ice/config.yaml" in said


def test_a_quality_of_service_that_the_account_may_not_use(found):
    may = replace(NODE, qos={"coc": frozenset({"pace-ice", "normal"})})
    said = found(asked.quality_of_service, gpu_job(), node=may)
    assert "qos coc-ice, which account coc may not use" in said
    assert "one of: normal, pace-ice" in said
    assert found(asked.quality_of_service, gpu_job(qos="pace-ice"), node=may) == ""
    assert found(asked.quality_of_service, gpu_job(), node=replace(NODE, qos={"coc": frozenset()})) == ""
    assert "may not use" not in found(asked.quality_of_service, gpu_job(qos="embers"), node=may)


def test_what_slurm_lets_accounts_use():
    lines = frozenset({"CoC|coc-ice,pace-ice", "CoC|grade", "other|", "|normal"})
    assert qos_by_account(lines) == {"CoC": {"coc-ice", "pace-ice", "grade"}, "other": set()}


def test_slurms_commands_are_there_and_nobody_answers(found, tmp_path, monkeypatch):
    for name in COMMANDS:
        (tmp_path / name).write_text("#!/bin/sh\necho no daemon >&2\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(preflight_node, "ask_torch", lambda: ("", (), ""))
    here = look()
    assert here.silent == ("sacctmgr", "sinfo")
    said = found(software.slurm_commands, node=replace(NODE, silent=here.silent))
    assert "note: accounts, qos, partitions are unchecked: no answer of sacctmgr, sinfo" in said
    (tmp_path / "sacctmgr").write_text("#!/bin/sh\necho 'CoC|coc-ice'\n")
    here = look()
    assert (here.silent, here.accounts, here.qos) == (("sinfo",), {"CoC"}, {"coc": {"coc-ice"}})


def test_a_preemptible_job_that_nobody_starts_again(found):
    job = gpu_job(qos="embers")
    phoenix = read_site("pace-phoenix")
    assert found(asked.quality_of_service, job, site=phoenix) == ""
    stays = replace(job, line=job.line.replace("--requeue", ""))
    said = found(asked.quality_of_service, stays, site=phoenix)
    assert "no --requeue under qos embers, which may preempt after 1 h: measure_cell" in said


@pytest.mark.parametrize(
    ("job", "sentence"),
    [
        (
            gpu_job(gpus=2, minutes=481),
            "2 GPUs for 8.01667 h are 16.0333 GPU-hours, where 16 are allowed, 8 h",
        ),
        (gpu_job(gpus=4, minutes=300), "4 GPUs for 5 h are 20 GPU-hours, where 16 are allowed, 4 h"),
        (cpu_job(minutes=1000), "16.6667 h, where 16 h are allowed"),
    ],
)
def test_too_long_for_the_site(found, job, sentence):
    assert sentence in found(asked.time, job)


def test_only_the_retry_is_too_long(found):
    said = found(asked.time, gpu_job(minutes=600), last=[gpu_job(minutes=1200)])
    assert "measure_cell at the last of 1 retries: 20 h, where 16 h are allowed" in said


def test_embers_ends_after_eight_hours(found):
    said = found(asked.time, gpu_job(minutes=540, qos="embers"), site=read_site("pace-phoenix"))
    assert "9 h, where 8 h are allowed" in said
    assert found(asked.time, gpu_job(minutes=540, qos="inferno"), site=read_site("pace-phoenix")) == ""


def test_no_time_limit(found):
    assert "no time limit: tabulate" in found(asked.time, cpu_job(minutes=0))


def test_what_the_executor_refuses(found):
    refused = replace(cpu_job(), line="", error="The --partition option is not allowed in slurm_extra")
    assert "Slurm's executor refuses tabulate: The --partition option" in found(asked.submittable, refused)
    written = {"": "mine.yaml", "default-resources": "mine.yaml", "set-resources": "slurm/config.yaml"}
    (finding,) = asked.submittable(Plan("slurm", [refused], [], {}, [], 0, written=written), None, NODE)
    both = "default-resources of mine.yaml, or under set-resources of slurm/config.yaml"
    assert finding.remedy == f"correct them under {both}"


ONE_GPU = {"gpu": 1, "gpu_model": "H200"}


def plan_read(**resources) -> Plan:
    """What is read of one job with these resources, for which the executor makes a line."""
    row = {"rule": "gate", "line": "sbatch --gpus=1", "resources": resources, "unknown": [], "taking": []}
    job = {**row, "count": 1, "own": {"gpu": 1}, "last": row}
    raw = {"executor": "slurm", "jobs": [job], "config": {}, "datasets": [], "retries": 1}
    told = {"unheard": [], "erased": [], "given": {}, "written": {}, "partitions": [], "logs": ""}
    return read_plan({**raw, **told, "apptainer_args": ""})


@pytest.mark.parametrize(
    ("resources", "said"),
    [
        ({"gpu": "H200:1"}, "gpu is H200:1, which is no whole number"),
        ({"gpu": "None"}, "gpu is None, which is no whole number"),
        ({"nodes": "two", **ONE_GPU}, "nodes is two, which is no whole number"),
        ({"tasks": "two", **ONE_GPU}, "tasks is two, which is no whole number"),
        ({"tasks_per_node": "x", **ONE_GPU}, "tasks_per_node is x, which"),
        ({"nodes": "two", "gpu": "one"}, "gpu is one, which is no whole number; nodes is two, which"),
    ],
)
def test_a_resource_that_is_no_number(site, resources, said):
    plan = plan_read(**resources)
    lines = [str(finding) for check in asked.CHECKS for finding in check(plan, site, NODE)]
    assert len(lines) == 1, lines
    assert f"Slurm's executor refuses gate: {said}" in lines[0]


def test_numbers_as_text_are_numbers():
    (job,) = plan_read(gpu="2", nodes="1", gpu_model="H200").first
    assert (job.wants_gpu, job.own) == (True, {"gpu": 1})
    assert (job.gpus, job.error, job.line) == (2, "", "sbatch --gpus=1")


def test_a_site_without_qos_or_gpus(found, site):
    assert near("coc", ()) == ""
    assert "qos coc-ice" in found(asked.quality_of_service, gpu_job(), site=replace(site, qos={}))
    said = found(asked.one_model, gpu_job(), site=replace(site, gpus={}))
    assert "one of PACE ICE's: none, by gpus in its site.yaml" in said
    assert "what to do: write it into gpus of the site's site.yaml, with its compute capability" in said


def test_another_executor(found):
    assert "an executor other than Slurm's: local" in found(asked.executor, cpu_job(), executor="local")
    assert "leave out -n" in found(asked.executor, cpu_job(), executor="dryrun")


def test_what_snakemake_passes_over_in_a_profile(found):
    said = found(asked.profiles, unheard=[("slurm/mine/config.yaml", "set-resource", "set-resources")])
    assert "set-resource in slurm/mine/config.yaml, which Snakemake passes over" in said
    assert "write set-resources instead" in said


def test_set_resources_that_erase_others(found):
    said = found(asked.set_resources, erased=[("slurm/config.yaml", ["measure_cell", "gate"])])
    assert "resources in slurm/config.yaml lost by a later set-resources: gate, measure_cell" in said
    assert "put the lines of the later one into slurm/config.yaml" in said


def test_a_misspelt_site_is_told_with_the_nearest(capsys):
    assert main(["--site", "pace-icy"]) == 2
    said = capsys.readouterr().err
    assert "found: site 'pace-icy'" in said
    assert "write 'pace-ice' instead" in said


@pytest.mark.parametrize("option", ["-n", "--dry-run", "--dryrun"])
def test_preflight_is_a_dry_run_by_itself(option):
    said = snakemake_arguments("pace-ice", ["--cores", "2", option])
    assert said == ["--profile", "slurm", "--profile", "slurm/pace-ice", "--cores", "2"]


def test_outside_of_the_checkout(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["--site", "pace-ice"]) == 2
    said = capsys.readouterr().err
    assert f"found: no Snakefile in {tmp_path}" in said
    assert "what to do: run it in the checkout" in said


def test_snakemakes_words_come_without_frames_and_options():
    frames = 'Traceback (most recent call last):\n\n  File "cli.py", line 9, in main\n    open(path)\n\n'
    said = reason(f"Using profile slurm\n{frames}FileNotFoundError: no such file: 'my.yaml'\n")
    assert said == "Using profile slurm\nFileNotFoundError: no such file: 'my.yaml'"
    assert reason("Error: x\n  in line 3\n") == "Error: x\n  in line 3"
    assert (
        reason("usage: snakemake [--jobs N]\n   [--x]\nlines.py: error: --x: y\n")
        == "lines.py: error: --x: y"
    )


def test_inside_of_an_allocation_and_on_a_laptop(found):
    said = found(software.slurm_commands, node=replace(NODE, inside_job="42"))
    assert "inside of Slurm's job 42" in said
    said = found(software.slurm_commands, node=replace(NODE, missing_commands=("sbatch",)))
    assert "note: no sbatch: accounts and partitions are unchecked" in said


def test_squeue_that_forgets_jobs_before_snakemake_asks(found):
    said = found(software.slurm_commands, node=replace(NODE, min_job_age=150))
    assert "squeue here forgets a job 150 s after its end" in said
    assert "slurm-status-command: sacct" in said
    for age in (None, 30, 300):  # unknown; the executor takes sacct by itself; long enough
        assert found(software.slurm_commands, node=replace(NODE, min_job_age=age)) == ""
    assert min_job_age(frozenset({"MinJobAge               = 300 sec", "MaxJobCount = 5"})) == 300


def test_an_old_module(found):
    node = replace(NODE, modules=("gcc/12.3.0", "python/3.9.12-rkxvr6", "cuda/11.8", "anaconda3/2023.03"))
    said = found(software.modules, node=node)
    assert "module python/3.9.12-rkxvr6\n  expected: python 3.11 or newer" in said
    assert "module cuda/11.8\n  expected: cuda 12 or newer" in said
    assert said.count("found:") == 2


def test_v100_with_cuda_13(found):
    node = replace(NODE, cuda="13.0", architectures=CUDA13)
    said = found(software.stack, gpu_job(model="V100"), node=node)
    assert "GPU V100 (compute capability 7.0) with CUDA 13.0: torch has code for sm_75" in said
    assert "make setup CUDA=12, or another sweep_gpu_model: RTX_6000, A40, A100, H100, H200, L40S" in said
    assert found(software.stack, gpu_job(model="V100")) == ""  # CUDA 12.8 has sm_70


def test_v100_with_an_image_as_its_recipe_makes_it(found):
    image = partial(software.stack, deployment="apptainer")
    said = found(image, gpu_job(model="V100"))
    assert "GPU V100 (compute capability 7.0) and an image, whose recipe is for sm_75" in said
    assert "--build-arg CUDA=12" in said
    for model in ("RTX_6000", "A100", "H200", "L40S"):
        assert found(image, gpu_job(model=model)) == ""
    assert found(partial(software.stack, deployment="conda"), gpu_job(model="V100")) == ""  # CUDA 12


def test_torch_without_cuda_or_no_torch(found):
    assert "torch without CUDA" in found(
        software.stack, gpu_job(), node=replace(NODE, cuda="", architectures=())
    )
    node = replace(NODE, cuda=None, no_torch="ModuleNotFoundError: No module named 'torch'")
    assert "torch does not start: ModuleNotFoundError" in found(software.environment, node=node)


def test_an_environment_that_compute_nodes_do_not_see(found):
    node = replace(NODE, python=Path("/tmp/env/bin/python"))
    assert "Python in /tmp/env/bin, which compute nodes do not see" in found(software.environment, node=node)


def test_a_checkout_that_compute_nodes_do_not_see(found, tmp_path, monkeypatch):
    (tmp_path / "home").symlink_to("/dev/shm")
    monkeypatch.setattr(software, "LOCAL", (Path("/dev/shm"),))  # tmp_path itself may lie in /tmp
    for checkout in (Path("/dev/shm/gpufeed"), tmp_path / "home/gpufeed"):
        said = found(software.environment, node=replace(NODE, checkout=checkout))
        assert f"found: the checkout in {checkout}, which compute nodes do not see" in said


def test_logs_that_stay_on_the_nodes(found):
    said = found(software.environment, logs="/tmp/logs")
    assert "found: slurm-logdir: /tmp/logs, which the login node does not share" in said
    assert "leave it out in slurm/pace-ice/config.yaml or on the command line" in said
    for logs in ("", "logs", "/home/g/logs"):
        assert found(software.environment, logs=logs) == ""


def test_no_container_and_no_conda(found):
    said = found(partial(software.environment, deployment="apptainer"))
    assert "no command apptainer" in said
    assert "no command conda" in found(partial(software.environment, deployment="conda"))


IN_CONTAINER = partial(software.environment, deployment="apptainer")


def test_a_container_does_not_see_scratch_by_itself(found, site):
    said = found(IN_CONTAINER)
    assert f"--apptainer-args ' --bind {site.scratch.folder}', unless" in said
    inside = {key: str(software.ROOT / key) for key in ("data", "results")}
    assert "--bind" not in found(IN_CONTAINER, config=inside)
    assert "--bind" not in found(software.environment)


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


def test_resources_in_the_default_profile(found, tmp_path, monkeypatch):
    assert found(software.default_profile) == ""  # ours
    profile = tmp_path / "profiles/default/config.yaml"
    profile.parent.mkdir(parents=True)
    profile.write_text("cores: all\nresources:\n  gpu: 1\ndefault-resources:\n  mem_mb: 1\n")
    monkeypatch.setattr(software, "ROOT", tmp_path)
    said = found(software.default_profile)
    assert "resources, default-resources in profiles/default/config.yaml" in said


@pytest.mark.parametrize(
    "key",
    ["slurm-requeue", "slurm-status-command", "default-threads", "cluster-generic-submit-cmd", "retries"],
)
def test_keys_of_the_default_profile_that_override_a_clusters(found, tmp_path, monkeypatch, key):
    profile = tmp_path / "profiles/default/config.yaml"
    profile.parent.mkdir(parents=True)
    profile.write_text(f"cores: all\n{key}: 1\n")
    monkeypatch.setattr(software, "ROOT", tmp_path)
    said = found(software.default_profile)
    assert f"found: {key} in profiles/default/config.yaml" in said
    assert "move them into slurm/pace-ice/config.yaml" in said


@given(st.integers(5, 12), st.integers(0, 9), st.integers(5, 12), st.integers(0, 9))
def test_machine_code_runs_on_its_major_version_and_ptx_on_all_later_gpus(major, minor, theirs, their_minor):
    same = theirs == major and their_minor <= minor
    assert software.served(f"{major}.{minor}", (f"sm_{theirs}{their_minor}",)) == same
    later = (theirs, their_minor) <= (major, minor)
    assert software.served(f"{major}.{minor}", (f"compute_{theirs}{their_minor}",)) == later
    assert software.served(f"{major}.{minor}", (f"sm_{theirs}{their_minor}a",)) == (
        (theirs, their_minor) == (major, minor)
    )


def test_options_of_a_line():
    ask = Ask("a", "sbatch -A 'my account' -p ice --qos=q -C 'a|b' --gpus=H200:2 --requeue", {})
    assert ask.option("-A") == "my account"
    assert ask.option("--qos", "-q") == "q"
    assert ask.option("-C") == "a|b"
    assert ask.option("--gpus") == "H200:2"
    assert ask.option("--nodes") is None


def test_sites_can_be_read_and_wrong_ones_are_refused(tmp_path):
    assert sites() == ["pace-ice", "pace-phoenix"]
    assert {name: set(read_site(name).qos) for name in sites()} == {
        "pace-ice": {"coc-ice", "pace-ice"},
        "pace-phoenix": {"embers", "inferno"},
    }
    with pytest.raises(GpufeedError, match="pace-ice"):
        read_site("pace-icy")
    with pytest.raises(GpufeedError, match="compare the file with that of another site"):
        make_site({"name": "x", "qos": {"a": {"days": 3}}, "scratch": {"folder": "/", "files": 1}}, tmp_path)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("qos:\n", "qos: [\n", "a file of YAML"),
        ("{hours: 16, gpu_hours: 16}", "{hours: sixteen}", "'sixteen' is no number above 0"),
        ("files: 1000000", "files: many", "'many' is no number above 0"),
        ("H200: '9.0'", "H200: 9", "9 is no compute capability"),
        (
            "python: '3.11'",
            "python: 3.11",
            "modules: python is 3.11, no text: write names and versions in quotes",
        ),
        ("python: '3.11'", "python: null", "modules: python is None, no text"),
        ("modules: {python: '3.11', gcc: '9', cuda: '12'}", "modules: null", "modules is None, no map"),
        ("modules: {python: '3.11', gcc: '9', cuda: '12'}", "modules: [cuda]", "modules is ['cuda'], no map"),
        ("A100-40GB: A100,", "A100-40GB: 100,", "constraints: A100-40GB is 100, no text"),
        ("A100-40GB: A100,", "80: A100,", "constraints: the key 80 is no text"),
    ],
)
def test_a_wrong_value_in_a_sites_file_is_told(tmp_path, before, after, said):
    text = (PROFILES / "pace-ice/site.yaml").read_text()
    assert before in text
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/site.yaml").write_text(text.replace(before, after))
    with pytest.raises(GpufeedError, match="compare the file") as error:
        read_site("mine", tmp_path)
    assert said in str(error.value)

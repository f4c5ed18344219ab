"""Planted mistakes, each found with its sentence, and what is right passing without one."""

from dataclasses import replace
from pathlib import Path

import pytest
from preflight_fixtures import CUDA13, NODE, by_gres, cpu_job, gpu_job, no_gpu, with_extra

from gpufeed.cluster.preflight import asked, software_checks, storage
from gpufeed.cluster.preflight.asked_plan import Ask, Plan, read_plan, reason
from gpufeed.cluster.preflight.command import findings, main, snakemake_arguments
from gpufeed.cluster.preflight.finding import nearest_choice


def test_a_right_plan_is_found_right(found):
    right = (gpu_job(), gpu_job("train_model", gpus=2, minutes=480), cpu_job())
    for check in (
        *asked.CHECKS,
        software_checks.slurm_commands,
        software_checks.environment,
        software_checks.stack,
        software_checks.modules,
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
    "repeated_by_extra": "-t 5 in slurm_extra behind the line's own -t 60: measure_inference",
    "signal": "--signal=B:TERM@120 in slurm_extra, which ends the batch shell and with it the job: measure",
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
    (tmp_path / "containers").symlink_to(software_checks.ROOT / "containers")
    monkeypatch.setattr(software_checks, "ROOT", tmp_path)
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
        replace(cpu_job("export_model", slurm_extra="-G 1"), own={"gpu": 1}),
        with_extra(gpu_job("measure_inference"), "-t 5 --signal=B:TERM@120"),
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
    monkeypatch.setattr(software_checks, "ROOT", tmp_path)
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
    assert nearest_choice("coc", ()) == ""
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


def test_resources_in_the_default_profile(found, tmp_path, monkeypatch):
    assert found(software_checks.default_profile) == ""  # ours
    profile = tmp_path / "profiles/default/config.yaml"
    profile.parent.mkdir(parents=True)
    profile.write_text("cores: all\nresources:\n  gpu: 1\ndefault-resources:\n  mem_mb: 1\n")
    monkeypatch.setattr(software_checks, "ROOT", tmp_path)
    said = found(software_checks.default_profile)
    assert "resources, default-resources in profiles/default/config.yaml" in said


@pytest.mark.parametrize(
    "key",
    ["slurm-requeue", "slurm-status-command", "default-threads", "cluster-generic-submit-cmd", "retries"],
)
def test_keys_of_the_default_profile_that_override_a_clusters(found, tmp_path, monkeypatch, key):
    profile = tmp_path / "profiles/default/config.yaml"
    profile.parent.mkdir(parents=True)
    profile.write_text(f"cores: all\n{key}: 1\n")
    monkeypatch.setattr(software_checks, "ROOT", tmp_path)
    said = found(software_checks.default_profile)
    assert f"found: {key} in profiles/default/config.yaml" in said
    assert "move them into slurm/pace-ice/config.yaml" in said


def test_options_of_a_line():
    ask = Ask("a", "sbatch -A 'my account' -p ice --qos=q -C 'a|b' --gpus=H200:2 --requeue", {})
    assert ask.option("-A") == "my account"
    assert ask.option("--qos", "-q") == "q"
    assert ask.option("-C") == "a|b"
    assert ask.option("--gpus") == "H200:2"
    assert ask.option("--nodes") is None

"""Planted mistakes, each found with its sentence, and what is right passing without one."""

from dataclasses import replace
from pathlib import Path

import pytest
from preflight_fixtures import CUDA13, NODE, cpu_job, gpu_job

from gpufeed.cluster.preflight import asked, software_checks, storage
from gpufeed.cluster.preflight.asked_plan import Plan, reason
from gpufeed.cluster.preflight.command import findings, main, snakemake_arguments


def test_a_right_plan_is_found_right(found):
    right = (gpu_job(), gpu_job("train_model", gpus=2, minutes=480), cpu_job())
    for check in (
        *asked.CHECKS,
        software_checks.login_node,
        software_checks.environment,
        software_checks.stack,
        storage.folders,
    ):
        assert found(check, *right) == ""


WRONG = {  # one sentence of each check, in its order
    "default_profile": "set-resources in profiles/default/config.yaml",
    "login_node": "inside of Slurm job 42",
    "refused": "are not checked by Slurm: no sbatch here, No such file",
    "executor": "an executor other than Slurm's: local",
    "profiles": "set-resource in mine.yaml",
    "set_resources": "lost by a later set-resources: gate",
    "without_line": "no sbatch line, no mem_mb: plot",
    "partition": "no partition: evaluate_model",
    "preempted": "no --requeue under qos coc-ice, which may preempt after 1 h: tune_cell",
    "time": "no time limit: gate",
    "time: GPUs": "8 GPUs for 15 h are 120 GPU-hours, where 16 are allowed, 2 h: predict",
    "set_by_rules": "GPUs: the rule wants none, the job asks for 1 x any: tabulate",
    "set_by_rules: model": "no model of GPU (sweep_gpu_model): quantise_model",
    "set_by_rules: constraint": "constraint: the rule wants none, the job asks for A100-80GB: train_model",
    "forms": "GPU A100 in any of its forms, A100-40GB, A100-80GB: export_model",
    "extra": "-t in slurm_extra instead of runtime: measure_inference",
    "signal": "--signal=B:TERM@120 in slurm_extra, which ends the batch shell and so the job: measure",
    "shell": "SBATCH_GRES in the shell",
    "environment": "Python in /tmp/env/bin, which compute nodes do not see",
    "environment: checkout": "the checkout in /tmp/gpufeed, which compute nodes do not see",
    "environment: container": "no --nv for the container",
    "stack": "GPU V100 (compute capability 7.0) with CUDA 13.0",
    "folders": "data in /dev/shm/none",
    "space": "GiB free in",
    "file_count": "new ones",
    "data": "a.tar of made: neither here nor downloadable",
}


def test_every_check_is_called(site, tmp_path, monkeypatch):
    """Where all is wrong each speaks by a sentence that no other has."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(software_checks, "ROOT", tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "profiles/default").mkdir(parents=True)
    (tmp_path / "profiles/default/config.yaml").write_text("set-resources: {gate: {mem_mb: 1}}\n")
    site = replace(site, qos={"coc-ice": replace(site.qos["coc-ice"], preempted_after_hours=1)})
    stays = gpu_job("tune_cell")
    jobs = [
        gpu_job("train_model", model="V100", constraint="A100-80GB"),
        gpu_job("gate", minutes=0),
        replace(cpu_job("plot"), line="", error="no mem_mb"),
        cpu_job(gpu=1),
        gpu_job("predict", gpus=8, minutes=900),
        gpu_job("quantise_model", model=""),
        gpu_job("export_model", model="A100"),
        gpu_job("measure_inference", slurm_extra="-t 5 --signal=B:TERM@120"),
        replace(stays, line=stays.line.replace("--requeue", "")),
        replace(gpu_job("evaluate_model"), line="sbatch --qos=coc-ice --requeue"),
    ]
    source = {"layout": "synthetic", "options": {"count": 2000}}
    source["files"] = [{"name": "a.tar", "urls": ["/none"], "size": 2**60}]
    config = {"data": "/dev/shm/none", "results": "/dev/shm/none", "sources": {"made": source}}
    lost = (("slurm/config.yaml", ["gate"]),)
    unheard = (("mine.yaml", "set-resource", ""),)
    plan = Plan("local", jobs, config, ["made"], unheard, lost)
    node = replace(NODE, cuda="13.0", architectures=CUDA13, inside_job="42", checkout=Path("/tmp/gpufeed"))
    node = replace(node, python=Path("/tmp/env/bin/python"), variables=("SBATCH_GRES",))
    said = [str(one) for way in ("none", "apptainer") for one in findings(plan, site, node, way)]
    for check, sentence in WRONG.items():
        assert any(sentence in one for one in said), check


def test_what_snakemake_passes_over_in_a_profile(found):
    said = found(asked.profiles, unheard=[("slurm/mine/config.yaml", "set-resource", "set-resources")])
    assert "set-resource in slurm/mine/config.yaml, which Snakemake silently ignores" in said
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


@pytest.mark.parametrize(
    "key", ["resources", "default-resources", "slurm-requeue", "default-threads", "retries"]
)
def test_keys_of_the_default_profile_that_override_or_erase_a_clusters(found, tmp_path, monkeypatch, key):
    assert found(software_checks.default_profile) == ""  # ours
    profile = tmp_path / "profiles/default/config.yaml"
    profile.parent.mkdir(parents=True)
    profile.write_text(f"cores: all\n{key}: 1\n")
    monkeypatch.chdir(tmp_path)  # of the folder of the run, as gpufeed init writes it
    said = found(software_checks.default_profile)
    assert f"found: {key} in profiles/default/config.yaml" in said
    assert "move them into the cluster's profile" in said

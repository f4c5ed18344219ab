"""Mistakes about how much: other GPUs and cores than the rules want, and GB where MB are meant."""

from dataclasses import replace

from preflight_fixtures import by_gres, cpu_job, gpu_job, no_gpu

from gpufeed.cluster.preflight import asked
from gpufeed.cluster.preflight.asked_plan import Ask


def wanting(job: Ask, **own) -> Ask:
    """The job, of a rule that itself says so much."""
    return replace(job, own=own)


def test_more_or_fewer_gpus_than_the_rule_wants(found):
    more = wanting(gpu_job(gpus=4), gpu=1), wanting(gpu_job("gate", gpus=4), gpu=1)
    said = found(asked.gpus_of_rules, *more, wanting(gpu_job("train_model"), gpu=2))
    assert "found: GPUs: the rule wants 1, the line asks for 4: gate, measure_cell\n" in said
    assert "found: GPUs: the rule wants 2, the line asks for 1: train_model\n" in said
    assert "take gpu and gres out of slurm/pace-ice/config.yaml; devices in the config" in said
    assert found(asked.gpus_of_rules, wanting(gpu_job(gpus=2), gpu=2)) == ""


def test_gpus_by_gres_that_the_rule_does_not_want(found):
    said = found(asked.gpus_of_rules, wanting(by_gres("predict", "gpu:H200:8"), gpu=1))
    assert "GPUs: the rule wants 1, the line asks for 8: predict" in said
    several = by_gres("measure_cell", "gpu:H200:2", nodes=2, mpi="srun")
    assert found(asked.gpus_of_rules, wanting(several, gpu=None, gres="gpu:H200:2", nodes=2)) == ""
    said = found(asked.gpus_of_rules, wanting(several, gpu=None, gres="gpu:H200:4", nodes=2))
    assert "GPUs: the rule wants 8, the line asks for 4: measure_cell" in said


def test_what_others_tell_of_gpus_is_told_once(found):
    twice = wanting(gpu_job(gpus=4, gres="gpu:H200:1"), gpu=1)
    refused = replace(wanting(gpu_job(gpus=4), gpu=1), line="", error="no")
    assert found(asked.gpus_of_rules, twice, refused, wanting(no_gpu("gate"), gpu=1), cpu_job(gpu=1)) == ""


def test_other_cores_than_the_rule_wants(found):
    few = wanting(gpu_job(cpus_per_task=1), gpu=1, cpus_per_task=8)
    said = found(asked.cores_of_rules, few, wanting(cpu_job(cpus_per_task=64), cpus_per_task=8))
    assert "found: cores: the rule wants 8, the line asks for 1: measure_cell\n" in said
    assert "found: cores: the rule wants 8, the line asks for 64: tabulate\n" in said
    assert "take cpus_per_task out of slurm/pace-ice/config.yaml; cores_per_job and" in said
    for given in (8, -1):  # -1: Slurm's own number
        assert found(asked.cores_of_rules, wanting(gpu_job(cpus_per_task=given), cpus_per_task=8)) == ""
    assert found(asked.cores_of_rules, cpu_job(cpus_per_task=4)) == ""  # the rule says nothing


def test_gb_of_memory_where_mb_are_meant(found):
    said = found(asked.memory, gpu_job(mem_mb=32), cpu_job(mem_mb=999), cpu_job("plot", mem_mb=1000))
    assert said.startswith("note: mem_mb of 32, 999: measure_cell, tabulate\n")
    assert "correct mem_mb in slurm/pace-ice/config.yaml, such as 32000 for 32 GB" in said
    assert found(asked.memory, cpu_job(mem_mb=500, mem_mb_per_cpu=4000), cpu_job(), cpu_job(mem_mb=0)) == ""

"""Numbers in the lines: the rules' own pass, others are told with both."""

from dataclasses import replace

from preflight_fixtures import by_gres, cpu_job, gpu_job, no_gpu

from gpufeed.preflight.asked_numbers import memory, rules_numbers


def test_more_gpus_than_the_rule_wants(found):
    jobs = [replace(gpu_job(gpus=gpus), own={"gpu": own}) for gpus, own in ((4, 1), (2, 2))]
    said = found(rules_numbers, *jobs, replace(gpu_job("predict", gpus=4), own={"gpu": 1}))
    assert "found: GPUs of measure_cell, predict: the rule wants 1, the line asks for 4" in said
    assert "take gpu, gres and nodes out of slurm/pace-ice/config.yaml" in said
    assert said.count("found:") == 1


def test_gpus_on_several_nodes(found):
    own = {"gpu": None, "gres": "gpu:H200:2", "nodes": 2}
    right = replace(by_gres("train_model", "gpu:H200:2", nodes=2, mpi="srun"), own=own)
    assert found(rules_numbers, right) == ""
    wrong = replace(by_gres("train_model", "gpu:H200:4", nodes=2, mpi="srun"), own=own)
    assert "train_model: the rule wants 4, the line asks for 8" in found(rules_numbers, wrong)


def test_numbers_of_gpus_that_other_checks_tell(found):
    hidden = gpu_job("gate", slurm_extra="-G 4")
    assert found(rules_numbers, *(replace(job, own={"gpu": 1}) for job in (hidden, no_gpu("predict")))) == ""


def test_fewer_cores_than_the_rule_wants(found):
    job = replace(cpu_job("build_strips", rest="--cpus-per-task=1"), own={"cpus_per_task": 8})
    said = found(rules_numbers, job)
    assert "found: cores of a task of build_strips: the rule wants 8, the line asks for 1" in said
    assert "take cpus_per_task out of slurm/pace-ice/config.yaml" in said
    assert found(rules_numbers, replace(job, own={"cpus_per_task": 1})) == ""
    assert found(rules_numbers, replace(job, own={})) == ""  # a rule that sets none


def test_memory_in_gigabytes(found):
    said = found(memory, cpu_job(rest="--mem 32"), cpu_job("plot", rest="--mem 8000"), cpu_job("compare"))
    assert "note: 32 MB of memory: tabulate\n" in said
    assert "write mem_mb: 32000 into slurm/pace-ice/config.yaml, if GB were meant" in said
    assert said.count("MB of memory") == 1

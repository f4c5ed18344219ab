"""Mistakes about GPUs: how many, of which model, by which option."""

import re
from dataclasses import replace

import pytest
from preflight_fixtures import LINE, NODE, by_gres, cpu_job, gpu_job, no_gpu, with_extra

from gpufeed.cluster.preflight import asked
from gpufeed.cluster.preflight.asked_plan import Ask
from gpufeed.cluster.preflight.login_node import features_in
from gpufeed.cluster.preflight.sbatch_options import gpus_in_gres


def test_gpus_asked_twice(found):
    said = found(asked.gpus_asked_once, gpu_job(gres="gpu:H200:1"))
    assert "GPUs asked for twice, by gpu and by gres: measure_cell" in said
    assert "take gres out of slurm/pace-ice/config.yaml;" in said


def test_gpus_asked_twice_by_a_gpu_of_0(found):
    """The executor writes --gpus wherever there is a model."""
    job = by_gres("measure_cell", "gpu:H200:8", "--gpus=H200:0", minutes=900, gpu_model="H200")
    assert "GPUs asked for twice, by gpu and by gres: measure_cell" in found(asked.gpus_asked_once, job)
    assert "8 GPUs for 15 h are 120 GPU-hours, where 16 are allowed, 2 h" in found(asked.time, job)
    refused = replace(job, line="", error="GPU resource specified in both 'gpu' and 'gres'. These are ...")
    refused = replace(refused, resources={})
    assert "by gpu and by gres: measure_cell" in found(asked.gpus_asked_once, refused)
    assert found(asked.submittable, refused) == ""


def test_gpus_by_gres_alone_count(found):
    job = by_gres("gate", "gpu:A100:4", gpu_model="")
    assert found(asked.gpus_asked_once, job) == ""
    assert "A100: gate; H200: measure_cell" in found(asked.one_model, job, gpu_job())
    assert found(asked.rules_with_gpu, job) == ""
    assert replace(job, resources=job.resources | {"gpu_model": "H200"}).model == "A100"  # 0 of the H200


def test_a_rule_that_wants_a_gpu_and_asks_for_none(found):
    said = found(asked.rules_with_gpu, no_gpu("measure_cell"), cpu_job(), gpu_job("gate"))
    assert "rules that need a GPU ask for none: measure_cell\n" in said
    assert "take gpu out of" in said


HIDDEN = (
    "--gres=gpu:A100:4",
    "--gpus=A100:4",
    "-G A100:4",
    "--gpus-per-node=A100:4",
    "--gpus-per-task=A100:4",
)
HIDDEN += ("--gpus-per-socket=A100:4 --sockets-per-node=1",)


@pytest.mark.parametrize("extra", HIDDEN)
def test_gpus_hidden_in_slurm_extra_count_as_those_of_gres_do(found, extra):
    job, option = with_extra(gpu_job(minutes=300), extra), re.split("[ =]", extra)[0]
    said = found(asked.gpus_asked_once, job, gpu_job("gate"))
    assert f"GPUs asked for twice, by gpu and by {option} in slurm_extra: measure_cell\n" in said
    assert f"take {option} out of slurm_extra in slurm/pace-ice/config.yaml; the number of GPUs is" in said
    assert "4 GPUs for 5 h are 20 GPU-hours, where 16 are allowed, 4 h" in found(asked.time, job)
    assert "A100: measure_cell; H200: gate, measure_cell" in found(asked.one_model, job, gpu_job("gate"))
    assert f"take {option} out" in found(asked.rules_without_gpu, with_extra(cpu_job(), extra))


@pytest.mark.parametrize("extra", HIDDEN)
def test_gpus_in_slurm_extra_alone(found, extra):
    """The executor sees a job without a GPU and takes a partition without one."""
    job = with_extra(replace(no_gpu("gate"), line="sbatch", resources={"gpu": 0, "runtime": 60}), extra)
    said = found(asked.gpus_in_extra, job, gpu_job())
    assert "GPUs asked for by slurm_extra alone: gate\n" in said
    assert (
        "out of slurm_extra in slurm/pace-ice/config.yaml, and gpu out of slurm/pace-ice/config.yaml;" in said
    )
    assert found(asked.gpus_asked_once, job) == ""
    assert found(asked.rules_with_gpu, job) == ""


def test_a_slurm_extra_without_gpus(found):
    job = with_extra(gpu_job(), "--signal=TERM@120 --exclude=node-G2")
    for check in asked.CHECKS:
        assert found(check, job) == ""
    assert found(asked.rules_without_gpu, with_extra(cpu_job(), "--gpus-per-node=0")) == ""


def test_each_way_to_ask_twice_is_told_by_itself(found):
    said = found(asked.gpus_asked_once, gpu_job(gres="gpu:H200:1"), with_extra(gpu_job("gate"), "-G 1"))
    assert "by gpu and by gres: measure_cell\n" in said
    assert "by gpu and by -G in slurm_extra: gate\n" in said


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("gpu", [("", 1)]),
        ("gpu:2", [("", 2)]),
        ("gpu:H200", [("H200", 1)]),
        ("gpu:H200:8", [("H200", 8)]),
        ("gpu:A100:1,shard:3, gpu:H200:2", [("A100", 1), ("H200", 2)]),
        ("tmp:100G", []),
        (None, []),
    ],
)
def test_gpus_in_a_gres(gres, gpus):
    assert gpus_in_gres(gres) == gpus
    assert Ask("a", "", {"gres": gres, "nodes": 2}).gpus == 2 * sum(number for _, number in gpus)


def test_a_gpu_that_the_site_lacks_is_told_once(found):
    """And not first as a partition that nobody can name."""
    job = gpu_job(model="H2000")
    job = replace(job, line=job.line.replace("-p ice-gpu", ""))
    assert found(asked.partition, job) == ""
    assert "GPU H2000" in found(asked.one_model, job)
    assert "write sweep_gpu_model: H200 into slurm/pace-ice/config.yaml" in found(asked.one_model, job)


def two_nodes(gpus=2, minutes=60, rest="--ntasks=2", **resources) -> Ask:
    line = LINE.format(rule="measure_cell", where="ice-gpu", minutes=minutes, qos="coc-ice", rest=rest)
    line = line.replace("--nodes=1", "--nodes=2") + f" --gres=gpu:H200:{gpus}"
    asked_for = {"gres": f"gpu:H200:{gpus}", "runtime": minutes, "nodes": 2, "tasks": 2, "mpi": "srun"}
    return Ask("measure_cell", line, asked_for | resources, own={"gres": asked_for["gres"], "nodes": 2})


def test_gpus_of_all_nodes_count(found):
    for check in asked.CHECKS:
        assert found(check, two_nodes(), gpu_job()) == ""
    said = found(asked.time, two_nodes(gpus=4, minutes=180))
    assert "8 GPUs for 3 h are 24 GPU-hours, where 16 are allowed, 2 h" in said
    assert "(devices and nodes in the config)" in said
    said = found(asked.one_model, two_nodes(), gpu_job("train_model", model="A100"))
    assert "A100: train_model; H200: measure_cell" in said
    said = found(asked.gpus_asked_once, two_nodes(gpu_model="H200"))
    assert "GPUs asked for twice, by gpu and by gres: measure_cell" in said
    assert "take gpu and gpu_model out of slurm/pace-ice/config.yaml: several nodes" in said
    assert "GPU B200" in found(asked.one_model, two_nodes(gres="gpu:B200:2"))
    said = found(asked.one_node, two_nodes(rest="--ntasks-per-gpu=2"))
    assert "tasks for jobs with GPUs: measure_cell" in said


def test_a_gpu_that_the_site_lacks(found):
    said = found(asked.one_model, gpu_job(model="B200"))
    assert "found: GPU B200" in said
    assert "V100, RTX_6000, A40, A100, H100, H200, L40S" in said


def test_two_models_in_one_sweep(found):
    said = found(asked.one_model, gpu_job(), gpu_job("train_model", model="A100"), cpu_job())
    assert "several models of GPU in one sweep: A100: train_model; H200: measure_cell" in said


def test_any_gpu(found):
    job = gpu_job()
    assert "no model of GPU: measure_cell" in found(asked.one_model, replace(job, resources={"gpu": 1}))


def test_a_constraint_of_another_model(found):
    said = found(asked.constraint, gpu_job(constraint="A100-80GB"))
    assert "constraint A100-80GB with GPU H200: no node has both" in said
    assert found(asked.constraint, gpu_job(model="A100", constraint="A100-80GB")) == ""
    assert "note: constraint HX00" in found(asked.constraint, gpu_job(constraint="HX00"))


A100S = replace(NODE, features=frozenset({"A100", "A100-40GB", "A100-80GB"}))


def test_a_constraint_that_the_cluster_lacks(found):
    def a100(feature):
        return gpu_job(model="A100", constraint=feature)

    said = found(asked.constraint, a100("A100_80GB"), a100("A100_80GB"), node=A100S)
    assert said.count("found:") == 1
    assert "found: constraint A100_80GB, which no node of this cluster has\n" in said
    assert "expected: one of: A100, A100-40GB, A100-80GB\n" in said
    assert "what to do: write sweep_constraint: A100-80GB into slurm/pace-ice/config.yaml" in said
    said = found(asked.constraint, a100("[A100-40GB*2&(A100-81GB|A100)]"), node=A100S)
    assert re.findall(r"constraint (\S+), which no node", said) == ["A100-81GB"]
    assert found(asked.constraint, a100("A100"), node=A100S) == ""  # not in site.yaml, and there
    assert found(asked.constraint, a100("A100-40GB|A100-80GB")) == ""


def test_what_sinfo_says_of_features():
    lines = frozenset({"A100,A100-80GB", "(null)", "A100,amd"})
    assert features_in(lines) == {"A100", "A100-80GB", "amd"}


def test_a_constraint_that_reaches_rules_without_a_gpu(found):
    jobs = gpu_job(model="A100", constraint="A100-80GB"), cpu_job("plot", constraint="A100-80GB"), cpu_job()
    said = found(asked.constraint, *jobs, node=A100S)
    assert "found: a constraint for rules that need no GPU: plot\n" in said
    assert "call it sweep_constraint in slurm/pace-ice/config.yaml" in said
    assert said.count("expected:") == 1


def test_an_empty_constraint(found):
    said = found(asked.constraint, gpu_job(constraint=""), cpu_job("plot", constraint=""), cpu_job())
    assert "found: an empty constraint: measure_cell, plot\n" in said
    assert said.count("found:") == 1


def test_a_model_in_two_forms_without_a_constraint(found):
    said = found(asked.constraint, gpu_job(model="A100"), cpu_job())
    assert "note: GPU A100 in any of its forms: measure_cell\n  expected: one of A100-40GB, A100-80GB" in said
    assert "write sweep_constraint: A100-80GB under default-resources of slurm/pace-ice/config.yaml" in said
    assert found(asked.constraint, gpu_job(model="H200")) == ""


def test_a_gpu_for_a_rule_that_needs_none(found):
    said = found(asked.rules_without_gpu, cpu_job(rest="--ntasks=1 --gpus=H200:1"), gpu_job())
    assert "rules that need no GPU ask for one: tabulate" in said
    assert "call gpu_model sweep_gpu_model" in said
    assert found(asked.rules_without_gpu, cpu_job(rest="--ntasks=1 --gpus=H200:0")) == ""


def test_a_gpu_for_every_rule_by_the_profile(found):
    with_model = cpu_job(rest="--ntasks=1 --gpus=H200:1", gpu=1, gpu_model="H200")
    assert "ask for one: tabulate" in found(asked.rules_without_gpu, with_model, gpu_job())
    without = cpu_job(rest="--ntasks=1 --gpus=1", gpu=1)
    assert "take gpu and gres out" in found(asked.rules_without_gpu, without, gpu_job())
    assert found(asked.one_model, without, gpu_job()) == ""  # no second model: that rule wants none at all


def test_gpus_that_slurm_may_spread(found):
    job = gpu_job(gpus=2)
    said = found(asked.one_node, replace(job, line=job.line.replace("--nodes=1", "")))
    assert "several GPUs without --nodes=1: measure_cell" in said
    tasks = replace(job, line=job.line + " --ntasks-per-gpu=2")
    assert "tasks for jobs with GPUs: measure_cell" in found(asked.one_node, tasks)


def test_one_gpu_or_none_on_several_nodes(found):
    """Slurm refuses --nodes=2 --gpus=1."""
    on = {
        job.rule: replace(
            job, line=job.line.replace("--nodes=1", nodes), resources=job.resources | {"nodes": 2}
        )
        for job, nodes in ((gpu_job("gate"), "--nodes=2"), (cpu_job(), "-N 2"), (cpu_job("plot"), "-N3"))
    }
    said = found(asked.one_node, *on.values(), two_nodes(), gpu_job())
    assert said.count("found:") == 2
    assert "found: --nodes=2: gate, tabulate\n" in said
    assert "found: --nodes=3: plot\n" in said
    assert "no nodes under set-resources, and nodes: 1 under default-resources of slurm/pace-ice" in said
    one = gpu_job()
    for nodes in ("", "-N1", "--nodes=1-1"):
        assert found(asked.one_node, replace(one, line=one.line.replace("--nodes=1", nodes))) == ""

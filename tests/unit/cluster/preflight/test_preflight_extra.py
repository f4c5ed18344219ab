"""Options in slurm_extra that stand for a resource, a constraint there, a signal before the time limit."""

from dataclasses import replace

import pytest
from preflight_fixtures import NODE, cpu_job, gpu_job, with_extra

from gpufeed.cluster.preflight import asked

REFUSED = "The --{} option is not allowed in the 'slurm_extra' parameter. The {} is set by the snakemake ..."
FILE = "slurm/pace-ice/config.yaml"


@pytest.mark.parametrize(
    ("extra", "own", "resource"),
    [
        ("-q inferno", "--qos=coc-ice", "qos"),
        ("-qinferno", "--qos=coc-ice", "qos"),
        ("-p ice-cpu", "-p ice-gpu", "slurm_partition"),
        ("-t 5", "-t 60", "runtime"),
        ("--time=5", "-t 60", "runtime"),
        ("-N 2", "--nodes=1", "nodes"),
        ("--no-requeue", "--requeue", "slurm-requeue"),
        ("-A other", "-A coc", "slurm_account"),
    ],
)
def test_an_option_that_repeats_one_of_the_line(found, extra, own, resource):
    said = found(asked.repeated_by_extra, with_extra(gpu_job(), extra), cpu_job())
    spelt = "-q inferno" if extra == "-qinferno" else extra
    assert f"found: {spelt} in slurm_extra behind the line's own {own}: measure_cell\n" in said
    assert "of an option that is repeated sbatch takes the last" in said
    option = extra[:2] if extra[1] != "-" else extra.partition("=")[0]
    assert f"take {option} out of slurm_extra in {FILE}; what you mean by it is {resource} in {FILE}" in said
    assert said.count("found:") == 1


def test_memory_of_two_kinds(found):
    job = gpu_job()
    job = with_extra(replace(job, line=f"{job.line} --mem 8000"), "--mem-per-gpu=4000")
    said = found(asked.repeated_by_extra, job)
    assert "--mem-per-gpu=4000 in slurm_extra behind the line's own --mem=8000: measure_cell\n" in said
    assert "two of --mem, --mem-per-cpu, --mem-per-gpu it refuses" in said


def test_options_that_repeat_none(found):
    others = "--exclude=node-t5 --nice=3 --mail-type=END -Cfast --mem-per-gpu=1 --signal=TERM@120"
    assert found(asked.repeated_by_extra, with_extra(gpu_job(), others), cpu_job()) == ""
    assert (
        found(asked.repeated_by_extra, with_extra(gpu_job(), "-G 2 --gpus-per-node=1")) == ""
    )  # of `gpus_*`


def test_what_two_rules_repeat_alike_is_told_once(found):
    jobs = [with_extra(gpu_job(rule), "-q inferno") for rule in ("gate", "train_model")]
    said = found(asked.repeated_by_extra, *jobs, with_extra(gpu_job(), "-q embers"))
    assert said.count("found:") == 2
    assert "own --qos=coc-ice: gate, train_model\n" in said


def test_limits_are_those_of_the_option_that_sbatch_takes(found):
    assert "found: qos inferno" in found(asked.quality_of_service, with_extra(gpu_job(), "-q inferno"))
    assert "--nodes=2: measure_cell" in found(asked.one_node, with_extra(gpu_job(), "-N2"))


def refused(name, extra):
    return replace(gpu_job(slurm_extra=extra), line="", error=REFUSED.format(name, name))


def test_what_the_executor_refuses_in_slurm_extra(found):
    said = found(asked.submittable, refused("node-constraints", "--constraint=A100-80GB"))
    assert "Slurm's executor refuses measure_cell: The --node-constraints option" in said
    assert f"take --constraint out of slurm_extra in {FILE}; what you mean by it is sweep_constraint" in said
    said = found(asked.submittable, refused("job-name", "--job-name=mine"))
    assert f"what to do: take it out of slurm_extra in {FILE}" in said
    for job in (refused("node-constraints", "-C A100"), refused("job-name", "-J mine -q inferno")):
        assert found(asked.repeated_by_extra, job) == ""


FORMS = replace(NODE, features=frozenset({"A100", "A100-40GB", "A100-80GB"}))


@pytest.mark.parametrize("option", ["-C", "-C ", "--constraint=", "--constraint "])
def test_a_constraint_in_slurm_extra_is_checked_as_the_resource_is(found, option):
    def asking(feature, job, **resources):
        return replace(job, resources=job.resources | resources | {"slurm_extra": f"{option}{feature}"})

    def a100(feature, **resources):
        return asking(feature, gpu_job(model="A100"), **resources)

    name = option.strip(" =")
    said = found(asked.constraint, a100("A100_80GB"), node=FORMS)
    assert "found: constraint A100_80GB, which no node of this cluster has\n" in said
    assert (
        f"write sweep_constraint: A100-80GB into {FILE}, and take {name} out of slurm_extra in {FILE}" in said
    )
    assert "note: constraint HX00" in found(asked.constraint, a100("HX00"))
    assert found(asked.constraint, a100("A100-80GB"), node=FORMS) == ""  # picks a form
    said = found(asked.constraint, asking("A100-80GB", gpu_job()), node=FORMS)
    assert "constraint A100-80GB with GPU H200: no node has both" in said
    assert f"and take {name} out of slurm_extra" in said
    said = found(asked.constraint, asking("A100-80GB", cpu_job("plot")), node=FORMS)
    assert "a constraint for rules that need no GPU: plot" in said
    assert f"and take {name} out of slurm_extra" in said
    both = a100("A100_80GB", constraint="A100-40GB")  # sbatch takes the last
    assert "constraint A100_80GB, which no node" in found(asked.constraint, both, node=FORMS)


@pytest.mark.parametrize("value", ["TERM@120", "SIGTERM@60", "15", "term@9", "R:TERM@120"])
def test_a_signal_that_a_training_hears(found, value):
    assert found(asked.signal, with_extra(gpu_job(), f"--signal={value}"), cpu_job()) == ""


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("B:TERM@120", "which ends the batch shell and with it the job"),
        ("RB:15@5", "which ends the batch shell and with it the job"),
        ("USR1@60", "which ends a training at once"),
        ("R:10", "which ends a training at once"),
    ],
)
def test_a_signal_at_which_a_training_is_lost(found, value, why):
    said = found(asked.signal, with_extra(gpu_job(), f"--signal TERM --signal {value}"), gpu_job("gate"))
    assert f"found: --signal={value} in slurm_extra, {why}: measure_cell\n" in said
    assert f"what to do: write --signal=TERM@120 into slurm_extra in {FILE}" in said

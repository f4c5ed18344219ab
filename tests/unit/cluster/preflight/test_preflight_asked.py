"""What Slurm would take without a word: GPUs, cores, time, options in slurm_extra and in the shell."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from preflight_fixtures import NODE, cpu_job, gpu_job

from gpufeed.cluster.preflight import asked, login_node
from gpufeed.cluster.preflight.asked_plan import Ask, requests
from gpufeed.cluster.preflight.site import read_site


@pytest.mark.parametrize(
    ("resources", "asked_for"),
    [
        ({"gpu": 2, "gpu_model": "H200", "nodes": 2}, [(2, "H200")]),
        ({"gpu": "2"}, [(2, "")]),
        ({"gpu_model": "H200"}, [(1, "H200")]),  # as the executor has it
        ({"gpu": 0, "gpu_model": "H200"}, [(0, "H200")]),
        ({"gpu": None, "gres": "gpu:H200:2", "nodes": 2}, [(4, "H200")]),
        ({"gres": "gpu"}, [(1, "")]),
        ({"gres": "gpu:2"}, [(2, "")]),
        ({"gres": "gpu:RTX_6000"}, [(1, "RTX_6000")]),
        ({"gres": "gpu:1g.5gb:3"}, [(3, "1g.5gb")]),
        ({"gres": "tmp:100G"}, []),
        ({"gpu": "H200:1", "nodes": "two"}, []),
        ({"gpu": 0, "gpu_model": "H200", "gres": "gpu:A100:8"}, [(0, "H200"), (8, "A100")]),
    ],
)
def test_gpus_that_resources_ask_for(resources, asked_for):
    assert requests(resources) == asked_for


@given(st.dictionaries(st.sampled_from(["gpu", "gpu_model", "gres", "nodes"]), st.text() | st.integers(0)))
def test_no_resource_is_too_wild(resources):
    ask = Ask("gate", "", resources | {"slurm_extra": resources.get("gres")})
    assert ask.gpus >= 0
    assert all(model == str(model) for model in ask.models)
    assert isinstance(ask.extra, list)


def test_other_gpus_than_the_rule_wants(found):
    more = [gpu_job(rule) for rule in ("measure_cell", "gate")]
    more = [replace(job, resources=job.resources | {"gpu": 4}) for job in more]
    fewer = replace(gpu_job("train_model"), own={"gpu": 2, "gpu_model": "H200"})
    said = found(asked.set_by_rules, *more, fewer)
    assert "found: GPUs: the rule wants 1 x H200, the job asks for 4 x H200: gate, measure_cell\n" in said
    assert "found: GPUs: the rule wants 2 x H200, the job asks for 1 x H200: train_model\n" in said
    assert "Use devices, nodes and cores_per_job in the config" in said


def test_another_model_than_that_of_the_sweep(found):
    job = replace(gpu_job(), own={"gpu": 1, "gpu_model": "A100"})
    assert "the rule wants 1 x A100, the job asks for 1 x H200: measure_cell" in found(
        asked.set_by_rules, job
    )


def test_rules_that_want_no_gpu_and_rules_that_want_one(found):
    none = replace(gpu_job("gate"), resources={"gpu": 0, "gpu_model": "H200"})
    said = found(asked.set_by_rules, cpu_job(gpu_model="H200"), none)
    assert "the rule wants none, the job asks for 1 x H200: tabulate" in said
    assert "the rule wants 1 x H200, the job asks for none: gate" in said
    assert found(asked.set_by_rules, cpu_job(gpu=0, gpu_model="H200"), gpu_job()) == ""


def test_gpus_asked_for_by_gres_in_place_of_gpu(found):
    by_gres = gpu_job(minutes=600)
    instead = {"gpu": 0, "gpu_model": "", "gres": "gpu:H200:1"}
    by_gres = replace(by_gres, resources=by_gres.resources | instead)
    assert found(asked.set_by_rules, by_gres) == ""
    twice = replace(by_gres, resources=by_gres.resources | {"gres": "gpu:H200:8", "gpu_model": "H200"})
    said = found(asked.set_by_rules, twice)
    assert "GPUs asked for twice, none by gpu and 8 x H200 by gres: measure_cell" in said
    assert "8 GPUs for 10 h are 80 GPU-hours" in found(asked.time, twice)


def two_nodes(gpus=2, minutes=60, **resources) -> Ask:
    own = {"gpu": None, "gres": f"gpu:H200:{gpus}", "nodes": 2, "tasks": 2, "tasks_per_gpu": 0}
    given = {"slurm_account": "coc", "runtime": minutes, **own, **resources}
    return Ask("measure_cell", gpu_job().line.replace("--nodes=1", "--nodes=2"), given, own)


def test_gpus_of_all_nodes_count(found):
    for check in asked.CHECKS:
        assert found(check, two_nodes(), gpu_job()) == ""
    said = found(asked.time, two_nodes(gpus=4, minutes=180))
    assert "8 GPUs for 3 h are 24 GPU-hours, where 16 are allowed, 2 h" in said
    assert "nodes: the rule wants 2, the job asks for 3" in found(asked.set_by_rules, two_nodes(nodes=3))
    assert "tasks_per_gpu: the rule wants none, the job asks for 2" in found(
        asked.set_by_rules, two_nodes(tasks_per_gpu=2)
    )


def test_any_gpu(found):
    job = replace(gpu_job(), own={"gpu": 1}, resources={"gpu": 1})
    assert "no model of GPU (sweep_gpu_model): measure_cell" in found(asked.set_by_rules, job, cpu_job())


def test_a_model_in_two_forms_without_a_constraint(found):
    said = found(asked.forms, gpu_job(model="A100"), cpu_job())
    assert "note: GPU A100 in any of its forms, A100-40GB, A100-80GB: measure_cell\n" in said
    assert found(asked.forms, gpu_job(model="A100", constraint="A100-80GB"), gpu_job()) == ""


@pytest.mark.parametrize(
    ("job", "fault"),
    [
        (gpu_job(cpus_per_task=1), "cpus_per_task: the rule wants 8, the job asks for 1: measure_cell"),
        (gpu_job(cpus_per_task=-1), "cpus_per_task: the rule wants 8, the job asks for -1: measure_cell"),
        (cpu_job(constraint="A100"), "constraint: the rule wants none, the job asks for A100: tabulate"),
        (cpu_job(nodes=3), "nodes: the rule wants 1, the job asks for 3: tabulate"),
        (gpu_job(tasks=2), "tasks: the rule wants none, the job asks for 2: measure_cell"),
    ],
)
def test_what_a_profile_changes_of_what_a_rule_sets(found, job, fault):
    said = found(asked.set_by_rules, job, gpu_job("gate"), cpu_job("plot", cpus_per_task=4))
    assert f"found: {fault}\n" in said


def test_one_gpu_needs_no_number_of_nodes_and_two_do(found):
    one, two = (
        replace(job, resources={name: value for name, value in job.resources.items() if name != "nodes"})
        for job in (gpu_job(), gpu_job("gate", gpus=2))
    )
    assert found(asked.set_by_rules, one, cpu_job(tasks=1)) == ""
    assert "nodes: the rule wants 1, the job asks for none: gate\n" in found(asked.set_by_rules, one, two)


def test_a_partition_that_does_not_take_the_job(found):
    bare = replace(cpu_job(), line="sbatch --qos=coc-ice")
    beyond = replace(gpu_job(slurm_partition="ice-cpu"), misfit=True)
    said = found(asked.partition, bare, beyond, gpu_job("gate"), replace(cpu_job("plot"), line=""))
    assert "found: no partition: tabulate\n" in said
    assert "found: partition ice-cpu, whose limits in the file the job exceeds: measure_cell\n" in said
    assert said.count("found:") == 2


def test_a_preemptible_job_that_nobody_starts_again(found):
    job, phoenix = gpu_job(qos="embers"), read_site("pace-phoenix")
    assert found(asked.preempted, job, site=phoenix) == ""
    stays = replace(job, line=job.line.replace("--requeue", ""))
    assert found(asked.preempted, stays) == ""
    said = found(asked.preempted, stays, site=phoenix)
    assert "no --requeue under qos embers, which may preempt after 1 h: measure_cell" in said


@pytest.mark.parametrize(
    ("job", "sentence"),
    [
        (
            gpu_job(gpus=2, minutes=481),
            "2 GPUs for 8.01667 h are 16.0333 GPU-hours, where 16 are allowed, 8 h",
        ),
        (cpu_job(minutes=1000), "16.6667 h, where 16 h are allowed"),
        (replace(gpu_job(minutes=600), last_runtime=1200), "20 h at the last retry, where 16 h are allowed"),
        (
            replace(gpu_job(gpus=2, minutes=300), last_runtime=600),
            "2 GPUs for 10 h at the last retry are 20 GPU-hours",
        ),
    ],
)
def test_too_long_for_the_site(found, job, sentence):
    said = found(asked.time, job, gpu_job("gate", gpus=2, minutes=480), cpu_job("plot", minutes=960))
    assert sentence in said
    assert said.count("found:") == 1


def test_a_quality_of_service_whose_limits_nobody_knows(found, site):
    assert "qos embers: no limits in site.yaml, which has coc-ice, pace-ice: gate" in found(
        asked.time, gpu_job("gate", qos="embers"), gpu_job()
    )
    assert "qos missing: no limits" in found(asked.time, replace(cpu_job(), line="sbatch"))
    assert found(asked.time, cpu_job(), site=replace(site, qos={})) == ""


def test_embers_ends_after_eight_hours(found):
    said = found(asked.time, gpu_job(minutes=540, qos="embers"), site=read_site("pace-phoenix"))
    assert "9 h, where 8 h are allowed" in said
    assert found(asked.time, gpu_job(minutes=540, qos="inferno"), site=read_site("pace-phoenix")) == ""


@pytest.mark.parametrize(
    ("extra", "option", "instead"),
    [
        ("-q inferno", "-q", "qos"),
        ("-qinferno", "-q", "qos"),
        ("--time=5", "--time", "runtime"),
        ("--no-requeue", "--no-requeue", "slurm-requeue"),
        ("--mem-per-gpu=4000", "--mem-per-gpu", "mem_mb"),
        ("-CA100", "-C", "sweep_constraint"),
        ("-G 2", "-G", "devices of a block"),
        ("--mail-user='a b' --gpus-per-node H200:2", "--gpus-per-node", "devices of a block"),
        ("--mail-user='a b -t 5", "-t", "runtime"),  # a quote that is never closed
    ],
)
def test_options_in_place_of_resources(found, extra, option, instead):
    said = found(asked.extra, gpu_job(slurm_extra=extra), cpu_job())
    assert f"found: {option} in slurm_extra instead of {instead}: measure_cell\n" in said
    assert said.count("found:") == 1


def test_options_that_stand_for_no_resource(found):
    others = "--exclude=node-t5 --nice=3 --mail-type=END --reservation=mine --signal=TERM@120"
    assert found(asked.extra, gpu_job(slurm_extra=others), cpu_job()) == ""


@pytest.mark.parametrize("value", ["TERM@120", "SIGTERM@60", "15", "term@9", "R:TERM@120"])
def test_a_signal_that_a_training_hears(found, value):
    assert found(asked.signal, gpu_job(slurm_extra=f"--signal={value}"), cpu_job()) == ""


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("B:TERM@120", "which ends the batch shell and so the job"),
        ("RB:15@5", "which ends the batch shell and so the job"),
        ("USR1@60", "which ends a training at once"),
        ("R:10", "which ends a training at once"),
    ],
)
def test_a_signal_at_which_a_training_is_lost(found, value, why):
    said = found(asked.signal, gpu_job(slurm_extra=f"--signal TERM --signal {value}"), gpu_job("gate"))
    assert f"found: --signal={value} in slurm_extra, {why}: measure_cell\n" in said
    assert "what to do: write --signal=TERM@120 into slurm_extra" in said


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        *[(f"SBATCH_{name}", True) for name in ("GPUS_PER_NODE", "CONSTRAINT", "GRES", "GPUS", "EXCLUSIVE")],
        *[(f"SBATCH_{name}", False) for name in ("ACCOUNT", "NO_REQUEUE", "QOS", "TIMELIMIT", "DEBUG")],
    ],
)
def test_variables_that_sbatch_takes_as_options(found, monkeypatch, name, changes):
    monkeypatch.setattr(login_node, "ask_torch", lambda: ("", (), ""))
    monkeypatch.setenv(name, "")  # empty is set, to sbatch
    assert name in login_node.look().variables
    said = found(asked.shell, gpu_job(), node=replace(NODE, variables=(name,)))
    assert (f"found: {name} in the shell" in said) == changes
    assert (f"unset {name}; use the profile instead" in said) == changes

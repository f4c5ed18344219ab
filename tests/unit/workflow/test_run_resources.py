"""What the rules ask of a run: its cells, and the cores and GPUs of its jobs."""

from types import SimpleNamespace

import pytest

from gpufeed.core.errors import GpufeedError
from gpufeed.workflow.gates import Gates
from gpufeed.workflow.resources import JobResources

ANY = SimpleNamespace()


def snakemake(cores=16, gpu=None, submits=False, defaults=None):
    """The part of Snakemake's workflow that is read."""
    return SimpleNamespace(
        remote_exec=False,
        local_exec=not submits,
        global_resources={} if gpu is None else {"gpu": SimpleNamespace(value=gpu)},
        resource_settings=SimpleNamespace(
            cores=cores,
            default_resources={key: SimpleNamespace(raw=raw) for key, raw in (defaults or {}).items()},
        ),
    )


def resources(run, **workflow):
    return JobResources(run, Gates(run), snakemake(**workflow))


def test_a_cell_that_the_config_no_longer_has_is_an_error(run, of_cell):
    tiny = run()
    assert tiny.cell_of(of_cell(tiny, "resident")).loader == "resident"
    with pytest.raises(GpufeedError) as caught:
        tiny.cell_of(SimpleNamespace(experiment="tiny", cell="gone"))
    assert caught.value.found == "no cell gone in experiment tiny"


def test_an_attempt_is_one_more_than_what_is_there(run, tmp_path):
    tiny, path = run(), tmp_path / "0.json"
    assert tiny.attempt_at(path) == 1
    path.write_text('{"attempt": 4, "status": "failed", "planned_on": "here"}')
    assert tiny.attempt_at(path) == 5


@pytest.mark.parametrize(
    ("device", "workflow", "shares"),
    [
        ("auto", {"gpu": 4}, 4),
        ("auto", {}, 1),
        ("auto", {"gpu": 4, "cores": 3}, 3),  # no share is less than a core
        ("auto", {"gpu": 4, "submits": True}, 1),
        ("cpu", {"gpu": 4}, 1),
    ],
)
def test_jobs_with_a_gpu_share_the_cores_of_this_node(run, device, workflow, shares):
    assert resources(run(device=device), **workflow).shares == shares


@pytest.mark.parametrize(
    ("workflow", "options"),
    [
        ({"cores": 4, "gpu": 2}, ["--cores 4", "--resources gpu=2"]),
        ({"cores": 4, "gpu": 0}, ["--cores 4", "--resources gpu=0"]),
        ({"cores": 4}, ["--cores 4"]),
        ({"cores": 4, "gpu": 2, "submits": True}, ["--profile slurm", "--profile 'my site'"]),
        ({"cores": None}, []),
    ],
)
def test_a_run_is_started_again_with_the_cores_and_gpus_that_it_had(run, monkeypatch, workflow, options):
    monkeypatch.setattr("sys.argv", ["snakemake", "--profile", "slurm", "--profile=my site", "-n"])
    assert resources(run(), **workflow).options() == options


def test_cores_of_jobs(run, of_cell):
    tiny = run(device="auto")
    here, shared = resources(tiny, cores=16), resources(tiny, cores=16, gpu=4)
    cluster = resources(tiny, submits=True)
    workers = of_cell(tiny, "dataloader_workers")
    assert (here.cores_of_job(ANY), shared.cores_of_job(ANY)) == (16, 16)
    assert (here.cores_of_cell(workers), shared.cores_of_cell(workers)) == (16, 4)
    assert (here.cores_of_evaluation(workers), shared.cores_of_evaluation(workers)) == (8, 4)
    assert (here.cores_of_extension(ANY), here.cores_of_prediction(ANY)) == (4, 8)
    per_job = tiny.config["cores_per_job"]
    assert cluster.cores_of_job(ANY) == cluster.cores_of_cell(workers) == per_job
    assert cluster.cores_of_job(ANY, workers=per_job + 9) == per_job + 9
    assert resources(run(cores_per_cell=6)).cores_of_build(ANY) == 6


def test_a_gate_leaves_cores_to_another_one(run):
    tiny = run()
    (name,) = (name for name in Gates(tiny).names("tiny") if "dataloader_workers" in name)
    dataset, loader, variant = name.split("/")
    judged = SimpleNamespace(dataset=dataset, loader=loader, variant=variant)
    assert resources(tiny).cores_of_gate(judged) == 8
    with pytest.raises(GpufeedError, match="no cell with dataloader_workers on synthetic and settings b9"):
        resources(tiny).cores_of_gate(SimpleNamespace(dataset=dataset, loader=loader, variant="b9"))


def test_the_model_of_gpus_is_for_jobs_that_take_any(run):
    defaults = {"gpu_model": "'A100'", "sweep_gpu_model": "H200", "constraint": "None"}
    found = resources(run(device="auto"), defaults=defaults).of_gpu_jobs(
        lambda wildcards: wildcards == "takes"
    )
    assert set(found) == {"gpu_model"}
    assert (found["gpu_model"]("takes"), found["gpu_model"]("takes none")) == ("H200", None)
    assert resources(run(), defaults=defaults).of_gpu_jobs() == {}
    assert resources(run(device="auto"), gpu=2).of_gpu_jobs() == {"shares": 2}


def test_a_training_on_several_nodes_is_one_job_of_mpi(run, of_cell):
    several = {
        "loaders": {"loader": ["resident"], "trainer": "lightning", "devices": 2, "nodes": 3},
        "one": {"loader": ["dataloader_sync"]},
    }
    tiny = run({"blocks": several}, device="cuda")
    cluster = resources(tiny, submits=True, defaults={"gpu_model": "H200"})
    wanted = cluster.of_trainings()
    spread = {key: value(of_cell(tiny, "resident")) for key, value in wanted.items()}
    assert spread == {
        "tasks": 3,
        "tasks_per_gpu": 0,
        "mpi": "srun",
        "gres": "gpu:H200:2",
        "gpu_model": None,
        "nodes": 3,
    }
    alone = {key: value(of_cell(tiny, "dataloader_sync")) for key, value in wanted.items()}
    assert alone == {**dict.fromkeys(spread), "gpu_model": "H200", "nodes": 1}
    assert cluster.gpus_of_cell(of_cell(tiny, "resident")) is None
    assert resources(tiny).gpus_of_cell(of_cell(tiny, "resident")) == 2


def test_a_cell_with_cores_of_its_own_has_them_at_least(run, of_cell):
    few = {"blocks": {"one": {"loader": ["dataloader_workers"], "workers": "auto", "cores": 12}}}
    tiny = run(few, device="auto")
    wildcards = of_cell(tiny, "dataloader_workers")
    assert resources(tiny, cores=16).cores_of_cell(wildcards) == 16
    assert resources(tiny, cores=16, gpu=4).cores_of_cell(wildcards) == 12
    assert resources(tiny, submits=True).cores_of_cell(wildcards) == 12
    per_cell = run(few, device="auto", cores_per_cell=4)
    assert resources(per_cell, cores=16).cores_of_cell(wildcards) == 12
    assert resources(tiny, submits=True).cores_of_evaluation(wildcards) == tiny.config["cores_per_job"]
    (name,) = Gates(tiny).names("tiny")
    dataset, loader, variant = name.split("/")
    judged = SimpleNamespace(dataset=dataset, loader=loader, variant=variant)
    assert variant.startswith("b8-wauto12-")
    assert resources(tiny, cores=16).cores_of_gate(judged) == 8

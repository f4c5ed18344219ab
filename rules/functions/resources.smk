# Cores and GPUs of the jobs.

from gpufeed.registry import takes_gpu


def submitted():
    """Whether jobs run elsewhere: in a run that submits them, and in each run that it submits.

    A function, since Snakemake does not know its executor yet while it reads the rules.
    """
    return workflow.remote_exec or not workflow.local_exec


def shares_given():
    """Jobs with a GPU that run at once on this node, each on as many of its cores: `--resources gpu=N`.

    1 in a run that does not say it, in one of fewer cores, and in jobs that are submitted to a cluster.
    """
    given = getattr(workflow.global_resources.get("gpu"), "value", None)
    total = workflow.resource_settings.cores
    if not (GPU_JOBS and given and total) or submitted():
        return 1
    return max(1, min(int(given), total // (config["cores_per_cell"] or 1)))


SHARES = shares_given()


def cores_of_job(wildcards, workers=0, share=1):
    """CPU cores of a job: all that the run has, of which a job may leave a share to others.

    A job that is submitted to a cluster is alone on nodes that nobody knows while planning, least of all by
    the login node's cores: it has what the config says, and no fewer than it has worker processes. Rules
    say it twice: as threads, which Snakemake cuts to the login node's cores when it submits a job, and as
    cpus_per_task, which Slurm is asked for.
    """
    total = workflow.resource_settings.cores  # None with an executor that counts jobs
    if submitted() or total is None:
        return max(config["cores_per_job"], workers)
    return -(-total // share)


def cores_of_extension(wildcards):
    """There are few files to compile, and each takes a GiB or two of memory."""
    return min(4, cores_of_job(wildcards))


def cores_of_cell(wildcards):
    """CPU cores of a measurement on a node: all, or a share of them for each of its GPUs.

    On a cluster each GPU has those of a job with one, for the rank that it trains with and that one's workers.
    """
    cell = cell_of(wildcards)
    if submitted():
        return config["cores_per_cell"] or cores_of_job(wildcards, cell.workers) * cell.devices
    given = config["cores_per_cell"] or cores_of_job(wildcards, cell.workers) // SHARES
    return given if SHARES == 1 else min(given * cell.devices, cores_of_job(wildcards))


def gpus_of_cell(wildcards):
    """GPUs of a training: all that the cell's processes on this node train on.

    Snakemake cuts it to what `--resources gpu=N` gives, where the job finds what the node has. Slurm would take
    it for those of all nodes, and spread them as it likes: for several the job has `gres` (see of_trainings).
    """
    return None if submitted() and spreads(wildcards) else GPU_JOBS * cell_of(wildcards).devices


def spreads(wildcards):
    """Whether the cell is trained on several nodes."""
    return cell_of(wildcards).nodes > 1


def cores_of_gate(wildcards):
    """Nothing is timed: where several GPUs, or none, are reserved, two loaders or more are judged at once."""
    return cores_of_job(wildcards, settings_judged(wildcards)["workers"], share=max(2, SHARES))


def cores_of_evaluation(wildcards):
    """Nothing is timed."""
    return cores_of_job(wildcards, cell_of(wildcards).workers, share=max(2, SHARES))


def cores_of_prediction(wildcards):
    """Nothing is timed, and no worker runs."""
    return cores_of_job(wildcards, share=max(2, SHARES))


def cores_of_build(wildcards):
    """Those of a measurement also where one core decodes: nothing may run beside it."""
    return config["cores_per_cell"] or cores_of_job(wildcards)


def of_sweep(name):
    """What the profile's default resources say for jobs with a GPU alone: sweep_NAME, or NAME; None without.

    A key that is left empty is none: YAML reads `sweep_gpu_model:` as None.
    """
    defaults = workflow.resource_settings.default_resources or {}
    given = [str(defaults[key].raw).strip("'\"") for key in (f"sweep_{name}", name) if key in defaults]
    return next((value for value in given if value not in ("", "None")), None)


def of_gpu_jobs(takes=lambda wildcards: True):
    """The model and the constraint of its GPUs, for a job that takes any: the same for all jobs of a sweep.
    And, where jobs run at once on this node, into how many shares its cores go (gpufeed/leases/cores.py).

    As default resources they would reach every rule, and Slurm's executor asks for a GPU wherever it finds a
    gpu_model without `gpu`.
    """
    given = {name: of_sweep(name) for name in ("gpu_model", "constraint") if GPU_JOBS}
    wanted = {
        name: lambda wildcards, value=value: value if takes(wildcards) else None
        for name, value in given.items()
        if value
    }
    return wanted | ({"shares": SHARES} if SHARES > 1 else {})


def gres_of_cell(cell):
    """GPUs of each of several nodes, as Slurm spells them."""
    return ":".join(["gpu", *filter(None, [of_sweep("gpu_model")]), str(cell.devices)]) if GPU_JOBS else None


def of_trainings():
    """What a training asks for, beside cores and `gpu`.

    On several nodes the job is one process on the first, which starts one on each by srun (gpufeed/ddp/slurm.py).
    Slurm's executor leaves that to a job of MPI, which it puts into no step of its own: one with as many tasks as
    nodes, and none for a GPU.
    """
    several = {"tasks": lambda cell: cell.nodes, "tasks_per_gpu": lambda cell: 0, "mpi": lambda cell: "srun"}
    several |= {"gres": gres_of_cell}
    wanted = {
        name: lambda wildcards, value=value: value(cell_of(wildcards)) if spreads(wildcards) else None
        for name, value in several.items()
    }
    if not any(cell.nodes > 1 for cells in PLAN.cells.values() for cell in cells.values()):
        wanted = {}
    wanted |= of_gpu_jobs()
    if (model := wanted.get("gpu_model")) is not None:  # stands in gres
        wanted["gpu_model"] = lambda wildcards: None if spreads(wildcards) else model(wildcards)
    return wanted | {"nodes": lambda wildcards: cell_of(wildcards).nodes}

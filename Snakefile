"""gpufeed: which input pipeline keeps my GPU fed, how far is each from the limit, and why?"""

import sys
from pathlib import Path

from snakemake.logging import logger
from snakemake.utils import min_version

min_version("9.20")
sys.path.insert(0, str(workflow.current_basedir))  # gpufeed lies beside the Snakefile

from gpufeed.workflow.terminal import installed

TERMINAL = installed(workflow, logger)  # before Snakemake says which config it reads


CONFIG = "config/config.yaml"


# the clone's, if the folder of the run has none (-s CLONE/Snakefile)
configfile: CONFIG if Path(CONFIG).exists() else f"{workflow.current_basedir}/{CONFIG}"


# the image of containers/gpufeed.def, used with --sdm apptainer
container: "containers/gpufeed.sif"


report: "workflow/report/workflow.rst"


include: "rules/common.smk"
include: "rules/data.smk"
include: "rules/stores.smk"
include: "rules/gate.smk"
include: "rules/advice.smk"
include: "rules/measure.smk"
include: "rules/benchmarks.smk"
include: "rules/models.smk"
include: "rules/inference.smk"
include: "rules/report.smk"
include: "rules/compare.smk"


rule all:
    default_target: True
    input:
        f"{RESULTS}/report.html",
        # the page does not imply them: `snakemake report` writes it at any time
        lambda wildcards: REPORT.parts_of(config["run"]),
        REPORT.comparisons(),


onstart:
    folder_lock.record(getattr(workflow.persistence, "_lockfile", {}).values(), ESTIMATE.runs_here)
    if TERMINAL:
        TERMINAL.handle_signals(kills=ESTIMATE.runs_here)
    files = [file for job in workflow.dag.needrun_jobs() for file in job.output]
    if refused := unwritable(RESULTS, DATA, files):
        raise WorkflowError(str(refused))


onsuccess:
    for line in ENDING():
        SAY(line)


onerror:
    for line in [*ENDING(), "Not all was measured. What was is kept: the same command resumes."]:
        SAY(line)


if TERMINAL:
    TERMINAL.known = Known(
        cells=RUN.cells,
        targets=["all", "report", *PLAN.cells],
        ahead=lambda: workflow.dag.needrun_jobs(),
        behind=lambda jobs: workflow.dag.bfs(workflow.dag.depending, *jobs),
        seconds_of=ESTIMATE.seconds_of,
        forget=ESTIMATE.forget,
        workers_of=ESTIMATE.workers_of,
        ending=ENDING,
        files=lambda: [f"{RESULTS}/report.html", *REPORT.parts_of(PLAN.cells)],
        prints=lambda experiment: bool(REPORT.side_by_side.get(experiment)) or not ESTIMATE.runs_here,
        command=" ".join(["snakemake", *AGAIN_BY]),
    )

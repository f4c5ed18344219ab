"""gpufeed: which input pipeline keeps my GPU fed, how far is each from the limit, and why?"""

from pathlib import Path

from snakemake.utils import min_version

min_version("9.20")


CONFIG = "config/config.yaml"


# where the folder of the run has none (-s CLONE/Snakefile), that of the clone
configfile: CONFIG if Path(CONFIG).exists() else f"{workflow.basedir}/{CONFIG}"


# the image of containers/gpufeed.def, used with --sdm apptainer
container: "containers/gpufeed.sif"


report: "workflow/report/workflow.rst"


include: "rules/common.smk"
include: "rules/functions/resources.smk"
include: "rules/functions/codes.smk"
include: "rules/functions/data.smk"
include: "rules/functions/inputs.smk"
include: "rules/functions/cache.smk"
include: "rules/functions/extension.smk"
include: "rules/functions/repeats.smk"
include: "rules/functions/gate.smk"
include: "rules/functions/measure.smk"
include: "rules/functions/ceilings.smk"
include: "rules/functions/sweep.smk"
include: "rules/functions/builds.smk"
include: "rules/functions/kernels.smk"
include: "rules/functions/models.smk"
include: "rules/functions/inference.smk"
include: "rules/functions/report.smk"
include: "rules/functions/compare.smk"
include: "rules/functions/expected.smk"
include: "rules/data.smk"
include: "rules/cache.smk"
include: "rules/strips.smk"
include: "rules/shards.smk"
include: "rules/beton.smk"
include: "rules/extension.smk"
include: "rules/gate.smk"
include: "rules/measure.smk"
include: "rules/repeats.smk"
include: "rules/ceilings.smk"
include: "rules/sweep.smk"
include: "rules/builds.smk"
include: "rules/kernels.smk"
include: "rules/models.smk"
include: "rules/inference.smk"
include: "rules/report.smk"
include: "rules/compare.smk"


rule all:
    default_target: True
    input:
        f"{RESULTS}/report.html",
        # the page alone says nothing of them: `snakemake report` writes it before they are there
        lambda wildcards: parts_of(config["run"]),
        COMPARISONS,


onstart:
    if refused := unwritable(RESULTS):
        raise WorkflowError(str(refused))


onerror:
    print("Some jobs failed. What was measured is kept: `snakemake report` writes the report of it.")

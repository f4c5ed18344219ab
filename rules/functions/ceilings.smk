# Cells with their ceilings.

from gpufeed.ceilings import plan as ceilings_plan

LIMITED = {name: ceilings_plan.cells(config, PLAN, name) for name in PLAN.cells}  # cells with their ceilings


def ceilings_of(experiment):
    """The ceilings of the cells of an experiment, a file each."""
    return [f"{RESULTS}/ceilings/{experiment}/{cell}.json" for cell in LIMITED[experiment]]


def settings_of_ceilings(wildcards):
    """How the ceilings of an experiment are measured; without any their path is an error."""
    settings = ceilings_plan.settings(config, wildcards.experiment)
    if settings is None:
        raise WorkflowError(
            f"found: no ceilings in experiment {wildcards.experiment}\nexpected: `ceilings:` in it"
        )
    return settings

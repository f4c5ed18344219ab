# Models that are measured in use.

from gpufeed.inference import plan as inference_plan

IN_USE = {name: inference_plan.cells(config, PLAN, name) for name in PLAN.cells}  # models measured in use


def inferences_of(experiment):
    """The measurements of the models of an experiment in use, a file each."""
    return [f"{RESULTS}/inference/{experiment}/{cell}.json" for cell in IN_USE[experiment]]


def inference_of(wildcards):
    """What the models of an experiment are measured with; without any its path is an error."""
    settings = inference_plan.settings(config, wildcards.experiment)
    if settings is None:
        raise WorkflowError(
            f"found: no inference in experiment {wildcards.experiment}\nexpected: `inference:` in it"
        )
    return settings

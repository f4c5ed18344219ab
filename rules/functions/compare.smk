# The records that an experiment is held against.

from gpufeed.baseline import baseline_records


def baseline_of(wildcards):
    """The records of an experiment in the folder that it is held against."""
    if not config["baseline"]:
        raise WorkflowError(
            "found: no folder `baseline` in the config\n"
            "expected: the folder of the results that these are held against\n"
            "what to do: --config baseline=results/reference/h200, or python -m gpufeed.compare A B"
        )
    try:
        return [str(path) for path in baseline_records(config["baseline"], wildcards.experiment)]
    except GpufeedError as error:
        raise WorkflowError(f"the results cannot be compared\n{error}")

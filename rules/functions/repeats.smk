# How often a cell is measured, and its records.


def decision_on(experiment, repeats):
    """The file that says whether so many repeats are too few; experiments with `repeats: auto` have it."""
    return f"{RESULTS}/repeats/{experiment}/{repeats}.json"


def auto_of(experiment):
    """The settings behind `repeats: auto`; without it the path of a decision is an error."""
    try:
        return PLAN.auto[experiment]
    except KeyError:
        raise WorkflowError(
            f"found: a fixed number of repeats in experiment {experiment}\nexpected: `repeats: auto` in it"
        )


def repeats_so_far(experiment):
    """Repeats of a cell by the decisions that are there."""
    if experiment not in PLAN.auto:
        return PLAN.repeats[experiment]
    return auto_of(experiment).count(lambda repeats: decision_on(experiment, repeats))


def repeats_of(experiment):
    """Repeats of a cell; with `repeats: auto` Snakemake measures and asks again until no more are wanted."""
    if experiment not in PLAN.auto:
        return PLAN.repeats[experiment]
    decide = checkpoints.count_repeats
    return auto_of(experiment).count(
        lambda repeats: decide.get(experiment=experiment, repeats=repeats).output[0]
    )


def first_records_of(experiment, repeats):
    """Paths of the records of so many repeats of all cells; each vouches for the step table beside it."""
    return [
        f"{RESULTS}/records/{experiment}/{cell}/{repeat}.json"
        for cell in PLAN.cells[experiment]
        for repeat in range(repeats)
    ]


def records_of(experiment):
    """As first_records_of, of all repeats of an experiment."""
    return first_records_of(experiment, repeats_of(experiment))

# How often a cell is measured, and its records.

import json


def disturbed_in(experiment, repeats):
    """The file that says which of so many repeats are measured once more."""
    return f"{RESULTS}/again/{experiment}/{repeats}.json"


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


def second_records_of(experiment, repeats):
    """Paths of the second records of those repeats that Snakemake finds marked once they are measured."""
    if not PLAN.cells[experiment]:
        return []
    found = checkpoints.find_disturbed.get(experiment=experiment, repeats=repeats).output[0]
    with open(found) as file:
        return [f"{RESULTS}/records/{experiment}/{name}{AGAIN}.json" for name in json.load(file)["again"]]


def measured_so_far(experiment, repeats):
    """Paths of all records of so many repeats, second ones included."""
    return first_records_of(experiment, repeats) + second_records_of(experiment, repeats)


def records_of(experiment):
    """As measured_so_far, of all repeats of an experiment."""
    return measured_so_far(experiment, repeats_of(experiment))

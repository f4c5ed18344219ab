# Verdicts on loaders: their names, their settings, and which cells wait for which.

from functools import cache

from gpufeed.gate.variants import settings_of, variant


def gate_name(cell):
    """What tells the verdict on a cell's loader with the cell's settings from others."""
    return f"{cell.dataset}/{cell.loader}/{variant(settings_of(cell), cell.device)}"


def gate_path(name):
    """The verdict of that name."""
    return f"{RESULTS}/gate/{name}.json"


def attempt_at_gate(wildcards):
    """Which attempt a verdict comes from."""
    return attempt_at(f"{RESULTS}/gate/{wildcards.dataset}/{wildcards.loader}/{wildcards.variant}.json")


@cache
def all_judged():
    """Verdicts that cells wait for: name -> settings. Made once: jobs ask for them again and again."""
    cells = (cell for own in PLAN.cells.values() for cell in own.values())
    return {gate_name(cell): settings_of(cell) for cell in cells}


def settings_judged(wildcards):
    """The settings behind a verdict's name; a name that no cell has is an error."""
    if found := all_judged().get(f"{wildcards.dataset}/{wildcards.loader}/{wildcards.variant}"):
        return found
    raise WorkflowError(
        f"found: no cell with {wildcards.loader} on {wildcards.dataset} and settings {wildcards.variant}\n"
        "expected: settings of a planned cell\n"
        "what to do: name an experiment as target, and snakemake finds its verdicts"
    )


def gate_of(wildcards):
    """The verdict that a cell waits for; ceilings have none."""
    cell = cell_of(wildcards)
    return [] if LOADERS[cell.loader].ceiling else gate_path(gate_name(cell))


def gates_of(experiment):
    """The names of the verdicts that the cells of an experiment wait for."""
    cells = PLAN.cells[experiment].values()
    return sorted({gate_name(cell) for cell in cells if not LOADERS[cell.loader].ceiling})

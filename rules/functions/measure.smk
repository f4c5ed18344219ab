# Which attempt a record comes from.


def attempt_of(wildcards):
    """Which attempt the record comes from."""
    return attempt_at(f"{RESULTS}/records/{wildcards.experiment}/{wildcards.cell}/{wildcards.repeat}.json")

# Timed builds of caches.

from gpufeed.builds import planned_builds

BUILDS = {name: builds for name in PLAN.cells if (builds := planned_builds(config, name))}


def builds_path(experiment, decoder, cores):
    return f"{RESULTS}/builds/{experiment}/{decoder}-{cores}.json"


def attempt_of_build(wildcards):
    """Which attempt the times come from; those of a CPU decoder do not depend on the device."""
    return attempt_at(builds_path(**wildcards), "auto" if takes_gpu(wildcards.decoder) else "cpu")

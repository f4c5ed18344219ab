# Kernel benchmarks.

from gpufeed.kernels.plan import ACTIVATION
from gpufeed.kernels.plan import lines as kernel_lines
from gpufeed.kernels.plan import settings as kernel_settings


def kernels_in_report(experiment):
    """What the kernel benchmark of an experiment is held to; None without one."""
    return {"lines": kernel_lines(config, experiment)} if kernel_settings(config, experiment) else None


def kernels_of(experiment):
    """What the kernel benchmark of an experiment measures; without one its path is an error."""
    settings = kernel_settings(config, experiment)
    if settings is None:
        raise WorkflowError(f"found: no kernels in experiment {experiment}\nexpected: `kernels:` in it")
    return settings


def works_of_kernels(wildcards):
    """Whose kernels the benchmark of an experiment measures."""
    return kernels_of(wildcards.experiment)["family"]


def extension_of_kernels(wildcards):
    """The library whose kernels are measured; the augments need none."""
    return EXTENSION if works_of_kernels(wildcards) == ACTIVATION else []

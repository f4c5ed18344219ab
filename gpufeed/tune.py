"""python -m gpufeed.tune: find the fastest settings of a loader for one training on this machine."""

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from gpufeed import train
from gpufeed.core.compose import Composed
from gpufeed.system.cores import on_cores

USAGE = """Finds the fastest workers, prefetch_factor, pin_memory, persistent_workers and decoder of a loader:
  gpufeed tune data=synthetic model=resnet18
  gpufeed tune data=tiny_imagenet loader=webdataset model=vit_tiny batch_size=256
It takes the keys of gpufeed train (--help lists them); docs/reference/tuning.md explains it."""
# values of keys that the command line does not set
DEFAULTS = {"loader": "dataloader_workers", "trainer": "plain", "workers": "auto", "hydra.job.name": "tune"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code. arguments: None for those of sys.argv."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or {"-h", "--help"} & {*given}:  # Hydra would describe a training
        print(USAGE)
        return train.DONE
    said = {text.lstrip("+").partition("=")[0] for text in given}
    sys.argv = [
        sys.argv[0],
        *given,
        *(f"{key}={value}" for key, value in DEFAULTS.items() if key not in said),
    ]
    return train.main(tune)


def tune(found: Composed, folder: str) -> None:
    """Tune the loader of a composed command line; leave tuned.json in the run's folder."""
    cores = found.values.get("cores")  # checked later, by what imports torch, which counts them
    with on_cores(cores) if isinstance(cores, int) else nullcontext():
        from gpufeed.cli.standalone_tuning import tune_standalone  # imports torch, which --help does not need

        tune_standalone(found, Path(folder))


if __name__ == "__main__":
    sys.exit(main())

"""python -m gpufeed.train: train one model outside the workflow, with Hydra. Without arguments, list
the choices.
"""

import errno
import os
import shlex
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from gpufeed import __version__
from gpufeed.core.compose import (
    PRIMARY,
    Composed,
    for_hydra,
    from_hydra,
    offer,
    offer_references,
    refused,
    row,
    shipped,
)
from gpufeed.core.config import GROUPS, HYPER, is_described
from gpufeed.core.errors import GpufeedError, Skip
from gpufeed.core.registry import AUGMENTS, KINDS, LOADERS, MODELS, RECIPES, TRAINERS
from gpufeed.system.cores import on_cores

DONE, REFUSED, INTERRUPTED = 0, 2, 130  # exit codes; 130 is an interrupt's in shells
EXAMPLES = """For example:
  python -m gpufeed.train trainer.accelerator=gpu trainer.devices=auto model=vit_tiny data=tiny_imagenet
  python -m gpufeed.train data=synthetic model=simple_cnn       (no download, no GPU)
--help lists all keys; docs/reference/training.md explains them. In a clone, python train.py is the same."""
FULL_ERROR = "HYDRA_FULL_ERROR"  # with it Hydra raises its errors instead of printing them and exiting with 1


def main(work: Callable[[Composed, str], None] | None = None) -> int:
    """Run the command line in sys.argv and return its exit code. work: by default `train`.

    With --multirun each run starts, even where others have failed.
    """
    if "--version" in sys.argv[1:]:  # Hydra would print its own version
        print(f"gpufeed {__version__}")
        return DONE
    if not sys.argv[1:]:  # hardly anyone wants to train the defaults
        return offered()
    wanted, failures, begun = os.environ.get(FULL_ERROR), [], []

    @hydra.main(config_path=str(HYPER), config_name=PRIMARY, version_base="1.3")
    def task(config: DictConfig) -> None:
        begun.append(HydraConfig.get().runtime.output_dir)
        try:
            (work or train)(composed(config), begun[-1])
        except (GpufeedError, Skip, OmegaConfBaseException, OSError) as error:
            if isinstance(error, OSError) and (wanted or not of_files(error)):
                raise
            failures.append(error)
            say(error)

    os.environ[FULL_ERROR] = "1"
    try:
        known = shipped()
        offer({name: row(known, name) for name in known["sources"]})
        for group in GROUPS:
            offer({name: {} for name in KINDS[group] if not is_described(group, name)}, group)
        offer_references(sys.argv[1:])
        sys.argv[1:] = for_hydra(sys.argv[1:])
        task()
    except Exception as error:
        if wanted or begun:  # a bug of ours; before a run has begun, an error in the command line
            raise
        say(error)
        return REFUSED
    except KeyboardInterrupt:
        more = f" Resume from a checkpoint, if any: resume={shlex.quote(begun[-1])}" if begun else ""
        print(f"Stopped: no model is kept.{more}", file=sys.stderr)
        return INTERRUPTED
    finally:
        os.environ.pop(FULL_ERROR) if wanted is None else os.environ.update({FULL_ERROR: wanted})
    return REFUSED if failures else DONE


def offered() -> int:
    """Print what can be trained; return the exit code."""
    try:
        groups = {"data": shipped()["sources"], "model": MODELS, "trainer": TRAINERS, "augment": AUGMENTS}
        groups["recipe"] = RECIPES
    except GpufeedError as error:
        say(error)
        return REFUSED
    groups["loader"] = [name for name, loader in LOADERS.items() if not loader.ceiling]
    print("Trains one model. Choose one name per key and write it as key=name:")
    for key, names in groups.items():
        print(f"  {key:8} {', '.join(names)}")
    print(EXAMPLES)
    return DONE


def composed(config: DictConfig) -> Composed:
    """Return what Hydra composed for this run."""
    about = HydraConfig.get()
    values = OmegaConf.to_container(config, resolve=True)
    return from_hydra(values, about.runtime.choices, about.overrides.task)


def train(found: Composed, folder: str) -> None:
    """Train into the run's folder."""
    cores = found.values.get("cores")  # checked later, by what imports torch, which counts them
    with on_cores(cores) if isinstance(cores, int) else nullcontext():
        from gpufeed.cli.standalone_training import (
            train_standalone,  # imports torch, which --help does not need
        )

        train_standalone(found, Path(folder))


def say(error: Exception) -> None:
    """Print an error on standard error; those of Hydra, OmegaConf and the file system in our words."""
    if of_files(error):
        error = GpufeedError(
            f"{type(error).__name__}: {' '.join(str(error).split())}",
            "files and folders that may be read and written, and a disk with space left",
            "correct it, or set other folders: data_folder=FOLDER and, for the run, hydra.run.dir=FOLDER",
        )
    print(error if isinstance(error, GpufeedError | Skip) else refused(error), file=sys.stderr)


def of_files(error: Exception) -> bool:
    """Return whether an error is the file system's: no permission, a full disk, a file for a folder."""
    full = (errno.ENOSPC, errno.EDQUOT)
    return isinstance(error, OSError) and (error.filename is not None or error.errno in full)


if __name__ == "__main__":
    sys.exit(main())

"""gpufeed init [FOLDER]: a folder to run the workflow in, with config and profiles of its own."""

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from gpufeed.core.config import ROOT
from gpufeed.core.errors import GpufeedError
from gpufeed.core.folders import expanded

PARTS = ("config", "profiles", "slurm")
SNAKEFILE = """# The workflow of the installed gpufeed, with the config/ and profiles/ of this folder.

from gpufeed.core.config import ROOT

workflow.include(f"{ROOT}/Snakefile", overwrite_default_target=True)
"""


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    found = argparse.ArgumentParser(
        prog="gpufeed init",
        description="Writes a Snakefile, config/, profiles/ and slurm/ into a folder. In it, snakemake reads "
        "these; gpufeed run reads config/config.yaml and config/hydra, gpufeed train config/hydra.",
    )
    found.add_argument("folder", nargs="?", default=Path(), type=Path, metavar="FOLDER", help="(this one)")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    asked = parser().parse_args(arguments)
    try:
        write(folder := expanded(asked.folder))
    except GpufeedError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"Written: {', '.join(('Snakefile', *PARTS))} in {folder.absolute()}. Now, in that folder:")
    print("  snakemake --configfile config/demo.yaml   # minutes, without a GPU or a network")
    print("  gpufeed run ~/images                      # your own images; config/README.md explains each key")
    return 0


def write(folder: Path) -> None:
    """Write the files; raise GpufeedError where that cannot be, or would overwrite one."""
    if there := [name for name in ("Snakefile", *PARTS) if os.path.exists(folder / name)]:
        raise GpufeedError(
            f"{', '.join(there)} in {folder.absolute()}",
            "a folder that has none of these",
            "name another folder, or move them away",
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for part in PARTS:  # the programs in slurm/ run where gpufeed is installed
            shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
        (folder / "Snakefile").write_text(SNAKEFILE)
    except OSError as error:
        for part in PARTS:  # a second try would find them
            shutil.rmtree(folder / part, ignore_errors=True)
        # of copytree: a list of (from, to, why)
        why = error.args[0][0][-1] if isinstance(error, shutil.Error) else error
        wanted = "a folder that you may write to, on a disk with room"
        raise GpufeedError(f"{folder}: {why}", wanted, "name another") from error

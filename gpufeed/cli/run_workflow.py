"""gpufeed run FOLDER: the whole workflow on images of one's own, by one command."""

import argparse
import fcntl
import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import IO

import yaml

from gpufeed.cli import run_config, run_process, run_results
from gpufeed.cli.run_process import INTERRUPTED
from gpufeed.core.config import ROOT
from gpufeed.core.errors import GpufeedError
from gpufeed.core.file_writes import write_named
from gpufeed.core.quantities import integer
from gpufeed.system.gpu_locks.gpu_listing import VISIBLE_DEVICES, on_node, visible

DONE, FAILED, REFUSED = 0, 1, 2  # exit codes, beside that of an interrupt
SNAKEFILE = ROOT / "Snakefile"


def parser(gpus: int | None = 1) -> argparse.ArgumentParser:
    """Return the command line. gpus: what it has where it names no number."""
    found = argparse.ArgumentParser(
        prog="gpufeed run",
        description="Measures which loader feeds a model fastest with your images on this machine, and how "
        "near each is to the limit. The same command resumes where an earlier one stopped.",
        epilog="Exit code: 0 if all was measured or skipped with a reason, 1 if something failed, 2 if the "
        "command cannot be run, 130 if it was interrupted.",
    )
    add, number = found.add_argument, {"type": partial(integer, least=1), "metavar": "N"}
    add("folder", metavar="FOLDER", help=f"the images: {run_config.KINDS_OF_DATA}")
    add("--model", metavar="REF", help="a name, torchvision:NAME, timm:NAME or path.py:attribute (resnet18)")
    add(
        "--size",
        type=partial(integer, least=8),
        metavar="N",
        help="pixels of a side that the model sees (224; a timm model has its own)",
    )
    add("--batch-size", **number, help="images a step (128, on a CPU 8; fewer for few images)")
    add(
        "--steps",
        type=partial(integer, least=4),
        metavar="N",
        help="steps of a repeat, at least (200, on a CPU 12)",
    )
    add("--limit", **number, help="images to train on at most (20000 of a folder)")
    add("--quick", action="store_true", help="four loaders that suit most nodes, each once")
    add("--loaders", nargs="+", metavar="LOADER", help="these alone: names, or path.py:attribute")
    add("--all", action="store_true", help="measure every loader, and not only the best that probes find")
    add("--cores", **number, help="CPU cores to use (all)")
    add("--gpus", type=integer, default=gpus, metavar="N", help="GPUs to use; 0: the CPU (1 if there is one)")
    add("--out", type=Path, default=Path("results/run"), metavar="FOLDER", help="results (results/run)")
    add("--dry", action="store_true", help="write the config and say what would be measured")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    asked = parser(None).parse_args(words)
    chosen = asked.gpus is None
    asked.gpus = gpus_to_use() if chosen else asked.gpus
    try:
        check_words(words)
        config = run_config.shipped_config()
        changes = run_config.config_of(asked, config["sources"])
        images = run_config.images_to_train_on(config, changes)
        said = run_config.fit_batch(asked, changes, images, config["least_s"])
        plan, results, advice = run_config.plan_of(config, changes, images)
        path = Path(results) / "config.yaml"
        lock = locked(path.parent)
        write_config(path, changes, command_of(asked, path), words)
    except GpufeedError as error:
        print(error, file=sys.stderr)
        return REFUSED
    except KeyboardInterrupt:
        return INTERRUPTED
    with lock:
        if chosen and not asked.gpus:
            why = "No NVIDIA GPU is usable here: training on the CPU; --gpus 1 asks for one all the same."
            said = f"{why} {said}".rstrip()
        if said:
            print(said)
        return measured(asked, path, lambda: run_results.planned(plan, path.parent, advice))


def check_words(words: Sequence[str]) -> None:
    """Raise GpufeedError for a word that a line of the config, which is UTF-8, cannot hold."""
    for word in words:
        if re.search("[\0-\x1f\ud800-\udfff]", word):
            raise GpufeedError(
                f"{word!r}, with a control character or bytes that are not UTF-8",
                "words without them",
                "rename that folder or file",
            )


def gpus_to_use() -> int:
    """Return 1 where this process may use an NVIDIA GPU, or on a Mac, else 0."""
    if sys.platform == "darwin":
        return 1
    return min(1, len(visible(os.environ.get(VISIBLE_DEVICES), on_node())))


def measured(asked: argparse.Namespace, path: Path, records: Callable[[], Sequence[Path]]) -> int:
    """Run the config at `path`, and return the exit code. records: that it leaves; advice adds some."""
    command = command_of(asked, path)
    # what profiles/default says, which Snakemake would name before everything
    command += ["--workflow-profile", "none", "--keep-going", "--rerun-incomplete", "--show-failed-logs"]
    command += ["--dry-run"] if asked.dry else []
    print(f"config: {path}")
    code = run_process.follow(command)
    if code == INTERRUPTED:
        print("Stopped.")  # Snakemake has said what is kept
        return INTERRUPTED
    if asked.dry and not code:
        print("Nothing was measured.")
        return DONE
    return FAILED if code or run_results.any_failed(records()) else DONE


def locked(folder: Path) -> IO:
    """Return the open lock of a folder of results; raise GpufeedError where another run has it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("w")
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise GpufeedError(
            f"another gpufeed run at work in {folder}",
            "one run at a time in a folder of results",
            "wait for it, or name another folder with --out",
        ) from None
    except OSError as error:
        wanted = "a folder that you may write to"
        raise GpufeedError(f"{folder}: {error.strerror}", wanted, "name another with --out") from error
    return lock


def command_of(asked: argparse.Namespace, config: Path) -> list[str]:
    """Return the command that runs the workflow by hand, on the cores and GPUs that were asked for."""
    files = ["--snakefile", str(SNAKEFILE), "--configfile", str(config)]
    limits = ["--cores", str(asked.cores or "all"), "--resources", f"gpu={asked.gpus}"]
    return [sys.executable, "-m", "snakemake", *files, *limits]


def write_config(path: Path, changes: dict, command: Sequence[str], words: Sequence[str]) -> None:
    """Write the config that is run; raise GpufeedError where that cannot be.

    command: that runs it by hand. words: of the command line.
    """
    head = f"# Written by: {shlex.join(['gpufeed', 'run', *words])}\n"
    head += f"# By hand: {shlex.join(command)}\n"
    head += "# It changes config/config.yaml; config/README.md explains every key.\n"
    text = yaml.safe_dump(changes, sort_keys=False, default_flow_style=None, width=110)
    write_named(path, head + text, "--out")

"""The folders of a run and of the repository: where they are, whether they are usable, their records."""

import os
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from gpufeed.core.errors import GpufeedError
from gpufeed.core.packed_results import unpacked
from gpufeed.core.repeats import number_of


def expanded(path: str | Path) -> Path:
    """Return a path with `~` expanded; raise GpufeedError if there is no such home folder, or can be none."""
    if "\0" in str(path):
        raise GpufeedError(f"{str(path)!r}, with a NUL", "a path without it", "correct the path")
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise GpufeedError(
            f"{str(path)!r}, and no home folder of {Path(path).parts[0]!r}",
            "~ for your own home folder, or ~NAME for that of a user of this machine",
            "write the full path, or ./ before a name that begins with ~",
        ) from error


def existing(folder: str | Path) -> Path:
    """Return the folder, or its nearest existing parent."""
    path = expanded(folder).absolute()
    return next(place for place in (path, *path.parents) if os.path.exists(place))


def check_checkout(part: Path) -> None:
    """Raise GpufeedError if the package was installed without this part of its repository."""
    if not part.exists():
        raise GpufeedError(
            f"no {part}: this gpufeed was installed without its repository",
            "a clone of the repository, with its profiles and constraints",
            "git clone it, and in the clone run make setup, then this command with .venv/bin/python",
        )


def check_run_folder(here: Path, clone: Path) -> None:
    """Raise GpufeedError if Snakemake cannot write to `.snakemake` in the folder of the run."""
    place = existing(here / ".snakemake")
    if not os.access(place, os.W_OK | os.X_OK, effective_ids=True):
        raise GpufeedError(
            f"you may not write into {place}",
            "a folder for Snakemake's state of the run (.snakemake), and for data and results",
            f"run it in a folder of your own: snakemake -s {clone / 'Snakefile'} ... there",
        )


def keep_byte_code(folder: Path) -> None:
    """Let jobs keep Python's byte code in `folder` where they can keep none beside torch's files.

    That is so with PYTHONDONTWRITEBYTECODE, as many container images have it, and in an installation that the
    user may not write to. Every job would compile the modules of torch again, for nine seconds of a core.
    """
    torch = find_spec("torch")
    if torch is None or os.path.exists(torch.cached) or "PYTHONPYCACHEPREFIX" in os.environ:
        return
    if sys.dont_write_bytecode or not os.access(existing(Path(torch.cached).parent), os.W_OK):
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = str(folder.absolute())


def settle_folders(config: dict) -> None:
    """Expand `~` in `data` and `results` of a config, and check them.

    Raises GpufeedError for a file in a folder's place or a folder without access, and as check_apart does.
    """
    for key in ("data", "results"):
        folder = expanded(config[key])
        try:
            place = existing(folder)
            wrong = "" if place.is_dir() else f"{place} is a file"
        except OSError as error:
            wrong = str(error)
        if braces := set("{}") & set(config[key]):
            wrong = f"Snakemake would take the {min(braces)} for a wildcard"
        if wrong:
            raise GpufeedError(
                f"{key}: {config[key]!r} in the config: {wrong}",
                "a folder, or a place where one can be made",
                f"name another: --config {key}=FOLDER",
            )
        # Snakemake warns of each path that begins with "./"
        config[key] = str(folder if folder.parts else folder.absolute())
    for name, source in config.get("sources", {}).items():
        if "folder" in source:
            check_apart(Path(source["folder"]), Path(config["data"]) / name)


def unwritable(
    results: str | Path, data: str | Path = "data", files: Iterable[str] = ()
) -> GpufeedError | None:
    """Return the error for a folder without write permission, which Snakemake would not explain; or None.

    files: those that a run makes, in `results` or `data`: complete data may lie in anybody's folder.
    """
    for folder in dict.fromkeys([str(results), *map(os.path.dirname, files)]):
        place, key = existing(folder), "data" if Path(folder).is_relative_to(data) else "results"
        if not os.access(place, os.W_OK | os.X_OK):
            return GpufeedError(
                f"{place}: you may not write there",
                f"a folder for {key}, or a place where one can be made",
                f"ask for access, or name another: --config {key}=FOLDER",
            )
    return None


def check_apart(folder: Path, out: Path) -> None:
    """Raise GpufeedError if a source's folder and the prepared images below `out` overlap."""
    own, images = expanded(folder).resolve(), out.resolve() / "images"
    if own.is_relative_to(images) or images.is_relative_to(own):
        raise GpufeedError(
            f"the images in {folder}, which overlap with the prepared dataset in {images}",
            "a folder of images outside of the prepared dataset",
            "run it in another folder, give the source another name, or set --config data=FOLDER",
        )


def records_below(folder: str | Path) -> list[Path]:
    """Return the records below a folder, sorted: in its `records`, in any `records`, or in any folder.

    Archives of published results are unpacked first. A record's file name is the number of its repeat (see
    `repeats.number_of`). Published results in a folder `reference` are left out. Raises GpufeedError if there
    is no record, and as `unpacked` does.
    """
    place = unpacked(folder)
    inner = place / "records"
    root = inner if inner.is_dir() else place
    numbered = (path for path in root.rglob("*.json") if number_of(path.stem) is not None)
    found = sorted(path for path in numbered if "reference" not in path.relative_to(root).parts[:-1])
    # decisions on repeats are numbered files too
    found = [path for path in found if "records" in path.relative_to(root).parts] or [
        path for path in found if path.parent.parent.name not in ("again", "repeats")
    ]
    if not found and place.is_file():
        raise GpufeedError(f"the file {folder}", "a folder of results", "unpack it, and name that folder")
    if not found:
        raise GpufeedError(
            f"no record below {folder}" if place.is_dir() else f"no folder {folder}",
            "a folder of results, or of records, <experiment>/<cell>/<repeat>.json",
            "name a folder that a run has filled, such as results or results/reference/h200",
        )
    return found


def baseline_records(folder: str | Path, experiment: str) -> list[Path]:
    """Return the records of one experiment, if any; raise GpufeedError for a folder without records."""
    return [path for path in records_below(folder) if path.parent.parent.name == experiment]

"""The options that start Snakemake again with the config that it has now.

Standard library only: the workflow imports this while it plans.
"""

import json
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path

PART = ("block", "only")  # they say what part of the plan a run measures; what is missing may be in another


def options(
    files: Iterable[str | Path],
    changed: Mapping[str, object],
    here: str | Path,
    snakefile: str | Path | None = None,
) -> list[str]:
    """`--configfile` and `--config` as a shell takes them; empty where Snakemake was given neither.

    snakefile: where its folder is not `here`, `--snakefile` names it.
    files: config files of the command line; those below the folder `here` are named from there, so that the
    command holds for another copy. changed: what `--config` set, as Snakemake read it.
    """
    names = [shlex.quote(str(below(Path(file), Path(here)))) for file in files]
    values = [shlex.quote(f"{key}={written(value)}") for key, value in changed.items() if key not in PART]
    far = snakefile is not None and Path(snakefile).resolve().parent != Path(here).resolve()
    start = [shlex.quote(str(Path(snakefile).resolve()))] if far else []
    # each once: of several --configfile Snakemake takes the last
    return [
        " ".join([option, *words])
        for option, words in (("--snakefile", start), ("--configfile", names), ("--config", values))
        if words
    ]


def below(file: Path, here: Path) -> Path:
    """The file as seen from `here`, or as it is if it does not lie below."""
    file, here = file.absolute(), here.absolute()
    return file.relative_to(here) if file.is_relative_to(here) else file


def written(value: object) -> str:
    """A value as `--config` reads it back: nothing for None, lists and dictionaries in YAML's flow style."""
    if value is None:
        return ""
    return json.dumps(value) if isinstance(value, list | tuple | dict) else str(value)

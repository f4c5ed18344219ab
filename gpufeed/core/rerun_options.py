"""The options that start Snakemake again with its present config.

Standard library only: the workflow imports this while it plans.
"""

import json
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path

PART = ("block", "only")  # left out: what is missing may be in another part of the plan


def options(
    files: Iterable[str | Path],
    changed: Mapping[str, object],
    here: str | Path,
    snakefile: str | Path | None = None,
    part: bool = False,
) -> list[str]:
    """Return `--configfile` and `--config` as shell words; nothing if Snakemake was given neither.

    files: config files of the command line; paths below `here` become relative, so that another copy can use
    the command. changed: what `--config` set, as Snakemake read it. snakefile: added as `--snakefile` unless
    it is in `here`. part: also those of PART, to run the same part again.
    """
    names = [shlex.quote(str(below(Path(file), Path(here)))) for file in files]
    values = [
        shlex.quote(f"{key}={written(value)}") for key, value in changed.items() if part or key not in PART
    ]
    far = snakefile is not None and Path(snakefile).resolve().parent != Path(here).resolve()
    start = [shlex.quote(str(Path(snakefile).resolve()))] if far else []
    # one option each: of several --configfile Snakemake takes the last
    return [
        " ".join([option, *words])
        for option, words in (("--snakefile", start), ("--configfile", names), ("--config", values))
        if words
    ]


def below(file: Path, here: Path) -> Path:
    """Return the file relative to `here`, or as it is if it does not lie below."""
    file, here = file.absolute(), here.absolute()
    return file.relative_to(here) if file.is_relative_to(here) else file


def written(value: object) -> str:
    """Return a value as `--config` reads it: "" for None, flow-style YAML for lists and dictionaries."""
    if value is None:
        return ""
    return json.dumps(value) if isinstance(value, list | tuple | dict) else str(value)

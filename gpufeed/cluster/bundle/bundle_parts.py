"""The parts of a bundle, each collected in one folder: wheels of a stack, archives and code of a run."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from copy import deepcopy
from itertools import islice
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from gpufeed.cluster.bundle.contents import ROOT, constraints
from gpufeed.core.cell_matrix import source_options
from gpufeed.core.config import planned
from gpufeed.core.errors import GpufeedError
from gpufeed.core.file_writes import sha256_of
from gpufeed.core.plan_builds import planned_builds
from gpufeed.core.plan_decoding import settings as sweep_settings
from gpufeed.core.plan_plugins import references_of
from gpufeed.core.references import files_of
from gpufeed.core.registry import DERIVED
from gpufeed.datasets.download import SourceFile, fetch

EXTRAS = ("all", "dev")
WHEELS_AT_ONCE = 8  # packages in a call of pip; a killed run loses at most these
NVCC = "cuda-toolkit[nvcc,crt,nvvm,cccl]"  # compiles the extension; CUDA 12 has no such package


def resolved_requirements(cuda: str) -> list[str]:
    """Return `name==version` of all that `make setup` installs for a stack, and of its installers.

    Raises GpufeedError if the versions conflict, or if the package index cannot be reached.
    """
    uv = re.search(r"^UV_VERSION := (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1]
    command = [Path(sys.executable).with_name("uv"), "pip", "compile", "--quiet", "--python", sys.executable]
    command += ["--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links"]
    command += ["--constraint", constraints(cuda), "--extra", f"cuda{cuda}"]
    command += [part for extra in EXTRAS for part in ("--extra", extra)]
    more = [f"uv=={uv}", "setuptools", *([NVCC] if cuda == "13" else [])]
    done = subprocess.run(
        [*command, ROOT / "pyproject.toml", "-"], input="\n".join(more), capture_output=True, text=True
    )
    if done.returncode:
        raise GpufeedError(
            f"no versions for the CUDA {cuda} stack:\n{done.stderr.strip()}",
            "all packages of envs in the package index",
            "check the network; after a change of pyproject.toml run make lock",
        )
    return [line for line in done.stdout.splitlines() if line and not line.startswith("#")]


def missing_wheels(requirements: Iterable[str], folder: Path) -> list[str]:
    """Return the requirements, of one version each, for which the folder has no wheel."""
    there = {parse_wheel_filename(path.name)[:2] for path in folder.glob("*.whl")}
    return [line for line in requirements if pinned(line) not in there]


def pinned(requirement: str) -> tuple[str, Version]:
    """Return (name, version) of `name==version`."""
    found = Requirement(requirement)
    return canonicalize_name(found.name), Version(next(iter(found.specifier)).version)


def collect_wheels(requirements: list[str], folder: Path) -> None:
    """Collect the missing wheels in the folder; each appears there whole or not at all.

    Raises GpufeedError if pip fails; earlier wheels are kept.
    """
    partial = folder / ".partial"
    rest = iter(missing_wheels(requirements, folder))
    while batch := list(islice(rest, WHEELS_AT_ONCE)):
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        print(f"wheels: {', '.join(batch)}", flush=True)
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
        done = subprocess.run([*command, "--no-deps", "--wheel-dir", partial, *batch])
        if done.returncode:
            raise GpufeedError(
                f"no wheels of {', '.join(batch)} (pip ended with {done.returncode})",
                "packages that can be downloaded, or built from their sources",
                "see pip's lines above; then run make bundle again, which resumes",
            )
        for wheel in partial.glob("*.whl"):
            os.replace(wheel, folder / wheel.name)
        partial.rmdir()


def datasets_of_run(config: Mapping) -> set[str]:
    """Return the sources that `run` needs, including those that derived ones are made from."""
    config = deepcopy(config)  # planning adds sources to it
    plan, names = planned(config, tried=False), []
    for experiment in config["run"]:
        names += [cell.dataset for cell in plan.cells[experiment].values()]
        names += (sweep_settings(config, experiment) or {}).get("datasets", [])
        builds = planned_builds(config, experiment)
        names += [builds.dataset] if builds else []
    found = set()
    while names:
        name = names.pop()
        if name not in found and config["sources"][name]["layout"] in DERIVED:
            names.append(source_options(config, name)["of"])
        found.add(name)
    return found


def plugins_of_run(config: Mapping) -> dict[str, Path]:
    """Return name -> file for the user code that `run` needs, named relative to the folder of the run."""
    cells = planned(deepcopy(config), tried=False).cells
    named = {
        name for run in config["run"] for cell in cells[run].values() for name in references_of(cell).values()
    }
    return {name: file for reference in sorted(named) for name, file in files_of(reference).items()}


def collect_plugins(config: Mapping, folder: Path) -> list[str]:
    """Copy the user code into the folder, replacing what was there; return the names of its files.

    Files outside of the folder of the run are not copied, which is printed.
    """
    shutil.rmtree(folder, ignore_errors=True)
    found = plugins_of_run(config)
    outside = [name for name in found if Path(name).is_absolute() or name.startswith(("~", ".."))]
    for name in sorted(found.keys() - outside):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(found[name], folder / name)
    if outside:
        print(f"not packed, since the config names them by a path of this node: {', '.join(sorted(outside))}")
    return sorted(found.keys() - outside)


def archives_of_run(config: Mapping) -> list[SourceFile]:
    """Return the archives of these sources by name; raise GpufeedError if two of one name differ."""
    found: dict[str, SourceFile] = {}
    for name in sorted(datasets_of_run(config)):
        for row in config["sources"].get(name, {}).get("files", []):  # a Dataset has none
            file = SourceFile(**{**row, "urls": tuple(row.get("urls", ()))})
            if found.setdefault(file.name, file).sha256 != file.sha256:
                raise GpufeedError(
                    f"two archives named {file.name}", "unique names", f"rename one in sources.{name}"
                )
    return [found[name] for name in sorted(found)]


def collect_archives(config: Mapping, folder: Path) -> list[SourceFile]:
    """Collect the archives in the folder, from `archives` and `data` of the config or from their URLs.

    Complete ones are kept, and partial downloads resumed. Raises GpufeedError for those that are nowhere,
    after all others were tried.
    """
    places = [Path(place) for place in config["archives"]]
    places += sorted(Path(config["data"]).expanduser().glob("*/archives"))
    wanted, failed = archives_of_run(config), []
    for file in wanted:
        target = folder / file.name
        if target.is_file() and sha256_of(target) == file.sha256:
            continue
        print(f"archive: {file.name}", flush=True)
        try:
            fetch(file, target, places, least_kb_s=config["least_download_kb_s"])
        except GpufeedError as error:
            failed.append(error)
    if failed:
        raise GpufeedError(
            "; ".join(error.found for error in failed),
            "; ".join(error.expected for error in failed),
            "check the network or put them into a folder of `archives`, then run make bundle again",
        )
    return wanted

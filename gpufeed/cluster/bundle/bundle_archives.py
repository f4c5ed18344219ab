"""The archives that the experiments in `run` read, in one folder, as the rule `download` would bring them."""

from collections.abc import Mapping
from pathlib import Path

from gpufeed.core.cells import source_options
from gpufeed.core.config import planned
from gpufeed.core.errors import GpufeedError
from gpufeed.core.plan_builds import planned_builds
from gpufeed.core.plan_decoding import settings as sweep_settings
from gpufeed.core.registry import DERIVED
from gpufeed.datasets.download import SourceFile, fetch, sha256_of


def merged(config: Mapping, changes: Mapping) -> dict:
    """A config with another merged over it, as `--configfile` does: dictionaries key by key."""
    both = dict(config)
    for key, value in changes.items():
        old = config.get(key)
        nested = isinstance(old, Mapping) and isinstance(value, Mapping)
        both[key] = merged(old, value) if nested else value
    return both


def datasets(config: Mapping) -> set[str]:
    """The sources that `run` needs: those of cells, sweeps and builds, and those that these are made of."""
    plan, names = planned(config), []
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


def files(config: Mapping) -> list[SourceFile]:
    """The archives of these sources, by name; raises GpufeedError where two of one name differ."""
    found: dict[str, SourceFile] = {}
    for name in sorted(datasets(config)):
        for row in config["sources"][name].get("files", []):
            file = SourceFile(**{**row, "urls": tuple(row.get("urls", ()))})
            if found.setdefault(file.name, file).sha256 != file.sha256:
                raise GpufeedError(
                    f"two archives called {file.name}", "one name for each", f"rename one in sources.{name}"
                )
    return [found[name] for name in sorted(found)]


def collect(config: Mapping, folder: Path) -> list[SourceFile]:
    """Brings the archives into the folder, from `archives` and `data` of the config or their addresses.

    One that is whole stays, one that broke off goes on. Raises GpufeedError, after all others were tried, for
    those that no place gives.
    """
    places = [Path(place) for place in config["archives"]]
    places += sorted(Path(config["data"]).expanduser().glob("*/archives"))
    wanted, failed = files(config), []
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

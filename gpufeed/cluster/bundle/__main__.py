"""python -m gpufeed.cluster.bundle FOLDER --cuda 13: run by `make bundle` in a checkout with a network."""

import argparse
import sys
from pathlib import Path

import yaml

from gpufeed.cluster.bundle import bundle_parts
from gpufeed.cluster.bundle.contents import ROOT, seal, this_node
from gpufeed.core.config import CONFIG, merged_config
from gpufeed.core.config_schema import read_yaml
from gpufeed.core.errors import GpufeedError
from gpufeed.core.folders import check_checkout

EXPECTED = ("a YAML file with `key: value`", "correct it, or name another: make bundle CONFIG=my.yaml")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m gpufeed.cluster.bundle", description=__doc__)
    parser.add_argument("folder", type=Path, help="is created, or completed")
    parser.add_argument("--cuda", choices=("12", "13"), required=True, help="which stack")
    parser.add_argument(
        "--configfile", type=Path, action="append", default=[], help="merged over config/config.yaml"
    )
    return parser.parse_args()


def pack(folder: Path, cuda: str, configfiles: list[Path]) -> None:
    """Collect wheels, archives and user code, and seal the folder; raise GpufeedError if any is missing."""
    check_checkout(ROOT / "Makefile")
    config = read(CONFIG / "config.yaml")
    for path in configfiles:
        config = merged_config(config, read(path))
    wanted = bundle_parts.archives_of_run(config)  # first, so that a wrong config fails before any download
    requirements = bundle_parts.resolved_requirements(cuda)
    bundle_parts.collect_wheels(requirements, folder / "wheels")
    bundle_parts.collect_archives(config, folder / "archives")
    code = bundle_parts.collect_plugins(config, folder / "plugins")
    seal(folder, this_node(cuda))
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 2**30
    print(f"{folder}: {len(requirements)} packages and {len(wanted)} archives, {size:.1f} GiB")
    print(
        f"offline: make setup CUDA={cuda} OFFLINE={folder}, and in the config archives: [{folder}/archives]"
    )
    if code:
        print(f"also copy {folder}/plugins/* ({', '.join(code)}) into the folder of the run")


def read(path: Path) -> dict:
    """Return a config file; raise GpufeedError for one that is missing or has no keys."""
    try:
        found = read_yaml(path.read_text(), str(path))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise GpufeedError(f"config file {path}: {error}", *EXPECTED) from error
    if not isinstance(found, dict | None):
        raise GpufeedError(f"config file {path}: {type(found).__name__}", *EXPECTED)
    return found or {}


if __name__ == "__main__":
    given = parsed()
    try:
        pack(given.folder, given.cuda, given.configfile)
    except GpufeedError as error:
        sys.exit(str(error))
    except OSError as error:  # a full disk, no permission, or a file in the folder's place
        sys.exit(str(GpufeedError(str(error), "a folder with room, in which you may write", "name another")))

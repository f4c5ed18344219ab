"""Make the inputs of a cell that are missing, for trainings outside of the workflow.

In the workflow each of them is the output of a rule; both use the same folders.
"""

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpufeed.core.cell_matrix import QUANTITY, content, quantity, source_options
from gpufeed.core.cells import Cell
from gpufeed.core.config_sources import with_defaults
from gpufeed.core.errors import GpufeedError, require_known
from gpufeed.core.folders import check_apart, expanded
from gpufeed.core.image_listing import FOLDER
from gpufeed.core.registry import DECODERS, DERIVED, LOADERS, load, store_file
from gpufeed.datasets.download import LEAST_KB_S, SourceFile, fetch
from gpufeed.datasets.image_folder import origin
from gpufeed.datasets.manifest import Manifest
from gpufeed.datasets.prepare import prepare
from gpufeed.system.build_once import one_builder
from gpufeed.system.environment import cores_allowed
from gpufeed.training.runtime_context import Stores

log = logging.getLogger("gpufeed")


@dataclass(frozen=True)
class Shelf:
    """Where datasets are kept, and how they are made.

    root: the folder of all datasets. archives: folders searched before a download. decoder: builds the
    caches. broken: share of a dataset's images that may be undecodable. form: `folders` of images, or
    `packed`, one archive; existing datasets are read in either form. least_kb_s: as in `fetch`.
    """

    root: Path
    archives: tuple[Path, ...]
    decoder: str
    broken: float
    form: str = "folders"
    least_kb_s: float = LEAST_KB_S


def shelf_of(values: Mapping[str, Any]) -> Shelf:
    """Return the Shelf of a composed config; raise GpufeedError for a decoder that cannot build a cache."""
    choices = {name for name, decoder in DECODERS.items() if decoder.reads == "files"}  # not strips
    require_known("decoder", values["cache_decoder"], choices, "cache_decoder")
    archives = tuple(Path(folder) for folder in values["archives"])
    root, decoder = expanded(values["data_folder"]), values["cache_decoder"]
    broken, form = values["max_quarantined_share"], values["data_form"]
    return Shelf(root, archives, decoder, broken, form, values["least_download_kb_s"])


def dataset(name: str, config: Mapping, shipped: Mapping, shelf: Shelf) -> Path:
    """Return the manifest of a source of the config, downloaded and prepared if it is not there.

    shipped: the unchanged config, whose sources the workflow prepares in the folder of their name. A source
    that differs from it, or has options, gets a folder whose name ends in a digest of its settings, unless
    the workflow has already prepared exactly that. Raises GpufeedError as `fetch` and `prepare` do.
    """
    source, options = config["sources"][name], source_options(config, name)
    made_of = content(config, name)
    place = {FOLDER: str(expanded(source["folder"]).resolve())} if FOLDER in source else {}
    usual = shelf.root / name / "manifest.parquet"
    if holds(usual, source, options):
        return usual
    as_shipped = name in shipped["sources"] and content(shipped, name) == made_of
    if usual.exists() or options or not as_shipped:
        digest = hashlib.sha256(json.dumps(made_of | place, sort_keys=True).encode()).hexdigest()[:8]
        usual = shelf.root / f"{name}-{digest}" / "manifest.parquet"
    if "folder" in source:
        check_apart(expanded(source["folder"]), usual.parent)  # before a folder is made there
    with one_builder(usual):
        if not holds(usual, source, options):
            make(name, config, shipped, shelf, usual.parent)
    return usual


def make(name: str, config: Mapping, shipped: Mapping, shelf: Shelf, folder: Path) -> None:
    """Fetch a source's files, or make the dataset that it derives from, and prepare it."""
    source, options = config["sources"][name], source_options(config, name)
    files = [SourceFile(**{**file, "urls": tuple(file.get("urls", ()))}) for file in source.get("files", [])]
    if source["layout"] in DERIVED:
        given = [dataset(options["of"], config, shipped, shelf)]
    elif "folder" in source:
        given = [expanded(source["folder"])]
    else:
        given = [shelf.root / name / "archives" / file.name for file in files]
    for file, target in zip(files, given, strict=False):
        if not target.exists():
            log.info("fetching %s", file.name)
            fetch(file, target, list(shelf.archives), least_kb_s=shelf.least_kb_s)
    log.info("preparing dataset %s in %s", name, folder)
    resize = tuple(source["resize"]) if source.get("resize") else None
    work = (shelf.broken, cores_allowed(), resize, shelf.form, quantity(source))
    prepare(source["layout"], given, folder, name, options, *work)


def holds(manifest: Path, source: Mapping, options: Mapping) -> bool:
    """Return whether the manifest exists and was made from this source and these options."""
    if not manifest.exists():
        return False
    try:
        info = Manifest.read(manifest).info
    except GpufeedError as error:
        log.warning("%s", error)
        return False
    wanted = {file["name"]: file["sha256"] for file in source.get("files", [])}
    layout = source["layout"]
    wanted |= {key: source.get(key) for key in QUANTITY}
    wanted |= with_defaults(layout, options)
    if "folder" in source:
        wanted |= origin(expanded(source["folder"]))
    if (info.layout, as_list(info.resize)) != (layout, as_list(source.get("resize"))):
        return False
    return all(as_list(info.source.get(key)) == as_list(value) for key, value in wanted.items())


def as_list(value: object) -> object:
    """Return a tuple as a list, to compare values of JSON, config and code."""
    return list(value) if isinstance(value, list | tuple) else value


def stores(cell: Cell, manifest: Path, shelf: Shelf) -> Stores:
    """Return the store that the cell's loader reads; build it if it is missing or of another manifest.

    The extension of a model's activation is found or built when it is needed.
    """
    if LOADERS[cell.loader].store is None:
        return Stores()
    return stores_in(cell, Manifest.read(manifest), manifest.parent, shelf.decoder)


def stores_in(cell: Cell, samples: Manifest, folder: Path, decoder: str) -> Stores:
    """Return the cell's store in a folder, built if needed. decoder: builds the caches."""
    name, file = LOADERS[cell.loader].reads, store_file(cell.loader, decoder, cell.hyper.get("recipe"))
    if file is None:
        return Stores()
    path = folder / file
    if not opens(name, path, samples):
        log.info("building %s", path)
        load("store", name, "build")(samples, path, workers=cores_allowed())
    return Stores(**{name: path})


def opens(name: str, path: Path, manifest: Manifest) -> bool:
    """Return whether a store exists, is complete and belongs to this manifest."""
    if not path.exists():
        return False
    try:
        load("store", name)(path, manifest)
    except GpufeedError as error:
        log.warning("%s", error)
        return False
    return True

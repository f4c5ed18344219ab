"""The call that makes a cell's loader in one's own code."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from gpufeed.core.references import is_file, split
from gpufeed.core.registry import AUGMENTS, LOADERS, Entry

HEAD = """\
from pathlib import Path

import torch

{imports}

folder = Path("data/{dataset}")  # as the workflow has prepared it
manifest = Manifest.read(folder / "manifest.parquet")
{augment}
request = LoadRequest(
{arguments}
)
with {loader}(request{options}) as loader:
    for epoch in range(2):  # each in an order of its own
        for batch in loader:
            images, labels = {images}, batch.labels  # float (N, 3, H, W) and int64 (N,)
"""


def text(row: Mapping[str, Any] | pd.Series, cache: str | None) -> str | None:
    """Python that runs a cell's loader and augment; None for what this version does not know.

    row: of `tables.cells`. cache: decoder and version that built the cache which the cell read.
    """
    if row["loader"] not in LOADERS or row["augment"] not in AUGMENTS or LOADERS[row["loader"]].ceiling:
        return None
    loader, augment = LOADERS[row["loader"]], AUGMENTS[row["augment"]]
    modules = {
        "gpufeed.datasets.manifest": "Manifest",
        "gpufeed.loaders.base": "LoadRequest",
        **dict([_split(loader), _split(augment)]),
    }
    on_device, hyper = augment.where == "device", json.loads(row["hyper"])
    own = hyper.get("input", {})
    mean, std = (own.get(name, f"manifest.info.{name}") for name in ("mean", "std"))
    made = f"{_split(augment)[1]}({mean}, {std}, 0, {hyper.get('augment', {})!r})"
    return HEAD.format(
        imports="\n".join(f"from {module} import {name}" for module, name in sorted(modules.items())),
        dataset=row["dataset"],
        augment=f"augment = {made}",
        arguments="\n".join(f"    {name}={value}," for name, value in _arguments(row, cache).items()),
        loader=_split(loader)[1],
        options="".join(f", {name}={value!r}" for name, value in hyper.get("loader", {}).items()),
        images="augment(batch.images, batch.ids, epoch)" if on_device else "batch.images",
    )


def _split(entry: Entry) -> tuple[str, str]:
    """(module, name) of a registered object, or of one that a reference names."""
    where, name = split(entry.target)
    return Path(where).stem if is_file(entry.target) else where, name


def _arguments(row: Mapping[str, Any] | pd.Series, cache: str | None) -> dict[str, str]:
    """The arguments of LoadRequest, as code; what a loader does not read is left out."""
    loader, workers = LOADERS[row["loader"]], int(row["workers"])
    found = {
        "manifest": "manifest",
        "split": '"train"',
        "batch_size": str(int(row["batch_size"])),
        "device": f'torch.device("{row["device"]}")',
    }
    if loader.store:
        file = loader.store.file.format(decoder=(cache or "simplejpeg").split()[0])
        found[loader.reads] = f'folder / "{file}"'
    if AUGMENTS[row["augment"]].where != "device":
        found["sample_transform"] = "augment"
    found["threads"] = "torch.get_num_threads()"
    if workers:
        found["workers"] = str(workers)
        if not pd.isna(row["prefetch_factor"]):
            found["prefetch_factor"] = str(int(row["prefetch_factor"]))
        found["persistent_workers"] = str(bool(row["persistent_workers"]))
    found["pin_memory"] = str(bool(row["pin_memory"]))
    ranks = int(row["devices"] * row["nodes"])
    if ranks > 1:  # each process of torchrun has its share of the samples
        found |= {"rank": "torch.distributed.get_rank()", "world_size": str(ranks)}
    return found

"""How many images of a source are laid out, and how often: its keys `limit`, `copies` and `times`."""

import hashlib
from dataclasses import replace

import numpy as np
import pandas as pd

from gpufeed.core.errors import GpufeedError
from gpufeed.core.file_writes import enough_disk
from gpufeed.datasets.manifest import Manifest

TRAIN, SEED = "train", 0


def chosen(table: pd.DataFrame, limit: int) -> np.ndarray:
    """Return whether each row (path, label, split) stays, bool (n,), with at most `limit` training rows.

    The same share of the evaluation rows stays, and at least one of each class. Classes take turns until the
    number is reached; within a class the order is that of a digest of seed and path. So the choice depends on
    names alone, and a larger limit includes every smaller one. Raises GpufeedError for a limit below the
    number of classes.
    """
    training = (table["split"] == TRAIN).to_numpy()
    count, keep = int(training.sum()), np.zeros(len(table), bool)
    if limit >= count:
        return ~keep
    for part in (training, ~training):
        rows = table[part].reset_index()
        classes, most = rows["label"].nunique(), int(len(rows) * limit / count + 0.5)
        if part is training and most < classes:
            raise GpufeedError(
                f"limit {limit} for {classes} classes",
                f"at least {classes}, one image for each class",
                "raise `limit`",
            )
        rows["digest"] = [hashlib.sha256(f"{SEED}/{path}".encode()).digest() for path in rows["path"]]
        rows = rows.sort_values("digest")
        rows["turn"] = rows.groupby("label").cumcount()
        keep[rows.sort_values(["turn", "digest"])["index"].to_numpy()[: max(most, classes)]] = True
    return keep


def limited(manifest: Manifest, limit: int | None) -> Manifest:
    """Remove the files that `chosen` leaves out; return the manifest of the rest."""
    if limit is None:
        return manifest
    keep = chosen(manifest.table, limit)
    for path in manifest.table["path"][~keep]:
        (manifest.root / path).unlink()
    return replace(manifest, table=manifest.table[keep].reset_index(drop=True))


def copied(manifest: Manifest, copies: int) -> Manifest:
    """Copy each training file until there are `copies` of it; the rows of the copies follow all others.

    The copies are no links, so that each has its own pages in the page cache.
    """
    training, added = manifest.table[manifest.table["split"] == TRAIN], []
    with enough_disk(manifest.root):
        for number in range(2, copies + 1):
            # beside the folders of the splits, so that no name collides
            paths = training["path"].str.replace("images/", f"images/copy_{number}/", n=1, regex=False)
            for path, copy in zip(training["path"], paths, strict=True):
                target = manifest.root / copy
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("xb") as file:
                    file.write((manifest.root / path).read_bytes())
            added.append(training.assign(path=paths))
    return replace(manifest, table=pd.concat([manifest.table, *added], ignore_index=True))


def repeated(manifest: Manifest, times: int) -> Manifest:
    """Return the manifest with each training row `times` times; the repeated rows follow all others."""
    training = manifest.table[manifest.table["split"] == TRAIN]
    return replace(manifest, table=pd.concat([manifest.table, *[training] * (times - 1)], ignore_index=True))

"""From archives to a dataset that can be decoded to its last image: what the rule prepare_dataset does."""

from dataclasses import replace
from pathlib import Path

from gpufeed.data.manifest import Manifest
from gpufeed.data.quarantine import quarantine
from gpufeed.registry import load


def prepare(
    layout: str,
    archives: list[Path],
    out: Path,
    dataset: str,
    options: dict,
    max_quarantined_share: float = 0.0,
    workers: int = 1,
    resize: tuple[int, int] | None = None,
) -> Manifest:
    """Lays the images out below `out` and writes their manifest, without those that cannot be decoded.

    workers: processes that decode every image once. resize: (height, width) to which loaders and caches
    bring every image; files and rows keep their own. Raises GpufeedError as the layout does, and for more
    broken images than max_quarantined_share of all.
    """
    reorganised = load("layout", layout)(archives, out, dataset, options)
    # a manifest on disk is one whose images have been looked at
    (reorganised.root / "manifest.parquet").unlink()
    manifest = quarantine(reorganised, max_quarantined_share, workers)
    manifest.info = replace(manifest.info, resize=resize)
    manifest.write()
    return manifest

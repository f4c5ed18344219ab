"""From archives to a dataset of which every image can be decoded: the work of rule prepare_dataset."""

import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gpufeed.core.config import check_prepared
from gpufeed.core.errors import GpufeedError, unknown
from gpufeed.core.file_writes import NO_ROOM, enough_disk
from gpufeed.core.folders import check_apart
from gpufeed.core.references import is_reference
from gpufeed.core.registry import load
from gpufeed.datasets import packed
from gpufeed.datasets.manifest import Manifest
from gpufeed.datasets.packed import ELSEWHERE, unpack_folder
from gpufeed.datasets.quantity import copied, limited, repeated
from gpufeed.datasets.quarantine import quarantine
from gpufeed.system.build_once import scratch_folder

log = logging.getLogger("gpufeed")


def prepare(
    layout: str,
    archives: list[Path],
    out: Path,
    dataset: str,
    options: dict,
    max_quarantined_share: float = 0.0,
    workers: int = 1,
    resize: tuple[int, int] | None = None,
    form: str = "folders",
    quantity: Mapping[str, int] = MappingProxyType({}),
) -> Manifest:
    """Lay the images out below `out` and write their manifest, without those that cannot be decoded.

    workers: processes that decode every image once. resize: (height, width) to which loaders and caches
    resize every image; files and rows keep their own size. form: `folders` of images, or `packed`: one
    archive in `out`, made on this node's own disk. quantity: `limit`, `copies` and `times` of the source.
    Raises GpufeedError for more broken images than max_quarantined_share of all, and as the layout,
    check_apart and gpufeed.datasets.quantity do.
    """
    if form not in packed.FORMS:
        raise unknown("form", form, packed.FORMS, "data_form")
    given = (layout, archives, dataset, options, max_quarantined_share, workers, resize, quantity)
    out = Path(out)
    for folder in filter(Path.is_dir, archives):
        check_apart(folder, out)
    packed.clear(out)
    if form == "folders":
        return laid_out(out, *given)
    with scratch_folder(unpack_folder() / f"{dataset}-prepare") as stage:  # on this node's own disk
        with advised():
            manifest = laid_out(stage, *given)
        keep_the_rest(stage, out)
        about = packed.pack(stage, out)
    log.info("packed %d files, %.1f MiB, into %s", about.files, about.bytes / 2**20, out / packed.ARCHIVE)
    return replace(manifest, root=out)


def laid_out(
    out: Path,
    layout: str,
    archives: list[Path],
    dataset: str,
    options: dict,
    max_quarantined_share: float,
    workers: int,
    resize: tuple[int, int] | None,
    quantity: Mapping[str, int],
) -> Manifest:
    """Do what `prepare` does for form `folders`."""
    limit = quantity.get("limit")
    early = {"limit": limit} if layout == "image_folder" else {}  # it may have millions, or be on a slow disk
    early |= {"reference": layout} if is_reference(layout) else {}
    manifest = load("layout", layout)(archives, out, dataset, options, **early)
    # a manifest on disk is one whose images have been checked
    (manifest.root / "manifest.parquet").unlink()
    if not manifest.made:  # else there is no file
        manifest = quarantine(limited(manifest, limit), max_quarantined_share, workers)
        manifest = repeated(copied(manifest, quantity.get("copies", 1)), quantity.get("times", 1))
    source = {**manifest.info.source, **quantity}
    manifest.info = replace(manifest.info, resize=resize, source=source)
    manifest.write()
    return manifest


@contextmanager
def advised() -> Iterator[None]:
    """Replace the remedy in the error for a full disk by the one for the node's own disk."""
    try:
        yield
    except GpufeedError as error:
        if getattr(error.__cause__, "errno", None) not in NO_ROOM:
            raise
        raise GpufeedError(error.found, error.expected, ELSEWHERE) from error.__cause__


def keep_the_rest(stage: Path, out: Path) -> None:
    """Move what a layout leaves beside its images, as gray_idx does, from `stage` to `out`, replacing it."""
    with enough_disk(out):
        out.mkdir(parents=True, exist_ok=True)
        for path in sorted(stage.iterdir()):
            if path.name in (packed.IMAGES, packed.MANIFEST):
                continue
            there = out / path.name
            shutil.rmtree(there) if there.is_dir() else there.unlink(missing_ok=True)
            shutil.move(os.fspath(path), os.fspath(there))


def for_job(job: Any) -> None:
    """Do the work of rule prepare_dataset, a gpufeed.job.Job."""
    archives = job.input.get("archives") or []
    if job.params.get("folder"):
        archives = job.params.folder["path"]
    manifest = prepare(
        job.params.layout,
        [Path(path) for path in ([archives] if isinstance(archives, str) else archives)],
        Path(job.output.manifest).parent,
        job.params.dataset,
        dict(job.params.options),
        # from the config and not from params: changing it does not prepare the dataset again
        max_quarantined_share=job.config["max_quarantined_share"],
        workers=job.threads,
        resize=tuple(job.params.resize) if job.params.resize else None,
        form=job.config["data_form"],
        quantity=dict(job.params.quantity),
    )
    check_prepared(job.config, job.params.dataset, len(manifest.ids("train")))
    try:
        manifest.image_size()
    except GpufeedError as error:  # warn now, before each cell fails by itself
        by = "recipes that crop and resize, and the decoder benchmark"
        log.warning("%s can be measured only by %s: %s", job.params.dataset, by, error)
    log.info("%s: %s images", job.params.dataset, manifest.table["split"].value_counts().to_dict())
    log.info("quarantined: %d", len(manifest.info.quarantined))
    for sentence, count in manifest.info.left_out.items():
        log.info("left out: %d %s", count, sentence)

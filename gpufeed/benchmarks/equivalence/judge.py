"""Compares three training epochs and one evaluation epoch of a loader with the reference."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gpufeed.augment.random_resized_crop import made_recipe
from gpufeed.benchmarks.equivalence.crop_reference import crop_reference, dataset_reference
from gpufeed.benchmarks.equivalence.epoch_check import Differences, Mismatch, Reference, check_epoch
from gpufeed.benchmarks.equivalence.equivalence_task import Task
from gpufeed.benchmarks.equivalence.window_check import check_windows
from gpufeed.core.errors import GpufeedError, Skip, one_line
from gpufeed.core.registry import LOADERS, STORES, fetch, load, store_in
from gpufeed.datasets.manifest import Manifest
from gpufeed.decoders.base import sum_counts
from gpufeed.decoders.pillow import PillowDecoder
from gpufeed.loaders.base import Loader, LoadRequest
from gpufeed.loaders.pixel_tolerance import PixelSource, pixel_source
from gpufeed.stores.base import manifest_digest
from gpufeed.stores.cache_format import CacheInfo, open_cache
from gpufeed.system.devices import resolve_device
from gpufeed.system.environment import cores_allowed, environment
from gpufeed.system.timing import synchronise

EPOCHS = 3  # of the training split, to find samples that are lost from the second epoch on
TELLING = 10  # samples for which two equal orders cannot be chance (10! is 3.6 million)

log = logging.getLogger("gpufeed")


@dataclass(frozen=True)
class Bench:
    """A loader under test, and what it is compared with."""

    loader: str
    request: LoadRequest  # of the training split
    pixels: np.ndarray | None  # of the reference, by sample id; None if made from the files

    def reference(self, request: LoadRequest, loader: Loader) -> Reference:
        """Return the expected samples of a loader for this request."""
        manifest, pixels = request.manifest, self.pixels
        about = manifest.labels(), manifest.table["path"].tolist()
        if request.recipe is not None:
            return crop_reference(request, loader, *about)
        if pixels is None:
            return dataset_reference(request, *about)
        return Reference(pixels.shape[1:], lambda ids, _: pixels[ids], *about)

    def split_ids(self, split: str) -> np.ndarray:
        return self.request.manifest.ids(split)

    def splits(self) -> list[str]:
        """Return the training split, and the evaluation split if it has a sample."""
        info, present = self.request.manifest.info, set(self.request.manifest.table["split"])
        return [split for split in ("train", info.evaluation_split) if split in present]


def judge(task: Task, tell: Callable[[str, Any], None]) -> None:
    """Judge a loader, and report through `tell(what, value)`.

    "facts" has fields of its verdict as they become known, with the status among the last. "alive" has a few
    words on the present work, at least once per batch. Raises GpufeedError if manifest or reference cannot be
    used.
    """
    try:
        device = resolve_device(task.device)
    except Skip as skip:
        here = environment(torch.device("cpu"))
        return tell("facts", {"environment": here, "status": "skipped", "sentence": str(skip)})
    bench = make_bench(task, device)
    tell(
        "facts",
        {
            "environment": environment(device),
            "device": device.type,
            "samples": {split: len(bench.split_ids(split)) for split in bench.splits()},
            "reference": reference_facts(task, bench),
        },
    )
    tell("facts", judgement(bench, tell))


def reference_facts(task: Task, bench: Bench) -> dict[str, str | None]:
    """Return `reference` of a verdict."""
    if task.reference is None:
        version, manifest = PillowDecoder().version(), manifest_digest(bench.request.manifest)
        return {"decoder_version": version, "sha256": None, "manifest_sha256": manifest}
    info = CacheInfo.read(Path(task.reference))
    return {name: getattr(info, name) for name in ("decoder_version", "sha256", "manifest_sha256")}


def make_bench(task: Task, device: torch.device) -> Bench:
    """Open manifest and reference; raise GpufeedError if they do not belong together."""
    manifest = Manifest.read(task.manifest)
    threads = min(task.threads or cores_allowed(), cores_allowed())
    torch.set_num_threads(threads)
    settings = dict(task.settings)
    recipe = made_recipe(settings.pop("recipe", None), settings["seed"])
    cores = min(threads, settings.pop("cores", threads))
    settings["workers"] = cores if settings["workers"] == "auto" else settings["workers"]
    request = LoadRequest(
        manifest=manifest,
        split="train",
        device=device,
        **settings,
        recipe=recipe,
        **{name: Path(path) for name, path in task.built.items()},
        threads=threads,
    )
    pixels = open_cache(task.reference, manifest) if task.reference is not None else None
    return Bench(task.loader, request, pixels)


def judgement(bench: Bench, tell: Callable[[str, Any], None]) -> dict:
    """Return the verdict's results after three epochs of training and one of evaluation."""
    found, epochs, counts, windows = Differences(), 0, [], None
    status, sentence = "passed", None
    try:
        make = fetch("loader", bench.loader)
        verify(bench.request, tell)
        for place, split in enumerate(bench.splits()):
            request = replace(bench.request, split=split, shuffle=place == 0)
            if request.recipe is not None and (place or LOADERS[bench.loader].windows == "own"):
                request = replace(request, recipe=request.recipe.for_evaluation())
            tell("alive", f"opening the loader for split {split}")
            with make(request, **request.options) as loader:
                source = pixel_source(bench.loader, loader, request.cache)
                tell("facts", {"pixels": fields_of(source)})
                counts += [loader.decode_counts] if loader.decode_counts is not None else []
                for _ in run_epochs(bench, request, loader, source, EPOCHS if place == 0 else 1, found, tell):
                    epochs += 1
                    if counts and place == 0:  # an epoch shows every file
                        counts[0].check()
        if bench.request.recipe is not None and LOADERS[bench.loader].windows == "own":
            windows = check_windows(bench.loader, bench.request, tell)
    except Skip as skip:
        status, sentence = "skipped", str(skip)
    except Mismatch as mismatch:
        status, sentence = "failed", str(mismatch)
    except Exception as error:
        status, sentence = "failed", f"it raised an error. {one_line(error)}"
        log.exception("the loader raised an error")
    return {
        "status": status,
        "sentence": sentence,
        "epochs": epochs,
        "compared": found.samples,
        "max_difference": found.largest if found.samples else None,
        "mean_difference": found.mean if found.samples else None,
        "beyond_tolerance": found.beyond,
        "offenders": found.offenders,
        "loading": sum_counts(counts).asdict() if counts else None,
        "windows": windows,
    }


def verify(request: LoadRequest, tell: Callable[[str, Any], None]) -> None:
    """Read every byte of the store, which no loader does; raise GpufeedError if one is wrong."""
    name, path = store_in(request) or (None, None)
    if name and STORES[name].verify:
        said = f"verifying the bytes of {name}"
        load("store", name, "verify")(path, request.manifest, lambda: tell("alive", said))


def fields_of(source: PixelSource) -> dict:
    """Return `pixels` of a verdict."""
    allowed = source.tolerance
    return {
        "decoder": source.decoder,
        "version": source.version,
        "max": allowed.max,
        "mean": allowed.mean,
    }


def run_epochs(
    bench: Bench,
    request: LoadRequest,
    loader: Loader,
    source: PixelSource,
    count: int,
    found: Differences,
    tell: Callable[[str, Any], None],
) -> Iterator[int]:
    """Check `count` epochs of an open loader and yield their numbers; raise Mismatch with its place."""
    r, orders = request, []
    ids, reference = bench.split_ids(r.split), bench.reference(r, loader)
    replacement = LOADERS[bench.loader].replacement and r.shuffle
    for number in range(1, count + 1):
        where = f"epoch {number} of {count} of split {r.split}"

        def alive(where: str = where) -> None:
            tell("alive", f"waiting for a batch of {where}")

        alive()
        try:
            order = check_epoch(loader, ids, reference, source, found, alive, replacement)
            check_novelty(order, orders, r)
        except Mismatch as mismatch:
            raise Mismatch(f"in {where} it was wrong: {mismatch}.") from mismatch
        except GpufeedError:
            log.error("the error came in %s", where)
            raise
        orders.append(order)
        yield number
    synchronise(r.device)
    if loader.promises_order:
        check_repeatable(loader, orders[0])


def check_novelty(order: np.ndarray, earlier: list[np.ndarray], request: LoadRequest) -> None:
    """Raise Mismatch if shuffled epochs have the same order, or unshuffled ones different orders."""
    for number, other in enumerate(earlier, 1):
        same = np.array_equal(order, other)
        if request.shuffle and same and len(order) >= TELLING:
            raise Mismatch(f"found the order of epoch {number} again, expected another one in each epoch")
        if not request.shuffle and not same:
            raise Mismatch(f"found another order than in epoch {number}, expected no shuffling")


def check_repeatable(loader: Loader, first: np.ndarray) -> None:
    """Raise Mismatch unless the loader, reset to its first epoch, promises the same order."""
    loader.load_state_dict({**loader.state_dict(), "epoch": 0, "next_batch": 0})
    if not np.array_equal(loader.order(), first):
        raise Mismatch(
            "found another order for epoch 1 after a reset, expected a function of seed and epoch."
        )

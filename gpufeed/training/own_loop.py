"""Loaders and datasets by name, for the user's own training loop.

with loader("resident", "photos", batch_size=256, recipe={"size": 224}, augment="torch") as batches:
    for epoch in range(90):
        for images, labels in batches:
            ...
"""

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from multiprocessing import current_process
from pathlib import Path
from typing import Any

import torch

from gpufeed.core.cell_matrix import check_names
from gpufeed.core.cells import Cell, impossible, settle
from gpufeed.core.compose import shipped
from gpufeed.core.config import check_axes, check_dict, check_hyper, read_hyper
from gpufeed.core.config_sources import check_source
from gpufeed.core.errors import GpufeedError, unknown
from gpufeed.core.folders import existing, expanded
from gpufeed.core.registry import DECODERS, LOADERS
from gpufeed.datasets.image_folder import IN_PLACE, read_headers
from gpufeed.datasets.manifest import Manifest
from gpufeed.loaders.base import Batch, Loader, make_loader
from gpufeed.loaders.gpu_only_dataset import check_writable, manifest_of, pick_device
from gpufeed.system.devices import resolve_device
from gpufeed.system.environment import cores_allowed
from gpufeed.training.distributed.process_group import steps_in_epoch
from gpufeed.training.ensure_inputs import dataset, shelf_of, stores_in
from gpufeed.training.runtime_context import load_request, make_augment

log = logging.getLogger("gpufeed")

PICTURE = tuple[torch.Tensor, torch.Tensor]
PLACE = ("epoch", "next_batch")
SAME = ("seed", "batch_size", "ranks", "images")  # must be unchanged to resume in mid-epoch


class Batches:
    """Yields (images, labels) of each batch of an open loader, on its device; iterating once is an epoch.

    images: normalised float (N, 3, H, W); labels: int64 (N,). The caller may keep both. Every rank yields
    as many batches: a rank with one batch less than rank 0 splits its last batch in two. If that batch has
    one image, both parts are that image. An epoch that ended early is not resumed unless its state was
    loaded. One epoch runs at a time: a new one ends it, and its iterator then raises GpufeedError.
    """

    def __init__(self, loader: Loader, augment: Callable | None):
        """Wrap the loader. augment: for whole batches on the device; None if the loader augments."""
        self.loader, self.augment, self.steps = loader, augment, steps_in_epoch(loader)
        self.running: Iterator[PICTURE] | None = None
        self.begun = False  # whether a batch of the epoch was requested
        self.second_part = False  # whether only the second part of the last batch is left of the epoch

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[PICTURE]:
        if self.begun and self.loader.next_batch:
            self.load_state_dict(whole(self.state_dict()))
        self.end()
        self.running = self._epoch()
        return self._until_ended(self.running)

    def _until_ended(self, epoch: Iterator[PICTURE]) -> Iterator[PICTURE]:
        """Yield the batches of an epoch; raise GpufeedError if it was ended before its last batch."""
        left = self.steps - self.loader.next_batch - self.second_part
        for batch in epoch:
            left -= 1
            yield batch
        if left and self.running is not epoch:
            raise GpufeedError(
                "an epoch that `close`, load_state_dict or a later epoch has ended",
                "one epoch at a time, and each of its batches before the next one begins",
                "finish it first, or open another loader for a second loop over the images",
            )

    def _epoch(self) -> Iterator[PICTURE]:
        loader, total = self.loader, len(self.loader)
        epoch, done, second_only = loader.epoch, loader.next_batch, self.second_part
        self.begun, self.second_part = True, False
        with closing(iter(loader)) as batches:
            for number, batch in enumerate(batches, done + 1):
                images, labels = self._finished(batch, epoch)
                if number < total or self.steps == total:
                    yield images, labels
                    continue
                first = max(1, len(labels) - 1)
                if not second_only:
                    yield images[:first], labels[:first]
                yield images[-1:], labels[-1:]

    @torch.no_grad()
    def _finished(self, batch: Batch, epoch: int) -> PICTURE:
        """Augment the batch, and copy the tensors in the loader's memory, which it reuses."""
        if self.augment is None:
            return batch.images.clone(), batch.labels.clone()
        return self.augment(batch.images, batch.ids, epoch), batch.labels.clone()

    def state_dict(self) -> dict[str, int]:
        """Return the position in the epoch. Lightning saves rank 0's for all: its last batch is whole."""
        loader, request = self.loader, self.loader.request
        place = {"epoch": loader.epoch, "next_batch": loader.next_batch}
        sizes = {"batch_size": request.batch_size, "ranks": request.world_size}
        return {**place, "seed": request.seed, **sizes, "images": len(loader.split_ids)}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Resume; raise GpufeedError for a state in mid-epoch whose batches differ from this loader's."""
        own, last = self.state_dict(), len(self.loader) - 1
        check_state(state, self.steps)
        self.end()
        step = state["next_batch"]
        differ = [key for key in SAME if state[key] != own[key]] if step else []
        if differ:
            found, wanted = (", ".join(f"{key} {one[key]}" for key in differ) for one in (state, own))
            raise GpufeedError(
                f"a checkpoint from the middle of an epoch with {found}",
                f"{wanted}, as of this loader",
                "open the loader with the checkpoint's settings, or resume from the end of an epoch",
            )
        self.second_part = step > last
        place = {"epoch": state["epoch"], "next_batch": min(step, last)}
        self.loader.load_state_dict({**self.loader.state_dict(), **place})

    def end(self) -> None:
        """Stop the running epoch early; safe to call twice."""
        if self.running is not None:
            self.running.close()
        self.running, self.begun = None, False


def check_state(state: object, steps: int) -> None:
    """Raise GpufeedError unless a state is one of `state_dict`, and its batch one of an epoch of `steps`."""
    given = state if isinstance(state, Mapping) else {}
    needed = PLACE + SAME if given.get("next_batch") else PLACE
    wrong = [key for key in needed if not isinstance(own := given.get(key), int) or own < 0]
    if wrong or given["next_batch"] >= steps:
        key = wrong[0] if wrong else "next_batch"
        raise GpufeedError(
            f"{key} {given.get(key)!r} in a state",
            f"what state_dict returns: whole numbers, and a next_batch from 0 to {steps - 1}",
            "load a state of a loader with these images and this batch size",
        )


def whole(state: dict[str, int]) -> dict[str, int]:
    """Return the state at the start of an epoch: the next one if this one has begun."""
    return {**state, "epoch": state["epoch"] + (state["next_batch"] > 0), "next_batch": 0}


class Feed(Batches):
    """Yields (images, labels) of each batch; open until `close`, which `with` calls."""

    closed = False

    def __iter__(self) -> Iterator[PICTURE]:
        if self.closed:
            raise GpufeedError(
                "an epoch of a closed loader",
                "one that is open: until `close`, or within its `with`",
                "call gpufeed.loader again",
            )
        return super().__iter__()

    def close(self) -> None:
        """End the loader's threads and processes; safe to call twice."""
        self.closed = True
        self.end()
        self.loader.close()

    def __enter__(self) -> "Feed":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def loader(
    name: str,
    source: str | Path | Manifest,
    *,
    batch_size: int,
    split: str = "train",
    training: bool | None = None,
    device: str | torch.device = "auto",
    workers: int | None = None,
    prefetch_factor: int | None = None,
    persistent_workers: bool | None = None,
    pin_memory: bool = True,
    decoder: str = "pillow",
    recipe: Mapping[str, Any] | None = None,
    resize: tuple[int, int] | None = None,
    augment: str = "none",
    augment_options: Mapping[str, Any] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    seed: int = 0,
    cache_folder: str | Path | None = None,
    cache_decoder: str = "simplejpeg",
) -> Feed:
    """Open a loader by its name; iterating over it once is one epoch, each in another order.

    It yields images, normalised float (N, 3, H, W), and labels, int64 (N,), on the device; both may be kept.
    In a process group of torch.distributed each rank has its share of the images, in equally many batches.

    source: a folder of class folders (CLASS/IMAGE, or train/CLASS/IMAGE beside val), read in place; or a
    manifest, its path or its folder, as made by `prepare`. training: whether images are shuffled, cropped at
    random and augmented; by default for split `train`. workers: processes or threads that decode; by default
    one a core, if the loader has any. persistent_workers: by default true if the loader can keep them.

    recipe: None uses whole images of one size, or resizes all to `resize` (height, width). A dict of options
    of random_resized_crop, such as {"size": 224}, crops a window of each. augment, augment_options: name and
    options of config/hydra/augment, for training. mean, std: for normalisation; by default the dataset's, for
    a plain folder ImageNet's.

    cache_folder: for a cache, strips, shards or .beton file that the loader reads, built by the first call;
    by default beside a manifest, and NAME-cache beside a plain folder. cache_decoder: decodes for a cache.

    Raises GpufeedError for unknown values and impossible combinations, and Skip if this node lacks something.
    """
    if getattr(current_process(), "_inheriting", False):  # as multiprocessing.spawn asks
        raise GpufeedError(
            f"gpufeed.loader({name!r}) outside of `if __name__ == '__main__':`, where each process that "
            "a loader starts runs it again",
            "a script whose work lies below that line",
            "write that line, and indent what follows it",
        )
    if name in LOADERS and LOADERS[name].ceiling:
        raise unknown("loader", name, [one for one in LOADERS if not LOADERS[one].ceiling], "gpufeed.loader")
    check_axes(
        {"batch_size": batch_size, "seed": seed, "pin_memory": pin_memory},
        "gpufeed.loader",
        workers=workers,
        prefetch_factor=prefetch_factor,
        persistent_workers=persistent_workers,
        resize=resize,
    )
    check_moments(mean, std)
    check_dict("recipe", recipe, "gpufeed.loader", '{"size": 224}')
    check_dict("augment_options", augment_options, "gpufeed.loader", '{"brightness": 0.2}')
    where = resolve_device("auto") if device == "auto" else pick_device(device)
    manifest = opened(source, resize)
    options = {**read_hyper("augment", augment), **(augment_options or {})}
    check_hyper("augment", augment, options, "gpufeed.loader")
    axes = {"dataset": manifest.info.dataset, "loader": name, "augment": augment, "decoder": decoder}
    check_names(axes, "gpufeed.loader", {manifest.info.dataset: {}})
    hyper: dict[str, Any] = {"augment": options, "input": moments(manifest, mean, std)}
    if recipe is not None:
        given = {key: list(own) if isinstance(own, tuple) else own for key, own in recipe.items()}
        hyper["recipe"] = {**read_hyper("recipe", "random_resized_crop"), **given}
        check_hyper("recipe", "random_resized_crop", hyper["recipe"], "gpufeed.loader")
    entry = LOADERS[name]
    if workers in (None, "auto"):
        workers = 0 if entry.workers == "never" else cores_allowed()
    cell = settle(
        Cell(
            "by_hand",
            **axes,
            recipe="crop_flip" if recipe is None else "random_resized_crop",
            batch_size=batch_size,
            workers=workers,
            prefetch_factor=prefetch_factor,
            pin_memory=pin_memory,
            persistent_workers=not entry.anew if persistent_workers is None else persistent_workers,
            device=where.type,
            seed=seed,
            source={"layout": manifest.info.layout, "resize": manifest.info.resize},
            hyper=hyper,
        )
    )
    if sentence := impossible(cell):
        raise GpufeedError(sentence, "a combination that can exist", "change one of the two")
    folder = folder_of_stores(manifest, cache_folder)
    if cache_decoder not in (choices := {one for one, by in DECODERS.items() if by.reads == "files"}):
        raise unknown("decoder", cache_decoder, choices, "cache_decoder")
    training = split == "train" if training is None else training
    by = make_augment(augment if training else "none", cell, manifest, seed)
    try:
        stores = stores_in(cell, manifest, folder, cache_decoder)
    except OSError:
        check_writable(folder)  # says so if that is why
        raise
    request = load_request(cell, manifest, stores, where, seed, by)
    drawn = request.recipe if training or request.recipe is None else request.recipe.for_evaluation()
    request = replace(request, split=split, shuffle=training, recipe=drawn, ungathered=False)
    made = make_loader(name, request)
    feed = Feed(made, by if by.where == "device" else None)
    try:
        made.open()
    except BaseException:
        feed.close()
        raise
    return feed


def opened(source: str | Path | Manifest, resize: tuple[int, int] | None) -> Manifest:
    """Return the manifest of a source; files of a plain folder without a readable header are left out."""
    manifest = manifest_of(source)
    if manifest.info.layout == IN_PLACE and not manifest.table["height"].any():
        manifest = read_headers(manifest)
        whole_files = manifest.table["height"] > 0
        for path in manifest.table["path"][~whole_files]:
            log.warning("left out %s, which has no image header", path)
        table = manifest.table[whole_files].reset_index(drop=True)
        manifest = Manifest(manifest.root, manifest.info, table)
    if resize is None:
        return manifest
    return Manifest(manifest.root, replace(manifest.info, resize=tuple(resize)), manifest.table)


def check_moments(mean: Sequence[float] | None, std: Sequence[float] | None) -> None:
    """Raise GpufeedError unless mean and std, if given, are three numbers each, those of std above 0."""
    for name, values, least in (("mean", mean, "three numbers"), ("std", std, "three numbers above 0")):
        if values is None:
            continue
        try:
            fits = len(values) == 3 and all(
                math.isfinite(one) and (name == "mean" or one > 0) for one in values
            )
        except (TypeError, ValueError):  # no sequence, or not of numbers
            fits = False
        if not fits:
            raise GpufeedError(
                f"{name}: {values!r}, in gpufeed.loader",
                f"{least}, one a channel (red, green, blue)",
                f"correct {name}, or leave it out to use the dataset's",
            )


def moments(
    manifest: Manifest, mean: Sequence[float] | None, std: Sequence[float] | None
) -> dict[str, list[float]]:
    """Return the mean and standard deviation for normalisation."""
    given = {"mean": mean, "std": std}
    return {name: list(vars(manifest.info)[name] if own is None else own) for name, own in given.items()}


def folder_of_stores(manifest: Manifest, given: str | Path | None) -> Path:
    """Return the folder in which the stores of a manifest are kept."""
    if given is not None:
        return expanded(given)
    if manifest.info.layout != IN_PLACE:
        return manifest.root
    root = manifest.root.absolute()
    return root.with_name(f"{root.name}-cache")


def prepare(
    source: str | Path,
    data_folder: str | Path = "data",
    *,
    resize: tuple[int, int] | None = None,
    limit: int | None = None,
    archives: str | Path | Sequence[str | Path] = (),
) -> Manifest:
    """Return the manifest of a dataset; download or lay out and check it first if it is missing.

    source: a name of `sources` in config/config.yaml, such as "cifar10" or "tiny_imagenet"; or a folder of
    class folders, or a zip or tar of it, of which one image in ten is held out if there is no evaluation
    folder. Every image is decoded once; those that cannot be decoded are left out and listed in
    `info.quarantined`. resize: (height, width) to which loaders resize all images. limit: training images at
    most. archives: a folder, or several, that are searched before a download.

    Raises GpufeedError for an unknown name, a failed download and too many broken images.
    """
    check_axes({}, "gpufeed.prepare", resize=resize, limit=limit)
    config, name = shipped(), str(source)
    if name not in config["sources"]:
        path = expanded(source).absolute()
        if not path.exists():
            error = unknown("source or folder", name, config["sources"], "gpufeed.prepare")
            wanted = f"the path of a folder or an archive, or {error.expected}"
            raise GpufeedError(error.found, wanted, f"correct the path, or {error.remedy}")
        row: dict[str, Any] = {"layout": "image_folder", "folder": str(path)}
        shown = path.resolve().name.lstrip(".")
        name = (shown if path.is_dir() else shown.partition(".")[0]) or "images"
        config = {**config, "sources": {**config["sources"], name: row}}
    changes = {"resize": list(resize) if resize else None, "limit": limit}
    row = {**config["sources"][name], **{key: own for key, own in changes.items() if own is not None}}
    check_source(row, "gpufeed.prepare")
    config = {**config, "sources": {**config["sources"], name: row}}
    own = [archives] if isinstance(archives, str | Path) else archives
    if not existing(data_folder).is_dir():
        raise GpufeedError(
            f"data_folder {str(data_folder)!r}: {existing(data_folder)} is a file",
            "a folder, or a place where one can be made",
            "name another folder",
        )
    places = [data_folder, *own, *config["archives"]]
    shelf = shelf_of({**config, "data_folder": data_folder, "archives": places})
    return Manifest.read(dataset(name, config, shipped(), shelf))

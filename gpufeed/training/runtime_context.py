"""A cell's parts at run time: device, stores, model, augment, loader request, trainer, input files."""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gpufeed.augment.random_resized_crop import made_recipe
from gpufeed.core.cells import Cell
from gpufeed.core.errors import Skip
from gpufeed.core.loader_setting import read_tuned
from gpufeed.core.registry import LOADERS, STORES, fetch, load, store_in
from gpufeed.datasets.manifest import Manifest
from gpufeed.loaders.base import Loader, LoadRequest
from gpufeed.models.make import make
from gpufeed.native.jit_toolchain import require_compiler
from gpufeed.system.cores import can_restrict, physical_cores
from gpufeed.system.devices import require_devices, resolve_device, resolve_precision
from gpufeed.system.environment import cores_allowed
from gpufeed.system.page_cache import evicted_share
from gpufeed.training.checkpoints import Checkpoints
from gpufeed.training.distributed.process_group import place_in_group
from gpufeed.training.engines.base import Trainer, TrainJob


@dataclass(frozen=True)
class Stores:
    """The files built for the cell; None for those that it does not use.

    cache, strips, shards, beton: from the dataset for its loader. extension: the library of gpufeed.native,
    for the model's activation or the loader.
    """

    cache: Path | None = None
    strips: Path | None = None
    extension: Path | None = None
    shards: Path | None = None
    beton: Path | None = None

    @classmethod
    def of(cls, paths: Mapping[str, str]) -> "Stores":
        """Return the stores named in `paths`, such as the input of a job, of which only `get` is called."""
        return cls(**{one.name: Path(path) for one in fields(cls) if (path := paths.get(one.name))})


@dataclass
class RuntimeContext:
    """Where a cell runs on this node: on the CPU in fp32 before `find`."""

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    precision: str = "fp32"
    devices: int = 1
    ranks: list[dict[str, str | None]] = field(default_factory=list)  # node and GPU of each, after training
    batch_size: int | None = None  # the one that fitted into memory, if smaller than the cell's
    cuda_graphs: bool | None = None  # whether they are used, if the cell says auto
    workers: int | None = None  # their number, if the cell says auto
    tuned: dict[str, Any] | None = None  # the loader's axes, if a tuning chose them
    cpus: tuple[int, ...] = ()  # ids of the process's CPUs, if the cell sets their number

    def find(self, cell: Cell) -> None:
        """Find device, precision and cores for the cell; raise Skip if this node lacks them."""
        self.device, self.devices = resolve_device(cell.device), cell.devices
        require_devices(cell.devices, self.device, cell.device)
        self.precision = resolve_precision(cell.precision, self.device)
        if cell.cuda_graphs == "auto":
            self.cuda_graphs = self.device.type == "cuda"
        elif cell.cuda_graphs and self.device.type != "cuda":
            raise Skip(f"CUDA graphs need a CUDA GPU, and this cell's device is {self.device.type}.")
        if cell.compile:
            require_compiler(self.device)
        if cell.cores is not None:
            self.cpus = require_cores(cell.cores)
        if cell.workers == "auto":
            self.workers = workers_of(cell)

    def tune(self, cell: Cell, tuning: Path | None) -> Cell:
        """Return the cell with the settings that a tuning chose, unchanged without a tuning.

        Raises Skip or GpufeedError if the tuning has no result.
        """
        if tuning is None:
            return cell
        setting = read_tuned(tuning)
        self.tuned = asdict(setting)
        return setting.of_cell(cell)

    def resolved(self) -> dict[str, Any]:
        """Return the field `resolved` of a document."""
        return {
            "device": self.device.type,
            "precision": self.precision,
            "threads": torch.get_num_threads(),
            **({"devices": self.devices} if self.devices > 1 else {}),
            **({"ranks": self.ranks} if self.ranks else {}),
            **({"batch_size": self.batch_size} if self.batch_size else {}),
            **({"cuda_graphs": self.cuda_graphs} if self.cuda_graphs is not None else {}),
            **({"workers": self.workers} if self.workers is not None else {}),
            **({"tuned": self.tuned} if self.tuned else {}),
            **({"cpus": list(self.cpus), "physical_cores": physical_cores(self.cpus)} if self.cpus else {}),
        }


def require_cores(count: int) -> tuple[int, ...]:
    """Return the ids of the CPUs that this process is restricted to; none if it is not restricted to `count`.

    A training that is not timed has all CPUs. Raises Skip if the node has fewer.
    """
    if not can_restrict():
        raise Skip(f"The cell runs on {count} CPU cores, and this system cannot restrict a process to cores.")
    if (allowed := cores_allowed()) < count:
        raise Skip(f"The cell runs on {count} CPU cores, and this job may use {allowed}.")
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    return cpus if len(cpus) == count else ()


def workers_of(cell: Cell) -> int:
    """Return the number of the loader's workers or threads; `auto` is one a core, split over devices.

    Without `cores` it is the number of torch's threads.
    """
    if cell.workers != "auto":
        return cell.workers
    if cell.cores is None and cell.devices == 1:
        return torch.get_num_threads()
    return max(1, (cell.cores or cores_allowed()) // cell.devices)


def ahead_of(cell: Cell) -> int:
    """Return how many batches arrive almost at once at the beginning: all that workers prefetch."""
    waiting = cell.prefetch_factor or 0
    return waiting + 2 if LOADERS[cell.loader].threads else workers_of(cell) * waiting


def reads_files(manifest: Manifest, stores: Stores) -> bool:
    """Return whether a cell's loader reads image files: it has no store, or the store leaves some out."""
    if store := store_in(stores):
        name, path = store
        return bool(STORES[name].leaves) and load("store", name, "leaves")(path, manifest)
    return not manifest.made


def make_model(cell: Cell, request: LoadRequest) -> nn.Module:
    """Return the cell's model for its classes and sample size, on the request's device."""
    classes, options = len(request.manifest.info.classes), cell.hyper.get("model", {})
    return make(cell.model, classes, request.image_size, options).to(request.device)


def make_augment(name: str, cell: Cell, manifest: Manifest, seed: int) -> Any:
    """Return an augment for the cell's mean and std; with the cell's options if it is the cell's augment."""
    options = cell.hyper.get("augment", {}) if name == cell.augment else {}
    return fetch("augment", name)(*mean_and_std(cell, manifest), seed, options)


def mean_and_std(cell: Cell, manifest: Manifest) -> tuple[Sequence[float], Sequence[float]]:
    """Return mean and std for normalisation: those of the cell's model, or the dataset's."""
    own = cell.hyper.get("input", vars(manifest.info))
    return own["mean"], own["std"]


def load_request(
    cell: Cell, manifest: Manifest, stores: Stores, device: torch.device, seed: int, augment: Any
) -> LoadRequest:
    """Return the training loader's request, which includes an augment for single samples."""
    rank, world_size = place_in_group()
    return LoadRequest(
        manifest=manifest,
        split="train",
        batch_size=cell.batch_size,
        device=device,
        seed=seed,
        **vars(stores),
        sample_transform=None if augment.where == "device" else augment,
        recipe=made_recipe(cell.hyper.get("recipe"), seed),
        decoder=cell.decoder,
        hw_decoder_load=cell.hw_decoder_load,
        options=cell.hyper.get("loader", {}),
        workers=workers_of(cell),
        threads=torch.get_num_threads(),
        prefetch_factor=cell.prefetch_factor,
        ahead=ahead_of(cell) if cell.hyper.get("recipe") else 0,  # other cells stay as published
        pin_memory=cell.pin_memory,
        persistent_workers=cell.persistent_workers,
        rank=rank,
        world_size=world_size,
        ungathered=not cell.hyper.get("recipe")
        and getattr(augment, "gathers", False)
        and fetch("trainer", cell.trainer).takes_rows,
    )


def make_trainer(
    cell: Cell,
    model: nn.Module,
    loader: Loader,
    augment: Any,
    place: RuntimeContext,
    judge: Callable[[], dict] | None = None,
    on_epoch: Callable[[dict], None] | None = None,
    checkpoints: Checkpoints | None = None,
) -> Trainer:
    """Return the cell's trainer for this model and this open loader. judge and the rest: as in TrainJob."""
    job = TrainJob(
        model=model,
        loader=loader,
        augment=augment if augment.where == "device" else None,
        device=place.device,
        precision=place.precision,
        options=cell.hyper["trainer"],
        epochs=cell.epochs,
        steps=cell.steps,
        channels_last=cell.channels_last,
        cuda_graphs=cell.cuda_graphs if place.cuda_graphs is None else place.cuda_graphs,
        compile=cell.compile,
        synchronise=cell.synchronise,
        judge=judge,
        on_epoch=on_epoch,
        checkpoints=checkpoints,
    )
    return fetch("trainer", cell.trainer)(job)


def example_batch(request: LoadRequest) -> torch.Tensor:
    """Return noise like the loader's first batch, on the device, for warm-up and capture.

    It is uint8 (N, H, W, 3), or float32 (N, 3, H, W) if the loader transforms samples.
    """
    height, width = request.image_size
    n = min(request.batch_size, len(request.manifest.ids(request.split)))
    # its own generator, so that the cell's random numbers do not depend on it
    noise = torch.Generator(request.device).manual_seed(0)
    if request.sample_transform is not None:
        height, width = request.sample_transform.output_size(height, width)
        return torch.randn((n, 3, height, width), device=request.device, generator=noise)
    shape = (n, height, width, 3)
    return torch.randint(256, shape, dtype=torch.uint8, device=request.device, generator=noise)


SAMPLED = 64  # files, evenly spaced: mapping one takes about 30 us, and a dataset may have millions
LARGEST = 2**34  # bytes of a file that is checked: 16 GiB are four million pages, about 0.2 s


def input_files(request: LoadRequest) -> list[Path]:
    """Return the files that a loader reads: those of its store, or without one the split's."""
    if store := store_in(request):
        name, path = store
        parts = STORES[name].parts and load("store", name, "parts")
        return parts(path, request.manifest, request.split) if parts else [Path(path)]
    if request.manifest.made:
        return []
    root, names = request.manifest.files_root(), request.manifest.table["path"]
    return [root / name for name in names.iloc[request.manifest.ids(request.split)]]


def page_cached_share(files: Sequence[Path]) -> float | None:
    """Return the share of the files' pages that are in memory, 0..1, from a sample of files; None if unknown.

    Linux only. Files above LARGEST are left out.
    """
    places = torch.linspace(0, len(files) - 1, min(SAMPLED, len(files))).round().long().unique().tolist()
    with suppress(OSError, ValueError):
        chosen = [str(files[place]) for place in places if files[place].stat().st_size <= LARGEST]
        absent = evicted_share(chosen) if chosen else None
        return None if absent is None else 1 - absent
    return None

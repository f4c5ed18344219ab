"""Cells: their settings, their ids, and why a combination cannot exist.

Standard library only: the workflow imports this while it plans, on nodes that have nothing else. Nothing here
looks at the node, so that a login node without a GPU plans the GPU's cells.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import reduce
from typing import Any

from gpufeed.core import vit_options
from gpufeed.core.errors import GpufeedError
from gpufeed.core.references import is_reference, short
from gpufeed.core.registry import AUGMENTS, LOADERS, MODELS, RECIPES, is_made

PRECISIONS = ("auto", "fp32", "tf32", "fp16", "bf16")
SYNCHRONISE = ("epoch", "step")
DEVICES = ("auto", "cuda", "mps", "cpu")
TUNED = "tuned"  # value of `settings`: a tuning job chooses workers, decoder and so on


# Fields added after results were published, with the value that keeps the published ids.
LATER = (
    ("compile", False),
    ("devices", 1),
    ("nodes", 1),
    ("cores", None),
    ("smallest_batch_size", None),
    ("source", {}),
    ("recipe", "crop_flip"),
    ("decoder", "pillow"),
    ("hw_decoder_load", None),
    ("settings", None),
    ("hyper", "augment", "pil", False),
    ("hyper", "trainer", "decay_matrices_only", False),
    ("hyper", "trainer", "evaluate", "last"),
    ("hyper", "trainer", "max_autotune", False),
    ("hyper", "model", "patches", "linear"),
    ("hyper", "trainer", "torch_defaults", False),
    ("hyper", "trainer", "cold_files", False),
)


@dataclass(frozen=True)
class Cell:
    """One combination of the matrix, with all that one repeat runs. Equal cells are one measurement."""

    experiment: str
    dataset: str
    loader: str
    augment: str = "none"
    recipe: str = "crop_flip"  # of the pixels after decoding; crop_flip: left to the augment
    decoder: str = "pillow"  # for loaders whose workers can use several
    hw_decoder_load: float | None = None  # share of files for the GPU's JPEG engines; None: by size
    model: str = "simple_cnn"
    trainer: str = "plain"
    precision: str = "auto"
    batch_size: int = 128
    smallest_batch_size: int | None = None  # halved down to this when memory runs out; None: never
    workers: int | str = 0  # auto: one for each core that its process may use
    prefetch_factor: int | None = None  # batches each worker prepares ahead; None without workers
    pin_memory: bool = True
    persistent_workers: bool = False
    settings: str | None = None  # tuned: chosen for the loader on its node; None: as given
    channels_last: bool = True
    cuda_graphs: bool | str = False  # auto: if the device supports them
    compile: bool = False
    # when the host waits for the device: once an epoch, or after each phase of a step
    synchronise: str = "epoch"
    epochs: int = 1
    steps: int | None = None  # stop after this many batches, over several epochs if needed
    device: str = "auto"
    devices: int = 1  # of each node; each trains on its own batches of batch_size
    nodes: int = 1  # of a Slurm job
    cores: int | None = None  # CPUs that all its processes are pinned to; None: all of the job
    seed: int = 0
    overrides: tuple[str, ...] = ()  # "model.stem=cifar": changes to config/hydra for this cell
    source: dict = field(default_factory=dict, hash=False)  # cell_matrix.content
    # composed: {"model": ..., "trainer": ..., "augment": ...}; "recipe" of one with options
    hyper: dict = field(default_factory=dict, hash=False)

    def asdict(self) -> dict:
        """Return a copy of all fields as plain values."""
        fields = {name: getattr(self, name) for name in FIELDS}
        return fields | {
            "overrides": list(self.overrides),
            **{n: copied(fields[n]) for n in ("source", "hyper")},
        }

    def identity(self) -> dict:
        """Return what the digest in `id` covers: all fields, without LATER fields at their old value."""
        return without_later(self.asdict())

    @property
    def ranks(self) -> int:
        """Training processes: one for each device of each node."""
        return self.nodes * self.devices

    @property
    def cores_wanted(self) -> int:
        """CPUs that a job of the cell needs at least; 0 if any number will do."""
        return self.cores or (0 if self.workers == "auto" else self.workers)

    @property
    def id(self) -> str:
        """A readable name, made unique by a digest of the whole cell."""
        return named(self.identity())


FIELDS = tuple(f.name for f in fields(Cell))
AXES = set(FIELDS) - {"experiment", "source", "hyper", "seed", "device"}


def copied(value: Any) -> Any:
    """Return a copy of plain values. (dataclasses.asdict took over half the time of planning 4,000 cells.)"""
    if isinstance(value, dict):
        return {key: copied(own) for key, own in value.items()}
    return [copied(own) for own in value] if isinstance(value, list) else value


def without_later(settings: dict) -> dict:
    """Remove the LATER fields that have their old value from settings, and return these."""
    for *path, name, before in LATER:
        place = reduce(lambda within, key: within.get(key, {}), path, settings)
        if name in place and place[name] == before:
            del place[name]
    return settings


def cell_id(settings: Mapping) -> str:
    """Return the id of the cell in a document. settings: Cell.asdict, of an older version too."""
    return named(without_later(copied(settings)))


def named(identity: Mapping) -> str:
    """Return the id for an identity (Cell.identity)."""
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:8]
    workers, trainer = identity["workers"], identity["trainer"]
    devices, nodes = (identity.get(axis, 1) for axis in ("devices", "nodes"))
    recipe, decoder = identity.get("recipe", ""), identity.get("decoder", "")
    engines, settings = (identity.get(axis) for axis in ("hw_decoder_load", "settings"))
    parts = [
        identity["dataset"],
        short(identity["loader"]),
        decoder,
        "" if engines is None else f"hw{engines}",
        f"w{workers}" if workers else "",
        settings or "",
        f"c{identity['cores']}" if identity.get("cores") else "",
        recipe and "rrc" + str(identity["hyper"].get("recipe", {}).get("size", "")),
        short(identity["augment"]),
        short(identity["model"]),
        "" if trainer == "plain" else trainer,
        identity["precision"],
        f"b{identity['batch_size']}",
        "compiled" if identity.get("compile") else "",
        "graphs" if identity["cuda_graphs"] else "",
        f"x{devices}" if devices != 1 else "",
        f"n{nodes}" if nodes != 1 else "",
        digest,
    ]
    return "-".join(part for part in parts if part)


def impossible(cell: Cell) -> str | None:
    """Return why a cell cannot exist on any machine, as a sentence; None if it can."""
    loader = LOADERS[cell.loader]
    if sentence := why_not_workers(cell.workers, cell.loader):
        return sentence
    if is_made(cell.source) and not loader.makes:
        return f"{cell.loader} needs image files, and {cell.dataset} has none"
    if loader.device == "cuda" and cell.device in ("cpu", "mps"):
        return f"{cell.loader} decodes on a CUDA GPU, and the config says device {cell.device}"
    if RECIPES[cell.recipe].of_loader and (sentence := why_no_windows(cell)):
        return sentence
    if cell.decoder != "pillow" and cell.decoder not in loader.decoders:
        which = f"does not decode by {cell.decoder}" if loader.decoders else "has no choice of decoder"
        return f"{cell.loader} {which}, so decoder must be {' or '.join(loader.decoders or ('pillow',))}"
    if cell.hw_decoder_load is not None and not loader.engines:
        return f"{cell.loader} does not use a GPU's JPEG engines, so hw_decoder_load must be null"
    if cell.source.get("resize") and not loader.resizes:
        return f"{cell.loader} does not resize images, and {cell.dataset} has `resize`"
    if not loader.has_place_for(cell.augment):
        return why_no_augment(cell)
    if AUGMENTS[cell.augment].device == "cuda" and cell.device in ("cpu", "mps"):
        return f"augment {cell.augment} runs CUDA kernels, and the config says device {cell.device}"
    if cell.cuda_graphs is True and cell.device in ("cpu", "mps"):
        return f"CUDA graphs need device cuda, and the config says {cell.device}"
    if cell.cuda_graphs and cell.synchronise == "step":
        return "a CUDA graph is launched as a whole, so synchronise must be 'epoch' with cuda_graphs"
    if cell.compile and cell.device == "mps":
        return "models are compiled for CUDA and the CPU, and the config says device mps"
    if cell.precision in ("tf32", "fp16") and cell.device == "cpu":
        return f"precision {cell.precision} needs a GPU, and the config says device cpu"
    if loader.anew and cell.persistent_workers:
        return f"{cell.loader} starts new workers each epoch, so persistent_workers must be false"
    if loader.stays and not cell.persistent_workers:
        return f"{cell.loader} keeps its workers between epochs, so persistent_workers must be true"
    if cell.ranks > 1 and cell.trainer != "lightning":
        must = "devices" if cell.nodes == 1 else "devices and nodes"
        return f"trainer {cell.trainer} trains on one device, so {must} must be 1 (or the trainer lightning)"
    if cell.ranks > 1 and cell.device == "mps":
        return "several devices must be CUDA GPUs or CPU processes, and the config says device mps"
    if cell.cores and cell.nodes > 1:
        return "cores are pinned on the first node only, so nodes must be 1 (or cores null)"
    if cell.settings == TUNED and (sentence := untunable(cell)):
        return sentence
    if cell.trainer == "fastai":
        return impossible_with_fastai(cell)
    if cell.trainer == "lightning" and cell.cuda_graphs:
        return "trainer lightning calls Python between the parts of a step, so cuda_graphs must be false"
    return None


def why_not_workers(workers: int | str, loader: str) -> str | None:
    """Return why a loader cannot have this number of workers, as a sentence; None if it can."""
    if LOADERS[loader].workers == "never" and workers:
        return f"{loader} has no worker processes, so workers must be 0"
    if LOADERS[loader].workers == "required" and not workers:
        return f"{loader} needs at least one worker process (0 workers is dataloader_sync)"
    return None


def tunable(loader: str) -> bool:
    """Return whether a tuner has anything to choose for a loader: workers, or the decoder in them."""
    entry = LOADERS[loader]
    return not entry.ceiling and (entry.workers != "never" or len(entry.decoders) > 1)


def untunable(cell: Cell) -> str | None:
    """Return why the settings of a cell cannot be tuned, as a sentence; None if they can."""
    if not tunable(cell.loader):
        return f"{cell.loader} has no workers and no choice of decoder, so settings cannot be tuned"
    if cell.trainer != "plain" or cell.ranks > 1:
        return "a tuning needs trainer plain on one device"
    if cell.hyper.get("trainer", {}).get("cold_files"):
        return "a tuning reads files from the page cache, so trainer.cold_files must be false"
    return None


def why_no_windows(cell: Cell) -> str | None:
    """Return why the cell's loader cannot crop random windows of images, as a sentence; None if it can."""
    if LOADERS[cell.loader].windows == "never":
        return f"{cell.loader} cannot crop and resize each image, as recipe {cell.recipe} needs"
    if cell.source.get("resize"):
        return f"recipe {cell.recipe} crops images in their original size, and {cell.dataset} has `resize`"
    if AUGMENTS[cell.augment].where != "device":
        return f"recipe {cell.recipe} crops and flips in the loader, and augment {cell.augment} does so again"
    return None


def impossible_with_fastai(cell: Cell) -> str | None:
    """Return why trainer fastai cannot run a cell on any machine, as a sentence; None if it can."""
    if cell.cuda_graphs:
        return "trainer fastai calls Python between the parts of a step, so cuda_graphs must be false"
    if cell.compile:
        return "trainer fastai does not compile models, so compile must be false"
    if cell.precision == "bf16" and cell.device in ("cpu", "mps"):
        return f"trainer fastai has bf16 on CUDA GPUs only, and the config says device {cell.device}"
    return None


def impossible_as_composed(cell: Cell) -> str | None:
    """Return why a cell cannot exist with its hyper-parameters, as a sentence; None if it can."""
    augment = cell.hyper.get("augment", {})
    if RECIPES[cell.recipe].of_loader and (augment.get("crop_padding") or augment.get("flip_probability")):
        return (
            f"recipe {cell.recipe} crops and flips already, so augment.crop_padding and "
            "augment.flip_probability must be 0"
        )
    if cell.cuda_graphs and augment.get("exchange") == "host":
        return (
            f"augment {cell.augment} with exchange host waits for the device in every step, which a CUDA "
            "graph cannot capture, so cuda_graphs must be false"
        )
    if cell.cuda_graphs and cell.hyper.get("trainer", {}).get("torch_defaults"):
        return (
            "trainer.torch_defaults uses optimisers that wait for the device, which a CUDA graph cannot "
            "capture, so cuda_graphs must be false"
        )
    if cell.hyper.get("trainer", {}).get("cold_files") and (sentence := why_no_cold_files(cell)):
        return sentence
    if cell.hyper.get("trainer", {}).get("max_autotune") and not cell.compile:
        return "trainer.max_autotune chooses among kernels of torch.compile, so compile must be true"
    if MODELS[cell.model].sized and cell.hyper.get("augment", {}).get("size") is not None:
        return (
            f"augment {cell.augment} resizes training images only, and {cell.model} has position embeddings "
            "for one size, so augment.size must be null"
        )
    if is_reference(cell.model):
        return None
    return vit_options.impossible(cell.hyper.get("model", {}), cell.precision, cell.device)


def why_no_cold_files(cell: Cell) -> str | None:
    """Return why a cell cannot start with evicted files, as a sentence; None if it can."""
    if LOADERS[cell.loader].ceiling or LOADERS[cell.loader].decoded:
        return f"{cell.loader} reads no image files during an epoch, so trainer.cold_files must be false"
    if cell.steps is None and cell.epochs > 1:
        return "a second epoch would find its files in memory, so epochs must be 1 with trainer.cold_files"
    return None


def without_cuda(cells: Iterable[Cell]) -> Counter:
    """Count the cells that a node without a CUDA GPU skips, as far as the config says: reason -> cells."""
    found = Counter()
    for cell in cells:
        if cell.device == "cuda":
            found["the config says device cuda"] += 1
        elif cell.device == "auto" and (sentence := impossible(replace(cell, device="cpu"))):
            found[sentence.partition(", and the config says")[0]] += 1
    return found


def check_batch(cell: Cell, images: int) -> None:
    """Raise GpufeedError for a batch larger than the training split, with which no step would run.

    images: of the training split, which all devices of the cell share in each step.
    """
    if cell.batch_size * cell.ranks <= images:
        return
    asked, most = f"batch_size {cell.batch_size}", images // cell.ranks
    if cell.ranks > 1:
        asked += f" on each of {cell.ranks} devices, {cell.batch_size * cell.ranks} together,"
    raise GpufeedError(
        f"{asked} in experiment {cell.experiment!r}, and {images} images to train on in {cell.dataset!r}",
        f"a batch_size of at most {most}, so that one step is possible",
        "lower batch_size, or train on a larger dataset",
    )


def why_no_augment(cell: Cell) -> str:
    """Return why the cell's loader has no place for its augment, as a sentence."""
    if cell.augment == "dali":
        return f"augment 'dali' runs inside DALI's pipeline, which loader {cell.loader} does not have"
    if LOADERS[cell.loader].decoded:
        return f"{cell.loader} decodes nothing during an epoch, so augment {cell.augment!r} cannot run in it"
    return f"{cell.loader} decodes whole batches, so augment {cell.augment!r} has no single samples to run on"


def settle(cell: Cell) -> Cell:
    """Return the cell without worker settings where it has no workers.

    `workers: auto` becomes 0 for a loader without workers. `settings: tuned` becomes null for one that has
    nothing to tune. So one block may list loaders of both kinds.
    """
    if cell.hw_decoder_load is not None:
        cell = replace(cell, hw_decoder_load=float(cell.hw_decoder_load))  # 0 and 0.0 are one cell
    if cell.workers == "auto" and LOADERS[cell.loader].workers == "never":
        cell = replace(cell, workers=0)
    if cell.settings == TUNED and not tunable(cell.loader):
        cell = replace(cell, settings=None)
    if cell.workers:
        return replace(cell, prefetch_factor=cell.prefetch_factor or 2)
    return replace(cell, prefetch_factor=None, persistent_workers=False)

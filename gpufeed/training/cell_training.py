"""Set up a cell on its node and train it: the start of measuring a cell, saving its model and
evaluating that.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from gpufeed import native
from gpufeed.core.cells import Cell, check_batch
from gpufeed.core.equivalence_verdict import NotPassed, admit, check_same
from gpufeed.core.errors import GpufeedError, Skip, first_line, one_line
from gpufeed.core.registry import LOADERS
from gpufeed.datasets.manifest import Manifest
from gpufeed.datasets.packed import bring, is_packed
from gpufeed.loaders.base import Loader, LoadRequest, make_loader
from gpufeed.loaders.pixel_tolerance import pixel_source
from gpufeed.models.make import require
from gpufeed.system import devices
from gpufeed.system.devices import apply_precision
from gpufeed.system.environment import cores_allowed
from gpufeed.system.host_memory import keep_freed_blocks
from gpufeed.system.page_cache import Refused, make_cold, read_in
from gpufeed.system.telemetry import summary
from gpufeed.system.telemetry.watch import Watch
from gpufeed.system.timing import synchronise, warmup
from gpufeed.training.checkpoints import Checkpoints
from gpufeed.training.distributed.launch_ranks import spread
from gpufeed.training.distributed.process_group import (
    check_world,
    gathered,
    node_of_rank,
    place_in_group,
    steps_in_epoch,
)
from gpufeed.training.distributed.rank_files import Call
from gpufeed.training.engines.base import Trainer, TrainResult
from gpufeed.training.evaluate import Answers, answers
from gpufeed.training.runtime_context import (
    RuntimeContext,
    Stores,
    example_batch,
    input_files,
    load_request,
    make_augment,
    make_model,
    make_trainer,
    page_cached_share,
    reads_files,
)
from gpufeed.training.smaller_batch import fitting

Made = TypeVar("Made")
log = logging.getLogger("gpufeed")
RANKS_APART = 1_000_003  # between the seeds of ranks, which never equal those of other repeats


@dataclass(frozen=True)
class Trained:
    """A model after its training. batches: in an epoch. setup_s: seconds before the clock started.

    loading: counts of the loader's images by decoder (DecodeCounts.asdict), None for a loader without
    fallback. peak_gpu_mib: most memory reserved on any device; None without CUDA. telemetry: None if it was
    off or failed. spent: unpack_s, load_s, compile_s and run_s as in the `phases` of a record; with several
    processes those of the first. ranks: node and gpu of each process, if there are several.
    """

    model: nn.Module
    request: LoadRequest
    result: TrainResult
    batches: int
    setup_s: float
    loading: dict[str, Any] | None
    peak_gpu_mib: float | None
    telemetry: dict[str, Any] | None = None
    ranks: list[dict[str, str | None]] = field(default_factory=list)
    spent: dict[str, float] = field(default_factory=dict)


def read_cell(cell: dict) -> Cell:
    """Return the cell from Cell.asdict."""
    return Cell(**{**cell, "overrides": tuple(cell["overrides"])})


def settle_process(threads: int | None) -> None:
    """Set up this process to train. threads: as in measure."""
    keep_freed_blocks()
    if threads is not None:
        torch.set_num_threads(max(1, min(threads, cores_allowed())))


def with_status(cell: Cell, work: Callable[[], Made]) -> tuple[str, str | None, Made | None]:
    """Return ("done", None, the result of `work`), or another status, its reason as a sentence, and None.

    The status is `skipped` if the node lacks something, `failed` for an error. An interrupt or SIGTERM is not
    caught.
    """
    try:
        return "done", None, work()
    except Skip as skip:
        log.info("skipped: %s", skip)
        return "skipped", str(skip), None
    except NotPassed as refusal:
        log.error("not run: %s", refusal)
        return "failed", str(refusal), None
    except Exception as error:
        log.exception("the cell failed")
        return "failed", explain(error, cell), None


def train(
    cell: Cell,
    repeat: int,
    manifest: Path,
    stores: Stores,
    place: RuntimeContext,
    gate: Path | None,
    on_epoch: Callable[[dict], None] | None = None,
    checkpoints: Checkpoints | None = None,
    telemetry: bool = False,
    least_s: float = 0.0,
    scratch: Path | None = None,
) -> Trained:
    """Set up the cell and train it; raise Skip, NotPassed or the error that stops it.

    repeat: added to the cell's seed. gate: the verdict on the cell's loader, which is required; None for a
    ceiling, which has none. on_epoch, checkpoints: as in TrainJob. telemetry: whether to record it. least_s:
    as in Trainer.run. scratch: as in spread. A cell with several devices is trained by as many processes; its
    model is then on the first device of this node.

    If memory runs out, training starts again with a smaller batch, provided that the cell allows it, no epoch
    was reported and no state is kept yet; a resumed training has the batch of its checkpoint.
    place.batch_size is the batch that fits; raises OutOfMemory if none does.
    """
    told = {"repeat": repeat, "manifest": manifest, "stores": stores, "gate": gate}
    told |= {"checkpoints": checkpoints, "telemetry": telemetry, "least_s": least_s}
    over: list[dict] = []  # epochs already reported, which must not be trained again

    def tell(entry: dict) -> None:
        over.append(entry)
        on_epoch(entry)

    heard = None if on_epoch is None else tell
    size, trained = fitting(
        cell,
        lambda one: spread_out({**told, "cell": one}, place, heard, scratch),
        first=checkpoints and cell.smallest_batch_size and checkpoints.batch_size(),
        again=lambda: not over and (checkpoints is None or checkpoints.batch_size() is None),
    )
    place.batch_size = size if size != cell.batch_size else None
    return trained


def spread_out(
    told: dict[str, Any], place: RuntimeContext, on_epoch: Callable[[dict], None] | None, scratch: Path | None
) -> Trained:
    """Train with the cell's batch in this process, or in a process for each of its ranks.

    told: the other arguments of train_here, by name.
    """
    cell, stores, checkpoints = told["cell"], told["stores"], told["checkpoints"]
    if cell.ranks == 1:
        return train_here(place=place, on_epoch=on_epoch, **told)
    place.find(cell)
    threads = max(1, torch.get_num_threads() // cell.devices)
    work = f"{__name__}:{train_here.__name__}"
    call = Call(
        work,
        {**told, "place": RuntimeContext()},
        cell.devices,
        place.device.type,
        threads,
        tells=True,
        nodes=cell.nodes,
        keeps=checkpoints is not None,
    )
    trained = spread(call, on_epoch, scratch)
    place.ranks = trained.ranks
    # as in the ranks, for the evaluation that follows
    apply_precision(place.precision)
    if stores.extension:
        native.load(stores.extension)
    return replace(trained, model=trained.model.to(place.device))


def train_here(
    cell: Cell,
    repeat: int,
    manifest: Path,
    stores: Stores,
    place: RuntimeContext,
    gate: Path | None,
    on_epoch: Callable[[dict], None] | None,
    checkpoints: Checkpoints | None,
    telemetry: bool = False,
    least_s: float = 0.0,
) -> Trained:
    """Train in this process: the whole cell if it has one device, else one of its ranks."""
    told, called = (on_epoch, checkpoints, telemetry), time.perf_counter()
    cold = cell.hyper.get("trainer", {}).get("cold_files", False)
    with (
        made_ready(cell, repeat, manifest, stores, place, gate, *told) as ready,
        cold_files(ready, cell.steps) if cold else nullcontext(),
    ):
        loader, watch, least_s = ready.loader, ready.watch, 0.0 if cold else least_s
        batches, began = steps_in_epoch(loader), time.perf_counter()
        with watch if watch is not None else nullcontext():
            result = ready.trainer.run(least_s)
        spent = {"load_s": began - called - ready.compile_s, "compile_s": ready.compile_s}
        if ready.unpack_s is not None:
            spent |= {"load_s": spent["load_s"] - ready.unpack_s, "unpack_s": ready.unpack_s}
        spent["run_s"] = time.perf_counter() - began
    if loader.decode_counts is not None:
        loader.decode_counts.check()
    left_out = warmup(result.epochs, batches, loader.request.ahead)["steps"]
    seen = watch and watch.safely(lambda: summary.summarise(watch.seen, left_out))
    own = {
        "loading": loader.decode_counts and loader.decode_counts.asdict(),
        "peak_gpu_mib": devices.peak_mib(place.device),
    }
    own["where"] = {"node": node_of_rank(), "gpu": devices.gpu_state(place.device)["uuid"]}
    ranks = gathered({**own, "telemetry": seen}, loader.request.world_size)
    loading = together([rank["loading"] for rank in ranks])
    peak = max((rank["peak_gpu_mib"] for rank in ranks if rank["peak_gpu_mib"] is not None), default=None)
    seen = summary.together([rank["telemetry"] for rank in ranks])
    where = [rank["where"] for rank in ranks] if len(ranks) > 1 else []
    return Trained(
        ready.model, ready.request, result, batches, ready.setup_s, loading, peak, seen, where, spent
    )


@dataclass(frozen=True)
class Ready:
    """A cell that is set up to the start of the clock; its loader is open.

    setup_s: seconds of the setup, of which open_s opened the loader and compile_s prepared the trainer.
    watch: not entered yet; None without telemetry. unpack_s: seconds before the setup to unpack files; None
    if there was nothing to unpack.
    """

    model: nn.Module
    request: LoadRequest
    loader: Loader
    trainer: Trainer
    setup_s: float
    open_s: float
    compile_s: float
    watch: Watch | None
    unpack_s: float | None = None


@contextmanager
def made_ready(
    cell: Cell,
    repeat: int,
    manifest: Path,
    stores: Stores,
    place: RuntimeContext,
    gate: Path | None,
    on_epoch: Callable[[dict], None] | None = None,
    checkpoints: Checkpoints | None = None,
    telemetry: bool = False,
) -> Iterator[Ready]:
    """Set up the cell in this process, and close its loader at the end. Arguments and errors: as in train."""
    rank, world_size = place_in_group()
    check_world(world_size, cell.ranks)
    samples, seed = Manifest.read(manifest), cell.seed + repeat
    check_batch(cell, len(samples.ids("train")))  # before anything is skipped, since it holds on every node
    verdict = admit(gate) if gate is not None else None
    place.find(cell)
    if verdict is not None:
        check_same(gate, verdict, "device", place.device.type)
    # now, so that nothing timed waits for it
    unpack_s = bring(samples.root) if is_packed(samples.root) and reads_files(samples, stores) else None
    torch.manual_seed(seed)
    apply_precision(place.precision)
    devices.forget_peak(place.device)
    setup_start = time.perf_counter()
    augment = make_augment(cell.augment, cell, samples, seed)
    request = load_request(cell, samples, stores, place.device, seed, augment)
    if stores.extension:
        native.load(stores.extension)
    model = make_model(cell, request)
    require(model, place.device, place.precision)
    if rank:  # after the weights, which are the same on all ranks, unlike dropout
        torch.manual_seed(seed + RANKS_APART * rank)
    watch = (
        Watch(place.device, page_cached_share(input_files(request)), world_size > 1) if telemetry else None
    )
    opening = time.perf_counter()
    with make_loader(cell.loader, request) as loader:
        open_s = time.perf_counter() - opening
        if verdict is not None:
            version = pixel_source(cell.loader, loader, request.cache).version
            check_same(gate, verdict, "decoder", version)
        asked = between_epochs(cell, model, request, place) if rank == 0 else None
        if watch is not None:
            asked, on_epoch = watch.apart(asked), watch.telling(on_epoch)
        trainer = make_trainer(cell, model, loader, augment, place, asked, on_epoch, checkpoints)
        preparing = time.perf_counter()
        rows = loader.example()
        trainer.prepare(example_batch(request) if rows is None else rows)
        synchronise(place.device)
        done = time.perf_counter()
        setup_s, compile_s = done - setup_start, done - preparing
        yield Ready(model, request, loader, trainer, setup_s, open_s, compile_s, watch, unpack_s)


@contextmanager
def cold_files(ready: Ready, steps: int | None) -> Iterator[None]:
    """Evict the files of an epoch from the page cache; read them in again at the end, for later cells.

    steps: of the cell. Raises Skip if no file is read or the kernel keeps them. Raises GpufeedError for more
    steps than an epoch has, since a second epoch would find the files in memory.
    """
    files, batches = ready.loader.files(), steps_in_epoch(ready.loader)
    if not files:
        raise Skip("trainer.cold_files evicts files before an epoch, and this loader reads none in it")
    if (steps or 0) > batches:
        raise GpufeedError(
            f"trainer.cold_files with {steps} steps, and {batches} batches in an epoch",
            f"at most {batches} steps: in a second epoch the files are in memory",
            "lower `steps`, or raise `copies` of the source",
        )
    try:
        evicted = make_cold(files)
    except Refused as reason:
        raise Skip(str(reason)) from None
    if ready.watch is not None:
        ready.watch.seen.page_cache_share = 1 - evicted
    try:
        yield
    finally:
        read_in(files)


def together(loadings: list[dict[str, Any] | None]) -> dict[str, Any] | None:
    """Sum the decoders' counts of all ranks (DecodeCounts.asdict); None for a loader without fallback."""
    if loadings[0] is None:
        return None
    fell_back = sum((Counter(loading["fell_back"]) for loading in loadings), Counter())
    images = sum(loading["images"] for loading in loadings)
    return {**loadings[0], "images": images, "fell_back": dict(fell_back)}


def judge(cell: Cell, model: nn.Module, request: LoadRequest, precision: str) -> Answers:
    """Evaluate the model on the evaluation split, through the cell's own loader and augment `none`.

    request: of the training split.
    """
    normalise = make_augment("none", cell, request.manifest, request.seed)
    split = request.manifest.info.evaluation_split
    alone = {"rank": 0, "world_size": 1, "ungathered": False}
    alone["recipe"] = request.recipe and request.recipe.for_evaluation()
    held_out = replace(request, split=split, shuffle=False, sample_transform=None, **alone)
    with make_loader(cell.loader, held_out) as loader:
        return answers(model, loader, normalise, request.device, precision, cell.channels_last)


def is_judged(cell: Cell) -> bool:
    """Return whether accuracy means anything: not for a ceiling, which trains on one batch, or few steps."""
    return not LOADERS[cell.loader].ceiling and cell.steps is None


def between_epochs(
    cell: Cell, model: nn.Module, request: LoadRequest, place: RuntimeContext
) -> Callable[[], dict] | None:
    """Return the function that evaluates the model after an epoch; None to evaluate at the end, or never."""
    if cell.hyper["trainer"].get("evaluate") != "epoch" or not is_judged(cell):
        return None
    return lambda: judge(cell, model, request, place.precision).accuracy()


def explain(error: Exception, cell: Cell) -> str:
    """Return an error in one line for the report; its traceback is in the log."""
    if isinstance(error, torch.OutOfMemoryError):
        return f"CUDA ran out of memory at batch size {cell.batch_size}: {first_line(error)}"
    return one_line(error)

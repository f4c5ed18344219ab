"""The input-only ceiling: a loader without a model, and without single stages of its work."""

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gpufeed.benchmarks.ceilings.shares import summary
from gpufeed.core.errors import GpufeedError, Skip, one_line
from gpufeed.core.plan_ceilings import DECODE, FETCH, TRANSFER
from gpufeed.loaders.base import Batch, Loader, LoadRequest, NoStage
from gpufeed.loaders.samples import Samples
from gpufeed.system.page_cache import Refused, make_cold
from gpufeed.system.timing import synchronise

BEHIND = 2  # batches that the device may lag behind, as in a training loop
ROUNDS = COLD_ROUNDS = 6  # the fewest that have an interval
# Pixels that replace decoding: more than CPU caches hold, so that reading them has a realistic cost.
POOL_BYTES = 256 * 2**20
log = logging.getLogger("gpufeed")


@dataclass(frozen=True)
class Drained:
    """Epochs of a loader alone, on the host's clock.

    seconds: of all epochs, each from the first request until its last batch is on the device. Shutting down
    workers that serve one epoch is not included, as in the trainer's epochs. first_batch_s: of each epoch.
    """

    seconds: float
    first_batch_s: list[float]


def example_batch(loader: Loader) -> Batch:
    """Return a copy of the first batch of an epoch, after the whole epoch has been read."""
    found = None
    with closing(iter(loader)) as source:
        for batch in source:
            found = batch.clone() if found is None else found
    return found


def drain_epoch(loader: Loader, epochs: int = 1, lead_in: bool = True) -> Drained:
    """Read whole epochs of an open loader; raise GpufeedError if one loses or repeats images.

    lead_in: as in Bench.segment.
    """
    seconds, firsts = 0.0, []
    for number in range(-int(lead_in and loader.keeps_on), epochs):
        batches, images, expected, reached = 0, 0, loader.share, deque()
        last = len(loader)
        synchronise(loader.request.device)
        begin = time.perf_counter()
        with closing(iter(loader)) as source:
            for batch in source:
                wait_behind(reached, loader.request.device)
                batches, images = batches + 1, images + len(batch.images)  # gathers deferred rows
                if batches == 1 and number >= 0:
                    firsts.append(time.perf_counter() - begin)
                if batches == last and number >= 0:
                    synchronise(loader.request.device)  # sync point: all batches are there
                    seconds += time.perf_counter() - begin
        if images != expected:
            raise GpufeedError(
                f"{images} images from {type(loader).__name__} alone",
                f"{expected}, each sample once",
                "choose another loader and report this one",
            )
    return Drained(seconds, firsts)


def wait_behind(reached: "deque[torch.cuda.Event]", device: torch.device, sleeping: bool = False) -> None:
    """Wait until the device is at most BEHIND batches behind, or memory would pile up there.

    sleeping: yield the core meanwhile, which takes some microseconds longer.
    """
    if device.type != "cuda":
        return
    event = torch.cuda.Event(blocking=sleeping)
    event.record(torch.cuda.current_stream(device))
    reached.append(event)
    if len(reached) > BEHIND:
        reached.popleft().synchronize()


@dataclass(frozen=True)
class Cold:
    """Seconds of an epoch, by round.

    cold_s: the loader alone with evicted files. warm_s: with the same files in the page cache. end_to_end_s:
    training with evicted files.
    """

    cold_s: list[float]
    warm_s: list[float]
    end_to_end_s: list[float]


def input_runs(
    loader: Loader, request: LoadRequest, epochs: int, rounds: int
) -> tuple[dict[str, list[float]], list[float], dict[str, str]]:
    """Return the seconds per epoch of the loader alone, by round: whole, and without each stage.

    Keys: `input_only` for the whole loader, as in a record, or the stage that is left out. Further results
    are the seconds to the first batch of each whole epoch, and why a stage could not be left out. The
    variants alternate, with every other round in reverse order. loader: open, made from `request`.
    """
    ways: dict[str, Callable[[], Loader]] = {
        DECODE: lambda: type(loader).without_decoding(request, lambda: decoded(request)),
        TRANSFER: lambda: type(loader).without_transfer(request),
    }
    reasons: dict[str, str] = {}
    with ExitStack() as stack:
        loaders = {"input_only": loader}
        for stage, make in ways.items():
            try:
                variant = stack.enter_context(make())
                drain_epoch(variant)  # its workers start, its memory is allocated
                loaders[stage] = variant
            except (NoStage, Skip) as reason:
                reasons[stage] = str(reason)
            except GpufeedError as error:
                reasons[stage] = one_line(error)
        seconds: dict[str, list[float]] = {name: [] for name in loaders}
        firsts: list[float] = []
        for number in range(rounds):
            for name in list(loaders) if number % 2 == 0 else list(loaders)[::-1]:
                found = drain_epoch(loaders[name], epochs)
                seconds[name].append(found.seconds / epochs)
                firsts += found.first_batch_s if name == "input_only" else []
            log.info("input only, round %d: %s", number + 1, {name: s[-1] for name, s in seconds.items()})
    return seconds, firsts, reasons


def decoded(request: LoadRequest) -> np.ndarray:
    """Return decoded images of the split, uint8 (n, H, W, 3), as many as POOL_BYTES hold."""
    height, width = request.image_size
    ids = request.manifest.ids(request.split)[: max(1, POOL_BYTES // (height * width * 3))]
    samples = Samples(request)
    with ThreadPoolExecutor(max(1, request.threads)) as pool:
        return np.stack(list(pool.map(samples.read, ids.tolist())))


def cold_runs(loader: Loader, end_to_end: Callable[[], float], rounds: int) -> Cold | str:
    """Time epochs with evicted files, each next to one with cached files; or return why that fails.

    end_to_end: trains an epoch of the same loader, without a lead-in, and returns its seconds.
    """
    cold, warm, whole = [], [], []
    for number in range(rounds):
        files = loader.files()
        if not files:
            return "An epoch reads no file."
        try:
            make_cold(files)
            cold.append(drain_epoch(loader, lead_in=False).seconds)
            loader.files()  # drops prefetched batches, as before the cold epoch
            warm.append(drain_epoch(loader, lead_in=False).seconds)
            make_cold(loader.files())
            whole.append(end_to_end())
            told = number + 1, cold[-1], warm[-1], whole[-1]
            log.info("page cache, round %d: alone %.4f s cold, %.4f s warm, end to end %.4f s cold", *told)
        except Refused as reason:
            return str(reason)
    return Cold(cold, warm, whole)


def difference(
    more: Sequence[float], less: Sequence[float], images: int, end_to_end_s: float, compute_s: float
) -> dict[str, Any]:
    """Return the time that a stage takes, and what removing it could gain. All seconds are of one epoch.

    more, less: the loader alone with the stage and without it, round by round. end_to_end_s: a training epoch
    with the stage. compute_s: one without any input. at_most: the largest possible speed-up, since no
    training is faster than compute only or than the rest of its input. points: the share of the epoch that
    the removal can save, by the stage's own time and by at_most.
    """
    apart = [with_it - without for with_it, without in zip(more, less, strict=True)]
    seconds, without = summary(apart), float(np.median(less))
    at_most = max(1.0, end_to_end_s / max(compute_s, without))
    points = max(0.0, min(seconds["median"] / end_to_end_s, 1 - 1 / at_most))
    return {
        "reason": None,
        "seconds": seconds,
        # fewer rounds have no interval: three of three in one direction happen by chance one time in eight
        "shown": seconds["ci95_low"] is not None and seconds["ci95_low"] > 0,
        "end_to_end_s": end_to_end_s,
        "images_per_s_without": images / without,
        "at_most": at_most,
        "points": points,
    }


NOTHING = dict.fromkeys(("seconds", "end_to_end_s", "images_per_s_without", "at_most", "points"))


def stages(
    seconds: Mapping[str, Sequence[float]],
    reasons: Mapping[str, str],
    cold: Cold | str,
    images: int,
    end_to_end_s: float,
    compute_s: float,
) -> dict[str, dict[str, Any]]:
    """Return the field `stages` of the document from the results of input_runs and cold_runs."""
    found = {}
    if isinstance(cold, Cold):
        whole_s = float(np.median(cold.end_to_end_s))
        found[FETCH] = difference(cold.cold_s, cold.warm_s, images, whole_s, compute_s)
    else:
        found[FETCH] = not_measured(cold)
    for stage in (DECODE, TRANSFER):
        if stage in reasons:
            found[stage] = not_measured(reasons[stage])
        else:
            found[stage] = difference(seconds["input_only"], seconds[stage], images, end_to_end_s, compute_s)
    return found


def not_measured(reason: str) -> dict[str, Any]:
    return {"reason": reason, "shown": False, **NOTHING}

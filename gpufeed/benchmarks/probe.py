"""A probe of a cell: seconds of its training and its input, each alone and together, and what they use."""

import logging
import math
import os
import shutil
import statistics
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import groupby
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gpufeed.benchmarks.ceilings.segments import Bench, ReplayedBatch
from gpufeed.benchmarks.ceilings.stages import wait_behind
from gpufeed.benchmarks.cell_document import cell_document
from gpufeed.benchmarks.result_envelope import envelope
from gpufeed.core.cells import Cell
from gpufeed.core.document import now
from gpufeed.core.record import PROBE, PROBE_VERSION
from gpufeed.loaders.base import Batch, Loader
from gpufeed.system.devices import peak_mib
from gpufeed.system.environment import cores_allowed
from gpufeed.system.host_memory import free_host_bytes
from gpufeed.system.page_cache import read_in_some
from gpufeed.system.processes import exit_words, forked_child
from gpufeed.system.telemetry.gpu_readings import Gpu
from gpufeed.system.telemetry.process_load import shared_out_mib, tree, used
from gpufeed.system.timing import synchronise
from gpufeed.training.cell_training import Ready, made_ready, read_cell
from gpufeed.training.engines.plain import PlainTrainer
from gpufeed.training.runtime_context import RuntimeContext, Stores, ahead_of
from gpufeed.training.smaller_batch import fitting

log = logging.getLogger("gpufeed")
ROUNDS = 6  # of each pass: the fewest that have an interval
STARTS = 3  # epochs that the input's rounds are spread over, each with its own start
ROUND_S = 0.5  # minimum of a round
TOGETHER_S = 3.0  # of training on the loader, after its first batches
HOST_STEPS = 3  # few enough for a GPU's queue
SAMPLE_S = 0.1
REST_S, RESTS = 10.0, 0.2  # time limit for workers to become idle; share of a core that counts as idle
BEHIND_S = 0.3  # delay of NVML's utilisation
SHM, MIB = "/dev/shm", 2**20
NO_START = {"first_batch_s": 0.0, "lead_s": 0.0, "lead_images": 0}
PASSES = ("compute", "input", "together")
NOTHING = dict.fromkeys(("resolved", "cores", "images", "works_ahead", *PASSES, "memory"))
NOTHING |= {"schema_version": PROBE_VERSION}


def probe(cell: dict, manifest: str | Path, stores: Stores, planned_on: str, **asked: Any) -> dict[str, Any]:
    """Return the probe (core/schemas/probe.schema.yaml) of a cell. planned_on, asked: as in cell_document."""
    return cell_document(
        cell, lambda one, place: probed(one, Path(manifest), stores, place), NOTHING, planned_on, **asked
    )


def probed(cell: Cell, manifest: Path, stores: Stores, place: RuntimeContext) -> dict[str, Any]:
    """Return the fields of a finished probe; raise Skip or the error that stops it."""
    free = {"host_free_mib": free_host_bytes() / MIB, "shm_free_mib": shm_mib("free")}
    held_mib = shared_out_mib(tree(os.getpid()))

    def with_batch(one: Cell) -> dict[str, Any]:
        before = shm_mib("used")
        with made_ready(one, 0, manifest, stores, place, None) as ready:
            found = of_ready(ready, ahead_of(one))
            found["memory"] = free | memory(place.device, held_mib, before)
        return found

    size, found = fitting(cell, with_batch)
    place.batch_size = size if size != cell.batch_size else None
    return {"resolved": place.resolved(), "cores": cell.cores or cores_allowed(), **found}


def of_ready(ready: Ready, ahead: int) -> dict[str, Any]:
    """Return the passes of a cell that is set up. ahead: batches that arrive almost at once at the start."""
    loader, bench, device = ready.loader, Bench(ready.trainer), ready.request.device
    read_in_some(loader.files())
    batch = first_batches(loader, ahead + 1)  # workers start, memory is allocated
    bench.segment(ReplayedBatch(ready.request, batch, 2), 1)
    step_s = bench.segment(ReplayedBatch(ready.request, batch, 1), 1).seconds
    replayed = ReplayedBatch(ready.request, batch, max(1, math.ceil(ROUND_S / max(step_s, 1e-6))))
    at_rest()
    with Meter(device) as first:
        rounds = [compute_round(bench, replayed) for _ in range(ROUNDS // 2)]
    with Meter(device) as taken:
        found = InputPass(loader, ahead).run()
    at_rest()
    both = together(bench, loader, ahead)
    at_rest()
    with Meter(device) as second:
        rounds += [compute_round(bench, replayed) for _ in range(ROUNDS - len(rounds))]
    images = sum(one["images"] for one in rounds)
    compute = {
        "rounds": rounds,
        "cpu_s": (first.cpu_s + second.cpu_s) / images,
        "busy": mean([*first.busy, *second.busy]),
        "host_s": host_s(ready.trainer, batch, device),
    }
    found["busy"] = mean(taken.busy)
    log.info("probe: compute only %s, input only %s, together %s", compute, found, both)
    about = {"images": loader.share, "works_ahead": loader.works_ahead}
    return about | {"compute": compute, "input": found, "together": both}


def compute_round(bench: Bench, replayed: Loader) -> dict[str, float]:
    return {"images": replayed.share, "seconds": bench.segment(replayed, 1).seconds}


def together(bench: Bench, loader: Loader, ahead: int) -> dict[str, Any]:
    """Train on the loader as a measurement does, for TOGETHER_S, and skip the rest of its last epoch."""
    lead, batches = lead_of(loader, ahead), len(loader)
    steps = lead + (ROUNDS if batches >= lead + ROUNDS else 2 * ROUNDS)  # ROUNDS of them after the leads
    if loader.next_batch:  # a loader that works between epochs is inside one; training needs a whole one
        begin_next_epoch(loader)
    rows = bench.train(loader, steps=steps, least_s=TOGETHER_S).steps
    to_next_epoch(loader)
    return in_rounds(rows, lead, loader.keeps_on)


def lead_of(loader: Loader, ahead: int) -> int:
    """Return how many first batches of an epoch do not belong to its steady state."""
    return min(max(1, ahead), len(loader) // 2)


def in_rounds(rows: Sequence[Mapping[str, Any]], lead: int, keeps_on: bool) -> dict[str, Any]:
    """Split steps (system.timing.STEP_COLUMNS) into ROUNDS rounds and the start of each epoch.

    keeps_on: of the loader, whose later epochs have no start.
    """
    steady, starts = [], []
    for number, (_, found) in enumerate(groupby(rows, key=lambda row: row["epoch"])):
        epoch = list(found)
        early = epoch[: lead if number == 0 or not keeps_on else 0]
        steady += epoch[len(early) :]
        if early and not keeps_on:
            parts = {"first_batch_s": early[0]["wait_ms"] / 1e3, "lead_s": seconds_of(early)}
            starts.append({**parts, "lead_images": images_of(early)})
    parts = [[steady[n] for n in part] for part in np.array_split(np.arange(len(steady)), ROUNDS)]
    return {
        "rounds": [{"images": images_of(part), "seconds": seconds_of(part)} for part in parts],
        "starts": starts or [NO_START],
    }


def images_of(rows: Sequence[Mapping[str, Any]]) -> int:
    return sum(row["images"] for row in rows)


def seconds_of(rows: Sequence[Mapping[str, Any]]) -> float:
    return sum(row["total_ms"] for row in rows) / 1e3


def host_s(trainer: PlainTrainer, batch: Batch, device: torch.device) -> float:
    """Return the host's seconds per image of a step: all of it, or the time to queue it on a GPU."""
    seconds = []
    for _ in range(ROUNDS):
        synchronise(device)
        begin = time.perf_counter()
        for _ in range(HOST_STEPS if device.type == "cuda" else 1):
            trainer.step(batch.source, batch.labels, batch.ids, 0)
        steps = HOST_STEPS if device.type == "cuda" else 1
        seconds.append((time.perf_counter() - begin) / steps / len(batch.images))
    synchronise(device)
    return statistics.median(seconds)


def first_batches(loader: Loader, count: int) -> Batch:
    """Take some batches of an epoch, skip the rest, and return a copy of the first."""
    found = None
    with closing(iter(loader)) as source:
        for number, batch in enumerate(source, 1):
            found = batch.clone() if found is None else found
            if number >= count:
                break
    to_next_epoch(loader)
    return found


def to_next_epoch(loader: Loader) -> None:
    """Move a loader inside an epoch to the next one, unless it works between epochs."""
    if loader.next_batch and not loader.keeps_on:
        begin_next_epoch(loader)


def begin_next_epoch(loader: Loader) -> None:
    loader.load_state_dict({"epoch": loader.epoch + 1, "next_batch": 0, "seed": loader.request.seed})


class InputPass:
    """Epochs of an open loader without training, split into ROUNDS rounds.

    A round begins once the prefetched batches have been taken. It takes at least ROUND_S, and one batch of
    each worker. The rest of a longer epoch is skipped.
    """

    def __init__(self, loader: Loader, ahead: int):
        self.loader, self.device = loader, loader.request.device
        self.lead = lead_of(loader, ahead)
        self.every = max(1, loader.request.workers)
        self.rounds: list[dict[str, float]] = []
        self.starts: list[dict[str, float]] = []
        self.open_images, self.open_s = 0, 0.0  # of the unfinished round
        self.taken = Clocks(0.0, 0.0, 0.0)
        self.counted = 0  # images loaded in that time
        self.was_left = True  # the previous epoch was incomplete, so batches were prefetched

    def run(self) -> dict[str, Any]:
        while len(self.rounds) < ROUNDS:
            most = ROUNDS if self.loader.keeps_on else len(self.rounds) + ROUNDS // STARTS
            self.epoch(min(ROUNDS, most))
        if self.loader.keeps_on:  # training overlaps all starts but the first
            self.starts = [{**start, "first_batch_s": 0.0} for start in self.starts[1:]]
            self.starts = self.starts or [NO_START]
        return {
            "rounds": self.rounds,
            "starts": self.starts,
            "cpu_s": self.taken.cpu_s / self.counted,
            "main_s": self.taken.main_s / self.counted,
        }

    def epoch(self, most: int) -> None:
        """Take one epoch, or its part until there are `most` rounds."""
        reached, images, first_s, last = deque(), 0, 0.0, len(self.loader) - self.loader.next_batch
        left = None
        if self.was_left:
            at_rest()
        synchronise(self.device)
        begin = behind = clocks()
        mark, lead = begin.wall_s, 0
        with closing(iter(self.loader)) as source:
            for number, batch in enumerate(source, 1):
                wait_behind(reached, self.device, sleeping=True)
                images += len(batch.images)  # gathers deferred rows
                if number == 1:
                    first_s = time.perf_counter() - begin.wall_s
                if number == self.lead:
                    on_host(self.device)
                    behind, lead = clocks(), images
                    mark = behind.wall_s
                if number <= self.lead:
                    continue
                self.open_images += len(batch.images)
                if number < last and (number - self.lead) % self.every:
                    continue
                if number == last or self.open_s + time.perf_counter() - mark >= ROUND_S:
                    mark = self.cut(mark)
                    if len(self.rounds) >= most and number < last:
                        left = clocks()  # before workers that serve one epoch are shut down
                        break
        parts = {"first_batch_s": first_s, "lead_s": behind.wall_s - begin.wall_s, "lead_images": lead}
        self.starts.append(parts)
        # a complete epoch includes its prefetched batches; of others only the rounds count
        is_whole = images >= self.loader.share
        self.was_left = left is not None
        self.taken = self.taken.plus(left or clocks(), begin if is_whole else behind)
        self.counted += images if is_whole else images - lead
        to_next_epoch(self.loader)

    def cut(self, mark: float) -> float:
        """End the round here if it is long enough; return the time at which the next one starts."""
        on_host(self.device)
        end = time.perf_counter()
        self.open_s += end - mark
        if self.open_s >= ROUND_S:
            self.rounds.append({"images": self.open_images, "seconds": self.open_s})
            self.open_images, self.open_s = 0, 0.0
        return end


def at_rest() -> None:
    """Wait until worker processes are idle: an incomplete epoch leaves them prefetching."""
    end, before = time.perf_counter() + REST_S, of_workers_s()
    while time.perf_counter() < end:
        time.sleep(SAMPLE_S)
        here = of_workers_s()
        if here - before < RESTS * SAMPLE_S:
            return
        before = here


def of_workers_s() -> float:
    """Return the CPU seconds of all processes that this one has started."""
    return clocks().cpu_s - time.process_time()


def on_host(device: torch.device) -> None:
    """Wait for the current stream without spinning, which would count as the loader's CPU time."""
    if device.type == "cuda":
        event = torch.cuda.Event(blocking=True)
        event.record(torch.cuda.current_stream(device))
        event.synchronize()


@dataclass(frozen=True)
class Clocks:
    """Seconds: wall time, CPU time of the process tree, and CPU time of this thread."""

    wall_s: float
    cpu_s: float
    main_s: float

    def plus(self, end: "Clocks", begin: "Clocks") -> "Clocks":
        """Return these plus what has passed from `begin` to `end`."""
        names = ("wall_s", "cpu_s", "main_s")
        return Clocks(*(getattr(self, n) + getattr(end, n) - getattr(begin, n) for n in names))


def clocks() -> Clocks:
    cpu_s = used(tree(os.getpid())).cpu_s
    return Clocks(time.perf_counter(), cpu_s, time.thread_time())


class Meter:
    """A context manager: CPU seconds of the process tree, and samples of the GPU's utilisation."""

    def __init__(self, device: torch.device):
        self.gpu, self.busy, self.over = Gpu(device), [], threading.Event()
        self.thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> "Meter":
        self.cpu_s = -clocks().cpu_s
        if self.gpu.handle is not None:
            self.thread.start()
        return self

    def __exit__(self, *exception) -> None:
        self.cpu_s += clocks().cpu_s
        self.over.set()
        if self.gpu.handle is not None:
            self.thread.join()
        self.gpu.close()

    def _sample(self) -> None:
        wait_s = BEHIND_S
        while not self.over.wait(wait_s):
            wait_s, percent = SAMPLE_S, self.gpu.sample(())["sm_percent"]
            if percent is not None:
                self.busy.append(percent / 100)


def mean(values: list[float]) -> float | None:
    return statistics.fmean(values) if values else None


def shm_mib(part: str) -> float | None:
    """Return MiB of the file system where worker processes put their batches; None without it."""
    with suppress(OSError):
        return getattr(shutil.disk_usage(SHM), part) / MIB
    return None


def memory(device: torch.device, held_mib: float, shm_before: float | None) -> dict[str, float | None]:
    """Return the memory that the cell holds after its passes, and the device's total, in MiB.

    held_mib: of the host, before the cell was set up.
    """
    whole = peak = None
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        whole, peak = total / MIB, max((total - free) / MIB, peak_mib(device))
    after = shm_mib("used")
    return {
        "host_mib": max(0.0, shared_out_mib(tree(os.getpid())) - held_mib),
        "shm_mib": None if after is None or shm_before is None else max(0.0, after - shm_before),
        "device_mib": peak,
        "device_total_mib": whole,
    }


def for_job(job: Any) -> None:
    """Run rule probe_cell. job: a gpufeed.job.Job.

    A library that kills its process still leaves a document, since the advice waits for all probes.
    """
    job.take_gpus(job.cell["devices"], job.cell["device"])
    started_at = now()

    def work(sender: Connection) -> None:
        sender.send(probe(job.cell, job.input.manifest, job.stores, **job.common_arguments))

    with forked_child(work, "gpufeed-probe", job.watch) as (receiver, child):
        try:
            found = receiver.recv()
        except EOFError:
            stopped = ("failed", f"The probe's process died ({exit_words(child)}).")
            where = (read_cell(job.cell), torch.device("cpu"), started_at)
            found = envelope(*where, *stopped, job.planned_on, job.params.attempt) | NOTHING
    job.write_document(found, job.output.probe, PROBE.write, f"probe of {job.wildcards.cell}")

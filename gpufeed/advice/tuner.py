"""Tune the loader of a cell: train with one setting after the other, and choose the fastest.

All settings share one prepared training step (benchmarks/ceilings/segments.py): the model is built, compiled
and captured once, and each stretch opens another loader under it.
"""

import logging
import shutil
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from gpufeed.advice.setting_search import LEAST_S, Limits, Search, Stretch, Tried, space
from gpufeed.benchmarks.ceilings.segments import Bench
from gpufeed.benchmarks.ceilings.stages import wait_behind
from gpufeed.benchmarks.cell_document import cell_document
from gpufeed.core.cells import Cell, untunable
from gpufeed.core.errors import GpufeedError, Skip
from gpufeed.core.loader_setting import Setting
from gpufeed.core.record import TUNED, TUNED_VERSION
from gpufeed.core.registry import LOADERS
from gpufeed.core.run_time_estimate import SHM
from gpufeed.loaders.base import Loader, LoadRequest, make_loader
from gpufeed.loaders.samples import Samples, batch_bytes
from gpufeed.system.environment import cores_allowed
from gpufeed.system.host_memory import free_host_bytes
from gpufeed.system.page_cache import read_in_some
from gpufeed.system.timing import synchronise
from gpufeed.training.cell_training import Ready, made_ready
from gpufeed.training.optimisers import rate_at, set_learning_rate
from gpufeed.training.runtime_context import RuntimeContext, Stores, workers_of
from gpufeed.training.smaller_batch import fitting

HOPELESS = 1.3  # a stretch ends early if even so many times its rate is below the best
SAMPLES, COST_S = 16, 0.1  # files that each decoder decodes repeatedly, and for how long
NOTHING = {
    "schema_version": TUNED_VERSION,
    **dict.fromkeys(("resolved", "limits", "budget_s", "spent_s")),
    **{"decoders": {}, "settings": [], "tried": []},
}
log = logging.getLogger("gpufeed")


@dataclass
class Epochs:
    """The steps of a stretch, epoch by epoch, on the host's clock.

    marks: (seconds since the epoch's start, images of the step) for each epoch; the last one may not be over.
    stays: whether workers persist between epochs. at_once: batches that are made at the same time. end_s: the
    time to end the workers, which each epoch includes unless they persist.
    """

    share: int
    stays: bool
    at_once: int
    whole: list[float] = field(default_factory=list)
    marks: list[list[tuple[float, int]]] = field(default_factory=list)
    end_s: float = 0.0

    @property
    def counted(self) -> list[float]:
        """Seconds of the whole epochs that count; not the first one if it alone includes workers' start."""
        return self.whole[int(self.stays) :]

    @property
    def steps(self) -> int:
        return sum(map(len, self.marks))

    def images_per_s(self) -> float:
        """Return the rate of whole epochs, measured or else estimated from the start and later steps.

        Workers that started together deliver their first batches together, which says nothing about their
        rate. A persistent worker makes the first batch of a further epoch alone.
        """
        if self.counted:
            return self.share * len(self.counted) / sum(self.counted)
        marks = max(self.marks, key=len, default=[])
        if not marks:
            return 0.0
        first, later = marks[0], marks[self.at_once :]
        if not later:
            return sum(images for _, images in marks) / marks[-1][0]
        used = later[: max(1, len(later) // self.at_once) * self.at_once]
        before_s = marks[self.at_once - 1][0]
        image_s = (used[-1][0] - before_s) / sum(images for _, images in used)
        around_s = first[0] + self.end_s
        if self.stays:
            last = self.marks[-1]
            seen = len(self.marks) > 1 and len(last) > 0
            around_s = last[0][0] if seen else min(first[0], self.at_once * first[1] * image_s)
        return self.share / (around_s + max(0, self.share - first[1]) * image_s)


class Stretches:
    """Trains stretches of a cell that is set up, each with its own loader."""

    def __init__(self, cell: Cell, ready: Ready):
        self.cell, self.ready, self.bench = cell, ready, Bench(ready.trainer)
        self.entry, self.device = LOADERS[cell.loader], ready.request.device

    def measure(
        self, setting: Setting, seconds: float, most_s: float, best: float = 0.0, whole: bool = False
    ) -> Stretch:
        """Measure a stretch with the setting.

        seconds: least time after its first batch; the stretch also has at least two rounds of the workers'
        batches. most_s: most time in all, about. best: a rate; a stretch far below it ends early. whole:
        count whole epochs only, as many as fill the seconds.
        """
        request, trainer, began = replace(self.ready.request, **asdict(setting)), self.ready.trainer, clock()
        processes = setting.workers > 0 and not self.entry.threads
        self.bench.snapshot.put_back()
        set_learning_rate(trainer.train_step.optimiser, rate_at(trainer.rates, 0))
        with make_loader(self.cell.loader, request) as loader:
            stays = loader.keeps_on or (setting.workers > 0 and setting.persistent_workers)
            found = Epochs(loader.share, stays, setting.workers if processes else 1)
            first_s, end_s = self.train(loader, found, began, seconds, most_s, best, whole)
        ended = clock()
        found.end_s, spent = ended - end_s, ended - began
        stretch = Stretch(found.images_per_s(), spent, max(0.0, spent - (end_s - first_s)))
        log.info(
            "%s: %.0f images/s in %.1f s", setting.in_words(self.cell.loader), stretch.images_per_s, spent
        )
        return stretch

    def train(
        self,
        loader: Loader,
        found: Epochs,
        began: float,
        seconds: float,
        most_s: float,
        best: float,
        whole: bool,
    ) -> tuple[float, float]:
        """Train for long enough; return the times after the first and the last batch.

        Arguments as in `measure`; found: filled here.
        """
        first_s, looked = 0.0, False
        while True:
            synchronise(self.device)
            start, reached = clock(), deque()
            found.marks.append([])
            with closing(iter(loader)) as batches:
                for batch in batches:
                    self.ready.trainer.step(batch.source, batch.labels, batch.ids, len(found.whole))
                    wait_behind(reached, self.device)
                    here = clock()
                    found.marks[-1].append((here - start, len(batch.labels)))
                    first_s = first_s or here
                    past, enough = here - first_s, found.steps >= 2 * found.at_once
                    if not whole and (here - began >= most_s or (past >= seconds and enough)):
                        return first_s, here
                    if best and enough and not looked and past >= max(seconds / 3, LEAST_S):
                        looked = True  # only once, since of many looks at few steps one is low by chance
                        if found.images_per_s() * HOPELESS < best:
                            return first_s, here
            synchronise(self.device)
            found.whole.append(clock() - start)
            if whole and sum(found.counted) >= seconds:
                return first_s, clock()


clock = time.perf_counter


def decoder_costs(cell: Cell, request: LoadRequest) -> dict[str, float]:
    """Return the CPU seconds of a sample by each decoder of the loader that is installed, cheapest first.

    Torch has one thread meanwhile, as in a worker: threads that wait for work would count, too.
    Empty if there is no choice, or if no files hold the images.
    """
    names = LOADERS[cell.loader].decoders
    if len(names) < 2 or request.manifest.made:
        return {}
    samples = {}
    for name in names:
        try:
            samples[name] = Samples(replace(request, decoder=name, shards=None))
        except (ImportError, OSError, RuntimeError, Skip) as error:  # a package, or a library that it loads
            log.info("decoder %s is not tried: %s", name, error)
    ids, best, threads = request.manifest.ids(request.split)[:SAMPLES], {}, torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for name, source in samples.items():
            took, until = [], clock() + COST_S
            while len(took) < 2 or clock() < until:
                begin = time.process_time()
                for sample_id in ids.tolist():
                    if isinstance(made := source.made(sample_id, 0), GpufeedError):
                        raise made
                took.append((time.process_time() - begin) / len(ids))
            best[name] = min(took)
    finally:
        torch.set_num_threads(threads)
    return dict(sorted(best.items(), key=lambda item: item[1]))


def limits_here(request: LoadRequest) -> Limits:
    """Return the resources that this process may use."""
    free = free_host_bytes()
    shm = shutil.disk_usage(SHM).free if Path(SHM).exists() else free
    return Limits(cores_allowed(), free, shm, batch_bytes(request))


def prepared(cell: Cell, ready: Ready, only: Mapping[str, Sequence] | None = None) -> tuple:
    """Return (limits, CPU seconds of decoders, the space of settings, the cell's own setting)."""
    costs, limits = decoder_costs(cell, ready.request), limits_here(ready.request)
    settings = space(cell, limits, ready.request.device.type, list(costs) or [cell.decoder], only)
    if not settings:
        raise GpufeedError(
            f"no setting of {cell.loader} that fits: {limits}",
            "one that has a core for each worker and memory for its batches",
            "use a smaller batch_size, or free some memory",
        )
    return limits, costs, settings, Setting.of(cell)


def tuned(
    cell: Cell,
    manifest: Path,
    stores: Stores,
    place: RuntimeContext,
    gate: Path | None,
) -> dict[str, Any]:
    """Return the fields that a tuning adds to its document; raise Skip, NotPassed or what stops it."""
    if reason := untunable(cell):
        raise GpufeedError(reason, "a loader with settings to choose, in trainer plain", "choose another one")
    cell = replace(cell, workers=workers_of(cell), settings=None)

    def with_batch(one: Cell) -> tuple:
        with made_ready(one, 0, manifest, stores, place, gate) as ready:
            read_in_some(ready.loader.files())
            began, stretches = clock(), Stretches(one, ready)
            limits, costs, settings, own = prepared(one, ready)
            search = Search(settings, stretches.measure, costs, own, clock() - began)
            return limits, costs, settings, search, search.run(), clock() - began

    size, (limits, costs, settings, search, ranked, spent_s) = fitting(cell, with_batch)
    place.batch_size = size if size != cell.batch_size else None
    if not ranked or not ranked[0].images_per_s:
        raise GpufeedError(
            "no batch arrived in time with any setting", "some batches a second", "look at the log"
        )
    return {
        "resolved": place.resolved(),
        "limits": asdict(limits),
        "decoders": costs,
        "settings": [asdict(one) for one in settings],
        "budget_s": search.budget_s,
        "spent_s": spent_s,
        "tried": [row(one) for one in ranked],
    }


def row(one: Tried) -> dict[str, Any]:
    """Return a row of the table of tried settings."""
    return {**asdict(one.setting), "rung": one.rung, "seconds": one.seconds, "images_per_s": one.images_per_s}


def tune(
    cell: dict,
    manifest: str | Path,
    stores: Stores,
    planned_on: str,
    gate: str | Path | None = None,
    **asked: Any,
) -> dict[str, Any]:
    """Return the tuning (core/schemas/tuned.schema.yaml) of a cell (Cell.asdict), with the seed of repeat 0.

    gate: as in gpufeed.benchmarks.end_to_end. planned_on, asked: as in cell_document.
    """

    def work(cell: Cell, place: RuntimeContext) -> dict[str, Any]:
        return tuned(cell, Path(manifest), stores, place, gate and Path(gate))

    return cell_document(cell, work, NOTHING, planned_on, **asked)


def table(found: Mapping[str, Any]) -> str:
    """Return the tried settings as lines for a terminal, the best first, and the lines to paste."""
    best, loader = found["tried"][0], found["cell"]["loader"]
    rows = [("rung", "seconds", "images/s", "of best", "setting")]
    for one in found["tried"]:
        rate = one["images_per_s"]
        numbers = (
            f"{one['rung']}",
            f"{one['seconds']:.1f}",
            f"{rate:,.0f}",
            f"{rate / best['images_per_s']:.0%}",
        )
        rows.append((*numbers, Setting.of(one).in_words(loader)))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    text = ["  ".join([*map(str.rjust, row, widths), row[-1]]) for row in rows]
    tried, whole = len(found["tried"]), len(found["settings"])
    said = f"{tried} of {whole} settings tried in {found['spent_s']:.1f} s. To paste:"
    lines = Setting.of(best).lines(loader, found["cell"]["batch_size"])
    return "\n".join([*text, said, *(f"  {line}" for line in lines.values())])


def for_job(job: Any) -> None:
    """Do the work of rule tune_cell, a gpufeed.job.Job."""
    job.take_gpus(job.cell["devices"], job.cell["device"])
    found = tune(job.cell, job.input.manifest, job.stores, gate=job.gate, **job.common_arguments)
    said = found["sentence"] or Setting.of(found["tried"][0]).in_words(found["cell"]["loader"])
    job.write_document(
        found, job.output.tuned, TUNED.write, f"tuning of {job.wildcards.cell}, {found['status']}", [said]
    )

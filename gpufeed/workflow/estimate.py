"""What a run measures, how many minutes that takes and what it writes: printed after planning."""

import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from gpufeed.core.cell_matrix import source_options
from gpufeed.core.cells import Cell, why_not_workers, without_cuda
from gpufeed.core.dataset_size import EVALUATED, Amount, amount_of, ffcv_bytes
from gpufeed.core.folders import existing
from gpufeed.core.registry import AUGMENTS, DERIVED, LOADERS, STORES, store_file
from gpufeed.core.run_time_estimate import (
    CEILING_EPOCHS,
    DATASET_S,
    GATE_EPOCHS,
    KINDS,
    Disk,
    beyond,
    check_room,
    disks,
    key,
    left_out,
    measured_seconds,
    probed_seconds,
    shared_memory,
    skipped,
    table,
    too_large,
    usual_seconds,
    waiting,
    written,
)
from gpufeed.workflow.gates import REFERENCE, waits
from gpufeed.workflow.report import Report
from gpufeed.workflow.run import Run

MANY = 0.2  # share of the cores: a larger use by other processes is reported


def experiment_of(target: str, results: str) -> str:
    """Return the experiment that a target names or belongs to; for other targets, any string."""
    if "/" not in target and "." not in target:
        return target
    below = Path(os.path.relpath(target, results)).parts
    return Path(below[min(1, len(below) - 1)]).stem.removeprefix("report-")


def shows_gpu() -> bool:
    """Return whether this node has a device file of NVIDIA's driver, or that of WSL."""
    return any(os.path.exists(path) for path in ("/dev/nvidiactl", "/dev/dxg"))


@dataclass(frozen=True, eq=False)
class Estimate:
    """Time and disk space that a run needs. workflow: Snakemake's, with its targets and where jobs run.

    free_memory: returns the bytes of host memory that a process here may still take. say: prints a line.
    most: experiments with a line of their own. used_by_others: returns the number of cores here, and how many
    each other process uses of them, with its name, most first.
    """

    run: Run
    report: Report
    workflow: Any
    free_memory: Callable[[], int]
    say: Callable[[str], None] = print
    most: int = 100
    used_by_others: Callable[[], tuple[int, list[tuple[float, str]]]] = lambda: (1, [])
    asked_for: set[str] = field(default_factory=set)  # the datasets for which the DAG has a job so far
    # what seconds_of returned, by core.run_time_estimate.key
    timed: dict[str, tuple[float, bool]] = field(default_factory=dict)

    @cached_property
    def experiments(self) -> list[str]:
        """The experiments that the command asks for, by its targets or their files; else those in `run`.

        Available only after planning: Snakemake does not know its targets while it reads the rules.
        """
        named = {experiment_of(target, self.run.results) for target in self.workflow.dag_settings.targets}
        found = [name for name in self.run.plan.cells if name in named]
        whole = not found or named & {"all", "report"}  # report.html
        return list(dict.fromkeys([*(self.run.config["run"] if whole else []), *found]))

    @cached_property
    def runs_here(self) -> bool:
        """Whether jobs run on this node; otherwise they are submitted, as by profile slurm."""
        return self.workflow.resource_settings.nodes is None

    @cached_property
    def cores(self) -> int:
        """The cores that jobs have."""
        here = self.runs_here and self.workflow.resource_settings.cores
        return here or self.run.config["cores_per_job"]

    @cache  # noqa: B019 (a process has one Estimate)
    def amount(self, dataset: str) -> Amount:
        """Return how many images a dataset has, and their size."""
        return amount_of(self.run.config, dataset)

    def measurements_of(self, experiment: str) -> Iterator[str]:
        """Yield the documents of an experiment's measurements, for the repeats known so far."""
        yield from itertools.chain(*self.report.documents_of(experiment, timed=True).values())
        if not self.run.partial:
            yield from self.report.repeats.second_so_far(experiment)

    def datasets_of(self, experiment: str) -> Iterator[str]:
        """Yield the datasets that an experiment reads."""
        yield from (cell.dataset for cell in self.run.cells[experiment].values())
        sweep = None if self.run.partial else self.report.benchmarks.sweep_in(experiment)
        yield from (sweep or {}).get("datasets", [])

    @cached_property
    def cells(self) -> list[Cell]:
        """The cells of the experiments that are asked for."""
        return [cell for name in self.experiments for cell in self.run.cells[name].values()]

    @cache  # noqa: B019
    def stores_of(self, dataset: str) -> dict[str, int]:
        """Return the stores that this run builds for a dataset: path -> bytes."""
        cells = [cell for cell in self.cells if cell.dataset == dataset]
        sizes, folder = self.amount(dataset), f"{self.run.data}/{dataset}"
        reference = STORES["cache"].file.format(decoder=REFERENCE)
        compared = any(waits(cell) and not cell.hyper.get("recipe") for cell in cells)
        found = {f"{folder}/{reference}": 3 * sizes.kept} if compared else {}
        for cell in cells:
            if file := store_file(cell.loader, self.run.config["cache_decoder"], cell.hyper.get("recipe")):
                loader, size = LOADERS[cell.loader], sizes.files
                if loader.decoded:
                    size = 3 * self._cached(cell, sizes)
                elif loader.reads == "beton":
                    size = ffcv_bytes(sizes, self.run.config["sources"][dataset])
                found[f"{folder}/{file}"] = size
        return found

    def _cached(self, cell: Cell, sizes: Amount) -> int:
        """Return the pixels of the cache that a cell reads."""
        if not (recipe := cell.hyper.get("recipe")):
            return sizes.kept
        # images of at most 3 : 2
        return min(sizes.kept, sizes.count * recipe["short_side"] ** 2 * 3 // 2)

    def workers_of(self, cell: Cell) -> int:
        """Return the workers of a cell; `auto`: as many as its job is going to take."""
        if cell.workers != "auto":
            return cell.workers
        return max(1, (cell.cores or self.cores) // cell.devices)

    def _waiting(self, cell: Cell) -> int:
        """Return the bytes that a cell's worker processes on one node have in shared memory."""
        loader, sizes, recipe = LOADERS[cell.loader], self.amount(cell.dataset), cell.hyper.get("recipe")
        if loader.threads and not (loader.own_process and cell.persistent_workers):
            return 0
        workers = self.workers_of(cell)
        pixels = recipe["size"] ** 2 if recipe else sizes.kept // max(1, sizes.count)
        value = 1 if AUGMENTS[cell.augment].where == "device" else 4  # uint8, or float32
        return cell.devices * waiting(cell.batch_size * pixels * 3 * value, workers, cell.prefetch_factor)

    def files_to_write(self, dataset: str) -> dict[str, int]:
        """Return path -> bytes of a dataset's files in `data`, with its stores.

        The user's own images may be hard links, which take no room.
        """
        source, data = self.run.config["sources"][dataset], self.run.data
        archives = f"{data}/{dataset}/archives"
        found = {f"{archives}/{file['name']}": file.get("size") or 0 for file in source.get("files", [])}
        own = source.get("folder")
        linked = own and not self.run.packed and existing(own).stat().st_dev == existing(data).stat().st_dev
        size, copies = self.amount(dataset).files, source.get("copies") or 1
        if linked:
            size = round(size * (copies - 1) / (copies + EVALUATED))
        found[self.run.manifest_of(dataset)] = size
        return found | self.stores_of(dataset)

    def seconds_beyond(self, path: str) -> float:
        """Return how much longer a measurement takes than its kind, with more or larger images than usual."""
        kind, name, *rest = Path(path).relative_to(self.run.results).parts
        if kind == "gate":
            return beyond(GATE_EPOCHS * self.amount(name).read, self.cores)
        cells = self.run.plan.cells
        cell = cells[name][rest[0].removesuffix(".json")] if kind in ("records", "ceilings") else None
        if cell is None or LOADERS[cell.loader].ceiling or LOADERS[cell.loader].decoded:
            return 0.0
        sizes, epochs = self.amount(cell.dataset), cell.epochs
        if kind == "ceilings":
            epochs = CEILING_EPOCHS
        elif cell.steps is not None:
            epochs = self._images_of(cell) / sizes.images if sizes.images else 1
        # of a job elsewhere each rank has `cores`; here they share them
        return beyond(epochs * sizes.read, self.cores * (1 if self.runs_here else cell.ranks))

    def _images_of(self, cell: Cell) -> int:
        """Return how many images a cell trains on, on all of its devices together."""
        if cell.steps is None:
            return cell.epochs * self.amount(cell.dataset).images
        return cell.steps * cell.batch_size * cell.ranks

    def seconds_of(self, path: str) -> tuple[float, bool]:
        """Return the seconds that the job of a document takes, and whether they are a guess; 0 of others.

        They are none where the cell, or its probe, was timed here, or such a run was published. Documents are
        read once a cell, until `forget`.
        """
        place = Path(os.path.relpath(path, self.run.results))
        if place.parts[0] not in KINDS or place.suffix != ".json":
            return 0.0, False
        if (one := key(place)) not in self.timed:
            self.timed[one] = self._seconds_of(path, place)
        return self.timed[one]

    def forget(self, path: str) -> None:
        """Have seconds_of read a cell's documents again; after a probe, also those of ceilings."""
        place = Path(os.path.relpath(path, self.run.results))
        if place.suffix != ".json" or place.parts[0] not in KINDS:
            return
        self.timed.pop(key(place), None)
        if place.parts[0] == "probes":
            _, name, _ = place.parts
            cells = self.run.plan.cells[name].items()
            ceilings = [cell_id for cell_id, cell in cells if LOADERS[cell.loader].ceiling]
            for cell_id in (place.stem, *ceilings):
                self.timed.pop(f"records/{name}/{cell_id}", None)

    def _seconds_of(self, path: str, place: Path) -> tuple[float, bool]:
        least_s = self.run.config["least_s"]
        lasts = measured_seconds(place, self.run.results, least_s)
        if lasts is None and place.parts[0] == "records":
            _, name, cell_id, _ = place.parts
            cell = self.run.plan.cells[name][cell_id]
            ceiling = LOADERS[cell.loader].ceiling
            probes = self.report.benchmarks.probed(name) if ceiling else [cell_id]  # which train alike
            found = (Path(self.run.results, f"probes/{name}/{one}.json") for one in probes)
            images = self._images_of(cell) // cell.ranks
            timed = (probed_seconds(probe, images, ceiling, least_s) for probe in found)
            lasts = next(filter(None, timed), None)
        if lasts is None:
            return usual_seconds(place) + self.seconds_beyond(path), True
        return lasts, False

    @cached_property
    def datasets(self) -> list[str]:
        """The datasets of these experiments, and those that they are made from."""
        config = self.run.config
        found = {dataset for name in self.experiments for dataset in self.datasets_of(name)}
        made = {name for name in found if config["sources"][name]["layout"] in DERIVED}
        return sorted(found | {source_options(config, name)["of"] for name in made})

    @cache  # noqa: B019
    def disks_of(self, datasets: frozenset[str]) -> list[Disk]:
        """Return the disks that a run writes to for datasets and for the experiments on them."""
        data = {path: size for dataset in datasets for path, size in self.files_to_write(dataset).items()}
        names = [name for name in self.experiments if not datasets.isdisjoint(self.datasets_of(name))]
        documents = [path for name in names for path in self.measurements_of(name)]
        places = {self.run.data: data}  # results may lie there, too
        places[self.run.results] = places.get(self.run.results, {}) | written(documents, self.run.results)
        found = disks(places)
        if not self.runs_here:
            return found
        most = max((self._waiting(cell) for cell in self.cells if cell.dataset in datasets), default=0)
        return found + shared_memory(most, self.free_memory())

    def announce_and_check(self, dataset: str) -> None:
        """Print once what this run will take; check the disk space for the datasets of the DAG so far.

        Raises GpufeedError if a disk, or shared memory, is too small for them. Jobs do not call this.
        """
        if self.workflow.is_main_process:
            if not self.asked_for:
                for line in self.lines():
                    self.say(line)
            self.asked_for.add(dataset)
            check_room(self.disks_of(frozenset(self.asked_for)))

    def seconds_to_prepare(self, dataset: str) -> float:
        """Return the seconds to prepare a dataset with all of its stores."""
        read = beyond(self.amount(dataset).read, self.cores)
        return DATASET_S + (1 + len(self.stores_of(dataset))) * read

    def caches_too_large(self) -> Iterator[str]:
        """Yield a sentence for each cache that a loader keeps in host memory and that does not fit."""
        sizes, free = {}, self.free_memory()
        for cell in self.cells:
            if LOADERS[cell.loader].decoded and not (cell.loader == "resident" and shows_gpu()):
                sizes[cell.loader, cell.dataset] = 3 * self._cached(cell, self.amount(cell.dataset))
        for (loader, dataset), size in sizes.items():
            if size > free:
                yield too_large(loader, dataset, size, free)

    def left_out_of(self, experiment: str) -> dict[str, int]:
        """Return why combinations of an experiment are impossible, and how many: sentence -> combinations.

        Numbers of `workers` that a listed loader cannot have are left out, since it runs with the others.
        """
        loaders = {cell.loader for cell in self.run.plan.cells[experiment].values()}
        crossed = {why_not_workers(workers, loader) for loader in loaders for workers in (0, 1)}
        found = [left for left in self.run.plan.left_out if left.experiment == experiment]
        return {left.sentence: left.combinations for left in found if left.sentence not in crossed}

    def lines(self) -> Iterator[str]:
        """Yield what is printed before the first job of a run starts."""
        cores, others = self.used_by_others()
        used = min(cores, sum(share for share, _ in others))
        if self.runs_here and used > MANY * cores:
            names = ", ".join(f"{name} {share:.1f} cores" for share, name in others[:3] if share > 0.1)
            yield (
                f"Other processes use {used:.1f} of {cores} cores{f' ({names})' if names else ''}: rates "
                "measured beside them say little. Stop them first."
            )
        yield table(
            {name: self.measurements_of(name) for name in self.experiments},
            self.run.results,
            {self.run.manifest_of(name): self.seconds_to_prepare(name) for name in self.datasets},
            self.seconds_of,
            self.disks_of(frozenset(self.datasets)),
            len(self.cells),
            self.most,
        )
        for name in self.experiments:
            if found := self.left_out_of(name):
                yield left_out(name, found)
        if self.runs_here:
            yield from self.caches_too_large()
        lacks_gpu = self.runs_here and self.workflow.resource_settings.cores and not shows_gpu()
        if lacks_gpu and (reasons := without_cuda(self.cells)):
            yield skipped(reasons, len(self.cells))

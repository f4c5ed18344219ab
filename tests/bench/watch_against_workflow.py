"""AU by gpufeed.watch beside the workflow's own: python tests/bench/watch_against_workflow.py RESULT.json

For each loader one process sets a cell up as the workflow does, and measures its accelerator utilization (AU)
in two ways: `workflow`, pairs of segments end to end and compute only (gpufeed.benchmarks.ceilings); `watch`,
a plain loop inside gpufeed.watch, over the same open loader and with the same training step. Runs alternate
in the order ABBA. AU leaves the starts of epochs out on both sides; `whole_epochs` has them. An epoch must be
several times as long as the loader's queue (workers x prefetch), or nothing of it is steady: see --copies.
Writes the means of the runs and their difference in points. Exit status 1 where one is above a point. On a
GPU steps are CUDA graphs: launched one by one they last as long as the host takes, which differs by a tenth
from run to run. It ends after `--seconds` or little more: what a loader has left of its share bounds the
pairs of each run.
"""

import argparse
import json
import logging
import statistics
import time
from copy import deepcopy
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import torch

import gpufeed.watch
from gpufeed.benchmarks.ceilings.segments import Bench, ReplayedBatch
from gpufeed.benchmarks.ceilings.stages import example_batch
from gpufeed.core.cell_matrix import content
from gpufeed.core.cells import Cell, impossible, settle
from gpufeed.core.compose import shipped
from gpufeed.core.config import Composer
from gpufeed.core.errors import GpufeedError, Skip, one_line
from gpufeed.core.registry import LOADERS
from gpufeed.system.devices import resolve_device
from gpufeed.system.environment import environment
from gpufeed.system.page_cache import read_in
from gpufeed.system.timing import synchronise
from gpufeed.training.cell_training import Ready, made_ready, settle_process
from gpufeed.training.ensure_inputs import Shelf, dataset, stores
from gpufeed.training.runtime_context import RuntimeContext


class Epochs:
    """Hides a loader: each run has a watch of its own, which knows no more than of any iterable."""

    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        return iter(self.loader)

    def __len__(self) -> int:
        return len(self.loader)


def made_cell(given: argparse.Namespace, config: dict, loader: str) -> Cell:
    """The cell of a loader, with worker processes where it has any."""
    entry, cell = LOADERS[loader], Cell("watch", given.dataset, loader)
    workers = given.workers if entry.workers != "never" else 0
    fast = "torchvision_cpu" in entry.decoders and find_spec("simplejpeg")  # which that decoder needs, too
    found = replace(
        cell,
        model=given.model,
        recipe=given.recipe,
        decoder="torchvision_cpu" if fast else "pillow",
        batch_size=given.batch_size,
        precision=given.precision,
        workers=workers,
        persistent_workers=bool(workers) and not entry.anew,
        cuda_graphs=given.cuda_graphs,
        compile=given.compile,
        device=given.device,
        source=content(config, given.dataset),
    )
    found = settle(replace(found, hyper=Composer()(found, "the command line")))
    if sentence := impossible(found):
        raise GpufeedError(sentence, "a cell that can exist", "choose other options")
    return found


def by_workflow(bench: Bench, ready: Ready, alone: ReplayedBatch, pairs: int, end: float) -> dict[str, float]:
    """AU of pairs of segments of one epoch, without what their first batches took longer than later ones.

    end: no pair begins after it, but for the first two.
    """
    found = []
    while len(found) < pairs and (not found or time.perf_counter() < end):
        found += bench.pairs(ready.loader, alone, 1, min(2, pairs - len(found)))
    both = [(pair["compute_only"]["seconds"], pair["end_to_end"]) for pair in found]
    steady = [compute_s / (end["seconds"] - end["start_s"]) for compute_s, end in both]
    whole = [compute_s / end["seconds"] for compute_s, end in both]
    images = ready.loader.share
    rates = {
        "compute_only": images / statistics.median(compute_s for compute_s, _ in both),
        "end_to_end": images / statistics.median(end["seconds"] - end["start_s"] for _, end in both),
    }
    au = {"au": statistics.median(steady), "whole_epochs": statistics.median(whole), "n": len(found)}
    return au | {"images_per_s": rates}


def by_watch(bench: Bench, ready: Ready, pairs: int, most: int, end: float) -> dict[str, float]:
    """AU of a plain loop, of as many epochs as it takes for so many pairs of stretches; at most `most`.

    end: no epoch begins after it, once there is a pair.
    """
    bench.snapshot.put_back()
    watched = gpufeed.watch(Epochs(ready.loader), out=None, quiet=True, device=ready.request.device)
    for epoch in range(most):
        for batch in watched:
            ready.trainer.step(batch.source, batch.labels, batch.ids, epoch)
        synchronise(ready.request.device)  # as at the end of an epoch where losses are read
        found = watched.result()
        if found["au"]["n"] >= pairs or (found["au"]["n"] and time.perf_counter() > end):
            break
    if found["au"]["value"] is None:
        raise GpufeedError(
            f"no pair of stretches: {found['verdict']}", "at least one", "more images or epochs"
        )
    kept = {name: found[name] for name in ("method", "steps", "epochs", "held", "not_measured", "au")}
    rates = {name: found[name]["samples_per_second"] for name in ("compute_only", "end_to_end")}
    return {"au": found["au"]["value"], "n": found["au"]["n"], "images_per_s": rates, "watch": kept}


def compared(given: argparse.Namespace, cell: Cell, manifest: Path, shelf: Shelf, end: float) -> dict:
    """All runs of one cell, which share the time until `end`, and the difference of their means in points."""
    runs: dict[str, list[dict]] = {"workflow": [], "watch": []}
    place = RuntimeContext()
    with made_ready(cell, 0, manifest, stores(cell, manifest, shelf), place, None) as ready:
        bench = Bench(ready.trainer)
        bench.train(ready.loader, 1)  # workers start, files come into the page cache
        read_in(ready.loader.files())
        alone = ReplayedBatch(ready.request, example_batch(ready.loader))
        order = [side for number in range(given.runs) for side in list(runs)[:: 1 - 2 * (number % 2)]]
        for done, side in enumerate(order):
            until = (now := time.perf_counter()) + max(0.0, end - now) / (len(order) - done)
            if side == "workflow":
                runs[side].append(by_workflow(bench, ready, alone, given.pairs, until))
            else:
                runs[side].append(by_watch(bench, ready, given.stretches, given.most_epochs, until))
        batches = len(ready.loader)
    mean = {side: statistics.fmean(run["au"] for run in of_side) for side, of_side in runs.items()}
    points = 100 * (mean["watch"] - mean["workflow"])
    resolved = place.resolved()
    return {"cell": cell.asdict(), "resolved": resolved, "batches": batches, "runs": runs, "mean": mean} | {
        "difference_points": points,
        "n": given.runs,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("result", type=Path)
    usual = ["dataloader_workers", "host_cache", "resident", "torchvision_cuda"]
    parser.add_argument("--loaders", nargs="+", choices=sorted(LOADERS), default=usual)
    parser.add_argument("--dataset", default="tiny_imagenet_40", help="a source of config/config.yaml")
    parser.add_argument("--copies", type=int, help="of its training files, in place of the source's own")
    parser.add_argument("--count", type=int, help="images of the source synthetic")
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--archives", type=Path, nargs="*", default=[Path("archives")])
    parser.add_argument("--recipe", default="crop_flip", help="random_resized_crop for photographs")
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--workers", type=lambda text: text if text == "auto" else int(text), default="auto")
    graphs = {"action": argparse.BooleanOptionalAction, "default": torch.cuda.is_available()}
    parser.add_argument("--cuda-graphs", **graphs)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--runs", type=int, default=3, help="of each side")
    parser.add_argument("--pairs", type=int, default=6, help="of segments in a run of the workflow's side")
    parser.add_argument("--stretches", type=int, default=12, help="pairs of stretches in a run of watch")
    parser.add_argument("--most-epochs", type=int, default=40, help="of a run of watch")
    parser.add_argument("--seconds", type=float, default=110, help="of all loaders together")
    given = parser.parse_args()
    began = time.perf_counter()
    logging.basicConfig(level=logging.WARNING)
    config = deepcopy(shipped())
    source = config["sources"][given.dataset]
    if given.copies:
        source["copies"] = given.copies
    if given.count:
        source["options"]["count"] = given.count
    settle_process(None)
    shelf = Shelf(given.data, tuple(given.archives), "torchvision_cpu", 0.0)
    manifest = dataset(given.dataset, config, shipped(), shelf)
    cells = []
    for number, loader in enumerate(given.loaders):
        now = time.perf_counter()
        end = now + max(0.0, began + given.seconds - now) / (len(given.loaders) - number)
        try:
            found = compared(given, made_cell(given, config, loader), manifest, shelf, end)
        except Exception as error:  # the next loader may do better
            if not isinstance(error, GpufeedError | Skip):
                logging.exception("%s", loader)
            said = one_line(error)
            found = {"loader": loader, "sentence": said}
            print(f"{loader}: {said}", flush=True)
        else:
            mean = found["mean"]
            print(
                f"{loader}: AU {mean['watch']:.1%} by watch, {mean['workflow']:.1%} by the workflow, "
                f"{found['difference_points']:+.2f} points, n = {found['n']} runs each",
                flush=True,
            )
        cells.append(found)
        asked = {
            name: value for name, value in vars(given).items() if name not in ("result", "data", "archives")
        }
        about = {"asked": asked, "environment": environment(resolve_device(given.device))}
        given.result.write_text(json.dumps({**about, "cells": cells}, indent=1) + "\n")
    return int(not all(abs(found.get("difference_points", 2)) <= 1 for found in cells))


if __name__ == "__main__":
    raise SystemExit(main())

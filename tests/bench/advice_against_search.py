"""How right advice is, beside an exhaustive search: python tests/bench/advice_against_search.py RESULT.json

For each task every cell is probed and, right behind that, measured end to end. Then all are measured again,
in turn; last, and more often, what is advised, what the search found best and what is done today. Prints for
each task the errors of the predicted rates, those of min(compute only, input only), and what following the
advice costs against the search's best. RESULT.json has all probes and rates: `RESULT.json --refit` predicts
again from them, without measuring.

--device cuda takes the four tasks for a GPU. --archives: folder of cifar10-jpeg.npz, tiny-imagenet-40.zip and
imagenet-800.zip. --minutes ends the search of a task early: what was measured until then is judged.
Each probe and each measurement is a process of its own, forked from one that has imported torch and has
computed nothing.
"""

import argparse
import json
import math
import os
import statistics
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from snakemake.utils import update_config

from gpufeed.advice.ranking import advise
from gpufeed.advice.rate_model import predicted, seconds_an_image
from gpufeed.advice.words import lines
from gpufeed.benchmarks.end_to_end import measure
from gpufeed.benchmarks.probe import probe
from gpufeed.core.cell_matrix import quantity
from gpufeed.core.cells import Cell
from gpufeed.core.config import CONFIG, planned
from gpufeed.core.config_schema import read_yaml
from gpufeed.core.plan_advice import candidates
from gpufeed.core.registry import LOADERS, load, store_file
from gpufeed.datasets.manifest import Manifest
from gpufeed.datasets.prepare import prepare
from gpufeed.system.environment import environment
from gpufeed.training.runtime_context import Stores

TODAY = {"loader": "dataloader_sync"}
CORES = len(os.sched_getaffinity(0))


def workers(*counts: int, **axes: Any) -> dict[str, Any]:
    given = {"loader": "dataloader_workers", "workers": list(counts), "persistent_workers": True}
    return given | axes


def task(
    dataset: str, limit: int | None, blocks: Mapping[str, Mapping], today: Mapping = TODAY, **common: Any
) -> dict[str, Any]:
    """A source with so many images, and the experiment on it."""
    return {"dataset": dataset, "limit": limit, "common": common, "blocks": {"today": today, **blocks}}


CACHED = {"loader": ["host_cache", "resident"]}
WINDOWS = {"recipe": "random_resized_crop", "augment": "none"}
# Epochs of a second or two on two cores, so that a measurement has several, and leaves the first one out
SMALL = ["model.stem=imagenet", "recipe.size=64", "recipe.short_side=72"]
ON_CPU = {
    "cifar_cnn": task(
        "cifar10_jpeg",
        4000,
        {
            "workers": workers(1, 2),
            "simplejpeg": workers(1, 2, decoder="simplejpeg"),
            "overlap": {"loader": "overlap", "decoder": "simplejpeg"},
            "cached": CACHED,
        },
        model="simple_cnn",
        augment="torch",
        batch_size=128,
    ),
    "tiny_resnet": task(
        "tiny_imagenet_40",
        256,
        {
            "workers": workers(1, 2),
            "anew": workers(2, persistent_workers=False),
            "overlap": {"loader": "overlap"},
            "simplejpeg": {
                "loader": "overlap",
                "workers": 1,
                "decoder": "simplejpeg",
                "persistent_workers": True,
            },
            "cached": CACHED,
        },
        model="resnet18",
        augment="torch",
        batch_size=32,
        overrides=[["model.stem=imagenet"]],
    ),
    "photographs": task(
        "imagenet_800",
        224,
        {
            "workers": workers(1, 2),
            "torchvision": workers(1, 2, decoder="torchvision_cpu"),
            "overlap": {"loader": "overlap", "decoder": "torchvision_cpu"},
            "spdl": {"loader": "spdl", "workers": 2, "prefetch_factor": 2},
            "cached": {"loader": "host_cache"},
        },
        model="resnet18",
        batch_size=32,
        overrides=[SMALL],
        **WINDOWS,
    ),
    "cifar_vit": task(
        "cifar10_jpeg",
        768,
        {
            "workers": workers(1, 2, augment="cpu"),
            "on_device": workers(1, 2),
            "overlap": {"loader": "overlap", "augment": ["cpu", "torch"]},
            "cached": CACHED,
        },
        today={**TODAY, "augment": "cpu"},
        model="vit_lite",
        augment="torch",
        batch_size=64,
    ),
    "png_cnn": task(
        "png_64",
        None,
        {
            "workers": workers(1, 2),
            "anew": workers(1, 2, persistent_workers=False),
            "overlap": {"loader": "overlap", "workers": [0, 1], "persistent_workers": True},
            "cached": CACHED,
        },
        model="simple_cnn",
        augment="torch",
        batch_size=64,
    ),
    "tiny_augmented": task(
        "tiny_imagenet_40",
        1500,
        {
            "workers": workers(1, 2, augment="cpu"),
            "on_device": workers(2),
            "simplejpeg": workers(1, 2, decoder="simplejpeg"),
            "prefetch": workers(2, prefetch_factor=8),
            "cached": CACHED,
        },
        today={**TODAY, "augment": "cpu"},
        model="simple_cnn",
        augment="torch",
        batch_size=64,
    ),
}
FAST = {"precision": "bf16", "cuda_graphs": "auto"}
ON_GPU_LOADERS = {"loader": ["dali_gpu", "torchvision_cuda", "cuda_jpeg"]}
ON_CUDA = {
    "tiny_resnet": task(
        "tiny_imagenet_40",
        20000,
        {
            "graphs": workers(4, 8, 16),
            "on_gpu": ON_GPU_LOADERS,
            "cached": CACHED,
            "eager": {"loader": "resident", "cuda_graphs": False},
        },
        today=workers(4, cuda_graphs=False),
        model="resnet18",
        augment="torch",
        batch_size=256,
        overrides=[["model.stem=imagenet"]],
        **FAST,
    ),
    "cifar_resnet": task(
        "cifar10_jpeg",
        50000,
        {
            "workers": workers(8, 16),
            "simplejpeg": workers(8, decoder="simplejpeg"),
            "on_gpu": ON_GPU_LOADERS,
            "cached": CACHED,
        },
        today=workers(4, cuda_graphs=False),
        model="resnet18",
        augment="torch",
        batch_size=512,
        **FAST,
    ),
    "photographs_resnet18": task(
        "imagenet_800",
        None,
        {
            "workers": workers(8, 16, decoder="torchvision_cpu"),
            "on_gpu": {"loader": ["dali_gpu", "dali_cpu", "torchvision_cuda", "cuda_jpeg"]},
            "cached": {"loader": "host_cache"},
        },
        today=workers(4),
        model="resnet18",
        batch_size=128,
        overrides=[["model.stem=imagenet"]],
        **WINDOWS,
        **FAST,
    ),
    "photographs_resnet50": task(
        "imagenet_800",
        None,
        {
            "workers": workers(8, 16, decoder="torchvision_cpu"),
            "on_gpu": {"loader": ["dali_gpu", "torchvision_cuda", "cuda_jpeg"]},
            "cached": {"loader": ["host_cache", "resident"]},
        },
        today=workers(4),
        model="resnet50",
        batch_size=128,
        **WINDOWS,
        **FAST,
    ),
}
COPIES = {"imagenet_800": 8}  # on a GPU: an epoch of 5,760 photographs


def forked(work: Callable[[], Any]) -> Any:
    """Return what the work returns, as JSON, of a process of its own; None where that fails."""
    with tempfile.NamedTemporaryFile("r+") as file:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                Path(file.name).write_text(json.dumps(work()))
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        os.waitpid(child, 0)
        text = Path(file.name).read_text()
    return json.loads(text) if text else None


def config_of(name: str, one: Mapping[str, Any], device: str) -> dict[str, Any]:
    config = read_yaml((CONFIG / "config.yaml").read_text(), "config/config.yaml")
    copies = COPIES.get(one["dataset"]) if device == "cuda" else None
    sources: dict[str, Any] = {one["dataset"]: {"limit": one["limit"], "copies": copies}}
    if one["dataset"] == "png_64":
        options = {"count": 2500, "size": 64, "classes": 10, "format": "png"}
        sources = {"png_64": {"layout": "synthetic", "options": options}}
    experiment = {
        "title": name,
        "question": "?",
        "repeats": 1,
        "advice": {"of": "today", "best": 3},
        # so few that the seconds asked for decide, which then count from the fourth step on
        "common": {"dataset": one["dataset"], "steps": 8, **one["common"]},
        "blocks": one["blocks"],
    }
    given = {
        "run": [name],
        "device": device,
        "experiments": {name: experiment},
        "cache_decoder": "simplejpeg",
    }
    del config["experiments"]
    update_config(config, {**given, "sources": sources})
    source = config["sources"][one["dataset"]]
    config["sources"][one["dataset"]] = {key: value for key, value in source.items() if value is not None}
    return config


def stores_of(config: Mapping, cell: Cell, archives: Path, data: Path) -> tuple[Path, Stores]:
    """Prepare the cell's dataset and what its loader reads, unless they are there."""
    source = config["sources"][cell.dataset]
    kept = "-".join([cell.dataset, *(f"{key}{value}" for key, value in quantity(source).items())])
    folder, threads = data / kept, CORES
    manifest = folder / "manifest.parquet"
    if not manifest.exists():
        files = [archives / file["name"] for file in source.get("files", [])]
        given = (source["layout"], files, folder, cell.dataset, dict(source.get("options", {})))
        forked(lambda: prepare(*given, workers=threads, quantity=quantity(source)) and None)
    file = store_file(cell.loader, config["cache_decoder"], cell.hyper.get("recipe"))
    if file is None:
        return manifest, Stores()
    kind, path = LOADERS[cell.loader].reads, folder / file
    if not path.exists():
        build = load("store", kind, "build")
        forked(lambda: build(Manifest.read(manifest), path, workers=threads) and None)
    return manifest, Stores(**{kind: path})


def search(name: str, one: Mapping[str, Any], given: argparse.Namespace) -> dict[str, Any]:
    """Probes, rates of all cells, and rates once more of the cells that matter, of one task."""
    began, config = time.time(), config_of(name, one, given.device)
    end = began + 60 * given.minutes
    plan = planned(config)
    cells = {cell: plan.cells[name][cell] for cell in candidates(plan, name)}
    places = {cell: stores_of(config, of, given.archives, given.data) for cell, of in cells.items()}
    print(f"{name}: {len(cells)} cells, prepared in {time.time() - began:.0f} s", flush=True)

    def probed(cell: str) -> dict[str, Any]:
        manifest, stores = places[cell]
        return forked(lambda: probe(cells[cell].asdict(), manifest, stores, "here", threads=CORES))

    def rate(cell: str, until: float = math.inf) -> float | None:
        manifest, stores = places[cell]

        def work() -> float | None:
            settings = {
                **vars(stores),
                "threads": CORES,
                "least_s": given.seconds,
                "telemetry": False,
            }
            record, _ = measure(cells[cell].asdict(), 0, manifest, planned_on="here", **settings)
            print(f"  {cell}: {record.throughput or record.sentence}", flush=True)
            return record.throughput and record.throughput["images_per_s"]

        return forked(work) if time.time() < until else None

    probes, rates, probes_s, search_s = [], {}, 0.0, 0.0
    for cell in cells:  # what drifts on the machine meets both alike
        if (began := time.time()) > end:
            break
        found = probed(cell)
        probes += [] if found is None else [found]
        probes_s, began = probes_s + time.time() - began, time.time()
        rates[cell] = [rate(cell, end)]
        search_s += time.time() - began
    for _ in range(given.rounds - 1):
        for cell in rates:
            rates[cell].append(rate(cell, end))
    rates = {cell: known for cell, found in rates.items() if (known := list(filter(None, found)))}
    (of,) = plan.blocks[name]["today"]
    advice = advise(probes, of, config["experiments"][name]["advice"]["best"])
    again: dict[str, list[float | None]] = {}
    for _ in range(given.again):
        for cell in that_matter(advice, rates):
            again.setdefault(cell, []).append(rate(cell))
    return {
        "of": of,
        "probes": probes,
        "rates": rates,
        "again": again,
        "probes_s": probes_s,
        "search_s": search_s,
    }


def that_matter(advice: Mapping[str, Any], rates: Mapping[str, list[float]]) -> set[str]:
    """What is done today, the chosen candidates, and the best of the search."""
    chosen = {one["cell_id"] for one in advice["candidates"] if one["chosen"]}
    known = {cell: statistics.median(found) for cell, found in rates.items() if found}
    return {advice["of"], *chosen, max(known, key=known.get, default=advice["of"])} & known.keys()


def judged(found: Mapping[str, Any]) -> dict[str, Any]:
    """Errors of the predicted rates, and what following the advice gives against the search's best."""
    searched = {cell: statistics.median(several) for cell, several in found["rates"].items() if several}
    rates = {
        cell: statistics.median([*found["rates"][cell], *filter(None, found["again"].get(cell, []))])
        for cell in searched
    }
    done = {
        one["cell_id"]: one for one in found["probes"] if one["status"] == "done" and one["cell_id"] in rates
    }
    ours = {cell: predicted(one)["median"] for cell, one in done.items()}
    least = {cell: min(rate_alone(one, part) for part in ("compute", "input")) for cell, one in done.items()}
    again = {
        cell: statistics.median(known)
        for cell, several in found["again"].items()
        if (known := list(filter(None, several)))
    }
    advice = advise(found["probes"], found["of"], 3)
    first = next((one["cell_id"] for one in advice["candidates"] if one["advised"]), found["of"])
    tried = {found["of"], *(one["cell_id"] for one in advice["candidates"] if one["chosen"])} & rates.keys()
    # what is advised once it was measured is the fastest of these; another measurement says what it is worth
    verified = max(tried, key=lambda cell: searched.get(cell, 0.0))
    best = max(again.values(), default=math.nan)
    return {
        "cells": len(done),
        "errors": {cell: ours[cell] / rates[cell] - 1 for cell in ours},
        "errors_of_min": {cell: least[cell] / rates[cell] - 1 for cell in ours},
        "errors_of_one_measurement": one_measurement(found),
        "predicted_over_best": again.get(first, math.nan) / best,
        "verified_over_best": again.get(verified, math.nan) / best,
        "slows": again.get(first, math.nan) < again.get(found["of"], math.nan),
        "lines": lines(advice, rates),
    }


def one_measurement(found: Mapping[str, Any]) -> dict[str, float]:
    """Return by how much a cell's first measurement misses the median of its later ones."""
    every = {
        cell: [*several, *filter(None, found["again"].get(cell, []))]
        for cell, several in found["rates"].items()
    }
    return {cell: first / statistics.median(later) - 1 for cell, (first, *later) in every.items() if later}


def rate_alone(one: Mapping[str, Any], part: str) -> float:
    return 1 / statistics.median(seconds_an_image(one[part]["rounds"]))


def report(result: Mapping[str, Any]) -> None:
    """Print a line for each task, and one for all."""
    every: dict[str, list[float]] = {"errors": [], "errors_of_min": [], "errors_of_one_measurement": []}
    for name, found in result["tasks"].items():
        of = judged(found)
        print(
            f"{name}: {of['cells']} cells, error {shown(of['errors'])}, "
            f"of min() {shown(of['errors_of_min'])}, "
            f"first advice / best {of['predicted_over_best']:.3f}, measured advice / best "
            f"{of['verified_over_best']:.3f}, slows: {of['slows']}, probes {found['probes_s']:.0f} s, "
            f"search {found['search_s']:.0f} s"
        )
        for line in of["lines"]:
            print(f"    {line}")
        for name_of in every:
            every[name_of] += of[name_of].values()
    for name, errors in every.items():
        print(f"all, {name.replace('_', ' ')}: {shown(dict(enumerate(errors)))}")


def shown(errors: Mapping[Any, float]) -> str:
    if not errors:
        return "not measured"
    sizes = [abs(error) for error in errors.values()]
    return f"{statistics.median(sizes) * 100:.1f} % in the median, {max(sizes) * 100:.1f} % at worst"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("result", type=Path)
    parser.add_argument("--refit", action="store_true", help="predict again from the result; measure nothing")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--tasks", help="names with commas between them, all by default")
    parser.add_argument("--archives", type=Path, default=Path("archives"))
    parser.add_argument("--data", type=Path, default=Path("data/advice"))
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement, behind its warm-up")
    parser.add_argument("--rounds", type=int, default=2, help="measurements of each cell")
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="of each task's search; --again comes behind it"
    )
    parser.add_argument("--again", type=int, default=3, help="further measurements of the cells that matter")
    given = parser.parse_args()
    if given.refit:
        report(json.loads(given.result.read_text()))
        return
    known = ON_CUDA if given.device == "cuda" else ON_CPU
    result = {"environment": forked(lambda: environment(torch.device(given.device))), "tasks": {}}
    for name in given.tasks.split(",") if given.tasks else known:
        result["tasks"][name] = search(name, known[name], given)
        given.result.write_text(json.dumps(result, indent=1))  # whatever happens to the next
    report(result)


if __name__ == "__main__":
    main()

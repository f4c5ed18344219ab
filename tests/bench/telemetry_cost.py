"""What telemetry costs a training, on against off: python tests/bench/telemetry_cost.py [--pairs 20]"""

import argparse
import json
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpufeed.core.cell_matrix import content
from gpufeed.core.cells import DEVICES, PRECISIONS, Cell, impossible, settle
from gpufeed.core.errors import GpufeedError, Skip
from gpufeed.core.registry import LOADERS, MODELS

if TYPE_CHECKING:
    from gpufeed.training.cell_training import Trained

DATASET = "synthetic"
FEWEST_EPOCHS = 3  # the first is left out, and at least two are timed


@dataclass(frozen=True)
class Turn:
    """One training. images_per_s: after warm-up. samples: of its side thread, None where it had none."""

    images_per_s: float
    samples: int | None


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser(
        description="Trains a small model again and again in this process, with telemetry and without it in "
        "turns (on, off, off, on), and prints the ratio of the times of their steps after warm-up.",
    )
    found.add_argument("--pairs", type=int, default=20, help="of trainings (default: 20)")
    found.add_argument("--seconds", type=float, default=3.0, help="steady state of each (default: 3)")
    found.add_argument("--loader", choices=sorted(LOADERS), default="resident", help="default: resident")
    found.add_argument("--workers", type=int, default=0, help="worker processes of the loader (default: 0)")
    found.add_argument("--model", choices=sorted(MODELS), default="resnet18", help="default: resnet18")
    found.add_argument("--images", type=int, default=2500, help="of the dataset, made first (default: 2500)")
    found.add_argument("--batch-size", type=int, default=128, help="default: 128")
    found.add_argument("--precision", choices=PRECISIONS, default="auto", help="default: auto")
    found.add_argument("--cuda-graphs", action="store_true", help="replay a step, so that no host delays it")
    found.add_argument("--device", choices=DEVICES, default="auto", help="default: auto")
    found.add_argument("--data", type=Path, default=Path("data"), help="folder of datasets (default: data)")
    found.add_argument("--output", type=Path, metavar="FILE", help="where all pairs go, as JSON")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; 0 if it measured, 2 if it could not, with the reason on standard error."""
    asked = parser().parse_args(arguments)
    try:
        cell, turn = trainer(asked)
        epochs = epochs_for(asked.seconds, lambda epochs: turn(epochs, False)[1])
        pairs = alternate(asked.pairs, lambda telemetry: turn(epochs, telemetry)[0])
    except (GpufeedError, Skip) as refusal:
        print(refusal, file=sys.stderr)
        return 2
    print(f"{cell.loader} ({cell.workers} workers), {cell.model}, batch {cell.batch_size}: {verdict(pairs)}")
    if asked.output is not None:
        rows = [[on.images_per_s, off.images_per_s, on.samples] for on, off in pairs]
        columns = ["on_images_per_s", "off_images_per_s", "samples"]
        told = {"cell": cell.asdict(), "epochs": epochs, "columns": columns, "pairs": rows}
        asked.output.write_text(json.dumps(told, indent=1) + "\n")
    return 0


def trainer(asked: argparse.Namespace) -> tuple[Cell, Callable[[int, bool], tuple[Turn, list[float]]]]:
    """The cell, and what trains it for so many epochs with or without telemetry: the turn, and each epoch's
    seconds. The dataset, and a cache of it, are made first where they are not there."""
    from gpufeed.core.compose import shipped
    from gpufeed.core.config import Composer

    config = deepcopy(shipped())
    config["sources"][DATASET]["options"]["count"] = asked.images
    cell = planned(asked, config, Composer())

    from gpufeed.training.cell_training import settle_process, train
    from gpufeed.training.ensure_inputs import (  # imports torch, for which a refusal need not wait
        Shelf,
        dataset,
        stores,
    )
    from gpufeed.training.runtime_context import Place

    shelf = Shelf(asked.data, (), "simplejpeg", 0.0)
    manifest = dataset(DATASET, config, shipped(), shelf)
    given = stores(cell, manifest, shelf)
    settle_process(None)

    def turn(epochs: int, telemetry: bool) -> tuple[Turn, list[float]]:
        of = replace(cell, epochs=epochs)
        trained = train(of, 0, manifest, given, Place(), None, telemetry=telemetry)
        return told(trained, telemetry), [epoch["epoch_s"] for epoch in trained.result.epochs]

    return cell, turn


def planned(asked: argparse.Namespace, config: dict, compose: Callable[[Cell, str], dict]) -> Cell:
    """The cell of the command line; raises GpufeedError for a number too small and a cell that cannot be."""
    least = {"pairs": 1, "batch_size": 1, "images": 10, "workers": 0, "seconds": 0.0}
    for name, lowest in least.items():
        if (value := getattr(asked, name)) < lowest:
            option = "--" + name.replace("_", "-")
            raise GpufeedError(f"{option} {value}", f"{lowest} or more", f"correct {option}")
    cell = Cell(
        experiment="telemetry_cost",
        dataset=DATASET,
        loader=asked.loader,
        augment="torch",
        model=asked.model,
        precision=asked.precision,
        batch_size=asked.batch_size,
        workers=asked.workers,
        persistent_workers=asked.workers > 0,
        cuda_graphs=asked.cuda_graphs,
        device=asked.device,
        source=content(config, DATASET),
    )
    cell = settle(replace(cell, hyper=compose(cell, "the command line")))
    if sentence := impossible(cell):
        raise GpufeedError(sentence, "a cell that can exist", "choose other options")
    return cell


def told(trained: "Trained", telemetry: bool) -> Turn:
    """The turn behind a training; raises GpufeedError where telemetry was to run and did not."""
    from gpufeed.system.timing import throughput, warmup

    left_out = warmup(trained.result.epochs, trained.batches, trained.request.ahead)["steps"]
    rate = throughput(trained.result.steps[left_out:])["images_per_s"]
    if telemetry and trained.telemetry is None:
        raise GpufeedError("a training whose telemetry broke", "telemetry", "look at the line in the log")
    return Turn(rate, trained.telemetry.fields["samples"] if telemetry else None)


def epochs_for(seconds: float, train: Callable[[int], list[float]]) -> int:
    """Epochs of which all but the first take so long. A training is spent on it, which warms up too."""
    epoch_s = min(train(FEWEST_EPOCHS)[1:])
    return max(FEWEST_EPOCHS, 1 + math.ceil(seconds / epoch_s))


def alternate(pairs: int, turn: Callable[[bool], Turn]) -> list[tuple[Turn, Turn]]:
    """(on, off) of each pair; every other one begins without telemetry, so that a drift takes no side."""
    found = []
    for number in range(pairs):
        if number % 2:
            off = turn(False)
            found.append((turn(True), off))
        else:
            on = turn(True)
            found.append((on, turn(False)))
    return found


def verdict(pairs: Sequence[tuple[Turn, Turn]]) -> str:
    """The ratio of the times, on over off, in a sentence."""
    from gpufeed.system.statistics import paired_ratio

    ratio = paired_ratio((off.images_per_s, on.images_per_s) for on, off in pairs)
    on, off = (statistics.median(turn.images_per_s for turn in side) for side in zip(*pairs, strict=True))
    samples = statistics.median(on.samples for on, _ in pairs)
    low, high = ratio.interval or ratio.range
    bounds = "95 % interval" if ratio.interval else "range"
    return (
        f"with telemetry a step takes {ratio.median:.4f} times as long ({bounds} {low:.4f} to {high:.4f}, "
        f"single pairs {ratio.range[0]:.4f} to {ratio.range[1]:.4f}); n = {ratio.n} pairs in turns, "
        f"medians {on:.1f} and {off:.1f} images/s, {samples:.0f} samples a training"
    )


if __name__ == "__main__":
    sys.exit(main())

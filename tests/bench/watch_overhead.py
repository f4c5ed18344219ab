"""What gpufeed.watch costs a training: python tests/bench/watch_overhead.py RESULT.json [--device cuda]

One process trains one model alternately on two loaders of the same data, one of them watched: short blocks of
steps in the order ABBA, each timed on the host between two waits for the device. A pair is the median of
`--blocks` blocks of each side. What bursts cost (stocking, the burst, and what settles after it) stands
apart, and so does what ends of epochs cost. Exit status 1 where the upper end of the 95 % interval of the
overhead is not below 1 %.
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import gpufeed.watch
from gpufeed.system.environment import environment
from gpufeed.system.statistics import paired_ratio
from gpufeed.system.timing import synchronise

LIMIT = 0.01
KEPT = 2048  # images in memory
OF_BURSTS = {"stock", "compute_only", "settle"}  # phases of a watch


def made_model(name: str) -> nn.Module:
    if name == "tiny":
        return nn.Sequential(
            nn.Conv2d(3, 16, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.LazyLinear(10)
        )
    from torchvision import models

    return getattr(models, name)(num_classes=10)


def made_step(given: argparse.Namespace) -> Callable[[list[torch.Tensor]], None]:
    device = torch.device(given.device)
    model = made_model(given.model).to(device)
    model(torch.zeros(2, 3, given.side, given.side, device=device))  # sizes of lazy layers
    optimiser = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)

    def step(batch: list[torch.Tensor]) -> None:
        images, labels = (part.to(device, non_blocking=True) for part in batch)
        loss = nn.functional.cross_entropy(model(images.float().div(255)), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

    return step


class Images(Dataset):
    """As many samples as an epoch has, over some images in memory."""

    def __init__(self, given: argparse.Namespace):
        drawn = torch.Generator().manual_seed(0)
        shape = (KEPT, 3, given.side, given.side)
        self.images = torch.randint(256, shape, dtype=torch.uint8, generator=drawn)
        self.count = given.batch_size * given.batches

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.images[index % KEPT], index % 10


def made_loader(given: argparse.Namespace) -> DataLoader:
    stays = {"persistent_workers": True} if given.workers else {}
    pinned = given.device == "cuda"
    return DataLoader(Images(given), given.batch_size, num_workers=given.workers, pin_memory=pinned, **stays)


class Turns:
    """Two endless passes over equal loaders, one watched; a block is some steps of one of them."""

    def __init__(self, given: argparse.Namespace):
        self.count, self.device, self.step = given.steps, torch.device(given.device), made_step(given)
        self.clock = time.process_time if given.clock == "cpu" else time.perf_counter
        self.watch = gpufeed.watch(
            made_loader(given), out=None, quiet=True, device=given.device, burst=given.burst
        )
        self.sides = {True: endless(self.watch), False: endless(made_loader(given))}

    def block(self, watched: bool) -> tuple[float, str]:
        """Return its seconds, and what it touched: `bursts`, `epoch_ends` or nothing."""
        batches, phases, epoch = self.sides[watched], set(), self.watch.record.epochs
        synchronise(self.device)
        began = self.clock()
        for _ in range(self.count):
            self.step(next(batches))
            phases.add(self.watch.record.phase)
        synchronise(self.device)
        touched = "bursts" if phases & OF_BURSTS else "epoch_ends" if self.watch.record.epochs > epoch else ""
        return self.clock() - began, touched


def endless(loader) -> Iterator:
    while True:
        yield from loader


def measured(given: argparse.Namespace) -> dict:
    """Return pairs of the median seconds of a step, watched and not, and what stands apart."""
    turns, pairs, apart = Turns(given), [], {"bursts": [], "epoch_ends": []}
    kept, number, whole_s = {True: [], False: []}, 0, 0.0
    end = time.perf_counter() + given.seconds
    for _ in range(given.warm_up):
        turns.block(True), turns.block(False)
    while len(pairs) < given.pairs and (not pairs or time.perf_counter() < end):
        order = (True, False) if number % 4 in (0, 3) else (False, True)
        found = {side: turns.block(side) for side in order}
        number, whole_s = number + 1, whole_s + found[True][0]
        if touched := found[True][1]:  # the other loader is as far: its epoch ends in the same round
            apart[touched].append(found[True][0] - found[False][0])
            continue
        for side, (seconds, _) in found.items():
            kept[side].append(seconds / given.steps)
        if len(kept[True]) == given.blocks:
            pairs.append([statistics.median(kept[side]) for side in (True, False)])
            kept = {True: [], False: []}
    told = turns.watch.result()
    costs = {
        name: {"blocks": len(more), "seconds": math.fsum(more), "share": math.fsum(more) / whole_s}
        for name, more in apart.items()
    }
    costs["bursts"]["n"] = sum(one["kind"] == "compute_only" for one in told["stretches"])
    about = {"held": told["held"], "steps": told["steps"], "watch": told["verdict"]}
    return {"columns": ["watched_s", "unwatched_s"], "pairs": pairs, **costs, **about}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("result", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    # on a GPU steps for which the host need not hurry, since its own time differs by 5 % from block to block
    model, side = ("resnet50", 128) if torch.cuda.is_available() else ("resnet18", 64)
    parser.add_argument("--model", default=model, help="tiny, or one of torchvision's")
    parser.add_argument("--side", type=int, default=side, help="pixels of an image")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--batches", type=int, default=1000, help="of an epoch")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--burst", type=int, default=16, help="most batches held")
    parser.add_argument(
        "--clock", choices=["wall", "cpu"], default="wall", help="cpu: on a busy machine, device cpu"
    )
    parser.add_argument("--steps", type=int, default=4, help="of a block")
    parser.add_argument("--blocks", type=int, default=16, help="of each side in a pair")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=110, help="after which no pair begins")
    parser.add_argument("--warm-up", type=int, default=8, help="blocks of each side that do not count")
    given = parser.parse_args()
    found = measured(given)
    ratio = paired_ratio(found["pairs"])
    low, high = ratio.interval or ratio.range
    overhead = {"n": ratio.n, "median": ratio.median - 1, "low": low - 1, "high": high - 1, "limit": LIMIT}
    asked = {name: value for name, value in vars(given).items() if name != "result"}
    about = {"asked": asked, "overhead": overhead, "environment": environment(torch.device(given.device))}
    given.result.write_text(json.dumps({**about, **found}, indent=1) + "\n")
    bursts, ends = found["bursts"], found["epoch_ends"]
    print(
        f"outside bursts a watched step takes {overhead['median']:+.2%} longer (95 % interval {low - 1:+.2%} "
        f"to {high - 1:+.2%}; n = {ratio.n} pairs); {bursts['n']} bursts cost {bursts['seconds']:.2f} s, "
        f"{bursts['share']:.1%} of the watched side; {ends['blocks']} epoch ends cost {ends['seconds']:.2f} s"
    )
    return int(not overhead["high"] < LIMIT)


if __name__ == "__main__":
    raise SystemExit(main())

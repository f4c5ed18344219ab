"""How fast `resident` with `fused` makes batches, without a model: python tests/bench/input_only.py

Random uint8 images lie on the GPU; an epoch is one permutation on the device, then replays of a CUDA graph
whose every batch is one kernel that gathers, crops, flips, brightens, stains and normalises to float16. A
graph holds one batch, as in training, or several, which one copy of row numbers serves. Prints a line of
JSON for each: images a second of whole epochs on the device's clock, permutation included, an epoch each;
beside it a copy of as many bytes, measured by turns with the epochs, and the time of a permutation alone.
"""

import argparse
import json
import math
import statistics

import torch

from gpufeed.augment.fused import FusedAugment
from gpufeed.loaders.base import permutation
from gpufeed.system.environment import environment
from gpufeed.system.timing import Mark, synchronise

MEAN, STD = (0.48, 0.45, 0.40), (0.28, 0.27, 0.28)
OPTIONS = {"crop_padding": 4, "brightness": 0.2, "contrast": 0.2, "salt_pepper": 0.02, "dtype": "float16"}
CUDA = torch.device("cuda")


class Feed:
    """Epochs of a store through the augment: static row numbers and ids, and a graph that reads them."""

    def __init__(self, store: torch.Tensor, batch_size: int, batches: int):
        """batches: in one graph."""
        self.store = store
        self.augment = FusedAugment(MEAN, STD, 1, OPTIONS)
        self.rows = torch.arange(batch_size * batches, device=CUDA)
        self.batches = self.rows.split(batch_size)  # as the graph reads them
        self.epoch = torch.zeros((), dtype=torch.int64, device=CUDA)
        self.make(self.batches[0])  # compiles before the capture
        synchronise(CUDA)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            for rows in self.batches:
                self.images = self.make(rows)

    def make(self, rows: torch.Tensor) -> torch.Tensor:
        """A batch, float16 (N, 3, H, W); here a sample's id is its row."""
        return self.augment.gather(self.store, rows, rows, self.epoch)

    def run(self, epoch: int) -> None:
        """One epoch of whole graphs."""
        self.epoch.fill_(epoch)
        for rows in permutation(len(self.store), 1, epoch, CUDA).split(len(self.rows)):
            self.rows.copy_(rows)
            self.graph.replay()


def milliseconds(work) -> float:
    """Of queued work, on the device's clock."""
    start = Mark(CUDA)
    work()
    end = Mark(CUDA)
    synchronise(CUDA)
    return start.ms_until(end)


def summary(values: list[float]) -> dict[str, float]:
    return {"n": len(values), "median": statistics.median(values), "min": min(values), "max": max(values)}


def measured(feed: Feed, repeats: int) -> dict[str, list[float]]:
    """Of each of so many epochs, by turns with a copy of as many bytes and a permutation alone."""
    images = len(feed.store)
    bytes_moved = feed.store.numel() * (1 + feed.images.element_size())
    # a copy reads and writes: half the bytes each
    source = torch.empty(bytes_moved // 2, dtype=torch.uint8, device=CUDA)
    target = torch.empty_like(source)
    found = {"images_per_s": [], "share_of_copy": [], "permutation_ms": []}
    for number in range(repeats + 1):
        epoch_ms = milliseconds(lambda number=number: feed.run(number))
        copy_ms = milliseconds(lambda: target.copy_(source))
        order_ms = milliseconds(lambda number=number: permutation(images, 1, number, CUDA))
        if number:  # the first warms up
            found["images_per_s"].append(images / epoch_ms * 1e3)
            found["share_of_copy"].append(copy_ms / epoch_ms)
            found["permutation_ms"].append(order_ms)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=2**20)
    parser.add_argument("--side", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=4096)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 16], help="in one graph")
    parser.add_argument("--repeats", type=int, default=20)
    given = parser.parse_args()
    most = given.batch_size * math.lcm(*given.batches)
    images = given.images // most * most  # whole graphs
    shape = (images, given.side, given.side, 3)
    store = torch.randint(256, shape, dtype=torch.uint8, device=CUDA)
    about = {"images": images, "side": given.side, "batch_size": given.batch_size, "options": OPTIONS}
    for batches in given.batches:
        found = measured(Feed(store, given.batch_size, batches), given.repeats)
        numbers = {name: summary(values) for name, values in found.items()}
        print(json.dumps({**about, "batches": batches, **numbers, "environment": environment(CUDA)}))


if __name__ == "__main__":
    main()

"""How fast `resident_jpeg` makes batches, without a model: python tests/bench/resident_jpeg.py SOURCE

SOURCE: the zip of tiny_imagenet_40 or a folder of JPEGs of one size; the training files (all, if none is
called so) are a split that has each of them --copies times. Whole epochs of the open loader are timed on the
host's clock as the report's input-only ceilings are, by turns: at each batch size, with rounds of so many MiB
of pixels, on one stream and on several. Prints a line of JSON with seconds to open and, of each, images a
second; then the memory that stays on the device and the most that was in use.
"""

import argparse
import json
import statistics
import tempfile
import time
from itertools import product
from pathlib import Path

import pandas as pd
import torch
from own_jpeg import read_source

from gpufeed.benchmarks.ceilings.stages import drain_epoch
from gpufeed.datasets.manifest import DatasetInfo, Manifest
from gpufeed.decoders.encoded_file import read_header
from gpufeed.loaders import resident_jpeg
from gpufeed.loaders.base import LoadRequest
from gpufeed.loaders.resident_jpeg import ResidentJpegLoader
from gpufeed.system.environment import environment

MIB = 2**20


def manifest_of(source: Path, folder: Path, copies: int) -> Manifest:
    files = read_source(source)
    for number, data in enumerate(files):
        (folder / f"{number}.jpg").write_bytes(data)
    header = read_header(files[0])
    rows = [(f"{number}.jpg", 0, "train", header.height, header.width, 3) for number in range(len(files))]
    table = pd.DataFrame(rows * copies, columns=["path", "label", "split", "height", "width", "channels"])
    half = (0.5, 0.5, 0.5)
    return Manifest(folder, DatasetInfo("bench", "synthetic", ["one"], "test", half, half), table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("--copies", type=int, default=5)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[256, 4096])
    parser.add_argument("--round-mib", type=int, nargs="+", default=[64, 128, 256])
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--device", default="cuda")
    given = parser.parse_args()
    device, found = torch.device(given.device), {}
    with tempfile.TemporaryDirectory() as folder:
        manifest = manifest_of(given.source, Path(folder), given.copies)
        begin = time.perf_counter()
        with ResidentJpegLoader(LoadRequest(manifest, "train", 1, device)) as first:
            open_s, store = time.perf_counter() - begin, first.store
    resident_jpeg.filled = lambda request: store  # read once: the loaders differ in how they decode it
    settings, loaders = list(product(given.batch_sizes, given.round_mib, given.streams)), []
    for batch_size, round_mib, streams in settings:
        resident_jpeg.ROUND_BYTES, resident_jpeg.STREAMS = round_mib * MIB, streams
        loaders.append(ResidentJpegLoader(LoadRequest(manifest, "train", batch_size, device)))
        loaders[-1].open()
    for number in range(given.repeats + 1):
        for setting, loader in zip(settings, loaders, strict=True):
            rate = loader.share / drain_epoch(loader).seconds
            if number:  # the first warms up
                found.setdefault(setting, []).append(rate)
    for loader in loaders:
        loader.close()
    rates = [
        {"batch_size": batch_size, "round_mib": round_mib, "streams": streams, "n": len(values)}
        | {
            name: round(of(values))
            for name, of in (("median", statistics.median), ("min", min), ("max", max))
        }
        for (batch_size, round_mib, streams), values in found.items()
    ]
    about = {
        "images": len(manifest),
        "kinds": len(store.codings),
        "open_s": open_s,
        "images_per_s": rates,
        "resident_mib": sum(tensor.nbytes for tensor in store.tensors) / MIB,
        "pixels_mib": len(manifest) * store.codings[0].height * store.codings[0].width * 3 / MIB,
        "peak_mib": torch.cuda.max_memory_allocated() / MIB if device.type == "cuda" else None,
        "environment": environment(device),
    }
    for row in rates:
        print(row)
    print(json.dumps(about))


if __name__ == "__main__":
    main()

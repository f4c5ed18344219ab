"""How fast loaders of files make crops on few cores, without a model: file_loaders.py FOLDER OUT.json

FOLDER: JPEGs, also in folders below it; --copies of each are made first, so that no CPU cache holds them.
Each loader makes random crops of --size pixels of all of them in batches of --batch-size, from the page
cache, with each number of --cores. A loader at a number of cores has a process of its own, which with all its
threads is kept on so many cores. They take turns, after a round that does not count; a pass is whole epochs
of an open loader for at least --seconds, timed as the report's input-only ceilings are. OUT gets images/s and
CPU time an image as n, median and range, and the ratio of `cuda_jpeg` to the best of the others at each
number of cores. `cuda_jpeg_whole` is `cuda_jpeg` that decodes whole images before it cuts windows out.
"""

import argparse
import json
import os
import tempfile
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pandas as pd
import torch
from by_turns import Contestant, Pass, Result, best, measured
from photo_jpeg import copied

from gpufeed import native
from gpufeed.augment.random_resized_crop import RandomResizedCrop, Windows
from gpufeed.benchmarks.ceilings.stages import drain_epoch
from gpufeed.core.errors import Skip
from gpufeed.core.registry import LOADERS, load
from gpufeed.datasets.manifest import DatasetInfo, Manifest
from gpufeed.decoders.encoded_file import read_file, read_header
from gpufeed.loaders.base import LoadRequest
from gpufeed.loaders.cuda_jpeg import CudaJpegLoader
from gpufeed.system.cores import apart
from gpufeed.system.environment import cores_allowed, environment
from gpufeed.system.host_memory import keep_freed_blocks

OURS, WHOLE = "cuda_jpeg", "cuda_jpeg_whole"
COLUMNS = ["path", "label", "split", "height", "width", "channels"]


class WholeImages(CudaJpegLoader):
    def _needed(self, windows: Windows) -> None:
        return None


def manifest_of(paths: list[str]) -> Manifest:
    """Of JPEGs of any sizes, the training split of one class."""
    headers = [read_header(read_file(path)) for path in paths]
    rows = [(p, 0, "train", h.height, h.width, 3) for p, h in zip(paths, headers, strict=True) if h]
    half = (0.5, 0.5, 0.5)
    info = DatasetInfo("bench", "image_folder", ["one"], "test", half, half)
    return Manifest(Path(), info, pd.DataFrame(rows, columns=COLUMNS))


def drained(stack: ExitStack, given: argparse.Namespace, name: str, manifest: Manifest, cores: int) -> Pass:
    if cores_allowed() != cores:
        raise Skip(f"This process may use {cores_allowed()} cores, not {cores}.")
    keep_freed_blocks()  # as in every process that measures
    device = torch.device(given.device, 0) if given.device == "cuda" else torch.device("cpu")
    recipe = RandomResizedCrop(given.size, seed=1)
    request = LoadRequest(
        manifest,
        "train",
        given.batch_size,
        device,
        recipe=recipe,
        threads=cores,
        hw_decoder_load=given.hw_decoder_load if name != WHOLE and LOADERS[name].engines else None,
    )
    made = WholeImages if name == WHOLE else load("loader", name)
    loader = stack.enter_context(made(request))
    drain_epoch(loader)

    def one(seconds: float) -> Result:
        drain_epoch(loader, lead_in=False)  # begins with batches that were made while others had their turn
        took, epochs, cpu = 0.0, 0, time.process_time()
        while took < seconds:
            took += drain_epoch(loader, lead_in=False).seconds
            epochs += 1
        images, cpu = epochs * loader.share, time.process_time() - cpu
        left = sum(loader.decode_counts.fell_back.values()) / loader.decode_counts.images
        return {"images_per_s": images / took, "cpu_us_per_image": cpu / images * 1e6, "left_to_others": left}

    return one


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "--loaders", nargs="+", choices=[*LOADERS, WHOLE], default=[OURS, "dali_gpu", "dali_gpu_reader"]
    )
    parser.add_argument("--cores", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--copies", type=int, default=4, help="of each file")
    parser.add_argument("--files", type=int, help="of the folder, at most")
    parser.add_argument(
        "--hw-decoder-load", type=float, help="DALI's share for the engines; 0: as cards without"
    )
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of a pass, at least")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    given = parser.parse_args()
    device, order = torch.device(given.device), apart(os.sched_getaffinity(0))
    native.status(device)  # builds the extension, where nobody has yet
    with tempfile.TemporaryDirectory() as folder:
        manifest = manifest_of(copied(given.folder, Path(folder), given.copies, given.files))
        turns = []
        for cores in given.cores:
            for name in given.loaders:
                about, enough = {"loader": name, "cores": cores}, cores <= len(order)
                one = Contestant(about, drained, (given, name, manifest, cores), order[:cores])
                one.sentence = None if enough else f"This process may use {len(order)} cores."
                turns.append(one)
        measured(turns, given.passes, given.seconds, partial(print, flush=True))
    rows, ratios = [one.summary() for one in turns], {}
    for cores in given.cores:
        our = best(rows, "images_per_s", {"loader": OURS, "cores": cores})
        others = [row for row in rows if row["loader"] not in (OURS, WHOLE)]
        other = best(others, "images_per_s", {"cores": cores})
        ratios[cores] = our / other if our and other else None
    settings = {name: value for name, value in vars(given).items() if name not in ("folder", "out")}
    document = {"files": len(manifest), "settings": settings, "rates": rows, "ratios": ratios}
    given.out.write_text(json.dumps(document | {"environment": environment(device)}, indent=1) + "\n")
    print(json.dumps(ratios))


if __name__ == "__main__":
    main()

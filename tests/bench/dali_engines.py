"""What share of the files the GPU's JPEG engines should decode for DALI: dali_engines.py RESULT.json

Made images of each side (`synthetic`, quality 75, 4:2:0), and with --photographs FILE.zip the JPEGs in it, of
many sizes. Every share (`hw_decoder_load`) decodes them in two places. `decoder`: bytes in, tensors on the
GPU out. `loader`: DALI reads the files too, and brings photographs to 224 x 224 pixels. Each has all cores of
this process. First every share once, in a fresh pipeline; then, at the largest batch and in fresh pipelines
again, none against the best by turns, until --passes or --limit-s are over. Prints images a second, and how
far pixels are from Pillow's; RESULT gets the same as JSON.
"""

import argparse
import itertools
import json
import statistics
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from gpufeed.benchmarks.ceilings.stages import drain_epoch
from gpufeed.datasets.manifest import DatasetInfo, Manifest
from gpufeed.datasets.synthetic import encode, grating, parse_options
from gpufeed.decoders.dali_gpu import DaliGpuDecoder
from gpufeed.decoders.encoded_file import read_header
from gpufeed.decoders.pillow import PillowDecoder
from gpufeed.loaders.base import LoadRequest
from gpufeed.loaders.dali import DaliGpuLoader
from gpufeed.system.devices import jpeg_engines
from gpufeed.system.environment import cores_allowed, environment
from gpufeed.system.host_memory import keep_freed_blocks
from gpufeed.system.timing import synchronise

PHOTOGRAPHS, CROP = "photographs", (224, 224)
MADE = {64: 1024, 128: 512, 256: 256, 500: 256}  # side -> different images
A_SPLIT = {64: 4096, 128: 4096, 256: 2048, 500: 1024, PHOTOGRAPHS: 800}  # files of an epoch
CHECKED = 64


class Engines(DaliGpuLoader):
    """The loader dali_gpu at a share of the bench's choice."""

    share_of_engines: float

    def new_library(self) -> DaliGpuDecoder:
        library = super().new_library()
        library.use(self.share_of_engines)
        return library


def made(side: int) -> list[bytes]:
    options = parse_options({"size": side, "quality": 75})
    return [encode(grating(i, i % options.classes, options), options) for i in range(MADE[side])]


def photographs(path: Path) -> list[bytes]:
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if name.lower().endswith((".jpeg", ".jpg"))]
        files = [archive.read(name) for name in names]
    # the loader's own reader takes no split with a file that DALI leaves to Pillow
    return [data for data in files if (found := read_header(data)) and found.kind in DaliGpuDecoder.takes]


def manifest_of(name: int | str, files: list[bytes], folder: Path) -> Manifest:
    folder.mkdir()
    rows = []
    for number, data in enumerate(files):
        (folder / f"{number}.jpg").write_bytes(data)
        header = read_header(data)
        rows.append((f"{number}.jpg", 0, "train", header.height, header.width, 3))
    rows = list(itertools.islice(itertools.cycle(rows), A_SPLIT[name]))
    table = pd.DataFrame(rows, columns=["path", "label", "split", "height", "width", "channels"])
    half, resize = (0.5,) * 3, CROP if name == PHOTOGRAPHS else None
    info = DatasetInfo("bench", "synthetic", ["one"], "test", half, half, resize=resize)
    return Manifest(folder, info, table)


class Decoder:
    """Passes of the decoder over files that are in memory."""

    def __init__(self, manifest: Manifest, files: list[bytes], batch_size: int, share: float):
        self.files, self.batch_size, self.device = files, batch_size, torch.device("cuda", 0)
        self.decoder = DaliGpuDecoder(cores_allowed())
        self.decoder.use(share)
        self.mixed = manifest.info.resize is not None
        header = read_header(files[0])
        self.out = torch.empty((batch_size, header.height, header.width, 3), dtype=torch.uint8, device="cuda")
        self.run(0.1)  # warms up

    def run(self, seconds: float) -> float:
        count, begin, following = 0, time.perf_counter(), itertools.cycle(self.files)
        while time.perf_counter() - begin < seconds:
            batch = list(itertools.islice(following, self.batch_size))
            if self.mixed:
                outcomes = self.decoder.decode_to(batch, self.device).outcomes
            else:
                outcomes = self.decoder.decode_into(batch, self.out)
            check({outcome.decoder for outcome in outcomes})
            count += len(batch)
        synchronise(self.device)
        return count / (time.perf_counter() - begin)

    def close(self) -> None:
        self.decoder = None


class Loader:
    """Passes of the loader: whole epochs, behind one that is not timed."""

    def __init__(self, manifest: Manifest, files: list[bytes], batch_size: int, share: float):
        device = torch.device("cuda", 0)
        self.loader = Engines(LoadRequest(manifest, "train", batch_size, device, threads=cores_allowed()))
        self.loader.share_of_engines = share
        self.loader.open()
        if not self.loader.reads:
            raise SystemExit("DALI's reader does not take these files: nothing is measured")
        self.epoch_s = drain_epoch(self.loader, lead_in=False).seconds

    def run(self, seconds: float) -> float:
        epochs = max(1, round(seconds / self.epoch_s))
        found = drain_epoch(self.loader, epochs)
        self.epoch_s = found.seconds / epochs
        check({self.loader.decoder, *self.loader.decode_counts.fell_back})
        return epochs * self.loader.share / found.seconds

    def close(self) -> None:
        self.loader.close()


PLACES: dict[str, Callable] = {"decoder": Decoder, "loader": Loader}


def check(decoders: set[str]) -> None:
    if decoders != {"dali_gpu"}:
        raise SystemExit(f"{decoders} decoded, not dali_gpu alone: nothing is measured")


def differences(files: list[bytes], share: float) -> dict[str, float]:
    """How far pixels are from Pillow's: the largest difference, and the largest mean over an image."""
    decoder, chosen = DaliGpuDecoder(cores_allowed()), files[:CHECKED]
    decoder.use(share)
    pairs = zip(decoder.decode(chosen).images, PillowDecoder().decode(chosen).images, strict=True)
    apart = [np.abs(found.astype(np.int16) - right) for found, right in pairs]
    return {"max": max(int(a.max()) for a in apart), "mean": round(max(float(a.mean()) for a in apart), 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("result", type=Path)
    parser.add_argument("--photographs", type=Path, help="a zip of JPEGs")
    parser.add_argument("--sizes", type=int, nargs="*", choices=sorted(MADE), default=sorted(MADE))
    parser.add_argument("--shares", type=float, nargs="+", default=[0.0, 0.25, 0.5, 0.65, 0.8, 0.9, 1.0])
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--places", nargs="+", choices=PLACES, default=list(PLACES))
    parser.add_argument("--coarse-s", type=float, default=0.3, help="a pass over every share")
    parser.add_argument("--fine-s", type=float, default=3.0, help="a pass of none against the best")
    parser.add_argument("--passes", type=int, default=5, help="fine ones of each")
    parser.add_argument("--limit-s", type=float, default=195.0, help="no round of fine passes ends later")
    given = parser.parse_args()
    begun = time.perf_counter()
    keep_freed_blocks()  # as in every process that measures
    device = torch.device("cuda", 0)
    engines = jpeg_engines(device)
    print(f"{torch.cuda.get_device_name()}: {engines} JPEG engines (None: unknown), {cores_allowed()} cores")
    names = [*given.sizes, *([PHOTOGRAPHS] if given.photographs else [])]
    coarse, pixels, fine = [], [], []

    def write() -> None:
        about = {"engines": engines, "cores": cores_allowed(), "seconds": time.perf_counter() - begun}
        found = {"coarse": coarse, "fine": fine, "pixels": pixels, "environment": environment(device)}
        given.result.write_text(json.dumps(about | found, indent=1) + "\n")

    with tempfile.TemporaryDirectory() as folder:
        data = {name: photographs(given.photographs) if name == PHOTOGRAPHS else made(name) for name in names}
        manifests = {name: manifest_of(name, files, Path(folder) / str(name)) for name, files in data.items()}
        for name, files in data.items():
            mean = sum(map(len, files)) / len(files)
            print(f"{name}: {len(files)} files, {mean / 1e3:.1f} kB each in the mean")
            for place, size in itertools.product(given.places, given.batch_sizes):
                rates = {}
                for share in given.shares:
                    work = PLACES[place](manifests[name], files, size, share)
                    rates[share] = work.run(given.coarse_s)
                    work.close()
                coarse.append({"images": name, "place": place, "batch_size": size, "images_per_s": rates})
                shown = "  ".join(f"{share:g}: {rate:,.0f}" for share, rate in rates.items())
                print(f"  {place}, batch {size}: {shown}", flush=True)
            for share in sorted({min(given.shares), max(given.shares)}):
                pixels.append({"images": name, "share": share, **differences(files, share)})
                print(f"  pixels at {share:g}: {pixels[-1]}", flush=True)
            write()
        works = {}
        for row in coarse if given.passes else ():
            if row["batch_size"] == max(given.batch_sizes):
                rates = row["images_per_s"]
                best = max((share for share in rates if share), key=rates.get, default=0.0)
                for share in sorted({0.0, best}):
                    key = (row["images"], row["place"], share)
                    work = PLACES[row["place"]](manifests[key[0]], data[key[0]], row["batch_size"], share)
                    works[key] = (work, [])
        for number in range(given.passes):
            needed = len(works) * given.fine_s * 1.1
            if time.perf_counter() - begun + needed > given.limit_s:
                print(f"stopped after {number} of {given.passes} rounds: --limit-s {given.limit_s:g}")
                break
            for work, rates in works.values():
                rates.append(work.run(given.fine_s))
        for (name, place, share), (work, rates) in works.items():
            work.close()
            if rates:
                spread = {"n": len(rates), "median": statistics.median(rates), "all": rates}
                fine.append({"images": name, "place": place, "share": share, "images_per_s": spread})
                ends = f"{min(rates):,.0f} to {max(rates):,.0f}"
                print(f"{name} {place} {share:g}: {spread['median']:,.0f} ({ends}, n = {len(rates)})")
    write()
    print(f"{time.perf_counter() - begun:.0f} s in all")


if __name__ == "__main__":
    main()

"""Random crops on the GPU, by a bare script and by ours: python tests/bench/bare_crops.py FOLDER

FOLDER: JPEGs, also in folders below it. A pass reads batches of 256 files from the page cache, decodes them
on the GPU, cuts a window out of each image, resizes it to 224 x 224 and flips it or not, over and over for
`--seconds` (3). torchvision and nvImageCodec (default backends, and the JPEG engine alone) in three ways:

bare: as a user writes it: the library's call for a list, torchvision's resized_crop for each image, a stack.
call: the library's call, then `resample`. ours: the registered decoder, then `resample`, as loaders do it.

Windows are the recipe's, made beforehand. Files that a library refuses are left out of its passes. First
`call` is compared with `bare`, which rounds once where we round twice: no value may differ by more than 1.
Passes take turns in one process, after a round that does not count. Prints a line of JSON for each contestant
and at last the ratios of the medians to `bare`; 0.85 is wanted.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from PIL import Image
from torchvision.io import decode_jpeg, read_file
from torchvision.transforms.v2 import functional

from gpufeed.augment.random_resized_crop import RandomResizedCrop, Window, Windows
from gpufeed.augment.resample import require_resample, resample
from gpufeed.core.errors import Skip, import_or_skip
from gpufeed.core.registry import load
from gpufeed.decoders.nvimgcodec_cpu import NEEDS
from gpufeed.system.environment import cores_allowed, environment

CUDA, BATCH, SIZE, ROUNDS, WANTED = torch.device("cuda", 0), 256, 224, 7, 0.85
Decode = Callable[[list[Path]], list[torch.Tensor]]  # to (3, H, W) each
Work = Callable[["Batch"], torch.Tensor]  # to (N, SIZE, SIZE, 3)


@dataclass(frozen=True)
class Batch:
    """Some of the files, with their windows as tensors on the host and one by one."""

    paths: list[Path]
    windows: Windows
    each: list[Window]


def batches_of(paths: list[Path]) -> list[Batch]:
    """All files in order, the last batch smaller if need be."""
    found = []
    for first in range(0, len(paths), BATCH):
        part = paths[first : first + BATCH]
        sides = torch.tensor([Image.open(path).size for path in part])  # width, height
        ids = torch.arange(first, first + len(part))
        windows = RandomResizedCrop(SIZE, seed=1).windows(ids, 0, sides[:, 1], sides[:, 0])
        found.append(Batch(part, windows, list(windows)))
    return found


def by_torchvision(paths: list[Path]) -> list[torch.Tensor]:
    encoded = [read_file(str(path)) for path in paths]
    wait()
    return decode_jpeg(encoded, mode="RGB", device=CUDA)


def by_nvimgcodec(library, codec, paths: list[Path]) -> list[torch.Tensor]:
    params = library.DecodeParams(apply_exif_orientation=False, sample_format=library.I_RGB)
    streams = [library.CodeStream(path.read_bytes()) for path in paths]
    stream = wait().cuda_stream
    images = codec.decode(streams, params=params, cuda_stream=stream)
    if any(image is None for image in images):
        raise RuntimeError("a file was refused")
    return [torch.from_dlpack(image).permute(2, 0, 1) for image in images]


def wait() -> torch.cuda.Stream:
    """The current stream, of which all is done: libraries write to freed memory that kernels still read."""
    stream = torch.cuda.current_stream(CUDA)
    stream.synchronize()
    return stream


def libraries() -> dict[str, tuple[str, Decode]]:
    """The registered decoder and the bare call of each, by name; prints a sentence for what is missing."""
    found = {"torchvision_cuda": ("torchvision_cuda", by_torchvision)}
    try:
        library = import_or_skip("nvimgcodec", "nvidia.nvimgcodec", NEEDS["nvidia.nvimgcodec"])
    except Skip as skip:
        print(json.dumps({"cannot": str(skip)}))
        return found
    kinds = {"nvimgcodec": None, "nvimgcodec_engine": [library.Backend(library.HW_GPU_ONLY)]}
    for name, backends in kinds.items():
        codec = library.Decoder(device_id=CUDA.index, max_num_cpu_threads=cores_allowed(), backends=backends)
        found[name] = ("nvimgcodec", partial(by_nvimgcodec, library, codec))
    return found


def bare(decode: Decode, batch: Batch) -> torch.Tensor:
    samples = []
    for image, w in zip(decode(batch.paths), batch.each, strict=True):
        box = w.top, w.left, w.height, w.width
        sample = functional.resized_crop(image, *box, [SIZE, SIZE], antialias=True)
        samples.append(functional.horizontal_flip(sample) if w.flip else sample)
    return torch.stack(samples).permute(0, 2, 3, 1)


def call(decode: Decode, batch: Batch) -> torch.Tensor:
    return resample([image.permute(1, 2, 0) for image in decode(batch.paths)], batch.windows, SIZE)


def ours(decoder, batch: Batch) -> torch.Tensor:
    decoded = decoder.decode_to([path.read_bytes() for path in batch.paths], CUDA)
    return resample(decoded.images, batch.windows, SIZE)


def taken(decode: Decode, paths: list[Path]) -> list[Path]:
    """The files that the library decodes."""
    found = []
    for path in paths:
        try:
            decode([path])
        except RuntimeError:
            continue
        found.append(path)
    return found


def images_per_s(work: Work, batches: list[Batch], seconds: float) -> float:
    """Of as many whole batches as take so long."""
    torch.cuda.synchronize()
    done, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        for batch in batches:
            work(batch)
            done += len(batch.paths)
    torch.cuda.synchronize()
    return done / (time.perf_counter() - start)


def check(decode: Decode, batches: list[Batch]) -> None:
    """Raise RuntimeError unless `call` gives what `bare` does, within a step."""
    for batch in batches:
        found, want = call(decode, batch).to(torch.int16), bare(decode, batch)
        if (most := int((found - want).abs().max())) > 1:
            raise RuntimeError(f"values differ by {most}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=3.0, help="least length of a pass")
    given = parser.parse_args()
    require_resample(CUDA)
    paths = sorted(path for path in given.folder.rglob("*") if path.suffix.lower() in (".jpeg", ".jpg"))
    works: list[tuple[str, str, Work, list[Batch]]] = []
    for name, (registered, decode) in libraries().items():
        batches = batches_of(taken(decode, paths))
        if not batches:
            print(json.dumps({"cannot": f"{name} decodes none of the {len(paths)} files"}))
            continue
        check(decode, batches)
        ways = {"bare": partial(bare, decode), "call": partial(call, decode)}
        ways["ours"] = partial(ours, load("decoder", registered)(cores_allowed()))
        works += [(name, way, work, batches) for way, work in ways.items()]
    rates: dict[tuple[str, str], list[float]] = {(name, way): [] for name, way, *_ in works}
    for number in range(ROUNDS + 1):
        for name, way, work, batches in works:
            found = images_per_s(work, batches, given.seconds)
            if number:
                rates[name, way].append(found)
    for name, way, _, batches in works:
        values = rates[name, way]
        line = {"library": name, "way": way, "n": len(values), "median": round(statistics.median(values))}
        files = sum(len(batch.paths) for batch in batches)
        print(json.dumps(line | {"min": round(min(values)), "max": round(max(values)), "files": files}))
    medians = {key: statistics.median(values) for key, values in rates.items()}
    ratios = {
        f"{name} {way}": round(median / medians[name, "bare"], 3)
        for (name, way), median in medians.items()
        if way != "bare"
    }
    print(json.dumps({"ratios": ratios, "wanted": WANTED, "environment": environment(CUDA)}))


if __name__ == "__main__":
    main()

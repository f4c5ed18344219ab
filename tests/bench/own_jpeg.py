"""Whether our own JPEG decoder earns its place: python tests/bench/own_jpeg.py SOURCE RESULT.json

SOURCE: the zip of tiny_imagenet_40 or a folder of JPEGs. All training files (all files, if none is called
so) are decoded by the extension's decode_jpegs, and joined to strips by nvImageCodec and by torchvision, in
one process and by turns. First the pixels: equal to the CPU form's and to Pillow's, in pieces as in one call,
and within torchvision's tolerance of its own.

A pass is all images; its bytes are in the page cache at its start (a mapped file) and its images on the
device at its end. own: the bytes go through pinned memory, the next batch while the last is decoded.
own_pieces: the same by PieceDecoder, each batch in pieces; own_pieces_4, own_pieces_8: in so many at most,
the largest batch. own_pinned: they are in pinned memory already. own_kernels: they are on the device, on its
own clock. own_by_contract: the registered decoder, whole files taken apart each time. Strips: as the loader
decodes them, without its bookkeeping, by the engines. Prints a table of
images a second and of the kernels' shares of one call for all, then one line of JSON, which RESULT gets too.
"""

import argparse
import json
import re
import statistics
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from gpufeed import native
from gpufeed.core.errors import Skip
from gpufeed.core.registry import load
from gpufeed.decoders.jpeg_groups import Group, coding_of, grouped, joined
from gpufeed.decoders.jpeg_parser import Jpeg
from gpufeed.decoders.pillow import PillowDecoder, rgb
from gpufeed.decoders.strip_joiner import join
from gpufeed.native.jpeg_op import Coding, decode_jpegs
from gpufeed.native.jpeg_pieces import PIECES, PieceDecoder
from gpufeed.stores.strip_backends import backend_class
from gpufeed.stores.strips_build import IMAGES_PER_STRIP
from gpufeed.stores.strips_store import Strip
from gpufeed.system.environment import cores_allowed, environment
from gpufeed.system.timing import Mark, synchronise

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")
WARM_UPS, BATCH_SIZES, WANTED = 2, (256, 1024, 4096, 20_000), 3.0
STAGES = 3  # pinned buffers: one is filled, one copied, one decoded from
OTHER_PIECES = (4, 8)  # beside PIECES, for the largest batch
CHECKED_A_CALL, CONTRACT_BATCH = 1024, 4096


def read_source(source: Path) -> list[bytes]:
    """The JPEGs of a zip or of a folder and those below it; those of the training split if it has one."""
    if source.is_dir():
        paths = sorted(path for path in source.rglob("*") if path.suffix.lower() in (".jpeg", ".jpg"))
        return [path.read_bytes() for path in those_to_train([str(path) for path in paths], paths)]
    with zipfile.ZipFile(source) as archive:
        names = [name for name in archive.namelist() if name.lower().endswith((".jpeg", ".jpg"))]
        return [archive.read(name) for name in those_to_train(names, names)]


def those_to_train(names: list[str], items: list) -> list:
    train = [item for name, item in zip(names, items, strict=True) if "/train/" in name]
    return train or items


@dataclass(frozen=True)
class Batch:
    """A stretch of one group: images first to last of it. data: mapped bytes; offsets: from their start."""

    group: Group
    coding: Coding
    data: torch.Tensor
    offsets: torch.Tensor

    @property
    def count(self) -> int:
        return len(self.offsets) - 1


def batches_of(groups: list[Group], folder: Path, batch_size: int) -> list[Batch]:
    """All images in calls of at most batch_size, one kind a call; bytes in a mapped file of the folder."""
    found = []
    for number, group in enumerate(groups):
        data, offsets = joined(group.coded)
        path = folder / f"coded-{batch_size}-{number}.bin"
        data.numpy().tofile(path)
        mapped = torch.from_numpy(np.memmap(path, np.uint8, mode="c"))
        for first in range(0, len(group.coded), batch_size):
            part = offsets[first : first + batch_size + 1]
            start, end = int(part[0]), int(part[-1])
            coding = coding_of(group.kind, CUDA)
            found.append(Batch(group, coding, mapped[start:end], (part - start).pin_memory()))
    return found


class Own:
    """Passes of our decoder over batches."""

    def __init__(self, batches: list[Batch]):
        self.batches = batches
        self.images = sum(batch.count for batch in batches)
        most = max(batch.data.numel() for batch in batches)
        self.stages = [torch.empty(most, dtype=torch.uint8).pin_memory() for _ in range(STAGES)]
        self.free = [torch.cuda.Event() for _ in range(STAGES)]
        self.pinned = [batch.data.clone().pin_memory() for batch in batches]
        self.resident = [(batch.data.to(CUDA), batch.offsets.to(CUDA)) for batch in batches]
        self.decoders = {pieces: PieceDecoder(CUDA, pieces) for pieces in (PIECES, *OTHER_PIECES)}

    def whole(self) -> None:
        """From the page cache to images on the device."""
        faults = []
        for number, batch in enumerate(self.batches):
            place = number % STAGES
            self.free[place].synchronize()  # its last copy is done
            stage = self.stages[place][: batch.data.numel()]
            stage.copy_(batch.data)
            faults.append(self._decode(stage, batch))
            self.free[place].record()
        check(faults)

    def in_pieces(self, pieces: int = PIECES) -> None:
        """From the page cache to images on the device, each batch in pieces."""
        decode = self.decoders[pieces].decode
        check([decode(b.data, b.offsets[:-1], b.offsets[1:], b.coding)[1] for b in self.batches])

    def from_pinned(self) -> None:
        check([self._decode(data, batch) for data, batch in zip(self.pinned, self.batches, strict=True)])

    def _decode(self, data: torch.Tensor, batch: Batch) -> torch.Tensor:
        on_device = data.to(CUDA, non_blocking=True)
        offsets = batch.offsets.to(CUDA, non_blocking=True)
        return decode_jpegs(on_device, offsets, batch.coding)[1]

    def kernels(self, fancy: bool = True) -> float:
        """Seconds on the device's clock for bytes that lie there already."""
        start = Mark(CUDA)
        for (data, offsets), batch in zip(self.resident, self.batches, strict=True):
            decode_jpegs(data, offsets, batch.coding, fancy)
        end = Mark(CUDA)
        synchronise(CUDA)
        return start.ms_until(end) / 1e3


def check(faults: list[torch.Tensor]) -> None:
    """Waits for the device; a fault here would make the times those of something else."""
    if torch.cat(faults).any().item():
        raise RuntimeError("a file of the bench could not be decoded")


class Strips:
    """Passes of a backend over strips of the same files, in the same batches."""

    def __init__(self, name: str, groups: list[Group], batch_size: int, folder: Path):
        self.backend = backend_class(name)(CUDA, cores_allowed())
        strips, parts, at = [], [], 0
        for group in groups:
            kind = group.kind
            for first in range(0, len(group.coded), IMAGES_PER_STRIP):
                coded = group.coded[first : first + IMAGES_PER_STRIP]
                data = join([Jpeg(kind, each) for each in coded])
                ids, channels = np.array(group.places[first : first + IMAGES_PER_STRIP]), len(kind.components)
                strips.append(
                    Strip(at, len(data), "train", kind.height, kind.width, channels, kind.sampling, ids)
                )
                parts.append(data)
                at += len(data)
        path = folder / f"strips-{name}-{batch_size}.bin"
        path.write_bytes(b"".join(parts))
        mapped = np.memmap(path, np.uint8, mode="c")
        a_call = max(1, batch_size // IMAGES_PER_STRIP)
        self.calls = []
        for first in range(0, len(strips), a_call):
            chosen = strips[first : first + a_call]
            self.calls.append(([mapped[s.offset : s.offset + s.length] for s in chosen], chosen))
        self.size = (groups[0].kind.height, groups[0].kind.width, 3)
        self.images = sum(len(strip.ids) for strip in strips)

    def whole(self) -> None:
        for encoded, strips in self.calls:
            count = sum(len(strip.ids) for strip in strips)
            out = torch.empty((count, *self.size), dtype=torch.uint8, device=CUDA)
            if refused := self.backend.decode_into(encoded, strips, out):
                raise RuntimeError(f"{self.backend.version()} refused {len(refused)} strips")
        synchronise(CUDA)


def rate(images: int, work: Callable[[], float | None]) -> float:
    """Images a second: of the seconds that `work` gives back, or else that it takes."""
    synchronise(CUDA)
    start = time.perf_counter()
    seconds = work()
    synchronise(CUDA)
    return images / (seconds or time.perf_counter() - start)


def pixels(files: list[bytes], groups: list[Group], every: int) -> dict:
    """How many images differ from the CPU form's, Pillow's, and torchvision's by more than its tolerance.

    Of every so many calls of CHECKED_A_CALL images one is looked at; in pieces against one call, all images.
    """
    found = Counter(images=0, unequal_to_cpu_form=0, unequal_to_pillow=0, beyond_torchvision=0, faults=0)
    nvjpeg, pieces = load("decoder", "torchvision_cuda")(), PieceDecoder(CUDA)
    for group in groups:
        data, offsets = joined(group.coded)
        coding = coding_of(group.kind, CUDA)
        whole, _ = decode_jpegs(data.to(CUDA), offsets.to(CUDA), coding)
        cut, faults = pieces.decode(data, offsets[:-1], offsets[1:], coding)
        found["unequal_in_pieces"] += int((whole != cut).flatten(1).any(1).sum())
        found["faults"] += int((faults > 0).sum())
        for first in range(0, len(group.coded), CHECKED_A_CALL * every):
            part = slice(first, first + CHECKED_A_CALL)
            data, offsets = joined(group.coded[part])
            sent = [tensor.to(CUDA) for tensor in (data, offsets)]
            for fancy in (True, False):
                right, faults = decode_jpegs(data, offsets, coding_of(group.kind, CPU), fancy)
                images, found_faults = decode_jpegs(*sent, coding_of(group.kind, CUDA), fancy)
                images = images.cpu()
                found["faults"] += int((found_faults.cpu() > 0).sum() + (faults > 0).sum())
                found["unequal_to_cpu_form"] += int((images != right).flatten(1).any(1).sum())
                if not fancy:
                    continue
                encoded = [files[place] for place in group.places[part]]
                others = nvjpeg.decode(encoded).images
                for image, data_of, other in zip(images.numpy(), encoded, others, strict=True):
                    found["images"] += 1
                    found["unequal_to_pillow"] += not np.array_equal(image, rgb(data_of))
                    found["beyond_torchvision"] += nvjpeg.tolerance.exceeded(image, other) is not None
    return dict(found)


def kernel_times(own: Own) -> dict[str, float] | str:
    """Microseconds of each kernel in one pass; the reason where the profiler cannot say."""
    try:
        with torch.profiler.profile() as profile:
            own.kernels()
        found = Counter()
        for event in profile.key_averages():
            kernel = re.search(r"(\w+)_kernel", event.key)
            found[kernel[1] if kernel else event.key] += event.self_device_time_total
        return {name: us for name, us in found.most_common() if us}
    except (RuntimeError, AttributeError, AssertionError) as error:
        return str(error)


def contestants(
    groups: list[Group], sizes: list[int], folder: Path
) -> Iterator[tuple[str, int, int, Callable[[], float | None]]]:
    """(name, batch size, images, a pass), and in place of the pass the sentence of who cannot run here."""
    for size in sizes:
        own = Own(batches_of(groups, folder, size))
        yield "own", size, own.images, own.whole
        yield "own_pieces", size, own.images, own.in_pieces
        for pieces in OTHER_PIECES if size == sizes[-1] else ():
            yield f"own_pieces_{pieces}", size, own.images, lambda own=own, n=pieces: own.in_pieces(n)
        yield "own_pinned", size, own.images, own.from_pinned
        yield "own_kernels", size, own.images, own.kernels
        yield "own_kernels_plain", size, own.images, lambda own=own: own.kernels(fancy=False)
    for name in ("nvimgcodec", "torchvision_cuda"):
        for size in sizes:
            try:
                strips = Strips(name, groups, size, folder)
                strips.whole()
            except (Skip, RuntimeError) as error:
                yield f"strips_{name}", size, 0, lambda said=str(error): said
                continue
            yield f"strips_{name}", size, strips.images, strips.whole


def contract(files: list[bytes]) -> tuple[int, Callable[[], None]]:
    """(images, a pass) of the registered decoder, which is given whole files as Python's bytes."""
    decoder, size = load("decoder", "cuda_jpeg")(cores_allowed()), CONTRACT_BATCH
    first = PillowDecoder().decode(files[:1]).images[0]
    out = torch.empty((size, *first.shape), dtype=torch.uint8, device=CUDA)
    parts = [files[first : first + size] for first in range(0, len(files), size)]

    def run() -> None:
        for part in parts:
            decoder.decode_into(part, out[: len(part)])

    return len(files), run


def summary(values: list[float]) -> dict[str, float]:
    return {
        "n": len(values),
        "median": round(statistics.median(values)),
        "min": round(min(values)),
        "max": round(max(values)),
    }


def best(results: dict, *names: str) -> dict | None:
    """The batch size with the highest median among the named; None if none of them ran."""
    found = [
        {"name": name, "batch_size": size, **value}
        for name in names
        for size, value in results.get(name, {}).items()
        if "median" in value
    ]
    return max(found, key=lambda each: each["median"]) if found else None


def measure(files: list[bytes], groups: list[Group], repeats: int, folder: Path) -> dict:
    """Images a second, by name and batch size; a sentence where somebody cannot run."""
    total = sum(len(group.coded) for group in groups)
    sizes = sorted({min(size, total) for size in BATCH_SIZES})
    works, results = [], {}
    for name, size, images, work in contestants(groups, sizes, folder):
        if images:
            works.append((name, size, images, work, []))
        else:
            results.setdefault(name, {})[size] = {"cannot": work()}
    works.append(("own_by_contract", CONTRACT_BATCH, *contract(files), []))
    for number in range(WARM_UPS + repeats):
        for _, _, images, work, rates in works:
            found = rate(images, work)
            if number >= WARM_UPS:
                rates.append(found)
    for name, size, _, _, rates in works:
        results.setdefault(name, {})[size] = summary(rates)
    return results


def table(found: dict) -> str:
    """Medians in images a second, a row a contestant, and the kernels' shares, as text."""
    rates = found["images_per_s"]
    sizes = sorted({size for by_size in rates.values() for size in by_size})
    lines = ["images/s by batch".ljust(24) + "".join(f"{size:>12,}" for size in sizes)]
    for name, by_size in rates.items():
        medians = [by_size.get(size, {}).get("median") for size in sizes]
        lines.append(name.ljust(24) + "".join(f"{m:>12,}" if m else f"{'-':>12}" for m in medians))
    kernels = found["kernels_us"]
    if isinstance(kernels, str):
        return "\n".join([*lines, "", f"kernels: {kernels}"])
    total = sum(kernels.values())
    lines += ["", "kernel".ljust(24) + f"{'us':>12}{'share':>12}"]
    lines += [f"{name[:23].ljust(24)}{us:>12,.0f}{us / total:>12.1%}" for name, us in kernels.items()]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("result", type=Path)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--every", type=int, default=1, help="compare pixels in one of so many calls")
    given = parser.parse_args()
    if sentence := native.status(CUDA).sentence:
        raise SystemExit(sentence)
    files = read_source(given.source)
    groups = grouped(files)
    sizes = {(group.kind.height, group.kind.width) for group in groups}
    if len(sizes) != 1:
        raise SystemExit(f"found images of {len(sizes)} sizes; expected one; give files of one size")
    found = {
        "files": len(files),
        "in_groups": {group.kind.sampling: len(group.coded) for group in groups},
        "file_bytes": sum(map(len, files)),
        "coded_bytes": sum(len(coded) for group in groups for coded in group.coded),
        "pixels": pixels(files, groups, given.every),
    }
    with tempfile.TemporaryDirectory() as folder:
        found["images_per_s"] = measure(files, groups, given.repeats, Path(folder))
        total = sum(len(group.coded) for group in groups)
        found["kernels_us"] = kernel_times(Own(batches_of(groups, Path(folder), total)))
    own = best(found["images_per_s"], "own", "own_pieces")
    strips = best(found["images_per_s"], "strips_nvimgcodec", "strips_torchvision_cuda")
    ratio = own["median"] / strips["median"] if own and strips else None
    found |= {
        "best_own": own,
        "best_strips": strips,
        "ratio": ratio,
        "wins_by_3": ratio is not None and ratio >= WANTED,
        "environment": environment(CUDA),
    }
    given.result.write_text(json.dumps(found, indent=2) + "\n")
    print(table(found))
    print(json.dumps(found))


if __name__ == "__main__":
    main()

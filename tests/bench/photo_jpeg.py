"""JPEGs of mixed sizes from the page cache to RGB on the GPU, and how fast: photo_jpeg.py FOLDER OUT.json

FOLDER: JPEGs, also in folders below it; --copies of each are made first, so that no CPU cache holds them. A
pass reads batches from the page cache and decodes them whole to uint8 RGB, over and over for --seconds. Each
contestant has a process of its own; they take turns, after a round that does not count. At each batch size:

ours: BatchDecoder in --streams threads, which read too. ours_kernels: its calls alone on the device's clock,
coded bytes resident there, behind a delay, so that the host is ahead. dali: its file reader and `mixed`
decoder at three shares for the JPEG engines, room made as in NVIDIA's example. torchvision: decode_jpeg of
lists in --rival-threads threads, which read too. nvimgcodec: Decoder.read of a list of paths, by its default
backends and by the engines alone, two threads with a decoder each. simplejpeg: a process a core, which reads
and decodes to the host's memory alone. Rivals keep their fastest upsampling; ours is libjpeg-turbo's.

Beside images/s stand CPU time an image, all threads together, and the share of files that a contestant did
not decode (`left_to_others`). --roofline: how many images/s the device's copy rate and its integer units
would allow, and our kernels' share. A library that is not there is skipped with a sentence. `--device cpu`
runs all of it without a GPU, as a test.

--crops SIZE: to random crops of SIZE x SIZE. ours decodes what windows need; `whole` decodes whole images and
then cuts windows out, and both have a form with `_kernels`. DALI decodes by `image_random_crop`. The ratio of
ours to whole is written, too.
"""

import argparse
import itertools
import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pynvml
import torch
from by_turns import Contestant, Pass, Result, best, measured

from gpufeed import native
from gpufeed.augment.random_resized_crop import RandomResizedCrop, Windows
from gpufeed.augment.resample import prepare, resample
from gpufeed.core.errors import Skip, import_or_skip
from gpufeed.decoders.dali_gpu import DEVICE_BYTES, HOST_BYTES
from gpufeed.decoders.encoded_file import read_file, read_header
from gpufeed.decoders.jpeg_batch import BatchDecoder
from gpufeed.decoders.jpeg_parser import Refused, parse
from gpufeed.decoders.nvimgcodec_cpu import NEEDS
from gpufeed.decoders.ragged import Ragged
from gpufeed.loaders.cuda_jpeg import on_host
from gpufeed.native.file_buffer import FileBuffer
from gpufeed.native.jpeg_op import decode_files
from gpufeed.system.devices import nvml_handle
from gpufeed.system.environment import cores_allowed, environment
from gpufeed.system.host_memory import keep_freed_blocks
from gpufeed.system.nvml import ask, session
from gpufeed.system.page_cache import read_in
from gpufeed.system.timing import synchronise

LOADS = (0.0, 0.65, 0.9)  # DALI's share of the files for the JPEG engines
RESIDENT = 8  # batches of `ours_kernels`
DELAY_CYCLES = 30_000_000  # about 16 ms: longer than the host needs to queue RESIDENT calls
KINDS = (".jpg", ".jpeg")
# Operations on whole numbers, at least: a code of the entropy decoder, an inverse DCT of 64 coefficients with
# dequantisation, upsampling and colour of a pixel; bits of a code in the mean, of photographs.
CODE_OPERATIONS, BLOCK_OPERATIONS, PIXEL_OPERATIONS, CODE_BITS = 30, 1100, 20, 5.5
LANES = 64  # of a multiprocessor for whole numbers


class Batches:
    """Batches of files without end, for several threads."""

    def __init__(self, paths: list, size: int):
        endless = itertools.cycle(paths)
        self.next: Iterator[list] = iter(lambda: list(itertools.islice(endless, size)), None)
        self.lock, self.size = threading.Lock(), size

    def take(self) -> list:
        with self.lock:
            return next(self.next)


def rate(
    works: list[Callable[[list], None]], batches: Batches, device: torch.device, seconds: float
) -> Result:
    """Images/s of workers in a thread each that take one batch after the other until the seconds are over."""
    begin, cpu = time.perf_counter(), time.process_time()

    def loop(work: Callable) -> int:
        count = 0
        while time.perf_counter() - begin < seconds:
            work(batches.take())
            count += batches.size
        return count

    with ThreadPoolExecutor(len(works)) as pool:
        images = sum(pool.map(loop, works))
    synchronise(device)
    took, cpu = time.perf_counter() - begin, time.process_time() - cpu
    return {"images_per_s": images / took, "cpu_us_per_image": cpu / images * 1e6}


def counting(refused: list[int], works: list, batches: Batches, device: torch.device) -> Pass:
    """`rate` with the share of files that workers did not decode: each appends their number in a batch."""

    def one(seconds: float) -> Result:
        refused.clear()
        found = rate(works, batches, device, seconds)
        return found | {"left_to_others": sum(refused) / (len(refused) * batches.size)}

    return one


def streams(device: torch.device, count: int) -> list:
    """Makers of contexts in which a thread has a stream of its own."""
    if device.type != "cuda":
        return [nullcontext] * count
    return [partial(torch.cuda.stream, torch.cuda.Stream(device)) for _ in range(count)]


def device_of(given: argparse.Namespace) -> torch.device:
    return torch.device("cuda", 0) if given.device == "cuda" else torch.device("cpu")


def extension(device: torch.device) -> None:
    if sentence := native.status(device).sentence:
        raise Skip(sentence)


def windows_of(given: argparse.Namespace, paths: list[str]) -> Callable[[list[int]], Windows | None]:
    """What makes the windows of the files of a batch; None for whole images."""
    if given.crops is None:
        return lambda batch: None
    prepare(device_of(given), given.crops)
    headers = (read_header(read_file(path)) for path in paths)
    sides = torch.tensor([(header.height, header.width) for header in headers])
    recipe = RandomResizedCrop(given.crops, seed=1)
    return lambda batch: recipe.windows_by_extension(torch.tensor(batch), 0, *sides[batch].unbind(1))


def cut(images: Ragged, windows: Windows, size: int) -> None:
    """Resize the windows of the images that were decoded; of a file that is not taken there is none."""
    taken = images.heights.nonzero()[:, 0]
    if len(taken) < len(images):
        images, windows = images.select(taken), windows.select(taken.numpy())
    if len(taken):
        resample(images, windows, size)


def ours(
    stack: ExitStack, given: argparse.Namespace, paths: list[str], size: int, whole: bool = False
) -> Pass:
    device, faults, names = device_of(given), [], [os.fsencode(path) for path in paths]
    extension(device)
    made = windows_of(given, paths)

    def worker(stream: Callable) -> Callable[[list[int]], None]:
        buffer, decoder = FileBuffer(given.readers, device.type == "cuda"), BatchDecoder(device)

        def work(batch: list[int]) -> None:
            with stream():
                windows = made(batch)
                needed = None if windows is None or whole else windows.needed(given.crops)
                read = buffer.read([names[i] for i in batch])
                images, fault = decoder.decode_buffer(*read, needed)
                faults.append(int(on_host(fault).count_nonzero()))
                if windows is not None:
                    cut(images, windows, given.crops)
                del images

        return work

    works = [worker(stream) for stream in streams(device, given.streams)]
    return counting(faults, works, Batches(list(range(len(paths))), size), device)


def resident(paths: list[str], size: int, device: torch.device) -> list[tuple[torch.Tensor, ...]]:
    """Batches as `decode_files` takes them: bytes on the device, the same on the host, offsets."""
    buffer, batches, found = FileBuffer(), Batches([os.fsencode(path) for path in paths], size), []
    for _ in range(min(RESIDENT, -(-len(paths) // size))):
        data, offsets = buffer.read(batches.take())
        host = data.clone()
        found.append((host.to(device), host, offsets))
    return found


def ours_kernels(
    stack: ExitStack, given: argparse.Namespace, paths: list[str], size: int, whole: bool = False
) -> Pass:
    device = device_of(given)
    extension(device)
    batches, made = resident(paths, size, device), windows_of(given, paths)
    windows = [made([i % len(paths) for i in range(n * size, (n + 1) * size)]) for n in range(len(batches))]
    needed = [None if own is None or whole else own.needed(given.crops) for own in windows]

    def queue() -> None:
        for batch, own, part in zip(batches, windows, needed, strict=True):
            flat, _, places = decode_files(*batch, windows=part)
            if own is not None:
                cut(Ragged(flat, *places[:3], whole=None if whole else places[3:]), own, given.crops)

    def one(seconds: float) -> Result:
        took_ms, images = 0.0, 0
        while took_ms < 1000 * seconds:
            ms, host_ms = timed_ms(device, queue)
            took_ms, images = took_ms + ms, images + size * len(batches)
        return {"images_per_s": 1000 * images / took_ms, "host_ms_per_call": host_ms / len(batches)}

    return one


def timed_ms(device: torch.device, queue: Callable[[], None]) -> tuple[float, float]:
    """How long the device needs for what is queued, and the host to queue it: the same on a CPU."""
    if device.type == "cuda":
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(DELAY_CYCLES)
        start.record()
    begin = time.perf_counter()
    queue()
    host_ms = 1000 * (time.perf_counter() - begin)
    if device.type != "cuda":
        return host_ms, host_ms
    end.record()
    end.synchronize()
    return start.elapsed_time(end), host_ms


def dali(stack: ExitStack, given: argparse.Namespace, paths: list[str], size: int, load: float) -> Pass:
    import_or_skip("dali", "nvidia.dali", "nvidia-dali-cuda120 or nvidia-dali-cuda130")
    from nvidia.dali import fn, types
    from nvidia.dali.pipeline import Pipeline

    device, options = device_of(given), {"device": "cpu"}
    if device.type == "cuda":
        headers = [header for path in paths if (header := read_header(read_file(path)))]
        options = {
            "device": "mixed",
            "hw_decoder_load": load,
            "device_memory_padding": DEVICE_BYTES[1],
            "host_memory_padding": HOST_BYTES[1],
            "preallocate_width_hint": max(header.width for header in headers),
            "preallocate_height_hint": max(header.height for header in headers),
        }
    pipeline = Pipeline(size, given.cores, 0 if device.type == "cuda" else None, prefetch_queue_depth=2)
    with pipeline:
        files, _ = fn.readers.file(files=paths, dont_use_mmap=True, name="reader")
        if given.crops is None:
            images = fn.decoders.image(files, output_type=types.RGB, **options)
        else:
            options |= {"random_area": [0.08, 1.0], "random_aspect_ratio": [3 / 4, 4 / 3]}
            images = fn.decoders.image_random_crop(files, output_type=types.RGB, **options)
            triangle = {"interp_type": types.INTERP_TRIANGULAR, "antialias": True}
            images = fn.resize(images, size=[given.crops] * 2, **triangle)
            images = fn.flip(images, horizontal=fn.random.coin_flip())
        pipeline.set_outputs(images)
    pipeline.build()
    return partial(rate, [lambda _: pipeline.run()], Batches([None], size), device)


def torchvision(stack: ExitStack, given: argparse.Namespace, paths: list[str], size: int) -> Pass:
    import_or_skip("torchvision", "torchvision", "torchvision")
    from torchvision.io import ImageReadMode, decode_jpeg

    device = device_of(given)
    read = partial(np.fromfile, dtype=np.uint8)

    def worker(stream: Callable) -> Callable[[list[str]], None]:
        def work(batch: list[str]) -> None:
            with stream():
                encoded = [torch.from_numpy(read(path)) for path in batch]
                images = decode_jpeg(encoded, ImageReadMode.RGB, device)
                if device.type == "cuda":
                    torch.cuda.current_stream(device).synchronize()
                del images

        return work

    works = [worker(stream) for stream in streams(device, given.rival_threads)]
    return partial(rate, works, Batches(paths, size), device)


def nvimgcodec(
    stack: ExitStack, given: argparse.Namespace, paths: list[str], size: int, engines: bool
) -> Pass:
    library = import_or_skip("nvimgcodec", "nvidia.nvimgcodec", NEEDS["nvidia.nvimgcodec"])
    device, number, backends, refused = device_of(given), 0, None, []
    if device.type != "cuda":
        number, backends = library.NVIMGCODEC_DEVICE_CPU_ONLY, [library.Backend(library.CPU_ONLY)]
    elif engines:
        backends = [library.Backend(library.HW_GPU_ONLY, load_hint=1.0)]
    params = library.DecodeParams(apply_exif_orientation=False, sample_format=library.I_RGB)

    def worker(stream: Callable) -> Callable[[list[str]], None]:
        codec = library.Decoder(device_id=number, max_num_cpu_threads=given.cores, backends=backends)

        def work(batch: list[str]) -> None:
            with stream():
                current = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
                images = codec.read(batch, params=params, cuda_stream=current)
                if device.type == "cuda":
                    torch.cuda.current_stream(device).synchronize()
                refused.append(sum(image is None for image in images))

        return work

    works = [worker(stream) for stream in streams(device, 2)]
    return counting(refused, works, Batches(paths, size), device)


def share_of_files(paths: list[str], seconds: float) -> tuple[int, float]:
    """Images and CPU seconds of one process."""
    from simplejpeg import decode_jpeg

    begin, cpu = time.perf_counter(), time.process_time()
    for count, path in enumerate(itertools.cycle(paths), start=1):
        decode_jpeg(read_file(path), "RGB")
        if time.perf_counter() - begin >= seconds:
            return count, time.process_time() - cpu


def simplejpeg(stack: ExitStack, given: argparse.Namespace, paths: list[str], size: int) -> Pass:
    import_or_skip("simplejpeg", "simplejpeg", "simplejpeg")
    workers = ProcessPoolExecutor(given.cores, get_context("spawn"), initializer=keep_freed_blocks)
    pool = stack.enter_context(workers)
    shares = [paths[part :: given.cores] or paths for part in range(given.cores)]

    def one(seconds: float) -> Result:
        begin = time.perf_counter()
        found = list(pool.map(share_of_files, shares, itertools.repeat(seconds)))
        took, images = time.perf_counter() - begin, sum(count for count, _ in found)
        return {
            "images_per_s": images / took,
            "cpu_us_per_image": sum(cpu for _, cpu in found) / images * 1e6,
        }

    return one


def roofline(paths: list[str], device: torch.device) -> dict:
    """What an image takes in the mean, and how many images/s each limit of the device allows."""
    coded, blocks, pixels, files = 0, 0, 0, 0
    for path in paths:
        data = read_file(path)
        try:
            kind = parse(data, whole_mcus=False).kind
        except Refused:
            continue
        gray, first = len(kind.components) == 1, kind.components[0]
        wide, tall = (1, 1) if gray else (first.horizontal, first.vertical)
        mcus = -(-kind.height // (8 * tall)) * -(-kind.width // (8 * wide))
        blocks += mcus * (1 if gray else wide * tall + 2)
        coded, pixels, files = coded + len(data), pixels + kind.height * kind.width, files + 1
    coded, blocks, pixels = coded / files, blocks / files, pixels / files
    # at least: in once, out once; stored: coefficients (two bytes) and samples are written and read, too
    least = coded + 3 * pixels
    stored = least + 2 * 64 * (2 + 1) * blocks
    codes = 8 * coded / CODE_BITS
    operations = CODE_OPERATIONS * codes + BLOCK_OPERATIONS * blocks + PIXEL_OPERATIONS * pixels
    bytes_per_s = copy_rate(device)
    with session():
        clock_mhz = ask(pynvml.nvmlDeviceGetMaxClockInfo, nvml_handle(device), pynvml.NVML_CLOCK_SM) or 0
    lanes = LANES * torch.cuda.get_device_properties(device).multi_processor_count
    operations_per_s = lanes * 1e6 * clock_mhz
    return {
        "files": files,
        "coded_bytes": coded,
        "pixels": pixels,
        "blocks": blocks,
        "operations": operations,
        "copy_bytes_per_s": bytes_per_s,
        "operations_per_s": operations_per_s,
        "images_per_s": {
            "bytes_at_least": bytes_per_s / least,
            "bytes_stored": bytes_per_s / stored,
            "operations": operations_per_s / operations,
        },
    }


def copy_rate(device: torch.device) -> float:
    """Bytes/s read and written by copies of 1 GiB on the device, the best of 20."""
    source = torch.empty(2**30, dtype=torch.uint8, device=device)
    target, best_ms = torch.empty_like(source), float("inf")
    for _ in range(20):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        target.copy_(source)
        end.record()
        end.synchronize()
        best_ms = min(best_ms, start.elapsed_time(end))
    return 2 * source.nbytes / best_ms * 1000


def contestants(given: argparse.Namespace, paths: list[str], size: int) -> list[Contestant]:
    own = [("ours", ours, ()), ("ours_kernels", ours_kernels, ())]
    rivals = [
        *((f"dali_{load:g}", dali, (load,)) for load in LOADS),
        ("torchvision", torchvision, ()),
        ("nvimgcodec", nvimgcodec, (False,)),
        ("nvimgcodec_engines", nvimgcodec, (True,)),
        ("simplejpeg", simplejpeg, ()),
    ]
    if given.crops:
        own += [("whole", ours, (True,)), ("whole_kernels", ours_kernels, (True,))]
        rivals = rivals[: len(LOADS)]
    chosen = own if given.ours_alone else own + rivals
    return [
        Contestant({"name": name, "batch_size": size}, make, (given, paths, size, *more))
        for name, make, more in chosen
        if given.only is None or name in given.only
    ]


def copied(folder: Path, to: Path, copies: int, most: int | None) -> list[str]:
    """Paths of so many copies of each JPEG of a folder, all of them in the page cache."""
    found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in KINDS)[:most]
    if not found:
        raise SystemExit(f"found: no JPEG in {folder}; expected: {' or '.join(KINDS)} in it or below it")
    paths = []
    for copy, (number, path) in itertools.product(range(copies), enumerate(found)):
        paths.append(str(to / f"{copy}-{number}.jpg"))
        shutil.copyfile(path, paths[-1])
    read_in(paths)
    return paths


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[256, 1024])
    parser.add_argument("--passes", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=3.0, help="of a pass, at least")
    parser.add_argument("--copies", type=int, default=4, help="of each file")
    parser.add_argument("--files", type=int, help="of the folder, at most")
    parser.add_argument("--cores", type=int, default=cores_allowed(), help="threads or processes of rivals")
    parser.add_argument("--streams", type=int, default=3, help="threads of ours")
    parser.add_argument("--readers", type=int, default=4, help="threads that read in each of them")
    parser.add_argument("--rival-threads", type=int, default=4, help="of torchvision")
    parser.add_argument("--only", nargs="+", help="names of contestants")
    parser.add_argument("--ours-alone", action="store_true")
    parser.add_argument("--crops", type=int, help="side of random crops")
    parser.add_argument("--roofline", action="store_true")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    given = parser.parse_args()
    device, rows = device_of(given), []
    native.status(device)  # builds the extension, where nobody has yet
    with tempfile.TemporaryDirectory() as folder:
        paths = copied(given.folder, Path(folder), given.copies, given.files)
        megabytes = sum(os.path.getsize(path) for path in paths) / 1e6
        for size in given.batch_sizes:
            turns = contestants(given, paths, size)
            measured(turns, given.passes, given.seconds, partial(print, flush=True))
            rows += [one.summary() for one in turns]
        about = environment(device)
        limits = None
        if given.roofline and given.crops is None and device.type == "cuda":
            limits = roofline(paths[: len(paths) // given.copies], device)
    ratios = []
    for size in given.batch_sizes:
        here = [row for row in rows if row["batch_size"] == size]
        our = best(here, "images_per_s", {"name": "ours"})
        rivals = [row for row in here if not row["name"].startswith(("ours", "whole"))]
        rival, whole = best(rivals, "images_per_s", {}), best(here, "images_per_s", {"name": "whole"})
        kernels = best(here, "images_per_s", {"name": "ours_kernels"})
        shares = (
            {name: kernels / most for name, most in limits["images_per_s"].items() if most}
            if limits and kernels
            else None
        )
        ratio = our / rival if our and rival else None
        ratios.append({"batch_size": size, "ours_over_best_rival": ratio, "kernels_share_of_limits": shares})
        if our and whole:
            ratios[-1]["ours_over_whole"] = our / whole
    settings = {name: value for name, value in vars(given).items() if name not in ("folder", "out")}
    document = {"files": len(paths), "megabytes": megabytes, "settings": settings, "rates": rows}
    document |= {"ratios": ratios, "roofline": limits, "environment": about}
    given.out.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(ratios))


if __name__ == "__main__":
    main()

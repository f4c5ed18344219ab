"""What a decoder reaches by our contract, beside its library called plainly: decode_rates.py FOLDER

FOLDER holds JPEG files of any sizes, more than a CPU cache has room for: best a prepared source with
`copies`. For each decoder, passes of --seconds alternate: `own`, the library by the call that its
documentation recommends, files in memory (DALI: its own reader, pipeline and prefetch); `bulk`, ours as the
sweep measures it, from files in the page cache to tensors on the device; `call`, a decoder's `decode_to`
alone, files in memory. The first round warms up and does not count. Prints a JSON line a decoder: images/s of
each, as median and range over the passes, and the ratio of bulk to the best own.
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import cache, partial
from io import BytesIO
from itertools import cycle
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch

from gpufeed.benchmarks.decoder_benchmark import Bench, images_of_a_pass, timed
from gpufeed.core.errors import Skip
from gpufeed.core.registry import DECODERS, load
from gpufeed.decoders.encoded_file import read_file, read_header
from gpufeed.decoders.parallel import Files, torch_threads
from gpufeed.system.devices import jpeg_engines
from gpufeed.system.environment import cores_allowed, environment
from gpufeed.system.host_memory import keep_freed_blocks
from gpufeed.system.timing import synchronise

CPU = torch.device("cpu")
NAMES = [name for name in DECODERS if name != "strips"]  # which reads a set of its own
MOST_BATCHES = 64  # different ones that are held
LOADS = (0.65, 0.9)  # DALI's share of the JPEG engines
Pass = Callable[[float], float]  # seconds -> images/s


def plain(name: str) -> Callable[[bytes], object]:
    """The plain call of a library of one core."""
    if name == "simplejpeg":
        import simplejpeg

        return simplejpeg.decode_jpeg
    if name == "opencv":
        import cv2

        cv2.setNumThreads(1)
        return lambda data: cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)
    if name == "torchvision_cpu":
        from torchvision.io import ImageReadMode, decode_jpeg

        torch.set_num_threads(1)
        read = partial(torch.frombuffer, dtype=torch.uint8)
        return lambda data: decode_jpeg(read(bytearray(data)), ImageReadMode.RGB)
    if name == "torchcodec_cpu":
        from torchcodec.decoders import decode_jpeg

        torch.set_num_threads(1)
        return decode_jpeg
    from PIL import Image

    return lambda data: np.asarray(Image.open(BytesIO(data)).convert("RGB"))


@cache
def held(name: str, paths: tuple[str, ...]) -> tuple[Callable, list[bytes]]:
    """What a process needs in every pass."""
    return plain(name), [read_file(path) for path in paths]


def work(name: str, paths: tuple[str, ...], seconds: float) -> float:
    """Images/s of one process that decodes its files again and again."""
    decode, encoded = held(name, paths)
    return over(encoded, lambda data: decode(data) is None, seconds)


def over(work: list, call: Callable, seconds: float, size: int = 1, device=CPU) -> float:
    """Images/s of a call, of so many images, over the entries of a list until the seconds are over."""
    count, begin = 0, time.perf_counter()
    for entry in cycle(work):
        call(entry)
        count += size
        if time.perf_counter() - begin >= seconds:
            break
    synchronise(device)
    return count / (time.perf_counter() - begin)


def own_in_processes(stack: ExitStack, name: str, files: Files, cores: int) -> dict[str, Pass]:
    pool = stack.enter_context(ProcessPoolExecutor(cores, get_context("spawn")))
    shares = [tuple(files.paths[part::cores]) for part in range(cores)]

    def rate(seconds: float) -> float:
        return sum(future.result() for future in [pool.submit(work, name, s, seconds) for s in shares])

    rate(0.1)  # reads the files
    return {"own": rate}


def own_dali(name: str, files: Files, cores: int) -> dict[str, Pass]:
    from nvidia.dali import fn, types
    from nvidia.dali.pipeline import Pipeline

    on_gpu = name == "dali_gpu"

    def rates(**options) -> Pass:
        pipeline = Pipeline(files.batch_size, cores, 0 if on_gpu else None)
        with pipeline:
            encoded, _ = fn.readers.file(files=files.paths)
            pipeline.set_outputs(fn.decoders.image(encoded, output_type=types.RGB, **options))
        pipeline.build()
        device = torch.device("cuda") if on_gpu else CPU
        return partial(over, [None], lambda _: pipeline.run(), size=files.batch_size, device=device)

    if on_gpu:
        return {f"own at {load}": rates(device="mixed", hw_decoder_load=load) for load in LOADS}
    return {"own": rates(device="cpu")}


def own_call(name: str, batches: list[list[bytes]], cores: int) -> Pass:
    """A library's plain call with a list of files."""
    size = len(batches[0])
    if name == "torchvision_cuda":
        from torchvision.io import ImageReadMode, decode_jpeg

        each = {id(d): torch.frombuffer(bytearray(d), dtype=torch.uint8) for batch in batches for d in batch}
        tensors = [[each[id(d)] for d in batch] for batch in batches]
        device = torch.device("cuda")
        decode = partial(decode_jpeg, mode=ImageReadMode.RGB, device=device)
        return partial(over, tensors, decode, size=size, device=device)
    if name == "torchcodec_cuda":
        from torchcodec.decoders import decode_jpeg

        device = torch.device("cuda")
        return partial(over, batches, partial(decode_jpeg, device=device), size=size, device=device)
    from nvidia import nvimgcodec

    here = {"device_id": 0}
    if name == "nvimgcodec_cpu":
        backends = [nvimgcodec.Backend(nvimgcodec.CPU_ONLY)]
        here = {"device_id": nvimgcodec.NVIMGCODEC_DEVICE_CPU_ONLY, "backends": backends}
    codec = nvimgcodec.Decoder(max_num_cpu_threads=cores, **here)
    device = torch.device("cuda") if name == "nvimgcodec" else CPU
    return partial(over, batches, codec.decode, size=size, device=device)


def contenders(
    stack: ExitStack, name: str, files: Files, cores: int, device: torch.device
) -> dict[str, Pass]:
    """Name -> a pass; raises Skip for what this node lacks."""
    bulk = stack.enter_context(Bench(name, cores, None, device)).open(files)
    images = images_of_a_pass(bulk, files.batch_size, 0.5, None, lambda: None)
    _, took = timed(bulk, images)

    def ours(seconds: float) -> float:
        whole = max(1, round(seconds * images / took / files.batch_size)) * files.batch_size
        count, in_s = timed(bulk, whole)
        return count / in_s

    kind = load("decoder", name)
    if kind.parallel == "processes":
        return {**own_in_processes(stack, name, files, cores), "bulk": ours}
    encoded = [read_file(path) for path in files.paths]
    # until the first comes again: a few batches over and over would spare a library new memory
    count = min(MOST_BATCHES, math.lcm(len(encoded), files.batch_size) // files.batch_size)
    batches = [[encoded[i] for i in files.numbers(number)] for number in range(count)]
    decode = partial(kind(cores).decode_to, device=device)
    call = partial(over, batches, decode, size=files.batch_size, device=device)
    if name.startswith("dali"):
        own = own_dali(name, files, cores)
    elif name == "cuda_jpeg":  # ours alone
        own = {}
    else:
        own = {"own": own_call(name, batches, cores)}
    return {**own, "bulk": ours, "call": call}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--decoders", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--cores", type=int, default=cores_allowed())
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--passes", type=int, default=5)
    given = parser.parse_args()
    keep_freed_blocks()  # as in every process that measures
    device = torch.device("cuda", 0) if torch.cuda.is_available() else CPU
    headers = {str(path): read_header(path.read_bytes()) for path in sorted(given.folder.rglob("*.*"))}
    found = {path: (header.height, header.width) for path, header in headers.items() if header}
    files = Files(list(found), None, None, given.batch_size, sizes=np.array(list(found.values())))
    engines = jpeg_engines(device) if device.type == "cuda" else None
    about = {"files": len(found), "batch_size": given.batch_size, "cores": given.cores, "engines": engines}
    print(json.dumps({**about, "environment": environment(device)}), flush=True)
    for name in given.decoders:
        with torch_threads(given.cores), ExitStack() as stack:
            try:
                passes = contenders(stack, name, files, given.cores, device)
            except Skip as skipped:
                print(json.dumps({"decoder": name, "skipped": str(skipped)}), flush=True)
                continue
            rates = {who: [] for who in passes}
            for number in range(given.passes + 1):
                for who, one in passes.items():
                    rate = one(given.seconds)
                    if number:
                        rates[who].append(rate)
        medians = {who: statistics.median(found) for who, found in rates.items()}
        own = max((median for who, median in medians.items() if who.startswith("own")), default=None)
        shown = {w: [round(medians[w]), round(min(found)), round(max(found))] for w, found in rates.items()}
        ratio = round(medians["bulk"] / own, 3) if own else None
        print(json.dumps({"decoder": name, "images_per_s": shown, "bulk_over_own": ratio}), flush=True)


if __name__ == "__main__":
    main()

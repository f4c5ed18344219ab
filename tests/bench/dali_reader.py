"""What reading in our order costs DALI: python tests/bench/dali_reader.py SOURCE

SOURCE: the zip of tiny_imagenet_40 or a folder of JPEGs of one size. Whole epochs without a model, by turns:
`ours`, the loaders dali_cpu and dali_gpu, which tell DALI the files of each batch; `own`, the pipeline of
DALI's documentation, fn.readers.file that shuffles by itself behind a DALIGenericIterator, with the same
decoder, threads and batches. What the CPU decodes goes to the device in either. Prints a line of JSON: of
each, images a second on the host's clock and microseconds of CPU an image, one value an epoch.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path

import torch
from nvidia.dali import fn
from nvidia.dali.pipeline import Pipeline
from nvidia.dali.plugin.pytorch import DALIGenericIterator, LastBatchPolicy
from resident_jpeg import manifest_of

from gpufeed.benchmarks.ceilings.stages import drain_epoch
from gpufeed.core.registry import LOADERS, load
from gpufeed.loaders.base import LoadRequest
from gpufeed.loaders.dali import DaliLoader
from gpufeed.system.environment import cores_allowed, environment
from gpufeed.system.host_memory import keep_freed_blocks
from gpufeed.system.timing import synchronise


def own_reader(loader: DaliLoader) -> Callable[[], None]:
    """An epoch of DALI's own reader, with the decoder, the threads and the batches of an open loader."""
    request, decoder = loader.request, loader.library.pipeline
    on_cuda = request.device.type == "cuda"
    pipeline = Pipeline(
        batch_size=request.batch_size,
        num_threads=decoder.threads,
        device_id=(request.device.index or 0) if on_cuda else None,
        prefetch_queue_depth=2,  # DALI's default
    )
    with pipeline:
        files = [loader.reader.paths[sample_id] for sample_id in loader.split_ids.tolist()]
        data, label = fn.readers.file(
            files=files, labels=[0] * len(files), random_shuffle=True, dont_use_mmap=True, name="reader"
        )
        images = decoder.images(data)
        pipeline.set_outputs(images.gpu() if on_cuda else images, label)
    pipeline.build()
    # PARTIAL: whole epochs, as ours
    names = ["images", "labels"]
    policy = LastBatchPolicy.PARTIAL
    batches = DALIGenericIterator([pipeline], names, reader_name="reader", last_batch_policy=policy)

    def epoch() -> None:
        found = sum(len(batch["images"]) for (batch,) in batches)
        if found != loader.share:
            raise SystemExit(f"DALI's own reader gave {found} images of {loader.share}")
        batches.reset()
        synchronise(request.device)

    return epoch


def summary(values: list[float]) -> dict[str, float | int]:
    named = (("median", statistics.median), ("min", min), ("max", max))
    return {"n": len(values), **{name: round(of(values), 1) for name, of in named}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[256, 1024])
    parser.add_argument("--threads", type=int, default=cores_allowed())
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    keep_freed_blocks()  # as in every process that measures
    device = torch.device(given.device)
    names = [n for n in ("dali_cpu", "dali_gpu") if device.type == "cuda" or LOADERS[n].device != "cuda"]
    found: dict[tuple, tuple[list[float], list[float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        manifest = manifest_of(given.source, Path(folder), 1)
        for name, batch_size in product(names, given.batch_sizes):
            request = LoadRequest(manifest, "train", batch_size, device, threads=given.threads)
            with load("loader", name)(request) as loader:
                works = {
                    "ours": lambda loader=loader: drain_epoch(loader, lead_in=False),
                    "own": own_reader(loader),
                }
                for number, (reader, work) in product(range(given.repeats + 1), works.items()):
                    begun, cpu = time.perf_counter(), time.process_time()
                    work()
                    seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
                    if number:  # the first warms up
                        rates, costs = found.setdefault((name, batch_size, reader), ([], []))
                        rates.append(loader.share / seconds)
                        costs.append(cpu / loader.share * 1e6)
    rows = [
        {"loader": name, "batch_size": batch_size, "reader": reader}
        | {"images_per_s": summary(rates), "cpu_us_per_image": summary(costs)}
        for (name, batch_size, reader), (rates, costs) in found.items()
    ]
    about = {"images": len(manifest), "threads": given.threads, "rows": rows}
    print(json.dumps(about | {"environment": environment(device)}))


if __name__ == "__main__":
    main()

"""A bare DALI script beside our DALI loaders: python tests/bench/bare_dali.py FOLDER

FOLDER: photographs, at any depth; with --ours a prepared dataset. In the bare script nothing of gpufeed runs:
fn.readers.file shuffles, DALI's decoder draws windows, which are resized and flipped, a DALIGenericIterator
hands them to a compiled training step (bf16, SGD). The loaders that --ours names feed the same step, pass by
pass in turn with the script. A line of JSON each, with images a second of every pass: `limit`, the step over
one batch again and again; with each number of cores `alone`, input without the step, and `fed`, both. All
threads of the process keep to the cores.
"""

import argparse
import itertools
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import torch
import torchvision
from nvidia.dali import fn, types
from nvidia.dali.backend import PreallocateDeviceMemory, PreallocatePinnedMemory
from nvidia.dali.pipeline import Pipeline
from nvidia.dali.plugin.pytorch import DALIGenericIterator, LastBatchPolicy
from torch import nn

from gpufeed.augment.random_resized_crop import RandomResizedCrop
from gpufeed.core.registry import load
from gpufeed.datasets.manifest import Manifest
from gpufeed.decoders.dali_pipeline import DecodePipeline
from gpufeed.loaders import prefetch
from gpufeed.loaders.base import Loader, LoadRequest
from gpufeed.system.environment import environment

WARM_S, MIB = 3, 2**20
FANCY = "mixed_fancy"  # interpolates chroma, as libjpeg-turbo does and our loaders have it
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Normalised(nn.Module):
    """A model behind the normalisation of uint8 (N, H, W, 3)."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model.to(memory_format=torch.channels_last)
        self.register_buffer("mean", 255 * torch.tensor(MEAN).view(3, 1, 1))
        self.register_buffer("std", 255 * torch.tensor(STD).view(3, 1, 1))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.model((images.permute(0, 3, 1, 2) - self.mean) / self.std)


def made_step(given: argparse.Namespace, name: str) -> Callable[[torch.Tensor, torch.Tensor], None]:
    torch.backends.cudnn.benchmark = True
    if name == "tiny":
        model = nn.Sequential(
            nn.Conv2d(3, 8, 7, 8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 1000)
        )
    else:
        model = getattr(torchvision.models, name)()
    model = Normalised(model).to(given.device)
    run = model if given.eager else torch.compile(model)
    optimiser = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, weight_decay=5e-5)

    def step(images: torch.Tensor, labels: torch.Tensor) -> None:
        with torch.autocast(given.device, torch.bfloat16):
            loss = nn.functional.cross_entropy(run(images), labels)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()

    return step


def as_graph(step: Callable, images: torch.Tensor, labels: torch.Tensor) -> Callable:
    """The same step as one CUDA graph."""
    images, labels, side = images.clone(), labels.clone(), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step(images, labels)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(images, labels)

    def replay(new_images: torch.Tensor, new_labels: torch.Tensor) -> None:
        images.copy_(new_images)
        labels.copy_(new_labels)
        graph.replay()

    return replay


def made_batches(given: argparse.Namespace, decoder: str, cores: int) -> DALIGenericIterator:
    on_cuda = given.device == "cuda"
    options = {"output_type": types.RGB, "num_attempts": 10}
    options |= {"random_area": [0.08, 1.0], "random_aspect_ratio": [3 / 4, 4 / 3]}
    if decoder != "cpu":
        options |= {"hw_decoder_load": given.hw_decoder_load, "jpeg_fancy_upsampling": decoder == FANCY}
        if given.largest:
            height, width = given.largest
            options |= {"preallocate_width_hint": width, "preallocate_height_hint": height}
            options |= {"device_memory_padding": 211_025_920, "host_memory_padding": 140_544_512}
    pipeline = Pipeline(
        batch_size=given.batch_size,
        num_threads=cores,
        device_id=0 if on_cuda else None,
        prefetch_queue_depth=given.prefetch,
        seed=0,
    )
    with pipeline:
        data, label = fn.readers.file(
            files=given.files,
            labels=[i % 1000 for i in range(len(given.files))],
            random_shuffle=True,
            pad_last_batch=True,
            name="reader",
        )
        device = "cpu" if decoder == "cpu" else "mixed"
        images = fn.decoders.image_random_crop(data, device=device, **options)
        images = fn.resize(images, size=[given.size] * 2, interp_type=types.INTERP_TRIANGULAR, antialias=True)
        images = fn.flip(images, horizontal=fn.random.coin_flip())
        pipeline.set_outputs(images.gpu() if on_cuda else images, label.gpu() if on_cuda else label)
    pipeline.build()
    policy = {"last_batch_policy": LastBatchPolicy.DROP, "auto_reset": True}
    return DALIGenericIterator([pipeline], ["images", "labels"], reader_name="reader", **policy)


def endless(batches: DALIGenericIterator) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """(images, labels) of one epoch after the other."""
    for _ in itertools.count():
        for (batch,) in batches:
            yield batch["images"], batch["labels"].flatten().long()


def our_loader(given: argparse.Namespace, name: str, cores: int) -> Loader:
    request = LoadRequest(
        Manifest.read(given.folder / "manifest.parquet"),
        "train",
        given.batch_size,
        torch.device(given.device, 0) if given.device == "cuda" else torch.device(given.device),
        recipe=RandomResizedCrop(given.size, seed=0),
        hw_decoder_load=given.hw_decoder_load if name.startswith("dali_gpu") else None,
        threads=cores,
    )
    return load("loader", name)(request)


def endless_ours(loader: Loader) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The same of an open loader of ours, but for the last batch, which may be smaller."""
    for _ in itertools.count():
        for batch in loader:
            if len(batch.images) == loader.request.batch_size:
                yield batch.images, batch.labels


def feeds(given: argparse.Namespace, cores: int, stack: ExitStack) -> dict[str, Iterator]:
    """Who -> its batches, without end."""
    decoders = [name for name in given.decoders if given.device == "cuda" or name == "cpu"]
    found = {f"bare {name}": endless(made_batches(given, name, cores)) for name in decoders}
    for name in given.ours:
        loader = stack.enter_context(our_loader(given, name, cores))
        found[f"ours {name}"] = endless_ours(loader)
    return found


def by_turns(given: argparse.Namespace, feeds: dict[str, Iterator], work: Callable) -> Iterator[dict]:
    """Who, images a second of each pass, and the longest stretch between two waits for the device as a
    multiple of the median one. The first pass of each, which warms up, is left out."""
    rates: dict[str, list[float]] = {who: [] for who in feeds}
    stretches: dict[str, list[float]] = {who: [] for who in feeds}
    for number in range(given.passes + 1):
        for who, batches in feeds.items():
            images, begin = 0, time.perf_counter()
            before, least = begin, given.seconds if number else given.warm_s
            while before - begin < least:
                for _ in range(given.batches):  # the host may not run ahead of the device for long
                    batch = next(batches)
                    work(*batch)
                    images += len(batch[0])
                if given.device == "cuda":
                    torch.cuda.synchronize()
                now = time.perf_counter()
                if number:
                    stretches[who].append(now - before)
                before = now
            if number:
                rates[who].append(round(images / (before - begin), 1))
    for who, found in rates.items():
        longest = max(stretches[who]) / statistics.median(stretches[who])
        yield {"who": who, "images_per_s": found, "longest_stretch": round(longest, 2)}


def keep_to(cores: list[int]) -> None:
    """Has all threads of this process, and those to come, run on these cores alone."""
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), cores)
    torch.set_num_threads(len(cores))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--decoders", nargs="*", choices=["mixed", FANCY, "cpu"], default=["mixed", FANCY, "cpu"]
    )
    parser.add_argument("--ours", nargs="*", default=[], help="names of our loaders")
    parser.add_argument("--models", nargs="*", choices=["resnet18", "resnet50", "tiny"], default=["resnet18"])
    parser.add_argument("--cores", type=int, nargs="+", default=[len(os.sched_getaffinity(0))])
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--times", type=int, default=1, help="how often each file stands in the list")
    parser.add_argument("--prefetch", type=int, default=2, help="batches ahead; 2 is DALI's default")
    parser.add_argument("--hw-decoder-load", type=float, default=0.65)
    parser.add_argument("--largest", type=int, nargs=2, help="height and width: NVIDIA's memory hints")
    parser.add_argument(
        "--pools",
        type=int,
        nargs=2,
        metavar="MIB",
        help="device and pinned memory that DALI takes first",
    )
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of a pass, at least")
    parser.add_argument("--warm-s", type=float, default=WARM_S)
    parser.add_argument("--batches", type=int, default=16, help="between two waits for the device")
    parser.add_argument("--eager", action="store_true", help="do not compile the model")
    parser.add_argument("--cuts-on-gpu", action="store_true", help="our dali_gpu decodes windows alone")
    parser.add_argument("--priority", type=int, default=0, help="of the stream of our loaders; -1 goes first")
    parser.add_argument("--graphs", action="store_true", help="each step as one CUDA graph, too")
    parser.add_argument("--alone", action="store_true", help="without a model, too")
    given = parser.parse_args()
    kinds = (".jpg", ".jpeg", ".png")
    found = sorted(path for path in given.folder.rglob("*") if path.suffix.lower() in kinds)
    given.files = [os.fspath(path) for path in found] * given.times
    cores = sorted(os.sched_getaffinity(0))
    DecodePipeline.cuts_on_gpu, prefetch.PRIORITY = given.cuts_on_gpu, given.priority
    if given.pools:
        PreallocateDeviceMemory(given.pools[0] * MIB, 0)
        PreallocatePinnedMemory(given.pools[1] * MIB)

    def tell(**about) -> None:
        print(json.dumps(about), flush=True)

    shape, device = (given.batch_size, given.size, given.size, 3), given.device
    same = torch.zeros(shape, dtype=torch.uint8, device=device), torch.arange(shape[0], device=device) % 1000
    steps = {}
    for model in given.models:
        steps[model] = made_step(given, model)
        if given.graphs:
            steps[f"{model} as a CUDA graph"] = as_graph(steps[model], *same)
    for model, step in steps.items():
        for found in by_turns(given, {"limit": itertools.repeat(same)}, step):
            tell(what="limit", model=model, **found)
    for count in given.cores:
        keep_to(cores[:count])
        with ExitStack() as stack:
            feeding = feeds(given, count, stack)
            for model, step in {None: lambda *_: None, **steps}.items() if given.alone else steps.items():
                for found in by_turns(given, feeding, step):
                    tell(what="fed" if model else "alone", model=model, cores=count, **found)
        keep_to(cores)
    settings = {name: value for name, value in vars(given).items() if name not in ("files", "folder")}
    tell(files=len(given.files), **settings, environment=environment(torch.device(device)))


if __name__ == "__main__":
    main()

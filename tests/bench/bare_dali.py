"""A bare DALI script, the yardstick of our DALI loaders: python tests/bench/bare_dali.py FOLDER

FOLDER: photographs, at any depth. Nothing of gpufeed runs but the description of the machine at the end:
fn.readers.file shuffles, DALI's decoder draws windows, which are resized and flipped, a DALIGenericIterator
hands them to a compiled training step (bf16, SGD). Of each decoder, with each number of cores: `limit`, the
step over one batch again and again; `alone`, DALI without the step; `fed`, both. A line of JSON each, with
images a second of every pass; all threads of the process keep to the cores.
"""

import argparse
import itertools
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torchvision
from nvidia.dali import fn, types
from nvidia.dali.pipeline import Pipeline
from nvidia.dali.plugin.pytorch import DALIGenericIterator, LastBatchPolicy
from torch import nn

from gpufeed.system.environment import environment

WARM_S = 3
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


def made_batches(given: argparse.Namespace, decoder: str, cores: int) -> DALIGenericIterator:
    on_cuda = given.device == "cuda"
    options = {"output_type": types.RGB, "num_attempts": 10}
    options |= {"random_area": [0.08, 1.0], "random_aspect_ratio": [3 / 4, 4 / 3]}
    if decoder == "mixed":
        options |= {"hw_decoder_load": given.hw_decoder_load, "jpeg_fancy_upsampling": given.fancy_upsampling}
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
        images = fn.decoders.image_random_crop(data, device=decoder, **options)
        images = fn.resize(images, size=[given.size] * 2, interp_type=types.INTERP_TRIANGULAR, antialias=True)
        images = fn.flip(images, horizontal=fn.random.coin_flip())
        pipeline.set_outputs(images.gpu() if on_cuda else images, label.gpu() if on_cuda else label)
    pipeline.build()
    policy = {"last_batch_policy": LastBatchPolicy.DROP, "auto_reset": True}
    return DALIGenericIterator([pipeline], ["images", "labels"], reader_name="reader", **policy)


def endless(batches: DALIGenericIterator):
    """(images, labels) of one epoch after the other."""
    for _ in itertools.count():
        for (batch,) in batches:
            yield batch["images"], batch["labels"].flatten().long()


def rates(given: argparse.Namespace, batches, work: Callable) -> list[float]:
    """Images a second of each pass; the first, which warms up, is left out."""
    found = []
    for number in range(given.passes + 1):
        images, begin = 0, time.perf_counter()
        while time.perf_counter() - begin < (given.seconds if number else given.warm_s):
            for _ in range(given.batches):  # the host may not run ahead of the device for long
                batch = next(batches)
                work(*batch)
                images += len(batch[0])
            if given.device == "cuda":
                torch.cuda.synchronize()
        found.append(round(images / (time.perf_counter() - begin), 1))
    return found[1:]


def keep_to(cores: list[int]) -> None:
    """Has all threads of this process, and those to come, run on these cores alone."""
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), cores)
    torch.set_num_threads(len(cores))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--decoders", nargs="+", choices=["mixed", "cpu"], default=["mixed", "cpu"])
    parser.add_argument("--models", nargs="*", choices=["resnet18", "resnet50", "tiny"], default=["resnet18"])
    parser.add_argument("--cores", type=int, nargs="+", default=[len(os.sched_getaffinity(0))])
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--times", type=int, default=1, help="how often each file stands in the list")
    parser.add_argument("--prefetch", type=int, default=2, help="batches ahead; 2 is DALI's default")
    parser.add_argument("--hw-decoder-load", type=float, default=0.65)
    parser.add_argument(
        "--fancy-upsampling", action="store_true", help="as libjpeg-turbo, and as our loaders"
    )
    parser.add_argument("--largest", type=int, nargs=2, help="height and width: NVIDIA's memory hints")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of a pass, at least")
    parser.add_argument("--warm-s", type=float, default=WARM_S)
    parser.add_argument("--batches", type=int, default=16, help="between two waits for the device")
    parser.add_argument("--eager", action="store_true", help="do not compile the model")
    given = parser.parse_args()
    kinds = (".jpg", ".jpeg", ".png")
    found = sorted(path for path in given.folder.rglob("*") if path.suffix.lower() in kinds)
    given.files = [os.fspath(path) for path in found] * given.times
    cores = sorted(os.sched_getaffinity(0))
    decoders = [name for name in given.decoders if given.device == "cuda" or name == "cpu"]

    def tell(**about) -> None:
        print(json.dumps(about), flush=True)

    shape, device = (given.batch_size, given.size, given.size, 3), given.device
    same = torch.zeros(shape, dtype=torch.uint8, device=device), torch.arange(shape[0], device=device) % 1000
    for count in given.cores:
        keep_to(cores[:count])
        for decoder in decoders:
            about = {"what": "alone", "decoder": decoder, "cores": count}
            tell(
                **about,
                images_per_s=rates(given, endless(made_batches(given, decoder, count)), lambda *_: None),
            )
    for model in given.models:
        keep_to(cores)
        step = made_step(given, model)
        tell(what="limit", model=model, images_per_s=rates(given, itertools.repeat(same), step))
        for count in given.cores:
            keep_to(cores[:count])
            for decoder in decoders:
                about = {"what": "fed", "model": model, "decoder": decoder, "cores": count}
                tell(**about, images_per_s=rates(given, endless(made_batches(given, decoder, count)), step))
    settings = {name: value for name, value in vars(given).items() if name not in ("files", "folder")}
    tell(files=len(given.files), **settings, environment=environment(torch.device(device)))


if __name__ == "__main__":
    main()

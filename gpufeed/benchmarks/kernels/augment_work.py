"""The augments' kernels: works on batches of images, and their implementations.

Single steps (`brightness` and so on) map float32 values to float32 values of the same batch. `normalise`,
`crop_flip` and `one_pass` map uint8 images to normalised ones. torchvision draws once per batch, and the
others once per sample, so its task is easier. For other libraries only the minimum of memory traffic is
known: each byte that the work needs, once.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch

from gpufeed.augment import amounts
from gpufeed.benchmarks.kernels.kernel_clock import NotDone, Run, Task
from gpufeed.core.errors import Skip
from gpufeed.core.plan_kernels import IMPLEMENTATIONS, STEPS, WORKS

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)  # of CIFAR-10; any values would do
SEED, EPOCH, PADDING = 1, 3, 4
OFF = {"crop_padding": 0, "flip_probability": 0.0, "brightness": 0.0, "contrast": 0.0, "salt_pepper": 0.0}
CROP_FLIP = {**OFF, "crop_padding": PADDING, "flip_probability": 0.5}
ONE_PASS = {**CROP_FLIP, "brightness": 0.2, "contrast": 0.2, "salt_pepper": 0.02}
OPTIONS = {"normalise": OFF, "crop_flip": CROP_FLIP, "one_pass": ONE_PASS}


@dataclass(frozen=True)
class Batch:
    """The input of all implementations: n images of size x size pixels, on one device."""

    n: int
    size: int
    dtype: torch.dtype  # of normalised images
    device: torch.device

    @property
    def pixels(self) -> int:
        return self.n * self.size**2

    @cached_property
    def images(self) -> torch.Tensor:
        """uint8 (N, H, W, 3), random."""
        shape = (self.n, self.size, self.size, 3)
        return torch.randint(0, 256, shape, dtype=torch.uint8, device=self.device)

    @cached_property
    def ids(self) -> torch.Tensor:
        return torch.arange(self.n, device=self.device)

    @cached_property
    def epoch(self) -> torch.Tensor:
        """int64 (1,)."""
        return torch.full((1,), EPOCH, device=self.device)

    @cached_property
    def values(self) -> torch.Tensor:
        """float32 (N, H, W, 3), 0..255."""
        return self.images.to(torch.float32)

    @cached_property
    def planes(self) -> torch.Tensor:
        """float32 (N, 3, H, W), channels_last, 0..1: what torchvision and Kornia work on."""
        return self.values.div(255).permute(0, 3, 1, 2)

    @cached_property
    def factors(self) -> torch.Tensor:
        """float32 (N,), around 1."""
        return torch.linspace(0.8, 1.2, self.n, device=self.device)

    @cached_property
    def degrees(self) -> torch.Tensor:
        """float32 (N,), angles either way."""
        return torch.linspace(-15, 15, self.n, device=self.device)


def tasks(settings: dict, device: torch.device) -> Iterator[Task]:
    """Yield all rows, the smallest images first. settings: of gpufeed.core.plan_kernels."""
    for size in settings["size"]:
        for n in settings["batch_size"]:
            yield from tasks_of(Batch(n, size, amounts.DTYPES[settings["dtype"]], device))


def tasks_of(batch: Batch) -> Iterator[Task]:
    """Yield the rows of one batch."""
    for work in WORKS:
        for name in IMPLEMENTATIONS:
            moved, known = bytes_moved(work, name, batch)
            yield Task(
                names={"work": work, "implementation": name, "batch_size": batch.n, "size": batch.size},
                make=partial(MAKERS[name], work, batch),
                facts={"bytes": moved, "bytes_are": known},
                bytes=moved,
                yardstick="copy",
                amounts={"images_per_s": batch.n * 1e3, "gb_per_s": moved / 1e6},
            )


def bytes_moved(work: str, by: str, batch: Batch) -> tuple[int, str]:
    """Return (bytes, "moved") if we know what is read and written, else (bytes, "at least")."""
    out = 3 * batch.dtype.itemsize
    if work in STEPS:
        return batch.pixels * 24, "moved" if by == "chain" else "at least"
    if by == "chain" and work != "normalise":  # the window to float32, each step in place, normalisation
        steps = {"crop_flip": 0, "one_pass": 3}[work]
        return batch.pixels * (3 + 12 + 24 * steps + 12 + out), "moved"
    return batch.pixels * (3 + out), "moved" if by in ("chain", "fused") else "at least"


def by_chain(work: str, batch: Batch) -> Run:
    from gpufeed.augment import chain

    if work == "normalise":
        return lambda: chain.gpu_normalize_images(batch.images, MEAN, STD, batch.dtype)
    if work in OPTIONS:
        augment = chain.ChainAugment(MEAN, STD, SEED, {**OPTIONS[work], "dtype": name_of(batch.dtype)})
        return lambda: augment(batch.images, batch.ids, EPOCH)
    values = batch.values.view(batch.n, -1)
    out = torch.empty_like(values)
    blocks = (batch.n, -(-values.shape[1] // (chain.THREADS * chain.EACH)))
    tiles = (batch.n, -(-(batch.size**2) // chain.TILE))
    pepper, salt = amounts.pepper_and_salt(ONE_PASS["salt_pepper"])
    angles = torch.deg2rad(batch.degrees)
    noise = batch.ids, batch.epoch, SEED, 0, amounts.NOISE_TAG, pepper, 2**32 - salt
    rows = (batch.n, -(-batch.size // chain.TURN_ROWS))
    kernel, grid, arguments = {
        "brightness": (chain.brightness_kernel, blocks, (batch.factors,)),
        "contrast": (chain.contrast_kernel, blocks, (batch.factors, np.float32(127.5))),
        "salt_pepper": (chain.salt_pepper_kernel, tiles, noise),
        "rotation": (
            chain.rotation_kernel,
            rows,
            (torch.cos(angles), torch.sin(angles), batch.size, batch.size),
        ),
    }[work]

    source, target = (values.view(-1), out.view(-1)) if work == "rotation" else (values, out)

    def run() -> torch.Tensor:
        chain.launch(kernel, grid, chain.THREADS, source, *arguments, target)
        return out

    return run


def by_fused(work: str, batch: Batch) -> Run:
    from gpufeed.augment.fused import FusedAugment

    if work not in OPTIONS:
        raise NotDone
    augment = FusedAugment(MEAN, STD, SEED, {**OPTIONS[work], "dtype": name_of(batch.dtype)})
    return lambda: augment(batch.images, batch.ids, EPOCH)


def by_torch(work: str, batch: Batch) -> Run:
    from gpufeed.augment import reference

    if work in OPTIONS:
        options = {**OPTIONS[work], "dtype": name_of(batch.dtype)}
        augment = reference.TorchAugment(MEAN, STD, SEED, options)
        return lambda: augment(batch.images, batch.ids, EPOCH)
    values, share, size = batch.values, ONE_PASS["salt_pepper"], batch.size
    return {
        "brightness": lambda: reference.scale(values, batch.factors, 0.0),
        "contrast": lambda: reference.scale(values, batch.factors, 127.5),
        "salt_pepper": lambda: reference.salt_pepper(
            values, reference.noise(SEED, EPOCH, batch.ids, size, size), share
        ),
        "rotation": lambda: reference.rotate(values, batch.degrees),
    }[work]


def by_torchvision(work: str, batch: Batch) -> Run:
    from torchvision.transforms import v2
    from torchvision.transforms.v2 import functional as F

    planes = batch.images.permute(0, 3, 1, 2)
    finish = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD), v2.ToDtype(batch.dtype)]
    crop_flip = [v2.RandomCrop(batch.size, padding=PADDING), v2.RandomHorizontalFlip()]
    jitter = [v2.ColorJitter(brightness=ONE_PASS["brightness"], contrast=ONE_PASS["contrast"])]
    if work in OPTIONS:
        steps = {
            "normalise": finish,
            "crop_flip": crop_flip + finish,
            "one_pass": [*crop_flip, finish[0], *jitter, salt_and_pepper, *finish[1:]],
        }[work]
        transform = v2.Compose(steps)
        return lambda: transform(planes)
    values = batch.planes
    return {
        "brightness": lambda: F.adjust_brightness(values, 1.2),
        "contrast": lambda: F.adjust_contrast(values, 1.2),
        "salt_pepper": lambda: salt_and_pepper(values),
        "rotation": lambda: F.rotate(values, 10.0, interpolation=v2.InterpolationMode.BILINEAR),
    }[work]


def salt_and_pepper(planes: torch.Tensor) -> torch.Tensor:
    """Return images with salt and pepper, which torchvision v2 lacks. planes: float (N, 3, H, W) in 0..1."""
    n, _, height, width = planes.shape
    number = torch.rand((n, 1, height, width), device=planes.device)
    share = ONE_PASS["salt_pepper"] / 2
    return planes.masked_fill(number < share, 0.0).masked_fill(number > 1 - share, 1.0)


def by_kornia(work: str, batch: Batch) -> Run:
    import kornia
    import kornia.augmentation as K

    mean, std = (torch.tensor(numbers, device=batch.device) for numbers in (MEAN, STD))
    if work in OPTIONS:
        crop_flip = [K.RandomCrop((batch.size, batch.size), padding=PADDING), K.RandomHorizontalFlip(p=0.5)]
        jitter = [
            K.ColorJitter(ONE_PASS["brightness"], ONE_PASS["contrast"], p=1.0),
            K.RandomSaltAndPepperNoise(amount=ONE_PASS["salt_pepper"], salt_vs_pepper=0.5, p=1.0),
        ]
        steps = {"normalise": [], "crop_flip": crop_flip, "one_pass": crop_flip + jitter}[work]
        transform = torch.nn.Sequential(*steps, K.Normalize(mean, std))
        planes = batch.images.permute(0, 3, 1, 2)
        return lambda: transform(planes.float().div(255)).to(batch.dtype)
    values = batch.planes
    return {
        "brightness": lambda: kornia.enhance.adjust_brightness_accumulative(values, batch.factors),
        "contrast": lambda: kornia.enhance.adjust_contrast_with_mean_subtraction(values, batch.factors),
        "salt_pepper": lambda: K.RandomSaltAndPepperNoise(
            amount=ONE_PASS["salt_pepper"], salt_vs_pepper=0.5, p=1.0
        )(values),
        "rotation": lambda: kornia.geometry.transform.rotate(values, batch.degrees),
    }[work]


def by_dali(work: str, batch: Batch) -> Run:
    from nvidia.dali import fn, pipeline_def, types

    if work not in ("normalise", "crop_flip"):
        raise NotDone
    dtypes = {torch.float32: types.FLOAT, torch.float16: types.FLOAT16}
    if batch.dtype not in dtypes:
        raise Skip("DALI's crop_mirror_normalize gives no bfloat16.")

    @pipeline_def(
        batch_size=batch.n,
        num_threads=1,
        device_id=batch.device.index or 0,
        prefetch_queue_depth=1,  # a run does only the work of its own batch
        exec_dynamic=True,  # otherwise results are not bound to a stream, and the host would wait
    )
    def pipeline():
        # copied: otherwise DALI reads too early, while our stream still writes (seen on an H200)
        images = fn.external_source(name="images", device="gpu", layout="HWC")
        moves: dict[str, Any] = {}
        if work == "crop_flip":
            moves = {
                "crop": (batch.size, batch.size),
                "crop_pos_x": fn.random.uniform(range=(0.0, 1.0), seed=SEED),
                "crop_pos_y": fn.random.uniform(range=(0.0, 1.0), seed=SEED + 1),
                "mirror": fn.random.coin_flip(probability=0.5, seed=SEED + 2),
            }
            images = fn.pad(images, axes=(0, 1), shape=(batch.size + 2 * PADDING,) * 2)
        return fn.crop_mirror_normalize(
            images,
            dtype=dtypes[batch.dtype],
            output_layout="HWC",
            mean=[255 * value for value in MEAN],
            std=[255 * value for value in STD],
            **moves,
        )

    made = pipeline()
    made.build()

    def run() -> object:
        stream = torch.cuda.current_stream()  # DALI's stream and this one wait for each other
        made.feed_input("images", batch.images, layout="HWC", cuda_stream=stream)
        return made.run(stream)

    return run


MAKERS: dict[str, Callable[[str, Batch], Run]] = {
    "fused": by_fused,
    "chain": by_chain,
    "torch": by_torch,
    "torchvision": by_torchvision,
    "kornia": by_kornia,
    "dali": by_dali,
}


def name_of(dtype: torch.dtype) -> str:
    """Return the option `dtype` for a type."""
    return next(name for name, known in amounts.DTYPES.items() if known == dtype)

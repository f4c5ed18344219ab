"""Compares one epoch of a loader with the reference, by sample id."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from gpufeed.loaders.base import Batch, Loader, send
from gpufeed.loaders.pixel_tolerance import PixelSource

WAITING = 8  # batches whose comparison is queued before the host asks for results
CHUNK_BYTES = 64 * 2**20  # of pixels that are converted and subtracted at a time
LATE_CYCLES = 1_000_000  # about 0.5 ms on the GPU: delays reading until the next batch is under way
OFFENDERS = 5  # images named in a verdict
ROW = ("ids", "labels", "compared", "largest", "total")


class Mismatch(Exception):
    """A difference from the reference, as a sentence without a full stop."""


@dataclass(frozen=True)
class Reference:
    """The expected samples. labels: int64 (N,), paths: N, both by sample id.

    shape: (H, W, 3) of a sample. rows: (sample ids, int64 (n,); epoch) -> their pixels, uint8 (n, H, W, 3).
    """

    shape: tuple[int, int, int]
    rows: Callable[[np.ndarray, int], np.ndarray]
    labels: np.ndarray
    paths: list[str]

    def compared(self, ids: np.ndarray, epoch: int) -> np.ndarray:
        """Return the positions in `ids` of the samples whose pixels are compared."""
        return np.arange(len(ids))

    def allowed(self, source: PixelSource, ids: np.ndarray, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the allowed difference of each sample: of any value, and of the mean."""
        of = source.tolerance
        return np.full(len(ids), of.max), np.full(len(ids), of.mean)

    def name(self, sample: int) -> str:
        """Return the name of a sample for a sentence."""
        return f"sample {sample} ({Path(self.paths[sample]).name})"


@dataclass
class Differences:
    """The results of comparing pixels so far, over any number of epochs."""

    samples: int = 0
    values: int = 0  # compared: samples x H x W x 3
    total: int = 0  # sum of absolute differences
    largest: int = 0
    beyond: int = 0
    offenders: list[dict] = field(default_factory=list)

    @property
    def mean(self) -> float:
        return self.total / self.values if self.values else 0.0


@dataclass(frozen=True)
class Row:
    """One compared batch, on the device: its ids and labels, and differences from the promised ids.

    ids, labels: int64 (n,). compared: ids with compared pixels, int64 (m,), on the host. largest: int16 (m,),
    total: int64 (m,). exchanged: for the first batch of an epoch, the largest difference of its first image
    with red and blue exchanged, int16 (); else None.
    """

    ids: torch.Tensor
    labels: torch.Tensor
    compared: np.ndarray
    largest: torch.Tensor
    total: torch.Tensor
    exchanged: torch.Tensor | None


def check_epoch(
    loader: Loader,
    split_ids: np.ndarray,
    reference: Reference,
    source: PixelSource,
    found: Differences,
    alive: Callable[[], None] = lambda: None,
    replacement: bool = False,
) -> np.ndarray:
    """Run one epoch, compare it, and return its order (int64); raise Mismatch at the first difference.

    split_ids: all sample ids of the split, ascending. found: is updated. alive: called for each batch.
    replacement: whether samples are drawn with replacement, so that some may repeat and others be missing.

    As in training, the host does not wait for the device between batches. So a loader that overwrites memory
    which queued work still reads shows wrong pixels here too.
    """
    order, epoch = loader.order() if loader.promises_order else None, loader.epoch
    if order is not None:
        check_promise(order, split_ids, reference)
    count, size = len(split_ids), loader.request.batch_size
    seen, sizes, waiting = Seen(), [], []
    for batch in loader:
        alive()
        check_form(batch, reference.shape, loader.request.device)
        start = sum(sizes)
        sizes.append(len(batch.ids))
        if start + sizes[-1] > count:
            seen.extra(batch.ids.cpu().numpy())
            break  # the epoch might never end
        ids = ids_of(batch, split_ids) if order is None else order[start : start + sizes[-1]]
        waiting.append(compare(batch, ids, reference, epoch, first=not start))
        del batch
        if len(waiting) == WAITING:
            seen.take(waiting)
            waiting = []
    seen.take(waiting)
    ids = seen.whole("ids")
    if not replacement:
        check_samples(ids, split_ids, reference)
    check_sizes(sizes, count, size)
    order = ids if order is None else order
    check_order(ids, order, reference)
    check_labels(order, seen.whole("labels"), reference)
    check_pixels(seen, reference, source, epoch, found)
    return order


class Seen:
    """The batches of an epoch, on the host."""

    def __init__(self):
        self.parts: dict[str, list[np.ndarray]] = {name: [] for name in ROW}
        self.exchanged = 255

    def take(self, rows: list[Row]) -> None:
        """Wait for the device and keep the results of these batches."""
        for row in rows:
            for name, part in self.parts.items():
                part.append(np.asarray(torch.as_tensor(getattr(row, name)).cpu()))  # sync point
            if row.exchanged is not None:
                self.exchanged = int(row.exchanged)

    def extra(self, ids: np.ndarray) -> None:
        """Keep the ids of a batch beyond the expected end."""
        self.parts["ids"].append(ids)

    def whole(self, name: str) -> np.ndarray:
        """Return one of ROW over all batches."""
        return np.concatenate([np.empty(0, np.int64), *self.parts[name]])


def compare(batch: Batch, expected: np.ndarray, reference: Reference, epoch: int, first: bool) -> Row:
    """Queue the comparison of a batch with the rows of the expected ids, int64 (n,)."""
    device = batch.images.device
    if not len(expected):
        raise Mismatch("found a batch without a sample, expected at least one")
    places = reference.compared(expected, epoch)
    images = batch.images if len(places) == len(expected) else batch.images[send(places, device)]
    rows = send(np.asarray(reference.rows(expected[places], epoch)), device)
    if device.type == "cuda":
        torch.cuda._sleep(LATE_CYCLES)
    step = max(1, CHUNK_BYTES // math.prod(reference.shape))
    parts = [difference(images[i : i + step], rows[i : i + step]) for i in range(0, len(rows), step)]
    exchanged = difference(images[:1], rows[:1].flip(-1))[0][0] if first and len(rows) else None
    largest, total = (torch.cat(part) for part in zip(*parts, strict=True)) if parts else (NONE, NONE)
    return Row(batch.ids.clone(), batch.labels.clone(), expected[places], largest, total, exchanged)


NONE = torch.empty(0, dtype=torch.int64)


def difference(found: torch.Tensor, expected: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the largest (int16) and summed (int64) absolute difference of each uint8 image (n, H, W, 3)."""
    absolute = (found.to(torch.int16) - expected.to(torch.int16)).abs_().flatten(1)
    return absolute.amax(1), absolute.sum(1, dtype=torch.int64)


def check_form(batch: Batch, image: tuple[int, ...], device: torch.device) -> None:
    """Raise Mismatch unless types, shape, layout and device follow the contract; reads no values."""
    if not isinstance(batch, Batch):
        raise Mismatch(f"found a {type(batch).__name__} in place of a batch, expected a loaders.base.Batch")
    for name in ("images", "labels", "ids"):
        if not isinstance(part := getattr(batch, name), torch.Tensor):
            raise Mismatch(f"found {name} that are a {type(part).__name__}, expected a tensor on {device}")
    n = len(batch.ids)
    expected = {
        "images": (batch.images, torch.uint8, (n, *image)),
        "labels": (batch.labels, torch.int64, (n,)),
        "ids": (batch.ids, torch.int64, (n,)),
    }
    for name, (tensor, dtype, shape) in expected.items():
        right = (
            tensor.dtype == dtype
            and tuple(tensor.shape) == shape
            and tensor.is_contiguous()
            and same_device(tensor.device, device)
        )
        if not right:
            raise Mismatch(
                f"found {name} {form(tensor)}, expected contiguous {type_name(dtype)} {shape} on {device}"
            )


def form(tensor: torch.Tensor) -> str:
    layout = "contiguous" if tensor.is_contiguous() else "not contiguous"
    return f"{layout} {type_name(tensor.dtype)} {tuple(tensor.shape)} on {tensor.device}"


def type_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def same_device(found: torch.device, expected: torch.device) -> bool:
    """Return whether two devices are the same; `mps` is `mps:0`."""
    return found.type == expected.type and (found.index or 0) == (expected.index or 0)


def ids_of(batch: Batch, split_ids: np.ndarray) -> np.ndarray:
    """Return the ids of a batch without a promised order; raise Mismatch unless all are of the split."""
    ids = batch.ids.cpu().numpy()  # sync point
    strange = ids[~np.isin(ids, split_ids)]
    if len(strange):
        raise Mismatch(
            f"found {len(strange)} ids in a batch that are not in the split (first: {strange[0]}), "
            f"expected ids of its {len(split_ids)} samples"
        )
    return ids


def check_promise(order: np.ndarray, split_ids: np.ndarray, reference: Reference) -> None:
    """Raise Mismatch unless Loader.order() contains every sample of the split once."""
    try:
        check_samples(order, split_ids, reference)
    except Mismatch as error:
        raise Mismatch(f"Loader.order() is no order of the split: {error}") from error


def check_samples(ids: np.ndarray, split_ids: np.ndarray, reference: Reference) -> None:
    """Raise Mismatch unless every sample came exactly once."""
    if np.array_equal(np.sort(ids), split_ids):
        return
    strange = ids[~np.isin(ids, split_ids)]
    unique, counts = np.unique(ids, return_counts=True)
    twice, lost = unique[counts > 1], np.setdiff1d(split_ids, ids)
    parts = []
    if len(strange):
        parts.append(f"{len(strange)} ids that are not in the split (first: {strange[0]})")
    if len(twice):
        parts.append(f"{len(twice)} samples more than once (first: {reference.name(twice[0])})")
    if len(lost):
        parts.append(f"{len(lost)} samples never (first: {reference.name(lost[0])})")
    raise Mismatch(f"found {' and '.join(parts)}, expected each of the {len(split_ids)} samples once")


def check_sizes(sizes: list[int], count: int, size: int) -> None:
    """Raise Mismatch unless all batches have one size, except a smaller last one."""
    expected = [min(size, count - start) for start in range(0, count, size)]
    for number, (found, right) in enumerate(zip(sizes, expected, strict=False)):
        if found != right:
            raise Mismatch(f"found {found} samples in batch {number} (counted from 0), expected {right}")
    if len(sizes) != len(expected):
        raise Mismatch(f"found {len(sizes)} batches, expected {len(expected)}")


def check_order(ids: np.ndarray, order: np.ndarray, reference: Reference) -> None:
    """Raise Mismatch unless the samples came in the promised order."""
    wrong = np.flatnonzero(ids != order)
    if len(wrong):
        place = wrong[0]
        raise Mismatch(
            f"found {reference.name(ids[place])} at place {place}, "
            f"expected {reference.name(order[place])}, which Loader.order() promised there"
        )


def check_labels(order: np.ndarray, labels: np.ndarray, reference: Reference) -> None:
    """Raise Mismatch unless the labels are the manifest's."""
    expected = reference.labels[order]
    wrong = np.flatnonzero(labels != expected)
    if len(wrong):
        first = wrong[0]
        raise Mismatch(
            f"found label {labels[first]} for {reference.name(order[first])}, expected {expected[first]} "
            f"as in the manifest; {len(wrong)} of {len(order)} labels differ"
        )


def check_pixels(
    seen: Seen, reference: Reference, source: PixelSource, epoch: int, found: Differences
) -> None:
    """Add the epoch to `found`; raise Mismatch if any image exceeds the tolerance."""
    ids, values = seen.whole("compared"), math.prod(reference.shape)
    largest, mean = seen.whole("largest"), seen.whole("total") / values
    most, most_mean = reference.allowed(source, ids, epoch)
    beyond = np.flatnonzero((largest > most) | (mean > most_mean))
    found.samples += len(ids)
    found.values += len(ids) * values
    found.total += int(seen.whole("total").sum())
    found.largest = max(found.largest, int(largest.max(initial=0)))
    found.beyond += len(beyond)
    named = [
        {
            "id": int(ids[i]),
            "path": reference.paths[ids[i]],
            "max_difference": int(largest[i]),
            "mean_difference": float(mean[i]),
        }
        for i in beyond[:OFFENDERS]
    ]
    found.offenders = [*found.offenders, *named][:OFFENDERS]
    if len(beyond):
        first = beyond[0]
        agree = seen.exchanged <= most[0] and 4 * seen.exchanged < largest[0]
        hint = "; with red and blue exchanged they agree" if agree else ""
        raise Mismatch(
            f"found {len(beyond)} of {len(ids)} images beyond the tolerance, the first "
            f"{reference.name(ids[first])} by {largest[first]} (mean {mean[first]:.4g}), "
            f"expected at most {most[first]} (mean {most_mean[first]:g}) from Pillow{hint}"
        )

"""Crop, resize and flip windows of images of any sizes as one batch.

On the CPU this is the reference, RandomResizedCrop.cut, which is Pillow. On CUDA it is one launch a batch
(resample_kernel.py) of Pillow's arithmetic with float32 weights: at most a few values in a thousand differ
from Pillow's, by 1. But if a window's height shrinks clearly more than its width, Pillow 13 sums columns
before rows. The kernel sums rows first, as Pillow 12 always does; the rounding in between then makes a
quarter of the values differ, by 1.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from gpufeed.augment.random_resized_crop import RandomResizedCrop, Windows
from gpufeed.core.errors import GpufeedError, Skip
from gpufeed.decoders.ragged import Ragged
from gpufeed.native import jit_toolchain

Fields = np.ndarray | torch.Tensor  # fields of a table: on the host, on a device
ROUNDING = 1e-6  # pixels by which a box may exceed its image


def require_resample(device: torch.device) -> None:
    """Raise Skip if windows cannot be resized on this device."""
    if device.type == "cpu":
        return
    if device.type != "cuda":
        raise Skip(f"Windows are resized on CUDA and the CPU, and this cell's device is {device.type}.")
    if lack := jit_toolchain.lacking_for_gpu(device):
        raise Skip(f"Triton compiles the kernel that resizes windows on its node, which has {lack}.")


def prepare(device: torch.device, size: int) -> None:
    """Compile the kernels of `resample` on a CUDA device, so that the first batch does not wait for them.

    Raises Skip as require_resample does.
    """
    require_resample(device)
    if device.type != "cuda":
        return
    sides = torch.full((1,), 8)
    windows = RandomResizedCrop(size).windows(torch.zeros_like(sides), 0, sides, sides)
    image = torch.zeros((8, 8, 3), dtype=torch.uint8, device=device)
    for one in (image, image.view(3, 8, 8).permute(1, 2, 0)):  # pixels, and planes
        resample([one], windows, size)


def resample(
    images: Sequence[torch.Tensor] | Ragged, windows: Windows, size: int, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the sample of each window, uint8 (N, size, size, 3), on the images' device and current stream.

    images: uint8 (H, W, 3) with any strides, so that planes can be passed as planes.permute(1, 2, 0). Memory
    that is not torch's must stay until the stream is done. If a Ragged holds parts of images, windows are
    still of the full images, and the parts must cover Windows.needed. windows: on the host or on that device;
    top, left, height and width may be fractions of a pixel (float64). A CUDA graph may capture the call if
    all arguments are on the device, after one call before. Values on the device are not checked; whatever the
    window, no byte outside of an image is read.
    """
    device, count = checked(images)
    shape = (count, size, size, 3)
    if out is None:
        out = torch.empty(shape, dtype=torch.uint8, device=device)
    elif (out.dtype, out.shape, out.device) != (torch.uint8, shape, device) or not out.is_contiguous():
        raise GpufeedError(
            f"out {out.dtype} {tuple(out.shape)} on {out.device} with strides {out.stride()}",
            f"contiguous torch.uint8 {shape} on {device}",
            "pass the memory of the whole batch",
        )
    if isinstance(images, Ragged) and images.whole is not None:
        check_parts(images, windows.needed(size))
    sources, fields = source_fields(images), window_fields(windows)
    if isinstance(sources, np.ndarray) and isinstance(fields, np.ndarray):
        table = np.concatenate([sources, fields])
        check_windows(table, size)
        table = uploaded(table, device)
    else:
        table = torch.cat([uploaded(sources, device), uploaded(fields, device)])
    if device.type == "cuda" or jit_toolchain.interpreted():
        launch(out, table, interleaved(images))
        return out
    recipe = RandomResizedCrop(size)
    views = whole_images(images) if isinstance(images, Ragged) else images
    for place, image, window in zip(out, views, windows, strict=True):
        place.copy_(torch.from_numpy(recipe.cut(image.numpy(), window)))
    return out


def launch(out: torch.Tensor, table: torch.Tensor, whole_pixels: bool) -> None:
    """Run the kernel on the current stream of out's device. whole_pixels: from `interleaved`."""
    from gpufeed.augment.resample_kernel import TILE, WARPS, resample_tiles

    count, size = out.shape[:2]
    with torch.cuda.device_of(out):
        resample_tiles[(count * (-(-size // TILE)) ** 2,)](
            out, table, count, SIZE=size, INTERLEAVED=whole_pixels, TILE=TILE, num_warps=WARPS
        )


def checked(images: Sequence[torch.Tensor] | Ragged) -> tuple[torch.device, int]:
    """Return the images' device and number; raise GpufeedError unless `resample` can read them."""
    tensors = [images.flat] if isinstance(images, Ragged) else images
    if not len(images):
        raise GpufeedError("an empty batch", "at least one image", "leave empty batches out")
    device = tensors[0].device
    for tensor in tensors:
        color = isinstance(images, Ragged) or (tensor.ndim == 3 and tensor.shape[2] == 3)
        if tensor.dtype != torch.uint8 or tensor.device != device or not color:
            raise GpufeedError(
                f"an image {tensor.dtype} {tuple(tensor.shape)} on {tensor.device}",
                f"torch.uint8 (H, W, 3) on {device}",
                "pass decoded pixels on one device, and planes (3, H, W) as planes.permute(1, 2, 0)",
            )
    return device, len(images)


def interleaved(images: Sequence[torch.Tensor] | Ragged) -> bool:
    """Return whether each pixel is three neighbouring bytes, without gaps between pixels."""
    if isinstance(images, Ragged):
        return not images.planar
    return all(image.stride()[1:] == (3, 1) for image in images)


def source_fields(images: Sequence[torch.Tensor] | Ragged) -> Fields:
    """Return int64 (6, N): address, strides of rows, columns and channels in bytes, height, width."""
    if not isinstance(images, Ragged):
        return np.array([(i.data_ptr(), *i.stride(), *i.shape[:2]) for i in images]).T
    offsets, heights, widths, *sides = map(
        as_array, (images.offsets, images.heights, images.widths, *images.sides())
    )
    library = np if isinstance(offsets, np.ndarray) else torch
    one = library.ones_like(widths)
    strides = (widths, one, heights * widths) if images.planar else (3 * widths, 3 * one, one)
    addresses = offsets + images.flat.data_ptr()
    if images.whole is not None:  # where the full image would begin
        top, left = as_array(images.whole)[:2]
        addresses = addresses - top * strides[0] - left * strides[1]
    return library.stack([addresses, *strides, *sides])


def whole_images(images: Ragged) -> Iterator[torch.Tensor]:
    """Yield each full image on the host, with zeros outside the part that is there."""
    if images.whole is None:
        yield from images.views()
        return
    for part, (top, left, height, width) in zip(images.views(), images.whole.T.tolist(), strict=True):
        image = torch.zeros((height, width, 3), dtype=torch.uint8)
        image[top : top + len(part), left : left + part.shape[1]] = part
        yield image


def check_parts(images: Ragged, needed: torch.Tensor) -> None:
    """Raise GpufeedError unless parts cover what windows need of them, int32 (N, 4); all on the host."""
    needed, whole = needed.numpy(), images.whole.numpy()
    first, sides = needed[:, :2].T - whole[:2], np.stack([images.heights.numpy(), images.widths.numpy()])
    wrong = ((first < 0) | (first + needed[:, 2:].T > sides)).any(0)
    if wrong.any():
        n = int(wrong.argmax())
        raise GpufeedError(
            f"window {n}, which needs {needed[n, 2:].tolist()} pixels from {needed[n, :2].tolist()}, and a "
            f"part of {sides[:, n].tolist()} from {whole[:2, n].tolist()}",
            "parts that cover what windows need",
            "decode the parts that Windows.needed returns for the same windows",
        )


def window_fields(windows: Windows) -> Fields:
    """Return int64 (9, N): the fields of windows in order, the first four as the bits of float64."""
    values = [as_array(value) for value in vars(windows).values()]
    if isinstance(values[0], np.ndarray):
        box = np.stack(values[:4]).astype(np.float64).view(np.int64)
        return np.concatenate([box, np.stack([*values[4:8], values[8].astype(np.int64)])])
    box = torch.stack(values[:4]).to(torch.float64).view(torch.int64)
    return torch.cat([box, torch.stack([*values[4:8], values[8].long()])])


def as_array(values: torch.Tensor) -> Fields:
    """Return numpy's view of a tensor on the host, the tensor itself elsewhere.

    torch releases and reacquires the GIL in each call, even for so few numbers; numpy does not. Threads that
    make batches side by side waited for the GIL longer than they computed.
    """
    return values.numpy() if values.device.type == "cpu" else values


def uploaded(table: Fields, device: torch.device) -> torch.Tensor:
    """Copy the table to the device, without waiting."""
    table = torch.from_numpy(np.ascontiguousarray(table)) if isinstance(table, np.ndarray) else table
    return table if table.device == device else table.pin_memory().to(device, non_blocking=True)


def check_windows(table: np.ndarray, size: int) -> None:
    """Raise GpufeedError unless all windows of a table on the host are inside their images."""
    begin, length = table[6:8].view(np.float64), table[8:10].view(np.float64)
    inside = (begin >= 0) & (length > 0) & (begin + length <= table[4:6] + ROUNDING)
    kept = (table[12:14] >= 0) & (table[12:14] + size <= table[10:12])
    wrong = ~(inside & kept).all(0)
    if wrong.any():
        n = int(wrong.argmax())
        raise GpufeedError(
            f"window {n}: {length[:, n].tolist()} pixels from {begin[:, n].tolist()} of an image of "
            f"{table[4:6, n].tolist()}, and {size} x {size} from {table[12:14, n].tolist()} of the "
            f"{table[10:12, n].tolist()} that they are resized to",
            "parts inside the image",
            "make windows from the sizes of these images",
        )

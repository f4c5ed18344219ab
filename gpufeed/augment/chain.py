"""The augment `chain`: one kernel for each step, CuPy's for normalisation, Numba's for the rest.

Torch and CuPy exchange tensors by DLPack, at the same address, or for comparison through the host: two copies
each way through pageable memory, for which the host waits. Every kernel runs on torch's current stream, and
all memory is torch's.
"""

import functools
import warnings
from collections.abc import Sequence
from typing import Any, ClassVar

import cupy
import numpy as np
import torch
from cuda.core.utils import StridedMemoryView

from gpufeed.augment import amounts
from gpufeed.augment.base import DeviceAugment, check_addresses, check_batch, require_cuda
from gpufeed.augment.chain_kernels import (
    EACH,
    THREADS,
    TILE,
    TURN_ROWS,
    WINDOW_ROWS,
    brightness_kernel,
    contrast_kernel,
    draw_kernel,
    rotation_kernel,
    salt_pepper_kernel,
    window_kernel,
)
from gpufeed.augment.numba_cuda import cuda
from gpufeed.core.errors import GpufeedError
from gpufeed.system import random_draws


def torch_to_cupy(tensor: torch.Tensor) -> cupy.ndarray:
    """Return the CuPy array at the same address. Raises GpufeedError for a tensor on the CPU or with gaps.

    stream=-1 skips synchronisation, since both sides run on torch's current stream.
    """
    check_addresses(tensor)
    return cupy.from_dlpack(tensor.detach().__dlpack__(stream=-1))


def cupy_to_torch(array: cupy.ndarray) -> torch.Tensor:
    """Return the tensor at the same address."""
    with on_stream():
        return torch.from_dlpack(array)


@functools.lru_cache(maxsize=64)
def _cupy_stream(stream: torch.cuda.Stream) -> cupy.cuda.Stream:
    return cupy.cuda.Stream.from_external(stream)


def on_stream() -> cupy.cuda.Stream:
    """Return a context in which CuPy uses torch's current stream."""
    return _cupy_stream(torch.cuda.current_stream())


def host_to_cupy(tensor: torch.Tensor) -> cupy.ndarray:
    """Return a CuPy array with the tensor's values, copied through the host; numpy must have its type."""
    with on_stream():
        return cupy.asarray(tensor.cpu().numpy())


def host_to_torch(array: cupy.ndarray, device: torch.device) -> torch.Tensor:
    """Return a tensor on the device with the array's values, copied through the host."""
    with on_stream():
        return torch.from_numpy(cupy.asnumpy(array)).to(device)


MOST_PIXELS = 2**20  # of an image, so that float32 can hold its pixels' positions
MOST_VALUES = 2**32  # of a batch: chain_kernels.place
DRAWS_BLOCK = 128


@functools.lru_cache(maxsize=64)
def _numba_stream(stream: torch.cuda.Stream) -> Any:
    return cuda.external_stream(stream.cuda_stream)


@functools.lru_cache(maxsize=256)
def _configured(kernel: Any, grid: tuple[int, ...], block: int, stream: torch.cuda.Stream) -> Any:
    """Return the kernel for a grid and a stream, cached since Numba would look them up at each launch."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Grid size")  # small batches have small grids
        return kernel[grid, block, _numba_stream(stream)]


def launch(kernel: Any, grid: tuple[int, ...], block: int, *arguments: Any) -> None:
    """Start a Numba kernel on torch's current stream; tensors among the arguments go by DLPack."""
    # -1: no synchronisation, since both sides run on the same stream
    views = [
        StridedMemoryView.from_dlpack(argument, stream_ptr=-1)
        if isinstance(argument, torch.Tensor)
        else argument
        for argument in arguments
    ]
    _configured(kernel, grid, block, torch.cuda.current_stream())(*views)


# The half types are defined by their bits, since CuPy's wheel may lack the toolkit's headers.
NORMALISE = r"""
struct Half { unsigned short bits; };
struct Bfloat { unsigned short bits; };

__device__ void put(float& to, float value) { to = value; }
__device__ void put(Half& to, float value) {
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to.bits) : "f"(value));
}
__device__ void put(Bfloat& to, float value) {  // to the nearest, ties to even; no NaN comes here
    const unsigned bits = __float_as_uint(value);
    to.bits = (unsigned short)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

template <typename T> struct alignas(4 * sizeof(T)) Four { T at[4]; };
struct Three { float at[3]; };

// channel: of the first of the four values
template <typename In, typename Out>
__device__ Four<Out> normalised(const Four<In>& in, unsigned channel,
                                const Three& scale, const Three& shift) {
    Four<Out> out;
#pragma unroll
    for (unsigned k = 0; k < 4; ++k) {
        const unsigned c = (channel + k) % 3;
        const float s = c == 0 ? scale.at[0] : c == 1 ? scale.at[1] : scale.at[2];
        const float t = c == 0 ? shift.at[0] : c == 1 ? shift.at[1] : shift.at[2];
        put(out.at[k], float(in.at[k]) * s + t);
    }
    return out;
}

// Twice four neighbouring values a thread, so that two reads are under way. 4 leaves 1 when divided by 3:
// the channel of the first value of the t-th four is t % 3.
template <typename In, typename Out>
__global__ void normalise(const In* in, Out* out, unsigned long long size,
                          float s0, float s1, float s2, float t0, float t1, float t2) {
    const Three scale = {{s0, s1, s2}}, shift = {{t0, t1, t2}};
    const unsigned long long fours = size / 4;
    const unsigned long long t = blockIdx.x * (unsigned long long)(2 * blockDim.x) + threadIdx.x;
    const unsigned long long u = t + blockDim.x;
    const Four<In>* from = reinterpret_cast<const Four<In>*>(in);
    Four<Out>* to = reinterpret_cast<Four<Out>*>(out);
    Four<In> a, b;
    if (t < fours) a = from[t];
    if (u < fours) b = from[u];
    if (t < fours) to[t] = normalised<In, Out>(a, unsigned(t % 3), scale, shift);
    if (u < fours) to[u] = normalised<In, Out>(b, unsigned(u % 3), scale, shift);
    if (t < size % 4) {
        const unsigned long long at = 4 * fours + t;
        const unsigned c = unsigned(at % 3);
        put(out[at], float(in[at]) * scale.at[c] + shift.at[c]);
    }
}
"""
C_NAMES = {
    torch.uint8: "unsigned char",
    torch.float32: "float",
    torch.float16: "Half",
    torch.bfloat16: "Bfloat",
}
NORMALISE_THREADS = 256


@functools.cache
def _normalise_kernel(given: torch.dtype, wanted: torch.dtype) -> cupy.RawKernel:
    name = f"normalise<{C_NAMES[given]}, {C_NAMES[wanted]}>"
    module = cupy.RawModule(code=NORMALISE, options=("--std=c++17",), name_expressions=[name])
    return module.get_function(name)


def gpu_normalize_images(
    images: torch.Tensor,
    mean: Sequence[float],
    std: Sequence[float],
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """Return (value / 255 - mean) / std by CuPy. images: uint8 or float32 (N, H, W, 3), values in 0..255.

    Returns (N, 3, H, W), channels_last, of float32, float16 or bfloat16. Raises GpufeedError for other
    types, for tensors that are not on the current device, not contiguous or empty.
    """
    if images.dtype not in (torch.uint8, torch.float32):
        raise GpufeedError(f"images of {images.dtype}", "torch.uint8 or torch.float32", "convert them")
    if dtype not in amounts.DTYPES.values():
        raise GpufeedError(f"dtype {dtype}", f"one of {', '.join(amounts.DTYPES)}", "choose one of them")
    check_shape(images)
    check_addresses(images)
    out = torch.empty(images.shape, dtype=dtype, device=images.device)
    scale = [np.float32(1 / (255 * value)) for value in std]
    shift = [np.float32(-m / s) for m, s in zip(mean, std, strict=True)]
    if images.data_ptr() % (4 * images.itemsize):
        raise GpufeedError(
            "images at an address that is no multiple of four values",
            "a batch aligned to four values",
            "call .clone()",
        )
    size = images.numel()
    blocks = max(1, -(-size // (8 * NORMALISE_THREADS)))
    # CuPy has no bfloat16: the result is passed as bytes, and the kernel knows their type
    arrays = torch_to_cupy(images), torch_to_cupy(out.view(torch.uint8))
    kernel = _normalise_kernel(images.dtype, dtype)
    with on_stream():
        kernel((blocks,), (NORMALISE_THREADS,), (*arrays, np.uint64(size), *scale, *shift))
    return out.permute(0, 3, 1, 2)


def check_shape(images: torch.Tensor) -> None:
    """Raise GpufeedError unless images are (N, H, W, 3), with N > 0."""
    if images.ndim != 4 or images.shape[3] != 3 or 0 in images.shape:
        raise GpufeedError(
            f"images of shape {tuple(images.shape)}",
            "(N, H, W, 3), at least one",
            "permute channels to the end",
        )


class ChainAugment(DeviceAugment):
    """One kernel a step: draws, window, rotation, brightness, contrast, salt and pepper, normalisation."""

    defaults: ClassVar[dict[str, Any]] = {**amounts.DEFAULTS, "exchange": "dlpack"}

    def __init__(self, mean: Sequence[float], std: Sequence[float], seed: int, options: dict[str, Any]):
        """Raise Skip without a CUDA GPU."""
        super().__init__(mean, std, seed, options)
        require_cuda("chain")
        low, high = seed & random_draws.MASK, (seed >> random_draws.BITS) & random_draws.MASK
        self.key = low, high
        self.state = random_draws.fold(random_draws.fold(0, low), high)

    def __call__(self, images: torch.Tensor, ids: torch.Tensor, epoch: int | torch.Tensor) -> torch.Tensor:
        """Return (N, 3, H, W), channels_last, of `dtype`. images: uint8 (N, H, W, 3), ids: int64 (N,)."""
        if self.options["exchange"] == "host":
            return self._through_host(images, ids, epoch)
        return self.preprocess_batch(images, ids, epoch)

    def _through_host(
        self, images: torch.Tensor, ids: torch.Tensor, epoch: int | torch.Tensor
    ) -> torch.Tensor:
        """Return the same pixels, with the batch copied to CuPy and the result to torch through the host."""
        check_batch(images, ids)
        check_addresses(images, ids)
        ours = host_to_cupy(images)
        out = self.preprocess_batch(cupy_to_torch(ours), ids, epoch)
        # as bytes: numpy has no bfloat16
        values = torch_to_cupy(out.permute(0, 2, 3, 1).view(torch.uint8))
        return host_to_torch(values, images.device).view(out.dtype).permute(0, 3, 1, 2)

    def preprocess_batch(
        self, images: torch.Tensor, ids: torch.Tensor, epoch: int | torch.Tensor
    ) -> torch.Tensor:
        """Run all steps whose amount is not 0, one after the other, on torch's current stream."""
        check_batch(images, ids)
        check_addresses(images, ids)
        n, height, width = images.shape[:3]
        if height * width >= MOST_PIXELS:
            raise GpufeedError(
                f"images of {height} x {width} pixels", "fewer than 2**20", "use augment torch"
            )
        options, values_of = self.options, height * width * 3
        if n * values_of >= MOST_VALUES:
            raise GpufeedError(
                f"a batch of {n * values_of} values", "fewer than 2**32", "use a smaller batch"
            )
        when = (
            epoch.reshape(1)
            if isinstance(epoch, torch.Tensor)
            else torch.full((1,), epoch, device=ids.device)
        )
        drawn = self.draw(ids, when)
        flat = images.view(n, values_of)
        tiles, blocks = (n, -(-height * width // TILE)), (n, -(-values_of // (THREADS * EACH)))
        if self._moves() or images.data_ptr() % 4:  # normalisation reads four bytes at once
            values = torch.empty((n, values_of), dtype=torch.float32, device=images.device)
            window = drawn, options["crop_padding"], height, width
            rows = (n, -(-height // WINDOW_ROWS))
            launch(window_kernel, rows, THREADS, flat.view(-1), *window, values.view(-1))
            flat = values
        if options["rotate_degrees"]:
            turned = torch.empty_like(flat)
            rows = (n, -(-height // TURN_ROWS))
            turn = drawn[3], drawn[4], height, width
            launch(rotation_kernel, rows, THREADS, flat.view(-1), *turn, turned.view(-1))
            flat = turned
        if options["brightness"]:
            launch(brightness_kernel, blocks, THREADS, flat, drawn[5], flat)
        if options["contrast"]:
            pivot = np.float32(255 * options["contrast_pivot"])
            launch(contrast_kernel, blocks, THREADS, flat, drawn[6], pivot, flat)
        if options["salt_pepper"]:
            pepper, salt = amounts.pepper_and_salt(options["salt_pepper"])
            noise = ids, when, *self.key, amounts.NOISE_TAG, pepper, 2**32 - salt
            launch(salt_pepper_kernel, tiles, THREADS, flat, *noise, flat)
        return gpu_normalize_images(
            flat.view(n, height, width, 3), self.mean, self.std, amounts.DTYPES[options["dtype"]]
        )

    def _moves(self) -> bool:
        """Return whether there is anything to do between decoding and normalisation."""
        steps = (
            "crop_padding",
            "flip_probability",
            "rotate_degrees",
            "brightness",
            "contrast",
            "salt_pepper",
        )
        return any(self.options[step] for step in steps)

    def draw(self, ids: torch.Tensor, when: torch.Tensor) -> torch.Tensor:
        """Return the draws of each sample, float32 (7, N), as in draw_kernel. when: the epoch, int64 (1,)."""
        options = self.options
        drawn = torch.empty((7, len(ids)), dtype=torch.float32, device=ids.device)
        sizes = [np.float32(options[name]) for name in ("rotate_degrees", "brightness", "contrast")]
        numbers = self.state, options["crop_padding"], round(options["flip_probability"] * 2**32), *sizes
        blocks = (-(-len(ids) // DRAWS_BLOCK),)
        launch(draw_kernel, blocks, DRAWS_BLOCK, ids, when, *numbers, drawn)
        return drawn

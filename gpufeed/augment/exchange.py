"""How a batch changes hands between torch and CuPy: by DLPack at the same address, or through the host.

Everything is queued on torch's current stream. Through the host is how it goes without DLPack: two copies
each way through pageable memory, and the host waits for the device. It is there to be measured against.
"""

import functools

import cupy
import torch

from gpufeed.augment.batch_checks import check_addresses
from gpufeed.core.errors import unknown

EXCHANGES = ("dlpack", "host")


def check_exchange(name: object) -> None:
    """Raises GpufeedError unless `name` is one of EXCHANGES."""
    if name not in EXCHANGES:
        raise unknown("exchange", name, EXCHANGES, where="config/hydra/augment")


def torch_to_cupy(tensor: torch.Tensor) -> cupy.ndarray:
    """The CuPy array at the same address. Raises GpufeedError for a tensor on the CPU or with gaps.

    The capsule is asked for without a stream, since both sides run on torch's current one.
    """
    check_addresses(tensor)
    return cupy.from_dlpack(tensor.detach().__dlpack__(stream=-1))


def cupy_to_torch(array: cupy.ndarray) -> torch.Tensor:
    """The tensor at the same address."""
    with on_stream():
        return torch.from_dlpack(array)


@functools.lru_cache(maxsize=64)
def _cupy_stream(stream: torch.cuda.Stream) -> cupy.cuda.Stream:
    return cupy.cuda.Stream.from_external(stream)


def on_stream() -> cupy.cuda.Stream:
    """A context in which CuPy uses torch's current stream."""
    return _cupy_stream(torch.cuda.current_stream())


def host_to_cupy(tensor: torch.Tensor) -> cupy.ndarray:
    """A CuPy array with the tensor's values, brought over the host; torch types that numpy has."""
    with on_stream():
        return cupy.asarray(tensor.cpu().numpy())


def host_to_torch(array: cupy.ndarray, device: torch.device) -> torch.Tensor:
    """A tensor on the device with the array's values, brought over the host."""
    with on_stream():
        return torch.from_numpy(cupy.asnumpy(array)).to(device)

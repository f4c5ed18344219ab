"""What SPDL's loaders run in processes of their own, and what comes back from there."""

import multiprocessing
import os
import pickle
import signal
import traceback
from dataclasses import replace
from multiprocessing.reduction import ForkingPickler

import torch

from gpufeed.core.errors import GpufeedError
from gpufeed.loaders.base import LoadRequest
from gpufeed.loaders.batch_transfer import empty_batch
from gpufeed.loaders.spdl_batches import BatchMaker, Made, Part
from gpufeed.system.processes import settle

# not forked: this process may have started CUDA; not from Python's fork server, which would stay behind
CONTEXT = multiprocessing.get_context("spawn")


class SendingMaker(BatchMaker):
    """A maker of batches in another process, which has nothing to do with the GPU."""

    def __init__(self, request: LoadRequest):
        """Raises GpufeedError for a transform that no process can be sent."""
        check_transform(request)
        super().__init__(replace(request, device=torch.device("cpu"), pin_memory=False))

    def attempt(self, part: Part) -> Made | Exception:
        found = super().attempt(part)
        return sendable(found) if isinstance(found, Exception) else found

    def batch_bytes(self, samples: int) -> int:
        """Of a whole batch, as it will come; samples: of an epoch, which may be fewer."""
        image, transform = torch.zeros(self.samples.shape, dtype=torch.uint8), self.request.sample_transform
        if transform is not None:
            image = transform(image, 0, 0)
        return image.nbytes * min(self.request.batch_size, samples)


def taken(made: Made, request: LoadRequest) -> Made:
    """A batch of another process in (pinned) memory of this one: what it came in may be used again."""
    shape, dtype = tuple(made.images.shape), made.images.dtype
    images = empty_batch(shape, dtype, torch.device("cpu"), request)
    return Made(images.copy_(made.images), made.left)


def begin() -> None:
    """Makes a process one that ends with its parent and leaves all other signals to it."""
    leave_signals()
    settle()
    if (
        not multiprocessing.parent_process().is_alive()
    ):  # it went while this one imported: `settle` saw another
        os._exit(1)
    torch.set_num_threads(1)  # as in the DataLoader's workers: batches are made beside each other


def leave_signals() -> None:
    """Ignores what shells and Slurm send to all processes of a job."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def sendable(error: Exception) -> Exception:
    """The error with its traceback as a note; its type and words alone where pickle does not take it."""
    error.add_note("".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def check_transform(request: LoadRequest) -> None:
    """Raises GpufeedError for a transform of samples that cannot be sent to a process."""
    try:
        ForkingPickler.dumps(request.sample_transform)
    except Exception as error:
        raise GpufeedError(
            f"a transform of samples that cannot be sent to a process ({error})",
            "one that pickle takes, for processes of SPDL's",
            "define it at the top of a module, or use loader spdl without persistent_workers",
        ) from error


def gone(error: Exception, expected: str) -> GpufeedError:
    """What is wrong when a process has died. expected: what there should be."""
    return GpufeedError(
        f"a process of SPDL's pipeline is gone: {error}",
        expected,
        "look for an out-of-memory kill, a full /dev/shm or its words in the log; take fewer workers",
    )

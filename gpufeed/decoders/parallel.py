"""Decode as fast as the given cores allow, from files to the device.

A decoder of one core runs in processes that decode into shared memory. One with its own threads, like a GPU
decoder, gets a whole batch in one call, while a thread reads the files of the next batch.
"""

import contextlib
import itertools
import logging
import mmap
import os
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from multiprocessing import get_context
from multiprocessing.reduction import send_handle
from pathlib import Path

import numpy as np
import torch

from gpufeed.core.errors import GpufeedError
from gpufeed.core.registry import DECODERS, load
from gpufeed.decoders.base import Decoded, DeviceDecoded, Outcome, bad_file, checked
from gpufeed.decoders.decoding_process import Opening, Task, serve
from gpufeed.decoders.encoded_file import mean_size, read_file
from gpufeed.decoders.image_transfer import split, to_device

SLOTS = 3  # batches in flight, so that no process waits for the slowest one or for a copy
COPIERS = 4  # threads that copy the images of a batch to a slot
STUCK_S = 300  # a process without an answer for so long counts as stuck
END_S = 5  # to wait for killed processes; one that hangs in the kernel on a dead disk may outlive it

log = logging.getLogger("gpufeed")


@dataclass(frozen=True)
class Files:
    """The files to decode, in this order, again and again in batches of `batch_size`.

    height, width: of every image; None if they differ: then `sizes` has them, int64 (files, 2). manifest,
    strips: the dataset of these files and its strips.bin, to decode whole strips instead.
    """

    paths: list[str]
    height: int | None
    width: int | None
    batch_size: int
    manifest: Path | None = None
    strips: Path | None = None
    sizes: np.ndarray | None = None

    @cached_property
    def shapes(self) -> list[tuple[int, int, int]]:
        """The shape of each file's image, (H, W, 3)."""
        if self.sizes is None:
            return [(self.height, self.width, 3)] * len(self.paths)
        return [(height, width, 3) for height, width in self.sizes.tolist()]

    @cached_property
    def lengths(self) -> np.ndarray:
        """Bytes of each file's image, int64 (files,)."""
        return np.array(self.shapes, np.int64).prod(axis=1)

    def numbers(self, batch: int) -> np.ndarray:
        """Return the numbers of a batch's files, int64 (batch_size,), wrapping around after the last."""
        return np.arange(batch * self.batch_size, (batch + 1) * self.batch_size) % len(self.paths)

    def bounds(self, numbers: np.ndarray) -> np.ndarray:
        """Return the offsets of n files' images in flat memory, and their end, int64 (n + 1,)."""
        return np.concatenate([[0], np.cumsum(self.lengths[numbers])])

    def room(self) -> int:
        """Return the bytes of the largest batch, whichever file it begins with."""
        every = self.bounds(np.arange(len(self.paths) + self.batch_size) % len(self.paths))
        return int((every[self.batch_size :] - every[: -self.batch_size]).max())

    def images(self, numbers: np.ndarray, flat: torch.Tensor) -> torch.Tensor | list[torch.Tensor]:
        """Return views of the files' images in flat memory, uint8: (n, H, W, 3), or a list of (H, W, 3)."""
        if self.sizes is None:
            return flat[: self.bounds(numbers)[-1]].view(-1, self.height, self.width, 3)
        return list(split(flat, [self.shapes[number] for number in numbers]))


class Bulk(ABC):
    """A decoder on several cores: made once (processes, threads, buffers), opened for files many times.

    fell_back: images so far that another decoder had to decode. settings: as in Decoder.settings, for the
    open files.
    """

    files: Files
    settings: dict[str, float | None] = {}  # noqa: RUF012
    slots: "Slots | None" = None  # memory of the batches in flight, if it needs any

    def __init__(self, device: torch.device):
        self.device, self.fell_back = device, 0

    @abstractmethod
    def open(self, files: Files) -> None:
        """Prepare for these files, which replace those opened before."""

    def reads(self) -> list[str]:
        """Return every file that a run may read."""
        return self.files.paths

    def let_go(self) -> None:  # noqa: B027 - most have nothing mapped
        """Unmap files, so that the kernel can evict their pages."""

    @abstractmethod
    def run(self, images: int) -> Iterator[torch.Tensor | list[torch.Tensor]]:
        """Decode at least `images` files in whole batches, from the first file on.

        Yields uint8 (n, H, W, 3) on the device, or a list of (H, W, 3) for files of several sizes. They are
        ready for the current stream and valid until the next batch. Raises GpufeedError for a file that no
        decoder can decode; it can run again afterwards. After the GpufeedError for a process that died or is
        stuck, it can only be closed.
        """

    @abstractmethod
    def version(self) -> str:
        """Return the decoder and version of its library."""

    @abstractmethod
    def close(self) -> None:
        """End processes and threads; safe to call twice."""

    def _drop_slots(self) -> None:
        if self.slots is not None:
            self.slots.close()
            self.slots = None

    def __enter__(self) -> "Bulk":
        return self

    def __exit__(self, *exception) -> None:
        self.close()


def open_bulk(decoder: str, cores: int, device: torch.device, core_ids: list[int] | None = None) -> Bulk:
    """Return the bulk form of a registered decoder on `cores` cores.

    core_ids: the cores of its processes, by default any. Raises Skip if the node lacks what the decoder
    needs.
    """
    if load("decoder", decoder).parallel == "processes":
        return ProcessBulk(decoder, cores, device, core_ids)
    return CallBulk(decoder, cores, device)


class Slots:
    """Host memory for SLOTS batches, page-locked for a GPU, and the copy from it to the device."""

    def __init__(self, files: Files, device: torch.device, shared: bool):
        shape = (SLOTS, files.room())
        self.device, self.registered, self.descriptor = device, False, None
        self.copied: list[torch.cuda.Event | None] = [None] * SLOTS
        if shared:
            self.descriptor, self.host = shared_tensor(shape)
            if device.type == "cuda":
                page_lock(self.host)
                self.registered = True
        else:
            self.host = torch.empty(shape, dtype=torch.uint8, pin_memory=device.type == "cuda")

    def free(self, slot: int) -> torch.Tensor:
        """Wait until the copy from the slot is done; return the slot, flat uint8."""
        if (event := self.copied[slot]) is not None:
            event.synchronize()  # sync point: the slot will be overwritten
        return self.host[slot]

    def deliver(self, slot: int, size: int) -> torch.Tensor:
        """Return the first `size` bytes of a slot on the device; for the CPU that is the slot itself."""
        host = self.host[slot, :size]
        if self.device.type == "cpu":
            return host
        batch = torch.empty_like(host, device=self.device, pin_memory=False)
        batch.copy_(host, non_blocking=True)
        if self.device.type == "cuda":
            self.copied[slot] = torch.cuda.Event()
            self.copied[slot].record(torch.cuda.current_stream(self.device))
        else:
            torch.mps.synchronize()
        return batch

    def close(self) -> None:
        for slot in range(SLOTS):
            self.free(slot)
        if self.registered:
            torch.cuda.cudart().cudaHostUnregister(self.host.data_ptr())
            self.registered = False
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


def shared_tensor(shape: tuple[int, ...]) -> tuple[int, torch.Tensor]:
    """Return (descriptor, uint8 tensor) of memory that other processes can map; its last user frees it."""
    size = int(np.prod(shape))
    if hasattr(os, "memfd_create"):  # not limited by the size of /dev/shm, which is small in containers
        descriptor = os.memfd_create("gpufeed")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor, torch.frombuffer(mmap.mmap(descriptor, size), dtype=torch.uint8).view(shape)


def page_lock(host: torch.Tensor) -> None:
    """Lock the pages of a host tensor, so that copies to the GPU overlap other work."""
    torch.cuda.check_error(torch.cuda.cudart().cudaHostRegister(host.data_ptr(), host.numel(), 0))


class ProcessBulk(Bulk):
    """A decoder of one core in a process for each core; each decodes a part of every batch.

    If one does not answer for STUCK_S, all are killed: the others probably wait for the same thing, and each
    pending answer would take as long again.
    """

    def __init__(self, decoder: str, cores: int, device: torch.device, core_ids: list[int] | None = None):
        super().__init__(device)
        self.decoder, self.workers = decoder, []
        self.owed = [0] * cores  # pending answers of each process
        # not forked from this process, which may have started CUDA and holds ends of the other pipes
        context = get_context("forkserver")
        context.set_forkserver_preload(
            ["__main__", "gpufeed.decoders.decoding_process", *modules_of(decoder)]
        )
        try:
            for _ in range(cores):
                ours, theirs = context.Pipe()
                process = context.Process(target=serve, args=(theirs, decoder, core_ids), daemon=True)
                process.start()
                theirs.close()
                self.workers.append((process, ours))
            self.versions = [self._answer(number) for number in range(cores)]
        except BaseException:
            self.close()
            raise

    def open(self, files: Files) -> None:
        self._drop_slots()
        self._check_alive()
        self.files = files
        self.slots = Slots(files, self.device, shared=True)
        opening = Opening(files.paths, files.shapes, tuple(self.slots.host.shape))
        for number, (process, connection) in enumerate(self.workers):
            self._send(number, opening)
            send_handle(connection, self.slots.descriptor, process.pid)
        for number in range(len(self.workers)):
            self._answer(number)

    def run(self, images: int) -> Iterator[torch.Tensor | list[torch.Tensor]]:
        self._check_alive()
        count = -(-images // self.files.batch_size)
        asked: list[list[int]] = []  # of each batch: the processes that decode it
        try:
            for number in range(count):
                while len(asked) < min(count, number + SLOTS):
                    asked.append(self._ask(len(asked)))
                for worker in asked[number]:
                    self.fell_back += self._answer(worker)
                yield delivered(self.files, self.slots, number)
        finally:
            self._drain()

    def _drain(self) -> None:
        """Receive all pending answers, after an error or if the caller stopped early."""
        for number in range(len(self.workers)):
            while self.owed[number]:
                with contextlib.suppress(GpufeedError):
                    self._answer(number)

    def _ask(self, number: int) -> list[int]:
        """Split batch `number` into parts of equally many pixels; return the processes that got one."""
        size, bounds = self.files.batch_size, self.files.bounds(self.files.numbers(number))
        self.slots.free(number % SLOTS)
        parts = min(size, len(self.workers))
        asked = []
        for part, (start, end) in enumerate(itertools.pairwise(cuts(bounds, parts))):
            if start == end:  # next to an image larger than a part
                continue
            worker = (number * parts + part) % len(self.workers)  # round robin: a small batch has few parts
            self._send(worker, Task(number % SLOTS, int(bounds[start]), number * size + start, end - start))
            asked.append(worker)
        return asked

    def _send(self, number: int, message) -> None:
        try:
            self.workers[number][1].send(message)
            self.owed[number] += 1
        except (OSError, IndexError) as error:
            raise self._dead(number) from error

    def _answer(self, number: int):
        """Return the next answer of a process; raise its error, or GpufeedError if it is dead or stuck."""
        connection = self.workers[number][1]
        self.owed[number] = max(0, self.owed[number] - 1)  # an error counts as the answer
        try:
            if not connection.poll(STUCK_S):
                self._kill()
                raise GpufeedError(
                    f"no answer from a decoding process of {self.decoder} for {STUCK_S} s",
                    "an answer for each part of a batch",
                    "look at the load of the node and at the log, and run the command again",
                )
            answer = connection.recv()
        except (EOFError, OSError) as error:
            raise self._dead(number) from error
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _dead(self, number: int) -> GpufeedError:
        code = None
        if number < len(self.workers):
            process = self.workers[number][0]
            process.join(5)
            code = process.exitcode
        return GpufeedError(
            f"a decoding process of {self.decoder} ended (exit code {code}), as when memory runs out",
            "processes that stay alive",
            "give the job more memory or fewer cores, and run the command again",
        )

    def version(self) -> str:
        return self.versions[0]

    def close(self) -> None:
        self._kill()
        self._drop_slots()

    def _kill(self) -> None:
        """Kill the processes and forget their pending answers."""
        for process, connection in self.workers:
            connection.close()
            process.kill()  # a stopped process would not handle SIGTERM, and they have nothing to save
        end = time.monotonic() + END_S
        for process, _ in self.workers:
            process.join(max(0.0, end - time.monotonic()))
            if process.is_alive():
                log.warning("decoding process %d has not ended although it was killed", process.pid)
        self.owed = [0] * len(self.owed)
        self.workers = []

    def _check_alive(self) -> None:
        if not self.workers:
            raise GpufeedError(
                f"no decoding process of {self.decoder} left: one was stuck, or the decoder was closed",
                "running processes",
                "open the decoder again with open_bulk",
            )


def modules_of(decoder: str) -> list[str]:
    """Return the modules that the fork server imports once: the decoder's and those that it needs."""
    return [DECODERS[decoder].target.partition(":")[0], *load("decoder", decoder).needs]


class CallBulk(Bulk):
    """A decoder that runs a whole batch on its own threads or a GPU, while one thread reads ahead.

    Images of several sizes that are decoded on the host are also decoded ahead, while others are copied to a
    slot.
    """

    def __init__(self, decoder: str, cores: int, device: torch.device):
        """Open the decoder. torch stacks images to a batch on its own threads: see `torch_threads`."""
        super().__init__(device)
        self.decoder = load("decoder", decoder)(cores)
        self.reader, self.caller = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
        self.copiers = ThreadPoolExecutor(min(cores, COPIERS))

    @property
    def settings(self) -> dict[str, float | None]:
        return self.decoder.settings

    def open(self, files: Files) -> None:
        self._drop_slots()
        self.files = files
        self.decoder.expect(mean_size(files.paths))
        if self.decoder.parallel != "device":
            self.slots = Slots(files, self.device, shared=False)

    def run(self, images: int) -> Iterator[torch.Tensor | list[torch.Tensor]]:
        numbers = range(-(-images // self.files.batch_size))
        read = prefetched(self.reader, self._read, numbers)
        if self.files.sizes is None:
            yield from map(self._decode, numbers, read)
        elif self.slots is None:
            for number, data in zip(numbers, read, strict=True):
                yield self._checked(number, self.decoder.decode_to(data, self.decoder.device))
        else:
            for number, decoded in zip(
                numbers, prefetched(self.caller, self.decoder.decode, read), strict=True
            ):
                yield self._delivered(number, self._checked(number, decoded))

    def _read(self, number: int) -> list[bytes]:
        return [read_file(self.files.paths[i]) for i in self.files.numbers(number)]

    def _decode(self, number: int, data: list[bytes]) -> torch.Tensor:
        shape = (self.files.batch_size, self.files.height, self.files.width, 3)
        if self.slots is None:
            out = torch.empty(shape, dtype=torch.uint8, device=self.decoder.device)
        else:
            out = self.slots.free(number % SLOTS).view(shape)
        self._take(number, self.decoder.decode_into(data, out))
        return out if self.slots is None else delivered(self.files, self.slots, number)

    def _checked(self, number: int, decoded: Decoded | DeviceDecoded) -> list:
        """Check the sizes of the images of batch `number`, count them, and return them."""
        shapes = [self.files.shapes[i] for i in self.files.numbers(number)]
        self._take(number, checked(decoded, shapes))
        return decoded.images

    def _delivered(self, number: int, images: list[np.ndarray]) -> list[torch.Tensor]:
        """Copy images on the host to a slot and from there to the device."""
        if self.device.type == "cpu":
            return to_device(images, self.device)
        slot, bounds = self.slots.free(number % SLOTS).numpy(), self.files.bounds(self.files.numbers(number))

        def copy(first: int) -> None:  # few calls, since each takes the GIL from the decoding thread
            for i in range(first, len(images), COPIERS):
                slot[bounds[i] : bounds[i + 1]] = images[i].reshape(-1)

        list(self.copiers.map(copy, range(COPIERS)))
        return delivered(self.files, self.slots, number)

    def _take(self, number: int, outcomes: list[Outcome]) -> None:
        """Count the images of a batch; raise GpufeedError naming a file that could not be decoded."""
        for outcome, i in zip(outcomes, self.files.numbers(number), strict=True):
            if outcome.decoder is None:
                raise bad_file(Path(self.files.paths[i]), str(outcome.reason))
        self.fell_back += sum(outcome.decoder != self.decoder.name for outcome in outcomes)

    def version(self) -> str:
        return self.decoder.version()

    def close(self) -> None:
        for pool in (self.reader, self.caller, self.copiers):
            pool.shutdown(cancel_futures=True)
        self._drop_slots()


def prefetched(pool: ThreadPoolExecutor, work: Callable, items: Iterable) -> Iterator:
    """Yield work(item) for each item; the pool computes the next result while one is used."""
    waiting = None
    for item in items:
        following = pool.submit(work, item)
        if waiting is not None:
            yield waiting.result()
        waiting = following
    if waiting is not None:
        yield waiting.result()


def cuts(bounds: np.ndarray, parts: int) -> list[int]:
    """Return the bounds of parts of a batch with nearly equal bytes: parts + 1 indices into `bounds`."""
    middles = (bounds[:-1] + bounds[1:]) / 2
    return [*np.searchsorted(middles, bounds[-1] * np.arange(parts) / parts).tolist(), len(bounds) - 1]


def delivered(files: Files, slots: Slots, number: int) -> torch.Tensor | list[torch.Tensor]:
    """Return batch `number` on the device, once its slot is filled."""
    numbers = files.numbers(number)
    return files.images(numbers, slots.deliver(number % SLOTS, int(files.bounds(numbers)[-1])))


@contextlib.contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Set the number of torch's CPU threads inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)

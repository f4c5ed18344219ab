"""Decoding as fast as so many cores allow: each decoder by what scales for it, from files to the device.

A decoder of one core runs in processes that decode into shared memory; one with threads of its own gets one
call a batch, as a GPU decoder does, while a thread reads the files of the next batch.
"""

import contextlib
import itertools
import logging
import mmap
import os
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.reduction import send_handle
from pathlib import Path

import numpy as np
import torch

from gpufeed.core.errors import GpufeedError
from gpufeed.core.registry import DECODERS, load
from gpufeed.decoders.base import bad_file
from gpufeed.decoders.decoding_process import Opening, Task, serve
from gpufeed.decoders.encoded_file import mean_size, read_file

SLOTS = 3  # batches in flight: one is copied or used, and no process waits for the slowest of a batch
STUCK_S = 300  # without an answer for so long a process counts as stuck
END_S = 5  # for killed processes to be gone; one that waits for a dead disk in the kernel may outlive it

log = logging.getLogger("gpufeed")


@dataclass(frozen=True)
class Files:
    """What is decoded: files of one image size, in this order, again and again in batches of `batch_size`.

    manifest, strips: the dataset of these files and its strips.bin, for who decodes whole strips instead.
    """

    paths: list[str]
    height: int
    width: int
    batch_size: int
    manifest: Path | None = None
    strips: Path | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of one image: (H, W, 3)."""
        return self.height, self.width, 3


class Bulk(ABC):
    """A decoder on some cores: made once (processes, threads, device buffers), opened for files many times.

    fell_back: images so far that another decoder had to decode. settings: as Decoder.settings, for the
    files that are open.
    """

    files: Files
    settings: dict[str, float | None] = {}  # noqa: RUF012
    slots: "Slots | None" = None  # memory of the batches in flight, where a bulk has such

    def __init__(self, device: torch.device):
        self.device, self.fell_back = device, 0

    @abstractmethod
    def open(self, files: Files) -> None:
        """Makes ready for these files; replaces those opened before."""

    def reads(self) -> list[str]:
        """Every file that a run may read."""
        return self.files.paths

    def let_go(self) -> None:  # noqa: B027 - most have nothing mapped
        """Lets go of the pages of files that it has mapped, which the kernel would not evict."""

    @abstractmethod
    def run(self, images: int) -> Iterator[torch.Tensor]:
        """Decodes `images` files or a few more, whole batches, from the first file on.

        Yields uint8 (n, H, W, 3) on the device, ready for its current stream and valid until the next one
        is asked for. Raises GpufeedError for a file that nobody can decode, after which it can run again,
        and for a process that died or is stuck, after which the bulk can only be closed.
        """

    @abstractmethod
    def version(self) -> str:
        """Decoder and version of its library."""

    @abstractmethod
    def close(self) -> None:
        """Ends processes and threads; safe to call twice."""

    def _drop_slots(self) -> None:
        if self.slots is not None:
            self.slots.close()
            self.slots = None

    def __enter__(self) -> "Bulk":
        return self

    def __exit__(self, *exception) -> None:
        self.close()


def open_bulk(decoder: str, cores: int, device: torch.device, core_ids: list[int] | None = None) -> Bulk:
    """The bulk form of a registered decoder on `cores` cores.

    core_ids: where its processes run; None leaves them free. Raises Skip if the node lacks what it needs.
    """
    if load("decoder", decoder).parallel == "processes":
        return ProcessBulk(decoder, cores, device, core_ids)
    return CallBulk(decoder, cores, device)


class Slots:
    """Host memory for SLOTS batches, page-locked where the device is a GPU, and the way from it to there."""

    def __init__(self, files: Files, device: torch.device, shared: bool):
        shape = (SLOTS, files.batch_size, *files.shape)
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
        """The slot, uint8 (batch, H, W, 3), once the copy from it is over."""
        if (event := self.copied[slot]) is not None:
            event.synchronize()  # sync point: the slot is written again
        return self.host[slot]

    def deliver(self, slot: int) -> torch.Tensor:
        """The batch on the device; the host's own memory if that is the device."""
        if self.device.type == "cpu":
            return self.host[slot]
        batch = torch.empty_like(self.host[slot], device=self.device, pin_memory=False)
        batch.copy_(self.host[slot], non_blocking=True)
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
    """(descriptor, uint8 tensor) of memory that other processes can map too; it goes with its last user."""
    size = int(np.prod(shape))
    if hasattr(os, "memfd_create"):  # not limited by the size of /dev/shm, as containers set it
        descriptor = os.memfd_create("gpufeed")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor, torch.frombuffer(mmap.mmap(descriptor, size), dtype=torch.uint8).view(shape)


def page_lock(host: torch.Tensor) -> None:
    """Locks the pages of a host tensor, so that the GPU copies from them beside other work."""
    torch.cuda.check_error(torch.cuda.cudart().cudaHostRegister(host.data_ptr(), host.numel(), 0))


class ProcessBulk(Bulk):
    """A decoder of one core in as many processes as cores, each with its part of every batch.

    When one says nothing for STUCK_S all are killed: what keeps one waiting keeps the others too, and each
    answer that they owe would take as long again.
    """

    def __init__(self, decoder: str, cores: int, device: torch.device, core_ids: list[int] | None = None):
        super().__init__(device)
        self.decoder, self.workers = decoder, []
        self.owed = [0] * cores  # answers that a process has still to give
        # not forked from this process, which may have started CUDA; and an end of a pipe has no third owner
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
        opening = Opening(files.paths, tuple(self.slots.host.shape))
        for number, (process, connection) in enumerate(self.workers):
            self._send(number, opening)
            send_handle(connection, self.slots.descriptor, process.pid)
        for number in range(len(self.workers)):
            self._answer(number)

    def run(self, images: int) -> Iterator[torch.Tensor]:
        self._check_alive()
        count = -(-images // self.files.batch_size)
        asked: list[list[int]] = []  # of each batch: the processes that decode it
        try:
            for number in range(count):
                while len(asked) < min(count, number + SLOTS):
                    asked.append(self._ask(len(asked)))
                for worker in asked[number]:
                    self.fell_back += self._answer(worker)
                yield self.slots.deliver(number % SLOTS)
        finally:
            self._drain()

    def _drain(self) -> None:
        """Takes the answers that are still to come, after an error or when nobody wants the rest."""
        for number in range(len(self.workers)):
            while self.owed[number]:
                with contextlib.suppress(GpufeedError):
                    self._answer(number)

    def _ask(self, number: int) -> list[int]:
        """Spreads batch `number` over the processes; returns those that have a part of it."""
        size = self.files.batch_size
        self.slots.free(number % SLOTS)
        parts = min(size, len(self.workers))
        bounds = [size * part // parts for part in range(parts + 1)]
        asked = []
        for part, (start, end) in enumerate(itertools.pairwise(bounds)):
            worker = (number * parts + part) % len(self.workers)  # goes round: a small batch has few parts
            self._send(worker, Task(number % SLOTS, start, number * size + start, end - start))
            asked.append(worker)
        return asked

    def _send(self, number: int, message) -> None:
        try:
            self.workers[number][1].send(message)
            self.owed[number] += 1
        except (OSError, IndexError) as error:
            raise self._dead(number) from error

    def _answer(self, number: int):
        """The next answer of a process; raises what it raised, and GpufeedError if it is dead or stuck."""
        connection = self.workers[number][1]
        self.owed[number] = max(0, self.owed[number] - 1)  # an error counts as the answer
        try:
            if not connection.poll(STUCK_S):
                self._kill()
                raise GpufeedError(
                    f"a decoding process of {self.decoder} said nothing for {STUCK_S} s",
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
        """Ends the processes, whatever they are at; what they owe is owed no more."""
        for process, connection in self.workers:
            connection.close()
            process.kill()  # SIGTERM would wait in a process that is stopped, and they have nothing to save
        end = time.monotonic() + END_S
        for process, _ in self.workers:
            process.join(max(0.0, end - time.monotonic()))
            if process.is_alive():
                log.warning("decoding process %d does not end though it was killed", process.pid)
        self.owed = [0] * len(self.owed)
        self.workers = []

    def _check_alive(self) -> None:
        if not self.workers:
            raise GpufeedError(
                f"no decoding process of {self.decoder} any more: one was stuck, or the bulk was closed",
                "processes that are at work",
                "make a new bulk",
            )


def modules_of(decoder: str) -> list[str]:
    """What the parent of all decoding processes imports once: the decoder's module and what it needs."""
    return [DECODERS[decoder].target.partition(":")[0], *load("decoder", decoder).needs]


class CallBulk(Bulk):
    """A decoder that spreads one call over its own threads, or over a GPU; one thread reads ahead."""

    def __init__(self, decoder: str, cores: int, device: torch.device):
        """torch joins the images to a batch with the threads that it has: see `torch_threads`."""
        super().__init__(device)
        self.decoder = load("decoder", decoder)(cores)
        self.reader = ThreadPoolExecutor(1)

    @property
    def settings(self) -> dict[str, float | None]:
        return self.decoder.settings

    def open(self, files: Files) -> None:
        self._drop_slots()
        self.files = files
        self.decoder.expect(mean_size(files.paths))
        if self.decoder.parallel != "device":
            self.slots = Slots(files, self.device, shared=False)

    def run(self, images: int) -> Iterator[torch.Tensor]:
        count = -(-images // self.files.batch_size)
        waiting = self.reader.submit(self._read, 0)
        for number in range(count):
            paths, data = waiting.result()
            if number + 1 < count:
                waiting = self.reader.submit(self._read, number + 1)
            yield self._decode(paths, data, number % SLOTS)

    def _read(self, number: int) -> tuple[list[str], list[bytes]]:
        first = number * self.files.batch_size
        all_paths = self.files.paths
        paths = [all_paths[(first + i) % len(all_paths)] for i in range(self.files.batch_size)]
        return paths, [read_file(path) for path in paths]

    def _decode(self, paths: list[str], data: list[bytes], slot: int) -> torch.Tensor:
        out = self.room(slot)
        outcomes = self.decoder.decode_into(data, out)
        for outcome, path in zip(outcomes, paths, strict=True):
            if outcome.decoder is None:
                raise bad_file(Path(path), str(outcome.reason))
        self.fell_back += sum(outcome.decoder != self.decoder.name for outcome in outcomes)
        return self.delivered(out, slot)

    def room(self, slot: int) -> torch.Tensor:
        """Where a batch is decoded to, uint8 (batch, H, W, 3): on the GPU, or in a slot."""
        if self.slots is not None:
            return self.slots.free(slot)
        shape = (self.files.batch_size, *self.files.shape)
        return torch.empty(shape, dtype=torch.uint8, device=self.decoder.device)

    def delivered(self, batch: torch.Tensor, slot: int) -> torch.Tensor:
        """A decoded batch on the device."""
        return batch if self.slots is None else self.slots.deliver(slot)

    def version(self) -> str:
        return self.decoder.version()

    def close(self) -> None:
        self.reader.shutdown(cancel_futures=True)
        self._drop_slots()


@contextlib.contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Lets torch use so many threads on the CPU inside, and as many as before after it."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)

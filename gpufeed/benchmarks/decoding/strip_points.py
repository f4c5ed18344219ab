"""Whole strips in the sweep: the same images as the other decoders', from strips.bin instead of files."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import torch

from gpufeed.core.errors import GpufeedError
from gpufeed.datasets.manifest import Manifest
from gpufeed.decoders.parallel import Bulk, Files
from gpufeed.stores.strips_reader import StripReader
from gpufeed.stores.strips_store import open_strips

SPLIT = "train"


class StripsBulk(Bulk):
    """All strips of a dataset, and its files that fit into no strip.

    These files count as fallen back, and so does a strip that the backend refuses.
    """

    def __init__(self, cores: int, device: torch.device, backend: str | None = None):
        """backend: of gpufeed.stores.strip_backends; None: the best for the device."""
        super().__init__(device)
        self.cores, self.backend, self.reader = cores, backend, None

    def open(self, files: Files) -> None:
        if files.manifest is None or files.strips is None:
            raise GpufeedError("files without strips", "the manifest and strips.bin", "build the strips")
        self.close()
        self.files = files
        verify_once(files.manifest, files.strips)
        self.manifest = Manifest.read(files.manifest)
        self.reader = StripReader(
            self.manifest, files.strips, self.device, self.cores, self.backend, verify=False
        )
        units = self.reader.units(SPLIT)
        self.left_over = [id for unit in units if unit.strip is None for id in unit.ids.tolist()]
        self.groups: list[list] = [[]]  # units of one call, at most files.batch_size images
        for unit in units:
            held = sum(len(other.ids) for other in self.groups[-1])
            if held and held + len(unit.ids) > files.batch_size:
                self.groups.append([])
            self.groups[-1].append(unit)

    def reads(self) -> list[str]:
        paths = self.manifest.paths()
        return [str(self.files.strips), *(str(paths[id]) for id in self.left_over)]

    def let_go(self) -> None:
        self.reader.let_go()

    def run(self, images: int) -> Iterator[torch.Tensor]:
        done = number = 0
        while done < images:
            group = self.groups[number % len(self.groups)]
            before = sum(self.reader.tally.fell_back.values())
            _, batch = self.reader.read(group)
            self.fell_back += sum(self.reader.tally.fell_back.values()) - before
            done, number = done + len(batch), number + 1
            yield batch

    def version(self) -> str:
        return self.reader.backend.version() if self.reader else "strips"

    def close(self) -> None:
        if self.reader is not None:
            self.reader.close()
            self.reader = None


@cache  # once a process, which is once a sweep; an error is not kept
def verify_once(manifest: Path, strips: Path) -> None:
    """Raises GpufeedError unless every byte of the strip set is what its sidecar says."""
    open_strips(strips, Manifest.read(manifest), verify=True)

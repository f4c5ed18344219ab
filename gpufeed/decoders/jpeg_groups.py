"""Baseline JPEGs in groups that share size, sampling and tables, as decode_jpegs takes them."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import torch

from gpufeed.core import source_digest
from gpufeed.decoders.jpeg_parser import Kind, Refused, parse
from gpufeed.native.jpeg_op import Coding, tables_of


@dataclass(frozen=True)
class Group:
    """Files of one kind. places: their indices in the list of files; coded: their coded bytes."""

    kind: Kind
    places: list[int] = field(default_factory=list)
    coded: list[bytes] = field(default_factory=list)


def grouped(files: Sequence[bytes]) -> list[Group]:
    """Return the files in groups of one kind; those that can be in no group are left out."""
    groups: dict[Kind, Group] = {}
    found = defaultdict(list)
    for place, data in enumerate(files):
        try:
            jpeg = parse(data, whole_mcus=False)
        except Refused:
            continue
        # most files share one Kind object, and its id is faster than its hash
        found[id(jpeg.kind)].append((place, jpeg))
    for members in found.values():
        kind = members[0][1].kind
        if not can_code(kind):
            continue
        group = groups.setdefault(kind, Group(kind))
        for place, jpeg in members:
            group.places.append(place)
            group.coded.append(jpeg.entropy)
    return list(groups.values())


def can_code(kind: Kind) -> bool:
    """Return whether decode_jpegs takes the kind: both chroma components must use the same Huffman tables."""
    return len({(part.dc_table, part.ac_table) for part in kind.components[1:]}) <= 1


@lru_cache(maxsize=64)
def coding_of(kind: Kind, device: torch.device) -> Coding:
    """Return the description of a kind for decode_jpegs, with its tables on the device."""
    huffman, quantisation = dict(kind.huffman), dict(kind.quantisation)
    first, *others = kind.components
    tables = []
    for part in (first, *others[:1]):
        tables += [huffman[part.dc_table], huffman[0x10 | part.ac_table]]
    divisors = [quantisation[part.quantisation] for part in kind.components]
    coding = Coding(
        kind.height,
        kind.width,
        len(kind.components),
        first.horizontal,
        first.vertical,
        tables_of(tables, divisors),
    )
    return coding.to(device)


def code_digest() -> str:
    """Return 12 hex digits that change with the code that decides the pixels: kernels, tables, grouping."""
    return source_digest.digest(
        "native/csrc/**/*.[ch]*",
        "native/compile_job.py",
        "native/jpeg_*.py",
        "decoders/jpeg_batch.py",
        "decoders/jpeg_groups.py",
        "decoders/jpeg_parser.py",
    )


def joined(coded: Sequence[bytes]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (data uint8 (bytes,), offsets int64 (N + 1,)) on the host, as decode_jpegs takes them."""
    offsets = torch.from_numpy(np.cumsum([0, *map(len, coded)], dtype=np.int64))
    data = torch.empty(int(offsets[-1]), dtype=torch.uint8)
    data.numpy()[:] = np.frombuffer(b"".join(coded), np.uint8)
    return data, offsets

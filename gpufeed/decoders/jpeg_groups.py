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
    """Files of one kind. places: where they stand in the list that was given; coded: their coded bytes."""

    kind: Kind
    places: list[int] = field(default_factory=list)
    coded: list[bytes] = field(default_factory=list)


def grouped(files: Sequence[bytes]) -> list[Group]:
    """All files that can be in a group, each once; the others are in none."""
    groups: dict[Kind, Group] = {}
    found = defaultdict(list)
    for place, data in enumerate(files):
        try:
            jpeg = parse(data, whole_mcus=False)
        except Refused:
            continue
        # most files have the very same object, whose identity is asked faster than its hash
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
    """Whether decode_jpegs takes it: both colours by the same Huffman tables, as everybody writes them."""
    return len({(part.dc_table, part.ac_table) for part in kind.components[1:]}) <= 1


@lru_cache(maxsize=64)
def coding_of(kind: Kind, device: torch.device) -> Coding:
    """What decode_jpegs must know of a kind, its tables on the device."""
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
    """12 hex digits that change with whatever decides the pixels: kernels, tables, and who is in a group."""
    return source_digest.digest(
        "native/csrc/**/*.[ch]*",
        "native/compile_job.py",
        "native/jpeg_*.py",
        "decoders/jpeg_batch.py",
        "decoders/jpeg_groups.py",
        "decoders/jpeg_parser.py",
    )


def joined(coded: Sequence[bytes]) -> tuple[torch.Tensor, torch.Tensor]:
    """(data uint8 (bytes,), offsets int64 (N + 1,)) on the host, as decode_jpegs takes them."""
    offsets = torch.from_numpy(np.cumsum([0, *map(len, coded)], dtype=np.int64))
    data = torch.empty(int(offsets[-1]), dtype=torch.uint8)
    data.numpy()[:] = np.frombuffer(b"".join(coded), np.uint8)
    return data, offsets

"""decode_jpegs in pieces: each image is in one of them, with the pixels and the fault of one call."""

from functools import lru_cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jpeg_fixtures import encoded, picture

from gpufeed.decoders.jpeg_groups import coding_of, joined
from gpufeed.decoders.jpeg_parser import Jpeg, parse
from gpufeed.native.jpeg_op import decode_between
from gpufeed.native.jpeg_pieces import PieceDecoder, pack, parted, pieces_of

CPU = torch.device("cpu")
ANY = st.integers(-(2**63), 2**63 - 1)
NEAR = st.integers(-3, 60)


pytestmark = pytest.mark.usefixtures("extension")


@lru_cache
def whole() -> Jpeg:
    return parse(encoded("4:2:0", picture(24, 40, 60)), whole_mcus=False)


@settings(max_examples=300)
@given(
    places=st.lists(st.tuples(ANY | NEAR, ANY | NEAR), max_size=40),
    size=st.integers(0, 50),
    most=st.integers(1, 50),
    least=st.integers(1, 12),
)
def test_each_image_is_in_one_piece_with_its_bytes_and_no_others(places, size, most, least):
    starts, ends = (np.array([place[i] for place in places], np.int64) for i in (0, 1))
    data = np.arange(size)
    found = list(pieces_of(size, starts, ends, most, least))
    assert [image for piece in found for image in range(piece.first, piece.last)] == list(range(len(places)))
    assert len(found) <= most
    assert len(found) == min(len(places), 1) or all(piece.last - piece.first >= least for piece in found)
    for piece in found:
        own = data[piece.low : piece.high]
        for image, start, end in zip(range(piece.first, piece.last), piece.starts, piece.ends, strict=True):
            if 0 <= starts[image] <= ends[image] <= size:
                assert 0 <= start <= end <= len(own)
                assert np.array_equal(own[start:end], data[starts[image] : ends[image]])
            else:
                assert start > end


def test_pieces_are_as_many_as_asked_for_and_of_equal_images():
    starts = np.arange(1000)
    sizes = [piece.last - piece.first for piece in pieces_of(1000, starts, starts + 1, most=6, least=10)]
    assert len(sizes) == 6
    assert max(sizes) - min(sizes) <= 1


@settings(max_examples=60)
@given(
    kinds=st.lists(st.sampled_from(["right", "cut", "empty", "outside", "backwards"]), max_size=20),
    gap=st.integers(0, 3),
    most=st.integers(1, 25),
)
def test_images_and_faults_are_those_of_one_call(kinds, gap, most):
    right = whole().entropy
    lengths = {"right": len(right), "cut": len(right) // 2, "empty": 0}
    data = torch.frombuffer(bytearray(right + bytes(gap)) * max(1, len(kinds)), dtype=torch.uint8)
    starts = torch.arange(len(kinds)) * (len(right) + gap)
    ends = starts + torch.tensor([lengths.get(kind, len(right)) for kind in kinds], dtype=torch.int64)
    for place, kind in enumerate(kinds):
        if kind == "outside":
            ends[place] = 2**62
        if kind == "backwards":
            ends[place] = starts[place] - 1
    coding = coding_of(whole().kind, CPU)
    images, faults = decode_between(data, starts, ends, coding)
    assert [not fault for fault in faults.tolist()] == [kind == "right" for kind in kinds]
    for piece in pieces_of(len(data), starts.numpy(), ends.numpy(), most, least=1):
        memory = torch.full((piece.bytes,), 0xAA, dtype=torch.uint8)
        pack(piece, data, memory)
        own_starts, own_ends, own = parted(memory, piece.last - piece.first)
        some, some_faults = decode_between(own, own_starts, own_ends, coding)
        assert torch.equal(some, images[piece.first : piece.last])
        assert torch.equal(some_faults, faults[piece.first : piece.last])


@pytest.mark.parametrize("count", [0, 1, 7])
def test_without_cuda_it_is_a_plain_call(count):
    data, offsets = joined([whole().entropy] * count)
    coding = coding_of(whole().kind, CPU)
    images, faults = PieceDecoder(CPU).decode(data, offsets[:-1], offsets[1:], coding)
    right, _ = decode_between(data, offsets[:-1], offsets[1:], coding)
    assert images.shape == (count, 24, 40, 3)
    assert torch.equal(images, right)
    assert faults.tolist() == [0] * count


def test_what_it_does_not_take_is_told():
    (data, offsets), coding = joined([whole().entropy]), coding_of(whole().kind, CPU)
    decode = PieceDecoder(CPU).decode
    with pytest.raises(TypeError, match=r"found: starts of torch\.int32; expected: torch\.int64"):
        decode(data, offsets[:-1].int(), offsets[1:], coding)
    with pytest.raises(ValueError, match="found: data of shape"):
        decode(data[None], offsets[:-1], offsets[1:], coding)
    with pytest.raises(ValueError, match="found: 1 starts and 2 ends"):
        decode(data, offsets[:-1], offsets, coding)

"""JPEGs from host memory in pieces on a GPU: the images and faults of one call, on any stream."""

import pytest
import torch
from jpeg_fixtures import encoded, picture
from stream_fixtures import wrong_beside_a_busy_stream

from gpufeed.decoders.jpeg_groups import coding_of, joined
from gpufeed.decoders.jpeg_parser import parse
from gpufeed.native.jpeg_op import Coding, decode_jpegs
from gpufeed.native.jpeg_pieces import STAGES, PieceDecoder

CUDA = torch.device("cuda", 0)
PIECES = 2 * STAGES + 1  # each pinned buffer is used again within a call

pytestmark = pytest.mark.usefixtures("extension")


def images(count: int) -> tuple[torch.Tensor, torch.Tensor, Coding]:
    """(data, offsets, coding) of different images, every fifth cut off."""
    jpegs = [parse(encoded("4:2:0", picture(40, 56, 60, seed)), whole_mcus=False) for seed in range(7)]
    coded = [jpegs[i % 7].entropy for i in range(count)]
    data, offsets = joined([each[: len(each) // 2] if i % 5 == 4 else each for i, each in enumerate(coded)])
    return data, offsets, coding_of(jpegs[0].kind, CUDA)


def in_one_call(
    data: torch.Tensor, offsets: torch.Tensor, coding: Coding
) -> tuple[torch.Tensor, torch.Tensor]:
    return decode_jpegs(data.to(CUDA), offsets.to(CUDA), coding)


@pytest.mark.parametrize("count", [0, 1, 3, PIECES, 100])
def test_pieces_are_one_call(count):
    data, offsets, coding = images(count)
    decoder = PieceDecoder(CUDA, PIECES, least=1)
    expected, expected_faults = in_one_call(data, offsets, coding)
    for _ in range(3):
        found, faults = decoder.decode(data, offsets[:-1], offsets[1:], coding)
        assert torch.equal(faults, expected_faults)
        assert torch.equal(found, expected)
    assert [bool(fault) for fault in faults.tolist()] == [i % 5 == 4 for i in range(count)]


def test_calls_of_any_size_after_each_other_and_host_memory_that_is_used_again():
    decoder, data = PieceDecoder(CUDA, PIECES, least=1), torch.empty(1_000_000, dtype=torch.uint8)
    kept = []
    for count in (3, 300, 0, 50, 299, 1):
        joined_data, offsets, coding = images(count)
        data[: len(joined_data)] = joined_data
        kept.append((count, *decoder.decode(data[: len(joined_data)], offsets[:-1], offsets[1:], coding)))
        data.fill_(0xFF)  # nothing may read it any longer
    for count, found, faults in kept:
        expected, expected_faults = in_one_call(*images(count))
        assert torch.equal(faults, expected_faults)
        assert torch.equal(found, expected)


def test_a_side_stream_beside_a_busy_one():
    data, offsets, coding = images(200)
    expected, _ = in_one_call(data, offsets, coding)
    decoder = PieceDecoder(CUDA, PIECES, least=1)

    def make() -> torch.Tensor:
        return decoder.decode(data, offsets[:-1], offsets[1:], coding)[0]

    assert wrong_beside_a_busy_stream(make, expected, 60) == 0


def test_a_call_does_not_wait_for_what_is_queued_on_the_current_stream():
    data, offsets, coding = images(50)
    decoder, current = PieceDecoder(CUDA, 3, least=1), torch.cuda.Stream()
    decoder.decode(data, offsets[:-1], offsets[1:], coding)  # what is made once is there
    torch.cuda.synchronize()
    with torch.cuda.stream(current):
        torch.cuda._sleep(2_000_000_000)  # a second
        found, _ = decoder.decode(data, offsets[:-1], offsets[1:], coding)
        slept = current.record_event()
    for stream in decoder.decoding:
        stream.synchronize()
    assert not slept.query()
    slept.synchronize()
    assert torch.equal(found, in_one_call(data, offsets, coding)[0])


def test_starts_and_ends_outside_of_the_buffer():
    data, offsets, coding = images(20)
    starts, ends = offsets[:-1].clone(), offsets[1:].clone()
    starts[3], ends[7], ends[12] = -4, 2**62, starts[12] - 1
    found, faults = PieceDecoder(CUDA, PIECES, least=1).decode(data, starts, ends, coding)
    expected, _ = in_one_call(data, offsets, coding)
    wrong = torch.tensor([3, 7, 12], device=CUDA)
    expected[wrong] = 0
    assert faults[wrong].tolist() == [1, 1, 1]
    assert torch.equal(found, expected)


def test_bytes_on_the_gpu_are_refused():
    data, offsets, coding = images(1)
    with pytest.raises(ValueError, match="on the host; what to do: call decode_between"):
        PieceDecoder(CUDA).decode(data.to(CUDA), offsets[:-1], offsets[1:], coding)

"""decode_jpegs on a GPU: the bytes and the faults of its CPU form, and the decoder around it."""

import zipfile

import numpy as np
import pytest
import torch
from hostile_fixtures import available, hostile_files
from hypothesis import given, settings
from hypothesis import strategies as st
from jpeg_fixtures import SAMPLINGS, anywhere, by_op, damaged, encoded, picture
from stream_fixtures import wrong_beside_a_busy_stream

from gpufeed.decoders.jpeg_groups import coding_of, grouped, joined
from gpufeed.decoders.jpeg_parser import Refused, parse
from gpufeed.decoders.pillow import PillowDecoder, rgb
from gpufeed.native.jpeg_op import decode_between, decode_jpegs

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")

pytestmark = pytest.mark.usefixtures("extension")


def both(files: list[bytes], fancy: bool = True) -> tuple[np.ndarray, list[int]]:
    """By the GPU, after it was found equal to the CPU form."""
    images, faults = by_op(files, fancy, CUDA)
    right, right_faults = by_op(files, fancy)
    assert faults == right_faults
    assert np.array_equal(images, right)
    return images, faults


@pytest.mark.realdata
@pytest.mark.parametrize("fancy", [True, False])
def test_real_files(real_data, fancy):
    with zipfile.ZipFile(real_data / "tiny-imagenet-40.zip") as archive:
        names = [name for name in archive.namelist() if name.endswith(".JPEG")][::11]
        files = [archive.read(name) for name in names]
    for group in grouped(files):
        encoded_files = [files[place] for place in group.places]
        images, faults = both(encoded_files, fancy)
        assert not any(faults)
        if fancy:
            for image, file in zip(images, encoded_files, strict=True):
                assert np.array_equal(image, rgb(file))


@settings(max_examples=60)
@given(
    sampling=st.sampled_from(sorted(SAMPLINGS)),
    height=st.integers(1, 90),
    width=st.integers(1, 90),
    noise=st.sampled_from([0, 20, 255]),
    quality=st.sampled_from([1, 75, 100]),
    count=st.integers(1, 70),
    fancy=st.booleans(),
)
def test_every_size_and_sampling(sampling, height, width, noise, quality, count, fancy):
    images = [encoded(sampling, picture(height, width, noise, seed), quality) for seed in range(3)]
    _, faults = both([images[number % 3] for number in range(count)], fancy)
    assert not any(faults)


@settings(max_examples=200)
@given(
    sampling=st.sampled_from(["4:2:0", "4:4:4", "grayscale"]),
    changes=st.dictionaries(st.integers(0, 3000), st.integers(0, 255), max_size=4),
    cut=st.integers(0, 400),
)
def test_damaged_files_have_the_cpu_forms_faults(sampling, changes, cut):
    right = encoded(sampling, picture(40, 56, 60))
    try:
        images, faults = both([right, damaged(right, changes, cut), right])
    except Refused:
        return
    assert faults[0] == faults[2] == 0
    assert np.array_equal(images[0], images[2])


def test_random_bytes_and_every_cut():
    whole = parse(encoded("4:2:0", picture(64, 64, 60)))
    rng = np.random.default_rng(0)
    noise = [rng.bytes(int(length)) for length in rng.integers(0, 3000, 2000)]
    cuts = [whole.entropy[:length] for length in range(len(whole.entropy) + 1)]
    data, offsets = joined(noise + cuts)
    images, faults = decode_jpegs(data.to(CUDA), offsets.to(CUDA), coding_of(whole.kind, CUDA))
    right, right_faults = decode_jpegs(data, offsets, coding_of(whole.kind, CPU))
    assert torch.equal(faults.cpu(), right_faults)
    assert torch.equal(images.cpu(), right)
    assert faults[-1] == 0
    assert (faults[len(noise) : -1] > 0).all()


@pytest.mark.parametrize("offsets", [[-4, 10], [0, 10**12], [10, 4], [2**62, 2**63 - 1]])
def test_offsets_outside_of_the_buffer(offsets):
    whole = parse(encoded("4:2:0", picture(32, 32, 60)))
    data, _ = joined([whole.entropy])
    images, faults = decode_jpegs(data.to(CUDA), torch.tensor(offsets).to(CUDA), coding_of(whole.kind, CUDA))
    assert faults.tolist() == [1]
    assert not images.any()


def test_in_any_order_and_more_than_once_where_the_longest_is_told():
    for images, right in anywhere(CUDA):
        assert torch.equal(images, right)


def test_a_workspace_for_the_images_of_a_call_and_not_for_all_data():
    whole = parse(encoded("4:2:0", picture(64, 64, 60)))
    (data, offsets), coding = joined([whole.entropy] * 4), coding_of(whole.kind, CUDA)
    large = torch.zeros(2**28, dtype=torch.uint8, device=CUDA)
    large[-len(data) :] = data.to(CUDA)
    offsets = offsets.to(CUDA) + len(large) - len(data)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    images, _ = decode_between(large, offsets[:-1], offsets[1:], coding, longest=len(whole.entropy))
    assert torch.cuda.max_memory_allocated() - before < 2**22
    assert torch.equal(images, decode_between(large, offsets[:-1], offsets[1:], coding)[0])


def test_a_view_at_an_odd_address_and_no_images():
    whole = parse(encoded("4:2:0", picture(32, 48, 60)))
    (data, offsets), coding = joined([whole.entropy] * 3), coding_of(whole.kind, CUDA)
    expected, _ = decode_jpegs(data.to(CUDA), offsets.to(CUDA), coding)
    shifted = torch.cat([torch.zeros(3, dtype=torch.uint8), data]).to(CUDA)[3:]
    assert torch.equal(decode_jpegs(shifted, offsets.to(CUDA), coding)[0], expected)
    none, faults = decode_jpegs(data.to(CUDA), offsets[:1].to(CUDA), coding)
    assert (none.shape, faults.shape) == ((0, 32, 48, 3), (0,))


def test_more_images_than_the_workspace_holds_at_a_time():
    whole = parse(encoded("4:4:4", picture(8, 8, 60)))
    (data, offsets), coding = joined([whole.entropy] * 70_000), coding_of(whole.kind, CUDA)
    images, faults = decode_jpegs(data.to(CUDA), offsets.to(CUDA), coding)
    assert not faults.any()
    assert (images == images[0]).all()
    assert np.array_equal(images[0].cpu().numpy(), rgb(encoded("4:4:4", picture(8, 8, 60))))


def test_the_current_stream_is_the_one_that_is_used():
    whole = parse(encoded("4:2:0", picture(64, 64, 60)))
    data, offsets = (part.to(CUDA) for part in joined([whole.entropy] * 64))
    coding = coding_of(whole.kind, CUDA)
    expected, _ = decode_jpegs(data, offsets, coding)

    def make() -> torch.Tensor:
        return decode_jpegs(data, offsets, coding)[0]

    assert wrong_beside_a_busy_stream(make, expected, 200) == 0


def test_tables_that_are_dropped_while_another_stream_reads_them():
    whole = parse(encoded("4:2:0", picture(64, 64, 60)))
    data, offsets = (part.to(CUDA) for part in joined([whole.entropy] * 64))
    expected, _ = decode_jpegs(data, offsets, coding_of(whole.kind, CUDA))
    side = torch.cuda.Stream()
    for _ in range(20):
        coding_of.cache_clear()
        coding = coding_of(whole.kind, CUDA)  # made on the current stream
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(1_000_000)
            images, faults = decode_jpegs(data, offsets, coding)
        size = coding.tables.numel()
        coding_of.cache_clear()
        del coding
        torch.full((size,), -1, dtype=torch.int16, device=CUDA)  # takes the memory if it is free
        torch.cuda.synchronize()
        assert not faults.any()
        assert torch.equal(images, expected)


def test_the_decoder_fills_a_batch_of_both_kinds_and_leaves_the_rest_to_pillow():
    decoder = available("cuda_jpeg")
    colour, gray = encoded("4:2:0", picture(48, 64, 20)), encoded("grayscale", picture(48, 64, 20))
    hostile = hostile_files()
    for files in ([colour, gray, colour], [colour, hostile["JPEG cut and closed"].data, gray]):
        out = torch.zeros((3, 48, 64, 3), dtype=torch.uint8, device=CUDA)
        outcomes = decoder.decode_into(files, out)
        reference = PillowDecoder().decode(files).images
        for found, right in zip(out.cpu().numpy(), reference, strict=True):
            assert np.array_equal(found, right)
        assert [outcome.decoder for outcome in outcomes[::2]] == ["cuda_jpeg"] * 2
    assert outcomes[1].decoder == "pillow"

"""decode_jpegs on the CPU, with the CUDA kernels' arithmetic: libjpeg-turbo's pixels, or a fault."""

import zipfile

import numpy as np
import pytest
import torch
from hostile_fixtures import hostile_files, saved
from hypothesis import given, settings
from hypothesis import strategies as st
from jpeg_fixtures import (
    ANY_FILE,
    DAMAGE,
    anywhere,
    assert_bit_exact,
    by_op,
    damaged,
    encoded,
    picture,
    turbo,
)

from gpufeed.decoders.jpeg_groups import coding_of, grouped, joined
from gpufeed.decoders.jpeg_parser import Refused, parse
from gpufeed.decoders.pillow import rgb
from gpufeed.native.jpeg_op import FAULTS, decode_between, decode_jpegs

CPU = torch.device("cpu")
REASONS = {reason: number for number, reason in enumerate(FAULTS)}


pytestmark = pytest.mark.usefixtures("extension")


@settings(max_examples=75)
@given(**ANY_FILE, fancy=st.booleans())
def test_every_size_sampling_and_quality_is_bit_exact(**kind):
    assert_bit_exact(by_op, **kind)


@pytest.mark.parametrize("noise", [0, 40])
def test_huffman_tables_of_a_files_own(noise):
    file = saved("JPEG", picture(64, 64, noise), optimize=True, quality=95)
    images, faults = by_op([file])
    assert faults == [0]
    assert np.array_equal(images[0], rgb(file))


@pytest.mark.realdata
def test_real_files_are_pillows(real_data):
    with zipfile.ZipFile(real_data / "tiny-imagenet-40.zip") as archive:
        names = [name for name in archive.namelist() if name.endswith(".JPEG")][::25]
        files = [archive.read(name) for name in names]
    groups = grouped(files)
    assert sorted(place for group in groups for place in group.places) == list(range(len(files)))
    assert len(groups) == 2
    for group in groups:
        data, offsets = joined(group.coded)
        for fancy in (True, False):
            images, faults = decode_jpegs(data, offsets, coding_of(group.kind, CPU), fancy)
            assert not faults.any()
            for place, image in zip(group.places, images.numpy(), strict=True):
                assert np.array_equal(image, rgb(files[place]) if fancy else turbo(files[place], fancy))


@settings(max_examples=150)
@given(**DAMAGE, noise=st.sampled_from([10, 120]))
def test_a_damaged_file_is_a_fault_or_libjpegs_pixels_and_harms_no_neighbour(sampling, changes, cut, noise):
    right = encoded(sampling, picture(40, 56, noise))
    wrong = damaged(right, changes, cut)
    try:
        images, faults = by_op([right, wrong, right])
    except Refused:
        return
    assert faults[0] == faults[2] == 0
    assert np.array_equal(images[0], turbo(right, True))
    assert np.array_equal(images[2], images[0])
    if faults[1]:
        assert not images[1].any()
        assert FAULTS[faults[1]]
    else:
        assert np.array_equal(images[1], turbo(wrong, True))


def test_every_cut_is_a_fault():
    file = encoded("4:2:0", picture(32, 32, 60))
    whole = parse(file)
    cuts = [whole.entropy[:length] for length in range(len(whole.entropy))]
    data, offsets = joined(cuts)
    images, faults = decode_jpegs(data, offsets, coding_of(whole.kind, CPU))
    assert (faults > 0).all()
    assert not images.any()


@pytest.mark.parametrize(
    ("coded", "reason"),
    [
        (lambda good: good[:20] + b"\xff\xd9" + good[20:], "a marker inside its coded bytes"),
        (lambda good: good + b"\xff", "a marker inside its coded bytes"),
        (lambda good: good + b"\0", "coded bytes are left over"),
        (lambda good: b"", "fewer coded bytes than it needs"),
        (lambda good: b"\xff\0" * 50, "bits that are no code of its table"),
    ],
)
def test_faults_have_their_reason(coded, reason):
    whole = parse(encoded("4:2:0", picture(32, 32, 60)))
    data, offsets = joined([whole.entropy, coded(whole.entropy), whole.entropy])
    images, faults = decode_jpegs(data, offsets, coding_of(whole.kind, CPU))
    assert faults.tolist() == [0, REASONS[reason], 0]
    assert torch.equal(images[0], images[2])


def test_values_that_no_samples_have_are_a_fault():
    """Divisors of 255 before coefficients that were made for 1: libjpeg-turbo's forms differ there."""
    file = encoded("grayscale", picture(16, 16, 255), quality=100)
    place = file.index(b"\xff\xdb") + 5
    images, faults = by_op([file[:place] + b"\xff" * 64 + file[place + 64 :]])
    assert faults == [REASONS["its coefficients are out of range"]]
    assert not images.any()


@pytest.mark.parametrize("offsets", [[-4, 10], [0, 10**12], [10, 4], [2**62, 2**63 - 1]])
def test_offsets_outside_of_the_buffer_are_a_fault(offsets):
    whole = parse(encoded("4:2:0", picture(32, 32, 60)))
    data, _ = joined([whole.entropy])
    images, faults = decode_jpegs(data, torch.tensor(offsets), coding_of(whole.kind, CPU))
    assert faults.tolist() == [REASONS["its start and end do not lie in the buffer, or too far apart"]]
    assert not images.any()


def test_in_any_order_and_more_than_once_where_the_longest_is_told():
    for images, right in anywhere(CPU):
        assert torch.equal(images, right)


def test_no_images_are_no_images():
    coding = coding_of(parse(encoded("4:2:0", picture(32, 48, 0))).kind, CPU)
    images, faults = decode_jpegs(
        torch.empty(0, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64), coding
    )
    assert images.shape == (0, 32, 48, 3)
    assert faults.shape == (0,)


def test_what_the_op_does_not_take_is_told():
    whole = parse(encoded("4:2:0", picture(32, 32, 0)))
    (data, offsets), coding = joined([whole.entropy]), coding_of(whole.kind, CPU)
    with pytest.raises(TypeError, match="found: starts of Int; expected: Long"):
        decode_jpegs(data, offsets.int(), coding)
    with pytest.raises(ValueError, match="found: data of shape"):
        decode_jpegs(data[None], offsets, coding)
    with pytest.raises(ValueError, match="found: 1 starts and 2 ends"):
        decode_between(data, offsets[:1], offsets, coding)
    with pytest.raises(ValueError, match="found: longest -1; expected: from 0 to 268435456 bytes"):
        decode_between(data, offsets[:1], offsets[1:], coding, longest=-1)
    for wrong, said in (
        ({"tables": coding.tables[:-1]}, "found: tables of"),
        ({"horizontal": 3}, "sampled 3 x 2"),
        ({"height": 0}, "found: images of 0 x 32"),
        ({"height": 60000, "width": 60000}, "found: images of 60000 x 60000"),
    ):
        with pytest.raises(ValueError, match=said):
            decode_jpegs(data, offsets, type(coding)(**{**vars(coding), **wrong}))


def test_torch_finds_nothing_wrong_with_the_op():
    for sampling, longest in (("4:2:0", None), ("grayscale", 1000)):
        whole = parse(encoded(sampling, picture(16, 32, 9)))
        coding, (data, offsets) = coding_of(whole.kind, CPU), joined([whole.entropy] * 2)
        shape = (coding.height, coding.width, coding.components, coding.horizontal, coding.vertical)
        torch.library.opcheck(
            torch.ops.gpufeed.decode_jpegs.default,
            (data, offsets[:-1], offsets[1:].clone(), coding.tables, *shape, True, longest),
        )


def test_groups_hold_each_file_once_and_leave_out_what_is_not_baseline():
    colour, gray = encoded("4:2:0", picture(33, 51, 9)), encoded("grayscale", picture(33, 51, 9))
    files = [colour, *(hostile.data for hostile in hostile_files().values()), gray, colour]
    groups = grouped(files)
    places = sorted(place for group in groups for place in group.places)
    assert len(set(places)) == len(places)
    assert {0, len(files) - 2, len(files) - 1} <= set(places)
    names = [None, *hostile_files(), None, None]
    inside = {names[place] for place in places}
    assert {"gray JPEG", "4:2:0 JPEG of odd sides", "1x1 JPEG", "EXIF-rotated JPEG"} <= inside
    assert not inside & {
        "progressive JPEG",
        "CMYK JPEG",
        "RGB JPEG",
        "JPEG with restart markers",
        "PNG",
        "text",
    }
    for group in groups:
        for place, coded in zip(group.places, group.coded, strict=True):
            assert parse(files[place], whole_mcus=False).entropy == coded

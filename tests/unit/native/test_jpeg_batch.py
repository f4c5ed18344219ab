"""Whole JPEGs of any mixture: the serial CPU form against libjpeg-turbo.

The kernels, run on the CPU, against that form.
"""

import numpy as np
import pytest
import torch
from hostile_fixtures import hostile_files
from hypothesis import given, settings
from hypothesis import strategies as st
from jpeg_batch_fixtures import chessboard, kernels_on_cpu, mixture, with_restarts, with_shared_tables
from jpeg_fixtures import SAMPLINGS, damaged, encoded, picture, turbo

from gpufeed import native
from gpufeed.decoders.cuda_jpeg import small_and_alike
from gpufeed.decoders.jpeg_batch import BatchDecoder
from gpufeed.decoders.jpeg_groups import can_code
from gpufeed.decoders.jpeg_parser import Refused, parse
from gpufeed.decoders.pillow import rgb
from gpufeed.native.jpeg_op import FAULTS, decode_files

NOT_TAKEN, BAD_RESTART, NOT_SYNCHRONISED = 9, 10, 11
RESTARTS, MARKER = "it has restart intervals of its own", "a marker inside the scan"
SMALL = {"SUBSEQUENCE": 64, "MOST_ROUNDS": 10**9, "DCT_TILE": 64, "COLOUR_TILE": 512, "SCAN_THREADS": 128}


@pytest.fixture(autouse=True, scope="module")
def extension():
    """The library, compiled once into torch's extension folder; what a node without a compiler lacks."""
    found = native.load()
    if found.sentence:
        pytest.skip(found.sentence)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    """The kernels as they are."""
    return kernels_on_cpu(tmp_path_factory.mktemp("kernels"), {})


@pytest.fixture(scope="module")
def cut_small(tmp_path_factory):
    """The kernels with short subsequences and small tiles, so that small images have many."""
    return kernels_on_cpu(tmp_path_factory.mktemp("small"), SMALL)


def by_batch(files: list[bytes], fancy: bool = True) -> tuple[list[np.ndarray], list[int]]:
    if fancy:
        images, faults = BatchDecoder(torch.device("cpu")).decode(files)
        return [image.numpy() for image in images.views()], faults.tolist()
    data = torch.frombuffer(bytearray(b"".join(files)), dtype=torch.uint8)
    offsets = torch.tensor(np.cumsum([0, *map(len, files)]))
    pixels, faults, (starts, heights, widths, *_) = decode_files(data, data, offsets, fancy)
    sizes = zip(starts.tolist(), heights.tolist(), widths.tolist(), strict=True)
    return [pixels[a : a + 3 * h * w].view(h, w, 3).numpy() for a, h, w in sizes], faults.tolist()


def refusal(file: bytes) -> str | None:
    """Why jpeg_parser takes the file for none that these kernels decode; None if it does not."""
    try:
        kind = parse(file, whole_mcus=False).kind
    except Refused as refused:
        return str(refused)
    return None if can_code(kind) else "colours with different tables"


@settings(max_examples=150)
@given(
    sampling=st.sampled_from(sorted(SAMPLINGS)),
    height=st.integers(1, 70),
    width=st.integers(1, 70),
    noise=st.sampled_from([0, 20, 255]),
    quality=st.sampled_from([1, 30, 75, 95, 100]),
    fancy=st.booleans(),
)
def test_every_size_sampling_and_quality_is_bit_exact(sampling, height, width, noise, quality, fancy):
    files = [encoded(sampling, picture(height, width, noise, seed), quality) for seed in range(2)]
    images, faults = by_batch(files, fancy)
    assert faults == [0, 0]
    for image, file in zip(images, files, strict=True):
        assert np.array_equal(image, turbo(file, fancy))


def test_a_mixture_is_pillows_or_a_fault():
    files = mixture()
    images, faults = by_batch(files)
    assert faults.count(0) > 130
    for file, image, fault in zip(files, images, faults, strict=True):
        if fault == 0:
            assert np.array_equal(image, rgb(file))
        else:
            assert not image.any()
            assert FAULTS[fault]


def test_photographs_made_on_the_spot(photographs):
    files = [path.read_bytes() for path in sorted(photographs.rglob("*")) if path.is_file()]
    images, faults = by_batch(files)
    assert not any(faults)
    assert len(files) == 60
    for file, image in zip(files, images, strict=True):
        assert np.array_equal(image, rgb(file))


@pytest.mark.realdata
@pytest.mark.parametrize("first", [0, *(pytest.param(i, marks=pytest.mark.slow) for i in range(1, 8))])
def test_800_photographs_are_pillows(real_files, first):
    """A hundred at a time: of every eight files one."""
    files = real_files("imagenet-800.zip")
    assert len(files) == 800
    for part in (files[first::16], files[first + 8 :: 16]):
        images, faults = by_batch(part)
        assert not any(faults)
        for file, image in zip(part, images, strict=True):
            assert np.array_equal(image, rgb(file))


def test_what_is_taken_and_what_is_not():
    hostile = hostile_files()
    names = [name for name, file in hostile.items() if file.data]
    images, faults = by_batch([hostile[name].data for name in names])
    taken = {name for name, fault in zip(names, faults, strict=True) if not fault}
    assert {"gray JPEG", "4:4:4 JPEG of odd sides", "4:2:0 JPEG of odd sides", "1x1 JPEG"} <= taken
    assert {"JPEG with restart markers", "EXIF-rotated JPEG"} <= taken
    refused = {name for name, fault in zip(names, faults, strict=True) if fault == NOT_TAKEN}
    assert {"progressive JPEG", "CMYK JPEG", "RGB JPEG", "text", "JPEG with a tail", "GIF"} <= refused
    for name, image in zip(names, images, strict=True):
        assert image.size == 0 or name not in refused


@settings(max_examples=300)
@given(
    sampling=st.sampled_from(["4:2:0", "4:4:4", "grayscale"]),
    changes=st.dictionaries(st.integers(0, 3000), st.integers(0, 255), max_size=4),
    cut=st.integers(0, 400),
    restart=st.sampled_from([0, 1, 7]),
)
def test_a_damaged_file_is_a_fault_or_libjpegs_pixels_and_harms_no_neighbour(
    cut_small, sampling, changes, cut, restart
):
    image = picture(40, 56, 60)
    right = (
        with_restarts(image, restart_marker_blocks=restart, quality=90)
        if restart
        else encoded(sampling, image)
    )
    wrong = damaged(right, changes, cut)
    images, faults = by_batch([right, wrong, right])
    assert faults[0] == faults[2] == 0
    assert np.array_equal(images[0], turbo(right, True))
    assert np.array_equal(images[2], images[0])
    if faults[1]:
        assert not images[1].any()
    else:
        assert np.array_equal(images[1], turbo(wrong, True))
    assert cut_small([right, wrong, right]) == (0, faults)


def test_a_damaged_header_is_a_fault_or_a_file(cut_small):
    right, random = encoded("4:2:0", picture(24, 40, 60)), np.random.default_rng(1)
    start = right.index(b"\xff\xda") + 14
    files = []
    for _ in range(300):
        file = bytearray(right)
        for place in random.integers(2, start, 2):
            file[place] = random.integers(256)
        files.append(bytes(file))
    images, faults = by_batch(files)
    assert {0, NOT_TAKEN} < set(faults)
    assert cut_small(files) == (0, faults)
    for file, image, fault in zip(files, images, faults, strict=True):
        reason = refusal(file)
        if reason not in (RESTARTS, MARKER):  # which the parser of strips does not take, or finds at once
            assert (fault == NOT_TAKEN) == (reason is not None), reason
        if not fault and (expected := turbo(file, True)) is not None:
            assert np.array_equal(image, expected)


def test_every_cut_is_a_fault(cut_small):
    image = picture(32, 32, 60)
    for file in (encoded("4:2:0", image), with_restarts(image, restart_marker_blocks=2)):
        start = file.index(b"\xff\xda") + 14
        files = [file[:end] + b"\xff\xd9" for end in range(start, len(file) - 2)]
        images, faults = by_batch(files)
        assert all(faults)
        assert not any(image.any() for image in images)
        assert cut_small(files) == (0, faults)
        assert by_batch([file[:-1], file[:-2], file[:start], file[:3], b""])[1] == [NOT_TAKEN] * 5


def test_restart_markers_that_are_not_in_order():
    file = with_restarts(picture(64, 64, 60), restart_marker_blocks=2)
    first, second = file.index(b"\xff\xd0"), file.index(b"\xff\xd1")
    swapped = file[: first + 1] + b"\xd1" + file[first + 2 : second + 1] + b"\xd0" + file[second + 2 :]
    dropped = file[:first] + file[second:]
    plain = encoded("4:2:0", picture(64, 64, 60))
    added = plain[:-2] + b"\xff\xd0" + plain[-2:]
    images, faults = by_batch([file, swapped, dropped, added])
    assert faults == [0, BAD_RESTART, BAD_RESTART, BAD_RESTART]
    assert not any(image.any() for image in images[1:])


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("fancy", [True, False])
def test_kernels_equal_the_serial_form(kernels, cut_small, fancy, seed):
    files, (_, serial) = mixture(), by_batch(mixture())
    for run in (kernels, cut_small):
        different, faults = run(files, fancy=fancy, seed=seed)
        assert different == 0
        assert faults == serial


def test_components_that_share_all_tables_synchronise(kernels):
    files = [
        with_shared_tables(encoded(kind, picture(200, 300, 60), 90)) for kind in ("4:4:4", "4:2:0", "4:1:1")
    ]
    assert min(map(len, files)) > 64 * 2048 // 8  # more subsequences than rounds
    for image, file in zip(by_batch(files)[0], files, strict=True):
        assert np.array_equal(image, rgb(file))
    assert kernels(files) == (0, [0] * 3)


def test_more_intervals_than_threads(kernels, cut_small):
    files = [with_restarts(picture(300, 400, 30), restart_marker_blocks=1, subsampling=0)]
    for run in (kernels, cut_small):
        assert run(files) == (0, [0])


@pytest.mark.parametrize("most_blocks", [1, 300])
def test_chunks_end_anywhere(cut_small, most_blocks):
    assert cut_small(mixture()[:80], most_blocks=most_blocks)[0] == 0


@pytest.mark.realdata
@pytest.mark.slow
def test_kernels_on_photographs(kernels, real_files):
    different, faults = kernels(real_files("imagenet-800.zip")[::10])
    assert different == 0
    assert not any(faults)


def test_what_does_not_synchronise_is_given_up(kernels, cut_small):
    right, wrong = encoded("4:2:0", picture(64, 64, 60)), chessboard(300)
    different, faults = kernels([right, wrong, right])
    assert different == 0
    assert faults == [0, NOT_SYNCHRONISED, 0]
    assert cut_small([chessboard(96)]) == (0, [0])  # which may take as many rounds as it needs
    assert by_batch([wrong])[1] == [0]


def test_files_in_one_buffer():
    files = mixture()[:30]
    images, faults = BatchDecoder(torch.device("cpu")).decode(files)
    data = torch.frombuffer(bytearray(b"".join(files)), dtype=torch.uint8)
    offsets = torch.tensor(np.cumsum([0, *map(len, files)]))
    again, again_faults = BatchDecoder(torch.device("cpu")).decode_buffer(data, offsets)
    assert torch.equal(again.flat, images.flat)
    assert torch.equal(again_faults, faults)
    alike = [encoded("4:2:0", picture(33, 51, 9, seed)) for seed in range(3)]
    stacked = BatchDecoder(torch.device("cpu")).decode(alike)[0].stacked()
    assert torch.equal(stacked, torch.from_numpy(np.stack([rgb(file) for file in alike])))


def test_which_calls_go_by_a_thread_an_image():
    colour, gray = (encoded(kind, picture(64, 64, 60)) for kind in ("4:2:0", "grayscale"))
    assert small_and_alike([colour] * 3).places == [0, 1, 2]
    for files in ([colour, gray], [colour, b"text"], [b"text"], [encoded("4:2:0", picture(128, 128, 60))]):
        assert small_and_alike(files) is None


def test_no_files_and_files_outside_of_the_buffer():
    images, faults = BatchDecoder(torch.device("cpu")).decode([])
    assert (len(images), images.flat.numel(), faults.numel()) == (0, 0, 0)
    file = encoded("4:2:0", picture(16, 16, 9))
    data = torch.frombuffer(bytearray(file), dtype=torch.uint8)
    for offsets in ([-4, 10], [0, 10**12], [10, 4], [2**62, 2**63 - 1]):
        _, faults, places = decode_files(data, data, torch.tensor(offsets))
        assert faults.tolist() == [1]
        assert not places.any()


def test_what_the_op_does_not_take_is_told():
    data, offsets = torch.zeros(9, dtype=torch.uint8), torch.tensor([0, 9])
    with pytest.raises(TypeError, match="found: offsets of Int; expected: Long"):
        decode_files(data, data, offsets.int())
    with pytest.raises(ValueError, match="found: files of 8 bytes on cpu and data of 9"):
        decode_files(data, data[:8], offsets)
    with pytest.raises(ValueError, match="found: no offsets"):
        decode_files(data, data, offsets[:0])


def test_torch_finds_nothing_wrong_with_the_op():
    file = encoded("4:2:0", picture(16, 32, 9))
    data = torch.frombuffer(bytearray(file), dtype=torch.uint8)
    torch.library.opcheck(
        torch.ops.gpufeed.decode_jpeg_files.default,
        (data, data.clone(), torch.tensor([0, len(file)]), True),
        test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
    )

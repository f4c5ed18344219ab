"""Whole JPEGs of any mixture: the serial CPU form against libjpeg-turbo.

The kernels, run on the CPU, against that form.
"""

import numpy as np
import pytest
import torch
from hostile_fixtures import hostile_files
from hypothesis import given, settings
from hypothesis import strategies as st
from jpeg_batch_fixtures import (
    chessboard,
    kernels_on_cpu,
    mixture,
    windows_in,
    with_restarts,
    with_shared_tables,
)
from jpeg_fixtures import ANY_FILE, DAMAGE, SAMPLINGS, assert_bit_exact, damaged, encoded, picture, turbo

from gpufeed.decoders.cuda_jpeg import small_and_alike
from gpufeed.decoders.jpeg_batch import BatchDecoder
from gpufeed.decoders.jpeg_groups import can_code
from gpufeed.decoders.jpeg_parser import Refused, parse
from gpufeed.decoders.pillow import rgb
from gpufeed.native.jpeg_op import FAULTS, decode_files

BAD_MARKER, BAD_CODE, CUT_OFF, LEFT_OVER, NOT_TAKEN, BAD_RESTART, NOT_SYNCHRONISED, BAD_WINDOW = (
    2, 3, 5, 6, 9, 10, 11, 12,
)  # fmt: skip
RESTARTS, MARKER = "it has restart intervals of its own", "a marker inside the scan"
SMALL = {"SUBSEQUENCE": 64, "MOST_ROUNDS": 10**9, "DCT_TILE": 64, "COLOUR_TILE": 512, "SCAN_THREADS": 128}


pytestmark = pytest.mark.usefixtures("extension")


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


def in_windows(files: list[bytes], windows: np.ndarray) -> tuple[list[np.ndarray | None], list[int]]:
    """The pixels of windows, from parts that hold little else; None of files that are not taken."""
    parts, faults = BatchDecoder(torch.device("cpu")).decode(files, torch.from_numpy(windows))
    found = []
    places = zip(parts.views(), parts.whole.T.tolist(), windows.tolist(), strict=True)
    for part, (top, left, height, width), (y, x, h, w) in places:
        if not height:
            found.append(None)
            continue
        assert top <= y < y + h <= top + len(part) <= height
        assert left <= x < x + w <= left + part.shape[1] <= width
        assert len(part) <= h + 32  # one MCU on each side
        assert part.shape[1] <= w + 64
        found.append(part.numpy()[y - top : y - top + h, x - left : x - left + w])
    return found, faults.tolist()


def coded(image: np.ndarray, sampling: str, restart: int) -> bytes:
    """The image as a file, with markers between so many blocks if `restart` is not 0."""
    if restart:
        return with_restarts(image, restart_marker_blocks=restart, quality=90)
    return encoded(sampling, image)


def refusal(file: bytes) -> str | None:
    """Why jpeg_parser takes the file for none that these kernels decode; None if it does not."""
    try:
        kind = parse(file, whole_mcus=False).kind
    except Refused as refused:
        return str(refused)
    return None if can_code(kind) else "colours with different tables"


@settings(max_examples=50)
@given(**ANY_FILE, fancy=st.booleans())
def test_every_size_sampling_and_quality_is_bit_exact(**kind):
    assert_bit_exact(by_batch, **kind)


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


def assert_all_are_pillows(files: list[bytes]) -> None:
    images, faults = by_batch(files)
    assert not any(faults)
    for file, image in zip(files, images, strict=True):
        assert np.array_equal(image, rgb(file))


def test_photographs_made_on_the_spot_are_pillows(photographs):
    files = [path.read_bytes() for path in sorted(photographs.rglob("*")) if path.is_file()]
    assert len(files) == 60
    assert_all_are_pillows(files)


@pytest.mark.realdata
def test_a_hundred_photographs_are_pillows(real_files):
    """Of 800: tests/cuda/test_cuda_jpeg_batch.py decodes all of them."""
    assert_all_are_pillows(real_files("imagenet-800.zip")[::8])


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


@settings(max_examples=75)
@given(**DAMAGE, restart=st.sampled_from([0, 1, 7]))
def test_a_damaged_file_is_a_fault_or_libjpegs_pixels_and_harms_no_neighbour(
    cut_small, sampling, changes, cut, restart
):
    right = coded(picture(40, 56, 60), sampling, restart)
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


@settings(max_examples=50)
@given(
    sampling=st.sampled_from(sorted(SAMPLINGS)),
    height=st.integers(1, 100),
    width=st.integers(1, 100),
    restart=st.sampled_from([0, 1, 3]),
    seed=st.integers(0, 99),
)
def test_windows_have_the_pixels_of_whole_images(cut_small, sampling, height, width, restart, seed):
    image = picture(height, width, 60)
    files = [encoded(sampling, image), with_restarts(image, restart_marker_blocks=1 + restart, quality=90)]
    windows = windows_in([(height, width)] * 2, seed)
    found, faults = in_windows(files, windows)
    assert faults == [0, 0]
    for pixels, file, (y, x, h, w) in zip(found, files, windows.tolist(), strict=True):
        assert np.array_equal(pixels, turbo(file, True)[y : y + h, x : x + w])
    assert cut_small(files, windows=windows) == (0, [0, 0])


@pytest.mark.slow
def test_windows_of_a_mixture(kernels, cut_small):
    files = mixture()
    images, whole = by_batch(files)
    for seed in range(2):
        windows = windows_in([image.shape[:2] for image in images], seed)
        found, faults = in_windows(files, windows)
        for pixels, image, right, fault, (y, x, h, w) in zip(
            found, images, whole, faults, windows.tolist(), strict=True
        ):
            if right == 0:
                assert fault == 0
                assert np.array_equal(pixels, image[y : y + h, x : x + w])
        for run in (kernels, cut_small):
            assert run(files, windows=windows, seed=seed, most_blocks=(2**22, 500)[seed % 2]) == (0, faults)


def test_rows_behind_a_window_that_need_many_more_bits(kernels, cut_small):
    """And fewer: of one file more is decoded than a window needs, of the other too little at first."""
    smooth, noisy = picture(120, 400, 0), picture(120, 400, 255)
    for rows in ((smooth, noisy), (noisy, smooth)):
        file = encoded("4:4:4", np.concatenate(rows), 95)
        assert len(file) > 10 * 2048 // 8
        for bottom in (120, 130, 200):
            windows = np.array([[40, 90, bottom - 40, 200]], np.int32)
            (found,), faults = in_windows([file], windows)
            assert faults == [0]
            assert np.array_equal(found, rgb(file)[40:bottom, 90:290])
            for run in (kernels, cut_small):
                assert run([file], windows=windows) == (0, [0])


def test_which_damage_a_window_shows(cut_small):
    """All up to its last block, and markers everywhere; what is behind that block is not decoded."""
    file = encoded("4:4:4", picture(96, 96, 60))
    start, scan = file.index(b"\xff\xda") + 14, len(file) - 2
    behind = file[:scan] + bytes(9) + file[scan:]
    cut = file[: (start + 3 * scan) // 4] + b"\xff\xd9"
    early = (
        file[: start + 40] + b"\xfe" * 9 + file[start + 49 :]
    )  # no code of the standard tables has nine ones
    marker = file[: scan - 9] + b"\xff\x01" + file[scan - 7 :]
    restart = file[:scan] + b"\xff\xd0" + file[scan:]
    right = turbo(file, True)
    for window, expected in (
        ((0, 0, 30, 96), [0, 0, 0, BAD_CODE, BAD_MARKER, BAD_RESTART]),
        ((40, 20, 20, 30), [0, 0, 0, BAD_CODE, BAD_MARKER, BAD_RESTART]),
        ((60, 60, 36, 20), [0, 0, CUT_OFF, BAD_CODE, BAD_MARKER, BAD_RESTART]),
        ((60, 60, 36, 36), [0, LEFT_OVER, CUT_OFF, BAD_CODE, BAD_MARKER, BAD_RESTART]),
    ):
        files, windows = [file, behind, cut, early, marker, restart], np.array([window] * 6, np.int32)
        found, faults = in_windows(files, windows)
        assert faults == expected
        y, x, h, w = window
        for pixels, fault in zip(found, faults, strict=True):
            assert np.array_equal(pixels, 0 * pixels if fault else right[y : y + h, x : x + w])
        assert cut_small(files, windows=windows) == (0, faults)


@settings(max_examples=50)
@given(**DAMAGE, restart=st.sampled_from([0, 1, 7]), seed=st.integers(0, 99))
def test_windows_of_damaged_files_are_whole_files_or_a_fault(
    cut_small, sampling, changes, cut, restart, seed
):
    right = coded(picture(40, 56, 60), sampling, restart)
    files = [right, damaged(right, changes, cut), right]
    images, whole = by_batch(files)
    windows = windows_in([image.shape[:2] if image.size else (40, 56) for image in images], seed)
    found, faults = in_windows(files, windows)
    assert faults[0] == faults[2] == 0
    if whole[1] == 0:
        assert faults[1] == 0
        y, x, h, w = windows[1]
        assert np.array_equal(found[1], images[1][y : y + h, x : x + w])
    assert cut_small(files, windows=windows) == (0, faults)


def test_windows_that_are_none():
    file = encoded("4:2:0", picture(40, 50, 9))
    large = 2**31 - 1
    wrong = [(-1, 0, 9, 9), (0, -1, 9, 9), (0, 0, 0, 9), (0, 0, 9, 0), (0, 0, 41, 9), (0, 0, 9, 51)]
    wrong += [(32, 0, 9, 9), (0, 42, 9, 9), (large, 0, large, 9), (0, large, 9, large), (0, 0, -1, 9)]
    parts, faults = BatchDecoder(torch.device("cpu")).decode(
        [file, *[file] * len(wrong)], torch.tensor([(0, 0, 40, 50), *wrong], dtype=torch.int32)
    )
    assert faults.tolist() == [0, *[BAD_WINDOW] * len(wrong)]
    assert FAULTS[BAD_WINDOW] == "its window does not lie inside of it"
    assert not parts.whole[:, 1:].any()
    assert np.array_equal(parts.views()[0].numpy(), rgb(file))


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


@pytest.mark.parametrize(("fancy", "seed"), [(True, 0), (False, 1)])
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


def test_many_codes_of_one_bit(kernels, cut_small):
    """Sixteen zeros are one bit, so that eleven bits would be 176 coefficients: no step of a block."""
    file, random = encoded("grayscale", picture(400, 400, 9)), np.random.default_rng(0)
    table, scan = file.index(b"\xff\xc4\x00\xb5\x10"), file.index(b"\xff\xda")
    codes = bytes([1, 1, *[0] * 14, 0xF0, 0x00])  # sixteen zeros, and the end of a block
    head = file[:table] + b"\xff\xc4\x00\x15\x10" + codes + file[table + 2 + 0xB5 : scan + 10]
    blocks = ["00" + "0" * number + "10" for number in random.integers(0, 4, 2500)]
    files = []
    for runs in (blocks, [*blocks[:999], "00" + "0" * 11 + "10", *blocks[1000:]]):
        bits = "".join(runs)
        bits += "1" * (-len(bits) % 8)
        files.append(head + int(bits, 2).to_bytes(len(bits) // 8, "big") + b"\xff\xd9")
    images, faults = by_batch(files)
    assert faults == [0, 4]
    assert (images[0] == 128).all()
    below = np.array(
        [[300, 300, 50, 50]] * 2, np.int32
    )  # of the damage, which is met where nothing is written
    for run in (kernels, cut_small):
        assert run(files) == (0, [0, 4])
        assert run(files, windows=below) == (0, [0, 4])


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
    windows = torch.zeros((1, 4), dtype=torch.int32)
    for wrong in (windows.long(), windows[0], windows[:, :3], windows[:0], windows.repeat(1, 2)[:, ::2]):
        with pytest.raises(
            ValueError, match=r"found: windows of .* expected: Int of shape \[1, 4\] on the CPU"
        ):
            decode_files(data, data, offsets, windows=wrong)


def test_torch_finds_nothing_wrong_with_the_op():
    file = encoded("4:2:0", picture(16, 32, 9))
    data = torch.frombuffer(bytearray(file), dtype=torch.uint8)
    window = torch.tensor([[3, 4, 9, 20]], dtype=torch.int32)
    for more in ((), (window,)):
        torch.library.opcheck(
            torch.ops.gpufeed.decode_jpeg_files.default,
            (data, data.clone(), torch.tensor([0, len(file)]), True, *more),
            test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
        )

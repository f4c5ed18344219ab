"""Whole JPEGs of any mixture on a GPU: the bytes and the faults of the serial CPU form."""

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hostile_fixtures import available, hostile_files
from jpeg_batch_fixtures import chessboard, mixture, windows_in, with_restarts, with_shared_tables
from jpeg_fixtures import damaged, encoded, picture
from stream_fixtures import wrong_beside_a_busy_stream

from gpufeed.augment.random_resized_crop import RandomResizedCrop
from gpufeed.augment.resample import resample
from gpufeed.decoders.jpeg_batch import BatchDecoder
from gpufeed.decoders.pillow import PillowDecoder, rgb
from gpufeed.native.jpeg_op import decode_files

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")
NOT_SYNCHRONISED = 11
RUNS = int(os.environ.get("GPUFEED_JPEG_RUNS", "100"))

pytestmark = pytest.mark.usefixtures("extension")


def both(files: list[bytes], windows: np.ndarray | None = None) -> list[int]:
    """The GPU's faults, after all was found equal to the CPU form; what it has given up counts as equal."""
    needed = None if windows is None else torch.from_numpy(windows)
    images, faults = BatchDecoder(CUDA).decode(files, needed)
    right, right_faults = BatchDecoder(CPU).decode(files, needed)
    assert torch.equal(images.offsets, right.offsets)
    flat, faults = images.flat.cpu(), faults.tolist()
    pairs = zip(
        type(images)(flat, images.offsets, images.heights, images.widths).views(), right.views(), strict=True
    )
    for number, (found, expected) in enumerate(pairs):
        if faults[number] == NOT_SYNCHRONISED:
            assert not found.any()
            continue
        assert faults[number] == right_faults[number], number
        assert torch.equal(found, expected), number
    return faults


def tensors(files: list[bytes]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What decode_files takes."""
    host = torch.frombuffer(bytearray(b"".join(files)), dtype=torch.uint8)
    return host.to(CUDA), host, torch.tensor(np.cumsum([0, *map(len, files)]))


def test_a_mixture_of_all_kinds():
    faults = both(mixture())
    assert faults.count(0) > 130
    assert len(set(faults)) > 2


@pytest.mark.realdata
def test_800_photographs(real_files):
    files = real_files("imagenet-800.zip")
    assert len(files) == 800
    assert not any(both(files))


def sides_of(files: list[bytes]) -> list[tuple[int, int]]:
    """Height and width; 0 of files that are not taken."""
    images, _ = BatchDecoder(CPU).decode(files)
    return list(zip(images.heights.tolist(), images.widths.tolist(), strict=True))


@pytest.mark.parametrize("seed", range(3))
def test_windows_of_a_mixture(seed):
    files = mixture()
    assert both(files, windows_in(sides_of(files), seed)).count(0) > 130


def test_windows_of_damaged_files():
    random, files = np.random.default_rng(4), []
    rights = [encoded(kind, picture(60, 90, noise)) for kind in ("4:2:0", "4:4:4") for noise in (10, 90)]
    rights += [with_restarts(picture(60, 90, 60), restart_marker_blocks=3)]
    for number in range(2000):
        changes = {int(random.integers(30_000)): int(random.integers(256)) for _ in range(random.integers(4))}
        cut = int(random.integers(400)) if number % 3 == 0 else 0
        files.append(damaged(rights[number % len(rights)], changes, cut))
    assert {0, 2, 3, 5, 6} <= set(both(files, windows_in(sides_of(files))))


@pytest.mark.parametrize("training", [True, False])
def test_crops_of_windows_are_those_of_whole_images_bit_by_bit(photographs, training):
    files = [path.read_bytes() for path in sorted(photographs.rglob("*")) if path.is_file()]
    recipe = RandomResizedCrop(224, seed=2, training=training)
    images, _ = BatchDecoder(CUDA).decode(files)
    for epoch in range(4):
        windows = recipe.windows(torch.arange(len(files)), epoch, images.heights, images.widths)
        parts, faults = BatchDecoder(CUDA).decode(files, windows.needed(224))
        assert torch.equal(resample(parts, windows, 224), resample(images, windows, 224))
        assert not faults.any()
        assert parts.flat.numel() < 0.9 * images.flat.numel()


@pytest.mark.realdata
def test_crops_of_800_photographs(real_files):
    files = real_files("imagenet-800.zip")
    sides = torch.tensor(sides_of(files))
    windows = RandomResizedCrop(224, seed=2).windows(torch.arange(len(files)), 0, *sides.unbind(1))
    assert not any(both(files, windows.needed(224).numpy()))
    parts, _ = BatchDecoder(CUDA).decode(files, windows.needed(224))
    whole, _ = BatchDecoder(CUDA).decode(files)
    assert torch.equal(resample(parts, windows, 224), resample(whole, windows, 224))


def test_photographs_made_on_the_spot(photographs):
    files = [path.read_bytes() for path in sorted(photographs.rglob("*")) if path.is_file()]
    assert not any(both(files))
    assert np.array_equal(BatchDecoder(CUDA).decode(files[:1])[0].views()[0].cpu().numpy(), rgb(files[0]))


def test_restart_markers_of_every_distance():
    image = picture(70, 90, 60)
    files = [
        with_restarts(image, restart_marker_blocks=blocks, subsampling=sampling, quality=quality)
        for blocks in (*range(1, 12), 200)
        for sampling in range(3)
        for quality in (20, 95)
    ]
    assert not any(both(files))
    assert not any(both([with_restarts(picture(1000, 1500, 30), restart_marker_blocks=1, optimize=True)]))


def test_components_that_share_all_tables():
    files = [
        with_shared_tables(encoded(kind, picture(200, 300, 60), 90)) for kind in ("4:4:4", "4:2:0", "4:1:1")
    ]
    assert not any(both(files))


def test_ten_thousand_damaged_files():
    random = np.random.default_rng(3)
    rights = [
        encoded(sampling, picture(40, 56, noise)) for sampling in ("4:2:0", "4:4:4") for noise in (10, 90)
    ]
    rights += [with_restarts(picture(40, 56, 60), restart_marker_blocks=3)]
    rights += [encoded("4:2:2", picture(150, 160, 90), 95)]
    found = set()
    for _ in range(10):
        files = []
        for _ in range(1000):
            changes = {
                int(random.integers(30_000)): int(random.integers(256)) for _ in range(random.integers(4))
            }
            cut = int(random.integers(400)) if random.integers(3) == 0 else 0
            files.append(damaged(rights[random.integers(len(rights))], changes, cut))
        found |= set(both(files))
    assert {0, 2, 3, 5, 6} <= found


def test_random_bytes_behind_a_header():
    file, random = encoded("4:2:0", picture(64, 64, 60)), np.random.default_rng(0)
    start = file.index(b"\xff\xda") + 14
    noise = [
        random.bytes(int(length)).replace(b"\xff", b"\xfe") for length in random.integers(100, 9000, 1000)
    ]
    cuts = [file[start:end] for end in range(start, len(file) - 2)]
    faults = both([file[:start] + coded + b"\xff\xd9" for coded in (*noise, *cuts)])
    assert all(faults)


def test_runs_are_equal_bit_by_bit():
    """As many as GPUFEED_JPEG_RUNS says."""
    arguments = tensors([*mixture(), chessboard(300)])
    pixels, faults, _ = decode_files(*arguments)
    assert NOT_SYNCHRONISED in faults.tolist()
    for _ in range(RUNS):
        again, again_faults, _ = decode_files(*arguments)
        assert torch.equal(again_faults, faults)
        assert torch.equal(again, pixels)


def test_more_than_the_workspace_holds_at_a_time():
    """Flat images of 4,000 x 4,000 pixels between small ones: seven fill it, and all are more than 4 GiB."""
    flat = encoded("4:4:4", np.full((4000, 4000, 3), (90, 40, 200), np.uint8))
    small = encoded("4:2:0", picture(33, 51, 60))
    files = [small, *[flat] * 4, small, *[flat] * 90, small]
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    images, faults = BatchDecoder(CUDA).decode(files)
    assert torch.cuda.max_memory_allocated() - before - images.flat.numel() < 2**30 + 2**26
    assert not faults.any()
    colour, piece = torch.from_numpy(rgb(flat)).to(CUDA), torch.from_numpy(rgb(small)).to(CUDA)
    for file, image in zip(files, images.views(), strict=True):
        assert torch.equal(image, piece if file is small else colour)


def test_a_file_behind_four_gigabytes():
    file, lead = encoded("4:2:0", picture(33, 51, 60)), 2**32 + 3
    host = torch.zeros(lead + len(file), dtype=torch.uint8)
    host[lead:] = torch.frombuffer(bytearray(file), dtype=torch.uint8)
    pixels, faults, places = decode_files(host.to(CUDA), host, torch.tensor([0, lead, len(host)]))
    sizes = [[0, 33], [0, 51]]  # of the part and of the whole image
    assert (faults.tolist(), places.tolist()) == ([9, 0], [[0, 0], *sizes, [0, 0], [0, 0], *sizes])
    assert np.array_equal(pixels[: 33 * 51 * 3].view(33, 51, 3).cpu().numpy(), rgb(file))


def test_large_files():
    """Bits beyond 2^23 in a file, and a file that is decoded from an odd place of the buffer."""
    files = [encoded("4:4:4", picture(1500, 2000, 60), 98), encoded("4:2:0", picture(2100, 1333, 90), 97)]
    assert max(map(len, files)) > 2**20
    assert not any(both([files[1], b"x", files[0], encoded("grayscale", picture(5, 7, 9)), files[1]])[::2])


def test_a_view_at_an_odd_address_and_no_files():
    files = [encoded("4:2:0", picture(32, 48, 60))] * 3
    data, host, offsets = tensors(files)
    expected, *_ = decode_files(data, host, offsets)
    shifted = torch.cat([torch.zeros(3, dtype=torch.uint8), host])
    assert torch.equal(decode_files(shifted.to(CUDA)[3:], shifted[3:], offsets)[0], expected)
    pixels, faults, places = decode_files(data[:0], host[:0], offsets[:1])
    assert (pixels.numel(), faults.numel(), tuple(places.shape)) == (0, 0, (7, 0))
    images, faults = BatchDecoder(CUDA).decode([b"text", b"more text"])
    assert faults.tolist() == [9, 9]
    assert images.flat.numel() == 0


def test_the_current_stream_is_the_one_that_is_used():
    arguments = tensors([encoded("4:2:0", picture(64, 64, 60))] * 64)
    expected, *_ = decode_files(*arguments)
    assert wrong_beside_a_busy_stream(lambda: decode_files(*arguments)[0], expected, 200) == 0


def test_threads_with_a_stream_each():
    files = [file for file in mixture() if b"\xff\xda" in file]
    expected = [view.cpu() for view in BatchDecoder(CUDA).decode(files)[0].views()]

    def decode_often(turn: int) -> bool:
        decoder, own = BatchDecoder(CUDA), [*files[turn:], *files[:turn]]
        right = [*expected[turn:], *expected[:turn]]
        with torch.cuda.stream(torch.cuda.Stream(CUDA)):
            return all(
                torch.equal(view.cpu(), image)
                for _ in range(10)
                for view, image in zip(decoder.decode(own)[0].views(), right, strict=True)
            )

    with ThreadPoolExecutor(3) as pool:
        assert all(pool.map(decode_often, (0, 7, 20)))


def test_page_locked_memory_of_one_call_is_not_used_by_the_next():
    """Many calls are queued behind a delay, so that each must still have its own files when it runs."""
    files = [[encoded("4:2:0", picture(64, 64, 60, seed))] * 8 for seed in range(20)]
    decoder = BatchDecoder(CUDA)
    torch.cuda._sleep(200_000_000)
    queued = [decoder.decode(each)[0] for each in files]
    for each, images in zip(files, queued, strict=True):
        assert np.array_equal(images.views()[7].cpu().numpy(), rgb(each[0]))


def test_the_decoder_fills_a_batch_and_leaves_the_rest_to_pillow():
    decoder = available("cuda_jpeg")
    kinds = [encoded(kind, picture(200, 300, 20)) for kind in ("4:2:0", "4:4:4", "grayscale")]
    for files in (kinds, [*kinds, hostile_files()["progressive JPEG"].data], [chessboard(300), kinds[0]]):
        outcomes = decoder.decode_to(files, CUDA)
        reference = PillowDecoder().decode(files).images
        for found, right in zip(outcomes.images, reference, strict=True):
            assert np.array_equal(found.cpu().numpy(), right)
    out = torch.zeros((3, 200, 300, 3), dtype=torch.uint8, device=CUDA)
    assert [outcome.decoder for outcome in decoder.decode_into(kinds, out)] == ["cuda_jpeg"] * 3
    for found, file in zip(out, kinds, strict=True):
        assert np.array_equal(found.cpu().numpy(), rgb(file))
    assert [outcome.decoder for outcome in outcomes.outcomes] == ["pillow", "cuda_jpeg"]

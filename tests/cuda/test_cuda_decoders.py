"""What only a GPU shows of its decoders: hostile files, the device form, streams, memory, true differences.

The tests of tests/unit/test_decode*.py run over every decoder that a node has, so here too.
"""

import numpy as np
import pytest
import torch
from hostile_fixtures import available, hostile_files, photo, saved
from photo_fixtures import allowed, of_many_sizes
from PIL import Image
from stream_fixtures import wrong_beside_a_busy_stream

# The hostile tests run again here, with the `decoder` fixture of this module.
from test_decode_hostile import (  # noqa: F401
    test_all_at_once,
    test_outcome_pixels_and_neighbours,
    test_what_a_decoder_says_it_takes_it_decodes_itself,
)
from test_decode_real import by_whom as promised
from test_decode_real import files, mosaics  # noqa: F401

from gpufeed.core.errors import Skip
from gpufeed.core.registry import DECODERS, load
from gpufeed.decoders.dali_gpu import share_of_engines
from gpufeed.decoders.pillow import PillowDecoder
from gpufeed.stores.strip_backends import backend_class
from gpufeed.system.devices import jpeg_engines

GPU = [name for name in DECODERS if load("decoder", name).parallel == "device"]
DEVICE = torch.device("cuda", 0)
CALLS = 1000
PLANES = ("torchvision_cuda", "torchcodec_cuda")  # whose images are (3, H, W) in memory


@pytest.fixture(params=GPU)
def decoder(request):
    return available(request.param)


def shades(count: int, size: int = 64) -> list[bytes]:
    """JPEGs that differ in brightness by two steps each."""
    return [saved("JPEG", photo(size, size) // 2 + np.uint8(2 * (i % 60)), quality=90) for i in range(count)]


def test_device_form_stays_on_the_device_and_is_the_host_form(decoder):
    encoded = [*shades(3), b"", hostile_files()["CMYK JPEG"].data, saved("JPEG", photo(40, 24)), saved("PNG")]
    host, device = decoder.decode(encoded), decoder.decode_to(encoded, DEVICE)
    assert device.outcomes == host.outcomes
    assert [outcome.decoder for outcome in host.outcomes[:5]] == [decoder.name] * 3 + [None, "pillow"]
    for on_host, on_device in zip(host.images, device.images, strict=True):
        assert (on_host is None) == (on_device is None)
        if on_device is not None:
            assert on_device.device == DEVICE
            assert on_device.dtype == torch.uint8
            assert on_device.is_contiguous() or decoder.name in PLANES
            assert np.array_equal(on_device.cpu().numpy(), on_host)


def test_order_of_a_large_call_with_two_sizes(decoder):
    encoded = [data for pair in zip(shades(60), shades(60, size=40), strict=True) for data in pair] * 18
    decoded = decoder.decode(encoded)  # 2,160 files: more than one run of a DALI pipeline
    reference = PillowDecoder().decode(encoded[:120]).images * 18
    assert {outcome.decoder for outcome in decoded.outcomes} == {decoder.name}
    for found, right in zip(decoded.images, reference, strict=True):
        assert decoder.tolerance.exceeded(found, right) is None
        assert abs(float(found.mean()) - float(right.mean())) < 1  # shades are two steps apart


def test_one_bad_file_among_many(decoder):
    encoded = shades(40)
    encoded[17] = hostile_files()["JPEG of random bytes"].data
    encoded[23] = hostile_files()["overwritten PNG"].data
    decoded, reference = decoder.decode(encoded), PillowDecoder().decode(encoded)
    assert decoded.images[23] is None
    for place in set(range(40)) - {17, 23}:
        assert decoded.outcomes[place].decoder == decoder.name
        assert decoder.tolerance.exceeded(decoded.images[place], reference.images[place]) is None


@pytest.mark.parametrize("sizes", ["one", "several"])
def test_many_calls_beside_a_busy_stream(decoder, sizes):
    """Freed memory that queued kernels still read is not overwritten, and every image is whole when read."""
    encoded = shades(16) if sizes == "one" else of_many_sizes()

    def make() -> torch.Tensor:
        return torch.cat([image.flatten() for image in decoder.decode_to(encoded, DEVICE).images])

    expected = make()

    calls = CALLS if sizes == "one" else CALLS // 5  # cuda_jpeg has a call for each size
    assert wrong_beside_a_busy_stream(make, expected, calls) == 0


def test_images_of_several_sizes_are_right_beside_broken_ones(decoder):
    encoded = [data for data in of_many_sizes() for _ in range(20)]
    encoded[50:50] = [hostile_files()["truncated JPEG"].data, hostile_files()["GIF"].data]
    decoded = decoder.decode_to(encoded, DEVICE)
    right = PillowDecoder().decode(encoded).images
    assert [decoded.outcomes[place].decoder for place in (50, 51)] == [None, "pillow"]
    taken = [image for i, image in enumerate(decoded.images) if decoded.outcomes[i].decoder == decoder.name]
    assert len(taken) == 180
    if decoder.name in ("dali_gpu", "nvimgcodec"):  # others have one for each image or kind
        assert len({image.untyped_storage().data_ptr() for image in taken}) == 1
    for place, (image, expected) in enumerate(zip(decoded.images, right, strict=True)):
        if image is not None:
            tolerance = allowed(decoder.tolerance, expected)
            assert tolerance.exceeded(image.cpu().numpy(), expected) is None, place


@pytest.mark.alone
@pytest.mark.parametrize("sizes", ["one", "several"])
def test_memory_does_not_grow(decoder, sizes):
    encoded = shades(64) if sizes == "one" else of_many_sizes() * 8

    def used() -> int:
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info(DEVICE)
        return total - free

    for _ in range(30):
        decoder.decode_to(encoded, DEVICE)
    before = used()
    for _ in range(300):
        decoder.decode_to(encoded, DEVICE)
    assert used() - before <= 32 * 2**20


@pytest.fixture
def fresh():
    """dali_gpu that no file has been shown to."""
    available("dali_gpu")
    return load("decoder", "dali_gpu")(threads=2)


def large() -> list[bytes]:
    """Photographs of 375 x 500 pixels and odd sizes, as the engines take them and as they do not."""
    noise = np.random.default_rng(0).integers(0, 64, (401, 513, 3), dtype=np.uint8)
    images = [
        photo(*size) // 2 + noise[: size[0], : size[1]] for size in ((375, 500), (401, 513), (299, 450))
    ]
    options = [{"subsampling": kind} for kind in ("4:2:0", "4:2:2", "4:4:4")]
    options += [{"progressive": True}, {"optimize": True}, {"restart_marker_rows": 4}]
    found = [saved("JPEG", image, quality=85, **each) for image in images for each in options]
    return [*found, saved("JPEG", Image.fromarray(images[0]).convert("L")), saved("PNG", images[1])]


def test_jpeg_engines_are_counted_where_there_are_some():
    """By another way: nvImageCodec, when it may use nothing but the engines."""
    available("nvimgcodec")
    try:
        backend_class("nvimgcodec")(DEVICE, 2)
    except Skip:
        assert jpeg_engines(DEVICE) == 0
    else:
        assert jpeg_engines(DEVICE) > 0


@pytest.mark.parametrize("call", ["decode", "decode_into"])
def test_dali_has_large_files_decoded_by_the_engines_within_its_tolerance(fresh, call):
    engines = jpeg_engines(DEVICE)
    assert fresh.settings == {"hw_decoder_load": 0.0, "jpeg_engines": engines}
    encoded = large() if call == "decode" else large()[:1] * 40
    right = PillowDecoder().decode(encoded).images
    if call == "decode":
        decoded = fresh.decode(encoded)
        found, outcomes = decoded.images, decoded.outcomes
    else:
        out = torch.empty((40, 375, 500, 3), dtype=torch.uint8, device=DEVICE)
        outcomes, found = fresh.decode_into(encoded, out), list(out.cpu().numpy())
    assert fresh.settings == {"hw_decoder_load": share_of_engines(100_000, engines), "jpeg_engines": engines}
    assert {outcome.decoder for outcome in outcomes} == {"dali_gpu"}
    assert [w for pair in zip(found, right, strict=True) if (w := fresh.tolerance.exceeded(*pair))] == []


def test_small_files_and_those_that_the_engines_get_wrong_are_decoded_without_them(fresh):
    fresh.decode(shades(8))
    assert fresh.settings["hw_decoder_load"] == 0.0
    scaled = hostile_files()["gray JPEG with factors 2x2"].data
    other = load("decoder", "dali_gpu")(threads=2)
    decoded = other.decode([*large()[:4], scaled])
    assert other.settings["hw_decoder_load"] == 0.0
    assert decoded.outcomes[4].decoder == "dali_gpu"
    assert other.tolerance.exceeded(decoded.images[4], PillowDecoder().decode([scaled]).images[0]) is None


@pytest.mark.parametrize("name", hostile_files())
def test_with_engines_no_file_crashes_decodes_wrong_or_harms_its_neighbours(fresh, name):
    fresh.use(1.0)
    hostile, good = hostile_files()[name], large()[:2]
    encoded = [good[0], hostile.data, good[1]]
    decoded, right = fresh.decode(encoded), PillowDecoder().decode(encoded).images
    assert (decoded.images[1] is not None) == hostile.decodes
    for place in (0, 2) if hostile.damaged or not hostile.decodes else (0, 1, 2):
        assert fresh.tolerance.exceeded(decoded.images[place], right[place]) is None
    assert [decoded.outcomes[place].decoder for place in (0, 2)] == ["dali_gpu"] * 2


@pytest.mark.realdata
@pytest.mark.parametrize("kind", ["files", "mosaics"])
def test_differences_from_pillow(decoder, kind, request, capsys):
    """Within the stated tolerance; prints what was found, from which the tolerance is stated."""
    encoded = request.getfixturevalue(kind)
    decoded, reference = decoder.decode(encoded), PillowDecoder().decode(encoded)
    pairs = list(zip(decoded.images, reference.images, strict=True))
    differences = [np.abs(found.astype(np.int16) - right) for found, right in pairs]
    by_whom = sorted({str(outcome.decoder) for outcome in decoded.outcomes})
    with capsys.disabled():
        print(
            f"\n{decoder.version()}, {len(encoded)} {kind} by {', '.join(by_whom)}: "
            f"largest difference {max(d.max() for d in differences)}, "
            f"mean of an image at most {max(d.mean() for d in differences):.2f}, "
            f"of all {np.mean([d.mean() for d in differences]):.2f}"
        )
    assert set(by_whom) == promised(decoder.name, kind)
    assert [w for found, right in pairs if (w := decoder.tolerance.exceeded(found, right))] == []

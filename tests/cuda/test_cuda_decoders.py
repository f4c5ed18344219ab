"""What only a GPU shows of its decoders: hostile files, the device form, streams, memory, true differences.

The tests of tests/unit/test_decode*.py run over every decoder that a node has, so here too.
"""

import numpy as np
import pytest
import torch
from hostile_fixtures import available, hostile_files, photo, saved
from stream_fixtures import wrong_beside_a_busy_stream

# The hostile tests run again here, with the `decoder` fixture of this module.
from test_decode_hostile import (  # noqa: F401
    test_all_at_once,
    test_outcome_pixels_and_neighbours,
    test_what_a_decoder_says_it_takes_it_decodes_itself,
)
from test_decode_real import by_whom as promised
from test_decode_real import files, mosaics  # noqa: F401

from gpufeed.decode.pillow import PillowDecoder
from gpufeed.registry import DECODERS, load

GPU = [name for name in DECODERS if load("decoder", name).parallel == "device"]
DEVICE = torch.device("cuda", 0)
CALLS = 1000


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
            assert on_device.is_contiguous()
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


def test_thousand_calls_beside_a_busy_stream(decoder):
    """Freed memory that queued kernels still read is not overwritten, and every image is whole when read."""
    encoded = shades(16)
    expected = torch.stack(decoder.decode_to(encoded, DEVICE).images)  # (16, 64, 64, 3)

    def make() -> torch.Tensor:
        return torch.stack(decoder.decode_to(encoded, DEVICE).images)

    assert wrong_beside_a_busy_stream(make, expected, CALLS) == 0


@pytest.mark.alone
def test_memory_does_not_grow(decoder):
    encoded = shades(64)

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

"""Every decoder that this node can run, over files that break decoders."""

import numpy as np
import pytest
import torch
from hostile_fixtures import available, hostile_files, photo, saved, told
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufeed.core.registry import DECODERS
from gpufeed.decoders.encoded_file import JPEG_KINDS, PNG_KINDS, SCALED_GRAY, TALL_CHROMA, read_header
from gpufeed.decoders.pillow import PillowDecoder

FILES = hostile_files()
TOLD = told()
GOOD = [saved("JPEG", photo(64, 64)), saved("JPEG", photo(40, 24), subsampling="4:4:4")]


def reference(data: bytes) -> np.ndarray | None:
    return PillowDecoder().decode([data]).images[0]


@pytest.fixture(params=DECODERS)
def decoder(request):
    return available(request.param)


def test_the_table_in_the_docs_has_every_file_and_every_decoder():
    assert {name: set(row) for name, row in TOLD.items()} == {name: set(DECODERS) for name in FILES}
    assert {name: set(row.values()) == {"none"} for name, row in TOLD.items()} == {
        name: not hostile.decodes for name, hostile in FILES.items()
    }


def promised(decoder, name: str) -> set[str | None]:
    """Who may decode the file, as the docs say of an H200; another GPU may refuse other files."""
    word = TOLD[name][decoder.name]
    elsewhere = decoder.parallel == "device" and "H200" not in torch.cuda.get_device_name()
    if word == "itself" and elsewhere:
        return {decoder.name, "pillow"}
    return {{"itself": decoder.name, "pillow": "pillow", "none": None}[word]}


@pytest.mark.parametrize("name", FILES)
def test_outcome_pixels_and_neighbours(decoder, name):
    hostile = FILES[name]
    decoded = decoder.decode([GOOD[0], hostile.data, GOOD[1]])
    outcome, image = decoded.outcomes[1], decoded.images[1]
    assert (image is not None) == hostile.decodes == (reference(hostile.data) is not None)
    assert outcome.decoder in promised(decoder, name)
    if hostile.decodes:
        assert outcome.reason is None
        assert image.shape == reference(hostile.data).shape
        assert hostile.damaged or decoder.tolerance.exceeded(image, reference(hostile.data)) is None
    else:
        assert outcome.reason
    for place, data in ((0, GOOD[0]), (2, GOOD[1])):
        assert decoded.outcomes[place].decoder == decoder.name
        assert decoder.tolerance.exceeded(decoded.images[place], reference(data)) is None


def test_all_at_once(decoder):
    files = [hostile.data for hostile in FILES.values()]
    decoded = decoder.decode(files)
    assert len(decoded.images) == len(decoded.outcomes) == len(files)
    for hostile, image in zip(FILES.values(), decoded.images, strict=True):
        assert (image is not None) == hostile.decodes


BASELINE = ("gray JPEG", "4:2:0 JPEG of odd sides", "4:4:4 JPEG of odd sides", "EXIF-rotated JPEG")
NATIVE_JPEG = (*BASELINE, "progressive JPEG", "1x1 JPEG", "JPEG with restart markers")
NATIVE_PNG = ("gray PNG", "palette PNG", "1-bit PNG", "RGBA PNG", "1x1 PNG")


def test_what_a_decoder_says_it_takes_it_decodes_itself(decoder):
    takes = getattr(decoder, "takes", JPEG_KINDS | PNG_KINDS)
    names = NATIVE_JPEG + (NATIVE_PNG if takes >= PNG_KINDS else ())
    if decoder.parallel == "device":  # the rest depends on the GPU and the driver
        names = BASELINE
    outcomes = decoder.decode([FILES[name].data for name in names]).outcomes
    assert {name: outcome.decoder for name, outcome in zip(names, outcomes, strict=True)} == dict.fromkeys(
        names, decoder.name
    )


@settings(max_examples=40)
@given(data=st.data(), format=st.sampled_from(["JPEG", "PNG"]))
@pytest.mark.parametrize("name", DECODERS)
def test_damaged_files_never_crash_nor_harm_their_neighbours(name, data, format):
    decoder = available(name)
    damaged = bytearray(saved(format, photo(24, 24)))
    places = st.integers(2, len(damaged) - 3)
    for place, value in data.draw(st.dictionaries(places, st.integers(0, 255), max_size=8)).items():
        damaged[place] = value
    decoded = decoder.decode([GOOD[0], bytes(damaged), GOOD[1]])
    image, outcome = decoded.images[1], decoded.outcomes[1]
    assert (image is None) == (outcome.reason is not None) == (outcome.decoder is None)
    if image is not None:
        assert image.dtype == np.uint8
        assert image.ndim == 3
        assert image.shape[2] == 3
    assert decoder.tolerance.exceeded(decoded.images[0], reference(GOOD[0])) is None
    assert decoder.tolerance.exceeded(decoded.images[2], reference(GOOD[1])) is None


@given(st.binary(max_size=64))
def test_header_of_any_bytes(data):
    for start, end in ((b"\xff\xd8", b"\xff\xd9"), (b"\x89PNG\r\n\x1a\n", b"IEND\xaeB`\x82"), (b"", b"")):
        header = read_header(start + data + end)
        assert header is None or header.height * header.width > 0


def test_headers_say_what_pillow_finds():
    kinds = {name: header.kind for name, file in FILES.items() if (header := read_header(file.data))}
    assert kinds["gray JPEG"] == "jpeg Gray"
    assert kinds["gray JPEG with factors 2x2"] == SCALED_GRAY
    assert kinds["4:4:0 JPEG of odd sides"] == TALL_CHROMA
    assert kinds["CMYK JPEG"] == "jpeg CMYK"
    assert kinds["16-bit RGB PNG"] == "png 16"
    assert kinds["1-bit PNG"] == "png 1"
    assert "truncated JPEG" not in kinds
    assert "huge JPEG header" not in kinds
    assert "huge PNG header" not in kinds
    for name in kinds:
        if (image := reference(FILES[name].data)) is not None:
            header = read_header(FILES[name].data)
            assert image.shape == (header.height, header.width, 3)

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from gpufeed.decoders.jpeg_parser import Refused, parse

RAMP = np.add.outer(np.arange(32) * 3, np.arange(32) * 2)
PHOTO = np.stack([RAMP, RAMP[::-1], 255 - RAMP], axis=2).astype(np.uint8)  # (32, 32, 3)


def jpeg(image: np.ndarray = PHOTO, mode: str | None = None, **options) -> bytes:
    buffer = io.BytesIO()
    picture = Image.fromarray(image)
    (picture.convert(mode) if mode else picture).save(buffer, "JPEG", **options)
    return buffer.getvalue()


def replaced(data: bytes, old: bytes, new: bytes) -> bytes:
    assert data.count(old) == 1
    return data.replace(old, new)


GOOD = jpeg(subsampling="4:2:0")
FRAME = b"\xff\xc0\x00\x11\x08\x00\x20\x00\x20\x03\x01\x22\x00\x02\x11\x01\x03\x11\x01"
SCAN = b"\xff\xda\x00\x0c\x03\x01\x00\x02\x11\x03\x11\x00\x3f\x00"
APP14 = b"\xff\xee\x00\x0eAdobe\x00\x64\x00\x00\x00\x00\x00"
JFIF = GOOD[2:20]
SHORT_JFIF = JFIF[:3] + bytes([JFIF[3] - 2]) + JFIF[4:-2]  # without the sides of a thumbnail


@pytest.mark.parametrize(
    ("subsampling", "mcus", "blocks"), [("4:2:0", 4, 24), ("4:2:2", 8, 32), ("4:4:4", 16, 48)]
)
def test_what_a_good_file_says(subsampling, mcus, blocks):
    data = jpeg(subsampling=subsampling)
    found = parse(data)
    assert (found.kind.height, found.kind.width, found.kind.sampling) == (32, 32, subsampling)
    assert (found.kind.mcus, found.kind.blocks) == (mcus, blocks)
    assert data.endswith(found.entropy + b"\xff\xd9")
    with Image.open(io.BytesIO(data)) as image:
        tables = {number: sorted(table) for number, table in image.quantization.items()}
    assert {number: sorted(table) for number, table in found.kind.quantisation} == tables


def test_grayscale():
    kind = parse(jpeg(mode="L")).kind
    assert (kind.sampling, kind.mcus, len(kind.components)) == ("grayscale", 16, 1)
    assert [number for number, _ in kind.huffman] == [0x00, 0x10]


def test_metadata_and_density_make_no_other_kind():
    exif = Image.Exif()
    exif[0x0112] = 6
    other = jpeg(subsampling="4:2:0", dpi=(300, 300), comment=b"\xff\xd9 hello", exif=exif)
    assert len(other) > len(GOOD) + 20
    assert parse(other) == parse(GOOD)


def test_tables_that_the_scan_does_not_use_make_no_other_kind():
    unused = b"\xff\xdb\x00\x43\x03" + bytes(range(1, 65))
    assert parse(replaced(GOOD, FRAME, unused + FRAME)) == parse(GOOD)


@pytest.mark.parametrize("options", [{"quality": 50}, {"optimize": True}, {"subsampling": "4:4:4"}])
def test_other_tables_and_sampling_are_other_kinds(options):
    assert parse(jpeg(**{"subsampling": "4:2:0", **options})).kind != parse(GOOD).kind


def frame(marker=0xC0, precision=8, height=32, width=32, first=0x22, second=0x11) -> bytes:
    """A frame header: FRAME, but for what is given; `first` and `second` are sampling factors."""
    sides = height.to_bytes(2, "big") + width.to_bytes(2, "big")
    components = bytes([3, 1, first, 0, 2, second, 1, 3, 0x11, 1])
    return bytes([0xFF, marker, 0, 17, precision]) + sides + components


def rgb_by_names(jfif: bytes) -> bytes:
    """The file with components named R, G and B, and `jfif` in place of its JFIF segment."""
    named = replaced(GOOD, FRAME, FRAME[:10] + b"R\x22\x00G\x11\x01B\x11\x01")
    return replaced(replaced(named, JFIF, jfif), SCAN, SCAN[:5] + b"R\x00G\x11B\x11" + SCAN[-3:])


REFUSALS = {
    "empty": (b"", "not a JPEG"),
    "png": (b"\x89PNG\r\n\x1a\n" + bytes(50), "not a JPEG"),
    "only SOI": (b"\xff\xd8", "cut off"),
    "header cut": (GOOD[:200], "cut off"),
    "scan cut": (GOOD[:-30], "no end of image"),
    "no EOI": (GOOD[:-2], "no end of image"),
    "half an EOI": (GOOD[:-1], "no end of image"),
    "nothing coded": (GOOD[: GOOD.index(SCAN) + len(SCAN)] + b"\xff\xd9", "too few bytes"),
    "after the end": (GOOD + b"\0", "bytes after the end"),
    "two images": (GOOD + GOOD, "bytes after the end"),
    "marker in the scan": (GOOD[:-2] + b"\xff\xd0\xff\xd9", "marker inside the scan"),
    "fill bytes in the scan": (GOOD[:-2] + b"\xff\xff\xd9", "marker inside the scan"),
    "junk in the header": (replaced(GOOD, FRAME, b"\0\0" + FRAME), "no marker"),
    "segment of length 1": (replaced(GOOD, FRAME, b"\xff\xfe\x00\x01" + FRAME), "cut off"),
    "RST in the header": (replaced(GOOD, FRAME, b"\xff\xd0\x00\x02" + FRAME), "baseline header"),
    "restart interval": (jpeg(restart_marker_blocks=1), "restart intervals"),
    "progressive": (jpeg(progressive=True), "progressive"),
    "extended": (replaced(GOOD, FRAME, frame(marker=0xC1)), "extended sequential"),
    "arithmetic": (replaced(GOOD, FRAME, frame(marker=0xC9)), "arithmetic"),
    "lossless": (replaced(GOOD, FRAME, frame(marker=0xC3)), "lossless"),
    "hierarchical": (replaced(GOOD, FRAME, frame(marker=0xC5)), "hierarchical"),
    "12 bits": (replaced(GOOD, FRAME, frame(precision=12)), "8 bits"),
    "cmyk": (jpeg(mode="CMYK"), "one nor three"),
    "odd size": (jpeg(PHOTO[:30]), "whole MCUs"),
    "8 rows of 4:2:0": (jpeg(PHOTO[:24], subsampling="4:2:0"), "whole MCUs"),
    "no height": (replaced(GOOD, FRAME, frame(height=0)), "no height or no width"),
    "no width": (replaced(GOOD, FRAME, frame(width=0)), "no height or no width"),
    "huge": (replaced(GOOD, FRAME, frame(height=65520, width=65520)), "more MCUs"),
    "large for its bytes": (replaced(GOOD, FRAME, frame(height=2048, width=2048)), "too few bytes"),
    "sampling 0": (replaced(GOOD, FRAME, frame(first=0x00)), "sampling factors"),
    "sampling 3": (replaced(GOOD, FRAME, frame(first=0x31)), "sampling factors"),
    "chroma of 2 x 1": (replaced(GOOD, FRAME, frame(second=0x21)), "sampling factors"),
    "two frames": (replaced(GOOD, FRAME, FRAME + FRAME), "more than one frame"),
    "no frame": (replaced(GOOD, FRAME, b""), "before the frame"),
    "rgb by Adobe": (replaced(GOOD, JFIF, APP14), "another colour space"),
    "jfif and rgb by Adobe": (replaced(GOOD, JFIF, JFIF + APP14), "another colour space"),
    "rgb by Pillow": (jpeg(keep_rgb=True), "another colour space"),
    "rgb by names": (rgb_by_names(b""), "no marker names"),
    "rgb by names, after a JFIF segment too short for libjpeg": (rgb_by_names(SHORT_JFIF), "no marker names"),
    "scan out of order": (
        replaced(GOOD, SCAN, SCAN[:5] + b"\x02\x11\x01\x00\x03\x11" + SCAN[-3:]),
        "all components",
    ),
    "scan of one component": (
        replaced(GOOD, SCAN, b"\xff\xda\x00\x08\x01\x01\x00\x00\x3f\x00"),
        "all components",
    ),
    "spectral selection": (replaced(GOOD, SCAN, SCAN[:-2] + b"\x05\x00"), "not sequential"),
    "missing table": (replaced(GOOD, SCAN, SCAN[:-4] + b"\x22" + SCAN[-3:]), "table is missing"),
    "16-bit quantisation": (
        replaced(GOOD, FRAME, b"\xff\xdb\x00\x83\x10" + b"\0\1" * 64 + FRAME),
        "wrong length",
    ),
    "quantisation by 0": (replaced(GOOD, FRAME, b"\xff\xdb\x00\x43\x00" + bytes(64) + FRAME), "not baseline"),
    "third Huffman table": (
        replaced(GOOD, FRAME, b"\xff\xc4\x00\x14\x02\x01" + bytes(16) + FRAME),
        "not baseline",
    ),
    "DC category 12": (
        replaced(GOOD, FRAME, b"\xff\xc4\x00\x14\x00\x01" + bytes(15) + b"\x0c" + FRAME),
        "not baseline",
    ),
    "code of all ones": (
        replaced(GOOD, FRAME, b"\xff\xc4\x00\x15\x00\x02" + bytes(15) + b"\x00\x01" + FRAME),
        "no prefix code",
    ),
    "Huffman table cut": (replaced(GOOD, FRAME, b"\xff\xc4\x00\x05\x00\x01\x00" + FRAME), "table is cut off"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refused_with_a_reason(case):
    data, reason = REFUSALS[case]
    with pytest.raises(Refused, match=reason):
        parse(data)


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data):
    with pytest.raises(Refused):
        parse(data)


@settings(max_examples=150)
@given(st.data())
def test_changed_files_are_refused_or_taken_apart(data):
    """Whatever is changed, the answer is a reason or bytes that are in the file, without a marker."""
    file = bytearray(data.draw(st.sampled_from([GOOD, jpeg(mode="L"), jpeg(subsampling="4:4:4")])))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(file) - 1))
        cut = data.draw(st.integers(0, 3))
        file[place : place + cut] = data.draw(st.binary(max_size=3))
        file = file or bytearray(1)
    try:
        found = parse(bytes(file))
    except Refused:
        return
    assert file.endswith(found.entropy + b"\xff\xd9")
    assert b"\xff" not in found.entropy.replace(b"\xff\x00", b"")
    assert found.kind.height % 8 == found.kind.width % 8 == 0
    assert 0 < found.kind.mcus <= 0xFFFF

"""Each decoder against Pillow on real files: its stated tolerance, and that it did the work itself."""

import numpy as np
import pytest
from hostile_fixtures import available, saved, told

from gpufeed.core.registry import DECODERS
from gpufeed.decoders.pillow import PillowDecoder

pytestmark = pytest.mark.realdata


@pytest.fixture(scope="module")
def files(real_files) -> list[bytes]:
    """Every hundredth JPEG of Tiny ImageNet's copy: 64 x 64 pixels, 4:2:0, one in fifty gray."""
    return real_files("tiny-imagenet-40.zip", ".JPEG")[::100]


@pytest.fixture(scope="module")
def mosaics(files) -> list[bytes]:
    """JPEGs of 520 x 200 pixels made of real images, at several qualities and chroma samplings."""
    tiles = PillowDecoder().decode(files).images
    rows = [np.concatenate(tiles[start : start + 9], axis=1) for start in range(0, 36, 9)]
    large = np.concatenate(rows)[:200, :520]
    return [
        saved("JPEG", large, quality=quality, subsampling=sampling, progressive=progressive)
        for quality in (50, 95)
        for sampling in ("4:4:4", "4:2:2", "4:2:0")
        for progressive in (False, True)
    ]


def by_whom(name: str, kind: str) -> set[str]:
    """Who decodes them: half of the mosaics are progressive, which not every decoder takes."""
    left = kind == "mosaics" and told()["progressive JPEG"][name] == "pillow"
    return {name, "pillow"} if left else {name}


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("kind", ["files", "mosaics"])
def test_within_the_stated_tolerance(name, kind, request):
    decoder, encoded = available(name), request.getfixturevalue(kind)
    decoded, reference = decoder.decode(encoded), PillowDecoder().decode(encoded)
    assert {outcome.decoder for outcome in decoded.outcomes} == by_whom(name, kind)
    pairs = zip(decoded.images, reference.images, strict=True)
    wrong = [sentence for found, right in pairs if (sentence := decoder.tolerance.exceeded(found, right))]
    assert wrong == []

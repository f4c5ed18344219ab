"""Recipe random_resized_crop by FFmpeg's filters, in threads of this process; the gate checks photographs.

test_spdl_process.py holds processes of their own against these threads.
"""

import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from hostile_fixtures import hostile_files, saved
from image_fixtures import request, write_files
from PIL import Image

from gpufeed.augment.random_resized_crop import RandomResizedCrop, Window
from gpufeed.core.errors import GpufeedError, Skip
from gpufeed.decoders.base import Tolerance
from gpufeed.decoders.pillow import rgb
from gpufeed.loaders.spdl_batches import Crop, Ffmpeg

RECIPE = RandomResizedCrop(32, short_side=40, seed=3)
NEAR = Tolerance(40, 4.0)  # of files without noise
FILES = [one.data for one in hostile_files().values() if one.decodes and not one.damaged]


@pytest.fixture
def manifest(tmp_path):
    """Sound files of many formats, kinds and sizes, two of which FFmpeg leaves to Pillow."""
    manifest = write_files(tmp_path / "files", FILES, "any", (0, 0))
    for place, data in enumerate(FILES):
        manifest.table.loc[place, ["height", "width"]] = rgb(data).shape[:2]
    return manifest


@pytest.fixture
def make(manifest, open_loader):
    """(changes of the request) -> an open loader."""
    return lambda **changes: open_loader(
        "spdl", request(manifest, None, workers=2, **{"recipe": RECIPE, **changes})
    )


@pytest.mark.parametrize("recipe", [RECIPE, RECIPE.for_evaluation()], ids=["training", "evaluation"])
def test_windows_are_ours_and_pixels_near_those_of_pillow(make, recipe):
    loader = make(recipe=recipe)
    for epoch in range(2):
        seen = 0
        for batch in loader:
            assert batch.images.shape[1:] == (32, 32, 3)
            for sample_id, found in zip(batch.ids.tolist(), batch.images.numpy(), strict=True):
                image = rgb(FILES[sample_id])
                right = recipe.cut(image, recipe.window(sample_id, epoch, *image.shape[:2]))
                assert NEAR.exceeded(found, right) is None, sample_id
                seen += 1
        assert seen == len(FILES)
    assert loader.decode_counts.asdict()["fell_back"] == {"pillow": 2 * 2}


def test_a_resumed_epoch_has_the_windows_of_the_whole_one(make):
    whole = make()
    first, second = ([batch.images.clone() for batch in whole] for _ in range(2))
    resumed = make()
    resumed.load_state_dict({"epoch": 1, "next_batch": 2, "seed": 3})
    assert all(torch.equal(a.images, b) for a, b in zip(resumed, second[2:], strict=True))
    assert not torch.equal(first[0], second[0])


@pytest.mark.parametrize(("recipe", "most"), [(RECIPE, 0), (None, 2)], ids=["windows", "whole images"])
def test_images_wait_for_no_graph_that_holds_the_lock(tmp_path, open_loader, monkeypatch, recipe, most):
    """`FilterGraph` holds the interpreter's lock while it is made: a thread makes at most one in an epoch."""
    manifest = write_files(tmp_path / "files", [saved("JPEG")] * 24, "jpg", (48, 64))
    loader = open_loader("spdl", request(manifest, None, workers=2, batch_size=4, recipe=recipe))
    graph, made = loader.library.io.FilterGraph, []
    monkeypatch.setattr(loader.library.io, "FilterGraph", lambda text: made.append(text) or graph(text))
    assert sum(len(batch.images) for batch in loader) == 24
    assert len(made) <= most
    assert loader.decode_counts.asdict()["fell_back"] == {}


@pytest.mark.parametrize(
    ("data", "said"),
    [(saved("JPEG")[:300], "OSError|SyntaxError"), (saved("JPEG", np.zeros((9, 9, 3), np.uint8)), "decoded")],
    ids=["broken", "another size"],
)
def test_a_file_that_cannot_be_a_sample_is_named(make, manifest, data, said):
    manifest.paths()[4].write_bytes(data)
    with pytest.raises(GpufeedError, match=rf"4\.any: .*({said})"):
        list(make())


@pytest.mark.parametrize("kind", ["GIF", "MPO"])  # MPO: a JPEG with a second picture, as cameras write it
def test_files_of_several_frames_are_left_to_pillow(tmp_path, open_loader, kind):
    frames = [Image.new("RGB", (64, 48), colour) for colour in ("red", "blue")]
    data = io.BytesIO()
    frames[0].save(data, kind, save_all=True, append_images=frames[1:])
    manifest = write_files(tmp_path / "files", [data.getvalue(), saved("JPEG")], "jpg", (48, 64))
    loader = open_loader("spdl", request(manifest, None, workers=1, recipe=RECIPE))
    found = {
        int(i): image
        for batch in loader
        for i, image in zip(batch.ids, batch.images.float().mean((1, 2)), strict=True)
    }
    assert (found[0][0] > 250, found[0][2] < 5, len(found)) == (True, True, 2)  # the first frame
    assert loader.decode_counts.asdict()["fell_back"] == {"pillow": 1}


@pytest.mark.parametrize("sampling", ["4:4:4", "4:2:2", "4:2:0"])
def test_colours_do_not_move_with_the_place_of_a_window(sampling):
    """Red grows to the right and downwards: moved by a pixel it would be 4 off in the mean."""
    try:
        library = Ffmpeg()
    except Skip as skip:
        pytest.skip(str(skip))
    y, x = np.mgrid[:64, :64]
    image = np.stack([2 * (x + y), 0 * x + 60, 250 - 2 * (x + y)], axis=2).astype(np.uint8)
    data = saved("JPEG", image, subsampling=sampling, quality=98)
    pixels = rgb(data)
    for offset in range(4):
        window = Window(offset, offset, 40, 42, 32, 32, 0, 0, False)
        for flip in (False, True):
            window = replace(window, flip=flip)
            frame = library.decode(data, (64, 64), Crop(window, 32))
            found = library.pixels([frame]).reshape(32, 32, 3)[2:-2, 2:-2]
            right = RECIPE.cut(pixels, window)[2:-2, 2:-2]
            assert abs((found.astype(int) - right).mean((0, 1))).max() < 0.8

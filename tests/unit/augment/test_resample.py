"""Windows of ragged batches: the CPU form, and the kernel by Triton's interpreter."""

import re
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from test_augment_kernels import needs_triton, run
from window_fixtures import cases, difference, parts_of, picture, rows_first, windows_of

from gpufeed.augment.random_resized_crop import RandomResizedCrop, Window
from gpufeed.augment.resample import require_resample, resample
from gpufeed.core.errors import GpufeedError, Skip
from gpufeed.decoders.ragged import Ragged

# In a process of its own, since the switch is read when Triton is imported. Triton 3.6 takes a loop's bound
# with int() from an array of one dimension, which NumPy 2.4 refuses.
INTERPRETED = """
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from triton.runtime import interpreter
from window_fixtures import rows_first, cases, difference, parts_of, picture, windows_of

from gpufeed.augment.random_resized_crop import RandomResizedCrop, Window
from gpufeed.augment.resample import resample
from gpufeed.decoders.ragged import Ragged

patch = interpreter._patch_lang_tensor
def patched(tensor, scope):
    patch(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())
interpreter._patch_lang_tensor = patched
found = {"rows first": [], "pillow": []}

def check(case, form):
    images = [torch.from_numpy(image) for image in case.images]
    if "planes" in form:
        images = [image.permute(2, 0, 1).contiguous().permute(1, 2, 0) for image in images]
    if "ragged" in form:
        packed = Ragged.pack(images)
        flat = torch.cat([image.permute(2, 0, 1).reshape(-1) for image in images])
        images = replace(packed, flat=flat, planar=True) if "planes" in form else packed
    if form == "parts":
        images = parts_of(case.images, windows_of(case.windows), case.size)
    out = torch.full((len(images), case.size, case.size, 3), 7, dtype=torch.uint8)
    resample(images, windows_of(case.windows), case.size, out=out)
    for sample, image, window in zip(out, case.images, case.windows, strict=True):
        found["rows first"].append(difference(sample, rows_first(image, window, case.size)))
        found["pillow"].append(difference(sample, RandomResizedCrop(case.size).cut(image, window)))

forms = st.sampled_from(["pixels", "planes", "ragged", "ragged planes", "parts"])
always = settings(max_examples=15, deadline=None, derandomize=True, database=None)
always(given(cases(most_side=33, most_work=40), forms)(check))()
thin = Window(0, 0, 400, 2, 9, 9, 0, 0, True)  # 89 rows under a filter
check(SimpleNamespace(images=[picture(400, 2, 5)], windows=[thin], size=9), "pixels")
check(SimpleNamespace(images=[picture(400, 2, 5)], windows=[thin], size=9), "parts")
for steps in found.values():
    print(max(each.max() for each in steps), np.mean([(each > 0).mean() for each in steps]))
"""


@pytest.mark.slow
@needs_triton
def test_the_kernel_against_pillows_arithmetic_and_pillow():
    lines = run(INTERPRETED, TRITON_INTERPRET="1").splitlines()
    (most, share), (most_pillow, share_pillow) = (map(float, line.split()) for line in lines)
    assert most <= 1
    assert share < 0.003
    assert most_pillow <= 1
    assert share_pillow < 0.1


@needs_triton
@pytest.mark.parametrize("capability", [80, 90])
def test_the_kernel_compiles_and_a_warp_reads_along_a_row(capability):
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from gpufeed.augment.resample_kernel import TILE, WARPS, resample_tiles

    kinds = {"out": "*u8", "table": "*i64", "count": "i32"}
    fixed = {"SIZE": 224, "INTERLEAVED": True, "TILE": TILE}
    signature = kinds | dict.fromkeys(fixed, "constexpr")
    compiled = triton.compile(
        ASTSource(resample_tiles, signature, fixed),
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": WARPS},
    )
    code = compiled.asm["ttgir"]
    layouts = set(re.findall(rf"tt\.load .*: tensor<{TILE}x{TILE}x!tt\.ptr<i8>, (#\w+)>", code))
    assert len(layouts) == 1
    lanes = re.search(rf"{layouts.pop()} = .*threadsPerWarp = \[(\d+), (\d+)\]", code)
    assert lanes.groups() == ("32", "1")  # x, y


@settings(max_examples=60)
@given(cases())
def test_the_cpu_form_against_pillows_arithmetic(case):
    images = [torch.from_numpy(image) for image in case.images]
    found = resample(images, windows_of(case.windows), case.size)
    assert found.shape == (len(images), case.size, case.size, 3)
    for sample, image, window in zip(found, case.images, case.windows, strict=True):
        assert difference(sample, rows_first(image, window, case.size)).max() <= 1


@settings(max_examples=60)
@given(cases())
def test_parts_make_the_samples_of_whole_images(case):
    windows = windows_of(case.windows)
    parts = parts_of(case.images, windows, case.size)
    whole = [torch.from_numpy(image) for image in case.images]
    assert torch.equal(resample(parts, windows, case.size), resample(whole, windows, case.size))
    turned = torch.arange(len(parts) - 1, -1, -1)
    again = resample(parts.select(turned), windows.select(turned.numpy()), case.size)
    assert torch.equal(again.flip(0), resample(whole, windows, case.size))


def test_what_windows_need_is_what_lies_under_their_filters():
    sides = torch.tensor([375]), torch.tensor([500])
    drawn = RandomResizedCrop(224, seed=1).windows(torch.tensor([0]), 0, *sides)
    box = [drawn.top, drawn.left, drawn.height, drawn.width]
    assert drawn.needed(224).tolist() == [[int(side) for side in box]]
    middle = RandomResizedCrop(224, training=False).windows(torch.tensor([0]), 0, *sides)
    # rows 16 to 239 of 256, columns 58 to 281 of 341, each made of 1.47 pixels
    assert middle.needed(224).tolist() == [[21, 83, 333, 333]]


def test_parts_that_do_not_cover_their_windows_are_refused():
    images, window = [picture(40, 50, 0)] * 2, Window(3, 5, 20, 30, 9, 9, 0, 0, False)
    parts = parts_of(images, windows_of([window] * 2), 9)
    for moved in ({"top": 2}, {"left": 4}, {"height": 21}, {"width": 31}):
        with pytest.raises(
            GpufeedError, match=r"window 1, which needs .* and a part of \[20, 30\] from \[3, 5\]"
        ):
            resample(parts, windows_of([window, replace(window, **moved)]), 9)


def test_ragged_batches_on_the_cpu_and_a_place_that_is_given():
    images = [torch.from_numpy(picture(*size, seed)) for seed, size in enumerate([(9, 7), (30, 41), (1, 1)])]
    windows = windows_of([Window(0, 0, *image.shape[:2], 5, 5, 0, 0, False) for image in images])
    found = resample(images, windows, 5)
    assert torch.equal(resample(Ragged.pack(images), windows, 5), found)
    whole = torch.zeros((4, 5, 5, 3), dtype=torch.uint8)
    assert resample(images, windows, 5, out=whole[1:]).data_ptr() == whole[1:].data_ptr()
    assert torch.equal(whole[1:], found)
    assert not whole[0].any()


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"top": -1}, r"window 0: .* from \[-1.0, 0.0\]"),
        ({"height": 10}, "window 0"),
        ({"width": 0}, "window 0"),
        ({"first_row": 1}, "window 0"),
        ({"columns": 3}, "window 0"),
    ],
)
def test_windows_beyond_their_images_are_refused(change, found):
    window = {"top": 0, "left": 0, "height": 9, "width": 7, "rows": 5, "columns": 5, "first_row": 0}
    windows = windows_of([Window(**{**window, **change}, first_column=0, flip=False)])
    with pytest.raises(GpufeedError, match=found):
        resample([torch.zeros((9, 7, 3), dtype=torch.uint8)], windows, 5)


@pytest.mark.parametrize(
    "images",
    [[], [torch.zeros((9, 7, 3))], [torch.zeros((3, 9, 7), dtype=torch.uint8)]],
)
def test_what_is_no_image_is_refused(images):
    windows = windows_of([Window(0, 0, 1, 1, 5, 5, 0, 0, False)])
    with pytest.raises(GpufeedError, match=r"batch|an image"):
        resample(images, windows, 5)


def test_a_place_of_another_size_is_refused():
    windows = windows_of([Window(0, 0, 1, 1, 5, 5, 0, 0, False)])
    image = torch.zeros((9, 7, 3), dtype=torch.uint8)
    whole = torch.zeros((1, 5, 6, 3), dtype=torch.uint8)
    for out in (whole[:, :4, :5], whole[:, :, :5], torch.zeros((1, 5, 5, 3))):
        with pytest.raises(GpufeedError, match="out torch"):
            resample([image], windows, 5, out=out)


def test_a_node_that_cannot_is_skipped_with_a_sentence(monkeypatch):
    require_resample(torch.device("cpu"))
    with pytest.raises(Skip, match="device is mps"):
        require_resample(torch.device("mps"))
    monkeypatch.setattr("gpufeed.native.jit_toolchain.lacking_for_gpu", lambda device: "no package triton")
    with pytest.raises(Skip, match="which has no package triton"):
        require_resample(torch.device("cuda"))

"""What only a GPU shows of `resample`: photographs' sizes, graphs, streams, devices, bounds, and its time."""

import statistics
from dataclasses import replace

import numpy as np
import pytest
import torch
from stream_fixtures import wrong_beside_a_busy_stream
from window_fixtures import difference, parts_of, picture, rows_first, windows_of

from gpufeed.augment.random_resized_crop import RandomResizedCrop, Window, Windows
from gpufeed.augment.resample import interleaved, launch, resample, source_fields, uploaded, window_fields
from gpufeed.benchmarks.kernels.kernel_clock import Clock, Yardsticks
from gpufeed.decoders.ragged import Ragged

SIZE, COUNT, SEED = 224, 256, 3
RECIPE = RandomResizedCrop(SIZE, seed=SEED)


@pytest.fixture
def device():
    pytest.importorskip("triton")
    return torch.device("cuda", torch.cuda.current_device())


@pytest.fixture(scope="module")
def photographs() -> list[torch.Tensor]:
    """Images of the sizes of photographs, smooth with some noise, on the host."""
    rng = np.random.default_rng(SEED)
    made = []
    for _ in range(COUNT):
        short = int(rng.choice([375, 333, 500, 256, 90], p=[0.6, 0.15, 0.1, 0.1, 0.05]))
        height, width = (short, int(short * rng.uniform(1, 1.6)))[:: rng.choice([1, -1])]
        coarse = torch.from_numpy(rng.uniform(0, 255, (1, 3, height // 40 + 2, width // 40 + 2)))
        smooth = torch.nn.functional.interpolate(coarse, (height, width), mode="bilinear")[0].permute(1, 2, 0)
        noise = torch.from_numpy(rng.normal(0, 12, (height, width, 3)))
        made.append((smooth + noise).clamp(0, 255).to(torch.uint8).contiguous())
    return made


def windows_for(images: list[torch.Tensor], recipe: RandomResizedCrop = RECIPE, epoch: int = 0) -> Windows:
    sides = torch.tensor([image.shape[:2] for image in images])
    return recipe.windows(torch.arange(len(images)), epoch, sides[:, 0], sides[:, 1])


def moved(windows: Windows, device: torch.device) -> Windows:
    return Windows(*(field.to(device) for field in vars(windows).values()))


def on_device(ragged: Ragged, device: torch.device) -> Ragged:
    return Ragged(*(tensor.to(device) for tensor in list(vars(ragged).values())[:4]), ragged.planar)


@pytest.mark.parametrize("recipe", [RECIPE, RECIPE.for_evaluation()], ids=["training", "evaluation"])
def test_photographs_against_pillow_in_every_form(device, photographs, recipe):
    windows = windows_for(photographs, recipe)
    there = [image.to(device) for image in photographs]
    out = resample(there, windows, SIZE)
    planes = [image.permute(2, 0, 1).contiguous().permute(1, 2, 0) for image in there]
    ragged = Ragged.pack(there)
    parts = parts_of([image.numpy() for image in photographs], windows, SIZE)
    assert torch.equal(resample(replace(parts, flat=parts.flat.to(device)), windows, SIZE), out)
    for form in (planes, planes[:1] + there[1:], ragged, on_device(ragged, device)):
        assert torch.equal(resample(form, windows, SIZE), out)
        assert torch.equal(resample(form, moved(windows, device), SIZE), out)
    shares = []
    for sample, image, window in zip(out.cpu(), photographs, windows, strict=True):
        assert difference(sample, recipe.cut(image.numpy(), window)).max() <= 1
        steps = difference(sample, rows_first(image.numpy(), window, SIZE))
        assert steps.max() <= 1
        shares.append((steps > 0).mean())
    assert np.mean(shares) < 0.001


def test_extreme_windows_and_sizes_that_are_no_whole_tiles(device):
    cases = [
        (picture(3000, 4000, 0), Window(0, 0, 3000, 4000, 97, 97, 0, 0, False)),
        (picture(1, 1, 1), Window(0, 0, 1, 1, 97, 97, 0, 0, True)),
        (picture(2000, 3, 2), Window(1, 0, 1999, 3, 97, 97, 0, 0, True)),
        (picture(5, 1700, 3), Window(2, 9, 1, 1500, 130, 301, 7, 100, False)),
        (picture(300, 200, 4), Window(3.25, 10.5, 290.1, 100.7, 97, 97, 0, 0, True)),
    ]
    images = [torch.from_numpy(image).to(device) for image, _ in cases]
    whole = torch.full((len(cases) + 2, 97, 97, 3), 7, dtype=torch.uint8, device=device)
    resample(images, windows_of([window for _, window in cases]), 97, out=whole[1:-1])
    assert (whole[0] == 7).all()
    assert (whole[-1] == 7).all()
    for sample, (image, window) in zip(whole[1:-1].cpu(), cases, strict=True):
        assert difference(sample, rows_first(image, window, 97)).max() <= 1


def test_nothing_beside_the_part_is_seen(device):
    images, windows = [], []
    for number in range(64):
        image = torch.full((80, 90, 3), 255, dtype=torch.uint8, device=device)
        top, left, height, width = number % 7, number % 11, 1 + number, 1 + number % 40
        image[top : top + height, left : left + width] = 0
        images.append(image)
        windows.append(Window(top, left, height, width, 50, 50, 0, 0, bool(number % 2)))
    assert not resample(images, windows_of(windows), 50).any()


def test_a_captured_graph_takes_other_windows(device, photographs):
    ragged = on_device(Ragged.pack(photographs), device)
    rows = torch.randperm(COUNT, device=device)[:64]
    windows = moved(windows_for([photographs[row] for row in rows.tolist()]), device)
    side = torch.cuda.Stream(device)
    with torch.cuda.stream(side):
        resample(ragged.select(rows), windows, SIZE)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        out = resample(ragged.select(rows), windows, SIZE)
    for epoch in range(3):
        rows.copy_(torch.randperm(COUNT, device=device)[:64])
        new = moved(windows_for([photographs[row] for row in rows.tolist()], epoch=epoch), device)
        for field, value in zip(vars(windows).values(), vars(new).values(), strict=True):
            field.copy_(value)
        graph.replay()
        assert torch.equal(out, resample(ragged.select(rows), new, SIZE))


def test_the_host_does_not_wait(device, photographs):
    images = [image.to(device) for image in photographs]
    windows = windows_for(photographs)
    for given in (windows, moved(windows, device)):
        resample(images, given, SIZE)
        torch.cuda.set_sync_debug_mode("error")
        try:
            resample(images, given, SIZE)
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_a_busy_side_stream_has_no_wrong_pixel(device, photographs):
    images, windows = [image.to(device) for image in photographs[:16]], windows_for(photographs[:16])
    want = resample(images, windows, SIZE)
    # other windows each time in between, so that tables are made again while kernels are queued
    other = windows_for(photographs[:16], epoch=1)

    def make() -> torch.Tensor:
        resample(images, other, SIZE)
        return resample(images, windows, SIZE)

    assert wrong_beside_a_busy_stream(make, want, calls=200) == 0


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_device_that_is_not_current(device, photographs):
    images, windows = photographs[:16], windows_for(photographs[:16])
    other = torch.device("cuda", 1 - device.index)
    found = resample([image.to(other) for image in images], windows, SIZE)
    assert found.device == other
    assert torch.cuda.current_device() == device.index
    assert torch.equal(found.cpu(), resample([image.to(device) for image in images], windows, SIZE).cpu())


@pytest.mark.alone
@pytest.mark.parametrize("planes", [False, True], ids=["pixels", "planes"])
def test_time_against_the_bytes_that_must_move(device, photographs, planes, capsys):
    """Predictions: docs/lab/pixels.md. The limit is a twentieth of what decoding takes."""
    images = [image.to(device) for image in photographs]
    if planes:
        images = [image.permute(2, 0, 1).contiguous().permute(1, 2, 0) for image in images]
    windows = windows_for(photographs)
    table = uploaded(np.concatenate([source_fields(images), window_fields(windows)]), device)
    out = torch.empty((COUNT, SIZE, SIZE, 3), dtype=torch.uint8, device=device)
    moved_bytes = int((windows.height * windows.width).sum()) * 3 + out.numel()
    clock = Clock(device, launches=50)
    ms = statistics.median(clock.device_ms(lambda: launch(out, table, interleaved(images))))
    call_ms = clock.call_ms(lambda: resample(images, windows, SIZE, out=out))
    floor = Yardsticks(device, clock).ms("copy", moved_bytes)
    form, card, mb = "planes" if planes else "pixels", torch.cuda.get_device_name(device), moved_bytes / 1e6
    with capsys.disabled():
        print(f"\nresample of {COUNT} images as {form} on {card}: {ms:.3f} ms, a call {call_ms:.3f} ms;")
        print(f"a copy of its {mb:.0f} MB {floor:.3f} ms")
    assert torch.equal(out, resample(images, windows, SIZE))
    assert ms < 1

"""What only a GPU shows of `torch`, `chain` and `fused`: pixels, addresses, streams, and no waiting."""

from contextlib import contextmanager

import numpy as np
import pytest
import torch
from augment_fixtures import EVERYTHING, ONE_PASS, expected
from image_fixtures import MEAN, STD
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

from gpufeed.augment.reference import TorchAugment
from gpufeed.core.errors import GpufeedError
from gpufeed.core.registry import AUGMENTS, load

BUSY_CYCLES = 20_000_000  # about 10 ms at 2 GHz
SEED, EPOCH = 2**40 + 2**31 + 3, 4
OPTIONS = {"torch": EVERYTHING, "chain": EVERYTHING, "fused": ONE_PASS}
# float32: values to 255e-6 / std, coordinates of 64 pixels to 1e-5 of one; halves: their last place at 3
TOLERANCE = {"float32": 1e-4, "float16": 2e-3, "bfloat16": 1.6e-2}


def allowance(side: int) -> float:
    """How far two float32 results may be apart: both round, coordinates in proportion to the side."""
    return 2 * TOLERANCE["float32"] * max(1, side / 64)


def made(name: str, **options):
    pytest.importorskip({"torch": "torch", "chain": "cupy", "fused": "triton"}[name])
    return load("augment", name)(MEAN, STD, SEED, {**OPTIONS[name], **options})


def batch_of(n: int, size: tuple[int, int], device) -> tuple[torch.Tensor, torch.Tensor]:
    """uint8 images and ids, made on the device: another draw for each n and size."""
    generator = torch.Generator(device).manual_seed(n * 1000 + size[0])
    images = torch.randint(0, 256, (n, *size, 3), dtype=torch.uint8, device=device, generator=generator)
    return images, torch.randperm(10 * n, device=device, generator=generator)[:n]


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("size", [(8, 8), (9, 7), (32, 32), (28, 28), (33, 64), (64, 64)])
def test_pixels_against_float64(device, name, dtype, size):
    images, ids = batch_of(3, size, device)
    out = made(name, dtype=dtype)(images, ids, EPOCH)
    assert out.dtype == getattr(torch, dtype)
    assert out.is_contiguous(memory_format=torch.channels_last)
    for n in range(3):
        want = expected(images[n].cpu().numpy(), ids[n].item(), EPOCH, MEAN, STD, SEED, OPTIONS[name])
        np.testing.assert_allclose(out[n].double().cpu().numpy(), want, atol=TOLERANCE[dtype], rtol=0)


@pytest.mark.parametrize("name", ["chain", "fused"])
@pytest.mark.parametrize("size", [(32, 32), (64, 64), (224, 224), (9, 7)])
@pytest.mark.parametrize("n", [1, 65, 512])
def test_large_batches_against_the_reference(device, name, size, n):
    images, ids = batch_of(n, size, device)
    want = TorchAugment(MEAN, STD, SEED, OPTIONS[name])(images, ids, EPOCH)
    torch.testing.assert_close(made(name)(images, ids, EPOCH), want, atol=allowance(max(size)), rtol=0)


@pytest.mark.parametrize("name", ["chain", "fused"])
@pytest.mark.parametrize(
    "options",
    [
        {"salt_pepper": 0.0},
        {"brightness": 0.0},
        {"contrast": 0.0},
        {"brightness": 1.0, "contrast": 1.0, "salt_pepper": 1.0},
        {"crop_padding": 0},
        {"flip_probability": 1.0},
        {"crop_padding": 0, "flip_probability": 0.0, "brightness": 0.0, "contrast": 0.0, "salt_pepper": 0.0},
        {"crop_padding": 40},
    ],
)
def test_each_step_may_be_off_or_at_its_bound(device, name, options):
    images, ids = batch_of(40, (32, 32), device)
    want = TorchAugment(MEAN, STD, SEED, {**OPTIONS[name], **options})(images, ids, EPOCH)
    torch.testing.assert_close(made(name, **options)(images, ids, EPOCH), want, atol=allowance(32), rtol=0)


def test_fused_gathers_by_row_and_takes_batches_from_any_address(device):
    fused = made("fused")
    store, _ = batch_of(100, (9, 7), device)
    rows = torch.randint(0, 100, (64,), device=device)
    ids = torch.arange(64, device=device)
    assert torch.equal(fused.gather(store, rows, ids, EPOCH), fused(store[rows], ids, EPOCH))
    assert store[1:].data_ptr() % 4  # 189 bytes on
    assert torch.equal(fused(store[1:65], ids, EPOCH), fused(store[1:65].clone(), ids, EPOCH))
    whole = torch.randint(0, 256, (64 * 3072 + 1,), dtype=torch.uint8, device=device)
    odd = whole[1:].view(64, 32, 32, 3)  # at an address that is no whole word, read byte by byte
    assert torch.equal(fused(odd, ids, EPOCH), fused(odd.clone(), ids, EPOCH))


@pytest.mark.parametrize("options", [{}, dict.fromkeys(EVERYTHING, 0)])
def test_chain_takes_batches_from_any_address(device, options):
    chain = made("chain", **options)
    store, _ = batch_of(10, (9, 7), device)
    ids = torch.arange(9, device=device)
    assert torch.equal(chain(store[1:], ids, EPOCH), chain(store[1:].clone(), ids, EPOCH))


@pytest.mark.parametrize("name", OPTIONS)
def test_neither_batch_size_nor_order_matters(device, name):
    augment = made(name)
    images, ids = batch_of(512, (32, 32), device)
    whole = augment(images, ids, EPOCH)
    parts = [augment(images[at : at + 64], ids[at : at + 64], EPOCH) for at in range(0, 512, 64)]
    assert torch.equal(torch.cat(parts), whole)
    order = torch.randperm(512, device=device)
    assert torch.equal(augment(images[order], ids[order], EPOCH), whole[order])
    when = torch.tensor(EPOCH, device=device)
    assert torch.equal(augment(images, ids, when), whole)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("name", OPTIONS)
def test_two_gpus_give_the_pixels_of_one(device, name):
    augment = made(name)
    images, ids = batch_of(512, (32, 32), device)
    whole = augment(images, ids, EPOCH)
    other = torch.device("cuda", 1 - device.index)
    with torch.cuda.device(other):
        half = augment(images[256:].to(other), ids[256:].to(other), EPOCH)
    assert half.device == other
    assert torch.equal(half.to(device), whole[256:])
    assert torch.equal(augment(images[:256], ids[:256], EPOCH), whole[:256])  # and back again


@pytest.mark.parametrize("name", ["chain", "fused"])
def test_noise_is_as_frequent_as_asked_for(device, name):
    off = {"brightness": 0.0, "contrast": 0.0, "salt_pepper": 0.1, "crop_padding": 0, "flip_probability": 0.0}
    augment = load("augment", name)((0, 0, 0), (1, 1, 1), SEED, off)
    images = torch.full((1000, 64, 64, 3), 100, dtype=torch.uint8, device=device)
    out = augment(images, torch.arange(1000, device=device), 1)
    assert (out == out[:, :1]).all()  # whole pixels
    total, probability = 1000 * 64 * 64, 0.05
    spread = (total * probability * (1 - probability)) ** 0.5
    for value in (0.0, 1.0):
        kind = (out[:, 0] - value).abs() < 1e-6  # (N, H, W)
        assert abs(kind.sum().item() - total * probability) < 5 * spread
        a_place = kind.sum(dim=0)  # 50 of 1000 expected; standard deviation 6.9
        assert a_place.max() < 50 + 6 * 6.9
        assert a_place.min() > 50 - 6 * 6.9


# Zero copies


def test_both_sides_of_dlpack_have_one_address(device):
    pytest.importorskip("cupy")
    from gpufeed.augment.chain import cupy_to_torch, torch_to_cupy

    tensor = torch.arange(12, dtype=torch.float32, device=device).view(3, 4)
    array = torch_to_cupy(tensor)
    back = cupy_to_torch(array)
    assert array.data.ptr == tensor.data_ptr() == back.data_ptr()
    back[0, 0] = 77
    torch.cuda.synchronize()
    assert array[0, 0].item() == 77
    copied = torch_to_cupy(tensor.clone())  # the planted copy
    assert copied.data.ptr != tensor.data_ptr()
    assert cupy_to_torch(array.copy()).data_ptr() != tensor.data_ptr()


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("options", [{}, dict.fromkeys(EVERYTHING, 0)])
def test_through_the_host_gives_the_pixels_of_dlpack(device, dtype, options):
    images, ids = batch_of(65, (9, 7), device)
    side = torch.cuda.Stream(device)
    want = made("chain", dtype=dtype, **options)(images, ids, EPOCH)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(BUSY_CYCLES)
        given = images + 0  # made behind the delay: a copy that did not wait for it would read other bytes
        out = made("chain", dtype=dtype, exchange="host", **options)(given, ids, EPOCH)
        side.synchronize()
    assert out.dtype == want.dtype
    assert out.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(out, want)


def test_through_the_host_waits_and_dlpack_does_not(device):
    images, ids = batch_of(64, (32, 32), device)
    for exchange, waits in (("host", True), ("dlpack", False)):
        augment = made("chain", exchange=exchange)
        assert bool(waits_of(lambda augment=augment: augment(images, ids, EPOCH))) is waits


@pytest.mark.alone
def test_nothing_but_torch_allocates_after_warm_up(device):
    cupy = pytest.importorskip("cupy")
    chain = made("chain")
    images, ids = batch_of(64, (32, 32), device)
    for _ in range(3):
        chain(images, ids, EPOCH)
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["num_device_alloc"], cupy.get_default_memory_pool().total_bytes()
    free = torch.cuda.mem_get_info()[0]
    for _ in range(50):
        chain(images, ids, EPOCH)
    torch.cuda.synchronize()
    after = torch.cuda.memory_stats()["num_device_alloc"], cupy.get_default_memory_pool().total_bytes()
    assert after == before
    assert torch.cuda.mem_get_info()[0] == free


# No wait for the device

WAITS = ("Synchronize", "cuMemcpyDtoH", "cuMemcpyHtoD", "cudaMalloc", "cuMemAlloc", "cudaFree", "cuMemFree")


def waits_of(step) -> list[str]:
    """Names of the runtime's and driver's calls in a step that wait for the device, allocate or free."""
    step()
    torch.cuda.synchronize()
    # where it stops, the profiler waits for the device itself: only calls within the step's mark count
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        with record_function("the step"):
            step()
        torch.cuda._sleep(1000)
    events = profiled.events()
    mark = [event for event in events if event.name == "the step" and event.device_type == DeviceType.CPU]
    own = mark[0].time_range
    return [
        event.name
        for event in events
        if event.name.startswith("cu")
        and any(wait in event.name for wait in WAITS)
        and own.start <= event.time_range.start <= own.end
    ]


@contextmanager
def waiting_forbidden():
    """Within it, a call of torch that waits for the device raises."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", OPTIONS)
def test_no_call_of_a_step_waits_for_the_device(device, name):
    augment = made(name)
    images, ids = batch_of(64, (32, 32), device)
    for epoch in (torch.tensor(EPOCH, device=device), EPOCH):
        assert waits_of(lambda epoch=epoch: augment(images, ids, epoch)) == []
        with waiting_forbidden():
            augment(images, ids, epoch)


def test_a_planted_wait_is_seen(device):
    augment = made("torch")
    images, ids = batch_of(64, (32, 32), device)
    assert waits_of(lambda: augment(images, ids, EPOCH).cpu())
    with waiting_forbidden(), pytest.raises(RuntimeError, match="synchroniz"):
        augment(images, ids, EPOCH).cpu()


@pytest.mark.alone
@pytest.mark.parametrize("name", ["chain", "fused"])
def test_the_host_is_ahead_of_a_busy_device(device, name):
    augment = made(name)
    images, ids = batch_of(64, (32, 32), device)
    augment(images, ids, EPOCH)
    torch.cuda.synchronize()
    busy = torch.cuda.Event()
    torch.cuda._sleep(20 * BUSY_CYCLES)
    busy.record()
    augment(images, ids, EPOCH)
    assert not busy.query()  # the step was queued while the device was still busy with what came before


# Streams


def wrong_of_a_thousand(augment, device, launch_on=None) -> int:
    """Values that differ from the default stream's result in 1000 steps on a busy side stream.

    The batch is made on the side stream behind a delay of half a millisecond, more than the host needs for
    a launch, so that a kernel on another stream reads what stood there before. launch_on: the stream on
    which the augment is made to run, by mistake.
    """
    images, ids = batch_of(16, (32, 32), device)
    want = augment(images, ids, EPOCH)
    side = torch.cuda.Stream(device)
    wrong = torch.zeros((), dtype=torch.int64, device=device)
    given = torch.zeros_like(images)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        for _ in range(1000):
            given.fill_(9)
            torch.cuda._sleep(1_000_000)
            given.copy_(images)
            if launch_on is None:
                out = augment(given, ids, EPOCH)
            else:
                with torch.cuda.stream(launch_on):
                    out = augment(given, ids, EPOCH)
            wrong += (out != want).sum()
        side.synchronize()
    torch.cuda.synchronize()
    return wrong.item()


@pytest.mark.parametrize("name", ["chain", "fused"])
def test_a_thousand_steps_on_a_side_stream_have_no_wrong_pixel(device, name):
    assert wrong_of_a_thousand(made(name), device) == 0


@pytest.mark.parametrize("name", ["chain", "fused"])
def test_a_planted_launch_on_the_default_stream_is_seen(device, name):
    assert wrong_of_a_thousand(made(name), device, launch_on=torch.cuda.default_stream(device)) > 0


@pytest.mark.parametrize("name", OPTIONS)
def test_a_captured_graph_draws_anew_in_each_epoch(device, name):
    augment = made(name)
    images, ids = batch_of(64, (32, 32), device)
    epoch = torch.zeros((), dtype=torch.int64, device=device)
    side = torch.cuda.Stream(device)
    with torch.cuda.stream(side):
        for _ in range(2):
            augment(images, ids, epoch)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        out = augment(images, ids, epoch)
    for number in (0, 3, 5):
        epoch.fill_(number)
        graph.replay()
        assert torch.equal(out, augment(images, ids, number))


# Errors


@pytest.mark.parametrize("name", ["chain", "fused"])
def test_bad_batches_are_told(device, name):
    augment = made(name)
    images, ids = batch_of(4, (8, 8), device)
    for bad, found in (
        ((images.float(), ids), "images of torch.float32"),
        ((images[:0], ids[:0]), "empty batch"),
        ((images.transpose(1, 2), ids), "strides"),
        ((images.cpu(), ids.cpu()), "a tensor on cpu"),
        ((images.cpu(), ids), "one device"),
        ((images, ids[:2]), "sample ids"),
        ((images, ids.int()), "sample ids"),
    ):
        with pytest.raises(GpufeedError, match=found):
            augment(*bad, EPOCH)


def test_bad_input_of_the_public_parts_of_the_chain_is_told(device):
    pytest.importorskip("cupy")
    from gpufeed.augment.chain import gpu_normalize_images, torch_to_cupy

    images, _ = batch_of(4, (8, 8), device)
    for bad, found in (
        (images.int(), "images of torch.int32"),
        (images.transpose(1, 2), "strides"),
        (images.cpu(), "a tensor on cpu"),
        (images[:0], "shape"),
        (images[..., :2], "shape"),
    ):
        with pytest.raises(GpufeedError, match=found):
            gpu_normalize_images(bad, MEAN, STD)
    with pytest.raises(GpufeedError, match="dtype"):
        gpu_normalize_images(images, MEAN, STD, torch.float64)
    with pytest.raises(GpufeedError, match="cpu"):
        torch_to_cupy(torch.zeros(3))


@pytest.mark.parametrize("given", [torch.uint8, torch.float32])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("size", [(5, 7), (64, 64)])
def test_normalisation_alone(device, given, dtype, size):
    pytest.importorskip("cupy")
    from gpufeed.augment.chain import gpu_normalize_images

    images = batch_of(33, size, device)[0].to(given)
    want = (images.double() / 255 - torch.tensor(MEAN, device=device)) / torch.tensor(STD, device=device)
    out = gpu_normalize_images(images, MEAN, STD, getattr(torch, dtype))
    torch.testing.assert_close(out.double(), want.permute(0, 3, 1, 2), atol=TOLERANCE[dtype], rtol=0)


def test_registered_device_augments_are_all_tested():
    assert {name for name, entry in AUGMENTS.items() if entry.device == "cuda"} <= set(OPTIONS)

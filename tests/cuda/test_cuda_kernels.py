"""The kernel benchmark on a GPU: the same pixels by all, times that are of the device, bytes that fit."""

import pytest
import torch

from gpufeed import native
from gpufeed.benchmarks.kernels import activation_work, kernel_benchmark
from gpufeed.benchmarks.kernels.activation_work import ACTIVATION_IMPLEMENTATIONS, Case
from gpufeed.benchmarks.kernels.augment_work import MAKERS, Batch
from gpufeed.benchmarks.kernels.kernel_clock import Clock, NotDone, Yardsticks, copy_of, triad_of
from gpufeed.core import record
from gpufeed.core.errors import Skip
from gpufeed.core.plan_kernels import ACTIVATION_WORKS, STEPS, WORKS

OURS = ("fused", "chain", "torch", "torchvision")


@pytest.mark.parametrize("size", [32, 30])
@pytest.mark.parametrize("work", WORKS)
def test_chain_and_fused_do_the_work_of_the_reference(device, work, size):
    pytest.importorskip("cupy")
    batch = Batch(33, size, torch.float32, device)
    want = MAKERS["torch"](work, batch)()
    by = ["chain"] if work in STEPS else ["chain", "fused"]
    for name in by:
        out = MAKERS[name](work, batch)().view_as(want) if work in STEPS else MAKERS[name](work, batch)()
        # values of steps reach to 255, and a rotated pixel's place is exact to 1e-5
        torch.testing.assert_close(out, want, atol=5e-2 if work == "rotation" else 1e-3, rtol=0)


def test_dali_works_on_our_stream(device):
    """It waits for what was queued before it, and what is queued behind it waits for DALI."""
    pytest.importorskip("nvidia.dali")
    batch = Batch(33, 32, torch.float32, device)
    want, images = MAKERS["torch"]("normalise", batch)(), batch.images.clone()
    run = MAKERS["dali"]("normalise", batch)
    for _ in range(5):
        batch.images.zero_()
        torch.cuda._sleep(2_000_000)  # 1 ms at 2 GHz
        batch.images.copy_(images)
        (out,) = run()
        found = torch.from_dlpack(out.as_tensor()).clone()  # (N, H, W, 3)
        torch.testing.assert_close(found.permute(0, 3, 1, 2), want, atol=1e-3, rtol=0)


def test_dali_crops_and_flips(device):
    pytest.importorskip("nvidia.dali")
    batch = Batch(64, 32, torch.float16, device)
    run = MAKERS["dali"]("crop_flip", batch)
    first, second = (torch.from_dlpack(run()[0].as_tensor()).clone() for _ in range(2))
    assert first.shape == (64, 32, 32, 3)
    assert first.dtype == torch.float16
    assert not torch.equal(first, second)  # another draw


@pytest.mark.alone
def test_the_clock_times_the_device_and_not_the_host(device):
    clock = Clock(device, 7)
    times = clock.device_ms(lambda: torch.cuda._sleep(2_000_000))  # 1 ms at 2 GHz
    assert len(times) == 7
    assert all(0.5 < time < 4 for time in times)
    assert min(clock.device_ms(lambda: None)) < 0.1
    assert clock.call_ms(lambda: torch.cuda._sleep(2_000_000)) > 0.5


@pytest.mark.alone
def test_what_takes_the_host_long_to_queue_is_timed_without_the_host(device):
    x = torch.zeros(16, device=device)

    def many():
        for _ in range(800):  # about 4 ms to queue, 1.5 ms to do
            x.add_(1)

    clock = Clock(device, 7)
    assert max(clock.device_ms(many)) < 0.8 * clock.call_ms(many)


@pytest.mark.alone
def test_a_copy_of_twice_the_bytes_takes_twice_as_long(device):
    clock = Clock(device, 20)
    one, two = (sorted(clock.device_ms(copy_of(size, device)))[10] for size in (2**30, 2**31))
    assert 1.8 < two / one < 2.2


@pytest.mark.alone
def test_a_small_benchmark_is_whole(device, tmp_path):
    pytest.importorskip("cupy")
    settings = {"family": "augment", "batch_size": [16, 64], "size": [32], "launches": 5, "dtype": "float16"}
    found = kernel_benchmark.measure_kernels("e", settings, "here")
    record.KERNELS.write(found, tmp_path / "e.json")
    assert found["status"] == "done"
    for row in found["rows"]:
        if row["implementation"] in OURS:
            assert row["status"] == "done", row["sentence"]
            assert row["ms_q1"] <= row["ms_median"] <= row["ms_q3"]
            assert 0 < row["share_of_copy"] < 2
        assert row["status"] != "failed", row["sentence"]
    assert {row["work"] for row in found["rows"] if row["implementation"] == "chain"} == set(WORKS)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("name", ACTIVATION_IMPLEMENTATIONS)
@pytest.mark.parametrize(
    ("work", "form"), [(work, form) for work, forms in ACTIVATION_WORKS.items() for form in forms]
)
def test_everybody_does_the_work_of_the_activation(device, work, form, name, dtype):
    """Setting a work up holds its result against float64; rows beyond one chunk, and not whole ones."""
    try:
        run = activation_work.make(Case(4096 + 37, 96, dtype, device), work, form, name)
    except NotDone:
        pytest.skip("no such row")
    except Skip as lacking:
        pytest.skip(str(lacking))
    first, second = run(), run()
    for one, other in zip(first, second, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.alone
def test_a_triad_moves_as_many_bytes_as_a_copy_in_about_the_time(device):
    clock = Clock(device, 20)
    copy, triad = (sorted(clock.device_ms(make(2**30, device)))[10] for make in (copy_of, triad_of))
    assert 0.7 < copy / triad < 1.4
    yardsticks = Yardsticks(device, clock)
    assert yardsticks.ms("triad", 2**30) == pytest.approx(triad, rel=0.3)
    assert set(yardsticks.known) == {("triad", 2**30)}


@pytest.mark.alone
def test_the_backward_pass_is_timed_without_the_host(device):
    """Autograd takes the host longer to call than this small work takes the device."""
    clock = Clock(device, 20)
    run = activation_work.make(Case(512, 768, torch.bfloat16, device), "bias_gelu_backward", "tanh", "eager")
    times = sorted(clock.device_ms(run))
    assert times[10] < clock.call_ms(run)


@pytest.mark.alone
def test_a_small_benchmark_of_the_activation_is_whole(device, tmp_path):
    settings = {"family": "activation", "rows": 4096, "columns": [256], "launches": 5, "dtype": "bfloat16"}
    found = kernel_benchmark.measure_kernels("e", settings, "here")
    record.KERNELS.write(found, tmp_path / "e.json")
    assert found["status"] == "done"
    assert {(row["work"], row["form"]) for row in found["rows"]} == {
        (work, form) for work, forms in ACTIVATION_WORKS.items() for form in forms
    }
    lacking = native.status("cuda").sentence
    for row in found["rows"]:
        said = (row["work"], row["implementation"], row["sentence"])
        if lacking and row["implementation"] in ("extension", "epilogue"):
            assert (row["status"], row["sentence"]) == ("skipped", lacking), said
            continue
        assert row["status"] == "done", said
        assert (row["share_of_copy"] is None) == (row["tflop_per_s"] is not None)

import pytest
import torch

from gpufeed.core.errors import GpufeedError, Skip
from gpufeed.system import devices

CPU, CUDA, MPS = torch.device("cpu"), torch.device("cuda", 0), torch.device("mps")


def node_with(monkeypatch, cuda=False, mps=False, capability=(9, 0)):
    """What torch would say on a node with such devices."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.mps, "is_available", lambda: mps)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Some GPU")


@pytest.mark.parametrize(
    ("cuda", "mps", "expected"),
    [(True, True, CUDA), (True, False, CUDA), (False, True, MPS), (False, False, CPU)],
)
def test_auto_takes_cuda_then_mps_then_cpu(monkeypatch, cuda, mps, expected):
    node_with(monkeypatch, cuda, mps)
    assert devices.resolve_device("auto") == expected


@pytest.mark.parametrize("name", ["cuda", "mps"])
def test_a_missing_device_is_a_skip_with_a_sentence(monkeypatch, name):
    node_with(monkeypatch)
    with pytest.raises(Skip, match=rf"^Device {name} is asked for, and torch .* on this node.*\.$"):
        devices.resolve_device(name)


@pytest.mark.parametrize(
    ("built", "told"),
    [
        ("12.8", "without --nv, or the driver is too old for CUDA 12.8, which"),
        (None, "built without CUDA"),
    ],
)
def test_a_missing_gpu_is_told_with_its_causes(monkeypatch, built, told):
    node_with(monkeypatch)
    monkeypatch.setattr(torch.version, "cuda", built)
    with pytest.raises(Skip, match=told):
        devices.resolve_device("cuda")


def test_unknown_names_are_told_with_the_choices():
    with pytest.raises(GpufeedError, match="auto, cpu, cuda, mps"):
        devices.resolve_device("gpu")
    with pytest.raises(GpufeedError, match="write 'bf16' instead"):
        devices.resolve_precision("bf61", CPU)


@pytest.mark.parametrize(
    ("capability", "expected"), [((7, 5), "fp16"), ((8, 0), "bf16"), ((9, 0), "bf16"), ((10, 0), "bf16")]
)
def test_auto_precision_on_cuda(monkeypatch, capability, expected):
    node_with(monkeypatch, cuda=True, capability=capability)
    assert devices.resolve_precision("auto", CUDA) == expected


@pytest.mark.parametrize("precision", ["bf16", "tf32"])
def test_older_gpus_skip_what_they_cannot_do(monkeypatch, precision):
    node_with(monkeypatch, cuda=True, capability=(7, 5))
    with pytest.raises(Skip, match=r"Some GPU has 7\.5"):
        devices.resolve_precision(precision, CUDA)
    assert devices.resolve_precision("fp16", CUDA) == "fp16"


@pytest.mark.parametrize("device", [CPU, MPS])
def test_auto_precision_elsewhere_is_fp32(device):
    assert devices.resolve_precision("auto", device) == "fp32"
    assert devices.resolve_precision("bf16", device) == "bf16"
    with pytest.raises(Skip, match="CUDA GPUs only"):
        devices.resolve_precision("fp16", device)


def test_tf32_is_on_for_tf32_alone():
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    try:
        for precision in ("tf32", "fp32", "tf32", "bf16"):
            devices.apply_precision(precision)
            on = precision == "tf32"
            assert torch.backends.cuda.matmul.allow_tf32 is on
            assert torch.backends.cudnn.allow_tf32 is on
            assert (torch.backends.cuda.matmul.fp32_precision == "tf32") is on
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), ("fp32", torch.float32)])
def test_autocast_sets_the_dtype_of_products(precision, dtype):
    with devices.autocast(CPU, precision):
        assert (torch.rand(2, 2) @ torch.rand(2, 2)).dtype == dtype

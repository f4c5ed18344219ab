"""Which device and which precision a cell runs with, decided on the node that runs it."""

from contextlib import AbstractContextManager, nullcontext

import torch

from gpufeed.core.cells import DEVICES, PRECISIONS
from gpufeed.core.errors import Skip, unknown
from gpufeed.system import gpu_locks

AMPERE = (8, 0)  # first compute capability with bf16 and TF32 units (CUDA C++ Programming Guide)
AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def resolve_device(name: str) -> torch.device:
    """The device behind `auto` (cuda, then mps, then cpu), or the one asked for.

    Raises Skip if this node lacks it, or has fewer than the job wants for itself, and for `auto` where the
    job has a GPU that torch, built with CUDA, cannot use; GpufeedError for a name that is no device.
    """
    if name not in DEVICES:
        raise unknown("device", name, DEVICES)
    if name in ("auto", "cuda"):
        gpu_locks.refuse()
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.mps.is_available() else "cpu"
        if (
            name == "cpu" and gpu_locks.taken() and torch.version.cuda
        ):  # else a GPU's record would be the CPU's
            raise Skip(
                f"This job has {', '.join(gpu_locks.taken())}, and {no_gpu()} For numbers of the CPU write "
                "`device: cpu` into the config."
            )
    if name == "cuda" and not torch.cuda.is_available():
        raise Skip(f"Device cuda is asked for, and {no_gpu()}")
    if name == "mps" and not torch.mps.is_available():
        raise Skip(f"Device mps is asked for, and torch {torch.__version__} finds none on this node.")
    if name != "cuda":
        return torch.device(name)
    gpu_locks.check(uuids_seen)
    return torch.device("cuda", torch.cuda.current_device())


def no_gpu() -> str:
    """Where torch finds no CUDA GPU: the end of a sentence on that and on what it may come from."""
    built = torch.version.cuda
    why = (
        "the job has no GPU, its container was started without --nv, or the driver is older than CUDA "
        f"{built} needs, with which this torch is built"
        if built
        else "this torch is built without CUDA"
    )
    return f"torch {torch.__version__} finds no CUDA GPU on this node: {why}."


def uuids_seen() -> list[str]:
    """UUIDs, without their prefix, of the GPUs that torch sees."""
    return [str(torch.cuda.get_device_properties(index).uuid) for index in range(torch.cuda.device_count())]


def require_devices(count: int, device: torch.device, asked: str) -> None:
    """Raises Skip unless this node has so many devices of that kind. asked: what `device` was found for.

    On the CPU each is a process; `auto` does not mean that where there is no GPU.
    """
    if count == 1 or device.type == asked == "cpu":
        return
    seen = torch.cuda.device_count() if device.type == "cuda" else 0
    if seen < count:
        raise Skip(f"The cell trains on {count} GPUs, and this node shows {seen} of them to this process.")


def resolve_precision(name: str, device: torch.device) -> str:
    """The precision behind `auto`, or the one asked for: fp32, tf32, fp16 or bf16.

    `auto` is bf16 on CUDA from compute capability 8.0 on, fp16 on older GPUs, fp32 elsewhere. Raises
    Skip where the device cannot do it, GpufeedError for a name that is no precision.
    """
    if name not in PRECISIONS:
        raise unknown("precision", name, PRECISIONS)
    if device.type != "cuda":
        if name in ("tf32", "fp16"):
            raise Skip(f"Precision {name} is run on CUDA GPUs only, and this cell's device is {device.type}.")
        return "fp32" if name == "auto" else name
    capability = torch.cuda.get_device_capability(device)
    if name == "auto":
        return "bf16" if capability >= AMPERE else "fp16"
    if name in ("bf16", "tf32") and capability < AMPERE:
        found = f"{torch.cuda.get_device_name(device)} has {capability[0]}.{capability[1]}"
        raise Skip(f"Precision {name} needs compute capability 8.0 or higher, and {found}.")
    return name


def apply_precision(precision: str) -> None:
    """Lets float32 matrix products and convolutions round to TF32 if `precision` is tf32, else forbids it.

    Set through the calls that torch's older and newer switches both follow: setting only the newer
    ones makes torch 2.10 raise in code that reads the older ones.
    """
    tf32 = precision == "tf32"
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32


def autocast(device: torch.device, precision: str) -> AbstractContextManager:
    """The context for a forward pass: autocast for bf16 and fp16, nothing for fp32 and tf32."""
    if precision not in AUTOCAST:
        return nullcontext()
    return torch.autocast(device.type, dtype=AUTOCAST[precision])

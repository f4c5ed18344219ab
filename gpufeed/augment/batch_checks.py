"""What a batch must be before a kernel reads it by its address."""

import torch

from gpufeed.core.errors import GpufeedError, Skip


def check_batch(images: torch.Tensor, ids: torch.Tensor) -> None:
    """Raises GpufeedError unless images is uint8 (N, H, W, 3) and ids int64 (N,) beside it, with N > 0."""
    if images.dtype != torch.uint8:
        raise GpufeedError(
            f"images of {images.dtype}", "torch.uint8", "give the decoded pixels, before they are normalised"
        )
    if images.ndim != 4 or images.shape[3] != 3:
        raise GpufeedError(
            f"images of shape {tuple(images.shape)}",
            "(N, H, W, 3)",
            "convert to RGB and permute channels to the end",
        )
    if 0 in images.shape:
        raise GpufeedError(
            f"an empty batch, shape {tuple(images.shape)}", "at least one image", "leave empty batches out"
        )
    if ids.dtype != torch.int64 or ids.shape != images.shape[:1]:
        raise GpufeedError(
            f"sample ids {ids.dtype} {tuple(ids.shape)} for {len(images)} images",
            f"torch.int64 ({len(images)},)",
            "give one id an image",
        )
    if ids.device != images.device:
        raise GpufeedError(
            f"sample ids on {ids.device}, images on {images.device}", "one device", "move the ids"
        )


def check_addresses(*tensors: torch.Tensor) -> None:
    """Raises GpufeedError unless each tensor lies on the current CUDA device, without gaps, row by row."""
    for tensor in tensors:
        if tensor.device.type != "cuda":
            raise GpufeedError(
                f"a tensor on {tensor.device}", "a tensor on a CUDA GPU", "move it, or use augment torch"
            )
        if tensor.device.index != torch.cuda.current_device():
            raise GpufeedError(
                f"a tensor on {tensor.device}, while cuda:{torch.cuda.current_device()} is current",
                "a tensor on the current device",
                "work inside `with torch.cuda.device(...)`",
            )
        if not tensor.is_contiguous():
            raise GpufeedError(
                f"a tensor of shape {tuple(tensor.shape)} with strides {tensor.stride()}",
                "contiguous memory",
                "call .contiguous()",
            )


def require_cuda(name: str) -> None:
    """Raises Skip on a node without a CUDA GPU."""
    if not torch.cuda.is_available():
        raise Skip(
            f"Augment {name} runs kernels of its own on a CUDA GPU, and torch {torch.__version__} finds none "
            "on this node."
        )

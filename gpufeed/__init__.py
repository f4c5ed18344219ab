"""The public API: a dozen names, described with examples in docs/reference/api.md."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpufeed.augment.fastai_transform import GPUPipelineTransform as GPUPipelineTransform
    from gpufeed.augment.on_batches import batch_augment as batch_augment
    from gpufeed.core.errors import GpufeedError as GpufeedError
    from gpufeed.core.errors import Skip as Skip
    from gpufeed.decoders.by_kernels import decode_jpegs as decode_jpegs
    from gpufeed.loaders.gpu_only_dataset import GPUOnlyDataset as GPUOnlyDataset
    from gpufeed.native.functions import bias_gelu as bias_gelu
    from gpufeed.training.lightning_data import CIFAR10DataModule as CIFAR10DataModule
    from gpufeed.training.lightning_data import FashionMNISTDataModule as FashionMNISTDataModule
    from gpufeed.training.lightning_data import TinyImageNetDataModule as TinyImageNetDataModule
    from gpufeed.training.own_loop import loader as loader
    from gpufeed.training.own_loop import prepare as prepare
    from gpufeed.watch import watch as watch

__version__ = "0.1.0"

# imported on first access: they import torch, which planning does not need
PUBLIC = {
    "watch": "gpufeed.watch",
    "loader": "gpufeed.training.own_loop",
    "prepare": "gpufeed.training.own_loop",
    "batch_augment": "gpufeed.augment.on_batches",
    "decode_jpegs": "gpufeed.decoders.by_kernels",
    "bias_gelu": "gpufeed.native.functions",
    "GPUOnlyDataset": "gpufeed.loaders.gpu_only_dataset",
    "GPUPipelineTransform": "gpufeed.augment.fastai_transform",
    "TinyImageNetDataModule": "gpufeed.training.lightning_data",
    "CIFAR10DataModule": "gpufeed.training.lightning_data",
    "FashionMNISTDataModule": "gpufeed.training.lightning_data",
    "GpufeedError": "gpufeed.core.errors",
    "Skip": "gpufeed.core.errors",
}
__all__ = ["__version__", *PUBLIC]


def __getattr__(name: str) -> Any:
    if name not in PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(PUBLIC[name])
    return globals().get(name) or getattr(module, name)  # gpufeed.watch is a package that can be called


def __dir__() -> list[str]:
    return sorted({*globals(), *PUBLIC})

from importlib import import_module

__version__ = "0.1.0"

# imported on first access: they import torch, which planning does not need
PUBLIC = {
    "watch": "gpufeed.watch",
    "GPUOnlyDataset": "gpufeed.loaders.gpu_only_dataset",
    "TinyImageNetDataModule": "gpufeed.training.lightning_data",
    "CIFAR10DataModule": "gpufeed.training.lightning_data",
    "FashionMNISTDataModule": "gpufeed.training.lightning_data",
}


def __getattr__(name: str):
    if name not in PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(PUBLIC[name])
    return globals().get(name) or getattr(module, name)  # gpufeed.watch is a package that can be called

__version__ = "0.1.0"


def __getattr__(name: str):
    if name == "GPUOnlyDataset":  # on first access: it imports torch, which planning does not need
        from gpufeed.loaders.gpu_only_dataset import GPUOnlyDataset

        return GPUOnlyDataset
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""What the kernel benchmark measures, from the config. Standard library only: read while planning."""

from collections.abc import Mapping

STEPS = ("brightness", "contrast", "salt_pepper", "rotation")
WORKS = ("normalise", *STEPS, "crop_flip", "one_pass")
IMPLEMENTATIONS = ("fused", "chain", "torch", "torchvision", "kornia", "dali")
DEFAULTS = {"batch_size": [128, 512, 4096], "size": [32, 64, 224], "launches": 50, "dtype": "float16"}


def settings(config: Mapping, experiment: str) -> dict | None:
    """The `kernels` of an experiment with all defaults; None if it has none."""
    own = config["experiments"][experiment].get("kernels")
    return None if own is None else {**DEFAULTS, **own}

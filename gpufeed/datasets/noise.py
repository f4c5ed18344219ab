"""Images of random bytes without files: `Manifest.pixels` makes them in the loading process.

The notebook on pipelining makes its images like this, in its Dataset's `__getitem__`, since their content
does not matter. Here a sample always has the same pixels.
"""

from pathlib import Path

from gpufeed.core.config_sources import checked_options
from gpufeed.datasets.image_folder import MEAN, STD
from gpufeed.datasets.manifest import DatasetInfo, Manifest
from gpufeed.datasets.staging import staging


def reorganise(archives: list[Path], out: Path, dataset: str, options: dict) -> Manifest:
    """Write a manifest without image files or archives; sample i has the label i modulo `classes`.

    Mean and standard deviation are ImageNet's. Raises GpufeedError for options that are unknown or
    impossible.
    """
    source = checked_options("noise", options)
    classes = [f"class_{label}" for label in range(source["classes"])]
    shape = (source["size"], source["size"], 3)
    with staging(out) as stage:
        stage.rows = [(f"noise/{i:06d}", i % len(classes), "train", *shape) for i in range(source["count"])]
        return stage.finish(DatasetInfo(dataset, "noise", classes, "test", MEAN, STD, source=source))

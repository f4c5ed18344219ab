"""Fashion-MNIST from its four idx.gz files to grayscale PNG files.

Source: H. Xiao, K. Rasul, R. Vollgraf, Fashion-MNIST: a Novel Image Dataset, 2017.
"""

from pathlib import Path

from gpufeed.core.config_sources import FASHION_MNIST_FILES, checked_options
from gpufeed.core.errors import GpufeedError
from gpufeed.datasets.idx import Looks, lay_out
from gpufeed.datasets.manifest import Manifest

CLASSES = [
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
]
# of the training set's pixels in 0..1; three times the same, since decoders expand grayscale to RGB
LOOKS = Looks((0.2860,) * 3, (0.3530,) * 3)


def reorganise(archives: list[Path], out: Path, dataset: str, options: dict) -> Manifest:
    """Write the images as `out/images/<train|test>/<class>/*.png` (one channel) and their manifest.

    Raises GpufeedError for a missing or damaged file and for images and labels that do not match.
    """
    checked_options("fashion_mnist", options)
    return lay_out(_by_name(archives), out, dataset, "fashion_mnist", CLASSES, LOOKS)


def _by_name(archives: list[Path]) -> dict[str, Path]:
    """Return the four files by name."""
    files = {Path(path).name: Path(path) for path in archives}
    if sorted(files) != sorted(FASHION_MNIST_FILES):
        raise GpufeedError(
            f"the files {', '.join(sorted(files)) or '(none)'} for layout fashion_mnist",
            ", ".join(FASHION_MNIST_FILES),
            "list these four files in the dataset's row under `sources`",
        )
    return files

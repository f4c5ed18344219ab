"""Another dataset's images, made gray and of one size, written as idx files and read back.

It exercises the idx layout with real images where Fashion-MNIST itself cannot be downloaded. The four files
stay in `out/idx`, beside the images. Results on them say nothing about Fashion-MNIST.
"""

from pathlib import Path

import numpy as np
from PIL import Image
from tqdm import tqdm

from gpufeed.core.config_sources import IDX_FILES, checked_options
from gpufeed.core.errors import GpufeedError
from gpufeed.core.file_writes import enough_disk
from gpufeed.datasets.idx import MOST_LABELS, lay_out, write_idx
from gpufeed.datasets.manifest import Manifest
from gpufeed.datasets.staging import only_manifest
from gpufeed.decoders.pillow import rgb


def reorganise(archives: list[Path], out: Path, dataset: str, options: dict) -> Manifest:
    """Write the four idx files below `out/idx`, and from these the images and their manifest.

    archives: the manifest of the dataset in option `of`, and nothing else. Option `size`: side in pixels.
    Classes, labels, splits and order are those of `of`; mean and std are those of the gray training pixels.
    Raises GpufeedError for options that are unknown or impossible, more classes than a byte can name, and a
    dataset without an evaluation split.
    """
    source = checked_options("gray_idx", options)
    given, size = only_manifest(archives, "gray_idx", source["of"]), source["size"]
    if len(given.info.classes) > MOST_LABELS:
        raise GpufeedError(
            f"{len(given.info.classes)} classes in {given.info.dataset}",
            f"at most {MOST_LABELS}, since an idx label is one byte",
            "name another dataset under `of`",
        )
    folder = out / "idx"
    splits = {"train": given.ids("train"), "test": given.ids(given.info.evaluation_split)}
    labels, paths = given.labels(), given.paths()
    with enough_disk(out):
        folder.mkdir(parents=True, exist_ok=True)
        for split, (image_file, label_file) in IDX_FILES.items():
            ids = splits[split]
            images = np.empty((len(ids), size, size), np.uint8)
            for row, sample in enumerate(tqdm(ids, desc=f"{dataset}: {split} in gray", disable=None)):
                images[row] = gray(paths[sample], size)
            write_idx(images, folder / image_file)
            write_idx(labels[ids].astype(np.uint8), folder / label_file)
    files = {name: folder / name for pair in IDX_FILES.values() for name in pair}
    most = len(given) * size**2
    return lay_out(files, out, dataset, "gray_idx", given.info.classes, source=source, most=most)


def gray(file: Path, size: int) -> np.ndarray:
    """Return an image as luma (ITU-R 601), uint8 (size, size), by Pillow's antialiased bilinear filter."""
    luma = Image.fromarray(rgb(file.read_bytes())).convert("L")
    return np.asarray(luma.resize((size, size), Image.Resampling.BILINEAR))

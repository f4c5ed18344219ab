"""A torch Dataset of one's own: it makes each sample (Manifest.pixels), or names the files of all."""

from pathlib import Path
from typing import Any

from gpufeed import plugins
from gpufeed.core.config_sources import EVALUATION
from gpufeed.core.errors import GpufeedError
from gpufeed.core.registry import FILES
from gpufeed.datasets.image_folder import MEAN, STD
from gpufeed.datasets.manifest import DatasetInfo, Manifest
from gpufeed.datasets.staging import staging

MOST_CLASSES = 10**6  # of a Dataset that does not name them: larger labels are ids, such as WordNet's


def reorganise(archives: list[Path], out: Path, dataset: str, options: dict, reference: str) -> Manifest:
    """Write a manifest with a row for each item of the Dataset that a reference names.

    options: its arguments; EVALUATION: those in which the Dataset to evaluate differs. With FILES its files
    are linked, or copied; else there are none, and rows have the size of the first item. Mean and standard
    deviation are ImageNet's. Raises GpufeedError as gpufeed.plugins does.
    """
    source = {"options": options}
    with staging(out) as stage:
        for split in ("train", "test")[: 1 + (EVALUATION in options)]:
            opened = plugins.open_dataset(reference, split, options)
            if options.get(FILES):
                for i, (path, label) in enumerate(plugins.files(opened, reference)):
                    name = f"{i:08d}{path.suffix.lower()}"
                    stage.add(split, f"class_{label}", name, label, path)
                continue
            shape = plugins.sample(opened, 0, 0, reference)[0].shape
            labels = enumerate(plugins.labels(opened, reference))
            stage.rows += [(f"{split}/{i:08d}", label, split, *shape) for i, label in labels]
        classes = class_names(plugins.open_dataset(reference, "train", options))
        found = sorted({row[1] for row in stage.rows})
        count = len(classes) or min(found[-1] + 1, MOST_CLASSES)
        if wrong := [label for label in found if not 0 <= label < count]:
            raise GpufeedError(
                f"label {wrong[0]} in {reference}, "
                + (f"whose `classes` are {count}" if classes else "which has no `classes`"),
                "labels from 0 to the number of classes, less one",
                "correct its labels or its `classes`",
            )
        classes = classes or [str(label) for label in range(count)]
        return stage.finish(DatasetInfo(dataset, reference, classes, "test", MEAN, STD, source=source))


def class_names(dataset: Any) -> list[str]:
    """Return the names in a Dataset's `classes`; [] if it has none, or only their number or a method."""
    try:
        return [str(name) for name in dataset.classes]
    except (AttributeError, TypeError):
        return []

"""A torch Dataset of one's own: it makes each sample (Manifest.pixels), or names the files of all."""

from pathlib import Path

from gpufeed import plugins
from gpufeed.core.config_sources import EVALUATION
from gpufeed.core.errors import GpufeedError
from gpufeed.core.registry import FILES
from gpufeed.datasets.image_folder import MEAN, STD
from gpufeed.datasets.manifest import DatasetInfo, Manifest
from gpufeed.datasets.staging import staging


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
        named = getattr(plugins.open_dataset(reference, "train", options), "classes", None)
        found = {row[1] for row in stage.rows}
        classes = [str(name) for name in named or range(1 + max(found))]
        if wrong := sorted(label for label in found if not 0 <= label < len(classes)):
            raise GpufeedError(
                f"label {wrong[0]} in {reference}, whose `classes` are {len(classes)}",
                "labels from 0 to the number of classes, less one",
                "correct its labels or its `classes`",
            )
        return stage.finish(DatasetInfo(dataset, reference, classes, "test", MEAN, STD, source=source))

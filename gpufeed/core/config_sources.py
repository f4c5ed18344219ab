"""Checks of the sources in a config: what a layout would refuse is reported before any download.

The workflow imports this while it plans, so it needs nothing beyond what Snakemake itself brings.
"""

from collections.abc import Mapping

from gpufeed.core.cell_matrix import QUANTITY, quantity
from gpufeed.core.config_schema import explain, validator
from gpufeed.core.errors import GpufeedError, require_known, unknown
from gpufeed.core.references import FORMS, check, is_reference
from gpufeed.core.registry import DERIVED, LAYOUTS, is_made

EVALUATION = "evaluation"  # option of a Dataset: the options that differ for evaluation
NO_OPTIONS = {"additionalProperties": False}  # schema of the other layouts

IDX_FILES = {  # of MNIST and its like: split -> (images, labels)
    "train": ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"),
    "test": ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"),
}
FASHION_MNIST_FILES = (*IDX_FILES["train"], *IDX_FILES["test"])


def check_source(source: Mapping, where: str) -> None:
    """Raise GpufeedError for a source that its layout would refuse after the download."""
    layout, options = source["layout"], source.get("options", {})
    if layout not in LAYOUTS:
        raise unknown("layout", layout, [*LAYOUTS, *FORMS["dataset"]], where)
    if is_reference(layout):
        check("dataset", layout, where)
    if is_made(source) and (extra := quantity(source)):
        raise GpufeedError(
            f"{next(iter(extra))} in {where}, whose layout is {layout}",
            f"{', '.join(QUANTITY)} only for layouts with image files, which {layout} has not",
            "remove it; the source's options, such as `count`, say how many images there are",
        )
    if layout == "image_folder":
        return check_folder(source, where)
    if "folder" in source:
        raise GpufeedError(
            f"a folder in {where}, whose layout is {layout}",
            "layout image_folder, or files",
            "write layout: image_folder for images of your own",
        )
    if layout == "synthetic":
        check_splits(options, where)
    elif is_made(source) or is_reference(layout):
        return
    elif layout in DERIVED:
        check_derived(source, where)
    elif options:
        raise GpufeedError(
            f"options in {where}", f"none: layout {layout} has no options", "remove `options:` from it"
        )
    else:
        check_files(layout, [file["name"] for file in source.get("files", [])], where)


def check_files(layout: str, names: list[str], where: str) -> None:
    """Raise GpufeedError unless the files are those that the layout reads."""
    found = f"{', '.join(names) or 'no files'} in {where}"
    if layout == "fashion_mnist":
        if sorted(names) != sorted(FASHION_MNIST_FILES):
            raise GpufeedError(
                found,
                f"the four files {', '.join(FASHION_MNIST_FILES)}",
                "list these four under `files:`, each with name and sha256",
            )
    elif not names:
        raise GpufeedError(found, "one row with name and sha256", "add `files:` to it")
    elif len(names) > 1:
        raise GpufeedError(found, f"one archive for layout {layout}", "leave one row under `files:`")


def check_folder(source: Mapping, where: str) -> None:
    """Raise GpufeedError unless a source of layout image_folder has either a folder or one archive."""
    files = [file["name"] for file in source.get("files", [])]
    if len(files) + ("folder" in source) != 1:
        raise GpufeedError(
            f"{'a folder and ' if 'folder' in source else ''}{len(files)} files in {where}",
            "a folder of images, or one archive of such a folder",
            "write folder: FOLDER into it, or one row under `files:`",
        )


def check_derived(source: Mapping, where: str) -> None:
    """Raise GpufeedError unless a source that is made of another one has options and no files."""
    layout = source["layout"]
    if source.get("files"):
        raise GpufeedError(
            f"files in {where}", f"none: layout {layout} is made of another source", "remove `files:`"
        )
    if not source.get("options"):
        needed = validator("config").schema["$defs"][layout]["required"]
        listed = ", ".join(f"{key}: ..." for key in needed)
        raise GpufeedError(
            f"no options in {where}",
            f"{', '.join(needed[:-1])} and {needed[-1]}",
            f"add `options: {{{listed}}}`",
        )


def check_of(config: Mapping, dataset: str) -> None:
    """Raise GpufeedError unless a source can be made of the one in its option `of`.

    That one must have image files of its own. mosaic needs one image size, gray_idx an evaluation split.
    """
    layout = config["sources"][dataset]["layout"]
    of, where = config["sources"][dataset]["options"]["of"], f"sources.{dataset}.options.of"
    others = [
        name
        for name, row in config["sources"].items()
        if row["layout"] not in DERIVED
        and not is_made(row)
        and ("resize" not in row if layout == "mosaic" else holds_out(row))
    ]
    for name in (of, config["use_instead"].get(of, of)):
        require_known("dataset", name, others, where)


def checked_options(layout: str, options: Mapping) -> dict:
    """Return the options of a source with the defaults of its layout.

    Raises GpufeedError for the first that the layout's schema refuses.
    """
    schema = validator("config").schema["$defs"].get(layout, NO_OPTIONS)
    for error in validator("config").evolve(schema=schema).iter_errors(options):
        raise explain(error, f"the options of layout {layout}")
    return with_defaults(layout, options)


def with_defaults(name: str, options: Mapping) -> dict:
    """Return options with the defaults of their schema. name: of a layout, or of a part of an experiment."""
    described = validator("config").schema["$defs"].get(name, {}).get("properties", {})
    defaults = {key: schema["default"] for key, schema in described.items() if "default" in schema}
    return {**defaults, **options}


def evaluation_images(options: Mapping) -> int:
    """Return how many images a synthetic source holds out for evaluation. options: with defaults."""
    return round(options["count"] * options["evaluation_share"])


def check_splits(options: Mapping, where: str) -> None:
    """Raise GpufeedError if a class of a synthetic source has no image in a split."""
    options = with_defaults("synthetic", options)
    held_out, classes = evaluation_images(options), options["classes"]
    if options["count"] - held_out < classes:
        raise GpufeedError(
            f"{options['count'] - held_out} training images for {classes} classes in {where}",
            "at least one for each class",
            "raise `count`, or lower `classes` or `evaluation_share`",
        )
    if options["evaluation_share"] and held_out < classes:
        raise GpufeedError(
            f"{held_out} evaluation images for {classes} classes in {where}",
            "at least one for each class, or evaluation_share 0",
            "raise `count` or `evaluation_share`, or lower `classes`",
        )


def holds_out(source: Mapping) -> bool:
    """Return whether a source has an evaluation split."""
    if source["layout"] == "synthetic":
        return bool(evaluation_images(with_defaults("synthetic", source.get("options", {}))))
    if is_reference(source["layout"]):
        return EVALUATION in source.get("options", {})
    return source["layout"] not in ("mosaic", "noise")


def training_images(source: Mapping) -> int | None:
    """Return how many images a source trains on; None if only its files tell."""
    if source["layout"] not in ("synthetic", "mosaic", "noise"):
        return None
    options = with_defaults(source["layout"], source.get("options", {}))
    count = options["count"] - (evaluation_images(options) if source["layout"] == "synthetic" else 0)
    most = min(count, source.get("limit") or count)
    return most * (source.get("copies") or 1) * (source.get("times") or 1)

"""python -m gpufeed.datasets.stand_ins: make two datasets that cannot be downloaded, from public archives.

The published results were measured on both. `tiny_imagenet_40` has 40 classes of Tiny ImageNet; its file has
the same bytes as the measured one. `cifar10_jpeg` has the images of CIFAR-10 as JPEGs of quality 75, encoded
with the settings of the measured file. Its bytes may differ; the sha256 in the config shows whether they do.
"""

import argparse
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import yaml
from tqdm import tqdm

from gpufeed.core.compose import shipped
from gpufeed.core.errors import GpufeedError
from gpufeed.core.file_writes import sha256_of, whole
from gpufeed.datasets import cifar10, cifar10_jpeg, tiny_imagenet
from gpufeed.datasets.archive import members
from gpufeed.datasets.download import SourceFile, fetch
from gpufeed.datasets.staging import jpeg, malformed

TOP = "tiny-imagenet-200/"
WNIDS = """
    n03970156 n02106662 n03201208 n02132136 n04146614 n02364673 n04507155 n01443537 n07875152 n03544143
    n02963159 n09256479 n02769748 n04074963 n09332890 n02481823 n03637318 n02669723 n04259630 n02814860
    n02395406 n07734744 n03599486 n04251144 n04179913 n04328186 n01774384 n02837789 n04399382 n02814533
    n07747607 n01698640 n01784675 n03042490 n02999410 n01742172 n01644900 n02909870 n12267677 n02841315
""".split()  # noqa: SIM905 - as a list it would take a line each
TEST_IMAGES = 200  # the first ones by name
WRITTEN = (2026, 11, 20, 0, 0, 0)  # the date of each file in the measured zip
QUALITY = 75  # of the JPEGs


def write_tiny_imagenet_40(archive: Path, out: Path) -> None:
    """Write 40 classes of tiny-imagenet-200.zip as a zip of the same layout, not compressed.

    Raises GpufeedError for a damaged archive and for one without these classes.
    """
    files = {
        member.name.removeprefix(TOP): member.read()
        for member in members(archive, tiny_imagenet.MOST_BYTES)
        if is_wanted(member.name.removeprefix(TOP))
    }
    lines = files.get(tiny_imagenet.ANNOTATIONS, b"").decode("latin-1").splitlines(keepends=True)
    if wrong := [line for line in lines if "\t" not in line]:
        found = f"line {wrong[0]!r} of {tiny_imagenet.ANNOTATIONS}"
        raise malformed(found, archive, "a file name, a tab and a class")
    rows = [line for line in lines if line.split("\t")[1].strip() in WNIDS]
    texts = {"wnids.txt": "".join(f"{wnid}\n" for wnid in WNIDS), tiny_imagenet.ANNOTATIONS: "".join(rows)}
    files |= {name: text.encode("latin-1") for name, text in texts.items()}
    names = ["wnids.txt", "words.txt"]
    for wnid in WNIDS:
        images = sorted(name for name in files if name.startswith(f"train/{wnid}/images/"))
        names += [f"train/{wnid}/{wnid}_boxes.txt", *images]
    names += [tiny_imagenet.ANNOTATIONS, *("val/images/" + row.split("\t")[0] for row in rows)]
    names += sorted(name for name in files if name.startswith("test/images/"))[:TEST_IMAGES]
    if absent := [name for name in names if name not in files]:
        raise malformed(f"no {TOP}{absent[0]}", archive, "the files of tiny-imagenet-200.zip")
    with whole(out) as partial, zipfile.ZipFile(partial, "w") as made:
        for name in names:
            made.writestr(zipfile.ZipInfo(TOP + name, WRITTEN), files[name])


def is_wanted(name: str) -> bool:
    """Return whether a file of the full archive is needed. name: without the top folder."""
    first, _, rest = name.partition("/")
    if first == "train":
        return rest.partition("/")[0] in WNIDS
    return name == "words.txt" or first in ("val", "test")


def write_cifar10_jpeg(archive: Path, out: Path) -> None:
    """Write the images of cifar-10-python.tar.gz as JPEGs in one file, by split and class.

    Raises GpufeedError for a damaged archive and for one with other classes.
    """
    classes, batches = cifar10.read_images(archive)
    if classes != cifar10_jpeg.CLASSES:
        raise malformed(f"classes {', '.join(classes)}", archive, ", ".join(cifar10_jpeg.CLASSES))
    images = np.concatenate([images for images, _ in batches.values()])
    labels = np.concatenate([labels for _, labels in batches.values()])
    splits = np.concatenate(
        [
            np.full(len(of), cifar10_jpeg.SPLITS.index(cifar10.SPLITS[name]))
            for name, (_, of) in batches.items()
        ]
    )
    order = np.lexsort((labels, splits))  # stable
    files = [jpeg(images[i], QUALITY) for i in tqdm(order, desc="JPEGs", unit=" images", disable=None)]
    arrays = {
        "jpeg": np.frombuffer(b"".join(files), np.uint8),
        "offset": np.cumsum([0, *map(len, files)], dtype=np.int64),
        "label": labels[order].astype(np.uint8),
        "split": splits[order].astype(np.uint8),
    }
    with whole(out) as partial, partial.open("wb") as file:
        np.savez_compressed(file, **arrays)


MADE_OF: dict[str, tuple[str, Callable[[Path, Path], None]]] = {
    "tiny_imagenet_40": ("tiny_imagenet", write_tiny_imagenet_40),
    "cifar10_jpeg": ("cifar10", write_cifar10_jpeg),
}


def make(name: str, archives: Path, data: Path) -> Path:
    """Return the stand-in's file in `archives`; if it is missing, make it from the public archive."""
    of, write = MADE_OF[name]
    (row,), (public,) = (shipped()["sources"][source]["files"] for source in (name, of))
    out = archives / row["name"]
    if not out.exists():
        archive = data / of / "archives" / public["name"]  # the workflow's own place for it
        if not archive.exists():
            fetch(SourceFile(**{**public, "urls": tuple(public["urls"])}), archive, [archives])
        write(archive, out)
    return out


def verdict(name: str, file: Path) -> str:
    """Return in words whether the file is the measured one, and what to add to the config if it is not."""
    (row,) = shipped()["sources"][name]["files"]
    made = {"name": file.name, "sha256": sha256_of(file), "size": file.stat().st_size}
    if made["sha256"] == row["sha256"]:
        return f"{file}: the file that the published results were measured on, sha256 {made['sha256']}."
    lines = yaml.safe_dump({"sources": {name: {"files": [made]}}}, sort_keys=False)
    return (
        f"{file}: not the file that the published results were measured on, so do not compare accuracies "
        f"with theirs. To use it, save these lines as FILE and run snakemake --configfile FILE:\n{lines}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m gpufeed.datasets.stand_ins", description=__doc__)
    parser.add_argument("names", metavar="NAME", nargs="*", help=f"{' or '.join(MADE_OF)}; default: both")
    parser.add_argument("--archives", type=Path, default=Path("archives"), help="folder for the files made")
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder for the public archives")
    asked = parser.parse_args(arguments)
    if wrong := [name for name in asked.names if name not in MADE_OF]:
        parser.error(f"found: {wrong[0]}; expected: {' or '.join(MADE_OF)}")
    try:
        for name in asked.names or MADE_OF:
            print(verdict(name, make(name, asked.archives, asked.data)))
    except (GpufeedError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

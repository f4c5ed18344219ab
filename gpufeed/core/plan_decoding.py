"""What a sweep of decoders measures: its settings, and its points on one node. Used while planning."""

from collections.abc import Mapping
from dataclasses import dataclass

from gpufeed.core.config_sources import with_defaults
from gpufeed.core.errors import require_known, unknown
from gpufeed.core.registry import DECODERS

# Entries of a sweep that read strips.bin -> the backend that decodes; None: the best for the device.
STRIP_SETS = {"strips": None, "strips_cpu": "cpu"}
STRIP_PIXELS = 2**28  # of the strips in one call, at most: 805 MB decoded


def check_sweep(config: Mapping, experiment: str) -> None:
    """Raise GpufeedError for an unknown name in an experiment's sweep."""
    sweep, where = config["experiments"][experiment].get("sweep"), f"experiments.{experiment}.sweep"
    if sweep is None:
        return
    for name in sweep["datasets"]:
        require_known("dataset", name, config["sources"], f"{where}.datasets")
    for name in sweep["decoders"]:
        if name not in DECODERS and name not in STRIP_SETS:
            raise unknown("decoder", name, {**DECODERS, **STRIP_SETS}, f"{where}.decoders")
    for key in ("batch_sizes", "cold"):
        for name in sweep.get(key, []):
            require_known("dataset", name, sweep["datasets"], f"{where}.{key}")


def settings(config: Mapping, experiment: str) -> dict | None:
    """Return the sweep of an experiment with all defaults and stand-ins; None without `sweep`."""
    sweep = config["experiments"][experiment].get("sweep")
    if sweep is None:
        return None
    stand_ins = config["use_instead"]
    found = with_defaults("sweep", sweep)
    for key in ("datasets", "cold"):
        found[key] = list(dict.fromkeys(stand_ins.get(name, name) for name in found[key]))
    found["batch_sizes"] = {
        stand_ins.get(name, name): list(sizes) for name, sizes in found["batch_sizes"].items()
    }
    return found


@dataclass(frozen=True)
class Images:
    """The images of a dataset, as far as the points depend on them."""

    pixels: float  # of an image, mean
    count: int  # used by the sweep
    all: int  # of the training split


@dataclass(frozen=True)
class Point:
    """One measurement: dataset, number of cores, batch size, and whether the page cache is warm or cold."""

    dataset: str
    cores: int
    batch_size: int
    cache: str = "warm"  # warm | cold


def batch_of(wanted: int, images: Images, batch_pixels: int) -> int:
    """Return the images of a call: `wanted`, limited by `batch_pixels` and by the dataset."""
    return max(1, min(wanted, int(batch_pixels // images.pixels), images.count))


def core_counts(
    wanted: list[int], allowed: int, spreads: bool, restricts: bool
) -> tuple[list[int], list[str]]:
    """Return the core counts to measure, ascending, and a sentence for each kind that is left out.

    spreads: whether the decoder scales with cores; a GPU decoder is measured with all of them. restricts:
    whether the system can pin a process to fewer cores.
    """
    if not spreads:
        return [allowed], []
    too_many = sorted({count for count in wanted if count > allowed})
    fitting = sorted({count for count in wanted if count <= allowed} | {allowed})
    left_out = []
    if too_many:
        counts = ", ".join(map(str, too_many))
        left_out.append(f"Left out: {counts} cores, since this run has {allowed}.")
    if not restricts and fitting != [allowed]:
        left_out.append("Left out: fewer cores than all, since this system cannot pin processes to cores.")
        fitting = [allowed]
    return fitting, left_out


def points(
    settings: Mapping, sizes: Mapping[str, Images], counts: list[int], whole: bool = False
) -> list[Point]:
    """Return all points of a decoder, grouped by cores.

    counts: from `core_counts`; batch sizes and cold caches are measured on the most cores. whole: the decoder
    takes the whole training split in one call, up to STRIP_PIXELS, whatever the batch size.
    """
    pixels, found = settings["batch_pixels"], []

    def usual(images: Images) -> int:
        if whole:
            return max(1, min(images.all, int(STRIP_PIXELS // images.pixels)))
        return batch_of(settings["batch_size"], images, pixels)

    for cores in counts:
        for name, images in sizes.items():
            found.append(Point(name, cores, usual(images)))
    most = counts[-1]
    if not whole:
        for name, wanted in settings["batch_sizes"].items():
            for size in wanted:
                found.append(Point(name, most, batch_of(size, sizes[name], pixels)))
    for name in settings["cold"]:
        found.append(Point(name, most, usual(sizes[name]), "cold"))
    return list(dict.fromkeys(found))

"""Which builds of caches an experiment times, from the config. Standard library only: used while planning."""

from collections.abc import Mapping
from dataclasses import dataclass

from gpufeed.core.errors import require_known
from gpufeed.core.registry import DECODERS


@dataclass(frozen=True)
class Builds:
    """The builds that an experiment times. runs: (decoder, "all" or "one" core), each in a fresh process."""

    dataset: str
    counts: list[int]
    runs: list[tuple[str, str]]


def planned_builds(config: Mapping, experiment: str) -> Builds | None:
    """Return the builds of an experiment of a valid config; None without `builds`.

    Raises GpufeedError for an unknown dataset or decoder.
    """
    block = config["experiments"][experiment].get("builds")
    if block is None:
        return None
    where = f"experiments.{experiment}.builds"
    dataset = config["use_instead"].get(block["dataset"], block["dataset"])
    require_known("dataset", dataset, config["sources"], where)
    runs = [(name, "all") for name in block["decoders"]]
    runs += [(name, "one") for name in block.get("one_core", [])]
    for name, _ in runs:
        require_known("decoder", name, DECODERS, where)
    return Builds(dataset, sorted(block["counts"]), runs)

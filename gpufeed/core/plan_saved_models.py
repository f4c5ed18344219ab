"""Whose models an experiment keeps, from the config. Standard library only: read while planning."""

from collections.abc import Mapping

from gpufeed.core.cells import Plan
from gpufeed.core.errors import GpufeedError, require_known
from gpufeed.core.registry import LOADERS


def kept_cells(config: Mapping, plan: Plan, experiment: str, key: str = "models") -> list[str]:
    """Ids of the cells whose models are kept: those of the blocks in `models`, without ceilings.

    key: the part of the experiment that names the blocks, `models` or `inference`.

    A block whose cells are all impossible under this config keeps none. Raises GpufeedError for a block that
    there is not, and for one that has ceilings only.
    """
    blocks = config["experiments"][experiment].get(key, {}).get("blocks", [])
    where, found = f"experiments.{experiment}.{key}.blocks", []
    for block in blocks:
        require_known("block", block, plan.blocks[experiment], where)
        cells = plan.blocks[experiment][block]
        ours = [cell for cell in cells if not LOADERS[plan.cells[experiment][cell].loader].ceiling]
        if cells and not ours:
            raise GpufeedError(
                f"block {block!r} in {where}, which has no cell whose model could be kept",
                "a block with a cell that is no ceiling: a ceiling sees one batch only",
                "name another block",
            )
        found += ours
    return list(dict.fromkeys(found))


def files_to_predict(config: Mapping, experiment: str) -> list[str]:
    """Files and folders that the kept models of an experiment are asked about."""
    return list(config["experiments"][experiment].get("models", {}).get("predict", []))


def samples_to_predict(config: Mapping, experiment: str) -> int:
    """Return how many images of its evaluation split each kept model of an experiment predicts."""
    return config["experiments"][experiment].get("models", {}).get("samples", 0)

"""Whose models an experiment keeps, from the config. Standard library only: read while planning."""

from collections.abc import Mapping

from gpufeed.core.cell_matrix import Plan


def kept_cells(config: Mapping, plan: Plan, experiment: str, key: str = "models") -> list[str]:
    """Ids of the cells whose models are kept: those of the blocks in `models`, without ceilings.

    key: the part of the experiment that names the blocks, `models` or `inference`. Raises GpufeedError as
    Plan.cells_of_blocks.
    """
    blocks = config["experiments"][experiment].get(key, {}).get("blocks", [])
    return plan.cells_of_blocks(experiment, blocks, f"experiments.{experiment}.{key}.blocks")


def files_to_predict(config: Mapping, experiment: str) -> list[str]:
    """Files and folders that the kept models of an experiment are asked about."""
    return list(config["experiments"][experiment].get("models", {}).get("predict", []))


def samples_to_predict(config: Mapping, experiment: str) -> int:
    """Return how many images of its evaluation split each kept model of an experiment predicts."""
    return config["experiments"][experiment].get("models", {}).get("samples", 0)

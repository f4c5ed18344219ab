"""What the shipped experiments can answer, by what they plan."""

import pytest
import yaml
from data_fixtures import REPOSITORY

from gpufeed.config import planned
from gpufeed.registry import LOADERS

CONFIG = yaml.safe_load((REPOSITORY / "config/config.yaml").read_text())
PLAN = planned(CONFIG)


@pytest.mark.parametrize("name", PLAN.cells)
def test_every_experiment_has_a_ceiling_and_a_pipeline_that_loads_files(name):
    loaders = {cell.loader for cell in PLAN.cells[name].values()}
    assert any(LOADERS[loader].ceiling for loader in loaders)
    assert any(LOADERS[loader].reads == "files" and not LOADERS[loader].ceiling for loader in loaders)


def test_what_decoding_once_gives_can_be_said():
    cells = PLAN.cells["tensor_cache"].values()
    assert {"cache", "files", "strips"} <= {LOADERS[cell.loader].reads for cell in cells}
    assert (
        len({(cell.dataset, cell.augment, cell.model, cell.batch_size, cell.epochs) for cell in cells}) == 1
    )

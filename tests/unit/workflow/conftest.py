"""A run of one small experiment, planned."""

from types import SimpleNamespace

import pytest
from config_fixtures import merged

from gpufeed.core.config import planned
from gpufeed.workflow.run import Run

TINY = {
    "title": "Tiny",
    "question": "Does it run?",
    "common": {"dataset": "synthetic", "model": "simple_cnn", "batch_size": 8},
    "blocks": {
        "workers": {"loader": ["dataloader_workers"], "workers": 4},
        "others": {"loader": ["resident", "replay"]},
    },
}
SOURCES = ("synthetic", "cifar10", "tiny_imagenet", "mosaic_32")


@pytest.fixture(scope="session")
def run():
    """Makes the run of a config with the experiment `tiny` alone; keywords are keys of either."""

    def run(experiment=None, **changes):
        config = merged("config.yaml")
        config |= {"run": ["tiny"], "device": "cpu", "repeats": 2, "results": "out", "data": "in", **changes}
        config["sources"] = {name: config["sources"][name] for name in SOURCES}
        config["experiments"] = {"tiny": {**TINY, **(experiment or {})}}
        return Run(config, planned(config))

    return run


@pytest.fixture
def of_cell():
    """Makes the wildcards of the one cell of a run that has this loader."""

    def of_cell(run, loader, **more):
        (cell,) = (name for name, cell in run.plan.cells["tiny"].items() if cell.loader == loader)
        return SimpleNamespace(experiment="tiny", cell=cell, **more)

    return of_cell

"""The tuner on a GPU: pinned memory is a choice, and a captured step serves all loaders."""

import pytest
from cuda_cell_fixtures import made_dataset

from gpufeed.advice.tuner import tune
from gpufeed.core.cells import Cell
from gpufeed.core.config import Composer
from gpufeed.core.loader_setting import Setting
from gpufeed.core.record import TUNED
from gpufeed.training.runtime_context import Stores


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return made_dataset(tmp_path_factory.mktemp("tuned"))[0]


@pytest.mark.parametrize("loader", ["dataloader_workers", "overlap"])
@pytest.mark.parametrize("graphs", [False, True])
def test_a_tuning_on_a_gpu_tries_settings_that_fit(dataset, tmp_path, loader, graphs):
    axes = {"workers": 2, "prefetch_factor": 2, "model": "resnet18", "augment": "torch", "batch_size": 64}
    cell = Cell("e", "synthetic", loader, device="cuda", precision="fp32", cuda_graphs=graphs, **axes)
    cell = Cell(**{**cell.asdict(), "overrides": (), "hyper": Composer()(cell, "the test")})
    found = tune(cell.asdict(), dataset, Stores(), "here")
    assert found["status"] == "done", found["sentence"]
    TUNED.write(found, tmp_path / "tuned.json")
    settings = {Setting.of(one) for one in found["settings"]}
    assert {one.pin_memory for one in settings} == {True, False}
    assert len(settings) <= 60
    assert {Setting.of(one) for one in found["tried"]} <= settings
    assert found["tried"][0]["images_per_s"] > 0
    assert found["resolved"]["device"] == "cuda"

"""What the shipped experiments can answer by what they plan, and that the pages name all there is."""

import re

import pytest
import yaml
from data_fixtures import REPOSITORY

from gpufeed.config import planned
from gpufeed.inference.plan import cells
from gpufeed.kernels.plan import WORKS
from gpufeed.registry import AUGMENTS, KINDS, LOADERS

CONFIG = yaml.safe_load((REPOSITORY / "config/config.yaml").read_text())
PLAN = planned(CONFIG)


# an experiment about models in use trains them by one pipeline
ABOUT_PIPELINES = [name for name in PLAN.cells if "inference" not in CONFIG["experiments"][name]]


@pytest.mark.parametrize("name", ABOUT_PIPELINES)
def test_every_experiment_has_a_ceiling_and_a_pipeline_that_loads_files(name):
    loaders = {cell.loader for cell in PLAN.cells[name].values()}
    assert any(LOADERS[loader].ceiling for loader in loaders)
    assert any(LOADERS[loader].reads == "files" and not LOADERS[loader].ceiling for loader in loaders)


def test_models_in_use_are_of_three_kinds_and_judged_on_images_that_nothing_trains_on():
    found = [PLAN.cells["inference"][cell] for cell in cells(CONFIG, PLAN, "inference")]
    assert {cell.model for cell in found} == {"vit_lite", "vit_tiny", "resnet18"}
    assert all(cell.steps is None for cell in found)


def test_the_block_that_is_run_twice_is_short_and_has_an_interval():
    assert len(PLAN.cells["repeatability"]) == 8
    assert PLAN.repeats["repeatability"] >= 6
    assert "repeatability" not in CONFIG["run"]


def test_what_decoding_once_gives_can_be_said():
    cells = PLAN.cells["tensor_cache"].values()
    assert {"cache", "files", "strips"} <= {LOADERS[cell.loader].reads for cell in cells}
    assert (
        len({(cell.dataset, cell.augment, cell.model, cell.batch_size, cell.epochs) for cell in cells}) == 1
    )


def test_the_readmes_first_screen_has_the_answer_the_commands_and_a_picture_that_is_there():
    """In a window of 1280 x 800, which the picture alone would fill at its full width."""
    screen = (REPOSITORY / "README.md").read_text().split("\n")[:15]
    found = [
        next(place for place, line in enumerate(screen) if line.startswith(text))
        for text in ("**Which", "make demo", "make test", "<img width=")
    ]
    assert found == sorted(found)
    picture = re.search(r'src="([^"]+)"', screen[found[-1]])[1]
    assert (REPOSITORY / picture).is_file()


@pytest.mark.parametrize("name", [*LOADERS, *AUGMENTS])
def test_the_readme_names_every_pipeline_and_augment(name):
    text = (REPOSITORY / "README.md").read_text()
    assert f"`{name}`" in text[text.index("Pipelines so far") : text.index("## Installation")]


@pytest.mark.parametrize("name", [name for kind in KINDS.values() for name in kind])
def test_the_configs_readme_names_all_that_is_registered(name):
    assert f"`{name}`" in (REPOSITORY / "config/README.md").read_text()


def test_the_configs_readme_names_what_the_kernel_benchmark_measures():
    text = (REPOSITORY / "config/README.md").read_text()
    told = text[text.index("### `kernels`") : text.index("### `models`")]
    words = {"salt_pepper": "salt and pepper", "crop_flip": "crop and flip", "one_pass": "one pass"}
    for work in WORKS:
        assert words.get(work, work).replace("normalise", "normalisation") in told

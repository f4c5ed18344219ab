"""What the shipped experiments can answer by what they plan, and that the pages name all there is."""

import re
from functools import cache

import pandas as pd
import pytest
from config_fixtures import merged
from data_fixtures import REPOSITORY, published_results

from gpufeed.core.config import planned
from gpufeed.core.plan_kernels import WORKS
from gpufeed.core.registry import AUGMENTS, KINDS, LOADERS
from gpufeed.report import load_records, tables

CONFIG = merged("config.yaml")
PLAN = planned(CONFIG)
REFERENCE = published_results()
README = (REPOSITORY / "README.md").read_text()
GUIDE = REPOSITORY / "docs/guide"
RESULTS = (REPOSITORY / "docs/results.md").read_text()


# an experiment about models in use trains them by one pipeline; two side by side have no ceiling
OTHERS = {"inference", "side_by_side"}
ABOUT_PIPELINES = [name for name in PLAN.cells if not OTHERS & CONFIG["experiments"][name].keys()]


@pytest.mark.parametrize("name", ABOUT_PIPELINES)
def test_every_experiment_has_a_ceiling_and_a_pipeline_that_loads_files(name):
    loaders = {cell.loader for cell in PLAN.cells[name].values()}
    assert any(LOADERS[loader].ceiling for loader in loaders)
    assert any(LOADERS[loader].reads == "files" and not LOADERS[loader].ceiling for loader in loaders)


def test_models_in_use_are_of_three_kinds_and_judged_on_images_that_nothing_trains_on():
    found = [PLAN.cells["inference"][cell] for cell in PLAN.cells_for(CONFIG, "inference", "inference")]
    assert {cell.model for cell in found} == {"vit_lite", "vit_tiny", "resnet18"}
    assert all(cell.steps is None for cell in found)


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
    drawn = (REPOSITORY / picture).read_text()
    for loader in ("host_cache", "resident", "dali_gpu", "ffcv", "dataloader_workers, 16 workers"):
        assert loader in drawn


PLACES = ("*.md", "docs/**/*.md", "config/*.md", "gpufeed/native/*.md", "results/reference/**/*.md")
PAGES = [path for place in PLACES for path in sorted(REPOSITORY.glob(place))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_every_link_leads_to_a_file(page):
    """To anchors, too: `make docs`, whose builder knows nothing of files that are no pages."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    links = re.findall(r"\]\(([^)\s]+)\)|src=\"([^\"]+)\"", text)
    paths = [(link or source).partition("#")[0] for link, source in links if ":" not in (link or source)]
    assert [path for path in paths if path and not (page.parent / path).is_file()] == []


@pytest.mark.parametrize("name", [*LOADERS, *AUGMENTS])
def test_the_docs_name_every_pipeline_and_augment(name):
    assert f"`{name}`" in (REPOSITORY / "docs/reference/report.md").read_text()


@pytest.mark.parametrize("name", [name for kind in KINDS.values() for name in kind])
def test_the_configs_readme_names_all_that_is_registered(name):
    assert f"`{name}`" in (REPOSITORY / "config/README.md").read_text()


def test_the_configs_readme_names_what_the_kernel_benchmark_measures():
    text = (REPOSITORY / "config/README.md").read_text()
    told = text[text.index("### `kernels`") : text.index("### `models`")]
    words = {"salt_pepper": "salt and pepper", "crop_flip": "crop and flip", "one_pass": "one pass"}
    for work in WORKS:
        assert words.get(work, work).replace("normalise", "normalisation") in told


@cache
def published(experiment: str, machine: str = "h200") -> pd.DataFrame:
    """The cells of an experiment's records on an H200, or an H100."""
    found = load_records.read_records(sorted((REFERENCE / machine / "records" / experiment).glob("*/*.json")))
    return tables.cells(found)


def the(rows: pd.DataFrame, **axes) -> pd.Series:
    """The one row that has these values."""
    for name, value in axes.items():
        rows = rows[rows[name] == value]
    assert len(rows) == 1
    return rows.iloc[0]


def test_the_table_of_workers_is_of_its_records():
    text = (GUIDE / "workers.md").read_text()
    counts, rates, waits = (
        [int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*", line)]
        for start in ("workers", "images/s", "the GPU waits")
        for line in text.splitlines()
        if re.match(rf"\| {start} \| *\d", line)
    )
    cells = published("pipelining")
    cells = cells[(cells["prefetch_factor"].isna() | (cells["prefetch_factor"] == 2)) & cells["pin_memory"]]
    cells = cells[cells["ceiling_share"].notna()]
    usual = {"loader": "dataloader_workers", "persistent_workers": True}
    rows = [
        the(cells, **usual, workers=count) if count else the(cells, loader="dataloader_sync")
        for count in counts
    ]
    assert counts == [0, 1, 2, 4, 8, 16]
    assert rates == [round(row["images_per_s"]) for row in rows]
    assert waits == [round(100 * row["wait_share"]) for row in rows]

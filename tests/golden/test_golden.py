"""Ids, numbers, orders and plans that follow from published documents and shipped configs (see write.py)."""

import pytest

from tests.golden import made
from tests.golden.the_one_place import Cell, cell_id


@pytest.fixture(scope="session")
def checkout(tmp_path_factory):
    return made.Checkout(tmp_path_factory.mktemp("golden"))


def held(found: dict[str, str], of: str) -> None:
    """Asserts that the golden files of this kind are these, line by line."""
    assert sorted(path.name for path in made.GOLDEN.glob(of)) == sorted(found)
    for name, text in found.items():
        assert text.splitlines() == (made.GOLDEN / name).read_text().splitlines(), name


@pytest.mark.parametrize("folder", [made.DOCUMENTS, made.PUBLISHED], ids=["copied", "published"])
def test_every_published_id_follows_from_its_cell(folder):
    documents = made.with_a_cell(folder)
    assert documents
    for path, document in documents.items():
        settings = document["cell"]
        again = Cell(**{**settings, "overrides": tuple(settings["overrides"])}).id
        assert (again, cell_id(settings)) == (document["cell_id"],) * 2, path


def test_the_copied_documents_have_the_golden_ids():
    held(made.ids(), "ids.txt")


def test_tables_of_the_copied_documents(tmp_path):
    held(made.tables(tmp_path), "*.csv")


@pytest.mark.slow
def test_parts_of_a_page_and_their_order(tmp_path):
    held(made.page(tmp_path), "page.txt")


@pytest.mark.parametrize(
    "config",
    [pytest.param(name, marks=() if name == "demo" else pytest.mark.slow) for name in made.CONFIGS],
)
def test_the_plan_of_a_shipped_config(checkout, config):
    held(checkout.plan(config), f"plan-{config}.txt")


@pytest.mark.slow
def test_lines_for_slurm_of_a_shipped_config(checkout):
    held(checkout.lines(), "sbatch-*.txt")

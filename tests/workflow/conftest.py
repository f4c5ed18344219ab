"""Every test here runs whole workflows."""

import pytest
from workflow_fixtures import TINY, Workflow


@pytest.fixture
def workflow(tmp_path):
    """Makes a Workflow from a config (default: two loaders, two repeats, sixty images)."""
    return lambda config=TINY: Workflow(tmp_path / "checkout", config)


def pytest_collection_modifyitems(items):
    for item in items:
        if "tests/workflow" in str(item.path):
            item.add_marker(pytest.mark.workflow)

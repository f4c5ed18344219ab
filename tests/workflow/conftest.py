"""Every test here runs whole workflows."""

import fcntl
from pathlib import Path

import pytest
from workflow_fixtures import SHORT, TINY, Workflow


@pytest.fixture
def workflow(tmp_path):
    """Makes a Workflow from a config (default: two loaders, two repeats, sixty images)."""
    return lambda config=TINY: Workflow(tmp_path / "checkout", config)


@pytest.fixture(scope="session")
def finished(tmp_path_factory, request) -> Path:
    """The folder of a whole run of SHORT, for copies only: one for all of pytest's processes."""
    folder = tmp_path_factory.getbasetemp()
    if hasattr(request.config, "workerinput"):  # one of several: in the folder of all
        folder = folder.parent
    with (folder / "finished.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "finished/results/report.html").exists():
            Workflow(folder / "finished", SHORT).run()
    return folder / "finished"


@pytest.fixture
def prepared(workflow, finished):
    """As `workflow`; the synthetic dataset and its caches are there already."""

    def prepared(config: dict) -> Workflow:
        flow = workflow(config)
        flow.take(finished, "data")
        return flow

    return prepared


@pytest.fixture
def measured(workflow, finished):
    """As `workflow`; all that a run of SHORT makes is there already."""

    def measured(config: dict) -> Workflow:
        flow = workflow(config)
        flow.take(finished, "data", "results")
        return flow

    return measured


def pytest_collection_modifyitems(items):
    for item in items:
        if "tests/workflow" in str(item.path):
            item.add_marker(pytest.mark.workflow)
            item.add_marker(pytest.mark.timeout(600))

"""PACE ICE in a folder of the test, and what checks find in plans there."""

from dataclasses import replace

import pytest
from preflight_fixtures import NODE

from gpufeed.cluster.preflight.asked_plan import Plan
from gpufeed.cluster.preflight.site import Scratch, read_site


@pytest.fixture
def site(tmp_path):
    """PACE ICE, with its scratch in a folder of the test."""
    (tmp_path / "scratch").mkdir()
    return replace(read_site("pace-ice"), scratch=Scratch(tmp_path / "scratch", 1000))


@pytest.fixture
def found(site):
    """What a check finds in a plan of these jobs, as one text."""

    def found(check, *jobs, node=NODE, site=site, config=None, datasets=(), executor="slurm", **more):
        folders = {key: str(site.scratch.folder / key) for key in ("data", "results")}
        plan = Plan(executor, list(jobs), folders | (config or {}), list(datasets), **more)
        return "\n".join(str(finding) for finding in check(plan, site, node))

    return found

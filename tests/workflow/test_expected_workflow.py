"""The minutes that a run is expected to take, as the dry run tells them."""

import re

import pytest
import yaml
from data_fixtures import REPOSITORY


def test_the_dry_run_of_the_reference_run_tells_its_minutes(workflow):
    text = (REPOSITORY / "config/h200.yaml").read_text()
    flow = workflow({"least_s": 3, **yaml.safe_load(text)})
    (flow.folder / "results").mkdir()  # what was published tells how long a measurement takes
    (flow.folder / "results/reference").symlink_to(REPOSITORY / "results/reference")
    said = flow.run("-n")
    rows = dict(re.findall(r"^  (\w+) +([\d.]+)  ", said, re.MULTILINE))
    parts = {part: float(minutes) for part, minutes in rows.items()}
    whole = parts.pop("together")
    assert set(parts) == {*yaml.safe_load(text)["run"], "data"}
    assert whole == pytest.approx(sum(parts.values()), abs=0.3)
    assert whole <= 25
    stated = re.search(r"# About (\d+) minutes", text)
    assert float(stated[1]) == pytest.approx(whole, abs=2)

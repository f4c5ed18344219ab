"""The part of the report with the advice: predicted beside measured, on the page and in its tables."""

import base64
import io
import json
import re

import pandas as pd
import pytest
import record_fixtures as records
from advice_fixtures import probe

from gpufeed.advice.ranking import advise
from gpufeed.report import publish
from gpufeed.report.sections import advice


@pytest.fixture
def results(tmp_path):
    """An experiment with advice: today's cell at 300 images/s, a candidate at 950, one not measured."""
    of, best, other = (records.cell(name, "own") for name in ("dataloader_sync", "overlap", "host_cache"))
    probes = [probe(), probe("overlap", input_s=0.001), probe("host_cache", input_s=0.0012)]
    found = advise(probes, of.id, best=1)
    (tmp_path / "advice").mkdir()
    (tmp_path / "advice/own.json").write_text(json.dumps(found))
    for cell, rate in ((of, 300.0), (best, 950.0)):
        records.write_speeds(tmp_path, cell, [rate])
    info = records.plan_info({"own": [of.id, best.id]}, repeats=1)
    info["experiments"]["own"] |= {"probes": [of.id, best.id, other.id], "advice": {"of": of.id, "best": 1}}
    return tmp_path, info


def words(text):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", text))


def test_the_page_opens_with_the_advice(results):
    folder, info = results
    found = publish.report(folder, ["own"], info, folder / "report.html")
    assert [part.kind for part in found.missing] == ["probes"] * 3
    page = (folder / "report.html").read_text()
    answer = (
        "Do this: loader overlap in place of dataloader_sync. Predicted 1,000 images/s (1,000 to 1,000), "
        "measured 950, 3.17 times today&#39;s 300."
    )
    whole = words(page)
    assert whole.count(answer) == 1
    assert whole.index("What to change") < whole.index(answer) < whole.index("Leaderboard")
    section = words(page[page.index('<section id="experiment-own"') :])
    instead = "in place of dataloader_sync"
    assert f"loader overlap {instead} 1,000 1,000 to 1,000 compute only 950 +5.3 %" in section
    assert f"loader host_cache {instead} 833 833 to 833 the loader - -" in section
    assert "Predicted (images/s)" in section
    link = re.search(r'download="own-advice.csv" href="data:text/csv;base64,([^"]+)"', page)
    table = pd.read_csv(io.StringIO(base64.b64decode(link[1]).decode()))
    assert table["measured_images_per_s"].round().fillna(0).tolist() == [950, 0, 300]


def test_the_table_of_cells_has_predicted_rates(results):
    folder, _ = results
    paths = sorted(folder.glob("records/own/*/*.json"))
    publish.tabulate(paths, folder / "cells.csv", folder / "batches.csv", [folder / "advice/own.json"])
    table = pd.read_csv(folder / "cells.csv").set_index("loader")
    assert table.loc["overlap", "predicted_images_per_s"] == pytest.approx(1000)
    assert table.loc["dataloader_sync", "predicted_images_per_s_low"] == pytest.approx(1000 / 3)
    publish.tabulate(paths, folder / "cells.csv", folder / "batches.csv")
    assert "predicted_images_per_s" not in pd.read_csv(folder / "cells.csv")


@pytest.mark.parametrize(("verdict", "told"), [("below", 0), ("machine too busy", 1), ("disturbed", 1)])
def test_advice_of_a_busy_machine_says_so(results, verdict, told):
    folder, _ = results
    of = records.cell("dataloader_sync", "own").id
    rows = {"cell_id": [of], "experiment": ["own"], "images_per_s": [300.0], "against_ceiling": [verdict]}
    said = advice.said([folder / "advice/own.json"], "own", pd.DataFrame(rows))
    assert sum("too busy to be sure" in line for line in said) == told

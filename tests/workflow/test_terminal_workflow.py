"""What a user sees of a run: few lines, with the rates and every error among them."""

import re
from pathlib import Path

import pytest
from workflow_fixtures import SHORT

pytestmark = pytest.mark.slow
MOST = 40  # lines


def test_a_run_prints_few_lines_and_shows_what_failed(measured):
    flow = measured(SHORT)
    script = flow.folder / "workflow/scripts/plot.py"
    script.write_text("raise RuntimeError('planted')\n")
    said = flow.run("--forcerun", "measure_cell", ok=False, own=False)
    assert len(said.splitlines()) <= MOST, said
    assert "Expected minutes of 2 cells" in said
    rates = re.findall(r"^\[([12])/2\]  (dataloader_sync|resident) +[\d,]+ images/s", said, re.MULTILINE)
    assert [number for number, _ in rates] == ["1", "2"]
    assert {loader for _, loader in rates} == {"dataloader_sync", "resident"}
    assert "RuntimeError: planted" in said
    assert "plot failed: tiny\n" in said
    assert re.search(r"^1  (dataloader_sync|resident) +[\d,.]+ ", said, re.MULTILINE)  # the leaderboard
    (log,) = re.findall("^Snakemake's log: (.+)$", said, re.MULTILINE)
    assert "rule measure_cell:" in Path(log).read_text()
    for noise in ("Job stats", "Select jobs", "rule measure_cell", "reason:", "CalledProcessError"):
        assert noise not in said


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (("tny",), "write 'tiny' instead"),
        (("results/reprot.html",), "write results/report.html"),
        (("--configfile", "test.yaml", "tiny"), "snakemake tiny --configfile test.yaml"),
    ],
)
def test_a_target_that_cannot_be_is_answered(workflow, words, remedy):
    said = workflow(SHORT).run(*words, ok=False, own=False)
    assert said.splitlines()[-1] == f"what to do: {remedy}"
    assert len(said.splitlines()) <= 5
    assert "Traceback" not in said

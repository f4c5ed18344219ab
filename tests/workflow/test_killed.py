"""Jobs whose Snakemake was killed: they end with it, and the same command makes what is missing."""

import time

import psutil
import pytest
from process_fixtures import wait_until, words
from workflow_fixtures import SHORT


@pytest.mark.slow
def test_a_job_that_has_just_begun_ends_with_the_snakemake_that_started_it(prepared):
    """It has not imported yet what it measures with, and would then measure beside the next run."""
    flow = prepared({**SHORT, "least_s": 10})
    process = flow.start()

    def jobs():
        found = psutil.Process(process.pid).children(recursive=True)
        return [job for job in found if any("measure_cell" in part for part in words(job))]

    wait_until(jobs)
    time.sleep(0.5)
    running = jobs()
    process.kill()  # snakemake alone: its jobs are other processes
    process.wait()
    gone, alive = psutil.wait_procs(running, timeout=8)
    assert gone
    assert not alive
    assert not flow.files("results/records/**/*.json")


@pytest.mark.slow
def test_killed_in_mid_report(measured):
    flow = measured(SHORT)
    log = flow.folder / "results/logs/assemble_report/report.log"
    log.unlink()
    (flow.folder / "results/report.html").unlink()
    flow.kill(flow.start(), log.exists)
    before = flow.files("results/records/**/*.json")
    assert set(before) == flow.planned_records()
    flow.run()
    assert flow.files("results/records/**/*.json") == before
    assert "</html>" in (flow.folder / "results/report.html").read_text()

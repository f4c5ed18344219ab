"""The minutes that a run is expected to take, as the dry run tells them."""

import re

import pytest
import yaml
from data_fixtures import REPOSITORY
from workflow_fixtures import SHORT

from gpufeed.workflow.estimate import shows_gpu


@pytest.mark.slow
def test_the_dry_run_of_published_experiments_tells_their_minutes(workflow):
    config = yaml.safe_load((REPOSITORY / "config/reference.yaml").read_text())
    flow = workflow({"least_s": 3, **config, "run": ["gpu_decoding", "tensor_cache"]})
    (flow.folder / "results").mkdir()
    (flow.folder / "results/reference").symlink_to(REPOSITORY / "results/reference")
    said = flow.run("-n")  # what was published tells how long a measurement takes
    rows = dict(re.findall(r"^  (\w+) +([\d.]+)  ", said, re.MULTILINE))
    parts = {part: float(minutes) for part, minutes in rows.items()}
    whole = parts.pop("together")
    assert set(parts) == {"gpu_decoding", "tensor_cache", "data"}
    assert whole == pytest.approx(sum(parts.values()), abs=0.3)
    assert 20 < whole <= 27
    told = re.search(r"No NVIDIA GPU on this node: .* of \d+ cells: .*CUDA graphs need device cuda", said)
    assert bool(told) is not shows_gpu()
    assert "No NVIDIA GPU on this node" not in flow.run("-n", "--profile", "slurm")  # its jobs run elsewhere


@pytest.mark.slow
def test_a_short_disk_ends_the_run_before_its_first_job_and_lets_a_report_be_written(workflow):
    size = {"count": 10_000_000, "size": 2048, "classes": 3}
    flow = workflow({**SHORT, "sources": {"synthetic": {"options": size}}})
    said = flow.run("-n", ok=False)
    needed, free = re.search(
        r"found: ([\d.]+) GiB or more to write in data.*, ([\d.]+) GiB free", said
    ).groups()
    assert float(needed) > 2 * 3 * 10**7 * 2048**2 / 2**30 > float(free)  # two caches
    assert "what to do: name folders on a larger disk" in said
    assert not (flow.folder / "data/synthetic").exists()
    assert "rule report" in flow.run("-n", "report")
    other = flow.run("-n", "data/synthetic_224/manifest.parquet")  # which has room
    assert re.search(r"disk: [\d.]+ GiB or more to write in data", other)

"""Cells on a node with GPUs, planted in NVML's place: each has its own, whatever Snakemake reserves."""

import os
import re
from datetime import datetime
from pathlib import Path

import pynvml
import pytest
from lease_fixtures import uuid
from workflow_fixtures import with_blocks

from gpufeed.core.record import Record

BLOCKS = {
    "one": {"loader": ["dataloader_sync", "resident"], "augment": "torch"},
    "two": {"loader": "resident", "augment": "torch", "trainer": "lightning", "devices": 2},
}
CONFIG = with_blocks(BLOCKS) | {"device": "auto"}

# what stands before the real module: as many GPUs as the variable says, all whole and idle
NVML = """
import os
exec(compile(open({real!r}).read(), {real!r}, "exec"), globals())
_uuids = os.environ["PLANTED"].split(",")
import torch
torch.version.cuda = None  # built for CPUs, so that cells with device auto are measured there
nvmlInit = nvmlShutdown = lambda: None
nvmlSystemGetDriverVersion = lambda: "580.1"
nvmlDeviceGetCount = lambda: len(_uuids)
nvmlDeviceGetHandleByIndex = lambda number: number + 1
nvmlDeviceGetUUID = lambda handle: _uuids[handle - 1]
nvmlDeviceGetName = lambda handle: "NVIDIA H200"
nvmlDeviceGetMigMode = lambda handle: [0, 0]
nvmlDeviceGetComputeRunningProcesses = lambda handle: []
nvmlDeviceGetCpuAffinity = lambda handle, words: [0] * words
"""


@pytest.fixture
def gpus(tmp_path, monkeypatch):
    """Plants so many."""
    (tmp_path / "nvml").mkdir()
    (tmp_path / "nvml/pynvml.py").write_text(NVML.format(real=str(Path(pynvml.__file__))))
    before = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(tmp_path / "nvml"), before])))
    monkeypatch.setenv("GPUFEED_LEASES", str(tmp_path / "leases"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return lambda count: monkeypatch.setenv("PLANTED", ",".join(map(uuid, range(count))))


WHAT = (r"threads: (\d+)", r"shares=(\d+)", r"\bgpu=(\d+)")


def reserved(said: str, rule: str) -> set[tuple[str, ...]]:
    """(threads, shares, GPUs) of the jobs of a rule in a dry run."""
    jobs = re.findall(rf"^rule {rule}:\n(.*?)\n(?:\[|\n)", said, re.MULTILINE | re.DOTALL)
    assert jobs, said
    return {tuple((re.findall(pattern, job) or ["1"])[0] for pattern in WHAT) for job in jobs}


@pytest.mark.slow
def test_the_cores_are_shared_by_the_cells_that_run_at_once(workflow):
    flow = workflow(CONFIG)
    said = flow.run("-n", "--cores", "9", "--resources", "gpu=4")
    assert reserved(said, "measure_cell") == {("2", "4", "1"), ("4", "4", "2")}
    assert reserved(said, "gate") == {("3", "4", "1")}
    alone = flow.run("-n", "--cores", "9", "--resources", "gpu=1")
    assert reserved(alone, "measure_cell") == {("9", "1", "1")}  # as many GPUs as the run has


def lease_of(flow, path: str, record: Record) -> tuple[datetime, datetime, str]:
    """When a repeat took its GPU, by its log, when it ended, and the GPU's UUID."""
    log = (flow.folder / path.replace("/records/", "/logs/measure_cell/")).with_suffix(".log").read_text()
    at, taken = re.search(r"^(\S+ \S+) INFO took NVIDIA H200 (\S+) after", log, re.MULTILINE).groups()
    begun = datetime.strptime(at, "%Y-%m-%d %H:%M:%S,%f").astimezone()
    return begun, datetime.fromisoformat(record.finished_at), taken


@pytest.mark.slow
def test_cells_on_one_gpu_take_turns_where_nothing_says_that_there_is_one(prepared, gpus):
    """Two run at once for all that Snakemake knows. One that wants two GPUs is told so."""
    gpus(1)
    flow = prepared(CONFIG | {"cores_per_cell": 1})
    flow.run("--cores", "3", "--until", "measure_cell")
    spans, refused = [], []
    for path in flow.planned_records():
        record = Record.read(flow.folder / path)
        if record.cell["devices"] == 2:
            refused.append(record)
            continue
        assert record.status == "done"
        *span, taken = lease_of(flow, path, record)
        assert taken == uuid(0)
        spans.append(span)
    (first, second), (record,) = sorted(spans), refused
    assert first[1] <= second[0]
    assert record.status == "skipped"
    assert record.sentence == "The job asks for 2 GPUs, and this node has 1 whole GPU."


@pytest.mark.slow
def test_cells_on_two_gpus_run_at_once_each_on_its_own(prepared, gpus):
    gpus(2)
    ceilings = {"loader": "replay", "augment": "torch", "batch_size": [8, 16]}  # which wait for no verdict
    long_enough_to_meet = {"device": "auto", "cores_per_cell": 1, "least_s": 5}
    flow = prepared(with_blocks({"ceilings": ceilings}) | long_enough_to_meet)
    flow.run("--cores", "3", "--resources", "gpu=2", "--until", "measure_cell")
    leases = []
    for path in flow.planned_records():
        record = Record.read(flow.folder / path)
        assert record.status == "done"
        leases.append(lease_of(flow, path, record))
    (_, first_ends, one), (second_begins, _, other) = sorted(leases)
    assert second_begins < first_ends
    assert {one, other} == {uuid(0), uuid(1)}

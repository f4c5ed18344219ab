"""GPUs that jobs take for themselves, on the node's own: what CUDA then sees, and who waits."""

import json
import os
import re
import subprocess
import sys

import pytest
import torch
from data_fixtures import REPOSITORY
from process_fixtures import wait_until

from gpufeed.system.devices import uuids_seen
from gpufeed.system.gpu_locks import file_locks, gpu_listing
from gpufeed.system.gpu_locks.gpu_listing import visible

SEEN = """
import torch
from gpufeed.system.devices import resolve_device, uuids_seen
device = resolve_device("cuda")
{first}
found = {{"device": str(device), "seen": uuids_seen(), "sum": torch.ones(8, device=device).sum().item()}}
print(json.dumps(found), flush=True)
"""

# What the tests' own process sees: a GPU that others use, or that a mask hides, is not for these tests.
ALLOWED = visible(os.environ.get("CUDA_VISIBLE_DEVICES"), gpu_listing.on_node())
FREE = [gpu for gpu in ALLOWED if not gpu.part]
TWO = pytest.mark.skipif(len(FREE) < 2, reason=f"needs 2 whole GPUs, and this process may take {len(FREE)}")
ONE = pytest.mark.skipif(not FREE, reason="needs a whole GPU, and this process may take none")


def mask(count: int) -> str:
    return ",".join(gpu.uuid for gpu in FREE[:count])


def asked(job) -> dict:
    """What SEEN tells."""
    line = job.process.stdout.readline()
    assert line, job.log()
    return json.loads(line)


def bare(uuid: str) -> str:
    return uuid.removeprefix("GPU-")


def test_nvml_and_cuda_know_the_same_gpus():
    kinds = {uuid: torch.cuda.get_device_name(index) for index, uuid in enumerate(uuids_seen())}
    assert [kinds[bare(gpu.uuid)] for gpu in FREE] == [gpu.kind for gpu in FREE]
    assert all(gpu.memory > 2**30 for gpu in FREE)


@ONE
def test_a_job_sees_the_gpu_that_it_has_taken_and_no_other(taker):
    """It takes one on which nobody computes, if there is one."""
    job = taker(None, mask=mask(2), then=SEEN.format(first=""))
    found, (taken,) = asked(job), job.mask()
    assert taken in mask(2).split(",")
    assert found == {"device": "cuda:0", "seen": [bare(taken)], "sum": 8}


@ONE
def test_numbers_choose_as_in_cuda_where_all_are_of_one_kind(taker):
    if len({gpu.kind for gpu in gpu_listing.on_node()}) > 1:
        pytest.skip("CUDA counts the GPUs of several kinds in an order of its own")
    last = torch.cuda.device_count() - 1
    if os.environ.get("CUDA_VISIBLE_DEVICES"):
        pytest.skip("this process has a mask of its own, which renumbers the GPUs that torch sees")
    expected = f"GPU-{torch.cuda.get_device_properties(last).uuid}"
    assert taker(None, mask=str(last)).mask() == [expected]


@ONE
def test_what_asked_cuda_before_is_found_out(taker):
    code = """
import os, sys, torch
from gpufeed.system import gpu_locks
torch.ones(1, device="cuda")
try:
    gpu_locks.take()
except RuntimeError as error:
    print(error)
"""
    path = os.pathsep.join([str(REPOSITORY), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path}
    )
    assert "before the GPU was taken" in done.stdout, done.stderr


@ONE
def test_more_than_there_are_is_refused_without_a_context(taker):
    count = len(gpu_listing.on_node()) + 1
    then = """
import torch
from gpufeed.system.devices import resolve_device
from gpufeed.core.errors import Skip
try:
    resolve_device("auto")
except Skip as skip:
    print(json.dumps({"skip": str(skip), "begun": torch.cuda.is_initialized()}), flush=True)
"""
    found = asked(taker(None, count=count, then=then))
    assert re.match(rf"The job asks for {count} GPUs, and this node has \d+ whole GPUs?", found["skip"])
    assert not found["begun"]


@TWO
def test_two_jobs_have_two_gpus_a_third_waits_and_a_killed_one_frees_its_own(taker):
    then = SEEN.format(first="torch.ones(2**20, device=device)")
    both = [taker(None, mask=mask(2), then=then) for _ in range(2)]
    seen = [asked(job)["seen"] for job in both]
    assert sorted([*seen[0], *seen[1]]) == sorted(bare(gpu.uuid) for gpu in FREE[:2])
    third = taker(None, mask=mask(2), then=then)
    wait_until(lambda: "waiting for 1 of 2 GPUs" in third.log())
    for job in both:
        assert f"is held by process {job.process.pid} (" in third.log()
    both[1].kill()
    assert asked(third)["seen"] == seen[1]
    assert file_locks.holder(f"GPU-{seen[0][0]}.lock")["pid"] == both[0].process.pid


@TWO
def test_a_job_with_two_sees_both_in_the_order_of_the_mask(taker):
    backwards = ",".join(gpu.uuid for gpu in reversed(FREE[:2]))
    job = taker(None, count=2, mask=backwards, then=SEEN.format(first=""))
    assert asked(job)["seen"] == [bare(gpu.uuid) for gpu in reversed(FREE[:2])]


@TWO
def test_a_gpu_on_which_others_compute_comes_last(taker):
    """The tests' own process has a context on its first GPU, as a training outside of the workflow would."""
    torch.ones(1, device="cuda:0")
    first = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
    busy = {gpu.uuid for gpu in gpu_listing.on_node() if gpu.busy}
    if first not in busy:
        pytest.skip("NVML does not tell who computes on this node's GPUs, as in some containers")
    idle = [gpu.uuid for gpu in FREE[:2] if gpu.uuid not in busy]
    if not idle:
        pytest.skip("other processes compute on both GPUs")
    assert taker(None, mask=mask(2)).mask() == idle[:1]

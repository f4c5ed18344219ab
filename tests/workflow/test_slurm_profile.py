"""What the workflow asks a cluster for, from commands of Slurm that write down how they are called."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest
import yaml
from data_fixtures import REPOSITORY
from process_fixtures import wait_until
from workflow_fixtures import with_blocks

COMMANDS = ("sbatch", "sacct", "sacctmgr", "scancel", "scontrol", "sinfo", "squeue", "srun")
WORKERS = 12


@pytest.fixture
def submitted(tmp_path, monkeypatch):
    """Runs snakemake in a folder until a job of each rule has been submitted; their sbatch commands."""
    calls, bin = tmp_path / "calls", tmp_path / "bin"
    bin.mkdir()
    for name in COMMANDS:
        command = bin / name
        command.write_text(f'#!/bin/sh\necho "{name} $GPUFEED_PLANNED_ON $*" >> {calls}\necho 4242\n')
        command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin}:{os.environ['PATH']}")

    def submitted(folder, rules, *arguments):
        calls.write_text("")
        command = [sys.executable, "-m", "snakemake", "--nolock", "--configfile", "test.yaml", *arguments]
        with (folder / "output.txt").open("w") as output:
            process = subprocess.Popen(
                command, cwd=folder, stdout=output, stderr=output, start_new_session=True
            )

        def found():
            lines = [line for line in calls.read_text().splitlines() if line.startswith("sbatch")]
            return {rule: line for rule in rules for line in lines if f"rule_{rule}" in line}

        def there():
            assert process.poll() is None, (folder / "output.txt").read_text()[-4000:]
            return len(found()) == len(rules)

        try:
            wait_until(there, 120)
            time.sleep(0.1)  # until the line is whole
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return [found()[rule] for rule in rules]

    return submitted


def asked(call: str, option: str) -> int:
    return int(re.search(rf"{option}[= ](\d+)", call)[1])


@pytest.mark.slow
def test_a_job_has_the_configs_cores_and_at_least_its_workers(prepared, submitted):
    block = {"loader": "dataloader_workers", "workers": WORKERS}
    flow = prepared(with_blocks({"a": block}, kernels={}))
    profile = ("--profile", "slurm", "--", "tiny")
    kernel, gate = submitted(flow.folder, ["measure_kernel", "gate"], *profile)
    assert asked(kernel, "--cpus-per-task") == 8  # whatever the cores of this node
    assert asked(kernel, "--mem") == 16000
    assert kernel.split()[1] == os.uname().nodename  # which its records will call their planner
    assert asked(gate, "--cpus-per-task") == WORKERS
    assert asked(gate, "--mem") == 32000

    bare = ("--workflow-profile", "none", "--executor", "slurm", "--jobs", "5", "--", "tiny")
    (kernel,) = submitted(flow.folder, ["measure_kernel"], *bare)
    assert asked(kernel, "--cpus-per-task") == 8


def test_the_profile_knows_every_rule_that_reads_images_or_measures():
    profile = yaml.safe_load((REPOSITORY / "slurm/config.yaml").read_text())
    text = "\n".join(path.read_text() for path in (REPOSITORY / "rules").glob("*.smk"))
    rules = re.findall(r"^rule (\w+):\n(.*?)(?=^rule |\Z)", text, re.MULTILINE | re.DOTALL)
    heavy = {name for name, body in rules if "threads:" in body}
    assert heavy == set(profile["set-resources"])

"""A copy of the workflow in a folder of its own, so that tests neither see nor touch the user's results."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("Snakefile", "rules", "workflow", "gpufeed", "config", "profiles", "slurm", "envs", "containers")
SHARED = ROOT.parent / "shared" / "data"

TINY = {
    "run": ["tiny"],
    "device": "cpu",
    "repeats": 2,
    "sources": {"synthetic": {"options": {"count": 60, "size": 16, "classes": 3}}},
    "experiments": {
        "tiny": {
            "title": "Tiny",
            "question": "Does it run?",
            "common": {"dataset": "synthetic", "model": "simple_cnn", "batch_size": 8},
            "blocks": {"loaders": {"loader": ["dataloader_sync", "resident"], "augment": "torch"}},
        }
    },
}


class Workflow:
    """Runs Snakemake in `folder` with a config merged over config/config.yaml."""

    def __init__(self, folder: Path, config: dict):
        self.folder = folder
        for part in PARTS:
            source = ROOT / part
            if source.is_dir():
                shutil.copytree(source, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy2(source, folder / part)
        self.configure(config)

    def configure(self, config: dict) -> None:
        (self.folder / "test.yaml").write_text(yaml.safe_dump(config))

    def command(self, *args: str) -> list[str]:
        return [sys.executable, "-m", "snakemake", "--cores", "2", "--configfile", "test.yaml", *args]

    def start(self, *args: str) -> subprocess.Popen:
        """Starts Snakemake in a process group of its own; its output goes to `output.txt`."""
        with (self.folder / "output.txt").open("w") as output:
            return subprocess.Popen(
                self.command(*args), cwd=self.folder, stdout=output, stderr=output, start_new_session=True
            )

    def run(self, *args: str, ok: bool = True) -> str:
        """Runs Snakemake to its end and returns what it said; asserts that it succeeded (or failed)."""
        result = subprocess.run(
            self.command(*args), cwd=self.folder, capture_output=True, text=True, timeout=280
        )
        said = result.stdout + result.stderr
        assert (result.returncode == 0) == ok, said[-6000:]
        return said

    def kill(self, process: subprocess.Popen, when, seconds: float = 90) -> None:
        """SIGKILL to Snakemake and all its jobs as soon as `when()` holds."""
        deadline = time.monotonic() + seconds
        while not when():
            assert process.poll() is None, (self.folder / "output.txt").read_text()[-6000:]
            assert time.monotonic() < deadline, "the moment to kill never came"
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def files(self, pattern: str) -> dict[str, bytes]:
        """Contents of the files below the folder that match, by relative path."""
        return {str(p.relative_to(self.folder)): p.read_bytes() for p in sorted(self.folder.glob(pattern))}


@pytest.fixture
def workflow(tmp_path):
    """Makes a Workflow from a config (default: two loaders, two repeats, sixty images)."""
    return lambda config=TINY: Workflow(tmp_path / "checkout", config)


@pytest.fixture
def shared_data():
    """The folder of real images; skips where it is missing, as on a user's machine."""
    if not SHARED.exists():
        pytest.skip(f"no real images at {SHARED.relative_to(ROOT.parent)} beside the checkout")
    return SHARED


def pytest_collection_modifyitems(items):
    for item in items:
        if "tests/workflow" in str(item.path):
            item.add_marker(pytest.mark.workflow)

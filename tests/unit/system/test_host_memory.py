"""The memory that a job may still take, read from cgroup trees of both versions."""

import psutil
import pytest
import torch

from gpufeed.loaders.resident import free_bytes
from gpufeed.system import host_memory
from gpufeed.system.host_memory import cgroup_room, free_host_bytes

GIB = 2**30
V1_NO_LIMIT = 9223372036854771712  # as Linux writes it


def room(tmp_path, lines: str, files: dict[str, object]) -> int | None:
    """What a process with these lines in /proc/self/cgroup may take in a cgroup tree of these files."""
    (tmp_path / "cgroup").write_text(lines)
    for name, text in files.items():
        (tmp_path / "root" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / name).write_text(f"{text}\n")
    return cgroup_room(tmp_path / "cgroup", tmp_path / "root")


def v2(folder: str, most: object, taken: int, files: int = 0) -> dict[str, object]:
    stat = f"anon {taken - files}\nfile {files}\nactive_file {files // 4}\ninactive_file {files - files // 4}"
    return {f"{folder}/memory.max": most, f"{folder}/memory.current": taken, f"{folder}/memory.stat": stat}


def v1(folder: str, most: int, taken: int, files: int = 0) -> dict[str, object]:
    """The counters of the folder alone are 0, those of its tree are not."""
    stat = f"active_file 0\ninactive_file 0\ntotal_active_file {files}\ntotal_inactive_file 0"
    return {
        f"memory/{folder}/memory.limit_in_bytes": most,
        f"memory/{folder}/memory.usage_in_bytes": taken,
        f"memory/{folder}/memory.stat": stat,
    }


def test_without_cgroups_or_limits(tmp_path):
    assert cgroup_room(tmp_path / "missing", tmp_path) is None
    assert room(tmp_path, "0::/\n", {}) is None
    assert room(tmp_path, "0::/a\n", v2("a", "max", 3 * GIB)) is None


def test_limit_minus_use_with_the_page_cache_given_back(tmp_path):
    files = v2("job/step", 32 * GIB, 10 * GIB, files=4 * GIB)
    assert room(tmp_path, "0::/job/step\n", files) == 26 * GIB


def test_the_nearest_limit_of_all_parents_counts(tmp_path):
    files = {**v2("job", 8 * GIB, 7 * GIB), **v2("job/step", 32 * GIB, 2 * GIB)}
    assert room(tmp_path, "0::/job/step\n", files) == GIB


def test_over_the_limit_is_no_room(tmp_path):
    assert room(tmp_path, "0::/a\n", v2("a", GIB, 2 * GIB)) == 0


def test_version_1(tmp_path):
    lines = "5:cpu,cpuacct:/other\n4:memory:/slurm/job\n0::/\n"
    files = {
        **v1("slurm/job", 32 * GIB, 12 * GIB, files=2 * GIB),
        **v1("slurm", V1_NO_LIMIT, 500 * GIB),
        **v1("../memory/other", GIB, GIB),
    }
    assert room(tmp_path, lines, files) == 22 * GIB


def test_a_path_from_outside_the_container_falls_back_to_its_root(tmp_path):
    files = {"memory.max": 5 * GIB, "memory.current": GIB, "memory.stat": "anon 1"}
    assert room(tmp_path, "0::/not/mounted\n", files) == 4 * GIB


@pytest.mark.parametrize("text", ["", "all", "12 13"])
def test_what_is_no_number_is_no_limit(tmp_path, text):
    assert room(tmp_path, "0::/a\n", {"a/memory.max": text, "a/memory.current": 3}) is None


@pytest.mark.parametrize("limited", [None, 1000, 2**60])
def test_free_is_what_machine_and_job_both_have(monkeypatch, limited):
    monkeypatch.setattr(host_memory, "cgroup_room", lambda: limited)
    free, machine = free_host_bytes(), psutil.virtual_memory().available
    if limited == 1000:
        assert free == free_bytes(torch.device("cpu")) == 1000
    else:
        assert abs(free - machine) < machine / 4  # others use memory meanwhile

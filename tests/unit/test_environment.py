import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from jsonschema import Draft202012Validator

from gpufeed import environment as env
from gpufeed import gpu, node
from gpufeed.document import SCHEMAS
from gpufeed.registry import DECODERS, load

CPU = torch.device("cpu")


def test_environment_is_what_the_schema_says():
    schema = yaml.safe_load((SCHEMAS / "record.schema.yaml").read_text())["properties"]["environment"]
    found = env.environment(CPU)
    Draft202012Validator(schema).validate(found)
    assert found["gpu"] is None
    assert found["versions"]["torch"].startswith(torch.__version__.split("+")[0])


@pytest.mark.parametrize("name", DECODERS)
def test_versions_name_every_package_that_decodes(name):
    try:
        needs = load("decoder", name).needs
    except ModuleNotFoundError as error:
        pytest.skip(f"{error.name} is not installed")
    for packages in needs.values():  # such as "nvidia-dali-cuda120 or nvidia-dali-cuda130"
        assert set(packages.split(" or ")) <= set(env.PACKAGES)


@pytest.mark.parametrize(("cuda", "expected"), [("12.8", "cuda12"), ("13.0", "cuda13"), (None, "cpu")])
def test_stack_is_what_torch_was_built_for(cuda, expected):
    assert env.stack(cuda) == expected


def test_gpu_is_described_by_torch_where_nvml_says_nothing(monkeypatch):
    class Properties:
        name, total_memory, major, minor, multi_processor_count = "Some GPU", 2**34, 9, 0, 132

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties)
    found = env.gpu_description(torch.device("cuda", 0), gpu.NOTHING)
    schema = yaml.safe_load((SCHEMAS / "record.schema.yaml").read_text())["properties"]["environment"][
        "properties"
    ]["gpu"]
    Draft202012Validator(schema).validate(found)
    assert (found["compute_capability"], found["memory_gib"], found["uuid"]) == ("9.0", 16.0, None)


# what nvJPEG answers: status of its backend for engines, status of the question, engines, cores of each
@pytest.mark.parametrize(
    ("answers", "engines"),
    [
        ((0, 0, 1, 7), 7),
        ((0, 0, 0, 0), 0),  # "0 indicates that hardware decoder is not available"
        ((7, 0, 1, 7), 0),  # ARCH_MISMATCH
        ((9, 0, 1, 7), 0),  # IMPLEMENTATION_NOT_SUPPORTED
        ((6, 0, 1, 7), None),  # EXECUTION_FAILED: as without a driver
        ((0, 8, 1, 7), None),  # INTERNAL_ERROR
    ],
)
def test_jpeg_engines_are_those_that_nvjpeg_counts(tmp_path, answers, engines):
    created, status, found, cores = answers
    (tmp_path / "nvjpeg.c").write_text(
        f"""
        int nvjpegCreateEx(int backend, void* a, void* b, unsigned flags, void** handle) {{
            *handle = &nvjpegCreateEx;
            return backend == 3 ? {created} : 2;
        }}
        int nvjpegGetHardwareDecoderInfo(void* handle, unsigned* engines, unsigned* cores) {{
            *engines = {found}; *cores = {cores};
            return handle == &nvjpegCreateEx ? {status} : 2;
        }}
        int nvjpegDestroy(void* handle) {{ return 0; }}
        """
    )
    library = tmp_path / "nvjpeg.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "nvjpeg.c"], check=True)
    assert gpu.engines_by(str(library)) == engines


def test_nvjpeg_is_found_where_dali_brings_it():
    pytest.importorskip("nvidia.dali")
    first = next(gpu.nvjpeg_libraries())
    assert Path(first).is_absolute()
    if not torch.cuda.is_available():
        assert gpu.engines_by(first) is None  # it is loaded and asked, and cannot tell without a driver


def test_the_filesystem_is_that_of_the_nearest_mount_and_of_the_last_one_there(monkeypatch, tmp_path):
    mounts = [
        ("/", "ext4"),
        (str(tmp_path), "autofs"),
        (str(tmp_path), "nfs4"),
        (f"{tmp_path}-other", "tmpfs"),
    ]
    found = [SimpleNamespace(mountpoint=place, fstype=kind) for place, kind in mounts]
    monkeypatch.setattr(env.psutil, "disk_partitions", lambda all: found if all else [])
    assert env.filesystem(tmp_path / "data" / "file") == "nfs4"
    (tmp_path / "away").symlink_to("/")
    assert env.filesystem(tmp_path / "away") == "ext4"
    monkeypatch.setattr(env.psutil, "disk_partitions", lambda all: [])
    assert env.filesystem(tmp_path) is None


def test_cpu_model_is_read_or_guessed(tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: Some CPU @ 3 GHz\n")
    assert env.cpu_model(cpuinfo) == "Some CPU @ 3 GHz"
    assert env.cpu_model(tmp_path / "missing")


def cgroup(tmp_path, lines, files):
    """A cgroup tree with these files, seen by a process whose /proc/self/cgroup has these lines."""
    (tmp_path / "cgroup").write_text(lines)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return env.cgroup_quota(tmp_path / "cgroup", tmp_path / "root")


def test_no_quota_without_cgroups(tmp_path):
    assert env.cgroup_quota(tmp_path / "missing", tmp_path) is None
    assert cgroup(tmp_path, "0::/\n", {"root/cpu.max": "max 100000\n"}) is None


def test_the_tightest_quota_of_version_2_counts(tmp_path):
    files = {"root/a/cpu.max": "250000 100000\n", "root/a/b/cpu.max": "800000 100000\n"}
    assert cgroup(tmp_path, "0::/a/b\n", files) == 2.5


def test_a_path_from_outside_the_container_falls_back_to_its_root(tmp_path):
    assert cgroup(tmp_path, "0::/not/mounted\n", {"root/cpu.max": "300000 100000\n"}) == 3.0


def test_quota_of_version_1(tmp_path):
    files = {
        "root/cpu/job/cpu.cfs_quota_us": "150000\n",
        "root/cpu/job/cpu.cfs_period_us": "100000\n",
        "root/cpu/cpu.cfs_quota_us": "-1\n",
        "root/cpu/cpu.cfs_period_us": "100000\n",
    }
    assert cgroup(tmp_path, "5:memory:/job\n4:cpu,cpuacct:/job\n", files) == 1.5


@pytest.mark.parametrize(("quota", "cores"), [(None, 3), (2.9, 2), (0.5, 1), (64.0, 3)])
def test_cores_are_affinity_cut_by_quota(monkeypatch, quota, cores):
    monkeypatch.setattr(env.os, "sched_getaffinity", lambda pid: {0, 1, 2}, raising=False)
    monkeypatch.setattr(env, "cgroup_quota", lambda: quota)
    assert env.cores_allowed() == cores


def test_checkout_tells_commit_and_changes(tmp_path, monkeypatch):
    monkeypatch.delenv("GPUFEED_COMMIT", raising=False)
    assert env.checkout(tmp_path) == (None, None)

    def git(*arguments):
        command = ["git", "-c", "user.name=t", "-c", "user.email=t@localhost", "-C", str(tmp_path)]
        return subprocess.run([*command, *arguments], check=True, capture_output=True, text=True).stdout

    git("init", "-q")
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-q", "-m", "first")
    assert env.checkout(tmp_path) == (git("rev-parse", "HEAD").strip(), False)
    (tmp_path / "a").write_text("2")
    assert env.checkout(tmp_path)[1] is True


def test_a_copy_without_git_may_be_told_its_commit(tmp_path, monkeypatch):
    monkeypatch.setenv("GPUFEED_COMMIT", "abc123")
    assert env.checkout(tmp_path) == ("abc123", None)


def test_checkout_without_git(tmp_path, monkeypatch):
    (tmp_path / ".git").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert env.checkout(tmp_path) == (None, None)


@pytest.fixture
def no_planner(monkeypatch):
    monkeypatch.setenv(node.VARIABLE, "")  # so that it is put back
    monkeypatch.delenv(node.VARIABLE)
    monkeypatch.setattr(node.platform, "node", lambda: "compute7")


def test_two_allocations_from_one_login_node_are_two_nodes(no_planner, monkeypatch):
    monkeypatch.setenv("SLURM_SUBMIT_HOST", "login1")
    node.announce(planning=True)
    assert node.node_name() == "compute7"


def test_a_job_bears_the_name_of_its_planner(no_planner, monkeypatch):
    node.announce(planning=True)
    monkeypatch.setattr(node.platform, "node", lambda: "compute8")
    node.announce(planning=False)
    assert node.node_name() == "compute7"
    node.announce(planning=True)
    assert node.node_name() == "compute8"


@pytest.mark.parametrize(("submit_host", "expected"), [("login1", "login1"), (None, "compute7")])
def test_a_job_that_lost_the_name_takes_the_submit_host(no_planner, monkeypatch, submit_host, expected):
    if submit_host:
        monkeypatch.setenv("SLURM_SUBMIT_HOST", submit_host)
    else:
        monkeypatch.delenv("SLURM_SUBMIT_HOST", raising=False)
    node.announce(planning=False)
    assert node.node_name() == expected

import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from data_fixtures import REPOSITORY, files_below
from jsonschema import Draft202012Validator

from gpufeed.cluster.bundle.code import pack
from gpufeed.core import retry_policy
from gpufeed.core.config_schema import SCHEMAS
from gpufeed.core.errors import GpufeedError
from gpufeed.core.packed_results import extract
from gpufeed.core.registry import DECODERS, load
from gpufeed.system import devices
from gpufeed.system import environment as env
from gpufeed.system.commit import FILE

CPU = torch.device("cpu")
SCHEMA = yaml.safe_load((SCHEMAS / "record.schema.yaml").read_text())["properties"]["environment"]


def test_environment_is_what_the_schema_says():
    found = env.environment(CPU)
    Draft202012Validator(SCHEMA).validate(found)
    assert found["gpu"] is None
    assert found["versions"]["torch"].startswith(torch.__version__.split("+")[0])


@pytest.mark.parametrize("name", DECODERS)
def test_versions_name_every_package_that_decodes(name):
    try:
        needs = load("decoder", name).needs
    except ModuleNotFoundError as error:
        pytest.skip(f"{error.name} is not installed")
    for packages in needs.values():  # such as "nvidia-dali-cuda120 or nvidia-dali-cuda130"
        assert {package.split(" of ")[0] for package in packages.split(" or ")} <= set(env.PACKAGES)


@pytest.mark.parametrize(("cuda", "expected"), [("12.8", "cuda12"), ("13.0", "cuda13"), (None, "cpu")])
def test_stack_is_what_torch_was_built_for(cuda, expected):
    assert env.stack(cuda) == expected


def test_gpu_is_described_by_torch_where_nvml_says_nothing(monkeypatch):
    class Properties:
        name, total_memory, major, minor, multi_processor_count = "Some GPU", 2**34, 9, 0, 132

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties)
    found = env.gpu_description(torch.device("cuda", 0), devices.UNKNOWN_STATE)
    Draft202012Validator(SCHEMA["properties"]["gpu"]).validate(found)
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
    assert devices.engines_by(str(library)) == engines


def test_nvjpeg_is_found_where_dali_brings_it():
    pytest.importorskip("nvidia.dali")
    first = next(devices.nvjpeg_libraries())
    assert Path(first).is_absolute()
    if not torch.cuda.is_available():
        assert devices.engines_by(first) is None  # it is loaded and asked, and cannot tell without a driver


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


@pytest.fixture
def repository(tmp_path):
    """A checkout with a commit, some code and a file that is none; and a function that asks git about it."""

    def git(*arguments):
        command = ["git", "-c", "user.name=t", "-c", "user.email=t@localhost", "-C", str(root), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    root = tmp_path / "checkout"
    for name in ("gpufeed/a.py", "gpufeed/native/b.cu", "rules/c.smk", "Snakefile", "notes.md", "gone.txt"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("1\n")
    (root / ".gitignore").write_text(f"/{FILE}\n*.npy\n__pycache__/\n")
    (root / "ignored.npy").write_text("1")
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    return root, git


def carried(root, archive):
    """The folder that the archive of a checkout unpacks to, elsewhere and without .git."""
    pack(root, archive)
    extract(archive, archive.parent / "node")
    return archive.parent / "node/gpufeed"


def test_checkout_tells_commit_and_changes(tmp_path, repository):
    assert env.checkout(tmp_path) == (None, None)
    root, git = repository
    assert env.checkout(root) == (git("rev-parse", "HEAD"), False)
    (root / "notes.md").write_text("2")
    assert env.checkout(root)[1] is True


def test_no_variable_tells_a_commit(tmp_path, monkeypatch):
    monkeypatch.setenv("GPUFEED_COMMIT", "abc123")
    assert env.checkout(tmp_path) == (None, None)


def test_checkout_without_git(tmp_path, monkeypatch):
    (tmp_path / ".git").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert env.checkout(tmp_path) == (None, None)


def test_packed_code_knows_its_commit_and_that_it_is_clean(tmp_path, repository):
    root, git = repository
    copy = carried(root, tmp_path / "code.tar.gz")
    assert env.checkout(copy) == (git("rev-parse", "HEAD"), False)
    tracked = git("ls-files").splitlines()
    assert files_below(copy).keys() == {*tracked, str(FILE)}
    assert env.checkout(root)[1] is False  # the file beside the code is no change of it
    assert not list(tmp_path.glob("*.partial"))


EDITS = [
    *((name, "write") for name in ("gpufeed/a.py", "gpufeed/native/b.cu", "rules/c.smk", "Snakefile")),
    *((name, edit) for name in ("gpufeed/a.py", "Snakefile") for edit in ("remove", "add")),
]


@pytest.mark.parametrize(("name", "edit"), EDITS)
def test_a_copy_that_is_edited_later_counts_as_changed(tmp_path, repository, name, edit):
    root, git = repository
    file = carried(root, tmp_path / "code.tar.gz") / name
    copy = tmp_path / "node/gpufeed"
    if edit == "write":
        file.write_text("2\n")
    elif edit == "remove":
        file.unlink()
        file.parent.mkdir(exist_ok=True)
    else:
        file.with_name("more.py").write_text("1\n")
    whole = name == "Snakefile" and edit != "write"  # without it nothing runs; beside it is no code
    assert env.checkout(copy) == (git("rev-parse", "HEAD"), not whole)


def test_what_is_no_code_changes_nothing_in_a_copy(tmp_path, repository):
    root, git = repository
    copy = carried(root, tmp_path / "code.tar.gz")
    (copy / "notes.md").write_text("2\n")
    (copy / "gpufeed/__pycache__").mkdir()
    (copy / "gpufeed/__pycache__/a.cpython-311.pyc").write_bytes(b"2")
    (copy / "gpufeed/.a.py.swp").write_text("2")
    (copy / "gpufeed/.snakemake.x.a.py").write_text("2")
    assert env.checkout(copy) == (git("rev-parse", "HEAD"), False)


def test_a_changed_checkout_is_packed_as_it_is_and_says_so(tmp_path, repository):
    root, git = repository
    (root / "gpufeed/a.py").write_text("2\n")
    (root / "gpufeed/new.py").write_text("3\n")
    (root / "gone.txt").unlink()
    said = pack(root)
    assert "3 changed files" in said
    assert "gpufeed/a.py" in said
    copy = carried(root, tmp_path / "code.tar.gz")
    assert env.checkout(copy) == (git("rev-parse", "HEAD"), True)
    assert (copy / "gpufeed/new.py").read_text() == "3\n"
    assert not (copy / "gone.txt").exists()
    git("checkout", "-q", "--", ".")
    (root / "gpufeed/new.py").unlink()
    assert env.checkout(root)[1] is False  # git's answer, not that of the file of before


def test_an_old_commit_file_is_no_proof_for_later_code(tmp_path, repository):
    root, git = repository
    pack(root)
    first = git("rev-parse", "HEAD")
    (root / "gpufeed/a.py").write_text("2\n")
    git("commit", "-q", "-a", "-m", "second")
    (root / ".git").rename(tmp_path / "elsewhere")
    assert env.checkout(root) == (first, True)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"commit": "a", "dirty": false, "parts": 3}', "\xff"])
def test_a_damaged_commit_file_tells_nothing(tmp_path, text):
    (tmp_path / FILE).parent.mkdir()
    (tmp_path / FILE).write_bytes(text.encode("latin-1"))
    assert env.checkout(tmp_path) == (None, None)


def test_outside_of_a_checkout_nothing_is_packed(tmp_path):
    with pytest.raises(GpufeedError, match="git"):
        pack(tmp_path, tmp_path / "code.tar.gz")
    assert list(tmp_path.iterdir()) == []


def test_the_command_needs_no_package_and_git_ignores_its_file(tmp_path, repository):
    root, git = repository
    packages = [f"{name}__init__" for name in ("", "core/", "system/", "cluster/", "cluster/bundle/")]
    alone = [f"core/{name}" for name in ("errors", "folders", "packed_results", "repeats")]
    alone += ["core/file_writes", "system/commit", "cluster/bundle/contents", "cluster/bundle/code"]
    for name in (*packages, *alone):
        (root / f"gpufeed/{name}.py").parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / f"gpufeed/{name}.py", root / f"gpufeed/{name}.py")
    code = "import runpy, sys; sys.path.insert(0, '.'); "
    code += "runpy.run_module('gpufeed.cluster.bundle.code', run_name='__main__')"

    def command(*arguments):
        asked = [sys.executable, "-I", "-S", "-c", code, *arguments]
        return subprocess.run(asked, cwd=root, capture_output=True, text=True)

    done = command("../code.tar.gz")
    assert done.returncode == 0, done.stderr
    assert f"with {len(packages) + len(alone)} changed files" in done.stdout
    assert (tmp_path / "code.tar.gz").exists()
    git("add", ".")
    git("commit", "-q", "-m", "second")
    assert command().stdout == f"{FILE}: commit {git('rev-parse', 'HEAD')}, clean\n"
    (root / ".git").rename(tmp_path / "elsewhere")
    done = command()
    assert (done.returncode, "found: no answer from git" in done.stderr) == (1, True)
    assert f"/{FILE}" in (REPOSITORY / ".gitignore").read_text().splitlines()


def host(folder, uuids=(), cards=(), boot="29cd1666"):
    """/proc and /sys of a host. uuids: of its GPUs; cards: address and assign type of its network cards."""
    for number, uuid in enumerate(uuids):
        place = folder / f"proc/driver/nvidia/gpus/0000:0{number}:00.0"
        place.mkdir(parents=True)
        (place / "information").write_text(f"Model: \t NVIDIA H100\nGPU UUID: \t {uuid}\nVideo BIOS: \t 9\n")
    for number, (address, assigned) in enumerate(cards):
        place = folder / f"sys/class/net/eth{number}"
        (place / "device").mkdir(parents=True)
        (place / "address").write_text(f"{address}\n")
        (place / "addr_assign_type").write_text(f"{assigned}\n")
    (folder / "proc/sys/kernel/random").mkdir(parents=True)
    (folder / "proc/sys/kernel/random/boot_id").write_text(f"{boot}\n")
    return env.machine_id(folder / "proc", folder / "sys")


REAL, CLONED, ALSO = ("3c:ec:ef:01:02:03", "0"), ("02:fc:00:00:00:01", "0"), ("3c:ec:ef:01:02:04", "0")
RANDOM = ("3c:ec:ef:01:02:05", "1")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"uuids": ["GPU-1", "GPU-2"]}, {"uuids": ["GPU-2", "GPU-1"], "boot": "b"}, True),  # a reboot
        ({"uuids": ["GPU-1"]}, {"uuids": ["GPU-2"]}, False),  # two clones, all else alike
        ({"uuids": ["GPU-1"], "cards": [REAL]}, {"uuids": ["GPU-1"]}, True),  # in a container
        ({"cards": [REAL, ALSO]}, {"cards": [ALSO, REAL], "boot": "b"}, True),
        ({"cards": [REAL]}, {"cards": [ALSO]}, False),
        ({"cards": [CLONED]}, {"cards": [CLONED], "boot": "b"}, False),  # an address that nobody owns
        ({"cards": [REAL, RANDOM]}, {"cards": [REAL]}, True),
        ({}, {"boot": "b"}, False),
    ],
)
def test_a_machine_id_tells_hosts_apart_and_stays(tmp_path, monkeypatch, one, other, same):
    monkeypatch.setattr(env, "uuids_by_nvml", list)
    first, second = host(tmp_path / "a", **one), host(tmp_path / "b", **other)
    assert re.fullmatch("[0-9a-f]{8}", first)
    assert (first == second) is same


def test_a_gpu_that_the_driver_has_not_asked_yet_is_named_by_nvml(tmp_path, monkeypatch):
    monkeypatch.setattr(env, "uuids_by_nvml", lambda: ["GPU-1"])
    assert host(tmp_path / "a", ["GPU-????????-????"]) == host(tmp_path / "b", ["GPU-1"])


def test_a_system_that_tells_nothing_has_no_machine_id(tmp_path, monkeypatch):
    monkeypatch.setattr(env, "uuids_by_nvml", list)
    assert env.machine_id(tmp_path, tmp_path) is None


@pytest.fixture
def no_planner(monkeypatch):
    monkeypatch.setenv(retry_policy.PLANNED_ON, "")  # so that it is put back
    monkeypatch.delenv(retry_policy.PLANNED_ON)
    monkeypatch.setattr(retry_policy.platform, "node", lambda: "compute7")


def test_two_allocations_from_one_login_node_are_two_nodes(no_planner, monkeypatch):
    monkeypatch.setenv("SLURM_SUBMIT_HOST", "login1")
    retry_policy.announce_planning_node(planning=True)
    assert retry_policy.planning_node() == "compute7"


def test_a_job_bears_the_name_of_its_planner(no_planner, monkeypatch):
    retry_policy.announce_planning_node(planning=True)
    monkeypatch.setattr(retry_policy.platform, "node", lambda: "compute8")
    retry_policy.announce_planning_node(planning=False)
    assert retry_policy.planning_node() == "compute7"
    retry_policy.announce_planning_node(planning=True)
    assert retry_policy.planning_node() == "compute8"


@pytest.mark.parametrize(("submit_host", "expected"), [("login1", "login1"), (None, "compute7")])
def test_a_job_that_lost_the_name_takes_the_submit_host(no_planner, monkeypatch, submit_host, expected):
    if submit_host:
        monkeypatch.setenv("SLURM_SUBMIT_HOST", submit_host)
    else:
        monkeypatch.delenv("SLURM_SUBMIT_HOST", raising=False)
    retry_policy.announce_planning_node(planning=False)
    assert retry_policy.planning_node() == expected

"""What a build of the extension leaves, and when nothing is compiled."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from data_fixtures import REPOSITORY
from ops_fixtures import gpus, program, stack, stack_with_nvcc, written

from gpufeed import native
from gpufeed.core.errors import GpufeedError
from gpufeed.core.retry_policy import attempt
from gpufeed.native import build as building
from gpufeed.native import library, loading


def test_sources_that_do_not_compile_are_an_error_with_the_compilers_words(
    process, node, monkeypatch, tmp_path
):
    monkeypatch.setattr(loading, "INSTALLED", tmp_path / "none.so")
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "torch"))
    program(tmp_path / "python", "echo cpu.cpp:1: error: nothing here; exit 1")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(GpufeedError, match=r"cpu\.cpp:1: error: nothing here"):
        building.build(tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert "an error (status 1) from c++ 12.2.0" in native.load().sentence
    built = building.build_or_say(tmp_path / "out")  # the workflow goes on and says so
    assert built.about.status == "skipped"
    assert "could not be built: found an error (status 1) from c++ 12.2.0" in built.about.sentence
    assert "cpu.cpp:1: error: nothing here" in library.refusal(built.library)


ONLY_CPU = """
case "$3" in *'"cuda": true'*) echo 'host_config.h:7: error: -- unsupported GNU version!'; exit 1;; esac
folder=${3#*'"folder": "'}
echo a library > "${folder%%'"'*}/gpufeed_ops.so"
"""


def test_where_the_cuda_compiler_fails_the_workflow_gets_the_cpus_kernels(
    process, node, monkeypatch, tmp_path
):
    stack_with_nvcc(monkeypatch, node)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "torch"))
    monkeypatch.setattr(sys, "executable", str(program(tmp_path / "python", ONLY_CPU)))
    with pytest.raises(GpufeedError, match="unsupported GNU version"):
        building.build(tmp_path / "out")
    built = building.build_or_say(tmp_path / "out", planned_on="a")
    about = library.about_path(built.library)
    assert (built.about.status, built.about.cuda) == ("partial", None)
    assert (attempt(about, "a", "cpu"), attempt(about, "b", "cpu")) == (1, 2)
    assert native.load(built.library) == native.Status("extension")
    sentence = native.status("cuda").sentence
    for part in ("no CUDA kernels", "release 13.0", "unsupported GNU version!", "CUDA_HOME", "--forcerun"):
        assert part in sentence
    assert "\n" not in sentence
    declined = building.build_or_say(tmp_path / "cpu", cuda=False, planned_on="a")
    assert declined.about.status == "done"
    assert attempt(library.about_path(declined.library), "b", "cpu") == 1  # nothing was lacking


BUILDER = """
import sys, time
from pathlib import Path
from gpufeed.native import build, loading
def compile_slowly(planned, folder, jobs):
    time.sleep(1)
    with open(sys.argv[1], "a") as log:
        log.write("compiled\\n")
    (folder / "compiled.so").write_bytes(b"a library")
    return folder / "compiled.so"
build.run_compilers = compile_slowly
print(loading.built_just_in_time())
"""


@pytest.mark.slow
def test_two_processes_build_once(tmp_path):
    environment = {
        **os.environ,
        "TORCH_EXTENSIONS_DIR": str(tmp_path / "torch"),
        "PYTHONPATH": str(REPOSITORY),
    }
    command = [sys.executable, "-c", BUILDER, str(tmp_path / "log")]
    both = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, cwd=tmp_path)
        for _ in range(2)
    ]
    paths = {process.communicate(timeout=120)[0] for process in both}
    assert [process.returncode for process in both] == [0, 0]
    assert (tmp_path / "log").read_text() == "compiled\n"
    assert len(paths) == 1
    assert library.refusal(Path(paths.pop().strip())) is None


@pytest.fixture
def compiled(monkeypatch):
    """What was compiled; compiling only writes a file."""
    folders = []

    def run_compilers(planned, folder, jobs):
        folders.append(folder)
        (folder / "gpufeed_ops.so").write_bytes(b"compiled here")
        return folder / "gpufeed_ops.so"

    monkeypatch.setattr(building, "run_compilers", run_compilers)
    return folders


def test_a_full_disk_is_no_compilers_fault(node, compiled, monkeypatch, tmp_path):
    stack(monkeypatch, "13.0")
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "torch"))

    def full(*_):
        raise GpufeedError("no room to write", "room", "make some") from OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(building, "keep", full)
    with pytest.raises(GpufeedError, match="no room to write"):
        building.build_or_say(tmp_path / "out", cuda=False)
    assert not (tmp_path / "out").exists()


def test_a_library_that_was_built_before_is_taken_where_it_is_what_a_build_would_give(
    node, compiled, monkeypatch, tmp_path
):
    """As in a container, whose image has it: nothing is compiled, and that folder is only read."""
    stack_with_nvcc(monkeypatch, node)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "torch"))
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "8.0;9.0+PTX")
    about = vars(building.plan().about())
    before = written(tmp_path / "image", b"built before", **about)
    monkeypatch.setenv(building.READY, str(before.parent))
    gpus(monkeypatch, (9, 0))
    built = building.build_or_say(tmp_path / "out", planned_on="a", attempt=2)
    assert built.library.read_bytes() == b"built before"
    assert (built.about.architectures, built.about.attempt) == (("8.0", "9.0+PTX"), 2)
    assert library.refusal(built.library) is None
    assert compiled == []


@pytest.mark.parametrize("change", ["architectures", "cpu alone", "torch", "damaged", "none"])
def test_any_other_library_is_not_taken(node, compiled, monkeypatch, tmp_path, change):
    stack_with_nvcc(monkeypatch, node)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "torch"))
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "8.0")
    about = vars(building.plan().about()) | ({"torch": "2.1.0"} if change == "torch" else {})
    before = written(tmp_path / "image", b"built before", **about)
    monkeypatch.setenv(building.READY, str(tmp_path / "nothing" if change == "none" else before.parent))
    if change == "architectures":
        monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "8.6")
    if change == "damaged":
        before.write_bytes(b"built bef")
    built = building.build(tmp_path / "out", cuda=False if change == "cpu alone" else None)
    assert built.library.read_bytes() == b"compiled here"
    assert len(compiled) == 1

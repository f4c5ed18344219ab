"""Which extension a node builds, which one a process loads, and what is said where there is none."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from data_fixtures import REPOSITORY

from gpufeed import ops
from gpufeed.attempts import attempt
from gpufeed.errors import GpufeedError, Skip
from gpufeed.ops import build as building
from gpufeed.ops import library, loading, sources, toolkit
from gpufeed.ops.library import About, runs_on

LOAD = torch.ops.load_library
CAPABILITIES = {12: "50 60 70 75 80 86 89 90 100 120", 13: "75 80 86 89 90 100 120"}
NVCC = """#!/bin/sh
case "$1" in
  --version) echo "Cuda compiler driver"; echo "compilation tools, release {version}, V{version}.9";;
  --dryrun) echo '#$ TOP={top}/bin/..';;
  --list-gpu-arch) for n in {capabilities}; do echo compute_$n; done;;
esac
"""


@pytest.fixture
def node(tmp_path, monkeypatch):
    """A node with a C++ compiler and ninja, without a GPU; installs an nvcc of a version in a folder."""
    for name in ("CUDA_HOME", "CUDA_PATH", "TORCH_CUDA_ARCH_LIST", "CXX"):
        monkeypatch.delenv(name, raising=False)
    program(tmp_path / "bin/c++", 'echo "c++ 12.2.0"')
    program(tmp_path / "bin/ninja", "")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    real = toolkit.candidates
    # what this machine itself has under /usr/local and in its packages stays out
    monkeypatch.setattr(
        toolkit, "candidates", lambda: (nvcc for nvcc in real() if nvcc.is_relative_to(tmp_path))
    )
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv/bin/python"))
    gpus(monkeypatch)

    def install(version: str, folder: str) -> Path:
        top, major = tmp_path / folder, int(version.split(".")[0])
        text = NVCC.format(version=version, top=top, capabilities=CAPABILITIES[major])
        return program(top / "bin/nvcc", text)

    return install


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text if text.startswith("#!") else f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def gpus(monkeypatch, *capabilities: tuple[int, int]) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(capabilities))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capabilities[device])


def stack(monkeypatch, cuda: str | None) -> None:
    monkeypatch.setattr(torch.version, "cuda", cuda)


@pytest.mark.parametrize(
    ("cuda", "release", "expected"),
    [
        ("12.8", "12.9", ("7.0", "7.5", "8.0", "8.6", "8.9", "9.0+PTX")),
        ("13.0", "13.1", ("7.5", "8.0", "8.6", "8.9", "9.0+PTX")),
    ],
)
def test_a_node_without_a_gpu_builds_for_all(node, monkeypatch, tmp_path, cuda, release, expected):
    stack(monkeypatch, cuda)
    monkeypatch.setenv("CUDA_HOME", str(node(release, "toolkit").parents[1]))
    planned = building.plan()
    assert planned.architectures == expected
    assert planned.sentence is None
    assert planned.toolkit.home == tmp_path / "toolkit"


@pytest.mark.parametrize(
    ("present", "expected"),
    [
        ([(8, 0), (8, 0)], ("8.0",)),
        ([(9, 0), (8, 0)], ("8.0", "9.0")),
        ([(12, 1)], ("12.0+PTX",)),  # later than the nvcc: it runs the PTX of the latest one
        ([(8, 7)], ("8.6+PTX",)),
    ],
)
def test_the_present_gpus_are_built_for(node, monkeypatch, present, expected):
    stack(monkeypatch, "13.0")
    monkeypatch.setenv("CUDA_HOME", str(node("13.0", "toolkit").parents[1]))
    gpus(monkeypatch, *present)
    assert building.plan().architectures == expected


def test_the_variable_goes_before_the_gpus_and_the_argument_before_both(node, monkeypatch):
    stack(monkeypatch, "13.0")
    monkeypatch.setenv("CUDA_HOME", str(node("13.0", "toolkit").parents[1]))
    gpus(monkeypatch, (8, 0))
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "8.6; 9.0+PTX")
    assert building.plan().architectures == ("8.6", "9.0+PTX")
    assert building.plan(arch_list="7.5").architectures == ("7.5",)
    assert building.plan(arch_list="native").architectures == ("8.0",)


def test_a_gpu_that_the_toolkit_no_longer_knows(node, monkeypatch):
    stack(monkeypatch, "13.0")
    monkeypatch.setenv("CUDA_HOME", str(node("13.0", "toolkit").parents[1]))
    gpus(monkeypatch, (7, 0))
    planned = building.plan()
    assert planned.toolkit is None
    assert "compute capability 7.0; nvcc 13.0 builds for 7.5 and later" in planned.sentence


def test_an_nvcc_of_another_major_version_builds_for_the_cpu_and_says_so(node, monkeypatch):
    stack(monkeypatch, "12.8")
    nvcc = node("13.0", "toolkit")
    monkeypatch.setenv("CUDA_HOME", str(nvcc.parents[1]))
    gpus(monkeypatch, (9, 0))  # a visible GPU changes nothing
    planned = building.plan()
    assert (planned.toolkit, planned.architectures) == (None, ())
    for part in (f"found nvcc 13.0 ({nvcc})", "needs an nvcc of CUDA 12", "module load cuda/12"):
        assert part in planned.sentence
    with pytest.raises(GpufeedError, match="CUDA kernels, which were asked for"):
        building.plan(cuda=True)


def test_versions_are_numbers(node, monkeypatch):
    stack(monkeypatch, "9.2")  # as a string greater than any of 10 and more
    monkeypatch.setenv("CUDA_HOME", str(node("12.9", "toolkit").parents[1]))
    assert "needs an nvcc of CUDA 9" in building.plan().sentence


def test_the_next_nvcc_is_taken_where_the_first_is_of_another_version(node, monkeypatch, tmp_path):
    stack(monkeypatch, "12.8")
    monkeypatch.setenv("CUDA_HOME", str(node("13.0", "new").parents[1]))
    second = node("12.4", "old")
    monkeypatch.setenv("PATH", f"{second.parent}:{os.environ['PATH']}")
    assert building.plan().toolkit.nvcc == second


def test_a_script_in_the_path_stands_for_a_toolkit_elsewhere(node, monkeypatch, tmp_path):
    stack(monkeypatch, "13.0")
    nvcc = node("13.0", "far/cuda")
    program(tmp_path / "bin/nvcc", f'exec {nvcc} "$@"')
    assert building.plan().toolkit.home == tmp_path / "far/cuda"


def test_no_nvcc_and_no_cuda_in_torch_each_have_their_sentence(node, monkeypatch):
    stack(monkeypatch, "13.0")
    assert "found no nvcc in CUDA_HOME, PATH" in building.plan().sentence
    assert "pip install 'cuda-toolkit[nvcc,crt,nvvm,cccl]'" in building.plan().sentence
    stack(monkeypatch, None)
    assert "built without CUDA" in building.plan().sentence
    assert "as asked for" in building.plan(cuda=False).sentence


def test_a_node_without_a_compiler_or_ninja_gets_the_sentence_in_place_of_a_library(
    node, monkeypatch, tmp_path
):
    (tmp_path / "bin/ninja").unlink()
    with pytest.raises(Skip, match="pip install ninja"):
        building.build(tmp_path / "out")
    (tmp_path / "bin/c++").unlink()
    built = building.build_or_say(tmp_path / "out", planned_on="a", attempt=2)
    assert "neither c++ nor g++ nor clang++" in built.about.sentence
    refusal = library.refusal(built.library)
    assert refusal.startswith(built.about.sentence)
    assert "on a. Once that has changed, `snakemake --forcerun build_extension`" in refusal
    about = library.about_path(built.library)
    assert (attempt(about, "a", "cpu"), attempt(about, "b", "cpu")) == (2, 3)  # another node may have them
    monkeypatch.setenv("CXX", "icpx")
    with pytest.raises(Skip, match="CXX is icpx, which is no program here"):
        building.plan()
    program(tmp_path / "bin/g++", "")
    monkeypatch.delenv("CXX")
    assert toolkit.cxx() == "g++"
    beside = program(tmp_path / "venv/bin/ninja", "")  # the virtual environment was not activated
    assert toolkit.ninja() == beside


@pytest.mark.parametrize(
    ("capability", "architectures", "expected"),
    [
        ((8, 0), ("8.0",), True),
        ((8, 6), ("8.0",), True),
        ((8, 0), ("8.6",), False),
        ((9, 0), ("8.0", "8.6"), False),
        ((9, 0), ("8.0+PTX",), True),
        ((12, 0), ("8.0", "9.0+PTX"), True),
        ((10, 0), ("9.0a",), False),
        ((9, 0), ("9.0a",), True),
        ((10, 0), ("9.0a+PTX",), False),
        ((7, 5), ("10.0+PTX",), False),
        ((7, 5), ("Ampere",), True),  # a name is not judged
        ((7, 5), (), False),
    ],
)
def test_what_runs_on_which_gpu(capability, architectures, expected):
    assert runs_on(capability, architectures) is expected


@pytest.fixture
def process(monkeypatch):
    """A process that has loaded nothing; loading only notes which library it would be."""
    loaded = []
    monkeypatch.setattr(loading, "current", loading.Loaded())
    monkeypatch.setattr(loading, "chosen", {})
    monkeypatch.setattr(torch.ops, "load_library", loaded.append)
    monkeypatch.setattr(loading.gradients, "register", lambda: None)
    return loaded


def written(folder: Path, content: bytes = b"a library", **changes) -> Path:
    """A file with a description, as `build` leaves them."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "compiled.so").write_bytes(content)
    about = replace(About(torch=torch.__version__, sources=sources.digest(), cuda="13.0"), **changes)
    return building.keep(folder / "compiled.so", about, folder).library


def test_a_library_of_these_sources_and_this_torch_is_loaded_once(process, tmp_path):
    path = written(tmp_path, architectures=("9.0",))
    assert ops.load(path) == ops.load() == ops.load(path) == ops.Status("extension")
    assert process == [path]
    again = written(tmp_path / "again", architectures=("9.0",))
    assert ops.load(again) == ops.Status("extension")  # the same build, copied elsewhere
    other = written(tmp_path / "other", b"another library", cuda=None)
    with pytest.raises(GpufeedError, match="one library a process"):
        ops.load(other)
    assert process == [path]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"torch": "2.1.0+cpu"}, "was built for torch 2.1.0+cpu, and this is torch"),
        ({"sources": "0123456789ab"}, "was built from other sources (0123456789ab)"),
    ],
)
def test_another_library_is_refused_and_no_other_taken_for_it(process, tmp_path, changes, sentence):
    found = ops.load(written(tmp_path, **changes))
    assert found.implementation == "reference"
    assert sentence in found.sentence
    assert "--forcerun build_extension" in found.sentence
    assert ops.status("cpu") == ops.load() == found
    assert process == []


def test_a_library_that_was_cut_off_or_has_no_description_is_refused(process, tmp_path):
    path = written(tmp_path)
    path.write_bytes(b"a lib")
    assert "is not the file that gpufeed_ops.json describes" in ops.load(path).sentence
    path.with_suffix(".json").write_text('{"torch": ')
    assert "has no readable gpufeed_ops.json" in ops.load(path).sentence
    with pytest.raises(GpufeedError, match=r"no file .*missing\.so"):
        ops.load(tmp_path / "missing.so")
    assert process == []


def test_what_a_library_lacks_for_cuda_is_its_status_there(process, monkeypatch, tmp_path):
    ops.load(written(tmp_path, cuda=None, sentence="There was no nvcc."))
    assert ops.status("cpu") == ops.Status("extension")
    assert ops.status("cuda") == ops.Status("reference", "There was no nvcc.")


def test_how_to_build_again_is_said_of_what_the_workflow_built_without_cuda(process, tmp_path):
    ops.load(written(tmp_path, cuda=None, sentence="There was no nvcc.", planned_on="a"))
    sentence = ops.status("cuda").sentence
    assert sentence.startswith("There was no nvcc. The workflow found so on a.")
    assert "`snakemake --forcerun build_extension`" in sentence


def test_who_planned_a_build_makes_it_no_other(process, tmp_path):
    path = written(tmp_path, planned_on="a", attempt=3)
    assert ops.load(path) == ops.load(written(tmp_path / "again", b"others")) == ops.Status("extension")
    assert process == [path]


@pytest.mark.parametrize("installed", [False, True])
def test_a_library_that_this_node_cannot_load_is_a_sentence(process, node, monkeypatch, tmp_path, installed):
    """As one built for a later glibc or another libcublasLt: the loader refuses it."""
    monkeypatch.setattr(torch.ops, "load_library", LOAD)
    monkeypatch.setattr(loading, "INSTALLED", tmp_path / "installed/gpufeed_ops.so")
    if installed:
        written(tmp_path / "installed")
    monkeypatch.setattr(loading, "build", lambda folder: written(folder))
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "torch"))
    x = torch.tensor([1.0])
    assert torch.equal(ops.bias_gelu(x, x), ops.functions.reference.bias_gelu(x, x))
    found = ops.status("cpu")
    assert found.implementation == "reference"
    assert re.search(
        r"torch/.*gpufeed_ops\.so cannot be loaded on this node \(.*file too short\)", found.sentence
    )
    assert "It was built just in time: without " in found.sentence


def test_a_library_of_the_workflow_that_this_node_cannot_load_is_a_sentence(process, monkeypatch, tmp_path):
    monkeypatch.setattr(torch.ops, "load_library", LOAD)
    found = ops.load(written(tmp_path))
    assert found.implementation == "reference"
    assert "`snakemake --forcerun build_extension`" in found.sentence
    assert ops.status("cpu") == ops.load() == found


def test_a_gpu_that_the_library_was_not_built_for(process, monkeypatch, tmp_path):
    ops.load(written(tmp_path, architectures=("8.0", "8.6")))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for capability, implementation in (((8, 9), "extension"), ((9, 0), "reference")):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, found=capability: found)
        assert ops.status("cuda:0").implementation == implementation
    assert "8.0, 8.6, and this GPU has 9.0" in ops.status("cuda").sentence


def test_the_installed_library_goes_before_one_built_just_in_time(process, monkeypatch, tmp_path):
    monkeypatch.setattr(loading, "INSTALLED", written(tmp_path / "installed"))
    monkeypatch.setattr(loading, "build", lambda folder: written(folder))
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "torch"))
    ops.load()
    assert process == [tmp_path / "installed/gpufeed_ops.so"]


def test_an_installed_library_of_another_torch_gives_way(process, node, monkeypatch, tmp_path):
    monkeypatch.setattr(loading, "INSTALLED", written(tmp_path / "installed", torch="2.1.0"))
    monkeypatch.setattr(loading, "build", lambda folder: written(folder))
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "torch"))
    assert ops.load() == ops.Status("extension")
    assert tmp_path / "torch" in process[0].parents


def test_a_node_that_can_build_nothing_uses_the_reference(process, node, monkeypatch, tmp_path):
    monkeypatch.setattr(loading, "INSTALLED", tmp_path / "none.so")
    program(tmp_path / "bin/c++", "exit 1")
    (tmp_path / "bin/ninja").unlink()
    x = torch.tensor([1.0])
    assert torch.equal(ops.bias_gelu(x, x), ops.functions.reference.bias_gelu(x, x))
    assert "pip install ninja" in ops.status("cpu").sentence


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
    assert "an error (status 1) from c++ 12.2.0" in ops.load().sentence
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
    stack(monkeypatch, "13.0")
    monkeypatch.setenv("CUDA_HOME", str(node("13.0", "toolkit").parents[1]))
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "torch"))
    monkeypatch.setattr(sys, "executable", str(program(tmp_path / "python", ONLY_CPU)))
    with pytest.raises(GpufeedError, match="unsupported GNU version"):
        building.build(tmp_path / "out")
    built = building.build_or_say(tmp_path / "out", planned_on="a")
    about = library.about_path(built.library)
    assert (built.about.status, built.about.cuda) == ("partial", None)
    assert (attempt(about, "a", "cpu"), attempt(about, "b", "cpu")) == (1, 2)
    assert ops.load(built.library) == ops.Status("extension")
    sentence = ops.status("cuda").sentence
    for part in ("no CUDA kernels", "release 13.0", "unsupported GNU version!", "CUDA_HOME", "--forcerun"):
        assert part in sentence
    assert "\n" not in sentence
    declined = building.build_or_say(tmp_path / "cpu", cuda=False, planned_on="a")
    assert declined.about.status == "done"
    assert attempt(library.about_path(declined.library), "b", "cpu") == 1  # nothing was lacking


BUILDER = """
import sys, time
from pathlib import Path
from gpufeed.ops import build, loading
def compile_slowly(planned, folder, jobs):
    time.sleep(1)
    with open(sys.argv[1], "a") as log:
        log.write("compiled\\n")
    (folder / "compiled.so").write_bytes(b"a library")
    return folder / "compiled.so"
build.run_compilers = compile_slowly
print(loading.built_just_in_time())
"""


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


def test_importing_the_ops_builds_and_loads_nothing(tmp_path):
    code = "import torch, gpufeed.models.mlp, gpufeed.ops; print(hasattr(torch.ops.gpufeed, 'bias_gelu'))"
    environment = {**os.environ, "TORCH_EXTENSIONS_DIR": str(tmp_path), "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert done.stdout.strip() == "False"
    assert list(tmp_path.iterdir()) == []


def test_a_build_is_described_and_can_be_loaded(tmp_path):
    try:
        toolkit.cxx()
        toolkit.ninja()
    except Skip as skip:
        pytest.skip(str(skip))
    built = building.build(tmp_path / "out", cuda=False)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "gpufeed_ops.json",
        "gpufeed_ops.so",
    ]
    about = json.loads((tmp_path / "out/gpufeed_ops.json").read_text())
    assert (about["torch"], about["cuda"], about["sources"]) == (torch.__version__, None, sources.digest())
    code = f"from gpufeed import ops; print(ops.load({str(built.library)!r}), ops.status('cuda'))"
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert done.stdout.count("extension") >= 1
    assert "built for the CPU alone" in done.stdout


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


def test_a_library_that_was_built_before_is_taken_where_it_is_what_a_build_would_give(
    node, compiled, monkeypatch, tmp_path
):
    """As in a container, whose image has it: nothing is compiled, and that folder is only read."""
    stack(monkeypatch, "13.0")
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "torch"))
    monkeypatch.setenv("CUDA_HOME", str(node("13.0", "toolkit").parents[1]))
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
    stack(monkeypatch, "13.0")
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "torch"))
    monkeypatch.setenv("CUDA_HOME", str(node("13.0", "toolkit").parents[1]))
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

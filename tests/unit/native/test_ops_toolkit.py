"""Which compilers a node has, and for which GPUs they build."""

import os

import pytest
from ops_fixtures import gpus, program, stack, stack_with_nvcc

from gpufeed.core.errors import GpufeedError, Skip
from gpufeed.core.retry_policy import attempt
from gpufeed.native import build as building
from gpufeed.native import library, toolkit
from gpufeed.native.library import runs_on


@pytest.mark.parametrize(
    ("cuda", "release", "expected"),
    [
        ("12.8", "12.9", ("7.0", "7.5", "8.0", "8.6", "8.9", "9.0+PTX")),
        ("13.0", "13.1", ("7.5", "8.0", "8.6", "8.9", "9.0+PTX")),
    ],
)
def test_a_node_without_a_gpu_builds_for_all(node, monkeypatch, tmp_path, cuda, release, expected):
    stack_with_nvcc(monkeypatch, node, cuda, release)
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
    stack_with_nvcc(monkeypatch, node)
    gpus(monkeypatch, *present)
    assert building.plan().architectures == expected


def test_the_variable_goes_before_the_gpus_and_the_argument_before_both(node, monkeypatch):
    stack_with_nvcc(monkeypatch, node)
    gpus(monkeypatch, (8, 0))
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "8.6; 9.0+PTX")
    assert building.plan().architectures == ("8.6", "9.0+PTX")
    assert building.plan(arch_list="7.5").architectures == ("7.5",)
    assert building.plan(arch_list="native").architectures == ("8.0",)


def test_a_gpu_that_the_toolkit_no_longer_knows(node, monkeypatch):
    stack_with_nvcc(monkeypatch, node)
    gpus(monkeypatch, (7, 0))
    planned = building.plan()
    assert planned.toolkit is None
    assert "compute capability 7.0; nvcc 13.0 builds for 7.5 and later" in planned.sentence


def test_an_nvcc_of_another_major_version_builds_for_the_cpu_and_says_so(node, monkeypatch):
    nvcc = stack_with_nvcc(monkeypatch, node, "12.8", "13.0")
    gpus(monkeypatch, (9, 0))  # a visible GPU changes nothing
    planned = building.plan()
    assert (planned.toolkit, planned.architectures) == (None, ())
    for part in (f"found nvcc 13.0 ({nvcc})", "needs an nvcc of CUDA 12", "module load cuda/12; docs/"):
        assert part in planned.sentence
    with pytest.raises(GpufeedError, match="CUDA kernels, which were asked for"):
        building.plan(cuda=True)


def test_versions_are_numbers(node, monkeypatch):
    stack_with_nvcc(monkeypatch, node, "9.2", "12.9")  # as a string greater than any of 10 and more
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
    assert "c++, g++ and clang++ are all missing" in built.about.sentence
    refusal = library.refusal(built.library)
    assert refusal.startswith(built.about.sentence)
    assert "on a. Once that has changed, `snakemake --forcerun build_extension`" in refusal
    about = library.about_path(built.library)
    assert (attempt(about, "a", "cpu"), attempt(about, "b", "cpu")) == (2, 3)  # another node may have them
    monkeypatch.setenv("CXX", "icpx")
    with pytest.raises(Skip, match="CXX is icpx, which is not a program here"):
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

"""Which library of the extension a process loads, and what is said where there is none."""

import re

import pytest
import torch
from ops_fixtures import program, said_elsewhere, written

from gpufeed import native
from gpufeed.core.errors import GpufeedError
from gpufeed.native import loading

LOAD = torch.ops.load_library


def test_a_library_of_these_sources_and_this_torch_is_loaded_once(process, tmp_path):
    path = written(tmp_path, architectures=("9.0",))
    assert native.load(path) == native.load() == native.load(path) == native.Status("extension")
    assert process == [path]
    again = written(tmp_path / "again", architectures=("9.0",))
    assert native.load(again) == native.Status("extension")  # the same build, copied elsewhere
    other = written(tmp_path / "other", b"another library", cuda=None)
    with pytest.raises(GpufeedError, match="one library a process"):
        native.load(other)
    assert process == [path]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"torch": "2.1.0+cpu"}, "was built for torch 2.1.0+cpu, and this is torch"),
        ({"sources": "0123456789ab"}, "was built from other sources (0123456789ab)"),
    ],
)
def test_another_library_is_refused_and_no_other_taken_for_it(process, tmp_path, changes, sentence):
    found = native.load(written(tmp_path, **changes))
    assert found.implementation == "reference"
    assert sentence in found.sentence
    assert "--forcerun build_extension" in found.sentence
    assert native.status("cpu") == native.load() == found
    assert process == []


def test_a_library_that_was_cut_off_or_has_no_description_is_refused(process, tmp_path):
    path = written(tmp_path)
    path.write_bytes(b"a lib")
    assert "is not the file that gpufeed_ops.json describes" in native.load(path).sentence
    path.with_suffix(".json").write_text('{"torch": ')
    assert "has no readable gpufeed_ops.json" in native.load(path).sentence
    with pytest.raises(GpufeedError, match=r"no file .*missing\.so"):
        native.load(tmp_path / "missing.so")
    assert process == []


def test_what_a_library_lacks_for_cuda_is_its_status_there(process, monkeypatch, tmp_path):
    native.load(written(tmp_path, cuda=None, sentence="There was no nvcc."))
    assert native.status("cpu") == native.Status("extension")
    assert native.status("cuda") == native.Status("reference", "There was no nvcc.")


def test_how_to_build_again_is_said_of_what_the_workflow_built_without_cuda(process, tmp_path):
    native.load(written(tmp_path, cuda=None, sentence="There was no nvcc.", planned_on="a"))
    sentence = native.status("cuda").sentence
    assert sentence.startswith("There was no nvcc. The workflow found so on a.")
    assert "`snakemake --forcerun build_extension`" in sentence


def test_who_planned_a_build_makes_it_no_other(process, tmp_path):
    path = written(tmp_path, planned_on="a", attempt=3)
    assert (
        native.load(path) == native.load(written(tmp_path / "again", b"others")) == native.Status("extension")
    )
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
    assert torch.equal(native.bias_gelu(x, x), native.functions.torch_reference.bias_gelu(x, x))
    found = native.status("cpu")
    assert found.implementation == "reference"
    assert re.search(
        r"torch/.*gpufeed_ops\.so cannot be loaded on this node \(.*file too short\)", found.sentence
    )
    assert "It was built just in time: without " in found.sentence


def test_a_library_of_the_workflow_that_this_node_cannot_load_is_a_sentence(process, monkeypatch, tmp_path):
    monkeypatch.setattr(torch.ops, "load_library", LOAD)
    found = native.load(written(tmp_path))
    assert found.implementation == "reference"
    assert "`snakemake --forcerun build_extension`" in found.sentence
    assert native.status("cpu") == native.load() == found


def test_a_gpu_that_the_library_was_not_built_for(process, monkeypatch, tmp_path):
    native.load(written(tmp_path, architectures=("8.0", "8.6")))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for capability, implementation in (((8, 9), "extension"), ((9, 0), "reference")):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, found=capability: found)
        assert native.status("cuda:0").implementation == implementation
    assert "8.0, 8.6, and this GPU has 9.0" in native.status("cuda").sentence


def test_the_installed_library_goes_before_one_built_just_in_time(process, monkeypatch, tmp_path):
    monkeypatch.setattr(loading, "INSTALLED", written(tmp_path / "installed"))
    monkeypatch.setattr(loading, "build", lambda folder: written(folder))
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "torch"))
    native.load()
    assert process == [tmp_path / "installed/gpufeed_ops.so"]


def test_an_installed_library_of_another_torch_gives_way(process, node, monkeypatch, tmp_path):
    monkeypatch.setattr(loading, "INSTALLED", written(tmp_path / "installed", torch="2.1.0"))
    monkeypatch.setattr(loading, "build", lambda folder: written(folder))
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "torch"))
    assert native.load() == native.Status("extension")
    assert tmp_path / "torch" in process[0].parents


def test_a_node_that_can_build_nothing_uses_the_reference(process, node, monkeypatch, tmp_path):
    monkeypatch.setattr(loading, "INSTALLED", tmp_path / "none.so")
    program(tmp_path / "bin/c++", "exit 1")
    (tmp_path / "bin/ninja").unlink()
    x = torch.tensor([1.0])
    assert torch.equal(native.bias_gelu(x, x), native.functions.torch_reference.bias_gelu(x, x))
    assert "pip install ninja" in native.status("cpu").sentence


def test_importing_the_ops_builds_and_loads_nothing(tmp_path):
    code = "import torch, gpufeed.models.vit, gpufeed.native; print(hasattr(torch.ops.gpufeed, 'bias_gelu'))"
    assert said_elsewhere(code, tmp_path, TORCH_EXTENSIONS_DIR=str(tmp_path)).strip() == "False"
    assert list(tmp_path.iterdir()) == []

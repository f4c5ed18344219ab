"""A model's file: what is in it, that it comes back whole, and what is said of files that are no model."""

import copy
import logging

import pytest
import torch
from trained_fixtures import CLASSES, Channels, about, write_model

from gpufeed.benchmarks.saved_models.model_file import FORMAT, load, save
from gpufeed.core.errors import GpufeedError, Skip
from gpufeed.core.references import code_of


@pytest.fixture
def model_file(tmp_path):
    return write_model(tmp_path / "models/a/model.pt")


def test_comes_back_as_it_was(model_file):
    saved, model = load(model_file), Channels()
    assert saved.about == about()
    assert saved.classes == CLASSES
    assert saved.size == (8, 10)
    built = saved.build(torch.device("cpu"))
    images = torch.rand(4, 3, 8, 10)
    assert not built.training
    assert torch.equal(built(images), model.eval()(images))
    assert [path.name for path in model_file.parent.iterdir()] == ["model.pt"]


def test_weights_are_plain_whatever_the_model_was(tmp_path):
    """channels_last, half a graph and another dtype of the loader leave no trace in the file."""
    model = Channels().to(memory_format=torch.channels_last)
    save(about(), model, tmp_path / "model.pt")
    data = torch.load(tmp_path / "model.pt", weights_only=True)
    assert data["format"] == FORMAT
    for name, tensor in data["state_dict"].items():
        assert tensor.is_contiguous()
        assert (tensor.device.type, tensor.requires_grad) == ("cpu", False)
        assert torch.equal(tensor, model.state_dict()[name])


def test_the_file_is_whole_or_not_there(model_file, monkeypatch):
    before = model_file.read_bytes()

    def broken(data, path):
        path.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(torch, "save", broken)
    with pytest.raises(OSError, match="disk full"):
        write_model(model_file)
    assert model_file.read_bytes() == before


@pytest.mark.parametrize(("status", "said"), [("skipped", "was skipped"), ("failed", "failed")])
def test_a_training_that_did_not_end_is_a_sentence(tmp_path, status, said):
    save(about(status, "No CUDA GPU on this node."), None, tmp_path / "model.pt")
    with pytest.raises(Skip, match=f"since the training {said}: No CUDA GPU on this node"):
        load(tmp_path / "model.pt")


def refused(path, found, remedy):
    with pytest.raises(GpufeedError) as caught:
        load(path)
    assert found in caught.value.found
    assert remedy in caught.value.remedy


@pytest.mark.parametrize("content", [b"", b"\xff\xd8\xff\xe0 a picture", b"PK\x03\x04", b"text\n" * 100])
def test_a_file_of_another_kind(tmp_path, content):
    path = tmp_path / "model.pt"
    path.write_bytes(content)
    refused(path, "is no model file", "name a model.pt")


def test_a_cut_file(model_file):
    model_file.write_bytes(model_file.read_bytes()[:-200])
    refused(model_file, "is no model file", "name a model.pt")


def test_no_file(tmp_path):
    refused(tmp_path / "model.pt", "No such file", "name a model.pt")
    refused(tmp_path, "Is a directory", "name a model.pt")


@pytest.mark.parametrize("data", [[1, 2], {"weight": torch.ones(2)}, {"format": "another"}])
def test_a_file_of_torch_that_is_not_ours(tmp_path, data):
    torch.save(data, tmp_path / "model.pt")
    refused(tmp_path / "model.pt", "no model of gpufeed", "name a model.pt")


def test_code_in_a_file_is_not_run(tmp_path):
    class Evil:
        def __reduce__(self):
            return (tmp_path.joinpath("ran").write_text, ("x",))

    torch.save({"format": FORMAT, "state_dict": Evil()}, tmp_path / "model.pt")
    refused(tmp_path / "model.pt", "is no model file", "name a model.pt")
    assert not (tmp_path / "ran").exists()


def changed(path, change):
    """Writes the file anew with its dict changed in place."""
    data = torch.load(path, weights_only=True)
    change(data)
    torch.save(data, path)


def test_a_newer_format(model_file):
    changed(model_file, lambda data: data.update(schema_version=2))
    refused(model_file, "a model of format 2", "newer gpufeed")


@pytest.mark.parametrize("key", ["state_dict", *about()])
def test_a_missing_key(model_file, key):
    changed(model_file, lambda data: data.pop(key))
    refused(model_file, f"'{key}'", "again")


@pytest.mark.parametrize("key", ["classes", "input"])
def test_a_key_without_a_value(model_file, key):
    changed(model_file, lambda data: data.update({key: None}))
    refused(model_file, "no 'input' or no 'classes'", "again")


def test_a_state_that_holds_no_tensors(model_file):
    changed(model_file, lambda data: data.update(state_dict={"weight": 1}))
    refused(model_file, "holds no tensors", "again")


OTHERS = {
    "weights that are not there": ({}, lambda state: state.popitem()),
    "weights too many": ({}, lambda state: state.update(more=torch.ones(1))),
    "other classes": ({"classes": ["one", "two"]}, lambda state: None),
}


@pytest.mark.parametrize("case", OTHERS)
def test_weights_of_another_model(tmp_path, case):
    changes, change = OTHERS[case]
    path = write_model(tmp_path / "model.pt", **changes)
    changed(path, lambda data: change(data["state_dict"]))
    with pytest.raises(GpufeedError, match="weights that do not fit model simple_cnn"):
        load(path).build(torch.device("cpu"))


@pytest.mark.parametrize(
    ("key", "value"), [("model", "resnet_of_tomorrow"), ("hyper", {"model": {"depth": 3}})]
)
def test_a_model_that_this_version_does_not_have(tmp_path, key, value):
    cell = copy.deepcopy(about()["cell"]) | {key: value}
    path = write_model(tmp_path / "model.pt", cell=cell)
    with pytest.raises(GpufeedError, match="gpufeed that wrote"):
        load(path).build(torch.device("cpu"))


def test_a_model_of_the_users_needs_their_code_and_tells_of_a_change(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    made = "nn.Sequential(nn.Flatten(), nn.Linear(240, {}))"
    code = f"from torch import nn\n\n\ndef Own(num_classes):\n    return {made}\n"
    file, name = tmp_path / "own_of_a_user.py", "own_of_a_user.py:Own"
    file.write_text(code.format("num_classes"))
    known = about()
    known["cell"] |= {"model": name}
    known["cell"]["hyper"] |= {"model": {}, "code": code_of([name])}
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(240, len(CLASSES)))
    save(known, model, tmp_path / "model.pt")
    saved, cpu = load(tmp_path / "model.pt"), torch.device("cpu")
    with caplog.at_level(logging.WARNING, "gpufeed"):
        images = torch.rand(2, 3, 8, 10)
        assert torch.equal(saved.build(cpu)(images), model(images))
        assert caplog.messages == []
        file.write_text(code.format("num_classes + 0"))
        saved.build(cpu)
        assert "own_of_a_user.py has changed since the training" in caplog.text
    file.unlink()
    with pytest.raises(GpufeedError, match="no file own_of_a_user") as caught:
        saved.build(cpu)
    assert "in the folder of the training" in caught.value.remedy

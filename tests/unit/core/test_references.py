"""References: their forms, the digests of their code, and the sentences of wrong ones."""

import json

import pytest
from config_fixtures import merged
from snakemake.utils import update_config
from workflow_fixtures import TINY

from gpufeed.core import plan_plugins
from gpufeed.core.cells import Cell
from gpufeed.core.config import Composer, planned
from gpufeed.core.errors import GpufeedError
from gpufeed.core.plan_plugins import as_text, asked_of_process, question
from gpufeed.core.references import code_of, resolve, short
from gpufeed.core.registry import AUGMENTS, LOADERS, MODELS

NET = """
from torch import nn


class Net(nn.Module):
    def __init__(self, num_classes, width=8):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, width, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(width, num_classes)

    def forward(self, images):
        return self.head(self.layers(images))


class Pair(Net):
    def forward(self, images):
        return super().forward(images), images


def wide(num_classes):
    return Net(num_classes + 1)


def image_net(num_classes, image_size):
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * image_size[0] * image_size[1], num_classes))


def frozen(num_classes):
    return Net(num_classes).requires_grad_(False)


def fixed(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, num_classes))


def needs(num_classes, depth):
    return Net(num_classes)


def text(num_classes):
    return "no model"


number = 3
ready = nn.ReLU()
"""
LOADER = """
from gpufeed.loaders.base import OrderedLoader


class Read(OrderedLoader):
    entry = {"reads": "cache", "workers": "optional", "augments": ["none", "torch"]}

    def __init__(self, request, *, depth=2):
        super().__init__(request)

    def batches(self, order):
        yield from ()


class Unfinished(OrderedLoader):
    pass


class Unasked(Read):
    def __init__(self, *, depth):
        pass


class Misspelt(Read):
    entry = {"raeds": "cache"}


class Elsewhere(Read):
    entry = {"reads": "moon"}


class Computed(Read):
    entry = {"reads": "ca" + str("che")}
"""


DATA = """
import numpy as np
import torch
from PIL import Image


class Data:
    targets = [0, 1, 2]

    def __init__(self, size=16):
        self.size = size

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return torch.zeros(3, self.size, self.size, dtype=torch.uint8), index


class Floats(Data):
    def __getitem__(self, index):
        return torch.zeros(3, 16, 16), index


class Alone(Data):
    def __getitem__(self, index):
        return torch.zeros(3, 16, 16, dtype=torch.uint8)


class Raises(Data):
    def __getitem__(self, index):
        return {}["image"]


class Empty(Data):
    def __len__(self):
        return 0


class Half(Data):
    def __len__(self):
        return 0.5


class Deep(Data):
    def __getitem__(self, index):
        return Image.new("I;16", (4, 4)), 0


class Nothing(Data):
    def __getitem__(self, index):
        return np.zeros((0, 4, 3), np.uint8), 0


class NoLength:
    def __getitem__(self, index):
        return None
"""


AUGMENT = """
import torch

from gpufeed.augment.base import Augment, DeviceAugment


class Dim(DeviceAugment):
    defaults = {"least": 0.5}

    def __call__(self, images, ids, epoch):
        return self.normalise((images * self.options["least"]).to(torch.uint8))


class Sample(Augment):
    where = "sample"
    entry = {"where": "sample"}

    def __call__(self, image, sample_id, epoch):
        return image.permute(2, 0, 1) / 255


class Undeclared(Sample):
    pass


class Turned(DeviceAugment):
    def __call__(self, images, ids, epoch):
        return self.normalise(images).permute(0, 2, 3, 1)


class Fails(DeviceAugment):
    def __call__(self, images, ids, epoch):
        raise RuntimeError("no")


class Misplaced(Sample):
    entry = {"where": "moon"}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The folder of the run, with a file of models, one that imports what is missing, and a script."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_model.py").write_text(NET)
    (tmp_path / "my_loader.py").write_text(LOADER)
    (tmp_path / "my_data.py").write_text(DATA)
    (tmp_path / "my_augment.py").write_text(AUGMENT)
    (tmp_path / "needs_package.py").write_text("import no_such_package\n")
    (tmp_path / "script.py").write_text("print('training')\nraise SystemExit(3)\n")
    (tmp_path / "relative.py").write_text("from .my_model import Net\n")
    (tmp_path / "broken.py").write_text("def model(:\n    pass\n")
    return tmp_path


def config(*overrides: str, **axes) -> dict:
    """A config of one experiment with these axes."""
    found = merged("config.yaml")
    update_config(found, TINY)
    common = {"dataset": "synthetic", "loader": "resident", "augment": "torch", "batch_size": 8}
    block = {**common, **axes, **({"overrides": [list(overrides)]} if overrides else {})}
    found["experiments"] = {"tiny": {"title": "t", "question": "q", "blocks": {"b": block}}}
    return found


NEVER_IMPORTED = [  # what the disk alone refuses
    ({"model": "mobilenet_v3_small"}, "model 'mobilenet_v3_small'", "torchvision:NAME", "choose one"),
    ({"model": "my_modle.py:Net"}, "no file my_modle.py", "a Python file", "write 'my_model.py'"),
    ({"model": "my_model.py:"}, "'my_model.py:'", "path.py:attribute", "one of these forms"),
    ({"model": "no_such.module:Net"}, "no module no_such", "a module in", "install the package"),
    ({"model": "torch.no_such:Net"}, "no module torch.no_such", "a module in", "correct its name"),
    ({"model": "__main__:net"}, "no module __main__", "a module in", "correct its name"),
    ({"model": "timm:"}, "'timm:'", "timm:NAME", "the name of a model"),
    ({"model": "broken.py:model"}, "broken.py, line 1: invalid syntax", "valid Python", "correct it"),
    ({"loader": "broken.py:Read"}, "broken.py, line 1: invalid syntax", "valid Python", "correct it"),
    ({"augment": "broken.py:Dim"}, "broken.py, line 1: invalid syntax", "valid Python", "correct it"),
    ({"loader": "my_loader.py:Misspelt"}, "'raeds' in `entry`", "one of: workers", "write 'reads'"),
    ({"loader": "my_loader.py:Elsewhere"}, "reads: 'moon'", "one of: files, cache", "correct it"),
    ({"loader": "my_loader.py:Computed"}, "`entry` of my_loader.py:Computed", "a dict", "write the values"),
    ({"augment": "my_augment.py:Misplaced"}, "where: 'moon'", "one of: device, sample", "correct it"),
    ({"augment": "my_augment.Dim"}, "augment 'my_augment.Dim'", "path.py:attribute", "choose one"),
    ({"dataset": "my_dat.py:Data"}, "no file my_dat.py", "a Python file", "write 'my_data.py'"),
    ({"dataset": "timm:data"}, "dataset 'timm:data'", "path.py:attribute", "your own code"),
    ({"loader": "torchvision:resnet18"}, "'torchvision:resnet18'", "path.py:attribute", "your own code"),
]


@pytest.mark.parametrize(("axes", "found", "expected", "remedy"), NEVER_IMPORTED)
def test_a_reference_that_names_nothing_is_refused_without_an_import(
    monkeypatch, axes, found, expected, remedy
):
    monkeypatch.setattr(plan_plugins, "asked_of_process", pytest.fail)
    with pytest.raises(GpufeedError) as error:
        planned(config(**axes))
    assert found in error.value.found
    assert expected in error.value.expected
    assert remedy in error.value.remedy


TRIED = [  # what a process that imports it refuses: reference, options, found, expected, what to do
    (
        "torchvision:mobilnet_v3_small",
        {},
        "mobilnet",
        "mobilenet_v3_small",
        "'torchvision:mobilenet_v3_small'",
    ),
    ("torchvision:resnet18", {"widht": 2}, "raises TypeError", "arguments", "options"),
    ("timm:resnet5", {}, "model 'timm:resnet5'", "such as resnet50", "write 'timm:resnet5"),
    ("my_model.py:Nett", {}, "no 'Nett' in", "one of: ", "write 'Net'"),
    ("my_model.py:Net", {"widht": 2}, "option 'widht'", "one of: width", "write 'width'"),
    ("my_model.py:Net", {"num_classes": 2}, "option 'num_classes'", "one of: width", "correct"),
    ("my_model.py:Net", {"width": "wide"}, "raises TypeError", "width", "options"),
    ("my_model.py:needs", {}, "no value for 'depth'", "depth=VALUE", "'depth'"),
    ("my_model.py:number", {}, "which is an int", "a class or a function", "name one"),
    ("my_model.py:ready", {}, "which is a ReLU", "a class or a function", "name one"),
    ("my_model.py:text", {}, "returns a str", "torch.nn.Module", "return the model"),
    ("my_model.py:wide", {}, "shape (2, 4)", "shape (2, 3)", "num_classes"),
    ("my_model.py:Pair", {}, "returns a tuple for 2 images of 16 x 16", "one tensor", "logits"),
    ("my_model.py:fixed", {}, "raises RuntimeError for 2 images of 16 x 16", "that size", "recipe.size"),
    ("my_model.py:frozen", {}, "none requires gradients", "that is trained", "unfrozen"),
    ("relative.py:Net", {}, "attempted relative import", "can be imported", "my_package.my_module:Name"),
    ("needs_package.py:Net", {}, "No module named 'no_such_package'", "the package", "pip install"),
    ("script.py:Net", {}, "raises SystemExit", "can be imported", "main guard"),
]
LOADERS_TRIED = [
    ("my_loader.py:Unfinished", {}, "which has no batches", "all its methods", "derive it"),
    (
        "my_loader.py:Unasked",
        {"depth": 1},
        "takes (*, depth)",
        "first argument",
        "__init__ take request first",
    ),
    ("my_model.py:Net", {}, "my_model.py:Net, a type", "gpufeed.loaders.base.Loader", "derive it"),
    ("my_loader.py:Read", {"dept": 3}, "option 'dept'", "one of: depth", "write 'depth'"),
]
DATASETS_TRIED = [
    ("my_data.py:Data", {"siz": 3}, "option 'siz'", "one of: size", "write 'size'"),
    ("my_data.py:Floats", {}, "shape (3, 16, 16) and type float32", "(image, label)", "remove ToTensor"),
    ("my_data.py:Alone", {}, "too many values", "(image, label)", "augment"),
    ("my_data.py:Raises", {}, "item 0 of my_data.py:Raises, which raises KeyError", "image", "correct it"),
    ("my_data.py:Empty", {}, "of no item", "one item or more", "other options"),
    ("my_data.py:NoLength", {}, "without __len__", "map-style", "__len__"),
    ("my_data.py:Half", {}, "whose __len__ raises TypeError: 'float'", "map-style", "__len__"),
    ("my_data.py:Deep", {}, "but of Pillow's mode I;16", "8 bits a channel", "such a pair"),
    ("my_data.py:Nothing", {}, "uint8 of shape (0, 4, 3)", "(image, label)", "such a pair"),
    ("my_model.py:Net", {}, "no value for 'num_classes'", "a default", "'num_classes'"),
]
AUGMENTS_TRIED = [
    ("my_augment.py:Dim", {"last": 1}, "option 'last'", "its `defaults`: least", "write 'least'"),
    ("my_augment.py:Undeclared", {}, "`where` is 'sample', and 'device'", "the same", 'entry = {"where"'),
    ("my_augment.py:Turned", {}, "shape (2, 32, 32, 3) and type float32", "(2, 3, 32, 32)", "normalise"),
    ("my_augment.py:Fails", {}, "raises RuntimeError: no", "(2, 3, 32, 32)", "(images, ids, epoch)"),
    ("my_model.py:Net", {}, "my_model.py:Net, a type", "gpufeed.augment.base.Augment", "derive it"),
]
REFUSED = {
    "model": TRIED,
    "loader": LOADERS_TRIED,
    "dataset": DATASETS_TRIED,
    "augment": AUGMENTS_TRIED,
}
RIGHT = [
    ("my_model.py:Net", {"width": 2}),
    ("my_model.py:image_net", {}),
    ("torchvision.models:resnet18", {}),
]
OF_TIMM = {"size": 160, "short_side": 168, "mean": [0.5] * 3, "std": [0.5] * 3}


def asked(name: str, options: dict, size: object = (16, 16), kind: str = "model") -> dict:
    return {"kind": kind, "name": name, "options": options, "classes": 3, "size": size, "code": {}}


@pytest.mark.slow
def test_what_does_not_run_is_a_sentence_and_what_runs_is_none():
    rows = [(kind, *row) for kind, tried in REFUSED.items() for row in tried]
    refused = [asked(name, options, kind=kind) for kind, name, options, *_ in rows]
    right = [asked(name, options) for name, options in RIGHT]
    right += [
        asked("my_loader.py:Read", {"depth": 3}, kind="loader"),
        asked("my_data.py:Data", {"evaluation": {"size": 8}}, kind="dataset"),
        asked("my_augment.py:Dim", {"least": 0.1}, kind="augment"),
        asked("my_augment.py:Sample", {}, kind="augment"),
        asked("timm:test_resnet", {}, size="own"),
    ]
    answers = asked_of_process(refused + right)
    for (_, name, options, *words), answer in zip(rows, answers, strict=False):
        parts = zip(words, answer["error"], strict=True)
        assert all(word in said for word, said in parts), (name, options, answer)
    assert answers[len(rows) :] == [*[{"made_for": None}] * len(RIGHT), *[{}] * 4, {"made_for": OF_TIMM}]


def test_whole_epochs_on_a_dataset_that_holds_nothing_out_are_refused(monkeypatch):
    monkeypatch.setattr(plan_plugins, "ask", lambda questions: {})
    wanted = config(dataset="my_data.py:Data", loader="dataloader_sync", batch_size=2)
    with pytest.raises(GpufeedError, match=r"has no evaluation split[^$]*evaluation: {train: false}"):
        planned(wanted)
    wanted = config(dataset="my_data.py:Data", loader="dataloader_sync", batch_size=2, steps=4)
    (cell,) = planned(wanted).cells["tiny"].values()
    assert cell.id.startswith("my_data.Data-dataloader_sync-")
    assert list(cell.source["code"]) == ["my_data.py"]


@pytest.mark.slow
def test_an_edit_makes_another_cell_and_a_comment_does_not(folder, monkeypatch):
    wanted = config("model.width=4", model="my_model.py:Net")
    ids = [set(planned(wanted).cells["tiny"])]
    assert json.loads((folder / plan_plugins.KEPT).read_text())
    monkeypatch.setattr(plan_plugins, "asked_of_process", pytest.fail)
    (folder / "my_model.py").write_text(f"# models\n{NET}")
    ids.append(set(planned(wanted).cells["tiny"]))  # from what is kept
    monkeypatch.undo()
    monkeypatch.chdir(folder)
    (folder / "my_model.py").write_text(NET.replace("Conv2d(3, width, 3)", "Conv2d(3, width, 5)"))
    ids.append(set(planned(wanted).cells["tiny"]))
    assert ids[0] == ids[1] != ids[2]
    (cell,) = planned(wanted).cells["tiny"].values()
    assert cell.hyper["model"] == {"width": 4}
    assert list(cell.hyper["code"]) == ["my_model.py"]
    assert cell.id.startswith("synthetic-resident-torch-my_model.Net-auto-b8-")


@pytest.mark.parametrize(("overrides", "size"), [((), 160), (("recipe.size=96",), 96)])
def test_a_model_of_timm_brings_its_size_mean_and_deviation(overrides, size):
    wanted = config()
    axes = {"model": "timm:test_resnet", "recipe": "random_resized_crop", "overrides": overrides}
    cell = Cell("tiny", "synthetic", "resident", **axes)
    asked = as_text(question(wanted, cell, "model"))
    hyper = Composer(wanted, {asked: {"made_for": OF_TIMM}})(cell, "the test")
    assert (hyper["recipe"]["size"], hyper["recipe"]["short_side"]) == (size, 168)
    assert hyper["input"] == {"mean": [0.5] * 3, "std": [0.5] * 3}


def test_code_is_that_of_a_file_and_of_what_it_imports_beside_it(folder):
    (folder / "parts").mkdir()
    (folder / "parts/__init__.py").write_text("")
    (folder / "parts/layers.py").write_text("from . import sizes\n")
    (folder / "parts/sizes.py").write_text("WIDTH = 3\n")
    (folder / "parts/other.py").write_text("WIDTH = 4\n")
    (folder / "gpufeed").mkdir()  # as in a clone
    (folder / "gpufeed/__init__.py").write_text("")
    text = "import torch, gpufeed\n\ndef net():\n    from parts.layers import Layer\n"
    (folder / "user.py").write_text(text)
    before = code_of(["user.py:net"])
    assert sorted(before) == ["parts/__init__.py", "parts/layers.py", "parts/sizes.py", "user.py"]
    (folder / "parts/sizes.py").write_text("WIDTH = 30\n")
    after = code_of(["user.py:net", "parts.layers:Layer"])
    assert {name for name in before if before[name] != after[name]} == {"parts/sizes.py"}
    assert code_of(["torchvision:resnet18", "torchvision.models:resnet18", "timm:resnet50"]) == {}


def test_names_for_paths_and_entries():
    assert short("resnet18") == "resnet18"
    assert short("timm:vit_tiny_patch16_224.augreg") == "timm.vit_tiny_patch16_224.augreg"
    assert short("my_model.py:Net") == "my_model.Net"
    assert short("here/my_model.py:Net") != short("there/my_model.py:Net")
    assert "my_model.py:Net" in MODELS
    assert "my_model.py:Net" not in list(MODELS)
    assert "no_model" not in MODELS
    with pytest.raises(KeyError):
        LOADERS["no_loader"]


def test_a_loader_says_what_the_planner_must_know():
    entry = LOADERS["my_loader.py:Read"]
    assert (entry.reads, entry.workers, entry.augments) == ("cache", "optional", ("none", "torch"))
    assert entry.decoded


def test_an_augment_has_a_place_where_a_registered_one_of_its_kind_has():
    resident, workers = LOADERS["resident"], LOADERS["dataloader_sync"]
    assert resident.has_place_for("my_augment.py:Dim")
    assert not resident.has_place_for("my_augment.py:Sample")
    assert workers.has_place_for("my_augment.py:Sample")
    assert LOADERS["my_loader.py:Read"].has_place_for("my_augment.py:Dim")
    assert not LOADERS["my_loader.py:Read"].has_place_for("my_augment.py:Sample")
    assert AUGMENTS["my_augment.py:Dim"].does == "augmented by my_augment.py:Dim"


def test_a_file_whose_name_a_module_has_is_refused(folder):
    (folder / "json.py").write_text("Net = 1\n")
    with pytest.raises(GpufeedError, match=r"such as my_json\.py"):
        resolve("json.py:Net")

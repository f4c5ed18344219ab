"""Hyper-parameters: the defaults of config/hydra, what overrides make of them, the schemas of both."""

import inspect

import pytest
from config_fixtures import merged

from gpufeed.augment.amounts import DTYPES
from gpufeed.core import config as config_module
from gpufeed.core.cells import Cell
from gpufeed.core.config import GROUPS, HYPER, Composer, check_hyper, parse_override, planned, read_hyper
from gpufeed.core.config_schema import validator
from gpufeed.core.errors import GpufeedError, Skip
from gpufeed.core.registry import KINDS, MODELS, fetch, load
from gpufeed.core.vit_options import CHOICES
from gpufeed.models.resnet import STEMS
from gpufeed.training.optimisers import OPTIMISERS, SCHEDULES


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("trainer.learning_rate=1e-3", ("trainer", "learning_rate", 0.001)),
        ("model.stem=cifar", ("model", "stem", "cifar")),
        ("augment.crop_padding=2", ("augment", "crop_padding", 2)),
    ],
)
def test_override_values_have_their_type(text, parsed):
    assert parse_override(text) == parsed


def test_overrides_change_one_cell_and_not_the_defaults():
    compose = Composer()
    plain = Cell("e", "d", "resident", model="resnet18")
    other = "cifar" if compose(plain, "x")["model"]["stem"] == "imagenet" else "imagenet"
    changed = Cell("e", "d", "resident", model="resnet18", overrides=(f"model.stem={other}",))
    assert compose(changed, "x")["model"]["stem"] == other
    assert compose(plain, "x")["model"]["stem"] != other


@pytest.mark.parametrize(
    ("text", "found", "expected"),
    [
        ("trainer.lr=0.1", "trainer hyper-parameter 'lr'", "learning_rate"),
        ("trainer.learning_rate=fast", "trainer.learning_rate: 'fast'", "type number"),
        ("trainer.learning_rate=-1.0", "trainer.learning_rate: -1.0", "above 0"),
        ("trainer.learning_rate=0", "trainer.learning_rate: 0", "above 0"),
        ("trainer.learning_rate=NaN", "trainer.learning_rate: nan", "type number"),
        (f"trainer.learning_rate=1{'0' * 400}", "trainer.learning_rate: 1000", "type number"),
        ("trainer.optimiser=rmsprop", "trainer.optimiser: 'rmsprop'", "sgd, adam, adamw"),
        ("trainer.optimiser=adma", "trainer.optimiser: 'adma'", "sgd, adam, adamw"),
        ("trainer.schedule=cosine", "trainer.schedule: 'cosine'", "one_cycle, constant"),
        ("trainer.momentum=1", "trainer.momentum: 1", "below 1"),
        ("trainer.momentum=-0.1", "trainer.momentum: -0.1", "at least 0"),
        ("trainer.weight_decay=-0.01", "trainer.weight_decay: -0.01", "at least 0"),
        ("trainer.label_smoothing=1.0", "trainer.label_smoothing: 1.0", "below 1"),
        ("trainer.warmup_share=1.5", "trainer.warmup_share: 1.5", "at most 1"),
        ("model.stem=foo", "model.stem: 'foo'", "imagenet, cifar"),
        ("model.channels=[]", "model.channels: []", "entries: at least 1"),
        ("model.channels=[0,-2]", "model.channels.0: 0", "at least 1"),
        ("model.channels=8", "model.channels: 8", "type array"),
        (f"model.channels={'[' * 3000}", "model.channels: '[[[", "type array"),
        ("model.batch_norm=1", "model.batch_norm: 1", "type boolean"),
        ("augment.crop_padding=-3", "augment.crop_padding: -3", "at least 0"),
        ("augment.crop_padding=2.0", "augment.crop_padding: 2.0", "type integer"),
        ("augment.flip_probability=7.0", "augment.flip_probability: 7.0", "at most 1"),
    ],
)
def test_an_override_that_cannot_be_meant_stops_the_plan(text, found, expected):
    config = merged("config.yaml")
    common = config["experiments"]["pipelining"]["common"]
    common["overrides"] = [[text]]
    common["model"] = "resnet18" if "stem" in text else "simple_cnn"
    with pytest.raises(GpufeedError) as error:
        planned(config)
    assert found in error.value.found
    assert "experiments.pipelining.blocks.notebook" in error.value.found
    assert expected in error.value.expected
    assert error.value.remedy


def test_an_override_where_nothing_can_be_overridden_says_so():
    cell = Cell("e", "d", "resident", augment="none", overrides=("augment.crop_padding=1",))
    with pytest.raises(GpufeedError, match="augment 'none' has no hyper-parameters"):
        Composer()(cell, "experiments.e.blocks.b")


@pytest.mark.parametrize(
    ("name", "option", "value", "expected"),
    [
        ("cpu", "crop_padding", -1, "at least 0"),
        ("cpu", "flip_probability", 2, "at most 1"),
        ("cpu", "pil", "no", "type boolean"),
        ("dali", "size", 0, "at least 1"),
        ("dali", "size", 8.0, "type integer"),
        ("dali", "hue", 0.6, "at most 0.5"),
        ("dali", "contrast", -0.1, "at least 0"),
        ("dali", "rotate_degrees", True, "type number"),
    ],
)
def test_impossible_options_of_an_augment_are_refused(name, option, value, expected):
    with pytest.raises(GpufeedError) as error:
        check_hyper("augment", name, {**read_hyper("augment", name), option: value}, "a test")
    assert error.value.found == f"augment.{option}: {value!r}, in a test"
    assert expected in error.value.expected


@pytest.mark.parametrize("group", GROUPS)
def test_each_registered_name_has_defaults_and_a_definition_and_nothing_else_has(group):
    assert {path.stem for path in (HYPER / group).iterdir()} == set(KINDS[group])
    assert set(validator("hyper").schema["properties"][group]["properties"]) == set(KINDS[group])
    for name in KINDS[group]:
        read_hyper(group, name)  # raises unless every default is valid


def test_choices_and_parameters_in_the_schema_are_those_of_the_code():
    hyper = validator("hyper").schema
    schema, vit = hyper["properties"], hyper["$defs"]["vit"]["properties"]
    for name in ("plain", "fastai", "lightning"):
        trainer = schema["trainer"]["properties"][name]["properties"]
        assert trainer["optimiser"]["enum"] == list(OPTIMISERS)
        assert trainer.get("schedule", {"enum": list(SCHEDULES)})["enum"] == list(SCHEDULES)
    assert schema["model"]["properties"]["resnet18"]["properties"]["stem"]["enum"] == list(STEMS)
    assert {name: tuple(vit[name]["enum"]) for name in vit if "enum" in vit[name]} == CHOICES
    assert hyper["$defs"]["with_rotation"]["properties"]["dtype"]["enum"] == list(DTYPES)
    for name in schema["augment"]["properties"]:
        assert set(read_hyper("augment", name)) == set(load("augment", name).defaults)


@pytest.mark.parametrize("name", MODELS)
def test_the_options_of_a_model_are_its_parameters(name):
    try:
        parameters = set(inspect.signature(fetch("model", name)).parameters)
    except Skip as lacking:
        pytest.skip(str(lacking))
    told = {"num_classes", *(["image_size"] if MODELS[name].sized else [])}
    assert set(read_hyper("model", name)) == parameters - told
    assert told <= parameters


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            "crop_padding: 4\nflip_probability: 2\npil: false",
            "augment.flip_probability: 2, in config/hydra/augment/cpu",
        ),
        ("crop_padding: 4\nflip_probability: 1e-1\npil: false", "augment.flip_probability: '1e-1'"),
        ("crop_padding: 4", "no 'flip_probability' in augment in config/hydra/augment/cpu.yaml"),
        ("crop_padding: 4\nflip_probability: 0.5\nflop: 1", "key 'flop' in augment in config/hydra/augment"),
        ("[1, 2]", "augment: [1, 2], in config/hydra/augment/cpu.yaml"),
        ("crop_padding: [", "config/hydra/augment/cpu.yaml is no YAML"),
        (b"\xff\xfe\xff", "config/hydra/augment/cpu.yaml is no YAML"),
        (None, "no hyper-parameters of augment 'cpu'"),
    ],
)
def test_a_broken_file_of_defaults_is_named(tmp_path, monkeypatch, text, found):
    monkeypatch.setattr(config_module, "HYPER", tmp_path / "config/hydra")
    path = tmp_path / "config/hydra/augment/cpu.yaml"
    path.parent.mkdir(parents=True)
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(GpufeedError) as error:
        read_hyper("augment", "cpu")
    assert found in error.value.found

"""A bad config dies with found / expected / what to do; the shipped ones are good."""

import copy
from pathlib import Path

import pytest
import yaml

from gpufeed.config import Composer, check, parse_override, planned
from gpufeed.errors import GpufeedError
from gpufeed.experiment import Cell

ROOT = Path(__file__).resolve().parents[2]
PIPELINING = ["experiments", "pipelining"]


def merged(*names):
    """The config as Snakemake merges its files: dictionaries by key, everything else replaced."""

    def update(base, change):
        for key, value in change.items():
            if isinstance(value, dict) and isinstance(base.get(key), dict):
                update(base[key], value)
            else:
                base[key] = value

    result: dict = {}
    for name in names:
        update(result, yaml.safe_load((ROOT / "config" / name).read_text()))
    return result


@pytest.mark.parametrize(
    "files", [("config.yaml",), ("config.yaml", "demo.yaml"), ("config.yaml", "h200.yaml")]
)
def test_shipped_configs_plan_every_experiment_that_they_run(files):
    config = merged(*files)
    plan = planned(config)
    assert all(plan.cells[name] for name in config["run"])


def test_the_reference_run_changes_data_repeats_and_run_list_alone():
    assert set(yaml.safe_load((ROOT / "config/h200.yaml").read_text())) <= {
        "run",
        "repeats",
        "use_instead",
        "sources",
    }


def test_config_readme_documents_every_key():
    text = (ROOT / "config/README.md").read_text()
    schema = yaml.safe_load((ROOT / "gpufeed/schemas/config.schema.yaml").read_text())
    keys = set(schema["properties"])
    for part in schema["$defs"].values():
        keys |= set(part.get("properties", {}))
    assert [key for key in sorted(keys) if f"`{key}`" not in text] == []


def broken(path, value):
    config = merged("config.yaml")
    at = config
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return config


@pytest.mark.parametrize(
    ("path", "value", "found", "remedy"),
    [
        (["repeat"], 3, "key 'repeat'", "'repeats'"),
        (["repeats"], 0, "repeats: 0", "correct repeats"),
        (["repeats"], "three", "repeats: 'three'", "correct repeats"),
        (["device"], "gpu", "device: 'gpu'", "correct device"),
        ([*PIPELINING, "common", "batchsize"], 32, "key 'batchsize'", "'batch_size'"),
        ([*PIPELINING, "common", "batch_size"], 0, "batch_size: 0", "correct experiments"),
        ([*PIPELINING, "common", "batch_size"], [8, -1], "-1", "correct experiments"),
        ([*PIPELINING, "blocks", "notebook", "loader"], "dalli", "loader 'dalli'", "choose one"),
        ([*PIPELINING, "blocks", "notebook", "workers"], 2.5, "2.5", "correct experiments"),
        (["sources", "cifar10", "layout"], "cifar", "layout 'cifar'", "'cifar10'"),
        (["sources", "cifar10", "files"], [], "no files in sources.cifar10", "add `files:`"),
        (["sources", "cifar10", "files", 0, "sha256"], "abc", "sha256: 'abc'", "correct sources"),
        (["use_instead"], {"cifar10": "cifar11"}, "dataset 'cifar11'", "'cifar10'"),
        (["run"], [], "run: []", "correct run"),
    ],
)
def test_a_wrong_config_says_what_was_found_and_what_to_do(path, value, found, remedy):
    with pytest.raises(GpufeedError) as error:
        planned(broken(path, value))
    assert found in error.value.found
    assert remedy in error.value.remedy
    assert error.value.expected


def test_a_missing_key_is_named():
    config = merged("config.yaml")
    del config["data"]
    with pytest.raises(GpufeedError, match="no 'data'"):
        check(config)


def test_check_leaves_the_config_alone():
    config = merged("config.yaml")
    before = copy.deepcopy(config)
    planned(config)
    assert config == before


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
    changed = Cell("e", "d", "resident", model="resnet18", overrides=("model.stem=imagenet",))
    other = "cifar" if compose(plain, "x")["model"]["stem"] == "imagenet" else "imagenet"
    changed = Cell("e", "d", "resident", model="resnet18", overrides=(f"model.stem={other}",))
    assert compose(changed, "x")["model"]["stem"] == other
    assert compose(plain, "x")["model"]["stem"] != other


@pytest.mark.parametrize("text", ["trainer.lr=0.1", "trainer.learning_rate=fast", "model.lr=0.1"])
def test_an_override_of_nothing_or_of_another_type_is_refused(text):
    with pytest.raises(GpufeedError):
        Composer()(Cell("e", "d", "resident", overrides=(text,)), "experiments.e.blocks.b")

"""Hydra composes the cells that the workflow plans, jobs get them whole, and a file holds all of one."""

import copy
import json
import shlex
import subprocess
import sys
from dataclasses import replace
from functools import cache

import pytest
import yaml
from compose_fixtures import DATA, ITEMS
from config_fixtures import merged
from data_fixtures import REPOSITORY
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufeed.core import compose
from gpufeed.core.cells import Cell
from gpufeed.core.compose import (
    OWN_AXES,
    PLACE,
    Composed,
    cell_from,
    changes_of,
    composed,
    hydra_value,
    offer,
    offer_references,
    read_primary,
    restored,
    row,
    shipped,
    standalone_command,
)
from gpufeed.core.config import GROUPS, planned, read_hyper, settled
from gpufeed.core.errors import GpufeedError

# each is written over the one before it, as `--configfile` does
SHIPPED = (
    ("config.yaml",),
    ("config.yaml", "reference.yaml"),
    ("config.yaml", "demo.yaml"),
    ("config.yaml", "demo.yaml", "accuracy.yaml"),
    ("config.yaml", "own.yaml"),
    ("config.yaml", "notebook.yaml"),
)


def hydras_hyper(cell: Cell, composed_before: dict) -> dict:
    """The hyper-parameters that Hydra composes for a cell; each set of groups and overrides once."""
    key = (*(getattr(cell, group) for group in GROUPS), cell.overrides)
    if key not in composed_before:
        groups = [f"{group}={getattr(cell, group)}" for group in GROUPS]
        values = composed(["data=synthetic", *groups, *cell.overrides]).values
        hyper = {group: dict(values[group] or {}) for group in GROUPS}
        for name in PLACE:
            del hyper["trainer"][name]
        composed_before[key] = settled(hyper, "the command line")
    return composed_before[key]


def hydras(*arguments: str) -> Cell:
    """The cell behind a command line."""
    offer({name: row(shipped(), name) for name in shipped()["sources"]})
    return cell_from(composed(arguments), shipped())


def command_in(words: str) -> list[str]:
    """The arguments of the command in a cell's comment."""
    lines = words.splitlines()
    typed = [line.strip().removesuffix("\\") for line in lines[1:] if line.startswith("  ")]
    return shlex.split(" ".join(typed))[3:]


@pytest.mark.parametrize("which", ["photographs", pytest.param("all", marks=pytest.mark.slow)])
def test_both_composers_agree_on_shipped_cells_and_jobs_get_them_whole(monkeypatch, which):
    # a job restores one cell, this all
    monkeypatch.setattr("gpufeed.core.compose.read_hyper", cache(read_hyper))
    offer({"synthetic": row(shipped(), "synthetic")})
    known: dict = {}
    for names in SHIPPED if which == "all" else [("config.yaml",)]:
        for experiment, cells in planned(merged(*names)).cells.items():
            for cell in cells.values():
                assert restored(cell.identity()) == cell
                if which in ("all", experiment):
                    ours = json.dumps(cell.hyper, sort_keys=True)
                    assert json.dumps(hydras_hyper(cell, known), sort_keys=True) == ours
    assert len(known) > (20 if which == "all" else 2)


def test_the_command_in_the_comment_trains_the_cell():
    config = merged("config.yaml", "reference.yaml")
    config["device"], config["seed"] = "cpu", 5
    config["sources"]["cifar10_gray_28"]["times"] = 3
    cells = planned(config).cells["vit_lite"].values()
    cell = next(cell for cell in cells if cell.workers)
    typed = hydras(*command_in(standalone_command(cell, config)))
    assert replace(typed, experiment=cell.experiment) == cell
    assert (typed.device, typed.seed, typed.dataset) == ("cpu", 5, "cifar10_gray_28")


def test_a_source_of_the_runs_own_config_is_told_in_full(tmp_path):
    config = merged("config.yaml")
    config["sources"]["mine"] = copy.deepcopy(config["sources"]["synthetic"])
    config["sources"]["mine"]["resize"] = [32, 32]
    config["experiments"]["pipelining"]["common"]["dataset"] = "mine"
    config["experiments"]["pipelining"]["common"]["epochs"] = 1
    cell = next(iter(planned(config).cells["pipelining"].values()))
    words = standalone_command(cell, config)
    assert "--config-dir FOLDER" in words
    told = words.split("is\n")[1]
    assert yaml.safe_load(told)["resize"] == [32, 32]


def test_a_later_choice_as_things_were_comes_back_where_the_shipped_default_is_another(monkeypatch):
    config = merged("config.yaml", "demo.yaml")
    cell = next(cell for cells in planned(config).cells.values() for cell in cells.values())
    later = {**cell.hyper["trainer"], "evaluate": "last"}
    cell = replace(cell, hyper={**cell.hyper, "trainer": later})
    assert "evaluate" not in cell.identity()["hyper"]["trainer"]
    now = {group: {**values, "evaluate": "every"} for group, values in cell.hyper.items()}
    monkeypatch.setattr("gpufeed.core.compose.read_hyper", lambda group, name: now[group])
    assert restored(cell.identity()).hyper["trainer"]["evaluate"] == "last"


def test_the_primary_config_has_every_axis_with_the_cells_own_default():
    primary = read_primary()
    other = {"defaults", "trainer", "hydra", "data_folder", "archives", "cache_decoder", "seed"}
    assert set(primary) >= OWN_AXES | other
    cell = Cell("e", "d", "resident")
    ours = {axis: getattr(cell, axis) for axis in OWN_AXES}
    assert {axis: primary[axis] for axis in OWN_AXES} == {**ours, "prefetch_factor": 2}
    config = merged("config.yaml")
    same = ("archives", "cache_decoder", "data_form", "least_download_kb_s", "tracking")
    for ours, theirs in (("data_folder", "data"), *zip(same, same, strict=True)):
        assert primary[ours] == config[theirs]
    assert primary["max_quarantined_share"] == config["max_quarantined_share"]


def test_every_key_of_the_primary_config_says_what_it_means():
    text = (REPOSITORY / "config/hydra/train.yaml").read_text()
    lines = {line.split(":")[0]: line for line in text.splitlines() if line[:1].isalpha()}
    assert [key for key, line in lines.items() if "#" not in line and key not in ("defaults", "hydra")] == []


def test_accelerator_and_devices_are_no_hyper_parameters():
    plain = hydras("trainer.accelerator=cpu", "trainer.devices=1", "trainer=plain")
    assert (plain.device, plain.overrides) == ("cpu", ())
    assert "accelerator" not in plain.hyper["trainer"]
    assert hydras("trainer.accelerator=gpu").device in ("cuda", "mps")


def test_overrides_of_hyper_parameters_are_kept_as_typed():
    typed = ("model=resnet18", "model.stem=cifar", "trainer.learning_rate=1e-2", "trainer.devices=1")
    assert changes_of(typed) == ("model.stem=cifar", "trainer.learning_rate=1e-2")
    cell = hydras(*typed, "augment.crop_padding=2")
    assert cell.overrides == ("model.stem=cifar", "trainer.learning_rate=1e-2", "augment.crop_padding=2")
    assert cell.hyper["trainer"]["learning_rate"] == 0.01


REFUSED = [
    ("loader=residnt", "loader 'residnt'", "resident", "write 'resident'"),
    ("model=vit_tinny", "model 'vit_tinny'", "vit_tiny", "write 'vit_tiny'"),
    ("data=[cifar10]", "not one data", "one option", "--multirun data=A,B"),
    ("data=cifar", "data 'cifar'", "cifar10", "write 'cifar10'"),
    ("batch_size=x", "batch_size: 'x'", "integer", "correct batch_size"),
    ("batch_size=[8,16]", "batch_size [8, 16]", "one value", "--multirun batch_size=8,16"),
    ("batch_size=0", "batch_size: 0", "at least 1", "correct"),
    ("precision=bf17", "precision 'bf17'", "bf16", "write 'bf16'"),
    ("trainer.learning_rate=-1", "trainer.learning_rate: -1", "above 0", "correct"),
    ("trainer.accelerator=tpu", "trainer.accelerator 'tpu'", "gpu", ""),
    ("trainer.devices=0", "trainer.devices 0", "a number of 1 or more", "CUDA_VISIBLE_DEVICES"),
    ("trainer.num_nodes=0", "trainer.num_nodes 0", "a number of 1 or more", "how many nodes"),
    ("trainer.devices=[0,1]", "trainer.devices [0, 1]", "a number", "CUDA_VISIBLE_DEVICES"),
    ("modle=x", "modle", "augment, batch_size", "write 'model' instead"),
    ("trainer.lr=1", "trainer.lr", "trainer.learning_rate", ""),
    ("batch_size=${nope}", "nope", "", "--help"),
    ("tracking.mode=on", "tracking.mode: 'on'", "offline, online", "correct tracking.mode"),
    ("data_folder=5", "data_folder: 5", "type string", "correct data_folder"),
    ("max_quarantined_share=2", "max_quarantined_share: 2", "at most 0.5", "correct"),
    ("+epoch=5", "key 'epoch'", "epochs", "write 'epochs'"),
    ("seed=-1", "seed: -1", "at least 0", "correct seed"),
    ("data.options.count=1", "data.options.count: 1", "at least 2", "correct"),
    ("data.options.evaluation_share=0", "has no evaluation split", "evaluation_share above 0", ""),
    ("loader=dataloader_workers", "needs at least one worker", "a combination that can exist", "change"),
]


@pytest.mark.parametrize(("argument", "found", "expected", "remedy"), REFUSED, ids=lambda part: part[:30])
def test_what_cannot_be_meant_is_found_expected_and_what_to_do(argument, found, expected, remedy):
    with pytest.raises(GpufeedError) as error:
        hydras(argument)
    assert found in error.value.found
    assert expected in error.value.expected
    assert remedy in error.value.remedy


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("batch_size=0", "type integer; at least 1; at most 1000000"),
        ("compile=3", "type boolean"),
        ("archives=3", "type array"),  # which is meant to be a list
    ],
)
def test_what_may_be_a_list_in_the_config_alone_is_not_told_by_hand(argument, expected):
    with pytest.raises(GpufeedError) as error:
        hydras(argument)
    assert error.value.expected.startswith(expected)


def test_a_patch_that_does_not_divide_is_found_before_training():
    with pytest.raises(GpufeedError, match=r"heads 5"):
        hydras("model=vit_lite", "model.heads=5")


VALUES = st.one_of(
    st.booleans(),
    st.none(),
    st.integers(-(10**9), 10**9),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), max_size=12),
    st.lists(st.integers(0, 99), max_size=4),
)


@given(VALUES)
@settings(max_examples=60)
def test_values_come_through_hydras_grammar_as_they_are(value):
    if isinstance(value, str) and ("${" in value or "\\" in value or '"' in value):
        return  # interpolations and quotes have a grammar of their own; no option is such a text
    from hydra.core.override_parser.overrides_parser import OverridesParser

    parsed = OverridesParser.create().parse_override(f"key={hydra_value(value)}").value()
    plain = str(parsed)[1:-1] if type(parsed).__name__ == "QuotedString" else parsed
    assert plain == value


@given(st.floats(1e-12, 1e6), st.text(max_size=20), st.integers(1, 512))
@settings(max_examples=40)
def test_a_cells_file_gives_back_the_whole_cell(tmp_path_factory, rate, text, workers):
    path = tmp_path_factory.getbasetemp() / "cell.yaml"
    hyper = {"model": {"channels": [1, 2]}, "trainer": {"learning_rate": rate}, "augment": {}}
    cell = Cell("e", "d", "resident", workers=workers, overrides=("a.b=1", text), hyper=hyper)
    compose.write_cell(path, cell, "What it is,\n\nin words.")
    assert compose.read_cell(path) == json.loads(json.dumps(cell.asdict()))
    assert path.read_text().startswith("# What it is,\n#\n# in words.\nexperiment: e\ndataset: d\n")
    assert not list(path.parent.glob("*.partial"))


@pytest.mark.parametrize("text", [None, "a: [", "1", "dataset: d\n", "dataset: d\ndataset: e\n", b"\xff\xfe"])
def test_a_file_that_is_no_cell_is_named(tmp_path, text):
    path = tmp_path / "cell.yaml"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(GpufeedError, match=r"no readable cell at|twice") as error:
        compose.read_cell(path)
    assert str(path) in error.value.found


def test_composing_imports_no_torch_and_hydra_only_when_it_is_called():
    code = (
        "import sys; from gpufeed.core import compose, config; "
        "print(*(name for name in ('torch', 'numpy', 'hydra') if name in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == ""


def test_values_of_a_composed_command_are_plain_data():
    offer({name: row(shipped(), name) for name in shipped()["sources"]})
    found = composed(["data=tiny_imagenet", "model=vit_tiny", "data.times=3"])
    assert cell_from(found, shipped()).source["times"] == 3
    assert isinstance(found, Composed)
    assert json.loads(json.dumps(found.values)) == found.values
    assert found.values["data"]["layout"] == "tiny_imagenet"
    assert found.choices.items() >= {"data": "tiny_imagenet", "model": "vit_tiny", "augment": "torch"}.items()
    assert "trainer" in found.choices


def test_a_loader_by_reference_has_options_and_others_have_none():
    typed = ["loader=my_loader.py:Cached", "loader.pause_ms=3", "model.width=4", "batch_size=8"]
    taken = compose.for_hydra(typed)
    assert taken == [typed[0], "+loader_options.pause_ms=3", *typed[2:]]
    found = compose.from_hydra({"batch_size": 8, "loader_options": {"pause_ms": 3}}, {}, taken)
    assert found == Composed({"batch_size": 8}, {}, tuple(typed))
    assert changes_of(found.texts) == ("loader.pause_ms=3", "model.width=4")
    assert compose.for_hydra(["loader=resident"]) == ["loader=resident"]
    with pytest.raises(GpufeedError, match=r"loader.pause_ms on the command line[^$]*by reference"):
        compose.for_hydra(["loader=resident", "loader.pause_ms=3"])


@pytest.mark.slow
def test_a_cell_with_a_dataset_and_a_loader_of_files_comes_from_its_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "items.py").write_text(ITEMS)
    (tmp_path / "data.py").write_text(DATA)
    block = {"dataset": "data.py:Data", "loader": "items.py:Items", "batch_size": 8, "steps": 4}
    block |= {"augment": "torch", "overrides": [["loader.pause_ms=3", "trainer.learning_rate=0.02"]]}
    experiment = {"title": "t", "question": "q", "blocks": {"b": block}}
    config = copy.deepcopy({**shipped(), "run": ["train"], "experiments": {"train": experiment}})
    (planned_cell,) = planned(config).cells["train"].values()
    words = shlex.split(
        standalone_command(planned_cell, config).partition("gpufeed.train")[2].replace("\\\n", " ")
    )
    assert words[0] == "data=data.py:Data"
    offer_references(words)
    cell = cell_from(composed(words), shipped())
    assert cell.identity() == planned_cell.identity()
    assert cell.dataset == "data.Data"
    assert cell.hyper["loader"] == {"pause_ms": 3}
    assert set(cell.hyper["code"]) == {"items.py"}
    with_options = cell_from(composed([*words, "++data.options.size=32"]), shipped())
    assert with_options.source == {**cell.source, "options": {"size": 32}}

"""Keys of profiles: which of them somebody reads, and where each stands that holds."""

import re
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
import snakemake_executor_plugin_slurm
import yaml
from data_fixtures import REPOSITORY

sys.path.append(str(REPOSITORY / "slurm"))
keys = import_module("profile_keys")

WORKFLOW = SimpleNamespace(rules=[], global_resources={"slots": 1})


@pytest.fixture
def said(tmp_path, monkeypatch):
    """Runs a function of the module on profiles a, b, ... of these contents, in a folder of their own."""

    def said(function, *profiles: dict, more=()):
        monkeypatch.chdir(tmp_path)
        arguments = []
        for name, content in zip("abc", profiles, strict=False):
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / "config.yaml").write_text(yaml.safe_dump(content))
            arguments += ["--profile", name]
        return function([*arguments, *more])

    return said


def unheard(arguments: list[str]) -> list[tuple[str, str, str]]:
    return list(keys.unheard(WORKFLOW, arguments))


def test_every_resource_that_the_executor_reads_is_known():
    """So that its next version, which may read more, is noticed here."""
    folder = Path(snakemake_executor_plugin_slurm.__file__).parent
    text = "\n".join(path.read_text() for path in folder.glob("*.py"))
    read = {
        name for pair in re.findall(r'resources(?:\.get\(\s*"(\w+)"|\.(\w+))', text) for name in pair if name
    }
    assert read - {"get", "items", "keys"} <= set(keys.RESOURCES)
    assert {"gres", "slurm_extra", "qos"} <= read


def test_every_resource_of_our_profiles_is_known():
    for path in REPOSITORY.glob("slurm/**/config.yaml"):
        for _, name in keys.resources_in(yaml.safe_load(path.read_text())):
            assert name in keys.RESOURCES


def test_misspelt_resources_are_told_with_the_nearest(said):
    profile = {
        "default-resources": {"sweep_constrain": "A100-80GB", "mem_mb": 1, "slots": 1},
        "set-resources": {"gate": {"runtme": 3}},
    }
    assert said(unheard, profile) == [
        ("a/config.yaml", "set-resources: gate", ""),
        ("a/config.yaml", "default-resources: sweep_constrain", "default-resources: sweep_constraint"),
        ("a/config.yaml", "set-resources: gate: runtme", "set-resources: gate: runtime"),
    ]
    listed = {"default-resources": ["mem_mb=1", "qoss=x"]}
    assert said(unheard, listed) == [("a/config.yaml", "default-resources: qoss", "default-resources: qos")]


def test_misspelt_resources_of_the_command_line_are_told(said):
    found = said(unheard, {"default-resources": {"qos": "a"}}, more=["--default-resources", "qo=a"])
    assert found == [("the command line", "default-resources: qo", "default-resources: qos")]


def test_where_keys_stand_that_hold(said):
    first = {"executor": "slurm", "default-resources": {"qos": "a"}, "set-resources": {"gate": {"gres": "x"}}}
    second = {"default-resources": {"mem_mb": 1}}
    found = said(keys.written, first, second)
    assert found["executor"] == found["gres"] == found["set-resources"] == "a/config.yaml"
    assert found["default-resources"] == found["mem_mb"] == found[""] == "b/config.yaml"
    assert "qos" not in found  # lost
    for option in ("--default-resources", "--default-res"):
        found = said(keys.written, first, second, more=[option, "qos=b"])
        assert found["default-resources"] == found["qos"] == "the command line"
        assert found["gres"] == "a/config.yaml"
    found = said(keys.written, first, second, more=["--set-resources", "gate:gres=gpu:H200:1"])
    assert found["set-resources"] == found["gres"] == "the command line"


def test_a_resource_may_stand_alone():
    given = {"default-resources": "mem_mb=100", "set-resources": "gate:runtime=3"}
    assert keys.resources_in(given) == [("default-resources", "mem_mb"), ("set-resources: gate", "runtime")]

"""Keys of profiles: which of them somebody reads."""

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
def unheard(tmp_path, monkeypatch):
    """What nobody reads in a profile of this content."""

    def unheard(content: dict) -> list[tuple[str, str, str]]:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "a").mkdir(exist_ok=True)
        (tmp_path / "a/config.yaml").write_text(yaml.safe_dump(content))
        return list(keys.unheard(WORKFLOW, ["--profile", "a"]))

    return unheard


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
        names = keys.names_in(yaml.safe_load(path.read_text()))
        found = [name for kind, _, name in names if kind == "resource"]
        assert {"mem_mb", "runtime"} <= set(found) <= set(keys.RESOURCES)


def test_misspelt_keys_are_told_with_the_nearest(unheard):
    profile = {
        "default-resource": {},
        "default-resources": {"sweep_constrain": "A100-80GB", "mem_mb": 1, "slots": 1},
        "set-resources": {"gate": {"runtme": 3}},
    }
    assert sorted(unheard(profile)) == [
        ("a/config.yaml", "default-resource", "default-resources"),
        ("a/config.yaml", "default-resources: sweep_constrain", "default-resources: sweep_constraint"),
        ("a/config.yaml", "set-resources: gate", ""),
        ("a/config.yaml", "set-resources: gate: runtme", "set-resources: gate: runtime"),
    ]


@pytest.mark.parametrize("given", [["mem_mb=1", "qoss=x"], "qoss=x"])
def test_default_resources_may_be_a_list_or_stand_alone(unheard, given):
    assert unheard({"default-resources": given}) == [
        ("a/config.yaml", "default-resources: qoss", "default-resources: qos")
    ]

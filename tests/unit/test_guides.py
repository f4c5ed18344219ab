"""docs/lab/guides.md: every name on our side of its tables exists."""

import ast
import inspect
import re
import shlex
from functools import cache
from pathlib import Path

import pytest
import yaml
from data_fixtures import REPOSITORY
from test_shipped import CONFIG, published

from gpufeed import PUBLIC
from gpufeed.benchmarks.kernels.activation_work import MAKERS
from gpufeed.core.compose import cell_from, composed, offer, row, shipped
from gpufeed.core.errors import GpufeedError
from gpufeed.core.registry import KINDS
from gpufeed.loaders.gpu_only_dataset import GPUOnlyDataset

PAGE = (REPOSITORY / "docs/lab/guides.md").read_text()


HYDRA = REPOSITORY / "config/hydra"


TRAIN = yaml.safe_load((HYDRA / "train.yaml").read_text())


def spans() -> list[str]:
    """What the page has in code type; the guides' own words, the first column of its tables, have none."""
    return sorted(set(re.findall(r"`([^`]+)`", PAGE)))


def words(node: object) -> set[str]:
    """Every key and every text of a schema or a config."""
    if isinstance(node, dict):
        return {str(key) for key in node} | {word for value in node.values() for word in words(value)}
    if isinstance(node, list):
        return {word for value in node for word in words(value)}
    return {node} if isinstance(node, str) else set()


@cache
def known() -> set[str]:
    """What is registered, configured, a rule, a column of a table, or a way to run a kernel."""
    files = [*(REPOSITORY / "gpufeed/core/schemas").glob("*.yaml"), *HYDRA.rglob("*.yaml")]
    found = {word for path in files for word in words(yaml.safe_load(path.read_text()))}
    for path in (REPOSITORY / "rules").glob("*.smk"):
        found |= set(re.findall(r"^rule (\w+):", path.read_text(), re.MULTILINE))
    registered = {name for kind in KINDS.values() for name in kind}
    return found | registered | words(CONFIG) | set(MAKERS) | set(published("pipelining").columns)


def is_file(span: str) -> bool:
    """path, or path::test"""
    path, _, test = span.partition("::")
    place = REPOSITORY / path
    return place.exists() and (not test or f"def {test}(" in place.read_text())


def module_file(module: str, package_file: str = "__init__.py") -> Path:
    path = REPOSITORY / module.replace(".", "/")
    return path / package_file if path.is_dir() else path.with_suffix(".py")


def is_attribute(span: str) -> bool:
    """gpufeed.module.Name, which the module defines or imports; nothing is imported here."""
    module, _, name = span.rpartition(".")
    if module == "gpufeed" and name in PUBLIC:
        module = PUBLIC[name]
    if not module.startswith("gpufeed") or not module_file(module).is_file():
        return False
    nodes = ast.parse(module_file(module).read_text()).body
    return any(
        name in {own.name for own in getattr(node, "names", [node]) if hasattr(own, "name")} for node in nodes
    )


def is_block(span: str) -> bool:
    """experiment.block"""
    experiment, _, block = span.partition(".")
    return block in CONFIG["experiments"].get(experiment, {}).get("blocks", {})


@cache
def options(key: str) -> list[str]:
    """The choices of its group with which a hyper-parameter is there, such as model=resnet18."""
    group, _, name = key.rpartition(".")
    files = sorted((HYDRA / group).glob("*.yaml")) if group else []
    return [f"{group}={path.stem}" for path in files if name in yaml.safe_load(path.read_text())]


def is_setting(span: str) -> bool:
    """key, key=value as on the command line, key: value as in a config, or an option of GPUOnlyDataset."""
    found = re.fullmatch(r"([\w.]+)(?:(=|: )(.+))?", span)
    if found is None:
        return False
    key, sign, value = found.groups()
    group, _, name = key.rpartition(".")
    if sign == ": ":
        return {key, value} <= known()
    if key in inspect.signature(GPUOnlyDataset).parameters:
        return True
    if not sign:
        return bool(options(key)) or (group in TRAIN and name in TRAIN[group])
    return any(
        composes(other, span) for other in options(key) or ["loader=resident", "loader=dataloader_workers"]
    )


@cache
def composes(*arguments: str) -> bool:
    """Whether the command line of a training by hand takes these arguments."""
    try:
        cell_from(composed(arguments), shipped())
    except GpufeedError:
        return False
    return True


def is_command(span: str) -> bool:
    match shlex.split(span):
        case ["snakemake", "--profile", name]:
            return (REPOSITORY / name / "config.yaml").is_file()
        case ["snakemake", target, *_]:
            return target in CONFIG["experiments"]
        case ["make", target, *_]:
            return f"\n{target}:" in (REPOSITORY / "Makefile").read_text()
        case ["python", "-m", module, *flags]:
            file = module_file(module, "__main__.py")
            return file.is_file() and all(f'"{flag}"' in file.read_text() for flag in flags)
        case ["python", "train.py", *arguments]:
            return is_file("train.py") and composes(*arguments)
        case ["pip", "install", "."] | ["python", "setup.py", "install"]:
            return is_file("setup.py")
        case ["pip", "install", extras, "--constraint", file]:
            project = (REPOSITORY / "pyproject.toml").read_text()
            return all(f"\n{extra} = [" in project for extra in extras[2:-1].split(",")) and is_file(file)
        case ["docker", "compose", "up", "--build"]:
            return is_file("compose.yaml")
    return False


def exists(span: str) -> bool:
    if re.match(r"(snakemake|make|python|pip|docker) ", span):
        return is_command(span)
    return span in known() or is_file(span) or is_block(span) or is_setting(span) or is_attribute(span)


@pytest.fixture(scope="module", autouse=True)
def sources():
    offer({name: row(shipped(), name) for name in shipped()["sources"]})


@pytest.mark.parametrize("span", spans())
def test_every_name_on_our_side_exists(span):
    assert exists(span)


@pytest.mark.parametrize(
    "span",
    [
        *("dali_tpu", "docs/guide.md", "tests/unit/test_guides.py::test_nothing", "pipelining.blocks"),
        *("augment.blur", "trainer.optimiser=rmsprop", "model.heads=7", "batch_size=0", "device: tpu"),
        *("snakemake nothing --cores 8", "make coffee", "python -m gpufeed.compare --a-cross"),
        "gpufeed.loaders.gpu_only_dataset.CPUOnlyDataset",
    ],
)
def test_a_name_that_is_not_there_would_be_found(span):
    assert not exists(span)


def test_the_guides_own_words_are_not_in_code_type():
    rows = [line for line in PAGE.splitlines() if line.startswith("|")]
    assert len(rows) > 100
    assert not [line for line in rows if "`" in line.split("|")[1]]

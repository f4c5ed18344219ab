"""What profiles/default says of a wrong command line or config, before Snakemake reads them."""

import sys

import pytest
import yte
from data_fixtures import REPOSITORY

PROFILE = (REPOSITORY / "profiles/default/config.yaml").read_text()


@pytest.fixture
def read(monkeypatch, tmp_path):
    """Return a function that reads the profile as Snakemake does, in a folder: its arguments -> the keys."""
    monkeypatch.chdir(tmp_path)

    def told(*arguments):
        monkeypatch.setattr(sys, "argv", ["snakemake", *arguments])
        return yte.process_yaml(PROFILE, require_use_yte=True)

    return told


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b"experiments:\n  own:\n\ttitle: x\n", "line 3, column 1"),
        (b"run: [demo\n", "line 1, column 6"),
        (b"seed: *nowhere\n", "line 1, column 7"),
        (b"\xff\xfe", "can't decode byte 0xff"),
        (b"seed: 2024-13-45\n", "month must be in 1..12"),
        (b"", "has no keys"),
        (b"- run\n", "has no keys"),
    ],
)
@pytest.mark.parametrize("name", ["my.yaml", "config/config.yaml"])
def test_a_config_that_cannot_be_read_is_refused_with_its_name_and_line(read, tmp_path, name, text, found):
    (tmp_path / "config").mkdir()
    (tmp_path / name).write_bytes(text)
    with pytest.raises(SystemExit) as refused:
        read("demo", *(["--configfile", name] if name == "my.yaml" else []))
    first, _, remedy = refused.value.code.splitlines()
    assert first.startswith(f"found: {name} ")
    assert found in first
    assert remedy == f"what to do: correct {name}"


def test_a_folder_is_no_config(read, tmp_path):
    (tmp_path / "config").mkdir()
    with pytest.raises(SystemExit, match=r"found: config is no YAML: .*directory"):
        read("--configfile", "config")


def test_a_config_that_snakemake_can_read_passes(read, tmp_path):
    (tmp_path / "tabs.json").write_text('{\n\t"seed": 1\n}')
    (tmp_path / "my.yaml").write_text("run: [demo]\n")
    assert read("demo", "--configfile", "my.yaml", "tabs.json", "--config", "seed=1", "-n")["cores"] == "all"
    assert read("--config", "base64//c2VlZD0x")["cores"] == "all"  # as Snakemake starts its jobs


@pytest.mark.parametrize(
    ("lost", "remedy"),
    [
        ("nowhere.yaml", "correct the path"),
        ("mine.yaml", "write my.yaml"),
        ("demo", "snakemake demo --configfile my.yaml"),
        ("results/evaluation.json", "snakemake results/evaluation.json --configfile my.yaml"),
    ],
)
def test_a_config_that_is_not_there_is_to_be_corrected_and_a_target_to_be_moved(read, tmp_path, lost, remedy):
    (tmp_path / "my.yaml").write_text("run: [demo]\n")
    with pytest.raises(SystemExit) as refused:
        read("--configfile", "my.yaml", lost)
    assert refused.value.code.splitlines()[2] == f"what to do: {remedy}"


@pytest.mark.parametrize("option", ["--config", "-C"])
def test_a_target_behind_config_is_told_where_it_belongs(read, option):
    with pytest.raises(SystemExit) as refused:
        read("-n", option, "quick=true", "demo")
    assert refused.value.code.splitlines()[2].startswith("what to do: snakemake demo --config quick=true,")

"""The command that the report tells measures with the same config, wherever it is copied to."""

import shlex
from pathlib import Path

import pytest
from snakemake.cli import parse_config

from gpufeed.core.rerun_options import options

GIVEN = [
    "repeats=2",
    "run=[feed,inference]",
    "results=/tmp/some where",
    "telemetry=False",
    "least_s=0.5",
    "baseline=",
    "use_instead={cifar10: cifar10_jpeg}",
]


@pytest.mark.parametrize("given", [[one] for one in GIVEN] + [GIVEN])
def test_what_config_set_is_read_back_from_the_command(given):
    changed = parse_config(given)
    (told,) = options([], changed, ".")
    option, *words = shlex.split(told)
    assert option == "--config"
    assert parse_config(words) == changed


def test_files_are_told_from_the_folder_of_the_run_and_behind_one_option(tmp_path):
    inside, outside = tmp_path / "here/config/a b.yaml", tmp_path / "else.yaml"
    (told,) = options([inside, outside], {}, tmp_path / "here")
    assert shlex.split(told) == ["--configfile", str(Path("config/a b.yaml")), str(outside)]
    assert options([], {}, tmp_path, tmp_path / "Snakefile") == []
    (told,) = options([], {}, tmp_path / "here", tmp_path / "a clone/Snakefile")
    assert shlex.split(told) == ["--snakefile", str(tmp_path / "a clone/Snakefile")]


def test_the_part_that_a_run_measured_is_not_said_again():
    changed = parse_config(["block=2", "only={cores: [2]}", "repeats=2"])
    assert options([], changed, ".") == ["--config repeats=2"]
    (told,) = options([], changed, ".", part=True)
    assert parse_config(shlex.split(told)[1:]) == changed

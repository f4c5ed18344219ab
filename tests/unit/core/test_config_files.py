"""Config files as YAML: keys that are there twice, anchors, and what is no YAML."""

import pytest
import yaml
from config_fixtures import LEAVES
from hypothesis import given
from hypothesis import strategies as st

from gpufeed.core.config import HYPER, read_hyper
from gpufeed.core.config_schema import check_files, read_yaml
from gpufeed.core.errors import GpufeedError

DEEP = st.recursive(
    LEAVES, lambda values: st.lists(values) | st.dictionaries(st.text(max_size=4), values), max_leaves=8
)


@given(DEEP, st.text("abc", min_size=1, max_size=4), st.lists(st.booleans(), max_size=5), st.booleans())
def test_a_key_that_a_mapping_has_twice_is_refused_at_any_depth(beside, key, way, flow):
    deep, path = {"FIRST": beside, "other": [{key: 1}, {key: 2}], "SECOND": beside}, ""
    for of_list in way:
        deep, path = ([beside, deep], f"1.{path}") if of_list else ({"in": deep}, f"in.{path}")
    text = yaml.safe_dump(deep, default_flow_style=flow, sort_keys=False)
    if text.count("FIRST") + text.count("SECOND") > 2:
        return  # as a leaf
    assert read_yaml(text, "my.yaml") == yaml.safe_load(text)
    lines = [text[: text.index(name)].count("\n") + 1 for name in ("FIRST", "SECOND")]
    with pytest.raises(GpufeedError) as error:
        read_yaml(text.replace("FIRST", key).replace("SECOND", f"'{key}'"), "my.yaml")
    where = f"twice in my.yaml, in lines {lines[0]} and {lines[1]}"
    assert error.value.found == f"key '{path}{key}' {where}"


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a: &a {x: 1, y: 1}\nb: {<<: *a, x: 2}\nc: *a", {"a": {"x": 1, "y": 1}, "b": {"x": 2, "y": 1}}),
        ("a: &a {x: 1}\nb: &b {y: 2}\nc: {<<: *a, <<: *b, =: 3}", {"c": {"x": 1, "y": 2, "=": 3}}),
        ("a: {x: 1}\nb: {x: 1}", {}),
        ("1: a\n'1': b", {1: "a", "1": "b"}),
        ("# nothing", None),
    ],
)
def test_anchors_merges_and_the_same_key_elsewhere_are_legal(text, values):
    found = read_yaml(text, "my.yaml")
    assert found == yaml.safe_load(text)
    assert values is found is None or found | values == found


@pytest.mark.parametrize("text", ["1: a\n0x1: b", "a: &a {x: 1}\nb: [*a, {yes: 1, true: 2}]"])
def test_two_ways_to_write_a_key_are_one(text):
    with pytest.raises(GpufeedError, match="twice"):
        read_yaml(text, "my.yaml")


@pytest.mark.parametrize("text", ["day: 2026-13-45", "[" * 3000, "a: [", "!!int a: 1"])
def test_what_is_no_yaml_is_one_kind_of_error(text):
    with pytest.raises(yaml.YAMLError):
        read_yaml(text, "my.yaml")


def test_hyper_parameters_are_refused_with_a_key_twice(tmp_path, monkeypatch):
    (tmp_path / "config/hydra/model").mkdir(parents=True)
    text = (HYPER / "model/simple_cnn.yaml").read_text()
    (tmp_path / "config/hydra/model/simple_cnn.yaml").write_text(f"{text}\nchannels: [3]\n")
    monkeypatch.setattr("gpufeed.core.config.HYPER", tmp_path / "config/hydra")
    with pytest.raises(GpufeedError, match=r"key 'channels' twice in config/hydra/model/simple_cnn\.yaml"):
        read_hyper("model", "simple_cnn")


def test_config_files_are_checked_whatever_their_form(tmp_path):
    twice, fine, none = tmp_path / "twice.json", tmp_path / "fine.json", tmp_path / "none.yaml"
    twice.write_text('{\n\t"experiments": {\n\t\t"mine": {},\n\t\t"mine": {}\n\t}\n}\n')
    fine.write_text('{\n\t"seed": 1\n}\n')
    none.write_text("a: [")  # which Snakemake tells
    check_files([fine, none, tmp_path / "missing.yaml", "/dev/null"])
    with pytest.raises(GpufeedError, match=rf"'experiments\.mine' twice in {twice}, in lines 3 and 4"):
        check_files([str(fine), str(twice)])
    shipped, lines = (HYPER.parent / "config.yaml").read_text(), tmp_path / "config.yaml"
    lines.write_text(f"{shipped}mine: {{}}\nmine: {{}}\n")
    end = shipped.count("\n")
    with pytest.raises(GpufeedError, match=rf"'mine' twice in {lines}, in lines {end + 1} and {end + 2}"):
        check_files([lines])

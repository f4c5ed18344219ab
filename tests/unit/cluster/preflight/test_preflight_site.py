"""Files of sites: what they may hold, and how a wrong one is told."""

from pathlib import Path

import pytest

from gpufeed.cluster.preflight.command import main
from gpufeed.cluster.preflight.site import PROFILES, Qos, read_site, sites
from gpufeed.core.errors import GpufeedError


def changed(folder, before, after):
    """PACE ICE with a part of its file replaced."""
    text = (PROFILES / "pace-ice/site.yaml").read_text()
    assert before in text
    (folder / "mine").mkdir()
    (folder / "mine/site.yaml").write_text(text.replace(before, after))
    return read_site("mine", folder)


@pytest.mark.parametrize("account", ["account: ''", "account:"])
def test_a_site_without_accounts(tmp_path, account):
    site = changed(tmp_path, "account: 'the code of your college, such as coc'", account)
    assert site.account == ""


@pytest.mark.parametrize("qos", ["qos: {}\n", "qos:\n"])
def test_a_site_without_qos(tmp_path, qos):
    before = "qos:\n  coc-ice: {hours: 16, gpu_hours: 16}\n  pace-ice: {hours: 16, gpu_hours: 16}\n"
    assert changed(tmp_path, before, qos).qos == {}


def test_a_scratch_by_variables(tmp_path, monkeypatch):
    monkeypatch.setenv("USER", "gp")
    site = changed(tmp_path, "folder: ~/scratch", "folder: '/scratch/$USER/${USER}s'")
    assert site.scratch.folder == Path("/scratch/gp/gps")


def test_a_site_without_its_file_names_the_file(tmp_path):
    (tmp_path / "mine").mkdir()
    with pytest.raises(GpufeedError, match=r"mine/site\.yaml: .*No such file"):
        read_site("mine", tmp_path)


def test_a_misspelt_site_is_told_with_the_nearest(capsys):
    assert main(["--site", "pace-icy"]) == 2
    said = capsys.readouterr().err
    assert "found: site 'pace-icy'" in said
    assert "write 'pace-ice' instead" in said


def test_the_sites_that_ship():
    assert sites() == ["pace-ice", "pace-phoenix"]
    assert {name: set(read_site(name).qos) for name in sites()} == {
        "pace-ice": {"coc-ice", "pace-ice"},
        "pace-phoenix": {"embers", "inferno"},
    }
    assert read_site("pace-phoenix").qos["embers"] == Qos(hours=8, preempted_after_hours=1)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("qos:\n", "qos: [\n", "a YAML file"),
        ("qos:\n", "qos: {}\nqos:\n", "key 'qos' twice in"),
        ("name: PACE ICE\n", "", "no 'name' in"),
        ("name: PACE ICE\n", "name: x\nmodule: x\n", "key 'module' in"),
        ("{hours: 16, gpu_hours: 16}", "{hours: sixteen}", "qos.coc-ice.hours: 'sixteen'"),
        ("{hours: 16, gpu_hours: 16}", "{hours: 0}", "qos.coc-ice.hours: 0"),
        ("{hours: 16, gpu_hours: 16}", "{days: 3}", "key 'days' in qos.coc-ice"),
        ("files: 1000000", "files: many", "scratch.files: 'many'"),
        ("H200: '9.0'", "H200: 9", "gpus.H200: 9"),
        ("H200: '9.0'", "H200: '9'", "gpus.H200: '9'"),
        ("A100-40GB: A100,", "A100-40GB: 100,", "constraints.A100-40GB: 100"),
        ("A100-40GB: A100,", "80: A100,", "constraints: 80"),
    ],
)
def test_a_wrong_value_in_a_sites_file_is_told(tmp_path, before, after, said):
    with pytest.raises(GpufeedError) as error:
        changed(tmp_path, before, after)
    assert said in str(error.value)
    assert str(tmp_path / "mine/site.yaml") in str(error.value)

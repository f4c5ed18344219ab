"""The digest of what is installed, and the container's name."""

import shutil
import sys

import pytest

from gpufeed.system import environment as of


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """Makes these (name, version) the installed distributions."""

    def install(*pairs):
        shutil.rmtree(tmp_path / "site", ignore_errors=True)
        for number, (name, version) in enumerate(pairs):
            named = f"Name: {name}\n" if name else ""
            text = f"Metadata-Version: 2.1\n{named}Version: {version}\n\nName: another\nVersion: 0\n"
            folder = tmp_path / f"site/{number}-1.dist-info"
            folder.mkdir(parents=True)
            (folder / "METADATA").write_text(text)
        monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
        of.software.cache_clear()
        return of.software()

    yield install
    of.software.cache_clear()


def test_the_digest_is_of_names_and_versions_in_any_order_and_spelling(installed):
    one = installed(("torch", "2.11.0"), ("Nvidia_DALI.cuda120", "2.4.0"), (None, "1"))
    assert one["packages"] == 2
    assert installed(("nvidia-dali-cuda120", "2.4.0"), ("torch", "2.11.0")) == one
    assert installed(("nvidia-dali-cuda120", "2.4.0"), ("torch", "2.11.1"))["digest"] != one["digest"]
    assert installed(("nvidia-dali-cuda120", "2.4.0"))["digest"] != one["digest"]


def test_a_description_names_no_other_distribution(installed):
    installed(("torch", "2.11.0"), ("Nvidia_DALI.cuda120", "2.4.0"))
    assert of.installed_packages() == ["nvidia-dali-cuda120==2.4.0", "torch==2.11.0"]


def test_the_container_is_named_without_its_folder(monkeypatch, tmp_path):
    for variable in of.IMAGE_VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(of, "IN_DOCKER", tmp_path / "none")
    assert of.container_image() is None
    monkeypatch.setattr(of, "IN_DOCKER", tmp_path)
    assert of.container_image() == "docker"
    monkeypatch.setenv("APPTAINER_CONTAINER", "/scratch/me/gpufeed.sif")
    assert of.container_image() == "gpufeed.sif"

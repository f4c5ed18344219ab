"""Folders, room and data: what compute nodes do not see, and what does not fit."""

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from preflight_fixtures import NODE

from gpufeed.cluster.preflight import software_checks, storage
from gpufeed.cluster.preflight.asked_plan import Plan
from gpufeed.cluster.preflight.command import findings
from gpufeed.cluster.preflight.login_node import said_by
from gpufeed.cluster.preflight.site import Scratch


def test_folders_that_compute_nodes_do_not_see(found, tmp_path):
    said = found(storage.folders, config={"data": "/dev/shm/data", "results": str(Path.home() / "results")})
    assert "data in /dev/shm/data, which compute nodes do not see" in said
    assert f"note: results in {Path.home()}/results, outside of scratch" in said


def test_a_link_on_scratch_to_what_compute_nodes_do_not_see(found, site, monkeypatch):
    monkeypatch.setattr(software_checks, "LOCAL", (Path("/dev/shm"),))  # the test's scratch may lie in /tmp
    link = site.scratch.folder / "linked"
    link.symlink_to("/dev/shm")
    said = found(storage.folders, config={"data": str(link / "data")})
    assert f"found: data in {link}/data (that is, /dev/shm/data), which compute nodes do not see" in said
    assert "note:" not in said


@pytest.fixture
def user():
    """Not root, to whom everything is open."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    yield
    if root:
        os.seteuid(0)


def test_folders_that_the_user_may_not_write(found, user):
    config = {"data": "/usr/none/data", "results": "/usr/none"}
    said = found(storage.folders, config=config, datasets=["made"])
    assert "found: data in /usr/none/data: you may not write into /usr\n" in said
    assert "found: results in /usr/none: you may not write into /usr\n" in said
    prepared = found(storage.folders, config=config)  # nothing is to be made there
    assert "note: data in /usr/none/data: you may not write into /usr\n" in prepared
    assert "found: results in /usr/none: you may not write into /usr\n" in prepared


def test_a_scratch_that_is_not_there(found, site):
    gone = replace(site, scratch=Scratch(site.scratch.folder / "gone", 1000))
    config = {key: str(gone.scratch.folder / key) for key in ("data", "results")}
    assert f"found: no folder {gone.scratch.folder}" in found(storage.folders, site=gone, config=config)


def test_answers_that_are_not_utf_8():
    assert said_by("printf", r"m\374ller") == "m\ufffdller"


def test_folders_are_mended_by_one_option(found, site):
    """Snakemake keeps the last --config alone."""
    gpufeed = site.scratch.folder / "gpufeed"
    both = found(storage.folders, config={"data": "/dev/shm/data", "results": "/dev/shm/results"})
    remedies = set(re.findall(r"what to do: (--config [^(]*) \(", both))
    assert remedies == {f"--config data={gpufeed}/data results={gpufeed}/results"}
    one = found(storage.folders, config={"results": "/dev/shm/results"})
    assert f"--config results={gpufeed}/results (" in one


def test_all_that_scratch_needs_is_one_option_with_what_was_given(site, tmp_path):
    """A second --config takes the first one away, so each remedy names all of them."""
    source = {"layout": "synthetic", "options": {"count": 2000}}
    source["files"] = [{"name": "a.tar", "urls": [f"file://{tmp_path}"], "size": 2**60}]
    given = {"data": "/dev/shm/none", "run": ["demo"]}
    config = {**given, "results": "/dev/shm/none", "sources": {"made": source}}
    plan = Plan("slurm", [], config, ["made"], given=given)
    lines = [str(one) for one in findings(plan, site, NODE)]
    options = [re.search(r"--config (.*?)(?: \(|$)", one, re.MULTILINE) for one in lines]
    gpufeed = site.scratch.folder / "gpufeed"
    one = f"data={gpufeed}/data 'run=[\"demo\"]' results={gpufeed}/results data_form=packed"
    assert [option[1] for option in options if option] == [one] * 4  # two folders, room, number of files


def images(count: int) -> dict:
    return {"sources": {"made": {"layout": "synthetic", "options": {"count": count}}}}


def test_too_many_files_for_scratch(found, site):
    for number in range(400):
        (site.scratch.folder / f"{number}.txt").touch()
    said = found(storage.file_count, config=images(601), datasets=["made"])
    assert f"400 files in {site.scratch.folder}, and 601 new ones" in said
    assert "at most 1,000 files" in said
    assert "--config data_form=packed" in said
    assert found(storage.file_count, config=images(600), datasets=["made"]) == ""
    copies = images(200)
    copies["sources"]["made"] |= {"copies": 3, "times": 7}  # the latter are rows alone
    assert found(storage.file_count, config=copies, datasets=["made"]) == ""
    copies["sources"]["made"]["copies"] = 5  # of the images to train on
    assert ", and 733 new ones" in found(storage.file_count, config=copies, datasets=["made"])
    packed = images(600) | {"data_form": "packed"}
    assert found(storage.file_count, config=packed, datasets=["made"]) == ""
    for number in range(598):
        (site.scratch.folder / f"more-{number}.txt").touch()
    said = found(storage.file_count, config=packed, datasets=["made"])
    assert f"998 files in {site.scratch.folder}, and 3 new ones" in said
    assert "data_form" not in said


def test_counting_ends(tmp_path):
    for number in range(50):
        (tmp_path / f"{number % 7}").mkdir(exist_ok=True)
        (tmp_path / f"{number % 7}" / f"{number}.txt").touch()
    assert storage.count_files(tmp_path, 1000) == (57, True)
    assert storage.count_files(tmp_path, 10)[0] > 10
    assert storage.count_files(tmp_path, 1000, seconds=-1)[1] is False
    assert storage.count_files(tmp_path / "none", 10) == (0, True)


def test_no_room_on_scratch(found):
    files = {"layout": "cifar10", "files": [{"name": "a.tar", "urls": ["/none"], "size": 2**60}]}
    said = found(storage.space, config={"sources": {"made": files}}, datasets=["made"])
    assert "GiB free in" in said
    assert "4294967296 GiB, for the images, their caches and stores" in said
    assert "name another folder: --config data=FOLDER (" in said  # this one lies on scratch already


def test_no_room_for_images_of_ones_own(found, tmp_path):
    (tmp_path / "own/a").mkdir(parents=True)
    (tmp_path / "own/a/1.jpg").write_bytes(bytes(100))
    own = {"layout": "image_folder", "folder": str(tmp_path / "own"), "resize": [2**20, 2**20]}
    said = found(storage.space, config={"sources": {"made": own}}, datasets=["made"])
    assert "6144 GiB, for the images, their caches and stores" in said  # decoded twice


def test_data_that_nobody_can_reach(found, site, tmp_path):
    there = tmp_path / "there.tar"
    there.touch()
    archives = tmp_path / "archives"
    archives.mkdir()
    (archives / "offline.tar").touch()
    files = [
        {"name": "there.tar", "urls": [f"file://{there}"]},
        {"name": "offline.tar", "urls": ["/none/offline.tar"]},
        {"name": "lost.tar", "urls": ["/none/lost.tar", "http://127.0.0.1:9/lost.tar"]},
    ]
    config = {"sources": {"made": {"files": files}}, "archives": [str(archives)]}
    said = found(storage.data, config=config, datasets=["made"])
    assert "found: lost.tar of made: neither here nor downloadable" in said
    manifest = site.scratch.folder / "data/made/manifest.parquet"
    manifest.parent.mkdir(parents=True)
    manifest.touch()  # prepared already: nothing has to be reached
    assert found(storage.data, config=config, datasets=["made"]) == ""


def test_archives_of_another_user(found, tmp_path, monkeypatch):
    """Their folder is closed; to root no folder is."""
    theirs, see = tmp_path / "theirs", Path.stat
    theirs.mkdir()

    def stat(path, **options):
        if theirs in path.parents:
            raise PermissionError(13, "Permission denied", str(path))
        return see(path, **options)

    monkeypatch.setattr(Path, "stat", stat)
    files = [{"name": "a.tar", "urls": [f"file://{theirs}/a.tar"]}]
    config = {"sources": {"made": {"files": files}}, "archives": [str(theirs), str(tmp_path)]}
    said = found(storage.data, config=config, datasets=["made"])
    assert f"found: {theirs} in archives of the config, which you may not read\n" in said
    assert "remove them from archives" in said
    assert "a.tar of made: neither here nor downloadable" in said
    assert storage.existing(theirs / "data") == theirs
    assert found(storage.data, config={"archives": [str(theirs)]}) == ""  # nothing to prepare
    below = {"data": str(theirs / "data"), "archives": [str(tmp_path / "none")]}
    assert "may not read" not in found(storage.data, config={**config, **below}, datasets=["made"])


def test_an_archive_that_is_not_here_and_has_no_address(found):
    files = [{"name": "only.zip", "sha256": "0" * 64}]
    said = found(storage.data, config={"sources": {"made": {"files": files}}}, datasets=["made"])
    assert "only.zip of made: neither here nor downloadable" in said
    assert "expected: the files, which have no URL" in said


def test_a_folder_of_images_that_is_not_here(found, site, tmp_path):
    config = {"sources": {"own": {"layout": "image_folder", "folder": str(tmp_path / "own")}}}
    said = found(storage.data, config=config, datasets=["own"])
    assert f"found: no folder {tmp_path / 'own'}" in said
    (tmp_path / "own/a").mkdir(parents=True)
    for number in range(site.scratch.files + 1):
        (tmp_path / f"own/a/{number}.jpg").touch()
    assert found(storage.data, config=config, datasets=["own"]) == ""
    assert f"{site.scratch.files + 1:,} new ones" in found(
        storage.file_count, config=config, datasets=["own"]
    )

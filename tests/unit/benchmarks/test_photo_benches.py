"""The benches of JPEGs of mixed sizes run as they are called, here without a GPU."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from data_fixtures import REPOSITORY
from hostile_fixtures import available
from PIL import Image

BENCHES = str(REPOSITORY / "tests/bench")
sys.path.append(BENCHES)
import by_turns  # noqa: E402

sys.path.remove(BENCHES)  # its coverage.py is not what numba looks for

pytestmark = pytest.mark.slow
QUICK = ["--device", "cpu", "--files", "8", "--copies", "1", "--passes", "2", "--seconds", "0.1"]


def document(tmp_path, bench: str, folder, *options: str) -> dict:
    """What a bench writes, of the numbers that it finds."""
    out = tmp_path / "out.json"
    command = [
        sys.executable,
        str(REPOSITORY / "tests/bench" / bench),
        str(folder),
        str(out),
        *QUICK,
        *options,
    ]
    subprocess.run(command, check=True, timeout=600, cwd=tmp_path)
    return json.loads(out.read_text())


def rates(row: dict) -> list[float]:
    return [row["images_per_s"][name] for name in ("min", "median", "max")]


def test_photo_jpeg_writes_rates_of_ours_and_others(tmp_path, photographs):
    available("simplejpeg")
    names = ["ours", "ours_kernels", "simplejpeg"]
    found = document(tmp_path, "photo_jpeg.py", photographs, "--batch-sizes", "4", "--only", *names)
    ours, kernels, other = found["rates"]
    assert [row["name"] for row in found["rates"]] == names
    assert kernels["host_ms_per_call"]["min"] > 0
    for row in (ours, kernels, other):
        assert 0 < rates(row)[0] <= rates(row)[1] <= rates(row)[2]
        assert (row["images_per_s"]["n"], row["batch_size"]) == (2, 4)
    assert ours["left_to_others"]["max"] == 0
    (ratio,) = found["ratios"]
    assert ratio["ours_over_best_rival"] == rates(ours)[1] / rates(other)[1]
    assert (found["files"], found["settings"]["device"]) == (8, "cpu")
    assert set(found["environment"]) >= {"commit", "versions", "gpu"}


def test_photo_jpeg_makes_crops_of_windows_and_of_whole_images(tmp_path, photographs):
    """Of eight files one is for others: of that there are no crops."""
    folder, (first, *paths) = tmp_path / "files", sorted(photographs.rglob("*.jpg"))[:8]
    folder.mkdir()
    for path in paths:
        shutil.copy(path, folder)
    Image.open(first).save(folder / "progressive.jpg", progressive=True)
    names = ["ours", "ours_kernels", "whole", "whole_kernels"]
    options = ["--batch-sizes", "4", "--crops", "32", "--only", *names]
    found = document(tmp_path, "photo_jpeg.py", folder, *options)
    ours, kernels, whole, whole_kernels = found["rates"]
    assert [row["name"] for row in found["rates"]] == names
    assert rates(kernels)[0] > 0 < rates(whole_kernels)[0]
    assert found["ratios"][0]["ours_over_whole"] == rates(ours)[1] / rates(whole)[1]
    assert ours["left_to_others"]["max"] > 0 < whole["left_to_others"]["max"]


def test_file_loaders_writes_rates_at_each_number_of_cores(tmp_path, photographs):
    loaders = ["cuda_jpeg", "dali_gpu", "cuda_jpeg_whole"]
    options = ["--cores", "1", "4096", "--loaders", *loaders, "--batch-size", "4", "--size", "32"]
    found = document(tmp_path, "file_loaders.py", photographs, *options)
    ours, dali, whole, *many = found["rates"]
    assert 0 < rates(ours)[0] <= rates(ours)[2]
    assert rates(whole)[0] > 0
    assert (ours["images_per_s"]["n"], ours["cores"], ours["left_to_others"]["max"]) == (2, 1, 0)
    assert "decodes on a CUDA GPU" in dali["skipped"]
    assert all("This process may use" in row["skipped"] for row in many)
    assert found["ratios"] == {"1": None, "4096": None}


def works(stack, factor):
    stack.callback(print, "closed", flush=True)
    return lambda seconds: {"images_per_s": factor * seconds}


def raises(stack):
    raise ValueError("no such library\nand more")


def dies(stack):
    os._exit(3)


def test_whoever_fails_or_dies_leaves_the_others_their_turns(capfd, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, BENCHES])  # of the processes, too
    cores = sorted(os.sched_getaffinity(0))[:1]
    makes = ((works, (2,)), (raises, ()), (dies, ()), (works, (3,)))
    turns = [by_turns.Contestant({"name": n}, make, args, cores) for n, (make, args) in enumerate(makes)]
    before = os.sched_getaffinity(0)
    by_turns.measured(turns, 2, 0.5)
    assert os.sched_getaffinity(0) == before
    first, failed, dead, last = (one.summary() for one in turns)
    assert first["images_per_s"] == {"n": 2, "median": 1.0, "min": 1.0, "max": 1.0}
    assert last["images_per_s"]["median"] == 1.5
    assert failed == {"name": 1, "skipped": "ValueError: no such library"}
    assert dead == {"name": 2, "skipped": "ended with exit code 3"}
    assert by_turns.best([first, failed, dead, last], "images_per_s", {}) == 1.5
    assert capfd.readouterr().out.count("closed") == 2
    assert not any(one.process.is_alive() for one in turns)

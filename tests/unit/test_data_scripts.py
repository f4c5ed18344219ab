"""The scripts of the rules download and prepare_dataset, with a global `snakemake` as in a run."""

import hashlib

import pytest
from config_fixtures import merged
from PIL import Image
from workflow_fixtures import Named, run_script

from gpufeed.core.config import planned
from gpufeed.datasets.manifest import Manifest


def download(tmp_path, sha256):
    (tmp_path / "site").mkdir()
    (tmp_path / "site/a.bin").write_bytes(b"data")
    row = {"name": "a.bin", "sha256": sha256, "size": 4}
    run_script(
        "download",
        params=Named(file=row),
        config={
            "sources": {"one": {"files": [row]}},
            "archives": [str(tmp_path / "site")],
            "least_download_kb_s": 16,
        },
        wildcards=Named(dataset="one", file="a.bin"),
        output=[str(tmp_path / "out/a.bin")],
        log=[str(tmp_path / "log")],
    )


def test_download(tmp_path):
    download(tmp_path, hashlib.sha256(b"data").hexdigest())
    assert (tmp_path / "out/a.bin").read_bytes() == b"data"
    assert "a.bin: 4 bytes" in (tmp_path / "log").read_text()


def test_download_of_a_wrong_file_ends_the_job_with_three_lines(tmp_path, capsys):
    with pytest.raises(SystemExit, match="1"):
        download(tmp_path, "0" * 64)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in lines] == ["found", "expected", "what to do"]
    assert not (tmp_path / "out/a.bin").exists()


def prepare(tmp_path, config=None, **params) -> tuple[Manifest, str]:
    """Runs the script of the rule; returns what it has prepared and its log."""
    run_script(
        "prepare_dataset",
        input=Named(archives=[]),
        params=Named(quantity={}, **params),
        output=Named(manifest=str(tmp_path / "out/manifest.parquet"), images=str(tmp_path / "out/images")),
        config=config or {"max_quarantined_share": 0.0, "data_form": "folders", "run": []},
        threads=2,
        log=[str(tmp_path / "log")],
    )
    return Manifest.read(tmp_path / "out/manifest.parquet"), (tmp_path / "log").read_text()


def test_prepare_dataset(tmp_path):
    options = {"count": 20, "size": 8, "classes": 2}
    manifest, log = prepare(tmp_path, layout="synthetic", dataset="small", options=options, resize=[6, 4])
    assert manifest.info.dataset == "small"
    assert len(manifest) == 20
    assert manifest.image_size() == (6, 4)
    assert "'train': 16" in log


def test_a_folder_of_images_of_several_sizes_is_for_some_recipes_which_the_log_says(tmp_path):
    for name, sides in (("a", (8, 8)), ("b", (8, 9))):
        (tmp_path / "own" / name).mkdir(parents=True)
        for number, side in enumerate(sides):
            Image.new("RGB", (side, side)).save(tmp_path / f"own/{name}/{number}.png")
    own = {"layout": "image_folder", "dataset": "own", "options": {}}
    own["folder"] = {"path": str(tmp_path / "own"), "names": "a digest"}
    manifest, log = prepare(tmp_path, **own, resize=None)
    assert len(manifest) == 4
    assert "2 image sizes in own" in log
    assert "resize: [height, width]" in log
    manifest, log = prepare(tmp_path, **own, resize=[8, 8])
    assert manifest.image_size() == (8, 8)
    assert "image sizes" not in log


def test_a_batch_larger_than_what_was_prepared_ends_the_job_with_three_lines(tmp_path, capsys):
    config = merged("config.yaml", "own.yaml")
    planned(config)
    options = {"count": 20, "size": 8, "classes": 2}
    with pytest.raises(SystemExit, match="1"):
        prepare(tmp_path, config, layout="synthetic", dataset="own", options=options, resize=None)
    lines = capsys.readouterr().err.splitlines()[-3:]
    assert "batch_size 128 in experiment 'own', and 16 images" in lines[0]
    assert [line.split(":")[0] for line in lines] == ["found", "expected", "what to do"]

"""What `make bundle` packs, what it leaves alone, and what `make setup OFFLINE=` refuses."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from config_fixtures import merged, small
from data_fixtures import REPOSITORY

from gpufeed.cluster.bundle import bundle_parts, contents
from gpufeed.core.config import merged_config
from gpufeed.core.config_sources import FASHION_MNIST_FILES
from gpufeed.core.errors import GpufeedError
from gpufeed.core.references import files_of

SHIPPED = merged("config.yaml")
REFERENCE = merged("reference.yaml")


@pytest.fixture
def bundle(tmp_path) -> Path:
    """A sealed bundle of two files for this Python and the CUDA 12 stack."""
    for name, body in (("wheels/one-1.0-py3-none-any.whl", b"wheel"), ("archives/a.zip", b"images")):
        path = tmp_path / "bundle" / name
        path.parent.mkdir(parents=True)
        path.write_bytes(body)
    contents.seal(tmp_path / "bundle", contents.this_node("12"))
    return tmp_path / "bundle"


def test_a_bundle_that_is_whole_passes_in_a_bare_python(bundle):
    assert contents.check(bundle, "12") == 3
    command = [sys.executable, "-I", "-S", "-c", BARE, str(REPOSITORY), str(bundle), "12"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "3 files, all intact" in done.stdout


BARE = """
import runpy, sys
root = sys.argv.pop(1)
sys.path.insert(0, root)
runpy.run_module("gpufeed.cluster.bundle.contents", run_name="__main__", alter_sys=False)
"""


def test_sha256sum_reads_what_it_has_written(bundle):
    subprocess.run(["sha256sum", "--check", "--strict", contents.SUMS], cwd=bundle, check=True)


@pytest.mark.parametrize("damage", ["cut", "missing"])
def test_a_damaged_file_is_named(bundle, damage):
    wheel = bundle / "wheels/one-1.0-py3-none-any.whl"
    wheel.write_bytes(b"whe") if damage == "cut" else wheel.unlink()
    with pytest.raises(GpufeedError, match=r"wheels/one-1\.0-py3-none-any\.whl in .*: missing or damaged"):
        contents.check(bundle, "12")


def test_a_bundle_that_was_never_finished_is_refused(bundle):
    (bundle / contents.SUMS).unlink()
    with pytest.raises(GpufeedError, match="that make bundle completed"):
        contents.check(bundle, "12")


@pytest.mark.parametrize("text", ["", "garbage\n"])
def test_checksums_that_are_not_whole_are_refused(bundle, text):
    (bundle / contents.SUMS).write_text(text)
    with pytest.raises(GpufeedError, match=r"does not list bundle\.json[\s\S]*copy the folder again"):
        contents.check(bundle, "12")


def test_a_stack_that_does_not_exist_is_refused(bundle):
    with pytest.raises(GpufeedError, match=r"CUDA=11[\s\S]*12 or 13"):
        contents.check(bundle, "11")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "No such file"),
        ("a: [", "flow"),
        ("- a", "list"),
        ("day: 2026-13-45", "month"),
        ("a: 1\nb: 2\na: 3", "lines 1 and 3"),
    ],
)
def test_a_config_file_that_is_none_ends_it_before_anything_is_fetched(tmp_path, text, said):
    path = tmp_path / "my.yaml"
    if text is not None:
        path.write_text(text)
    command = [sys.executable, "-m", "gpufeed.cluster.bundle", str(tmp_path / "to"), "--cuda", "13"]
    done = subprocess.run([*command, "--configfile", str(path)], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("found: ")
    assert str(path) in done.stderr.splitlines()[0]
    assert said in done.stderr
    assert not (tmp_path / "to").exists()


def test_the_other_stack_is_refused(bundle):
    with pytest.raises(GpufeedError, match=r"for cuda 12[\s\S]*for cuda 13[\s\S]*make setup CUDA=12"):
        contents.check(bundle, "13")


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("python", "3.99", r"for python 3\.99[\s\S]*PYTHON=python3\.99"),
        ("platform", "linux-riscv64", "for platform linux-riscv64"),
        ("constraints", "0" * 64, "a bundle of other versions"),
    ],
)
def test_what_does_not_fit_this_node_is_refused(bundle, key, value, said):
    about = json.loads((bundle / contents.ABOUT).read_text())
    contents.seal(bundle, about | {key: value})
    with pytest.raises(GpufeedError, match=said):
        contents.check(bundle, "12")


def test_the_compiler_is_packed_where_it_is_a_package(tmp_path, monkeypatch):
    """A stand-in for uv answers with the requirements that it is given."""
    (tmp_path / "uv").write_text("#!/bin/sh\nexec cat\n")
    (tmp_path / "uv").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    of_stacks = {cuda: bundle_parts.resolved_requirements(cuda) for cuda in ("12", "13")}
    assert set(of_stacks["13"]) - set(of_stacks["12"]) == {bundle_parts.NVCC}
    assert of_stacks["12"]


def test_only_packages_without_a_wheel_of_that_version_are_fetched(tmp_path):
    for name in ("Fast_Core-1.0-py3-none-any.whl", "torch-2.11.0-cp311-cp311-manylinux_2_28_x86_64.whl"):
        (tmp_path / name).touch()
    wanted = ["fast-core==1", "torch==2.10.0", "uv==0.13.8", "cuda-toolkit[nvcc]==13.0.2"]
    assert bundle_parts.missing_wheels(wanted, tmp_path) == wanted[1:]


def sources(folder: Path, name: str) -> str:
    """A package of sources alone, as pip takes it by its path."""
    (folder / name).mkdir(parents=True)
    (folder / name / "pyproject.toml").write_text(
        f'[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        f'[project]\nname = "{name}"\nversion = "1.0"\n'
    )
    (folder / name / "backend.py").write_text(BACKEND.format(name=name))
    return f"{name} @ {(folder / name).as_uri()}"


BACKEND = """
import pathlib, zipfile

def build_wheel(folder, config_settings=None, metadata_directory=None):
    wheel = "{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(pathlib.Path(folder, wheel), "w") as archive:
        info = "{name}-1.0.dist-info/"
        archive.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: {name}\\nVersion: 1.0\\n")
        archive.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        archive.writestr(info + "RECORD", "")
    return wheel
"""


def test_sources_become_wheels_and_a_failure_keeps_what_came_before(tmp_path, monkeypatch, capfd):
    first = sources(tmp_path / "src", "first")
    lines = [first, f"second @ {(tmp_path / 'nowhere').as_uri()}"]
    monkeypatch.setattr(bundle_parts, "WHEELS_AT_ONCE", 1)
    monkeypatch.setattr(bundle_parts, "pinned", lambda line: (line.split()[0], bundle_parts.Version("1.0")))
    folder = tmp_path / "wheels"
    with pytest.raises(GpufeedError, match="no wheels of second"):
        bundle_parts.collect_wheels(lines, folder)
    assert [path.name for path in folder.glob("*.whl")] == ["first-1.0-py3-none-any.whl"]
    assert (
        bundle_parts.missing_wheels(lines, folder) == lines[1:]
    )  # the next run asks for no more than the rest
    capfd.readouterr()
    (tmp_path / "nowhere").mkdir()
    bundle_parts.collect_wheels(lines[:1], folder)
    assert capfd.readouterr().out == ""


def test_a_config_is_merged_as_snakemake_does():
    from snakemake.utils import update_config

    theirs = merged("config.yaml")
    update_config(theirs, merged("demo.yaml"))
    demo = merged("demo.yaml")
    assert merged_config(SHIPPED, demo) == theirs
    assert SHIPPED["run"] != ["demo"]


@pytest.mark.parametrize(
    "config", ["config.yaml", "reference.yaml", "demo.yaml", "own.yaml", "accuracy.yaml"]
)
def test_the_archives_are_those_that_the_rules_would_download(config):
    """Everything that any experiment of `run` reads, by the rule that says what a dataset is made of."""
    changes = yaml.safe_load((REPOSITORY / "config" / config).read_text())
    merged = merged_config(SHIPPED, changes)
    names = {file.name for file in bundle_parts.archives_of_run(merged)}
    expected = {
        "config.yaml": {"cifar-10-python.tar.gz", "tiny-imagenet-200.zip", *FASHION_MNIST_FILES},
        "reference.yaml": {"cifar10-jpeg.npz", "tiny-imagenet-40.zip", "imagenet-800.zip"},
        "demo.yaml": set(),
        "own.yaml": set(),  # a folder is not packed
        "accuracy.yaml": {"cifar10-jpeg.npz", "tiny-imagenet-40.zip"},
    }[config]
    assert names == expected


def test_what_a_dataset_is_made_of_comes_too():
    config = merged_config(SHIPPED, REFERENCE | {"run": ["gpu_decoding"]})
    assert "mosaic_1024" in bundle_parts.datasets_of_run(config)
    assert "tiny_imagenet_40" in bundle_parts.datasets_of_run(config)  # by use_instead


def row(body: bytes, *urls: str) -> dict:
    digest = hashlib.sha256(body).hexdigest()
    return {"name": "a.zip", "urls": list(urls), "sha256": digest, "size": len(body)}


def config_with(files: list[dict], tmp_path: Path) -> dict:
    """A config that runs one experiment on one source with these files."""
    config = small({}, dataset="tiny_imagenet", loader="dataloader_sync", model="simple_cnn", steps=4)
    config["sources"]["tiny_imagenet"] = {"layout": "tiny_imagenet", "files": files}
    return config | {"archives": [], "data": str(tmp_path / "data")}


def test_an_archive_that_is_whole_stays_and_a_broken_one_is_fetched_anew(server, tmp_path):
    body, folder = b"images" * 1000, tmp_path / "bundle/archives"
    config = config_with([row(body, server.add("/a.zip", body))], tmp_path)
    bundle_parts.collect_archives(config, folder)
    bundle_parts.collect_archives(config, folder)
    assert len(server.requests) == 1
    (folder / "a.zip").write_bytes(b"x")
    bundle_parts.collect_archives(config, folder)
    assert (folder / "a.zip").read_bytes() == body
    assert len(server.requests) == 2


def test_an_archive_that_the_workflow_has_downloaded_is_copied(tmp_path):
    there = tmp_path / "data/tiny_imagenet/archives/a.zip"
    there.parent.mkdir(parents=True)
    there.write_bytes(b"images")
    bundle_parts.collect_archives(config_with([row(b"images")], tmp_path), tmp_path / "bundle")
    assert (tmp_path / "bundle/a.zip").read_bytes() == b"images"


def test_an_archive_that_nobody_has_is_named(tmp_path):
    with pytest.raises(GpufeedError, match=r"no folder of archives for a\.zip|no a\.zip in"):
        bundle_parts.collect_archives(config_with([row(b"images")], tmp_path), tmp_path / "bundle")


def test_the_code_that_a_config_names_is_packed_with_what_it_imports(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    files = ["nets/my_net.py", "nets/parts.py", "my_data.py", "package/loader.py", "other.py"]
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("import parts\n" if name == files[0] else f"# {name}\n")
    block = {"dataset": "my_data.py:Data", "steps": 4, "loader": "dataloader_sync", "batch_size": 8}
    block["model"] = ["nets/my_net.py:net", f"{tmp_path}/other.py:net", "timm:resnet50"]
    experiment = {"title": "t", "question": "q", "blocks": {"b": block}}
    config = merged_config(SHIPPED, {"run": ["mine"], "experiments": {"mine": experiment}})
    (tmp_path / "bundle/plugins").mkdir(parents=True)
    (tmp_path / "bundle/plugins/before.py").write_text("")
    assert bundle_parts.archives_of_run(config) == []
    packed = bundle_parts.collect_plugins(config, tmp_path / "bundle/plugins")
    assert packed == ["my_data.py", "nets/my_net.py", "nets/parts.py"]
    found = {path for path in (tmp_path / "bundle/plugins").rglob("*") if path.is_file()}
    assert found == {tmp_path / "bundle/plugins" / name for name in packed}
    said = capsys.readouterr().out
    assert f"not packed, since the config names them by a path of this node: {tmp_path}/other.py" in said
    contents.seal(tmp_path / "bundle", contents.this_node("12"))
    assert contents.check(tmp_path / "bundle", "12") == 4
    (tmp_path / "bundle/plugins/nets/parts.py").write_text("x = 1\n")
    with pytest.raises(GpufeedError, match=r"plugins/nets/parts\.py"):
        contents.check(tmp_path / "bundle", "12")
    assert files_of("package.loader:Loader") == {"package/loader.py": tmp_path / "package/loader.py"}

"""python -m gpufeed.train: a model from one command, and one sentence where there can be none."""

import csv
import errno
import json
import logging
import logging.config
import math
import os
import shlex
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import version

import pytest
import torch
import yaml
from compose_fixtures import DATA, ITEMS, ROOT, TINY, start_in, train_in
from data_fixtures import REPOSITORY
from process_fixtures import wait_until
from run_fixtures import files_of_the_page

from gpufeed import predict
from gpufeed.benchmarks.saved_models import model_file
from gpufeed.cli.standalone_training import check_resumable, checkpoints_of
from gpufeed.core import compose
from gpufeed.core.cells import Cell
from gpufeed.core.compose import cell_from, composed, offer, row, shipped
from gpufeed.core.errors import GpufeedError, Skip, install
from gpufeed.core.registry import AUGMENTS, LOADERS, MODELS, RECIPES, TRAINERS
from gpufeed.train import EXAMPLES, main
from gpufeed.training.ensure_inputs import shelf_of


@pytest.fixture
def said(tmp_path, monkeypatch, capsys):
    """(exit code, what is said) of the command with these arguments; `work` trains in gpufeed's place."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(logging.config, "dictConfig", lambda config: None)  # later tests log too

    def run(*arguments, work=lambda found, folder: None):
        monkeypatch.setattr(sys, "argv", ["train.py", *arguments])
        code = main(work)
        return code, capsys.readouterr().err

    return run


@pytest.fixture
def refused(tmp_path, said):
    """What a command says that is refused before any data is made."""

    def run(*arguments):
        code, text = said(*arguments, work=None)
        assert code == 2
        assert "Traceback" not in text
        assert not (tmp_path / "data").exists()
        return text

    return run


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_one_command_prepares_trains_and_keeps_a_model_that_predicts(tmp_path, monkeypatch, capsys):
    tmp_path /= "of mine"
    tmp_path.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(logging.root, "level", logging.root.level)  # which Hydra sets
    monkeypatch.setattr(sys, "argv", ["train.py", *TINY, "trainer=plain", "epochs=2", "hydra.run.dir=first"])
    assert main() == 0
    first = tmp_path / "first"
    assert {path.name for path in first.iterdir()} == {
        *("metrics.csv", "model.pt", "model.json", "cell.yaml", "train.log", ".hydra"),
    }
    told = rows(first / "metrics.csv")
    assert [(row["epoch"], row["steps"], row["images"]) for row in told] == [(n, "6", "48") for n in "01"]
    assert [bool(row["top1"]) for row in told] == [False, True]
    log = (first / "train.log").read_text()
    assert "epoch 1" in log
    assert str(first / "model.pt") in shlex.split(log.splitlines()[-1])  # a command to paste
    saved = model_file.load(first / "model.pt")
    assert (saved.about["cell"]["epochs"], saved.about["attempt"]) == (2, 1)
    assert (len(saved.classes), saved.size) == (3, (16, 16))
    assert compose.read_cell(first / "cell.yaml") == saved.about["cell"]
    assert yaml.safe_load((first / ".hydra/config.yaml").read_text())["batch_size"] == 8

    (manifest,) = (tmp_path / "data").glob("synthetic-*/manifest.parquet")
    image = next(manifest.parent.glob("images/test/*/*"))
    capsys.readouterr()
    assert predict.main([str(first / "model.pt"), str(image), "--format", "json"]) == 0
    assert len(json.loads(capsys.readouterr().out)[0]["classes"]) == 3


def test_a_model_that_saw_one_batch_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = [*TINY, "trainer=plain", "loader=replay", "hydra.run.dir=out"]
    monkeypatch.setattr(sys, "argv", ["train.py", *words])
    assert main() == 0
    assert "no model is kept" in (tmp_path / "out/train.log").read_text()
    assert not [*(tmp_path / "out").glob("model.*")]


@pytest.mark.slow
def test_a_dataset_and_a_loader_of_files_are_trained_on(tmp_path):
    (tmp_path / "items.py").write_text(ITEMS)
    (tmp_path / "data.py").write_text(DATA)
    words = ["data=data.py:Data", "data.options.size=24", "loader=items.py:Items", "loader.pause_ms=3"]
    words += ["trainer=plain", "trainer.accelerator=cpu", "model=simple_cnn", "batch_size=8", "steps=4"]
    done = train_in(tmp_path, *words, "hydra.run.dir=run")
    assert done.returncode == 0, done.stderr
    cell = compose.read_cell(tmp_path / "run/cell.yaml")
    assert (cell["dataset"], cell["loader"]) == ("data.Data", "items.py:Items")
    assert cell["hyper"]["loader"] == {"pause_ms": 3}
    said = (tmp_path / "run/cell.yaml").read_text()
    assert said.startswith(f"# python -m gpufeed.train {shlex.join(words)}")
    saved = model_file.load(tmp_path / "run/model.pt")
    assert (len(saved.classes), saved.size) == (2, (24, 24))


@pytest.mark.slow
def test_a_packed_dataset_is_made_unpacked_and_trained_on(tmp_path, monkeypatch):
    monkeypatch.setenv("GPUFEED_UNPACK", str(tmp_path / "node"))
    done = train_in(tmp_path, *TINY, "data_form=packed", "loader=dataloader_sync", "hydra.run.dir=run")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run/model.pt").exists()
    (manifest,) = tmp_path.glob("data/*/manifest.parquet")
    files = [path.name for path in manifest.parent.iterdir() if not path.name.startswith(".")]
    assert sorted(files) == ["images.json", "images.tar", "manifest.parquet"]
    assert len(list((tmp_path / "node").rglob("*.jpg"))) == 60


@pytest.mark.slow
def test_several_runs_share_what_the_first_made_and_outlive_one_that_cannot_be(tmp_path):
    done = train_in(tmp_path, *TINY, "trainer=plain")
    assert done.returncode == 0, done.stderr
    made = {path: path.stat().st_mtime_ns for path in (tmp_path / "data").rglob("*") if path.is_file()}
    sweep = ("seed=0,-1,1", "hydra.sweep.dir=more", "trainer=plain")
    done = train_in(tmp_path, "--multirun", *TINY, *sweep)
    assert done.returncode == 2  # of three runs the second cannot be
    assert "seed: -1" in done.stderr
    assert "Traceback" not in done.stderr
    assert {path: path.stat().st_mtime_ns for path in made} == made
    kept = [(tmp_path / f"more/{run}/model.pt").exists() for run in range(3)]
    assert kept == [True, False, True]
    losses = {rows(tmp_path / f"more/{run}/metrics.csv")[0]["train_loss"] for run in (0, 2)}
    assert len(losses) == 2


def test_a_training_from_before_a_choice_came_can_be_gone_on_with(tmp_path):
    hyper = {"trainer": {"torch_defaults": False, "momentum": 0.9}, "model": {"patches": "linear"}}
    cell, old = Cell("train", "toy", "resident", hyper=hyper), {"trainer": {"momentum": 0.9}, "model": {}}
    (tmp_path / "checkpoint.pt").touch()
    compose.write_cell(tmp_path / "cell.yaml", replace(cell, hyper=old), "")
    check_resumable(cell, tmp_path)
    compose.write_cell(tmp_path / "cell.yaml", cell, "")
    check_resumable(cell, tmp_path)
    other = {**hyper, "trainer": {"torch_defaults": True, "momentum": 0.9}}
    with pytest.raises(GpufeedError, match="found: hyper"):
        check_resumable(replace(cell, hyper=other), tmp_path)
    compose.write_cell(tmp_path / "cell.yaml", replace(cell, nodes=2), "")
    with pytest.raises(GpufeedError, match="nodes 1, to go on"):
        check_resumable(cell, tmp_path)


def epochs_of(path):
    return [int(row["epoch"]) for row in rows(path)] if path.exists() else []


@pytest.mark.slow
def test_a_training_that_is_killed_goes_on_where_it_was(tmp_path):
    command = (*TINY, "trainer=plain", "epochs=80", "checkpoint_steps=4")
    killed = start_in(tmp_path, *command, "hydra.run.dir=first")
    wait_until(lambda: len(epochs_of(tmp_path / "first/metrics.csv")) > 2, 280)
    killed.kill()
    killed.wait()
    left = (tmp_path / "first/checkpoint.pt").read_bytes()
    second = train_in(tmp_path, *command, "resume=first", "hydra.run.dir=second")
    assert second.returncode == 0, second.stderr
    assert (tmp_path / "first/checkpoint.pt").read_bytes() == left
    assert "resuming after step" in (tmp_path / "second/train.log").read_text()
    assert not (tmp_path / "second/checkpoint.pt").exists()
    assert epochs_of(tmp_path / "second/metrics.csv") == list(range(80))
    assert (tmp_path / "second/model.pt").exists()


def test_a_checkpoint_that_was_named_and_cannot_be_gone_on_with_is_an_error_and_stays(tmp_path, refused):
    folder, command = tmp_path / "first", (*TINY, "trainer=plain")
    offer({"synthetic": row(shipped(), "synthetic")})
    compose.write_cell(folder / "cell.yaml", cell_from(composed(command), shipped()), "its command")
    (folder / "checkpoint.pt").write_bytes(b"half of a checkpoint")
    text = refused(*command, "resume=first", "hydra.run.dir=second")
    assert "first/checkpoint.pt is no checkpoint" in text
    assert (folder / "checkpoint.pt").read_bytes() == b"half of a checkpoint"


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ({"resume": "nowhere"}, "no checkpoint.pt in nowhere"),
        ({"checkpoint_steps": 0}, "checkpoint_steps 0"),
        ({"checkpoint_steps": True}, "checkpoint_steps True"),
    ],
)
def test_what_cannot_be_resumed_is_told(tmp_path, values, found):
    asked = {"checkpoint_steps": None, "resume": None, **values}
    with pytest.raises(GpufeedError) as error:
        checkpoints_of(Cell("e", "d", "resident"), asked, tmp_path)
    assert found in error.value.found
    fastai = Cell("e", "d", "resident", trainer="fastai")
    with pytest.raises(GpufeedError, match="fastai keeps no checkpoints"):
        checkpoints_of(fastai, asked, tmp_path)


def test_a_decoder_that_builds_no_cache_is_told_with_those_that_do():
    values = {"data_folder": "data", "data_form": "folders", "archives": [], "max_quarantined_share": 0.0}
    values["least_download_kb_s"] = 20
    for name in ("strips", "nobody"):
        with pytest.raises(GpufeedError) as error:
            shelf_of({**values, "cache_decoder": name})
        assert "simplejpeg" in error.value.expected
    shelf = shelf_of({**values, "cache_decoder": "pillow"})
    assert (shelf.decoder, shelf.least_kb_s) == ("pillow", 20)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this node has the GPU that must be missing")
def test_a_gpu_that_is_not_there_is_one_sentence_before_any_data_is_made(refused):
    text = refused("trainer.accelerator=gpu", "trainer=plain")
    assert text.count("\n") == 1
    assert "finds no CUDA GPU on this node" in text


def test_a_package_that_is_not_there_is_one_sentence_before_any_data_is_made(refused, monkeypatch):
    monkeypatch.delitem(sys.modules, "gpufeed.models.timm_vit", raising=False)
    monkeypatch.setitem(sys.modules, "timm", None)
    what, _, remedy = refused("trainer.accelerator=cpu", "model=timm_vit_tiny").partition(": ")
    assert what == "Model timm_vit_tiny needs the package timm, which this node lacks"
    assert remedy == f"{install('timm')}.\n"


def test_a_batch_of_more_images_than_there_are_is_told_before_any_data_is_made(refused):
    text = refused("batch_size=5000", "trainer.accelerator=cpu", "trainer=plain")
    assert "batch_size 5000" in text
    assert "2000 images" in text


@pytest.mark.parametrize(
    ("argument", "found", "expected", "remedy"),
    [
        ("epoch=3", "key 'epoch' in the command line", "batch_size, cache_decoder", "write 'epochs' instead"),
        ("model.foo=3", "key 'model.foo'", "one of: model.batch_norm, model.channels", "choose one of them"),
        ("data.options.cont=3", "key 'data.options.cont'", "data.options.size", "'data.options.count'"),
        ("model.width=[1", "model.width=[1: no viable alternative", "config/hydra", "--help"),
        ("batch_size.x=3", "Could not override 'batch_size.x'.", "config/hydra", "--help"),
        ("trainer.epochs=-1", "key 'trainer.epochs'", "one of: epochs, trainer.acc", "write 'epochs'"),
        ("trainer.optimizer=sgd", "key 'trainer.optimizer'", "trainer.optimiser", "'trainer.optimiser'"),
        ("warmup_share=0", "key 'warmup_share'", "trainer.warmup_share", "write 'trainer.warmup_share'"),
        ("~epoch", "'epoch' does not exist", "config/hydra", "--help"),
        ("data=my.Squares", "data 'my.Squares'", ", package.module:attribute, path.py:attribute, ", "choose"),
        ("model=resnet", "model 'resnet'", "path.py:attribute, resnet18, ", "write 'resnet50' instead"),
    ],
)
def test_a_typo_is_told_with_what_is_known(said, argument, found, expected, remedy):
    code, text = said(argument)
    lines = [line.partition(": ") for line in text.splitlines()]
    assert code == 2
    assert [label for label, _, _ in lines] == ["found", "expected", "what to do"]
    assert found in lines[0][2]
    assert expected in lines[1][2]
    assert remedy in lines[2][2]
    assert "use +" not in text


@pytest.mark.parametrize("argument", ["batch_size==3", "model=3", "hydra.nope=1", "=1", "hydra.run.dir=${x}"])
def test_what_hydra_refuses_is_three_lines_and_no_traceback(said, argument):
    code, text = said(argument)
    assert (code, text.count("\n")) == (2, 3)
    assert "Traceback" not in text


def test_a_key_twice_is_told_in_a_file_of_data_and_in_the_shipped_config(tmp_path, said, monkeypatch):
    (tmp_path / "mine/data").mkdir(parents=True)
    (tmp_path / "mine/data/own.yaml").write_text("layout: image_folder\nlayout: mosaic\n")
    code, text = said("--config-dir", "mine", "+data=own")
    assert (code, text.count("\n")) == (2, 3)
    assert "duplicate key layout" in text
    (tmp_path / "config.yaml").write_text("sources: {}\nsources: {}\n")
    monkeypatch.setattr("gpufeed.core.compose.CONFIG", tmp_path)
    shipped.cache_clear()
    for arguments in ((), ("seed=1",)):
        code, text = said(*arguments)
        assert (code, "'sources' twice" in text) == (2, True)
    shipped.cache_clear()


@pytest.mark.parametrize(
    "error", [GpufeedError("a thing", "another", "change it"), Skip("This node lacks it.")]
)
def test_errors_of_ours_end_in_2_without_a_traceback(said, error):
    def work(found, folder):
        raise error

    assert said("seed=1", work=work) == (2, f"{error}\n")


def test_an_interrupt_names_the_folder_to_resume(said):
    def work(found, folder):
        raise KeyboardInterrupt

    code, text = said("hydra.run.dir=my first", work=work)
    assert (code, text.startswith("Stopped: no model is kept. Resume")) == (130, True)
    assert text.endswith("/my first'\n")


def test_a_folder_that_cannot_be_is_told_and_no_traceback(tmp_path, said):
    (tmp_path / "file").write_text("in the way")
    code, text = said(*TINY, "data_folder=file", "hydra.run.dir=run", work=None)
    assert code == 2
    assert "NotADirectoryError" in text
    assert "expected: files and folders that may be read" in text
    assert "Traceback" not in text
    code, text = said("hydra.run.dir=file/run")
    assert (code, text.count("\n")) == (2, 3)
    assert "hydra.run.dir=FOLDER" in text


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "/scratch"), True),
        (OSError(errno.ENOSPC, "No space left on device"), True),
        (ConnectionResetError(errno.ECONNRESET, "Connection reset"), False),
    ],
)
def test_errors_of_files_are_told_and_others_of_the_system_are_not(said, monkeypatch, error, told):
    def work(found, folder):
        raise error

    if told:
        code, text = said("seed=1", work=work)
        assert (code, str(error) in text, "what to do: " in text) == (2, True, True)
        monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    with pytest.raises(type(error)):
        said("seed=1", work=work)


def test_other_errors_keep_their_traceback(said):
    def work(found, folder):
        raise ZeroDivisionError("a bug")

    with pytest.raises(ZeroDivisionError):
        said("seed=1", work=work)
    assert "HYDRA_FULL_ERROR" not in os.environ


def test_the_seeds_command_line_asks_for_the_gpu_and_trains_vit_tiny(said):
    found = []
    arguments = ("trainer.accelerator=gpu", "trainer.devices=auto", "model=vit_tiny", "data=tiny_imagenet")
    code, _ = said(*arguments, work=lambda composed, folder: found.append(composed))
    assert code == 0
    assert found[0].texts[:4] == arguments
    assert found[0].values["model"]["width"] == 192
    assert found[0].values["data"]["files"][0]["name"] == "tiny-imagenet-200.zip"


def documented():
    """The command lines of the documents: flags and overrides."""
    for page in [*(REPOSITORY / "docs").glob("guide/*.md"), REPOSITORY / "docs/reference/training.md"]:
        for line in page.read_text().splitlines():
            if line.startswith("gpufeed train ") and "--help" not in line:
                words = shlex.split(line.split(" #")[0])[2:]
                asks = any(".py:" in word for word in words)  # a process whether it can be imported
                yield pytest.param(words, id=" ".join(words), marks=[pytest.mark.slow] if asks else [])


@pytest.mark.parametrize("arguments", documented())
def test_the_commands_of_the_documents_are_cells(said, tmp_path, arguments):
    found = []
    for name, text in files_of_the_page().items():  # models and loaders of one's own, as the guide shows them
        (tmp_path / name).write_text(text)

    def work(composed, folder):
        found.append(cell_from(composed, shipped()))

    code, text = said(*arguments, work=work)
    assert (code, text) == (0, "")
    combinations = [len(argument.split(",")) for argument in arguments if "--multirun" in arguments]
    assert len(found) == math.prod(combinations)


def test_without_arguments_it_says_what_there_is_and_trains_nothing(tmp_path):
    command, environment = [sys.executable, "-m", "gpufeed.train"], os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr, list(tmp_path.iterdir())) == (0, "", [])
    lines = dict(line.split(maxsplit=1) for line in done.stdout.splitlines()[1:7])
    offered = {key: set(names.split(", ")) for key, names in lines.items()}
    ceilings = {name for name, loader in LOADERS.items() if loader.ceiling}
    assert offered == {
        **{"data": set(shipped()["sources"]), "loader": set(LOADERS) - ceilings},
        **{"model": set(MODELS), "trainer": set(TRAINERS), "augment": set(AUGMENTS)},
        "recipe": set(RECIPES),
    }


def test_the_examples_that_it_gives_are_cells(said):
    commands = [line.split("(")[0] for line in EXAMPLES.splitlines() if line.startswith("  python")]
    assert len(commands) == 2
    for command in commands:
        found = []
        code, _ = said(*command.split()[3:], work=lambda made, folder, found=found: found.append(made))
        assert code == 0
        assert cell_from(found[0], shipped()).dataset in command


def test_train_py_of_the_clone_is_the_command(tmp_path):
    arguments = ["trainer.accelerator=gpu", "trainer.devices=auto", "model=vit_tinny"]
    command = [sys.executable, REPOSITORY / "train.py", *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert "write 'vit_tiny' instead" in done.stderr


def test_the_version_is_that_of_gpufeed(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["train.py", "--version"])
    assert main() == 0
    assert capsys.readouterr().out == f"gpufeed {version('gpufeed')}\n"

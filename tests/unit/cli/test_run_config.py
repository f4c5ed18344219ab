"""What gpufeed run writes into its config, and the sentences of what it refuses."""

import shutil
from pathlib import Path

import pytest
from config_fixtures import merged
from data_fixtures import files_of_at_most

from gpufeed.cli import run_workflow
from gpufeed.cli.run_config import config_of, fit_batch, images_to_train_on, plan_of, shipped_config
from gpufeed.cli.run_workflow import parser
from gpufeed.core.config import CONFIG
from gpufeed.system.gpu_locks.gpu_listing import VISIBLE_DEVICES, Gpu

LOADER = """
from gpufeed.loaders.base import OrderedLoader


class Mine(OrderedLoader):
    entry = {"windows": "given", "workers": "required"}

    def batches(self, order):
        yield from ()


class NoWindows(Mine):
    entry = {"reads": "cache"}

"""
MODEL = "from torch import nn\n\ndef net(num_classes):\n    return nn.Flatten()\n"


@pytest.fixture
def folder(tmp_path, monkeypatch, photographs):
    """The folder of a run: images of one's own, and files of code."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(photographs, tmp_path / "My Images")
    (tmp_path / "my_loader.py").write_text(LOADER)
    (tmp_path / "my_model.py").write_text(MODEL)
    (tmp_path / "empty/class").mkdir(parents=True)
    return tmp_path


def changes(*words: str) -> dict:
    return config_of(parser().parse_args(words), shipped_config()["sources"])


def cells(*words: str) -> dict:
    """Loader -> cell, of what a command line measures."""
    config, own = shipped_config(), changes(*words)
    plan, *_ = plan_of(config, own, images_to_train_on(config, own))
    return {cell.loader: cell for cell in plan.cells["own"].values()}


def test_a_folder_alone_is_what_the_shipped_config_measures(folder):
    found = changes("My Images")
    own = merged("own.yaml")
    assert found["sources"] == {"my_images": {**own["sources"]["own"], "folder": "My Images"}}
    own["experiments"]["own"]["common"]["dataset"] = "my_images"
    own["experiments"]["own"]["advice"] = {"of": "dataloader", "best": 3}
    assert found["experiments"] == own["experiments"]
    assert (found["run"], found["results"], found["quick"]) == (["own"], "results/run", False)
    assert changes("My Images", "--limit", "30")["sources"]["my_images"]["limit"] == 30


@pytest.mark.parametrize(("gpus", "of_the_gpu"), [("1", {"cuda_jpeg", "dali_gpu"}), ("0", set())])
def test_a_quick_run_without_a_gpu_has_no_loader_that_is_for_one(folder, gpus, of_the_gpu):
    found = cells("My Images", "--quick", "--gpus", gpus, "--batch-size", "8")
    assert set(found) == {"dataloader_workers", "host_cache", "replay", *of_the_gpu}


def test_options_are_those_of_the_cells(folder):
    found = cells(
        *("My Images", "--model", "simple_cnn", "--size", "56", "--batch-size", "8", "--steps", "12"),
        *("--gpus", "0", "--loaders", "spdl", "strips", "dataloader_sync"),
    )
    assert set(found) == {"spdl", "dataloader_sync", "replay"}  # strips cut no windows
    assert {cell.overrides for cell in found.values()} == {("recipe.size=56", "recipe.short_side=64")}
    assert {(cell.batch_size, cell.steps, cell.device) for cell in found.values()} == {(8, 12, "cpu")}
    assert found["spdl"].prefetch_factor == 4  # as shipped
    blocks = changes("My Images", "--loaders", "my_loader.py:Mine")["experiments"]["own"]["blocks"]
    assert set(blocks) == {"limit", "my_loader_mine"}
    assert blocks["my_loader_mine"] == {"loader": "my_loader.py:Mine", "persistent_workers": True}


def test_a_name_of_the_config_and_a_dataset_are_measured_too(folder):
    assert changes("cifar10")["sources"] == {}
    assert changes("cifar10", "--limit", "9")["sources"] == {"cifar10": {"limit": 9}}
    found, name = changes("torchvision.datasets:FakeData"), "torchvision_datasets_fakedata"
    assert found["sources"] == {name: {"layout": "torchvision.datasets:FakeData"}}
    assert found["experiments"]["own"]["common"]["dataset"] == name


@pytest.mark.parametrize(
    ("images", "size"),
    [(2, 2), (7, 2), (16, 4), (48, 8), (63, 8), (64, 16), (511, 64), (512, 128), (9999, 128)],
)
def test_few_images_have_a_smaller_batch_where_nobody_asked_for_one(folder, images, size):
    found = changes("My Images")
    sentence = fit_batch(parser().parse_args(["My Images"]), found, images, 3)
    assert found["experiments"]["own"]["common"]["batch_size"] == size
    assert (f"Batch size: {size}, since there are {images} images" in sentence) == (size < 128)


@pytest.mark.parametrize(
    ("words", "images", "size", "steps", "said"),
    [
        ((), 9999, 8, 12, ["On a CPU a repeat has 12 steps of 8 images, and more until it took 2.5 s;"]),
        ((), 16, 4, 12, ["Batch size: 4, since", "On a CPU a repeat has 12 steps of 4 images"]),
        (("--steps", "40"), None, 8, 40, ["a repeat has 40 steps of 8"]),
        (("--steps", "40", "--batch-size", "64"), 99, 64, 40, []),
    ],
)
def test_a_cpu_has_fewer_and_smaller_steps_where_nobody_asked_for_some(
    folder, words, images, size, steps, said
):
    asked = parser().parse_args(["My Images", "--gpus", "0", *words])
    found = config_of(asked, shipped_config()["sources"])
    sentence = fit_batch(asked, found, images, 2.5)
    common = found["experiments"]["own"]["common"]
    assert (common["batch_size"], common["steps"]) == (size, steps)
    assert all(part in sentence for part in said)
    assert bool(said) == bool(sentence)
    assert "until" not in fit_batch(asked, found, images, 0)


@pytest.mark.parametrize(
    ("words", "count", "visible", "gpus", "told"),
    [
        ((), 0, None, 0, True),
        ((), 2, "", 0, True),
        ((), 2, "-1", 0, True),  # as CUDA reads it
        ((), 2, "MIG-0", 0, True),  # of another node
        ((), 2, "GPU-1", 1, False),
        ((), 2, None, 1, False),
        ((), 2, "1", 1, False),
        (("--gpus", "1"), 0, None, 1, False),
        (("--gpus", "0"), 2, None, 0, False),
        (("--steps", "4", "--batch-size", "4"), 0, None, 0, True),
    ],
)
def test_the_turn_to_the_cpu_is_told_where_nobody_asked_for_it(
    folder, capsys, monkeypatch, words, count, visible, gpus, told
):
    ran = []
    monkeypatch.setattr(run_workflow.sys, "platform", "linux")
    gpus_here = [Gpu(f"GPU-{number}", "a GPU", number) for number in range(count)]
    monkeypatch.setattr(run_workflow, "on_node", lambda: gpus_here)
    monkeypatch.delenv(VISIBLE_DEVICES, raising=False)
    if visible is not None:
        monkeypatch.setenv(VISIBLE_DEVICES, visible)
    monkeypatch.setattr(run_workflow, "measured", lambda asked, *_: ran.append(asked.gpus) or 0)
    assert run_workflow.main(["My Images", "--limit", "20", *words]) == 0
    assert ran == [gpus]
    by_hand = Path("results/run/config.yaml").read_text().splitlines()[1]
    assert by_hand.endswith(f" --cores all --resources gpu={gpus}")
    first, *_ = [*capsys.readouterr().out.splitlines(), ""]
    assert first.startswith("No NVIDIA GPU is usable here: training on the CPU; --gpus 1 asks for") == told
    assert ("Batch size: 4, since there are 20 images to train on" in first) == ("--steps" not in words)


IMAGES = ("My Images", "--batch-size", "8")
REFUSED = [  # words, found, expected, what to do
    (("nowhere",), "no folder nowhere", "CLASS/IMAGE", "choose one"),
    (("./nowhere",), "no folder nowhere", "CLASS/IMAGE", "correct its path"),
    (("my_model.py",), "my_model.py, which is a file", "CLASS/IMAGE", "unpack an archive first"),
    (("cifar11",), "no folder cifar11", "a name in `sources`", "write 'cifar10'"),
    ((".",), "overlap with the prepared", "outside of", "run it in another folder"),
    (("empty",), "0 class folders", "at least two", "sort the images"),
    (("My Images", "--batch-size", "64"), "batch_size 64", "at most 48", "lower batch_size"),
    ((*IMAGES, "--limit", "4"), "batch_size 8", "at most 4", "lower batch_size"),
    ((*IMAGES, "--limit", "2"), "limit 2 for 4 classes", "at least 4", "raise `limit`"),
    ((*IMAGES, "--loaders", "dataloader_worker"), "'dataloader_worker'", "one of", "'dataloader_workers'"),
    ((*IMAGES, "--loaders", "strips"), "no loader to measure: strips", "one at least", "--loaders"),
    ((*IMAGES, "--out", "my_model.py"), "my_model.py is a file", "a folder", "name another"),
    (("noise_224", "--limit", "9"), "--limit 9 for noise_224", "images in files", "leave --limit out"),
    # plug-ins, of which nothing is imported: all others are in core/test_references.py
    ((*IMAGES, "--model", "my_modle.py:net"), "no file my_modle.py", "a Python file", "write 'my_model.py'"),
    ((*IMAGES, "--model", "~nobody_here/x.py:net"), "'~nobody_here'", "a user of this machine", "full path"),
    (("new\nline",), r"'new\nline', with a control", "without them", "rename"),
    (("caf\udce9",), r"'caf\udce9', with", "without them", "rename"),  # é in Latin-1
    (("~nobody_here/x",), "no home folder of '~nobody_here'", "a user of this machine", "full path"),
    ((*IMAGES, "--loaders", "replay"), "replay is the limit", "one at least", "name others with --loaders"),
    # what a process refuses that imports it: so, too
    pytest.param(
        *((*IMAGES, "--loaders", "my_loader.py:NoWindows"), "cannot crop and resize", "one at", "--loaders"),
        marks=pytest.mark.slow,
    ),
]


@pytest.mark.parametrize(("words", "found", "expected", "remedy"), REFUSED)
def test_what_cannot_be_meant_is_a_sentence_before_anything_is_prepared(
    folder, capsys, words, found, expected, remedy
):
    assert run_workflow.main(words) == 2
    said = [line.partition(": ")[2] for line in capsys.readouterr().err.strip().splitlines()[-3:]]
    assert all(word in line for word, line in zip((found, expected, remedy), said, strict=True)), said
    assert not {"data", "results"} & {path.name for path in folder.iterdir()}


def test_a_size_that_no_crop_can_have_is_told_with_the_option(capsys):
    with pytest.raises(SystemExit) as ended:
        run_workflow.main(("My Images", "--size", "7"))
    assert ended.value.code == 2
    assert "argument --size: found: 7; expected: a whole number of 8 or more" in capsys.readouterr().err


def test_a_config_that_does_not_fit_on_the_disk_is_told_with_the_option(folder, capsys):
    with files_of_at_most(100):
        assert run_workflow.main(IMAGES) == 2
    assert capsys.readouterr().err.splitlines()[2] == "what to do: name another with --out"
    assert not (folder / "results/run/config.yaml").exists()


def test_two_runs_in_one_folder_are_refused(folder, capsys):
    results = folder / "results/run"
    lock = run_workflow.locked(results)
    assert run_workflow.main(IMAGES) == 2
    assert "another gpufeed run at work in" in capsys.readouterr().err
    assert not (results / "config.yaml").exists()
    lock.close()
    assert not run_workflow.locked(results).closed


@pytest.mark.parametrize("text", ["model: {width: 3}\n", "a: [", "- 1"])
def test_the_config_of_another_project_is_named(folder, capsys, text):
    (folder / "config").mkdir()
    (folder / "config/config.yaml").write_text(text)
    assert run_workflow.main(IMAGES) == 2
    found, expected, remedy = capsys.readouterr().err.strip().splitlines()
    assert f"{folder}/config/config.yaml, which is no config of gpufeed" in found
    assert "without config/config.yaml" in expected
    assert "in another folder" in remedy
    assert "line 2, column 1" in found or text != "a: ["


@pytest.mark.parametrize(
    ("right", "wrong", "found"),
    [
        ("data: data", "data: 3", "data: 3, in config/config.yaml"),
        ("least_s: 3", "least_s: '3'", "least_s: '3', in config/config.yaml"),
        ("\nsources:\n", "\nsources:\n  mine: 3\n", "sources.mine: 3, in config/config.yaml"),
    ],
)
def test_a_wrong_value_in_the_config_of_the_folder_is_named(folder, capsys, right, wrong, found):
    text = (CONFIG / "config.yaml").read_text()
    assert text.count(right) == 1
    (folder / "config").mkdir()
    (folder / "config/config.yaml").write_text(text.replace(right, wrong))
    assert run_workflow.main(IMAGES) == 2
    assert capsys.readouterr().err.startswith(f"found: {found}\nexpected: type ")

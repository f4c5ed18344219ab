"""The code to paste: every loader's script is tidy Python, runs alone, and yields every sample once."""

import importlib.util
import shutil
import subprocess
import sys
from itertools import product

import numpy as np
import pytest
import torch
from paste_fixtures import MEAN, STD, cell, check, lacks, run, write_photos

from gpufeed.advice import paste
from gpufeed.core.cells import Cell, impossible, settle
from gpufeed.core.registry import AUGMENTS, LOADERS
from gpufeed.datasets.image_folder import reorganise
from gpufeed.decoders.dali_gpu import ENGINES_FROM, share_of_engines

NAMES = [name for name, entry in LOADERS.items() if not entry.ceiling]
RECIPE = {"size": 32, "short_side": 40}
EVERYTHING = {"rotate_degrees": 10.0, "brightness": 0.2, "contrast": 0.3, "salt_pepper": 0.1}


def possible(of: dict) -> bool:
    made = Cell(**of)
    return impossible(settle(made)) is None


def variants(loader: str) -> list[dict]:
    """Settings of one loader, of all kinds that a table may hold."""
    found = []
    for augment, recipe, device in product(AUGMENTS, (None, RECIPE), ("cpu", "cuda")):
        for axes in (
            {},
            {"workers": 3, "prefetch_factor": 4, "persistent_workers": True, "decoder": "simplejpeg"},
            {"workers": 3, "decoder": "torchvision_cpu", "pin_memory": False, "channels_last": False},
            {"workers": 1, "decoder": "torchcodec_cpu", "devices": 2, "trainer": "lightning"},
            {"source": {"resize": [20, 24]}},
            {"hw_decoder_load": 0.65},
        ):
            if axes.get("decoder") and not LOADERS[loader].decoders:
                axes = {name: value for name, value in axes.items() if name != "decoder"}
            for options in ({}, EVERYTHING | {"dtype": "bfloat16"}):
                if options and augment != "torch":
                    continue
                of = cell(loader, augment, recipe, device=device, options=options, **axes)
                found += [of] if possible(of) else []
    return found


def test_every_loader_has_a_template_and_its_scripts_are_tidy_python(tmp_path):
    count = 0
    for loader in NAMES:
        own = variants(loader)
        assert len(own) >= 2
        for number, of in enumerate(own):
            text = paste.script(of)
            assert f"data/{of['dataset']}/images/train" in text
            (tmp_path / f"{loader}_{number}.py").write_text(text)
            count += 1
    assert count > 300
    if shutil.which("ruff") is None and importlib.util.find_spec("ruff") is None:
        pytest.skip("ruff is not installed")
    ruff = [sys.executable, "-m", "ruff"]
    width, third = ["--isolated", "--line-length", "112"], 'lint.isort.known-third-party=["gpufeed"]'
    rules = ["check", *width, "--select", "E,F,I,B", "--ignore", "B007", "--config", third]
    for command in (rules, ["format", *width, "--check", "--diff"]):
        done = subprocess.run([*ruff, *command, str(tmp_path)], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]


def test_settings_reach_the_script():
    text = paste.script(
        cell(
            "dataloader_workers", workers=7, prefetch_factor=5, persistent_workers=True, device="cuda", seed=3
        )
    )
    for part in ("num_workers=7", "prefetch_factor=5", "persistent_workers=True", "pin_memory=True"):
        assert f"        {part},\n" in text
    assert "SEED = 3\n" in text
    assert "BATCH_SIZE = 16\n" in text
    text = paste.script(cell("dali_gpu", device="cuda", recipe=RECIPE, hw_decoder_load=0.9))
    assert '"hw_decoder_load": 0.9' in text
    assert "random_area=[0.08, 1.0]" in text
    text = paste.script(cell("resident", "torch", options={"brightness": 0.5}), "nvimgcodec 0.9")
    assert 'cache_decoder="nvimgcodec"' in text
    assert 'augment_options={"brightness": 0.5}' in text
    of = cell("dataloader_sync") | {"source": {"layout": "tiny_imagenet"}}
    assert "MEAN, STD = (0.4802, 0.4481, 0.3975), (0.277, 0.2691, 0.2821)" in paste.script(of)
    of["hyper"]["input"] = {"mean": [0.5, 0.5, 0.5], "std": [0.25, 0.25, 0.25]}
    assert "MEAN, STD = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)" in paste.script(of)


def test_the_share_of_the_jpeg_engines_is_that_measured_or_both_that_it_may_have_been():
    low, high = (share_of_engines(size, 7) for size in (ENGINES_FROM - 1, ENGINES_FROM))
    size = f"a mean size of {ENGINES_FROM // 1000} kB and more"
    rule = f"measured with {high} where files have {size}, with {low}"
    for loader in ("dali_gpu", "dali_gpu_reader"):
        text = paste.script(cell(loader, device="cuda"))
        assert rule in text
        assert f'"hw_decoder_load": {high},' in text
        text = paste.script(cell(loader, device="cuda", hw_decoder_load=0.0))
        assert '"hw_decoder_load": 0.0,' in text
        assert rule not in text
    assert "hw_decoder_load" not in paste.script(cell("dali_cpu", device="cuda"))


def test_moments_are_those_measured_with_or_a_comment_asks_for_them():
    known, asked = cell("dataloader_sync"), "ImageNet's: replace them by those of your images"
    for source, mean in (
        ({"layout": "fashion_mnist"}, 0.286),
        ({"layout": "mosaic", "tiles": {"layout": "cifar10"}}, 0.4914),
    ):
        text = paste.script(known | {"source": source})
        assert f"MEAN, STD = ({mean}, " in text
        assert asked not in text
    for loader in ("dataloader_sync", "overlap"):
        assert asked in paste.script(cell(loader) | {"source": {"layout": "synthetic"}})


@pytest.mark.parametrize("loader", NAMES)
def test_each_of_several_ranks_has_its_device_and_one_of_them_writes(loader):
    of = cell(loader, workers=LOADERS[loader].workers and 40, device="cuda", devices=2, trainer="lightning")
    text = paste.script(of)
    main = text[text.index('if __name__ == "__main__"') :]
    places = [main.find(part) for part in ("set_device(", "init_process_group(", "RANK == 0", "barrier()")]
    assert places[0] > 0
    writes = "write_shards(" in main or "DatasetWriter(" in main
    assert [place > 0 for place in places[1:]] == [writes or "gpufeed.loader(" in main, writes, writes]
    assert places[0] < min((place for place in places[1:] if place > 0), default=len(main))
    assert ("partial.rename(" in text) == writes
    of_torch = loader.startswith("dataloader")
    assert ("sampler.set_epoch(epoch)" in main) == of_torch
    assert ("DistributedSampler(dataset, WORLD_SIZE, RANK, seed=SEED)" in text) == of_torch
    of_a_rank = 'torch.device("cuda", int(os.environ["LOCAL_RANK"]))'
    assert (of_a_rank in text) != ("gpufeed.loader(" in main)
    alone = paste.script(of | {"devices": 1})
    assert not any(part in alone for part in ("set_device(", "torch.distributed", "set_epoch", "RANK"))


def test_there_is_a_shard_for_each_worker_of_all_ranks():
    of = cell("webdataset", workers=40, device="cuda", devices=2, trainer="lightning")
    assert "count=min(80, len(samples))" in paste.script(of)
    assert "count=min(64, len(samples))" in paste.script(cell("webdataset", workers=2))


@pytest.mark.parametrize("inner", ["", "train", "only", "only/train"])
def test_the_class_folders_of_ones_own_images_are_those_that_were_measured(tmp_path, inner):
    for name in ("cats", "dogs"):
        splits = [tmp_path / inner]
        splits += [splits[0].with_name("val")] * inner.endswith("train")
        for split in splits:
            (split / name / "deeper").mkdir(parents=True)
            for number in range(2):
                (split / name / f"deeper/{number}.jpg").touch()
    for beside in (".cache", "docs"):  # without images
        (tmp_path / beside).mkdir()
    (tmp_path / "docs/read.me").touch()
    found = reorganise([tmp_path], tmp_path.with_name("out"), "own", {}).info
    assert found.classes == ["cats", "dogs"]
    assert paste.class_folders(tmp_path) == str(tmp_path / inner)
    text = paste.script(cell("dataloader_sync"), folder=str(tmp_path / inner))
    assert f'FOLDER = Path("{tmp_path / inner}")' in text


def test_a_folder_without_class_folders_has_none(tmp_path):
    assert paste.class_folders(tmp_path / "gone") is None
    (tmp_path / "1.jpg").touch()
    assert paste.class_folders(tmp_path) is None
    assert 'Path("data/photos/images/train")' in paste.script(cell("dataloader_sync"))


def test_what_is_not_expressed_is_a_sentence_and_a_ceiling_has_no_script():
    assert paste.script(cell("replay")) is None
    known = cell("dataloader_sync")
    for changes, said in (
        ({"loader": "my_loader.py:Cached"}, "your own loader, my_loader.py:Cached"),
        ({"augment": "my_augment.py:Dimmed"}, "your own augment, my_augment.py:Dimmed, behind loader data"),
        ({"source": {"layout": "my_data.py:Squares"}}, "the Dataset my_data.py:Squares, by loader dataload"),
        ({"loader": "of_a_later_version"}, "no code to paste for loader of_a_later_version"),
    ):
        text = paste.script(known | changes)
        assert said in text
        assert all(line.startswith("# ") for line in text.splitlines())


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A folder of class folders and the pixels of its images by their label."""
    folder = tmp_path_factory.mktemp("paste") / "photos"
    return folder, write_photos(folder, untidy=True)


EXACT, FFMPEG, ENCODED_AGAIN = (0.51, 0.01), (160, 12), (60, 6)
MIRRORED = {"crop_padding": 0, "flip_probability": 1.0}
LIBRARIES = {
    "dataloader": (
        EXACT,
        cell("dataloader_sync"),
        cell("dataloader_sync", "torch", options=MIRRORED),
        cell("dataloader_sync", "torch", options=EVERYTHING),
        cell("dataloader_workers", "cpu", workers=2, decoder="simplejpeg", persistent_workers=True),
        cell("dataloader_workers", "cpu", workers=1, options=MIRRORED),
        cell(
            "dataloader_workers",
            "torch",
            RECIPE,
            workers=2,
            decoder="torchvision_cpu",
            options={"dtype": "bfloat16"},
        ),
    ),
    "fastai": (
        EXACT,
        cell("fastai", workers=1, prefetch_factor=3),
        cell("fastai", "torch", RECIPE),
        cell("fastai", "cpu", workers=2, decoder="simplejpeg"),
    ),
    "webdataset": (
        EXACT,
        cell("webdataset", workers=2),
        cell("webdataset", "torch", RECIPE, workers=2, decoder="torchvision_cpu", persistent_workers=True),
        cell("webdataset_resampled", "cpu", workers=2, persistent_workers=True),
    ),
    "spdl.io": (
        FFMPEG,
        cell("spdl", workers=2),
        cell("spdl", "torch", RECIPE),
        cell("spdl", "cpu", workers=2, persistent_workers=True),
        cell("spdl_processes", workers=2, persistent_workers=True),
    ),
    "ffcv": (ENCODED_AGAIN, cell("ffcv", workers=1, batch_size=13), cell("ffcv", "torch", RECIPE)),
    "nvidia.dali": (
        EXACT,
        cell("dali_cpu"),
        cell("dali_cpu", "dali"),
        cell("dali_cpu", "torch", RECIPE),
        cell("dali_cpu_reader"),
        cell("dali_cpu_reader", "none", RECIPE, channels_last=False),
    ),
    "gpufeed": (
        EXACT,
        *(
            cell(name)
            for name in ("overlap", "resident", "host_cache", "strips", "resident_jpeg", "cuda_jpeg")
        ),
        cell("overlap", "cpu", workers=1),
        *(cell(name, "torch", RECIPE) for name in ("overlap", "resident", "host_cache", "cuda_jpeg")),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("library", LIBRARIES)
def test_pasted_code_runs_alone_and_yields_every_sample(library, photos, tmp_path):
    (folder, pixels), (tolerance, *cells) = photos, LIBRARIES[library]
    if library not in ("gpufeed", "dataloader") and (sentence := lacks(library)):
        pytest.skip(sentence)
    for of, batches in zip(cells, run(tmp_path / "run", folder, cells, library == "gpufeed"), strict=True):
        check(batches, of, pixels, *tolerance)
        if of["hyper"]["augment"].items() >= MIRRORED.items():
            for _, images, labels in batches:
                expected = np.stack([pixels[label][:, :, ::-1] / 255 for label in labels.tolist()])
                assert images.numpy() * STD + MEAN == pytest.approx(expected, abs=1e-5)


def test_a_crop_is_a_window_of_the_padded_image():
    """Of the augment in plain torch: one of the 81 windows of the same image, or one of them mirrored."""
    text = paste.script(cell("dataloader_sync", "torch"))
    code = text[text.index("def cropped") : text.index("def finished")]
    space: dict = {"torch": torch, "F": torch.nn.functional}
    exec(code, space)
    images = torch.randint(0, 256, (64, 3, 6, 5), dtype=torch.uint8)
    padded = torch.nn.functional.pad(images, [4] * 4)
    seen = set()
    for number, found in enumerate(space["cropped"](images)):
        places = [
            (top, left, flip)
            for top, left, flip in product(range(9), range(9), (False, True))
            if torch.equal(
                found,
                (lambda part, flip: part.flip(2) if flip else part)(
                    padded[number, :, top : top + 6, left : left + 5], flip
                ),
            )
        ]
        assert places
        seen.add(places[0])
    assert len(seen) > 30
    assert len({flip for *_, flip in seen}) == 2

"""The front that holds a split on the device; here on the CPU, which is what it falls back to."""

import logging
import os
import re
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
import yaml
from data_fixtures import REPOSITORY, files_below
from hostile_fixtures import hostile_files, photo, saved
from hypothesis import given, settings
from hypothesis import strategies as st
from image_fixtures import MEAN, STD, encode, pixels, write_dataset
from torch.utils.data import DataLoader

import gpufeed
from gpufeed import gpu_only_dataset
from gpufeed.cache import build, read_info
from gpufeed.data.image_folder import MEAN as IMAGENET_MEAN
from gpufeed.data.image_folder import STD as IMAGENET_STD
from gpufeed.data.prepare import prepare
from gpufeed.data.resize import resized
from gpufeed.decode.pillow import PillowDecoder
from gpufeed.decode.simplejpeg import SimpleJpegDecoder
from gpufeed.errors import GpufeedError
from gpufeed.gpu_only_dataset import GPUOnlyDataset

NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")


@pytest.fixture
def manifest(tmp_path):
    return write_dataset(tmp_path / "tiny")  # 23 training and 6 test images, whose pixels tell their id


@pytest.fixture
def decoded(monkeypatch):
    """Every file that simplejpeg is given in this process."""
    seen, decode = [], SimpleJpegDecoder.decode
    monkeypatch.setattr(
        SimpleJpegDecoder, "decode", lambda self, files: seen.extend(files) or decode(self, files)
    )
    return seen


def dataset(source, **options) -> GPUOnlyDataset:
    return GPUOnlyDataset(source, **{"use_gpu_decode": False, "device": "cpu", "workers": 1, **options})


def expected(sample_id: int) -> torch.Tensor:
    return torch.from_numpy(pixels(sample_id, 8)).permute(2, 0, 1)


@pytest.mark.parametrize("split", ["train", "test"])
def test_samples_are_those_of_the_split(manifest, split):
    data = dataset(manifest, split=split)
    assert data.ids.tolist() == manifest.ids(split).tolist()
    assert len(data) == len(manifest.ids(split))
    for place, sample_id in enumerate(data.ids):
        image, label = data[place]
        assert image.dtype == torch.uint8
        assert torch.equal(image, expected(sample_id))
        assert label.item() == manifest.labels()[sample_id]
    assert torch.equal(data[-1][0], expected(data.ids[-1]))
    with pytest.raises(IndexError):
        data[len(data)]
    assert data.classes == manifest.info.classes


def test_from_the_path_of_a_manifest(manifest):
    assert len(dataset(manifest.root / "manifest.parquet")) == 23


@pytest.mark.parametrize("batch_size", [1, 5, 23, 100])
def test_a_shuffled_epoch_has_every_sample_once(manifest, batch_size):
    data, seen = dataset(manifest), []
    for images, labels in data.batches(batch_size, seed=4):
        assert images.shape[1:] == (3, 8, 8)
        assert images.is_contiguous(memory_format=torch.channels_last)
        for image, label in zip(images, labels, strict=True):
            sample_id = int(image[0, 0, 0]) + 256 * int(image[1, 0, 0])
            assert torch.equal(image, expected(sample_id))
            assert label.item() == manifest.labels()[sample_id]
            seen.append(sample_id)
    assert sorted(seen) == data.ids.tolist()
    assert seen != sorted(seen)


def order(data, **options) -> list[int]:
    return [int(image[0, 0, 0]) for images, _ in data.batches(4, **options) for image in images]


def test_order_is_a_function_of_the_seed(manifest):
    data = dataset(manifest)
    assert order(data, seed=1) == order(data, seed=1) != order(data, seed=2)
    assert order(data, shuffle=False) == data.ids.tolist()


def test_max_samples_draws_the_same_ones(manifest):
    first, again = dataset(manifest, max_samples=7), dataset(manifest, max_samples=7)
    assert first.ids.tolist() == again.ids.tolist() == sorted(set(first.ids.tolist()))
    assert len(first) == 7
    assert set(first.ids) < set(manifest.ids("train"))
    assert first.ids.tolist() != manifest.ids("train")[:7].tolist()
    assert torch.equal(first[3][0], expected(first.ids[3]))
    assert len(dataset(manifest, max_samples=1000)) == 23


def test_the_cache_is_built_once_and_again_for_another_manifest(manifest):
    data = dataset(manifest)
    built = data.cache.stat().st_mtime_ns
    assert read_info(data.cache).decoder == "simplejpeg"
    assert dataset(manifest, split="test").cache.stat().st_mtime_ns == built
    manifest.table.loc[data.ids[0], "label"] += 1
    changed = dataset(manifest)
    assert changed.cache.stat().st_mtime_ns > built
    assert changed[0][1] == data[0][1] + 1


TWO_AT_ONCE = """
import logging, sys, time
import numpy as np
from gpufeed import gpu_only_dataset
from gpufeed.decode.simplejpeg import SimpleJpegDecoder
logging.basicConfig(level=logging.INFO)
decode = SimpleJpegDecoder.decode
def slow(self, files):
    print("decodes")
    time.sleep(float(sys.argv[2]))
    return decode(self, files)
SimpleJpegDecoder.decode = slow
print("ready", flush=True)
sys.stdin.readline()
data = gpu_only_dataset.GPUOnlyDataset(sys.argv[1], use_gpu_decode=False, device="cpu", workers=1)
np.save(sys.argv[3], data.images.permute(0, 2, 3, 1).numpy())
"""


@pytest.mark.slow
def test_of_two_processes_that_lack_the_cache_one_builds_it(manifest, tmp_path):
    def start(name: str, slow_s: float) -> subprocess.Popen:
        where = [manifest.root / "manifest.parquet", str(slow_s), tmp_path / f"{name}.npy"]
        command = [sys.executable, "-c", TWO_AT_ONCE, *where]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, cwd=REPOSITORY)
        assert process.stdout.readline() == "ready\n"
        return process

    def go(process: subprocess.Popen) -> None:
        process.stdin.write("\n")
        process.stdin.flush()

    first, second = start("first", 2.0), start("second", 0.0)
    go(first)
    while first.poll() is None and not list(manifest.root.glob("cache/simplejpeg.*.partial")):
        time.sleep(0.01)
    go(second)
    (out, error), (out_2, error_2) = first.communicate(timeout=60), second.communicate(timeout=60)
    assert (first.returncode, second.returncode) == (0, 0), error + error_2
    assert (out, out_2) == ("decodes\n", "")
    assert "this one waits for it" in error_2
    right = np.stack([pixels(i, 8) for i in manifest.ids("train")])
    for name in ("first", "second"):
        assert np.array_equal(np.load(tmp_path / f"{name}.npy"), right)


@NO_GPU
def test_without_a_gpu_the_cpu_decodes_and_holds(manifest, caplog):
    caplog.set_level(logging.INFO, "gpufeed")
    data = GPUOnlyDataset(manifest, workers=1)
    assert data.device == torch.device("cpu")
    assert "finds no CUDA GPU here" in caplog.text
    assert "simplejpeg builds the cache instead" in caplog.text
    assert data.cache.name == "simplejpeg.npy"
    assert (read_info(data.cache).decoder, read_info(data.cache).asked_for) == ("simplejpeg", "dali_gpu")
    assert torch.equal(data[5][0], expected(data.ids[5]))


@NO_GPU
def test_a_device_that_is_not_there_is_an_error(manifest):
    with pytest.raises(GpufeedError, match="finds no CUDA GPU"):
        dataset(manifest, device="cuda")


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"max_samples": 0}, "max_samples 0"),
        ({"max_samples": -3}, "max_samples -3"),
        ({"split": "val"}, "no samples in split 'val'"),
        ({"device": "xla"}, "device 'xla'"),
        ({"device": "gpu"}, "device 'gpu'"),
        ({"max_samples": 2.5}, "max_samples 2.5"),
        ({"image_size": 224}, "image_size 224"),
        ({"image_size": (0, 4)}, "image_size"),
        ({"dtype": torch.int64}, "dtype torch.int64"),
        ({"max_quarantined_share": 1}, "max_quarantined_share 1"),
        ({"source": "no/such/folder"}, "no no/such/folder"),
    ],
)
def test_what_cannot_be_is_an_error(manifest, options, found):
    with pytest.raises(GpufeedError, match=found):
        dataset(**{"source": manifest, **options})
    assert not (manifest.root / "cache").exists()


def test_batches_of_nothing(manifest):
    with pytest.raises(GpufeedError, match="batch size 0"):
        next(dataset(manifest).batches(0))


def test_what_does_not_fit_is_said_before_anything_is_decoded(manifest, monkeypatch, decoded):
    monkeypatch.setattr(gpu_only_dataset, "free_bytes", lambda device: 1000)
    with pytest.raises(GpufeedError, match="GiB free on cpu") as raised:
        dataset(manifest)
    assert "max_samples=4" in raised.value.remedy  # 4 x (8 x 8 x 3 + 8) bytes of 900
    assert decoded == []
    assert len(dataset(manifest, max_samples=4)) == 4
    with pytest.raises(GpufeedError):
        dataset(manifest, max_samples=5)
    with pytest.raises(GpufeedError) as raised:
        dataset(manifest, image_size=(100, 100))
    assert "max_samples" not in raised.value.remedy
    assert len(decoded) == 4


def test_a_dataloader_takes_it(manifest):
    loader = torch.utils.data.DataLoader(dataset(manifest), batch_size=10)
    images, labels = next(iter(loader))
    assert images.shape == (10, 3, 8, 8)
    assert labels.tolist() == manifest.labels()[manifest.ids("train")[:10]].tolist()
    assert np.array_equal(images[2].numpy(), expected(manifest.ids("train")[2]).numpy())


def test_only_max_samples_images_are_decoded_and_once(manifest, decoded):
    some = dataset(manifest, max_samples=7)
    files = manifest.paths()
    assert sorted(decoded) == sorted(files[i].read_bytes() for i in some.ids)
    again = dataset(manifest, max_samples=7)
    assert again.cache == some.cache
    assert torch.equal(again.images, some.images)
    assert len(decoded) == 7
    other = dataset(manifest, max_samples=3, split="test")
    assert other.cache != some.cache
    assert torch.equal(other[1][0], expected(other.ids[1]))
    assert len(decoded) == 10


def test_a_cache_of_the_whole_set_is_reused_for_a_part(manifest, decoded):
    everything = dataset(manifest, image_size=(5, 6))
    assert everything.cache.name == "simplejpeg-5x6.npy"
    assert len(decoded) == 29
    some = dataset(manifest, max_samples=7, image_size=(5, 6))
    assert some.cache == everything.cache
    places = np.searchsorted(everything.ids, some.ids)
    assert torch.equal(some.images, everything.images[places])
    manifest.table.loc[0, "label"] += 1  # now it is of another manifest
    assert dataset(manifest, max_samples=7, image_size=(5, 6)).cache != everything.cache
    assert len(decoded) == 29 + 7


def test_a_part_of_another_size_or_of_other_files_is_another_cache(manifest):
    sizes = (None, (9, 8))
    names = {dataset(manifest, max_samples=n, image_size=size).cache.name for n in (5, 6) for size in sizes}
    assert len(names) == 4


@pytest.mark.parametrize("image_size", [(5, 11), (20, 16), (8, 8)])
def test_images_are_stretched_as_pillow_does(manifest, image_size):
    data = dataset(manifest, image_size=image_size)
    for place, sample_id in enumerate(data.ids):
        right = torch.from_numpy(resized(pixels(sample_id, 8), image_size)).permute(2, 0, 1)
        assert torch.equal(data[place][0], right)


def normalised(images: torch.Tensor, mean, std) -> torch.Tensor:
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (mean, std))
    return (images.double() / 255 - mean) / std


@pytest.mark.parametrize(
    ("dtype", "within"), [(torch.float16, 2e-3), (torch.bfloat16, 2e-2), (torch.float32, 1e-5)]
)
@pytest.mark.parametrize("normalise", [True, False])
def test_what_is_handed_out(manifest, dtype, within, normalise):
    data = dataset(manifest, dtype=dtype, normalise=normalise)
    mean, std = (MEAN, STD) if normalise else ((0.0,) * 3, (1.0,) * 3)
    right = torch.stack([normalised(expected(i), mean, std) for i in data.ids])
    (whole, labels), single = data[:], data[4][0]
    batches = torch.cat([images for images, _ in data.batches(5, shuffle=False)])
    for found in (whole, batches):
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), right, atol=within, rtol=within)
    assert single.shape == (3, 8, 8)
    assert torch.equal(single, whole[4])
    assert labels.tolist() == manifest.labels()[data.ids].tolist()
    assert data.images.dtype == torch.uint8


@pytest.mark.parametrize("normalise", [True, False])
def test_uint8_stays_uint8(manifest, normalise):
    data = dataset(manifest, normalise=normalise)
    assert torch.equal(data[3][0], expected(data.ids[3]))


def test_normalised_as_dali_does(manifest):
    """crop_mirror_normalize behind DALI's decoder, as the guide to GPU decoding has it."""
    pytest.importorskip("nvidia.dali")
    from nvidia.dali import fn, types

    from gpufeed.decode.dali_pipeline import DecodePipeline

    def graph(images, _):
        scaled = {"mean": [255 * mean for mean in MEAN], "std": [255 * std for std in STD]}
        return fn.crop_mirror_normalize(images, dtype=types.FLOAT, output_layout="CHW", **scaled)

    data, paths = dataset(manifest, dtype=torch.float32), manifest.paths()
    out = torch.empty((len(data), 3, 8, 8))
    assert DecodePipeline(None, 1, graph, device="cpu").fill([paths[i].read_bytes() for i in data.ids], out)
    torch.testing.assert_close(data[:][0], out, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    "index",
    [
        slice(10, 20),
        slice(None),
        slice(20, 2, -3),
        slice(-4, None),
        slice(30, 40),
        slice(1, 9, 4),
        [3, -1, 3],
        np.array([22, 0]),
        torch.tensor([5, -23]),
        range(4, 0, -1),
        [],
    ],
)
def test_several_at_once(manifest, index):
    data = dataset(manifest)
    everyone = np.arange(23)
    chosen = data.ids[everyone[index if isinstance(index, slice) else np.array(list(index), int)]]
    images, labels = data[index]
    assert images.shape == (len(chosen), 3, 8, 8)
    assert labels.tolist() == manifest.labels()[chosen].tolist()
    assert all(torch.equal(image, expected(i)) for image, i in zip(images, chosen, strict=True))


@pytest.mark.parametrize("index", [23, -24, [0, 23], [-24], np.int64(1000)])
def test_numbers_out_of_range(manifest, index):
    with pytest.raises(IndexError):
        dataset(manifest)[index]


@pytest.mark.parametrize("index", [1.5, "3", [0.5], [True, False], None])
def test_what_is_no_number(manifest, index):
    with pytest.raises((TypeError, ValueError)):
        dataset(manifest)[index]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_shuffling_dataloader_has_every_sample_once(manifest, workers):
    """With workers, too, while the images are on the host."""
    data = dataset(manifest, dtype=torch.float16, normalise=False)
    seen = []
    for images, labels in DataLoader(data, batch_size=5, shuffle=True, num_workers=workers):
        assert images.dtype == torch.float16
        ids = (images[:, 0, 0, 0].float() * 255).round().long().tolist()
        assert labels.tolist() == manifest.labels()[ids].tolist()
        assert torch.equal(images, data[np.searchsorted(data.ids, ids)][0])
        seen += ids
    assert sorted(seen) == data.ids.tolist()


def put(folder, files: dict[str, bytes]):
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def pngs(*names: str, size: int = 8) -> dict[str, bytes]:
    """Files whose pixels tell their place in the list."""
    return {name: encode(pixels(i, size)) for i, name in enumerate(names)}


def first_values(data) -> list[int]:
    return data.images[:, 0, 0, 0].tolist()


@pytest.mark.parametrize(
    ("names", "classes", "labels"),
    [
        (["b/0.png", "a/1.png", "a/deep/2.png"], ["a", "b"], {1: 0, 2: 0, 0: 1}),
        (["train/b/0.png", "train/a/1.png", "val/a/2.png"], ["a", "b"], {1: 0, 0: 1}),
        (["1.png", "0.png"], ["photos"], {1: 0, 0: 0}),
        (["one/0.png", "one/1.png"], ["one"], {0: 0, 1: 0}),
        (["a/0.png", "b/1.png", "loose.png"], ["a", "b"], {0: 0, 1: 1}),
    ],
)
def test_a_plain_folder(tmp_path, names, classes, labels):
    files = pngs(*names) | {"notes.txt": b"mine"}
    folder = put(tmp_path / "photos", files)
    data = dataset(folder, dtype=torch.float32)
    assert data.classes == classes
    assert dict(zip(first_values(data), data.labels.tolist(), strict=True)) == labels
    right = normalised(data.images, IMAGENET_MEAN, IMAGENET_STD)
    torch.testing.assert_close(data[:][0].double(), right, atol=1e-5, rtol=0)
    assert files_below(folder) == files
    assert data.cache.parent == tmp_path / "photos-cache"
    assert data.quarantined == []


def test_what_a_plain_folder_leaves_out_is_counted_in_the_log(tmp_path, caplog):
    dataset(put(tmp_path / "photos", pngs("a/0.png", "b/1.png", "loose.png") | {"a/notes.txt": b""}))
    assert "1 files are no images by their names" in caplog.text
    assert "1 images lie in no folder of a class" in caplog.text


def test_a_plain_folder_is_in_the_order_of_a_prepared_one(tmp_path):
    names = [f"{split}/{name}/{i}.png" for split in ("val", "train") for name in "cab" for i in (2, 10, 1)]
    folder = put(tmp_path / "photos", pngs(*names))
    own = prepare("image_folder", [folder], tmp_path / "data", "own", {})
    for split in ("train", "val"):
        plain, prepared = dataset(folder, split=split), dataset(own, split=split)
        assert plain.classes == prepared.classes
        assert torch.equal(plain.labels, prepared.labels)
        assert torch.equal(plain.images, prepared.images)
    assert len(dataset(own.root)) == len(prepared)  # a prepared dataset by its folder


def test_a_plain_folder_of_several_sizes_needs_image_size(tmp_path):
    folder = put(tmp_path / "photos", pngs("a/0.png") | pngs("b/0.png", size=9))
    with pytest.raises(GpufeedError, match="2 image sizes") as raised:
        dataset(folder)
    assert "image_size=" in raised.value.remedy
    assert len(dataset(folder, image_size=(4, 4))) == 2


def test_changed_files_are_decoded_anew_and_other_files_do_not_matter(tmp_path, decoded):
    names = [f"{name}/{i}.png" for name in "ab" for i in range(4)]
    folder = put(tmp_path / "photos", pngs(*names))
    for count in (None, 3):
        decoded.clear()
        first = dataset(folder, max_samples=count)
        decoded.clear()
        put(folder, {"a/notes.txt": b"mine"})
        assert dataset(folder, max_samples=count).cache == first.cache
        assert decoded == []
    for name in names:
        (folder / name).write_bytes(encode(pixels(200, 8)))
    assert first_values(dataset(folder)) == [200] * 8


@pytest.mark.parametrize("count", [None, 3])
def test_broken_files_are_named_counted_and_left_out(tmp_path, caplog, count):
    names = [f"{name}/{i}.png" for name in "ab" for i in range(4)]
    folder = put(tmp_path / "photos", pngs(*names) | dict.fromkeys(["a/1.png", "b/2.png", "b/3.png"], b""))
    with pytest.raises(GpufeedError, match="cannot be decoded") as raised:
        dataset(folder, max_samples=count)
    assert "max_quarantined_share" in raised.value.remedy
    assert not list((tmp_path / "photos-cache").glob("*.npy"))
    for _ in range(2):  # decoded, and from the cache
        caplog.clear()
        data = dataset(folder, max_samples=count, max_quarantined_share=0.9)
        broken = {one["path"] for one in data.quarantined}
        assert broken <= {"a/1.png", "b/2.png", "b/3.png"}
        assert len(data) + len(broken) == (count or 8)
        assert all("0 bytes" in one["reason"] and one["path"] in caplog.text for one in data.quarantined)
        assert first_values(data) == [i for i in data.ids if i not in (1, 6, 7)]
        assert data.labels.tolist() == [int(i >= 4) for i in data.ids]
    if broken:
        with pytest.raises(GpufeedError, match="cannot be decoded"):
            dataset(folder, max_samples=count, max_quarantined_share=0.1)


def test_a_pipe_among_the_images_stops_nothing(tmp_path):
    folder = put(tmp_path / "photos", pngs("a/0.png", "b/1.png"))
    os.mkfifo(folder / "a/1.png")
    data = dataset(folder, max_quarantined_share=0.5)
    assert data.quarantined == [{"path": "a/1.png", "reason": "not a regular file"}]


def test_the_share_is_that_of_the_config():
    config = yaml.safe_load((REPOSITORY / "config/config.yaml").read_text())
    assert config["max_quarantined_share"] == gpu_only_dataset.QUARANTINED_SHARE


HOSTILE = hostile_files()
NAMES = st.text("aZ9 _-.äß漢é", min_size=1, max_size=12).filter(lambda name: name.strip(" .-") == name)
SUFFIX = st.sampled_from([".jpg", ".JPEG", ".png", ".webp", ".bmp", ".tiff"])
WILD = st.dictionaries(
    st.tuples(st.sampled_from(["cats", "Hunde", "猫"]), NAMES, SUFFIX),
    st.sampled_from(list(HOSTILE)),
    min_size=1,
)


@given(WILD, st.sampled_from([None, 1, 4]))
@settings(max_examples=25)
def test_wild_folders(tmp_path_factory, wild, count):
    """Any file under any name: what Pillow decodes is there as Pillow has it, the rest is named."""
    files = {f"{name[0]}/{name[1]}{name[2]}": HOSTILE[kind] for name, kind in wild.items()}
    folder = put(
        tmp_path_factory.mktemp("wild") / "photos", {name: file.data for name, file in files.items()}
    )
    options = {"image_size": (12, 16), "max_quarantined_share": 0.999, "max_samples": count}
    ordered = sorted(files, key=lambda name: name.split("/"))
    drawn = [ordered[i] for i in gpu_only_dataset.draw(np.arange(len(files)), count)]
    if not any(files[name].decodes for name in drawn):
        with pytest.raises(GpufeedError, match="cannot be decoded"):
            dataset(folder, **options)
        return
    data = dataset(folder, **options)
    names = data.manifest.table["path"].tolist()
    assert names == ordered
    assert [names[i] for i in data.ids] == [name for name in drawn if files[name].decodes]
    assert [one["path"] for one in data.quarantined] == [name for name in drawn if not files[name].decodes]
    for place, i in enumerate(data.ids):
        file = files[names[i]]
        (right,) = PillowDecoder().decode([file.data]).images
        assert data.classes[data.labels[place]] == names[i].split("/")[0]
        assert np.array_equal(data[place][0].permute(1, 2, 0).numpy(), resized(right, (12, 16)))


def test_a_cache_that_cannot_be_written_says_what_to_name(manifest, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(GpufeedError) as raised:
        dataset(manifest, cache_folder=tmp_path / "file")
    assert "cache_folder=" in raised.value.remedy
    assert dataset(manifest, cache_folder=tmp_path / "there").cache == tmp_path / "there/simplejpeg.npy"


@NO_GPU
def test_a_cache_under_the_gpu_decoder_s_name_is_reused(manifest, decoded):
    """The workflow's job keeps the requested decoder's name for a cache, even if another decoder built it."""
    path = manifest.root / "cache/dali_gpu.npy"
    build(manifest, "pillow", path, asked_for="dali_gpu", because="There is none here.")
    data = GPUOnlyDataset(manifest, device="cpu", workers=1, max_samples=9)
    assert data.cache == path
    assert decoded == []
    assert torch.equal(data[2][0], expected(data.ids[2]))


def test_the_example_of_the_page(tmp_path, monkeypatch):
    page = (REPOSITORY / "docs/gpu_only_dataset.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    images = {
        f"{name}/{i}.jpg": saved("JPEG", photo(40 + i, 50)) for name in ("cats", "dogs") for i in range(9)
    }
    put(tmp_path / "photos", images)
    monkeypatch.chdir(tmp_path)
    found: dict = {}
    exec(code, found)
    assert len(found["data"]) == 10
    assert found["images"].shape == (4, 3, 224, 224)
    assert found["images"].dtype == torch.float16
    assert found["seen"] == 10


def test_the_short_way_to_import_it():
    assert gpufeed.GPUOnlyDataset is GPUOnlyDataset
    assert not hasattr(gpufeed, "GPUOnlyDatasets")


def test_of_images_in_no_file_a_part_has_its_own_pixels(tmp_path):
    prepare("noise", [], tmp_path / "noise", "noise", {"count": 40, "size": 16, "classes": 4, "seed": 1})
    whole = dataset(tmp_path / "noise")
    some = dataset(tmp_path / "noise", max_samples=7, cache_folder=tmp_path / "elsewhere")
    assert some.ids.tolist() != list(range(7))
    assert torch.equal(some.images, whole.images[torch.from_numpy(some.ids)])
    assert torch.equal(some.labels, torch.from_numpy(some.ids) % 4)

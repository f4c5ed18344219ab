"""results/reference: what is measured, the archives, and the numbers that README and docs take from them."""

import json
import re
import signal
import subprocess
from collections import Counter
from pathlib import Path

import headline
import measure
import page_numbers
import pandas as pd
import publish
import published
import pytest
import record_fixtures as made
from config_fixtures import merged, small
from data_fixtures import REPOSITORY, published_results

from gpufeed.core.errors import GpufeedError
from gpufeed.core.folders import records_below
from gpufeed.core.packed_results import pack, unpacked
from gpufeed.core.result_kinds import RESULT_KINDS
from gpufeed.core.run_time_estimate import durations
from gpufeed.report import publish as report

PUBLISHED = REPOSITORY / "results/reference"
COMMIT = "0123abcd" * 5


@pytest.fixture(scope="module")
def blocks():
    return measure.listed(merged("config.yaml", "reference.yaml"))


@pytest.fixture(scope="module")
def claims():
    return headline.claimed(published_results())


def test_no_block_is_listed_twice_and_each_lasts_ten_minutes_at_most(blocks):
    documents = Counter(path for block in blocks for path in block.documents)
    assert set(documents.values()) == {1}  # else a later block takes the place of a part of another
    assert all(0 < block.minutes <= 10 for block in blocks)
    assert {path.partition("/")[0] for path in documents} == {
        RESULT_KINDS[kind].folder
        for kind in ("records", "ceilings", "sweeps", "builds", "kernels", "inferences")
    }


def test_the_minutes_of_a_block_are_those_of_its_documents_where_they_were_measured(blocks):
    known = json.loads((PUBLISHED / "durations.json").read_text())
    compared = 0
    for block in blocks:
        keys = [str(Path(path).parent) if path.startswith("records") else path for path in block.documents]
        if all(key in known for key in keys):
            seconds = sum(measure.seconds_of(path) for path in block.documents)
            assert seconds / 60 <= 1.3 * block.minutes + 0.5, block.name
            compared += 1
    assert compared > 30


def test_every_loader_of_photographs_and_peers_has_six_blocks(blocks):
    for start, loaders in (("photographs model resnet18 cores 16", 17), ("peers", 15)):
        ours = [block for block in blocks if block.name.startswith(f"{start}: block")]
        assert len(ours) == 6
        assert len({tuple(path.rsplit("/", 1)[0] for path in block.documents) for block in ours}) == 1
        names = {path.split("/")[2].split("-")[1] for path in ours[0].documents}
        assert len(names) >= loaders
        assert "replay" in names


def test_the_stated_minutes_of_the_run_are_their_sum(blocks):
    text = (REPOSITORY / "config/reference.yaml").read_text()
    assert f"# About {sum(block.minutes for block in blocks):.0f} minutes" in text


def block(name, minutes, *verdicts, models=()):
    return measure.Block(name, minutes, (f"records/e/{name}/0.json",), verdicts, models)


def test_the_models_of_an_inference_are_made_before_and_no_block_is_shorter_than_it_was(blocks):
    ours = [block for block in blocks if block.documents[0].startswith("inference/")]
    assert len(ours) == 3
    for block in ours:
        (model,) = block.models
        assert model.split("/")[2] == Path(block.documents[0]).stem
        assert measure.seconds_of(block.documents[0]) <= 60 * block.minutes
    assert not any(block.models for block in blocks if block not in ours)


def test_the_most_important_blocks_that_fit_are_chosen_verdicts_included(monkeypatch):
    monkeypatch.setattr(measure, "seconds_of", lambda path: 120)
    first, long, short = block("first", 9, "gate/a.json"), block("long", 9, "gate/a.json"), block("short", 3)
    several = [first, long, short]
    assert measure.fitting(several, 25, 1, set()) == several
    assert measure.fitting(several, 15, 1, set()) == [first, short]
    assert measure.fitting(several, 9.5, 1, set()) == [short]  # 50 seconds for the verdict
    assert measure.fitting(several, 9.5, 1, {"gate/a.json"}) == [first]
    assert measure.fitting(several, 9.5, 2, set()) == [first, long]  # 25 seconds on each of two GPUs
    assert measure.fitting([block("model", 9, models=("models/a.json",))], 10, 1, set()) == []


def test_blocks_are_done_whole_and_at_this_commit_alone(tmp_path):
    config = small({"count": 60, "size": 16, "classes": 3}, model="simple_cnn", augment="torch", batch_size=8)
    config |= {"device": "cpu", "reference": [{"experiment": "tiny", "n": 2, "minutes": 1}]}
    both = measure.listed(config)
    assert [len(one.documents) for one in both] == [2, 2]
    assert [len(one.verdicts) for one in both] == [1, 1]

    def write(place, commit=COMMIT, dirty=False, status="done"):
        path = tmp_path / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"status": status, "environment": {"commit": commit, "dirty": dirty}}))

    one, other = both[0].documents
    write(one)
    assert measure.to_do(both, [tmp_path], COMMIT) == both
    for changed in ({"commit": "f" * 40}, {"dirty": True}, {"dirty": None}):
        write(other, **changed)
        assert measure.to_do(both, [tmp_path], COMMIT) == both
    for status in ("done", "failed"):  # which says why, and fails again at this commit
        write(other, status=status)
        assert measure.to_do(both, [tmp_path], COMMIT) == both[1:]
    write(other, status="skipped")  # by that machine; another may have what it lacked
    assert measure.to_do(both, [tmp_path], COMMIT) == both[::-1]
    config["reference"][0]["blocks"] = ["nowhere"]
    with pytest.raises(GpufeedError, match="nowhere"):
        measure.listed(config)


def test_what_a_block_skipped_is_told_and_kept(tmp_path, capsys):
    one = block("one", 1)
    path = tmp_path / "gpu0/results" / one.documents[0]
    place = measure.Place(tmp_path, "gpu0", "", [0], [], tmp_path)
    assert not measure.kept(place, one)
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"status": "skipped", "sentence": "torchcodec is not here"}))
    assert measure.kept(place, one)
    assert "skipped: records/e/one/0.json: torchcodec is not here" in capsys.readouterr().out
    assert (tmp_path / "results" / one.documents[0]).exists()


def test_what_does_not_end_when_it_is_stopped_is_ended(monkeypatch):
    monkeypatch.setattr(measure, "PATIENCE_S", 0.2)
    deaf = ["bash", "-c", "trap '' INT; echo; sleep 300"]
    process = subprocess.Popen(deaf, stdout=subprocess.PIPE, start_new_session=True)
    process.stdout.readline()
    measure.interrupt(process)
    assert process.wait(30) == -signal.SIGKILL
    assert process.stdout.read() == b""  # its child has ended, too
    measure.interrupt(process)


def test_an_archive_has_the_same_bytes_whenever_it_is_made_and_gives_its_files_back(tmp_path):
    of = made.cell("resident")
    paths = [path for number in (0, 1) for path in made.write(tmp_path / "a/node", made.record(of, number))]
    files = [file for path in paths for file in path.parent.iterdir()]
    bodies = {file.relative_to(tmp_path / "a/node"): file.read_bytes() for file in set(files)}
    archive = tmp_path / "b/node/pipelining.tar.xz"
    archive.parent.mkdir(parents=True)
    pack(tmp_path / "a/node", bodies_of(tmp_path, bodies), archive)
    before = archive.read_bytes()
    for file in set(files):
        file.touch()
    pack(tmp_path / "a/node", reversed(bodies_of(tmp_path, bodies)), archive)
    assert archive.read_bytes() == before
    there = unpacked(tmp_path / "b")
    assert {place: (there / "node" / place).read_bytes() for place in bodies} == bodies
    assert unpacked(tmp_path / "b") == there
    assert len(records_below(tmp_path / "b/node")) == 2
    assert unpacked(tmp_path / "a") == tmp_path / "a"  # nothing to unpack


def bodies_of(tmp_path, bodies):
    return [tmp_path / "a/node" / place for place in sorted(bodies)]


@pytest.fixture
def write(tmp_path):
    def write(place, commit="a"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(json.dumps({"environment": {"commit": commit}}))

    return write


def added(folder) -> dict[str, list[str]]:
    """Archive -> the documents that are in it after `done` was added to `node`."""
    publish.add(folder / "node", folder / "done")
    found = publish.archives(folder / "node").items()
    return {name: [str(path.relative_to(folder / "node")) for path in paths] for name, paths in found}


def test_a_run_replaces_its_experiments_and_leaves_the_others(tmp_path, write, capsys):
    for place in ("records/a/old/0.json", "records/b/one/0.json", "gate/d/l/1.json", "kernels/a.json"):
        write(f"node/{place}")
    for place in ("records/a/new/0.json", "records/a/new/0.attempt", "gate/d/l/2.json", "logs/x.log"):
        write(f"done/{place}", "b")
    assert added(tmp_path) == {
        "a": ["kernels/a.json", "records/a/new/0.json"],
        "b": ["records/b/one/0.json"],
        "gate": ["gate/d/l/1.json", "gate/d/l/2.json"],
    }
    assert not (tmp_path / "node/logs").exists()
    assert capsys.readouterr().out == "node: records/a: 1 documents go, 1 come\n"


def test_repeats_of_one_commit_join_those_that_are_there(tmp_path, write, capsys):
    for number in (0, 1):
        write(f"node/records/a/one/{number}.json")
        write(f"done/records/a/one/{number + 1}.json")
    assert added(tmp_path) == {"a": [f"records/a/one/{number}.json" for number in range(3)]}
    assert capsys.readouterr().out == "node: records/a: 1 documents go, 2 come\n"


def test_a_node_that_is_added_twice_is_refused(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["publish.py", "--add", "h200=a", "--add", "h200=b"])
    with pytest.raises(SystemExit):
        publish.main()
    assert "found h200 and h200; expected each node once" in capsys.readouterr().err


def test_pages_name_documents_and_archives_that_are_published():
    for path in (REPOSITORY / "README.md", *REPOSITORY.glob("docs/**/*.md")):
        for named in re.findall(r"results/reference/h[\w./-]*\w", path.read_text()):
            assert (REPOSITORY / named).exists(), (path.name, named)


@pytest.mark.parametrize("told", [{"dirty": True}, {"dirty": None}, {"commit": None}])
def test_what_is_no_commit_is_not_published(tmp_path, told):
    clean = {"machine": "0123abcd", "commit": COMMIT, "dirty": False}
    for name, made_by in (("clean", clean), ("older", {"commit": COMMIT, "dirty": None})):
        (tmp_path / f"{name}.json").write_text(json.dumps({"environment": made_by}))
    (tmp_path / "list.json").write_text("[]")
    publish.refuse_changed(tmp_path)
    path = tmp_path / "changed.json"
    path.write_text(json.dumps({"environment": clean | told}))
    with pytest.raises(SystemExit, match=f"1 documents .*{path}"):
        publish.refuse_changed(tmp_path)


def test_a_compact_table_of_steps_has_times_of_a_quarter_microsecond_and_is_written_once(tmp_path):
    path = tmp_path / "0.steps.parquet"
    table = pd.DataFrame({"experiment": ["e"] * 500, "step": range(500)})
    table = table.assign(load_ms=[float("nan"), *(1.1 * number for number in range(499))], loss=1 / 3)
    table.to_parquet(path)
    publish.compact(path)
    found = pd.read_parquet(path)
    times = found.pop("load_ms")
    pd.testing.assert_frame_equal(found, table.drop(columns="load_ms"))
    assert times.isna().tolist() == [True] + [False] * 499
    assert (times - table["load_ms"]).abs().max() <= publish.CLOCK_MS / 2 <= 0.000125
    assert set(times.dropna() % publish.CLOCK_MS) == {0}
    before = path.stat().st_mtime_ns
    publish.compact(path)
    assert path.stat().st_mtime_ns == before


@pytest.mark.parametrize(
    "place", ["h200/tables/photographs", "h200/tables/peers", "h100_cuda12/tables/notebook"]
)
def test_the_published_tables_are_those_of_the_archives(place, tmp_path):
    node, _, experiment = place.split("/")
    paths = sorted((published_results() / node / "records" / experiment).glob("*/*.json"))
    assert paths
    report.tabulate(paths, tmp_path / "cells.csv", tmp_path / "batches.csv")
    for name in ("cells.csv", "batches.csv"):
        assert (tmp_path / name).read_text() == (PUBLISHED / place / name).read_text()


def test_the_published_seconds_are_those_of_the_documents():
    first = sorted(published_results().glob("h*/"), key=lambda node: (node.name != "h200", node.name))
    found = {key: list(seconds) for key, seconds in durations(first).items()}
    assert json.loads((PUBLISHED / "durations.json").read_text()) == found


def test_the_reference_weighs_eight_megabytes_at_most():
    files = [path for path in PUBLISHED.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert sum(path.stat().st_size for path in files) <= 8e6
    assert not [path for path in files if "records" in path.parts]


def test_only_figures_that_a_page_shows_are_published():
    pages = [str(path) for path in (REPOSITORY / "README.md", *REPOSITORY.glob("docs/**/*.md"))]
    there = {str(path.relative_to(PUBLISHED)) for path in PUBLISHED.rglob("*.svg")}
    assert there == publish.shown(pages)


def test_every_headline_number_is_of_its_records(claims):
    assert (PUBLISHED / "headline.json").read_text() == page_numbers.document(claims)
    for claim in claims:
        for number in claim.numbers:
            assert number.n >= 2, number
            assert number.low <= number.value <= number.high, number
            assert number.records, number
            assert all(len(commit) == 12 for commit in number.commits)
    assert {claim.page for claim in claims} >= {headline.README, headline.RESULTS}


@pytest.mark.parametrize("page", [headline.README, headline.RESULTS, headline.DALI, headline.MEMORY])
def test_pages_have_the_numbers_of_the_records_and_a_wrong_digit_is_found(page, claims):
    text = (REPOSITORY / page).read_text()
    assert page_numbers.rendered(page, text, claims) == text
    ours = [claim for claim in claims if claim.page == page]
    assert len(ours) >= 6
    for claim in ours:
        for start, end in claim.spans(text):
            digit = str((int(text[end - 1]) + 1) % 10)
            planted = text[: end - 1] + digit + text[end:]
            assert page_numbers.rendered(page, planted, claims) == text != planted, (
                text[start:end],
                claim.text,
            )


@pytest.mark.parametrize("page", [headline.README, headline.RESULTS, headline.DALI, headline.MEMORY])
def test_no_share_and_no_factor_of_a_page_is_without_a_claim(page, claims):
    text = (REPOSITORY / page).read_text()
    assert page_numbers.uncovered(page, text, claims) == []
    assert page_numbers.uncovered(page, f"{text}\nIt keeps 12 % more, 2.5 times.", claims) == ["12", "2.5"]


@pytest.mark.parametrize("page", [headline.README, headline.RESULTS])
def test_only_six_repeats_are_called_faster_or_slower(page, claims):
    text = (REPOSITORY / page).read_text()
    ours = [claim for claim in claims if claim.page == page]
    for said in re.finditer(r"(?:[^\n]+\n)+", text):
        if re.search(r"\b(?:faster|slower)\b[^.:]*\bthan\b|times as fast as\b", said[0]):
            inside = [one for one in ours if said.start() <= one.spans(text)[0][0] < said.end()]
            compared = [number for claim in inside for number in claim.numbers]
            assert compared, said[0]
            assert all(number.n >= 6 for number in compared), said[0]


@pytest.mark.parametrize(("column", "value"), [("n_repeats", 2), ("precision", "fp16"), ("batch_size", 128)])
def test_other_settings_than_the_texts_have_are_found(column, value):
    class Changed(published.Published):
        def _cells(self, experiment, node):
            cells = super()._cells(experiment, node)
            return cells.assign(**{column: cells[column].where(cells["loader"] != "host_cache", value)})

    with pytest.raises(ValueError, match="change the sentence"):
        list(headline.shares_by_loader(Changed(published_results())))


def test_only_pairs_of_one_block_make_a_cell_faster():
    of = published.Published(published_results())
    cells = of.photographs("resnet18", "H200").query("cores_asked == 16")
    own, reader, dali = (
        published.the(cells, loader=name) for name in ("cuda_jpeg", "dali_gpu_reader", "dali_gpu")
    )
    pairs = own["repeats"].merge(reader["repeats"], on="repeat")
    ratios = sorted(pairs["images_per_s_x"] / pairs["images_per_s_y"])
    found = published.times_as_fast(of, own, reader)
    assert found.shown == [round(ratio, 1) for ratio in (sum(ratios[2:4]) / 2, ratios[0], ratios[-1])]
    assert (found.n, len(found.records)) == (6, 12)
    apart = reader["repeats"].assign(started_at="2026-01-01T00:00:00+00:00")
    for one, other in ((reader, dali), (dali, own), (own, {**reader, "repeats": apart})):
        with pytest.raises(ValueError, match="change the sentence"):
            published.times_as_fast(of, pd.Series(one), pd.Series(other))


def test_a_sentence_that_a_page_no_longer_has_is_named(claims):
    with pytest.raises(ValueError, match=r"found 0 times in README\.md; expected once: "):
        page_numbers.rendered(headline.README, "another page", claims)


def test_tables_of_several_machines_have_each_repeat_once():
    cells = published.Published(published_results()).cells("photographs", "h200")
    assert isinstance(cells, pd.DataFrame)
    assert cells["cell_id"].is_unique

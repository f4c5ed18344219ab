import errno
import os
import re
import shutil
from dataclasses import replace
from html import unescape

import pandas as pd
import pytest
import record_fixtures as made
from report_fixtures import page_of

from gpufeed.core.config import ROOT
from gpufeed.report import page, publish

HOSTILE = "failed </script><script>alert(1)</script> & <b>bold</b>"


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """(found, html) of a report with finished, skipped, failed, damaged, missing and stale repeats."""
    results = tmp_path_factory.mktemp("results")
    ids = made.write_pipelining(results)
    lacking, broken = made.cell("overlap", "demo"), made.cell("resident", "demo")
    made.write(results, made.unfinished(lacking, "skipped", "CUDA is not available on this node"))
    (damaged,) = made.write(results, made.unfinished(broken, "failed", HOSTILE))
    damaged.with_name("1.json").write_text("{")
    made.write(results, made.record(made.cell("replay", "demo")))  # the plan does not have it
    ids["demo"] = [lacking.id, broken.id, "never-measured"]
    found = publish.report(results, list(ids), made.plan_info(ids), results / "report.html")
    return found, (results / "report.html").read_text(encoding="utf-8")


def test_the_page_says_what_there_is_and_what_is_not(report):
    found, html = report
    for words in (
        "images/s, 3.70x the rate of dataloader_sync",
        "Question of pipelining?",
        "What the notebook claimed",
        "The notebook is a lesson on CPU/GPU pipelining",
        "CUDA is not available on this node",
        "snakemake --cores 8 --resources gpu=1 demo",
        "never-measured",
        "replay has no worker processes",
        "of results that the config no longer plans",
        "which runs at 1,500 images/s",
        "compute capability 9.0",
        "newest record 2026-01-02 03:05 UTC",
    ):
        assert words in html, words
    assert "reference records" not in html
    assert {part.path.parent.name for part in found.missing} >= {"never-measured"}


def test_the_environment_names_every_gpu_by_its_uuid_and_all_packages_by_a_digest(tmp_path):
    cell = made.cell("resident")
    for repeat, (uuid, container) in enumerate([("GPU-b", None), ("GPU-a", "my.sif")]):
        software = {"packages": 9, "digest": "0a", "container": container}
        made.write(tmp_path, made.elsewhere(made.record(cell, repeat), {"uuid": uuid}, software=software))
    html = page_of(tmp_path, made.plan_info({"pipelining": [cell.id]}))
    assert "<dt>GPU UUID</dt><dd>GPU-a, GPU-b</dd>" in html
    assert "9 packages, digest 0a; 9 packages, digest 0a, container my.sif</dd>" in html


def test_what_records_say_is_text_not_markup(report):
    _, html = report
    assert "<script>alert(1)" not in html
    assert "&lt;script&gt;alert(1)" in html


def test_the_page_asks_the_network_for_nothing(report):
    _, html = report
    assert "default-src 'none'" in unescape(html)
    assert not re.search(r"<(script|img|iframe|link|a)[^>]+(src|href)=[\"']?(https?:)?//", html)
    assert "unsafe-eval" not in html
    assert html.rstrip().endswith("</html>")


def test_without_scripts_the_leaderboard_is_a_plain_table_of_every_cell(report):
    found, html = report
    board = html[html.index('id="board-pipelining"') :]
    body = board[board.index("<tbody>") : board.index("</tbody>")]
    assert body.count("<tr") == len({path.parent.name for path in found.paths if "pipelining" in str(path)})
    assert "hidden" not in body
    assert '<form class="filters" hidden>' in board
    demo = html[html.index('id="board-demo"') :]
    assert "CUDA is not available on this node" in demo[: demo.index("</table>")]


def test_the_same_records_give_the_same_page(tmp_path):
    of = made.cell("overlap")
    made.write_speeds(tmp_path, of, [100, 110])
    plan = made.plan_info({"pipelining": [of.id]}, repeats=2)
    assert page_of(tmp_path, plan) == page_of(tmp_path, plan)


def test_without_own_records_the_published_ones_are_shown_and_named(tmp_path):
    of = made.cell("overlap")
    made.write_speeds(tmp_path / "reference/h200", of, [100, 110])
    plan, out = made.plan_info({"pipelining": ["x"]}), tmp_path / "r.html"
    found = publish.report(tmp_path, ["pipelining"], plan, out)
    html = out.read_text(encoding="utf-8")
    assert found.reference
    assert "These are reference records" in html
    assert "shows published runs on NVIDIA H200" in " ".join(html.split())
    assert len(found.missing) == 3


def planned(folder, *names):
    """Write a repeat in each of these experiments; return the plan of all."""
    cells = [made.cell("overlap", name) for name in names]
    made.write(folder, *map(made.record, cells))
    return made.plan_info({of.experiment: [of.id] for of in cells}, repeats=1)


def write_page(folder, plan, name):
    """Write the page of one experiment; return its path."""
    path = folder / f"report-{name}.html"
    publish.report(folder, [name], plan, path)
    return path


def test_the_pages_of_a_folder_lead_to_each_other(tmp_path):
    plan = planned(tmp_path, "one", "two", "three")
    (tmp_path / "report-published.html").write_text("<title>Published · gpufeed</title>")
    # the first once more
    pages = {name: write_page(tmp_path, plan, name) for name in ("one", "two", "three", "one")}
    for name, path in pages.items():
        links = re.findall('<a href="(report-.*?)">(.*?)</a>', path.read_text(encoding="utf-8"))
        others = [other for other in sorted(pages) if other != name]
        expected = [(f"report-{other}.html", f"Title of {other} (NVIDIA H200)") for other in others]
        assert links == expected
    alone = tmp_path / "elsewhere" / "report.html"
    publish.report(tmp_path, ["one"], plan, alone)
    assert "Other pages" not in alone.read_text(encoding="utf-8")


def answer_of(html):
    """What a page says before its first experiment."""
    return html[html.index('id="answer"') : html.index('id="experiment-')]


def links_of(path):
    return re.findall('<a href="(report.*?)">', path.read_text(encoding="utf-8"))


@pytest.fixture
def two_pages(tmp_path):
    """(folder, plan, page): the page of one experiment, and what writes that of the other."""
    plan = planned(tmp_path, "one", "two")
    return tmp_path, plan, write_page(tmp_path, plan, "one")


def test_a_page_that_gets_a_link_stays_as_old_as_its_results(two_pages):
    folder, plan, page = two_pages
    os.utime(page, ns=(10**18, 10**18 + 7))
    write_page(folder, plan, "two")
    assert links_of(page) == ["report-two.html"]
    assert page.stat().st_mtime_ns == 10**18 + 7


def test_only_pages_of_the_plan_are_linked_and_changed(two_pages):
    folder, plan, page = two_pages
    html = page.read_bytes()
    others = {
        "report-before.html": html,  # a copy by hand, or of an experiment that is gone
        "report.html": html.replace(b"\xc2\xb7", b"\xb7"),  # not UTF-8
        "report-two.html": b"<!-- pages --> without a title",
    }
    for name, body in others.items():
        (folder / name).write_bytes(body)
    write_page(folder, plan, "one")
    assert links_of(page) == []
    assert links_of(write_page(folder, plan, "two")) == ["report-one.html"]
    assert links_of(page) == ["report-two.html"]
    del others["report-two.html"]
    assert {name: (folder / name).read_bytes() for name in others} == others


def test_without_locks_no_page_but_its_own_is_written(two_pages, monkeypatch):
    folder, plan, page = two_pages
    before = page.read_bytes()

    def flock(number, kind):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", flock)
    assert links_of(write_page(folder, plan, "two")) == ["report-one.html"]
    assert page.read_bytes() == before


def test_a_page_opens_with_its_answer(report):
    _, html = report
    text = html[html.index("<h1>") :]
    assert text.index('class="answer"') < text.index("finished") < text.index("Not measured yet")


@pytest.mark.parametrize(
    ("planned", "said"),
    [
        ("snakemake {target} --configfile a{b}.yaml", "snakemake feed --configfile a{b}.yaml"),
        ("snakemake --cores 4", "snakemake --cores 4 feed"),
        ("snakemake {target} --cores {cores}", "snakemake feed --cores 16"),
    ],
)
def test_the_command_names_the_experiment_and_its_cores_where_the_plan_says(planned, said):
    plan = made.plan_info({"demo": ["a"], "feed": ["b"]}) | {"command": planned}
    plan["experiments"]["feed"]["cores"] = 16
    assert page.command(plan, "feed") == said
    assert page.command(plan, "demo") == said.replace("feed", "demo").replace("16", "8")


def test_the_answer_says_how_many_pipelines_were_not_measured(tmp_path):
    loaders = ("overlap", "resident", "replay", "dali_gpu", "dataloader_workers")
    ids = [*(made.cell(loader).id for loader in loaders), made.cell("overlap", batch_size=64).id]
    made.write_speeds(tmp_path, made.cell("overlap"), [100])
    answer = answer_of(page_of(tmp_path, made.plan_info({"pipelining": ids})))
    left = "dali_gpu, dataloader_workers and resident"
    assert f"Not measured here: 4 of 5 pipelines of this experiment. Not measured at all: {left}." in answer
    assert 'href="#missing-pipelining"' in answer
    assert 'href="#troubles-pipelining"' not in answer


def test_a_skipped_pipeline_is_not_measured_and_its_loader_is_named(tmp_path):
    """Its dataset has the name of a loader."""
    cells = [replace(made.cell(name), dataset="resident") for name in ("dali_gpu", "host_cache", "overlap")]
    skipped = made.unfinished(cells[0], "skipped", "no GPU here")
    made.write(tmp_path, skipped, made.unfinished(cells[1], "failed", "it broke"), made.record(cells[2]))
    html = page_of(tmp_path, made.plan_info({"pipelining": [of.id for of in cells]}, repeats=1))
    answer = answer_of(html)
    assert "Not measured here: 2 of 3 pipelines" in answer
    assert "Not measured at all: dali_gpu and host_cache." in answer
    assert 'href="#troubles-pipelining"' in answer
    assert 'href="#missing-pipelining"' not in answer
    assert 'id="troubles-pipelining"' in html


@pytest.mark.parametrize(
    ("planned", "states", "count", "loaders"),
    [
        ("overlap", "done", "", ""),
        ("overlap resident", "skipped failed", "", ""),  # the page says that nothing is measured
        ("overlap overlap", "done failed", "1 of 2", ""),
        ("overlap a b c d e", "done", "5 of 6", "a, b, c and 2 more loaders"),
        ("overlap my-loader.py:Loader", "done", "1 of 2", "my-loader.py:Loader"),
    ],
)
def test_what_is_not_measured(planned, states, count, loaders):
    cells = {f"cell {number}": loader for number, loader in enumerate(planned.split())}
    states = states.split()
    records = pd.DataFrame({"cell_id": [*cells][: len(states)], "status": states})
    said = f"Not measured here: {count} pipelines of this experiment." if count else ""
    said += f" Not measured at all: {loaders}." if loaders else ""
    assert page.unmeasured(cells, records) == said


def test_the_code_to_paste_names_the_class_folders_that_were_measured(tmp_path, monkeypatch):
    measured = [made.cell("overlap"), made.cell("dataloader_sync")]
    for of in measured:
        made.write_speeds(tmp_path, of, [100])
    own, calls = tmp_path / "own", []
    for name in ("photos/cat/1.jpg", "photos/dog/1.jpg", "docs/read.me"):
        (own / name).parent.mkdir(parents=True, exist_ok=True)
        (own / name).touch()
    found = page.paste.class_folders
    monkeypatch.setattr(page.paste, "class_folders", lambda folder: calls.append(folder) or found(folder))
    plan = made.plan_info({"pipelining": [of.id for of in measured]})
    plan["folders"] = {measured[0].dataset: str(own), "another": "/not/measured"}

    def named():
        return {*re.findall(r'FOLDER = Path\("(.*?)"\)', unescape(page_of(tmp_path, plan)))}

    assert named() == {f"{own}/photos"}
    assert calls == [str(own)]  # once for all rows
    shutil.rmtree(own)  # as on another machine
    assert named() == {f"data/{measured[0].dataset}/images/train"}


def test_a_pipeline_above_its_ceiling_is_told_wherever_the_share_is_shown(tmp_path):
    of, ceiling = made.cell("overlap", augment="cpu"), made.cell("replay", augment="cpu")
    made.write_speeds(tmp_path, of, [2428, 2599, 2800])
    made.write_speeds(tmp_path, ceiling, [699, 896, 946])
    plan = made.plan_info({"pipelining": [of.id, ceiling.id]})
    html = page_of(tmp_path, plan)
    answer = answer_of(html)
    table = html[html.index('id="board-pipelining"') : html.index("</table>")]
    caption = re.findall("<figcaption>(.*?)</figcaption>", html, re.DOTALL)[0]
    assert "290\u00a0% of the limit: the measurement was disturbed" in answer
    assert "disturbed" in table
    assert "which is impossible" in caption
    assert "not distinguishable from the" not in html[html.index('id="answer"') : html.index('id="words"')]


@pytest.mark.parametrize("whole", [0, 2])
def test_repeats_that_were_taken_up_again_are_told(tmp_path, whole):
    of = made.cell("resident")
    ran = [made.record(of, repeat, top1=0.5) for repeat in range(whole)]
    again = made.resumed(made.record(of, whole, 123456.0, top1=0.5), 200, 400)
    made.write(tmp_path, *ran, again)
    html = page_of(tmp_path, made.plan_info({"pipelining": [of.id]}))
    words = "1 of 1 finished repeat went on" if not whole else "1 of 3 finished repeats went on"
    assert html.count(words) == 1
    assert "No pipeline has a finished repeat yet" not in html
    assert "123,456" not in html


def test_the_title_names_experiment_and_machine_and_the_docs_are_linked_from_the_checkout_alone(report):
    _, html = report
    title = re.search("<title>(.*?) · gpufeed</title>", html)[1]
    assert title == "Title of pipelining and Title of demo (NVIDIA H200 and Imaginary CPU 3.0)"
    assert f"<h1>{title}</h1>" in html
    assert page.docs(ROOT / "results/reference/h200")[0][1] == "../../../docs/reference/report.md"
    assert page.docs("/tmp") == []
    assert [name for name in page.DOCS if not (ROOT / "docs" / name).is_file()] == []


def test_long_errors_are_folded(tmp_path):
    of = made.cell("overlap", "demo")
    long = "Found a broken file. " * 40
    made.write(tmp_path, made.unfinished(of, "failed", long))
    html = page_of(tmp_path, made.plan_info({"demo": [of.id]}))
    part = html[html.index("<h3>Skipped, failed or unusable: 1 repeat</h3>") :]
    assert part.index(long[:200]) < part.index("All of the message") < part.index(long.strip())

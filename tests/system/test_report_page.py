"""The report in a real browser: it sorts, filters, can be read by all, and asks the network for nothing.

Twice: a report on hand-made records, whose numbers are known, and one on those that the repository publishes.
"""

import base64
import importlib.util
import io
import json
import os
import re
import shutil
import subprocess
from functools import cache
from html import unescape
from pathlib import Path

import pandas as pd
import pytest
import record_fixtures as made
import watch_page_fixtures as watched
from data_fixtures import published_results

from gpufeed.report import publish
from gpufeed.watch import watch_page

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine (Debian: apt install chromium)"),
]
QUIET = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-default-apps",
    "--enable-logging=stderr", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)  # fmt: skip

# Runs in the page: clicks on headings, types into fields, and leaves what it saw for --dump-dom.
PROBE = """
<pre id="probe"></pre>
<script>
const seen = {errors: [], refused: []};
window.addEventListener("error", event => seen.errors.push(String(event.message)));
window.addEventListener("unhandledrejection", event => seen.errors.push(String(event.reason)));
document.addEventListener("securitypolicyviolation", event => seen.refused.push(event.blockedURI));
const pause = ms => new Promise(done => setTimeout(done, ms));
const at = (board, title) => [...board.querySelectorAll("thead th")]
  .findIndex(head => head.innerText.trim() === title);
const values = (board, title) => [...board.querySelectorAll("tbody tr")].filter(row => !row.hidden)
  .map(row => row.cells[at(board, title)].firstChild.textContent.trim());
const press = async (board, title) => {
  board.querySelectorAll("thead th button")[at(board, title)].click(); await pause(20);
  return values(board, title);
};
const tried = async board => {
  const form = board.querySelector("form"), name = form.querySelector("select[name=loader]");
  const told = {rows: board.querySelectorAll("tbody tr").length, shown: form.checkVisibility()};
  told.heads = board.querySelectorAll("thead th").length;
  told.first = values(board, "Pipeline").length;
  if (!board.querySelector(".rest").hidden) board.querySelector(".rest").click();
  told.down = await press(board, "images/s");
  told.sorted = board.querySelector("[aria-sort]").getAttribute("aria-sort");
  told.up = await press(board, "images/s");
  told.names = await press(board, "Pipeline");
  told.chosen = name.options[name.options.length - 1].value;
  name.value = told.chosen; name.dispatchEvent(new Event("input", {bubbles: true})); await pause(20);
  told.loaders = [...board.querySelectorAll("tbody tr:not([hidden])")].map(row => row.dataset.loader);
  told.output = form.querySelector("output").textContent;
  name.value = "";
  form.elements.words.value = "WORKERS overlap";
  form.elements.words.dispatchEvent(new Event("input", {bubbles: true})); await pause(20);
  told.found = values(board, "Pipeline");
  form.querySelector("button[type=reset]").click(); await pause(20);
  told.reset = values(board, "Pipeline").length;
  return told;
};
(async () => {
  seen.open = document.querySelectorAll("details[open]").length;
  seen.order = [...document.querySelectorAll("main .answer, main figure, main .board")]
    .filter(one => one.checkVisibility()).map(one => one.className);
  seen.screens = [...document.querySelectorAll(".experiment")].map(one => one.offsetHeight / 900);
  seen.tables = [];
  for (const folded of document.querySelectorAll("details.all")) {
    folded.open = true; await pause(200);
    const heads = [...folded.querySelectorAll("thead th")].map(head => head.innerText.trim());
    const shared = folded.querySelector("p").textContent;
    const table = {heads, shared, rows: values(folded, "cell_id").length};
    if (heads.includes("images_per_s")) table.rates = await press(folded, "images_per_s");
    seen.tables.push(table);
    folded.open = false;
  }
  seen.boards = [];
  for (const board of document.querySelectorAll(".board")) seen.boards.push(await tried(board));
  seen.links = [];
  for (const link of [...document.querySelectorAll("a[href]")].filter(link => link.closest("nav, main"))) {
    const href = link.getAttribute("href");
    if (!href.startsWith("#")) { seen.links.push([href.startsWith("data:"), href, link.download]); continue; }
    if (!link.checkVisibility()) { seen.links.push(["folded", href]); continue; }
    location.hash = ""; link.click(); await pause(20);
    const target = document.querySelector(":target");
    seen.links.push([target !== null && "#" + target.id === href && target.checkVisibility(), href, ""]);
  }
  seen.figures = [...document.querySelectorAll("figure svg")].map(one => [one.getAttribute("aria-label"),
    [...one.querySelectorAll("g > title")].map(title => title.textContent)]);
  seen.width = [document.documentElement.scrollWidth, document.documentElement.clientWidth];
  seen.resources = performance.getEntriesByType("resource").map(entry => entry.name);
  document.getElementById("probe").textContent = JSON.stringify(seen);
})();
</script>
"""


def browse(folder: Path, page: Path, width: int = 1440, dark: bool = False) -> tuple[str, str, list[str]]:
    """The DOM after the scripts ran, the browser's log, and the URLs that the page asked the network for."""
    log = folder / f"{page.stem}-net.json"
    command = [
        BROWSER, *QUIET, f"--user-data-dir={folder / 'profile'}", f"--log-net-log={log}",
        f"--blink-settings=preferredColorScheme={int(not dark)}", "--virtual-time-budget=20000",
        f"--window-size={width},2000", "--dump-dom", page.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    return done.stdout, done.stderr, requests_of_pages(log)


def requests_of_pages(log: Path) -> list[str]:
    """URLs that pages on disk asked for; what the browser asks for itself has another isolation key."""
    events = [event.get("params", {}) for event in json.loads(log.read_text())["events"]]
    return [
        params["url"]
        for params in events
        if params.get("url", "").startswith("http") and "file://" in params.get("network_isolation_key", "")
    ]


def planted(folder: Path) -> Path:
    """A report on hand-made records."""
    ids = made.write_pipelining(folder)
    publish.report(folder, list(ids), made.plan_info(ids), folder / "report.html")
    return folder / "report.html"


def published(folder: Path) -> Path:
    """A report on what the repository holds of two experiments with many loaders to sort by, and of feed.

    No more of them: they are drawn and looked at in the same ways, each for a quarter of a minute.
    """
    results = published_results() / "h200"
    ids = {name: sorted(os.listdir(results / f"records/{name}")) for name in ("gpu_decoding", "peers")}
    info = made.plan_info({**ids, "feed": []})  # feed has ceilings and no records
    info["experiments"]["feed"]["ceilings"] = [path.stem for path in results.glob("ceilings/feed/*.json")]
    publish.report(results, [*ids, "feed"], info, folder / "report.html")
    return folder / "report.html"


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    return planted(tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="module")
def real(tmp_path_factory) -> Path:
    return published(tmp_path_factory.mktemp("real"))


@pytest.fixture(scope="module")
def seen(report) -> dict:
    return probe(report)


@pytest.fixture(scope="module")
def seen_real(real) -> dict:
    return probe(real)


def probe(report: Path) -> dict:
    """What PROBE saw of a report, and what the browser logged."""
    seen, log, asked = probed(report, PROBE)
    console = [line for line in log.splitlines() if ":CONSOLE" in line]
    return seen | {"console": console, "asked": asked}


def probed(report: Path, script: str, width: int = 1440, dark: bool = False) -> tuple:
    """What a script leaves in the page, in a window of so many pixels; the log; what was asked for."""
    page = report.with_name("probed.html")
    page.write_text(
        report.read_text(encoding="utf-8").replace("</body>", script + "</body>"), encoding="utf-8"
    )
    dom, log, asked = browse(report.parent, page, width, dark)
    found = re.search(r'<pre id="probe">(.*?)</pre>', dom, re.DOTALL)
    assert found, log
    assert found.group(1), log
    return json.loads(unescape(found.group(1))), log, asked


def numbers(texts: list[str]) -> list[float]:
    return [float(text.replace(",", "")) for text in texts if text != "-"]


@pytest.mark.parametrize("which", ["seen", "seen_real"])
def test_it_opens_with_answers_then_a_figure_then_ten_columns(which, request):
    seen = request.getfixturevalue(which)
    answers = len(seen["screens"])
    assert seen["open"] == 0  # all else is folded
    assert seen["order"][:answers] == ["answer"] * answers
    assert seen["order"][answers : answers + 2] == ["drawing", "board"]
    assert seen["order"].count("drawing") <= answers
    assert max(seen["screens"]) <= 12
    assert all(board["heads"] <= 10 and board["first"] <= 20 for board in seen["boards"])


def test_all_columns_are_one_click_away_and_rates_sort_downwards_first(seen):
    (table,) = seen["tables"]
    assert table["rows"] == 22
    assert numbers(filter(None, table["rates"])) == sorted(
        numbers(filter(None, table["rates"])), reverse=True
    )
    assert float(table["rates"][0]) == 21000
    assert "dataset: synthetic_224" in table["shared"]
    assert {"loader", "load_ms"} <= {*table["heads"]}
    assert "dataset" not in table["heads"]


def test_it_draws_and_stays_within_the_window(seen):
    assert len(seen["figures"]) == 5
    assert seen["width"][0] <= seen["width"][1]


def test_every_figure_says_its_numbers(seen):
    for label, hints in seen["figures"]:
        assert hints
        assert hints[0] in label
    assert "resident: 19,000 images/s" in seen["figures"][0][0]


@pytest.mark.parametrize("which", ["seen", "seen_real"])
def test_the_leaderboards_sort_and_filter(which, request):
    boards = request.getfixturevalue(which)["boards"]
    assert len(boards) == {"seen": 1, "seen_real": 2}[which]
    for board in boards:
        assert board["shown"]
        assert len(board["down"]) == board["reset"] == board["rows"] > 5
        assert board["sorted"] == "descending"
        assert numbers(board["down"]) == sorted(numbers(board["down"]), reverse=True)
        assert numbers(board["up"]) == sorted(numbers(board["down"]))
        assert board["names"][0].lower() < board["names"][-1].lower()
        assert set(board["loaders"]) == {board["chosen"]}
        assert board["output"] == f"{len(board['loaders'])} of {board['rows']} cells"
        assert all(name.startswith("overlap") and "workers" in name for name in board["found"])


def test_the_leaderboard_has_the_known_numbers(seen):
    (board,) = seen["boards"]
    assert (numbers(board["down"])[0], len(board["found"])) == (21000, 4)


@pytest.mark.parametrize("which", ["seen", "seen_real"])
def test_every_link_leads_somewhere(which, request):
    links = request.getfixturevalue(which)["links"]
    assert len(links) > 20
    assert [link for link in links if link[0] is not True] == []
    files = {name: href for _, href, name in links if name}
    assert len(files) == {"seen": 2, "seen_real": 6}[which]
    for name, href in files.items():
        content = io.BytesIO(base64.b64decode(href.partition(";base64,")[2], validate=True))
        table = pd.read_csv(content) if name.endswith(".csv") else pd.read_parquet(content)
        experiment, _, limits = name.partition(".")[0].partition("-")
        assert set(table["experiment"]) == {experiment}
        speeds = table["images_per_s_end_to_end_median" if limits else "images_per_s"]
        measured = table["status"].isin(["done", "partly"])  # partly: some repeats have failed
        assert speeds[measured].gt(0).all()
        assert speeds[~measured].isna().all()


@pytest.mark.parametrize("which", ["seen", "seen_real"])
def test_no_error_and_no_request(which, request):
    seen = request.getfixturevalue(which)
    assert seen["errors"] == []
    assert seen["refused"] == []
    assert seen["console"] == []
    assert seen["asked"] == []
    assert [url for url in seen["resources"] if not url.startswith(("blob:", "data:"))] == []


def test_the_probe_would_see_a_request(report):
    """Without the policy, a page that asks for a picture is caught."""
    page = report.with_name("asking.html")
    page.write_text('<!doctype html><img src="http://127.0.0.1:9/picture.png"><p>x</p>')
    *_, asked = browse(report.parent, page)
    assert asked == ["http://127.0.0.1:9/picture.png"]


# How a page fits its window: what reaches out of it and does not scroll in a box of its own, how many boxes
# scroll, and of how many the page says so; how far a table and its caption reach beyond what is seen of it.
MEASURE = """
<script>
setTimeout(() => {
  const out = [...document.querySelectorAll("body *")].filter(one => one.checkVisibility()
    && one.getBoundingClientRect().right > innerWidth + 1 && !one.closest(".scroll *, .markdown pre, svg *"));
  const boxes = [...document.querySelectorAll(".scroll")].filter(box => box.checkVisibility());
  const told = ({previousElementSibling: hint}) => hint.className === "wide" && hint.checkVisibility();
  const wide = boxes.filter(box => box.scrollWidth > box.clientWidth + 1);
  parent.postMessage(JSON.stringify({
    window: innerWidth,
    page: document.documentElement.scrollWidth,
    out: out.map(one => one.outerHTML.slice(0, 80)),
    wide: wide.length,
    told: boxes.filter(told).length,
    right: boxes.every(box => told(box) === wide.includes(box)),
    type: Math.min(...[...document.querySelectorAll("p, li, dd, td, th, small, caption, figcaption")]
      .filter(one => one.checkVisibility() && one.textContent.trim())
      .map(one => parseFloat(getComputedStyle(one).fontSize))),
    letters: Math.min(...[...document.querySelectorAll(".drawing svg")].flatMap(one =>
      [...one.querySelectorAll("text")].map(text => parseFloat(getComputedStyle(text).fontSize)
        * one.clientWidth / one.viewBox.baseVal.width))),
    drawn: Math.max(...[...document.querySelectorAll(".drawing svg")]
      .map(one => one.getBoundingClientRect().right)),
    figures: Math.max(...[...document.querySelectorAll("figure")].map(one => one.offsetHeight)),
    controls: [...document.querySelectorAll("input, select, nav, summary, [download]")]
      .filter(one => one.checkVisibility() && !one.matches("[open] > summary")).length,
    paper: document.querySelector(".paper")?.checkVisibility() ?? false,
    captions: [...document.querySelectorAll("caption")].filter(one => one.checkVisibility()).map(one => {
      const frame = one.closest(".scroll"), right = frame.getBoundingClientRect().left + frame.clientWidth;
      return [one.parentElement, one].map(part => part.getBoundingClientRect().right - right);
    }),
  }), "*");
}, 3000);
</script></body>"""


@cache
def measured(report: Path, width: int, paper: bool = False, unfolded: bool = False) -> dict:
    """What MEASURE says of a report in a frame of so many pixels: headless windows do not get that narrow.

    paper: as it is printed. unfolded: with its parts open.
    """
    inner, outer = report.with_name("inner.html"), report.with_name("outer.html")
    unfold = '<script>dispatchEvent(new Event("beforeprint"))</script>'
    html = report.read_text(encoding="utf-8").replace(
        "</body>", (unfold if paper or unfolded else "") + MEASURE
    )
    if paper:
        html = html.replace("@media print {", "@media all { html { scrollbar-width: none; }")
    inner.write_text(html, encoding="utf-8")
    outer.write_text(
        f'<!doctype html><iframe src="inner.html" style="width:{width}px;height:900px;border:0"></iframe>'
        '<p id="told"></p><script>onmessage = event => {'
        "document.getElementById('told').textContent = event.data}</script>"
    )
    dom, log, _ = browse(report.parent, outer)
    told = re.search(r'<p id="told">(.+?)</p>', dom)
    assert told, log
    return json.loads(unescape(told.group(1)))


@pytest.mark.parametrize("width", [400, 1400])
def test_it_fits_the_window_and_says_where_more_is_on_the_right(real, width):
    seen = measured(real, width, unfolded=True)
    assert seen["window"] == width
    assert seen["page"] <= width
    assert seen["out"] == []
    assert seen["right"]
    assert seen["told"] == seen["wide"]
    assert seen["wide"] > 0 or width > 1000
    assert seen["letters"] >= 7.5
    assert seen["drawn"] <= width
    assert len(seen["captions"]) > 3
    assert any(table > 1 for table, _ in seen["captions"]) or width > 1000  # a table goes on to the right
    assert max(caption for _, caption in seen["captions"]) < 1  # and its caption does not


def test_a_page_about_watched_trainings_fits_the_window(tmp_path):
    runs = {"a/long/name/" * 9: watched.watched(60), "few": watched.watched(3, verdict="word" * 40)}
    page = tmp_path / "watch.html"
    page.write_text(watch_page.page(runs), encoding="utf-8")
    seen = measured(page, 360)
    assert seen["window"] == 360
    assert seen["page"] <= 360
    assert seen["out"] == []
    assert seen["right"]


MM = 96 / 25.4  # pixels


def test_on_paper_nothing_is_cut_off_or_tiny_and_no_control_is_printed(real):
    sheet = (210, 279)  # as wide as A4, as high as US Letter
    width, height = (round((side - 2 * 12) * MM) for side in sheet)  # less the margins of the style
    seen = measured(real, width, paper=True)
    assert (seen["window"], seen["paper"]) == (width, True)
    assert seen["page"] <= width
    assert seen["out"] == []
    assert seen["wide"] == 0
    assert seen["controls"] == 0
    assert seen["type"] >= 6.5 * 96 / 72
    assert 0 < seen["figures"] <= height
    on_screen = measured(real, 1400, unfolded=True)
    assert not on_screen["paper"]
    assert on_screen["controls"] > 10


AXE = """
<pre id="probe"></pre>
<script>
if (UNFOLDED) for (const folded of document.querySelectorAll("details")) folded.open = true;
setTimeout(async () => {
  const found = await axe.run({resultTypes: ["violations"]});
  document.getElementById("probe").textContent = JSON.stringify({
    passes: found.passes.length,
    violations: found.violations.map(({id, nodes}) => [id, nodes.map(node => node.html.slice(0, 120))]),
  });
}, 1000);
</script>
"""


@pytest.mark.parametrize(
    ("which", "unfolded", "dark"),
    [("report", False, False), ("report", True, True), ("real", True, False), ("watched_page", True, True)],
)
def test_axe_finds_nothing(which, unfolded, dark, request):
    spec = importlib.util.find_spec("axe_core_python")
    if spec is None:
        pytest.skip("no axe-core-python (make setup installs it)")
    axe = Path(spec.origin).with_name("axe.min.js").read_text(encoding="utf-8")
    script = f"<script>{axe}</script>" + AXE.replace("UNFOLDED", str(unfolded).lower())
    found, log, _ = probed(request.getfixturevalue(which), script, dark=dark)
    assert found["violations"] == [], log
    assert found["passes"] > 15


@pytest.fixture
def watched_page(tmp_path) -> Path:
    page = tmp_path / "watch.html"
    runs = {"one": watched.watched(60), "few": watched.watched(3)}
    page.write_text(watch_page.page(runs), encoding="utf-8")
    return page

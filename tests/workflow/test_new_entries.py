"""The three examples of docs/guide/add_loader.md, each a file, a line of the registry and one of a config."""

import re
import subprocess
import sys

import pytest
import yaml
from workflow_fixtures import ROOT, with_blocks

pytestmark = pytest.mark.slow


def blocks(kind: str) -> list[str]:
    """The code of the page in a language."""
    text = (ROOT / "docs/guide/add_loader.md").read_text()
    return re.findall(
        rf"^```{kind}\n(.*?)^```$", text[text.index("## In gpufeed itself") :], re.DOTALL | re.MULTILINE
    )


def test_what_the_page_adds_is_measured_checked_and_in_the_report(workflow):
    lines = {}
    for line in map(yaml.safe_load, blocks("yaml")):
        lines |= line
    decoders = {"decoders": lines.pop("decoders")}
    sweep = {"datasets": ["synthetic"], **decoders, "cores": [1], "rounds": 2, "seconds": 0.01}
    toys = with_blocks({"toys": {**lines, "augment": "torch"}}, sweep=sweep)
    flow = workflow({**toys, "cache_decoder": "toy_decoder"})
    registry = flow.folder / "gpufeed/core/registry.py"
    for code in blocks("python"):
        if file := re.match(r'"""(gpufeed/\w+/\w+\.py): ', code):
            (flow.folder / file[1]).write_text(code)
        else:  # a line of the registry, as it is written there
            entries, name, entry = re.fullmatch(r"(\w+)\[(\"\w+\")\] = (.*)\n", code).groups()
            text = registry.read_text()
            assert text.count(f"\n{entries} = {{\n") == 1
            registry.write_text(
                text.replace(f"\n{entries} = {{\n", f"\n{entries} = {{\n    {name}: {entry},\n")
            )
    flow.run()
    (record,) = flow.documents("results/records/*/*/*.json").values()
    assert (record["status"], record["cell"]["loader"], record["cell"]["model"]) == (
        "done",
        "toy_loader",
        "toy_model",
    )
    assert record["dataset"]["cache"].startswith("toy_decoder ")
    (verdict,) = flow.documents("results/gate/**/*.json").values()
    assert (verdict["status"], verdict["loader"]) == ("passed", "toy_loader")
    assert verdict["pixels"]["decoder"] == "toy_decoder"
    (sweep,) = flow.documents("results/sweeps/tiny/*.json").values()
    assert (sweep["status"], sweep["decoder"]) == ("done", "toy_decoder")
    page = (flow.folder / "results/report.html").read_text()
    assert all(f"toy_{kind}" in page for kind in ("loader", "decoder", "model"))
    assert "no code to paste for loader toy_loader" in page
    by_hand = [sys.executable, "-m", "gpufeed.train", "loader=toy_loader", "model=toy_model", "--cfg", "job"]
    assert (
        "model: {}"
        in subprocess.run(by_hand, cwd=flow.folder, capture_output=True, text=True, check=True).stdout
    )

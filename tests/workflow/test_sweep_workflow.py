"""The sweep as Snakemake runs it: from mosaics to the figure, and nothing a second time."""

import copy

import pytest
import torch
from workflow_fixtures import SHORT, with_blocks

from gpufeed.core import record

pytestmark = pytest.mark.slow
SWEEP = {
    "datasets": ["tiny_imagenet", "mosaic_32"],
    "decoders": ["simplejpeg", "strips"],
    "cores": [1],
    "batch_size": 8,
    "seconds": 0.01,
    "rounds": 2,
}
MOSAIC = {"layout": "mosaic", "options": {"of": "tiny_imagenet", "size": 32, "count": 24}}
CONFIG = with_blocks({"one": {"loader": "resident", "augment": "torch"}}, sweep=SWEEP) | {
    "use_instead": {"tiny_imagenet": "synthetic"},
    "sources": {**SHORT["sources"], "mosaic_32": MOSAIC},
    "device": "cuda" if torch.cuda.is_available() else "cpu",
}
FIGURE, TABLE = "results/figures/tiny/crossover.svg", "results/tables/tiny/decoders.csv"


def test_from_mosaics_to_the_figure_then_one_decoder_more(prepared):
    flow = prepared(CONFIG)
    flow.run(FIGURE)
    for decoder in ("simplejpeg", "strips"):
        sweep = record.DECODING.read(flow.folder / f"results/sweeps/tiny/{decoder}.json")
        assert sweep["status"] == "done", sweep["sentence"]
        assert {point["dataset"] for point in sweep["points"]} == {"synthetic", "mosaic_32"}
        assert {point["status"] for point in sweep["points"]} == {"done"}
    figure = (flow.folder / FIGURE).read_text()
    assert "simplejpeg" in figure
    assert "strips on" in figure
    assert "Nothing to be done" in flow.run(FIGURE)

    more = copy.deepcopy(CONFIG)
    more["experiments"]["tiny"]["sweep"]["decoders"] = ["simplejpeg", "strips", "torchvision_cuda"]
    flow.configure(more)
    said = flow.run("-n", TABLE, "results/report-tiny.html")
    assert said.count("rule measure_decoder") == 1
    for rule in ("tabulate_sweep", "plot_sweep", "assemble_report"):
        assert f"rule {rule}" in said

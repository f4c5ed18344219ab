"""A cell whose activation is a kernel of ours: the library is built, taken by training, and vouched for."""

import json

import pytest
import torch
from workflow_fixtures import with_blocks

from gpufeed.core.errors import Skip
from gpufeed.native import toolkit

pytestmark = pytest.mark.slow

CONFIG = with_blocks(
    {
        "activations": {
            "model": "vit_lite",
            "loader": "resident",
            "overrides": [
                [f"model.activation={name}", "model.width=16", "model.depth=1", "model.heads=2"]
                for name in ("gelu", "bias_gelu")
            ],
        },
        "coded": {"loader": "resident_jpeg", "augment": "torch"},
    }
)


@pytest.fixture(autouse=True)
def compiler():
    try:
        toolkit.cxx()
        toolkit.ninja()
    except Skip as skip:
        pytest.skip(str(skip))


def records(flow) -> dict[str, dict]:
    """The record of each activation."""
    found = flow.documents("results/records/tiny/*/0.json").values()
    return {record["cell"]["hyper"]["model"]["activation"]: record for record in found}


def test_skipped_without_a_compiler_then_built_and_taken_by_the_cells_that_need_it(prepared, monkeypatch):
    flow = prepared(CONFIG)
    (coded,) = (path for path in flow.planned_records() if "resident_jpeg" in path)
    wanted = flow.planned_records() - {coded}
    cache = "data/synthetic/cache/{}.npy"
    assert "rule build_extension" in flow.run("-n", cache.format("cuda_jpeg"))
    assert "rule build_extension" not in flow.run("-n", cache.format("simplejpeg"))
    monkeypatch.setenv("CXX", "no-such-compiler")
    flow.run(*wanted)
    found = records(flow)
    assert found["gelu"]["status"] == "done", found["gelu"]["sentence"]
    without = found["bias_gelu"]
    assert without["status"] == "skipped"
    assert "CXX is no-such-compiler, which is not a program here" in without["sentence"]
    assert "snakemake --forcerun build_extension" in without["sentence"]

    monkeypatch.delenv("CXX")
    assert "Nothing to be done" in flow.run(*wanted)
    path = flow.folder / "results/extension/gpufeed_ops.json"
    about = json.loads(path.read_text())
    path.write_text(json.dumps(about | {"planned_on": "another-node"}))
    flow.run(*wanted)
    found = records(flow)
    assert {record["status"] for record in found.values()} == {"done"}, found
    losses = {name: record["epochs"][0]["train_loss"] for name, record in found.items()}
    # the same weights and batches through another kernel of the same function
    assert losses["bias_gelu"] == pytest.approx(losses["gelu"], rel=1e-4)
    about = json.loads(path.read_text())
    assert about["library"]
    assert about["torch"] == torch.__version__
    assert (about["attempt"], about["status"]) == (2, "done")
    assert "for the CPU only, as asked for" in about["sentence"]  # device is cpu, whatever nvcc there is

    evaluation = f"results/models/tiny/{coded.split('/')[3]}/evaluation.json"  # opens the loader, too
    flow.run(coded, evaluation)
    (verdict,) = flow.documents("results/gate/synthetic/resident_jpeg/*.json").values()
    assert (verdict["status"], verdict["max_difference"]) == ("passed", 0), verdict["sentence"]
    for document in (coded, evaluation):
        made = json.loads((flow.folder / document).read_text())
        assert made["status"] == "done", made["sentence"]

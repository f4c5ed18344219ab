"""Windows of random_resized_crop by DALI on the GPU, with every share of its JPEG engines."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from gate_fixtures import judged, task_for
from hostile_fixtures import saved
from photograph_fixtures import encoded, waves
from test_dali_crops import RECIPE, SIZES, check, dataset, opened

from gpufeed.core.errors import Skip
from gpufeed.core.registry import LOADERS

LOADS = (None, 0.0, 0.65, 0.9)
CASES = [
    (name, load)
    for name in ("dali_gpu", "dali_cpu", "dali_gpu_reader", "dali_cpu_reader")
    for load in (LOADS if LOADERS[name].engines else LOADS[:1])
]


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """JPEGs of several sizes and samplings, large enough for the engines."""
    random, sizes = np.random.default_rng(0), [(375, 500), (1200, 900), *SIZES]
    kinds = ("4:4:4", "4:2:0", "gray")
    files = [encoded(waves(*size, random), kinds[i % 3], 1) for i, size in enumerate(sizes * 3)]
    manifest = dataset(tmp_path_factory.mktemp("photos") / "files", files)
    manifest.write()
    return manifest


@pytest.mark.parametrize(("name", "load"), CASES)
def test_crops_by_dali_pass_the_equivalence_check(photos, name, load):
    options = {option: getattr(RECIPE, option) for option in ("size", "scale", "ratio", "short_side")}
    settings = {"batch_size": 7, "recipe": options, **({} if load is None else {"hw_decoder_load": load})}
    one = judged(replace(task_for(photos, None, name, device="cuda", **settings), reference=None))
    if one.status == "skipped":
        pytest.skip(one.sentence)
    assert (one.status, one.sentence, one.compared) == ("passed", None, 3 * len(photos))
    assert one.loading["fell_back"] == {}
    if load is not None:
        assert one.loading["hw_decoder_load"] == load


@pytest.mark.parametrize("recipe", [RECIPE, RECIPE.for_evaluation()], ids=["training", "evaluation"])
@pytest.mark.parametrize("name", ["dali_gpu", "dali_cpu"])
@pytest.mark.parametrize("way", ["read", "fed"])
def test_windows_and_flips_are_ours(tmp_path, name, recipe, way, monkeypatch):
    """PNG files, so that only the resize can differ: on the GPU too by one step inside."""
    random = np.random.default_rng(0)
    manifest = dataset(tmp_path / "files", [saved("PNG", waves(*size, random)) for size in SIZES * 3])
    loader = opened(manifest, name, recipe, device=torch.device("cuda"))
    if way == "fed":
        monkeypatch.setattr(type(loader), "not_taken", lambda self: "a file")
    try:
        with loader:
            for _ in range(2):
                order = loader.order().tolist()
                assert check(loader, recipe) == order
            assert loader.reads == (way == "read")
            assert loader.decode_counts.fell_back == {}
    except Skip as skip:
        pytest.skip(str(skip))

"""The plan: what is crossed, what is left out, and what makes two cells the same measurement."""

import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufeed.core.cell_matrix import plan
from gpufeed.core.cells import Cell, impossible, settle, without_cuda
from gpufeed.core.errors import GpufeedError
from gpufeed.core.registry import AUGMENTS, LOADERS

BASE = {
    "run": ["e"],
    "device": "auto",
    "seed": 0,
    "repeats": 3,
    "sources": {"synthetic": {"layout": "synthetic"}, "other": {"layout": "synthetic"}},
    "use_instead": {},
}


def config_of(*blocks, **changes):
    named = {f"block{i}": block for i, block in enumerate(blocks)}
    return {**BASE, "experiments": {"e": {"title": "t", "question": "q", "blocks": named}}, **changes}


def cells_of(*blocks, **changes):
    return list(plan(config_of(*blocks, **changes)).cells["e"].values())


def test_lists_are_crossed_and_blocks_are_united():
    cells = cells_of(
        {"dataset": "synthetic", "loader": "dataloader_workers", "workers": [1, 2], "batch_size": [8, 16]},
        {"dataset": "synthetic", "loader": "resident", "batch_size": 8},
    )
    found = {(c.loader, c.workers, c.batch_size) for c in cells}
    assert found == {("dataloader_workers", w, b) for w in (1, 2) for b in (8, 16)} | {("resident", 0, 8)}


def test_the_same_cell_in_two_blocks_is_measured_once():
    block = {"dataset": "synthetic", "loader": "dataloader_sync"}
    assert len(cells_of(block, block)) == 1


def test_settings_that_only_workers_have_do_not_multiply_cells_without_workers():
    cells = cells_of(
        {"dataset": "synthetic", "loader": "dataloader_sync", "workers": 0, "prefetch_factor": [2, 4, 8]}
    )
    assert [cell.prefetch_factor for cell in cells] == [None]


def test_a_list_among_overrides_counts_as_its_entries():
    shared = ["trainer.optimiser=adamw", "trainer.weight_decay=0.05"]
    overrides = [[shared, "model.heads=3"], ["model.heads=6", shared], []]
    cells = cells_of({"dataset": "synthetic", "loader": "resident", "overrides": overrides})
    assert [cell.overrides for cell in cells] == [(*shared, "model.heads=3"), ("model.heads=6", *shared), ()]


def test_what_cannot_exist_is_left_out_with_one_sentence_and_its_count():
    loaders = ["dataloader_sync", "dataloader_workers"]
    planned = plan(config_of({"dataset": "synthetic", "loader": loaders, "workers": [0, 2, 4]}))
    assert {(c.loader, c.workers) for c in planned.cells["e"].values()} == {
        ("dataloader_sync", 0),
        ("dataloader_workers", 2),
        ("dataloader_workers", 4),
    }
    sentences = {left.sentence: left.combinations for left in planned.left_out}
    assert sentences == {
        "dataloader_sync has no worker processes, so workers must be 0": 2,
        "dataloader_workers needs at least one worker process (0 workers is dataloader_sync)": 1,
    }


def test_an_experiment_without_any_possible_cell_is_an_error_that_says_why():
    with pytest.raises(GpufeedError, match=r"no possible cell[\s\S]*workers must be 0"):
        plan(config_of({"dataset": "synthetic", "loader": "dataloader_sync", "workers": 3}))


@pytest.mark.parametrize(
    ("axis", "value", "near"),
    [
        ("loader", "dataloader_worker", "dataloader_workers"),
        ("dataset", "synthetik", "synthetic"),
        ("augment", "touch", "torch"),
        ("model", "resnet-18", "resnet18"),
        ("precision", "fp-16", "fp16"),
    ],
)
def test_an_unknown_name_names_the_block_and_the_nearest_choice(axis, value, near):
    block = {"dataset": "synthetic", "loader": "resident", axis: value}
    with pytest.raises(GpufeedError) as error:
        plan(config_of(block))
    assert "experiments.e.blocks.block0" in error.value.found
    assert near in error.value.expected
    assert near in error.value.remedy


def test_run_must_name_an_experiment():
    with pytest.raises(GpufeedError, match="experiment 'f' in run"):
        plan(config_of({"dataset": "synthetic", "loader": "resident"}, run=["f"]))


def test_a_stand_in_takes_the_place_of_the_dataset_and_bears_its_own_name():
    cells = cells_of({"dataset": "synthetic", "loader": "resident"}, use_instead={"synthetic": "other"})
    assert [cell.dataset for cell in cells] == ["other"]
    assert cells[0].id.startswith("other-")


CELLS = st.builds(
    Cell,
    experiment=st.just("e"),
    dataset=st.just("d"),
    loader=st.sampled_from(sorted(LOADERS)),
    augment=st.sampled_from(sorted(AUGMENTS)),
    batch_size=st.integers(1, 4096),
    workers=st.integers(0, 16),
    precision=st.sampled_from(["auto", "fp32", "bf16"]),
    cuda_graphs=st.sampled_from([False, True, "auto"]),
    compile=st.booleans(),
    seed=st.integers(0, 3),
    hyper=st.dictionaries(st.sampled_from(["lr", "stem"]), st.integers(0, 3)),
)


@given(CELLS, CELLS)
def test_ids_are_equal_exactly_when_the_cells_are(a, b):
    assert (a.id == b.id) == (a.asdict() == b.asdict())
    assert set(a.id) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")


@given(CELLS)
def test_settling_is_idempotent_and_keeps_possibility(cell):
    assert settle(settle(cell)) == settle(cell)
    assert impossible(settle(cell)) == impossible(cell)


def test_a_change_of_any_hyper_parameter_is_another_cell():
    cell = Cell("e", "d", "resident", hyper={"model": {"width": 1}})
    assert cell.id != replace(cell, hyper={"model": {"width": 2}}).id


def test_planning_needs_the_standard_library_only():
    code = (
        "import sys; before = set(sys.modules); import gpufeed.core.cell_matrix; "
        "new = {name.split('.')[0] for name in set(sys.modules) - before}; "
        "print(sorted(n for n in new if n not in sys.stdlib_module_names and n != 'gpufeed'))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("loader", "augment", "sentence"),
    [
        ("torchvision_cuda", "dali", "runs inside DALI's pipeline, which loader torchvision_cuda"),
        ("resident", "dali", "runs inside DALI's pipeline, which loader resident"),
        ("dali_cpu", "cpu", "dali_cpu decodes whole batches"),
        ("host_cache", "cpu", "host_cache decodes nothing"),
        ("resident", "cpu", "resident decodes nothing during an epoch"),
    ],
)
def test_augments_that_a_loader_has_no_place_for(loader, augment, sentence):
    assert sentence in impossible(Cell("e", "d", loader, augment=augment))
    assert impossible(Cell("e", "d", "dali_cpu", augment="dali")) is None
    assert impossible(Cell("e", "d", "dataloader_sync", augment="cpu")) is None


def test_a_decoder_that_a_loader_does_not_use_is_told_with_the_choices():
    found = impossible(Cell("e", "d", "dataloader_workers", decoder="cuda_jpeg", workers=2))
    assert found.startswith(
        "dataloader_workers does not decode by cuda_jpeg, so decoder must be pillow or simp"
    )
    found = impossible(Cell("e", "d", "resident", decoder="simplejpeg"))
    assert found == "resident has no choice of decoder, so decoder must be pillow"


def test_workers_that_stay_are_asked_for():
    cell = Cell("e", "d", "spdl_processes", workers=2)
    assert impossible(cell).startswith("spdl_processes keeps its workers between epochs")
    assert impossible(replace(cell, persistent_workers=True)) is None


AS_THEY_ARE = ("torchvision_cuda", "torchcodec_cuda", "nvimgcodec", "strips", "resident_jpeg", "cuda_jpeg")


@pytest.mark.parametrize("loader", LOADERS)
def test_some_loaders_resize_nothing_and_the_others_do(loader):
    entry = LOADERS[loader]
    needs = {"workers": int(entry.workers == "required"), "persistent_workers": entry.stays}
    cell = Cell("e", "d", loader, **needs)
    source = {"layout": "synthetic", "files": {}, "options": {}}
    assert impossible(replace(cell, source=source)) is None
    found = impossible(replace(cell, source={**source, "resize": [8, 8]}))
    right = f"{loader} does not resize images, and d has `resize`"
    assert found == (right if loader in AS_THEY_ARE else None)


@pytest.mark.parametrize("loader", LOADERS)
def test_images_in_no_file_are_for_the_family_of_dataloader(loader):
    entry = LOADERS[loader]
    needs = {"workers": int(entry.workers == "required"), "persistent_workers": entry.stays}
    found = impossible(Cell("e", "d", loader, **needs, source={"layout": "noise"}))
    family = {"dataloader_sync", "dataloader_workers", "overlap", "fastai", "replay"}
    assert (found is None) == (loader in family)
    assert found is None or "needs image files" in found


def test_what_a_node_without_a_cuda_gpu_skips_is_known_from_the_config():
    cells = [
        Cell("e", "d", "resident", cuda_graphs="auto"),
        Cell("e", "d", "resident", cuda_graphs=True),
        Cell("e", "d", "replay", cuda_graphs=True),
        Cell("e", "d", "dali_gpu"),
        Cell("e", "d", "resident", device="cpu"),
        Cell("e", "d", "resident", device="cuda"),
    ]
    assert without_cuda(cells) == {
        "CUDA graphs need device cuda": 2,
        "dali_gpu decodes on a CUDA GPU": 1,
        "the config says device cuda": 1,
    }

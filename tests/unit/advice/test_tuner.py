"""The tuner on real trainings on the CPU, and the rates that it makes of steps."""

import json
from dataclasses import asdict, replace

import ceilings_fixtures as made
import pytest
import torch
from image_fixtures import request, write_dataset

from gpufeed.advice.setting_search import AXES
from gpufeed.advice.tuner import Epochs, decoder_costs, limits_here, table, tune
from gpufeed.core.cells import Cell
from gpufeed.core.document import validator
from gpufeed.core.errors import GpufeedError, Skip
from gpufeed.core.loader_setting import Setting, read_tuned
from gpufeed.core.record import TUNED
from gpufeed.loaders.samples import Samples
from gpufeed.training.runtime_context import RuntimeContext, Stores


def epochs(steps, share, stays=False, at_once=1, whole=()):
    """Of the seconds at which steps of ten images ended, one list an epoch."""
    marks = [[(end, 10) for end in epoch] for epoch in steps]
    return Epochs(share, stays, at_once, list(whole), marks)


def test_a_rate_is_that_of_whole_epochs_where_there_are_any():
    assert epochs([[1, 2], [1, 2], [1]], 20, whole=[2, 3]).images_per_s() == pytest.approx(40 / 5)


def test_workers_that_stay_start_before_the_first_epoch_alone():
    assert epochs([[3, 4], [1, 2]], 20, stays=True, whole=[4, 2]).images_per_s() == pytest.approx(20 / 2)


def test_a_rate_of_part_of_an_epoch_is_made_of_its_start_and_the_later_pace():
    found = epochs([[3, 3.5, 4, 4.5]], 100)  # the first after 3 s, then 20 a second
    assert found.images_per_s() == pytest.approx(100 / (3 + 90 / 20))


def test_batches_that_come_together_say_nothing_of_the_pace():
    # two workers: two batches at 3 s, two at 4 s, and one at 4.9 s whose companion is missing
    found = epochs([[3, 3, 4, 4, 4.9]], 1000, at_once=2)
    assert found.images_per_s() == pytest.approx(1000 / (3 + 990 / 20))
    stays = epochs([[3, 3, 4, 4, 4.9]], 1000, at_once=2, stays=True)  # the first batch is one worker's second
    assert stays.images_per_s() == pytest.approx(1000 / (1 + 990 / 20))
    again = epochs([[3, 3, 4, 4, 4.9], [0.5]], 1000, at_once=2, stays=True, whole=[6])  # the start was seen
    assert again.images_per_s() == pytest.approx(1000 / (0.5 + 990 / 20))


def test_the_end_of_workers_that_do_not_stay_comes_with_each_epoch():
    found = epochs([[3, 3.5, 4, 4.5]], 100)
    found.end_s = 0.25
    assert found.images_per_s() == pytest.approx(100 / (3 + 0.25 + 90 / 20))


def test_no_step_has_no_rate_and_a_first_batch_has_one():
    assert epochs([[]], 100).images_per_s() == 0.0
    assert epochs([[2]], 100).images_per_s() == pytest.approx(5)


@pytest.fixture
def manifest(tmp_path, monkeypatch):
    made.register(monkeypatch)
    threads = torch.get_num_threads()
    yield write_dataset(tmp_path / "tiny").root / "manifest.parquet"
    torch.set_num_threads(threads)


def tuned(manifest, **axes):
    usual = {"loader": "dataloader_workers", "workers": 1, "prefetch_factor": 2}
    return tune(made.planted(**{**usual, **axes}), manifest, Stores(), "login1", threads=1)


@pytest.mark.slow
def test_a_real_tuning_tries_settings_that_fit_and_keeps_a_document(manifest, tmp_path):
    found = tuned(manifest)
    assert found["status"] == "done", found["sentence"]
    path = tmp_path / found["experiment"] / f"{found['cell_id']}.json"
    path.parent.mkdir()
    TUNED.write(found, path)
    settings = [Setting.of(one) for one in found["settings"]]
    tried = [Setting.of(one) for one in found["tried"]]
    assert set(tried) <= set(settings)
    assert len(tried) > 1
    assert all(setting.workers <= found["limits"]["cores"] for setting in settings)
    assert all(one["images_per_s"] >= 0 for one in found["tried"])
    assert found["tried"][0]["images_per_s"] > 0
    assert "pillow" in found["decoders"]
    assert read_tuned(path) == tried[0]
    place = RuntimeContext()
    cell = Cell(**{**found["cell"], "overrides": tuple(found["cell"]["overrides"])})
    assert Setting.of(place.tune(cell, path)) == tried[0]
    assert place.resolved()["tuned"] == asdict(tried[0])
    assert place.tune(cell, None) is cell
    said = table(found)
    assert f"workers={tried[0].workers} " in said
    assert f"num_workers={tried[0].workers}, " in said
    assert said.count("\n") == len(tried) + 4


def test_what_cannot_be_tuned_is_a_sentence(manifest):
    found = tuned(manifest, loader="dali_cpu", workers=0)
    assert found["status"] == "failed"
    assert "dali_cpu has no workers and no choice of decoder" in found["sentence"]


@pytest.mark.parametrize(("status", "error"), [("skipped", Skip), ("failed", GpufeedError)])
def test_a_tuning_without_a_result_stops_its_cell_with_the_same_sentence(manifest, tmp_path, status, error):
    found = tuned(manifest, loader="dali_cpu", workers=0) | {"status": status}
    path = tmp_path / "tuned.json"
    TUNED.write(found, path)
    with pytest.raises(error, match="dali_cpu has no workers"):
        RuntimeContext().tune(Cell("e", "d", "dataloader_workers"), path)


def test_decoders_are_timed_where_there_is_a_choice(manifest, monkeypatch):
    from gpufeed.datasets.manifest import Manifest

    asked = request(Manifest.read(manifest), None)
    seen, made = [], Samples.made
    monkeypatch.setattr(
        Samples, "made", lambda self, *args: (seen.append(torch.get_num_threads()), made(self, *args))[1]
    )
    torch.set_num_threads(2)
    costs = decoder_costs(Cell("e", "d", "overlap"), asked)
    assert {*seen} == {1}  # others that wait for work would count
    assert torch.get_num_threads() == 2
    assert "pillow" in costs
    assert list(costs.values()) == sorted(costs.values())
    assert decoder_costs(Cell("e", "d", "spdl"), asked) == {}
    assert limits_here(asked).batch_bytes == 5 * 8 * 8 * 3
    assert limits_here(replace(asked, sample_transform=lambda *_: None)).batch_bytes == 4 * 5 * 8 * 8 * 3


def test_the_lines_to_paste_are_read_back_as_the_setting():
    import yaml
    from torch.utils.data import DataLoader

    setting = Setting(2, "simplejpeg", True, 4, False)
    lines = setting.lines("overlap", 5)
    assert yaml.safe_load(lines["config"]) == {"loader": "overlap", **asdict(setting)}
    assert lines["command"].split() == [
        "loader=overlap",
        *(f"{k}={json.dumps(v).strip(chr(34))}" for k, v in asdict(setting).items()),
    ]
    loader = eval(lines["dataloader"], {"DataLoader": DataLoader, "dataset": list(range(20))})
    assert (loader.num_workers, loader.prefetch_factor, loader.persistent_workers) == (2, 4, True)
    assert (loader.batch_size, loader.pin_memory) == (5, False)
    alone = Setting(0, "pillow", False, None, True).lines("spdl", 5)
    assert alone == {
        "config": "{loader: spdl, workers: 0, persistent_workers: false, pin_memory: true}",
        "command": "loader=spdl workers=0 persistent_workers=false pin_memory=true",
    }


def test_the_schema_describes_each_axis():
    described = validator("tuned").schema["properties"]["tried"]["items"]["properties"]
    assert described.keys() == {*AXES, "rung", "seconds", "images_per_s"}

"""Which paths the rules wait for, and which errors a path that nobody plans is."""

import json
from types import SimpleNamespace

import pytest

from gpufeed.core.config import planned
from gpufeed.core.errors import GpufeedError
from gpufeed.workflow.benchmarks import Benchmarks, Models
from gpufeed.workflow.datasets import Datasets
from gpufeed.workflow.gates import Gates
from gpufeed.workflow.repeats import Repeats
from gpufeed.workflow.report import Report
from gpufeed.workflow.run import Run

TINY = SimpleNamespace(experiment="tiny")


def datasets(run, asked=None):
    return Datasets(run, Gates(run), ([] if asked is None else asked).append)


def report(run):
    made = (Gates(run), Repeats(run, None), Benchmarks(run), Models(run))
    return Report(run, *made, ["--configfile", "mine.yaml"])


def test_inputs_of_a_cell_are_what_its_loader_reads_and_its_verdict(run, of_cell):
    tiny = run()
    (gate,) = (Gates(tiny).path(name) for name in Gates(tiny).names("tiny") if "/resident/" in name)
    cache = f"in/synthetic/cache/{tiny.config['cache_decoder']}.npy"
    assert datasets(tiny).needs_of(of_cell(tiny, "resident")) == {
        "manifest": "in/synthetic/manifest.parquet",
        "cache": cache,
        "gate": gate,
    }
    replay = of_cell(tiny, "replay", repeat="1-again")
    assert "gate" not in datasets(tiny).needs_of(replay)


def test_a_second_record_waits_for_the_first(run, of_cell):
    from gpufeed.core.repeats import AGAIN

    tiny = run()
    wildcards = of_cell(tiny, "resident", repeat="1")
    assert "first" not in datasets(tiny).needs_of_repeat(wildcards)
    wildcards.repeat = f"1{AGAIN}"
    found = datasets(tiny).needs_of_repeat(wildcards)["first"]
    assert found == f"out/records/tiny/{wildcards.cell}/1.json"


@pytest.mark.parametrize(("form", "files"), [("packed", ["in/synthetic/images.tar"]), ("folders", None)])
def test_a_packed_dataset_is_an_archive_that_loaders_of_files_wait_for(run, of_cell, form, files):
    tiny = run(data_form=form)
    found = datasets(tiny).needs_of(of_cell(tiny, "dataloader_workers"))
    assert found.get("files") == files
    written = datasets(tiny).files_written(lambda path: ("folder", path))
    assert (written["images"] == ("folder", "in/{dataset}/images")) == (form == "folders")


def test_a_derived_dataset_is_made_of_another(run):
    asked, tiny = [], run()
    wildcards = SimpleNamespace(dataset="mosaic_32")
    of = tiny.config["sources"]["mosaic_32"]["options"]["of"]
    assert datasets(tiny, asked).archives_of(wildcards) == f"in/{of}/manifest.parquet"
    assert asked == ["mosaic_32"]  # whether the disk has room for it
    assert datasets(tiny).files_made_of(wildcards) == []
    (first, *_) = datasets(tiny).archives_of(SimpleNamespace(dataset="cifar10"))
    assert first.startswith("in/cifar10/archives/")


def test_a_source_file_is_what_its_digest_says_wherever_it_comes_from(run):
    tiny = run()
    file = tiny.config["sources"]["cifar10"]["files"][0]
    wildcards = SimpleNamespace(dataset="cifar10", file=file["name"])
    assert datasets(tiny).content_of(wildcards) == {key: file[key] for key in ("name", "sha256", "size")}
    wildcards.file = "other.tar"
    with pytest.raises(GpufeedError) as caught:
        datasets(tiny).content_of(wildcards)
    assert file["name"] in caught.value.expected


def test_other_images_in_a_folder_are_another_source(run, tmp_path):
    own = {"own": {"layout": "image_folder", "folder": str(tmp_path)}}
    tiny, wildcards = run(), SimpleNamespace(dataset="own")
    tiny.config["sources"].update(own)
    (tmp_path / "a").mkdir()
    (tmp_path / "a/1.png").touch()
    first = datasets(tiny).folder_of(wildcards)
    (tmp_path / "a/2.png").touch()
    second = datasets(tiny).folder_of(wildcards)
    assert first["path"] == second["path"] == str(tmp_path)
    assert first != second
    assert datasets(tiny).folder_of(SimpleNamespace(dataset="cifar10")) is None


def test_params_of_a_dataset_have_the_defaults_of_its_layout(run):
    tiny = run()
    tiny.config["sources"] |= {
        "noisy": {"layout": "noise", "options": {"size": 32}},
        "gray": {"layout": "gray_idx", "options": {"of": "synthetic", "size": 8}},
        "photos": {"layout": "image_folder", "folder": "photos"},
    }
    noisy, gray, photos = (
        datasets(tiny).options_of(SimpleNamespace(dataset=name)) for name in ("noisy", "gray", "photos")
    )
    assert noisy == {"count": 500, "size": 32, "classes": 10, "seed": 0}
    assert gray == {"of": "synthetic", "size": 8}
    assert photos == {"evaluation_share": 0.1, "seed": 0}


@pytest.mark.parametrize(
    ("ask", "found"),
    [
        (lambda run: Benchmarks(run).settings_of_ceilings(TINY), "no ceilings in experiment tiny"),
        (lambda run: Benchmarks(run).sweeps_of(TINY), "no sweep in experiment tiny"),
        (lambda run: Benchmarks(run).works_of_kernels(TINY), "no kernels in experiment tiny"),
        (lambda run: Models(run).inference_of(TINY), "no inference in experiment tiny"),
        (lambda run: Models(run).images_to_predict(TINY), "no files to predict in experiment tiny"),
        (lambda run: Repeats(run, None).auto_of("tiny"), "a fixed number of repeats in experiment tiny"),
        (lambda run: report(run).baseline_of(TINY), "no folder `baseline` in the config"),
    ],
)
def test_a_path_of_what_an_experiment_has_not_is_an_error(run, ask, found):
    with pytest.raises(GpufeedError) as caught:
        ask(run())
    assert caught.value.found == found


def test_a_sweep_is_a_file_a_decoder_and_settings_without_the_others(run):
    tiny = run({"sweep": {"decoders": ["pillow", "strips"], "datasets": ["synthetic"]}})
    benchmarks = Benchmarks(tiny)
    assert benchmarks.sweeps_of(TINY) == ["out/sweeps/tiny/pillow.json", "out/sweeps/tiny/strips.json"]
    assert "decoders" not in benchmarks.settings_of_sweep(TINY)
    assert benchmarks.manifests_of_sweep(TINY) == {"synthetic": "in/synthetic/manifest.parquet"}
    strips = [
        benchmarks.strips_of_sweep(SimpleNamespace(experiment="tiny", decoder=name))
        for name in ("pillow", "strips")
    ]
    assert strips == [[], ["in/synthetic/strips/strips.bin"]]


class Decided:
    """Snakemake's checkpoints, whose files are there."""

    def __init__(self, folder):
        self.folder = folder
        self.find_disturbed = self.count_repeats = self

    def get(self, experiment, repeats):
        return SimpleNamespace(output=[self.folder / f"{repeats}.json"])


def test_repeats_that_other_processes_disturbed_are_measured_once_more(run, tmp_path):
    from gpufeed.core.repeats import AGAIN

    tiny = run()
    (cell, *_) = tiny.plan.cells["tiny"]
    (tmp_path / "2.json").write_text(json.dumps({"again": [f"{cell}/1"]}))
    records = Repeats(tiny, Decided(tmp_path)).records_of(TINY)
    assert len(records) == 2 * len(tiny.plan.cells["tiny"]) + 1
    assert records[:2] == [f"out/records/tiny/{cell}/{repeat}.json" for repeat in (0, 1)]
    assert records[-1] == f"out/records/tiny/{cell}/1{AGAIN}.json"


def test_repeats_are_added_until_a_decision_says_that_they_are_enough(run, tmp_path):
    tiny = run({"repeats": "auto"}, results=str(tmp_path))
    repeats = Repeats(tiny, Decided(tmp_path / "repeats/tiny"))
    least = tiny.plan.auto["tiny"].least
    assert repeats.so_far("tiny") == least
    (tmp_path / "repeats/tiny").mkdir(parents=True)
    (tmp_path / f"repeats/tiny/{least}.json").write_text('{"more": true}')
    assert repeats.so_far("tiny") == repeats.of_experiment("tiny") == least + 1


def test_a_report_waits_for_verdicts_tables_and_figures_and_tells_the_plan(run):
    tiny = run()
    parts = list(report(tiny).parts_of_page(SimpleNamespace(scope="-tiny")))
    assert {"out/tables/tiny/cells.csv", "out/figures/tiny/timeline.svg"} < set(parts)
    assert {f"out/gate/{name}.json" for name in Gates(tiny).names("tiny")} < set(parts)
    assert not [path for path in parts if "/records/" in path]
    records = [path for path in report(tiny).parts_of(["tiny"]) if "/records/" in path]
    assert len(records) == 2 * len(tiny.plan.cells["tiny"])
    told = report(tiny).plan_info()
    assert told["experiments"]["tiny"]["cells"] == list(tiny.plan.cells["tiny"])
    cells = tiny.plan.cells["tiny"].items()
    assert told["experiments"]["tiny"]["loaders"] == {name: cell.loader for name, cell in cells}
    assert told["command"].endswith("--resources gpu=1 --configfile mine.yaml")
    assert report(tiny).comparisons() == []
    assert report(run(baseline="old")).comparisons() == ["out/comparison/tiny.csv"]


def test_a_run_of_one_block_and_some_cells_waits_for_their_records_alone(run, of_cell):
    part = run({"ceilings": {"blocks": ["others"]}}, block=1, only={"loader": ["resident", "replay"]})
    wanted = [f"out/records/tiny/{of_cell(part, name).cell}/1.json" for name in ("resident", "replay")]
    assert sorted(report(part).parts_of(["tiny"])) == sorted(wanted)
    assert sorted(report(part).parts_of_page(SimpleNamespace(scope="-tiny"))) == sorted(wanted)
    # the report still says what the whole plan is
    plan = report(part).plan_of("tiny")
    assert (plan["repeats"], len(plan["cells"]), len(plan["ceilings"])) == (2, 3, 1)
    assert report(run(baseline="old")).comparisons()
    assert not report(run(baseline="old", block=0)).comparisons()


def test_a_block_of_repeats_that_are_added_as_needed(run):
    part = run(repeats={"least": 6, "most": 9}, block=7)
    assert {path.rpartition("/")[2] for path in report(part).parts_of(["tiny"])} == {"7.json"}
    assert report(part).plan_of("tiny")["repeats"] == 8


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ({"block": 2}, "at most 2 repeats in tiny"),
        ({"only": {"loder": ["resident"]}}, "axis 'loder' in only"),
        ({"only": {"loader": ["dali_gpu"]}}, "no cell with loader ['dali_gpu'] (only) in tiny"),
    ],
)
def test_a_part_without_a_cell_is_refused(run, part, said):
    with pytest.raises(GpufeedError) as caught:
        list(report(run(**part)).parts_of(["tiny"]))
    assert said in caught.value.found


def test_a_part_that_only_another_experiment_has_is_refused(run):
    tiny = run()
    config = tiny.config | {"block": 2, "only": {"loader": ["resident"]}}
    config["experiments"]["other"] = {**config["experiments"]["tiny"], "repeats": 3}
    both = report(Run(config, planned(config)))
    with pytest.raises(GpufeedError, match="block 2, and at most 2 repeats in tiny"):
        list(both.parts_of(["tiny"]))
    assert len(list(both.parts_of(["tiny", "other"]))) == 1


def test_values_of_a_command_line_are_text(run):
    from snakemake.cli import parse_config

    config = parse_config(["block=1", "only={workers: [4], persistent_workers: [false], cores: null}"])
    assert [cell.loader for cell in run(**config).cells["tiny"].values()] == ["dataloader_workers"]

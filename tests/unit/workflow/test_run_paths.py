"""Which paths the rules wait for, and which errors a path that nobody plans is."""

import json
import os
from dataclasses import replace
from itertools import chain
from types import SimpleNamespace

import pytest

from gpufeed.core.config import planned
from gpufeed.core.errors import GpufeedError
from gpufeed.core.quantities import gib
from gpufeed.core.run_time_estimate import KINDS, PIXELS_PER_S, SHM, STARTING_S
from gpufeed.workflow.benchmarks import Benchmarks, Models
from gpufeed.workflow.datasets import Datasets
from gpufeed.workflow.estimate import Estimate
from gpufeed.workflow.gates import Gates
from gpufeed.workflow.repeats import Repeats
from gpufeed.workflow.report import Report
from gpufeed.workflow.run import Run

BLOCKS_OF_ADVICE = {
    "today": {"loader": "dataloader_workers", "workers": 2},
    "others": {"loader": ["resident", "replay"]},
}
TINY = SimpleNamespace(experiment="tiny")


def datasets(run, asked=None):
    return Datasets(run, Gates(run), ([] if asked is None else asked).append)


def report(run):
    made = (Gates(run), Repeats(run, None), Benchmarks(run), Models(run))
    return Report(run, *made, ["--configfile", "mine.yaml"])


def estimated(run, *targets, nodes=None, cores=4, free=2**40, **more):
    """The estimate of a command with these targets, where so many bytes of memory are free."""
    settings = SimpleNamespace(nodes=nodes, cores=cores)
    asked = SimpleNamespace(targets=targets)
    workflow = SimpleNamespace(is_main_process=True, resource_settings=settings, dag_settings=asked)
    return Estimate(run, report(run), workflow, lambda: free, **more)


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


@pytest.mark.parametrize("again", ['{"again": ["CELL/1", "of_other_images/0"]}', "{", None])
def test_disturbed_repeats_that_are_known_are_counted(run, tmp_path, again):
    tiny = run(results=str(tmp_path))
    cell = next(iter(tiny.plan.cells["tiny"]))
    if again:
        (tmp_path / "again/tiny").mkdir(parents=True)
        (tmp_path / "again/tiny/2.json").write_text(again.replace("CELL", cell))
    found = [path for path in estimated(tiny, "tiny").measurements_of("tiny") if "/records/" in path]
    first = [
        f"{tmp_path}/records/tiny/{name}/{number}.json"
        for name in tiny.plan.cells["tiny"]
        for number in (0, 1)
    ]
    second = [f"{tmp_path}/records/tiny/{cell}/1-again.json"] * (again is not None and len(again) > 1)
    assert sorted(found) == sorted(first + second)


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


def test_the_disk_holds_what_a_source_asks_for_and_a_link_takes_nothing(run, tmp_path):
    (tmp_path / "images").mkdir()
    (tmp_path / "images/1.png").write_bytes(bytes(1000))
    tiny = run(data=str(tmp_path / "data"))
    source = tiny.config["sources"]["own"] = {"layout": "image_folder", "folder": str(tmp_path / "images")}
    manifest = str(tmp_path / "data/own/manifest.parquet")
    for more, expected in (({}, 0), ({"times": 4}, 0), ({"copies": 4}, 2000)):
        tiny.config["sources"]["own"] = source | more
        assert datasets(tiny).quantity_of(SimpleNamespace(dataset="own")) == more
        assert estimated(tiny).files_to_write("own")[manifest] == expected


def test_data_and_results_in_one_folder_take_as_much_as_in_two(run, tmp_path):
    data, results = str(tmp_path / "data"), str(tmp_path / "results")
    runs = run(data=data, results=results), run(data=data, results=data)
    apart, together = (estimated(one, "tiny").disks_of(frozenset(["synthetic"]))[0] for one in runs)
    assert apart.needed == together.needed > 0


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


def test_an_estimate_counts_the_datasets_and_stores_of_the_run(run, tmp_path):
    tiny = run(results=str(tmp_path / "out"), data=str(tmp_path / "in"))
    said = []
    estimate = estimated(tiny, say=said.append)
    assert estimate.cores == 4
    assert estimate.datasets == ["synthetic"]
    stores = {path.rpartition("/")[2] for path in estimate.stores_of("synthetic")}
    assert stores == {"pillow.npy", f"{tiny.config['cache_decoder']}.npy"}
    estimate.announce_and_check("synthetic")
    assert "6 repeats, 2 equivalence checks" in said[0]
    found = estimate.disks_of(frozenset(["synthetic"]))
    for disk in found:
        free = disk.free
        object.__setattr__(disk, "free", disk.needed - 1)
        with pytest.raises(GpufeedError) as error:
            estimate.announce_and_check("synthetic")
        assert error.value.remedy == disk.remedy
        object.__setattr__(disk, "free", free)
    assert len([line for line in said if "Expected minutes" in line]) == 1


@pytest.mark.parametrize(
    ("used", "told"),
    [
        (
            [(1.2, "cc1plus (process 7)"), (0.01, "sshd (process 8)")],
            "1.2 of 2 cores (cc1plus (process 7) 1.2 cores)",
        ),
        ([(0.05, f"sh (process {number})") for number in range(10)], "0.5 of 2 cores"),
        ([(1.5, "a"), (1.5, "b")], "2.0 of 2 cores (a 1.5 cores, b 1.5 cores)"),  # one moved there meanwhile
        ([(0.3, "a")], None),
    ],
)
def test_what_other_processes_use_is_told_first_where_it_is_much(run, tmp_path, used, told):
    tiny = run(results=str(tmp_path / "out"), data=str(tmp_path / "in"))
    first, *_ = estimated(tiny, used_by_others=lambda: (2, used)).lines()
    assert first.startswith("Other processes use ") == bool(told)
    assert told is None or first.startswith(f"Other processes use {told}: rates ")


def test_what_was_probed_here_is_no_guess(run, tmp_path):
    tiny = run(results=str(tmp_path / "out"))
    estimate = estimated(tiny)
    first, *_ = report(tiny).documents_of("tiny")["records"]
    assert estimate.seconds_of(first)[1]
    cell_id = first.split("/")[-2]
    probe = tmp_path / f"out/probes/tiny/{cell_id}.json"
    probe.parent.mkdir(parents=True)
    rounds = [{"images": 10, "seconds": 1.0}, {"images": 10, "seconds": 3.0}]
    probe.write_text(json.dumps({"together": {"rounds": rounds}, "compute": {"rounds": rounds[:1]}}))
    cell = tiny.plan.cells["tiny"][cell_id]
    images = cell.epochs * estimate.amount(cell.dataset).images
    assert estimate.seconds_of(first)[1]  # documents are read once
    estimate.forget(str(probe))
    assert estimate.seconds_of(first) == (2 * STARTING_S + images * 0.2, False)
    for failed in (None, {"rounds": []}, {"rounds": [{"images": 0, "seconds": 1.0}]}, {"rounds": [{}]}):
        probe.write_text(json.dumps({"together": failed, "compute": failed}))
        estimate.forget(str(probe))
        assert estimate.seconds_of(first)[1]
    assert estimate.seconds_of("out/report.html") == (0.0, False)
    estimate.forget(first)


def test_documents_are_read_once_a_cell_and_again_behind_a_job_of_it(run, tmp_path, monkeypatch):
    tiny = run({"advice": {"of": "today"}, "blocks": {**BLOCKS_OF_ADVICE}}, results=str(tmp_path / "out"))
    estimate, read = estimated(tiny), []
    reads = "gpufeed.workflow.estimate.measured_seconds"
    monkeypatch.setattr(reads, lambda place, *_: read.append(place.parent.name))
    cells = {cell.loader: cell_id for cell_id, cell in tiny.plan.cells["tiny"].items()}
    records = {
        loader: [f"{tmp_path}/out/records/tiny/{cell}/{n}.json" for n in range(50)]
        for loader, cell in cells.items()
    }

    def read_of():
        read.clear()
        for path in chain(*records.values()):
            estimate.seconds_of(path)
        return sorted(read)

    assert read_of() == sorted(cells.values())
    assert read_of() == []
    estimate.forget(records["resident"][0])
    assert read_of() == [cells["resident"]]
    estimate.forget(f"{tmp_path}/out/probes/tiny/{cells['resident']}.json")
    assert read_of() == sorted([cells["resident"], cells["replay"]])
    for other in ("figures/tiny/timeline.svg", "tables/tiny/cells.csv", "report.html"):
        estimate.forget(f"{tmp_path}/out/{other}")
    assert read_of() == []


def test_a_probe_of_one_device_is_the_pace_of_each(run, tmp_path):
    tiny = run(results=str(tmp_path / "out"))
    (first, *_) = report(tiny).documents_of("tiny")["records"]
    cell_id = first.split("/")[-2]
    probe = tmp_path / f"out/probes/tiny/{cell_id}.json"
    probe.parent.mkdir(parents=True)
    rounds = {"rounds": [{"images": 10, "seconds": 10.0}]}
    probe.write_text(json.dumps({"together": rounds, "compute": rounds}))
    cells = tiny.plan.cells["tiny"]
    for devices, steps, images in ((1, 10, 80), (4, 10, 80), (4, None, None)):
        cells[cell_id] = replace(cells[cell_id], devices=devices, steps=steps, trainer="lightning")
        estimate = estimated(tiny)
        whole = estimate.amount(cells[cell_id].dataset).images * cells[cell_id].epochs
        assert estimate.seconds_of(first)[0] == pytest.approx(2 * STARTING_S + (images or whole // devices))


def test_a_verdict_reads_three_epochs_of_a_large_dataset(run):
    tiny = run()
    tiny.config["sources"]["synthetic"]["options"] |= {"count": 10**6, "size": 512}
    estimate = estimated(tiny)
    (gate, *_) = report(tiny).documents_of("tiny")["gates"]
    beyond = estimate.seconds_beyond(gate)
    assert beyond == pytest.approx(3 * 10**6 * 512**2 / (4 * PIXELS_PER_S), rel=0.01)
    assert estimate.seconds_of(gate) == (KINDS["gate"].seconds + beyond, True)


@pytest.mark.parametrize(("nodes", "ranks"), [(None, 1), (9, 4)])
def test_devices_share_the_cores_here_and_have_their_own_on_a_cluster(run, nodes, ranks):
    tiny = run()
    tiny.config["sources"]["synthetic"]["options"] |= {"count": 10**6, "size": 512}
    name, cell = next(one for one in tiny.plan.cells["tiny"].items() if one[1].loader == "dataloader_workers")
    estimate = estimated(tiny, nodes=nodes)
    path = f"out/records/tiny/{name}/0.json"
    alone = estimate.seconds_beyond(path)
    tiny.plan.cells["tiny"][name] = replace(cell, devices=4, trainer="lightning")
    assert alone > 0
    assert estimate.seconds_beyond(path) == pytest.approx(alone / ranks)


@pytest.mark.parametrize(
    ("targets", "asked"),
    [
        ([], ["tiny"]),
        (["all"], ["tiny"]),
        (["other"], ["other"]),
        (["other", "out/report.html"], ["tiny", "other"]),
        (["out/report-other.html"], ["other"]),
        (["out/kernels/other.json", "out/gate/synthetic/replay/x.json"], ["other"]),
        (["out/records/other/a-cell/0.json", "tiny"], ["tiny", "other"]),
        (["in/synthetic/manifest.parquet"], ["tiny"]),
    ],
)
def test_an_estimate_is_of_the_experiments_that_the_command_asks_for(run, targets, asked):
    tiny = run()
    tiny.config["experiments"]["other"] = {**tiny.config["experiments"]["tiny"], "repeats": 3}
    both = Run(tiny.config, planned(tiny.config))
    estimate = estimated(both, *targets)
    assert estimate.experiments == asked
    rows = [line.split()[0] for line in next(estimate.lines()).splitlines()[1:]]
    assert [row for row in rows if row in ("tiny", "other")] == asked


def test_what_an_experiment_leaves_out_is_said_once_with_its_reason(run):
    blocks = {
        "workers": {"loader": ["dataloader_workers", "replay"], "workers": [0, 2]},
        "crops": {"loader": ["strips", "dali_cpu", "resident_jpeg"], "recipe": "random_resized_crop"},
        "step": {"loader": ["replay", "resident"], "cuda_graphs": True, "synchronise": ["epoch", "step"]},
    }
    tiny = run({"blocks": blocks}, device="auto")
    said = [line for line in estimated(tiny).lines() if "leaves" in line]
    assert said == [
        "tiny leaves out 4 combinations: strips, resident_jpeg (cannot crop and resize each image, as "
        "recipe random_resized_crop needs); a CUDA graph is launched as a whole, so synchronise must be "
        "'epoch' with cuda_graphs."
    ]
    assert not [line for line in estimated(run()).lines() if "leaves" in line]


def test_an_estimate_of_a_part_has_its_verdicts(run):
    part = run(block=1, only={"loader": ["resident", "replay"]})
    assert "2 repeats, 1 equivalence check," in next(estimated(part).lines())


@pytest.mark.skipif(not os.path.exists(SHM), reason="a system without files in memory")
@pytest.mark.parametrize(
    ("block", "needed"),
    [
        ({}, 8 * 64 * 64 * 3 * (4 * 2 + 2)),
        ({"workers": "auto"}, 8 * 64 * 64 * 3 * (4 * 2 + 2)),
        ({"workers": "auto", "cores": 2}, 8 * 64 * 64 * 3 * (2 * 2 + 2)),
        ({"prefetch_factor": 5}, 8 * 64 * 64 * 3 * (4 * 5 + 2)),
        ({"augment": "cpu"}, 4 * 8 * 64 * 64 * 3 * (4 * 2 + 2)),
        ({"recipe": "random_resized_crop", "overrides": [["recipe.size=100"]]}, 8 * 100**2 * 3 * (4 * 2 + 2)),
    ],
)
def test_batches_of_worker_processes_have_room_in_memory(run, block, needed):
    blocks = {"w": {"loader": ["dataloader_workers", "webdataset"], "workers": [1, 4], **block}}
    tiny = run({"blocks": blocks})
    memory = estimated(tiny, free=needed).disks_of(frozenset(["synthetic"]))[-1]
    assert (memory.folders, memory.needed) == ([SHM], needed)
    with pytest.raises(GpufeedError) as error:
        estimated(tiny, free=needed - 1).announce_and_check("synthetic")
    assert SHM in error.value.found
    assert "workers" in error.value.remedy
    assert "shm-size" in error.value.remedy
    there = estimated(tiny, nodes=9, cores=None, free=0)
    there.announce_and_check("synthetic")  # its nodes have their own


def test_a_cache_that_host_memory_has_no_room_for_is_said(run):
    tiny = run({"blocks": {"caches": {"loader": ["host_cache", "replay", "dali_cpu"]}}})
    size = 3 * tiny.config["sources"]["synthetic"]["options"]["count"] * 64 * 64
    (said,) = estimated(tiny, free=size - 1).caches_too_large()
    assert f"host_cache keeps {gib(size)} of synthetic, and {gib(size - 1)} are free" in said
    assert list(estimated(tiny, free=size).caches_too_large()) == []


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

"""What a run is expected to take: minutes, disks, memory, and what is said before it starts."""

import json
import os
from dataclasses import replace
from itertools import chain
from types import SimpleNamespace

import pytest
from test_run_paths import datasets, report

from gpufeed.core.config import planned
from gpufeed.core.errors import GpufeedError
from gpufeed.core.quantities import gib
from gpufeed.core.run_time_estimate import KINDS, PIXELS_PER_S, SHM, STARTING_S
from gpufeed.workflow.estimate import Estimate
from gpufeed.workflow.run import Run

BLOCKS_OF_ADVICE = {
    "today": {"loader": "dataloader_workers", "workers": 2},
    "others": {"loader": ["resident", "replay"]},
}


def estimated(run, *targets, nodes=None, cores=4, free=2**40, **more):
    """The estimate of a command with these targets, where so many bytes of memory are free."""
    settings = SimpleNamespace(nodes=nodes, cores=cores)
    asked = SimpleNamespace(targets=targets)
    workflow = SimpleNamespace(is_main_process=True, resource_settings=settings, dag_settings=asked)
    return Estimate(run, report(run), workflow, lambda: free, **more)


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

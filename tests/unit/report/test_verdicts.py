from dataclasses import replace

import pandas as pd
import pytest
import record_fixtures as made
from report_fixtures import cells_of, steps_of

from gpufeed.core.record import Record
from gpufeed.report import claims, verdicts, wording

GPU = {"experiment": "hybrid_gpu"}


def free(loader, workers=0, **axes):
    usual = {"augment": "cpu", "batch_size": 32, "prefetch_factor": 2 if workers else None}
    return made.cell(loader, workers=workers, **{**usual, **axes})


def verdict_on(paths) -> verdicts.Verdict:
    """The one answer to the records of one task."""
    (verdict,) = verdicts.answers(cells_of(paths))
    return verdict


def answer(paths) -> str:
    return verdict_on(paths).sentence


def test_the_answer_names_the_best_its_ceiling_n_and_hardware(tmp_path):
    paths = made.write_speeds(tmp_path, free("dataloader_sync"), [100, 101])
    paths += made.write_speeds(tmp_path, free("overlap", 2), [300, 310])
    paths += made.write_speeds(tmp_path, free("replay"), [610, 610])
    verdict = verdict_on(paths)
    said = verdict.sentence
    first = "overlap, 2 workers, the highest median of those that load from the host: 305 images/s"
    assert said.startswith(first)
    assert "(median, range 300 to 310, n = 2)" in said
    assert "NVIDIA H200" in verdict.subject
    assert "50 % of the compute-only limit (replay), 610 images/s (median, range 610 to 610, n = 2)" in said
    lead = "overlap, 2 workers: 305 images/s, 3.03x the rate of dataloader_sync, 50 % of the limit"
    assert verdict.lead == lead
    assert "faster than" not in said  # two repeats have no interval
    assert "Its rate is 3.03x (range 2.97x to 3.10x, n = 2) that of dataloader_sync (augment cpu)" in said
    assert "the ranges keep apart, and fewer than 6 repeats say no more." in said


def in_blocks(tmp_path, of, rates):
    """A repeat in each block, a minute apart."""
    repeats = [made.record(of, number, rate) for number, rate in enumerate(rates)]
    started = (replace(one, started_at=f"2026-01-02T03:0{one.repeat}:00+00:00") for one in repeats)
    return made.write(tmp_path, *started)


def around(tmp_path, of, median, spread=0.01, count=6):
    """Repeats around a median, in blocks; spread: between the slowest and the median, as a share."""
    shares = [spread * (number / (count - 1) - 0.5) * 2 for number in range(count)]
    return in_blocks(tmp_path, of, [median * (1 + share) for share in shares])


def test_from_six_repeats_on_the_interval_of_the_pairs_decides(tmp_path):
    """The blocks differ by 40 %, so that the ranges overlap; within each the two keep their ratio."""
    paths = around(tmp_path, free("dataloader_sync", **GPU), 100, 0.2)
    paths += around(tmp_path, free("overlap", 2, **GPU), 110, 0.2)
    said = answer(paths)
    above = "the 95 % interval of the ratio lies above 1.03 (n = 6 pairs)."
    assert f"It is faster than the one other pipeline: {above}" in said
    assert "It is faster than dataloader_sync (augment cpu)" in said
    assert "1.10x (95 % interval 1.10x to 1.10x, n = 6 pairs)." in said


def test_a_best_of_several_tells_of_how_many_comparisons_and_pairs(tmp_path):
    paths = around(tmp_path, free("dataloader_sync", **GPU), 100)
    paths += around(tmp_path, free("dataloader_workers", 2, **GPU), 120, count=7)
    paths += around(tmp_path, free("overlap", 2, **GPU), 150, count=8)
    said = answer(paths)
    assert "It is faster than both other pipelines: " in said
    assert "(2 comparisons, not corrected for their number, n = 6 to 7 pairs)." in said


def test_the_fastest_is_told_from_the_next_loader_that_trains_by_the_same_step(tmp_path):
    graphs = {**GPU, "cuda_graphs": True}
    speeds = {"resident": [400, 402], "host_cache": [200, 202], "overlap": [100, 101]}
    paths = []
    for name, two in speeds.items():
        paths += made.write_speeds(tmp_path, free(name, **graphs), two)
    paths += made.write_speeds(tmp_path, free("resident", pin_memory=False, **graphs), [300, 301])
    once = made.write_speeds(tmp_path, free("overlap", **GPU, cuda_graphs=False), [250])
    verdict = verdict_on([*paths, *once])
    first, *doubts = verdict.shown
    assert first == (
        "Fastest of 4 pipelines measured with this step on this card, 2.00x the rate of the runner-up, "
        "host_cache. Its range lies above those of all 3 other pipelines; fewer than 6 repeats say no more."
    )
    (unlike,) = doubts
    assert "they train by another step: overlap, eager. Without CUDA graphs the time to train" in unlike
    assert verdict.sentence.count(unlike) == 1
    once = made.write_speeds(tmp_path / "once", free("dali_gpu", **graphs), [250])
    verdict = verdict_on([*paths, *once])
    assert verdict.shown[0] == (
        "Highest rate of 5 pipelines measured on this card, 1.60x the rate of the runner-up, dali_gpu. Their "
        "order is not settled, since these ran once only: dali_gpu."
    )


def test_a_loader_that_alone_trains_by_its_step_is_compared_with_nothing(tmp_path):
    paths = made.write_speeds(tmp_path, free("resident", cuda_graphs=True, **GPU), [400, 402])
    eager = {"dataloader_sync": [222, 223], "overlap": [100, 101]}
    for name, two in eager.items():
        paths += made.write_speeds(tmp_path, free(name, cuda_graphs=False, **GPU), two)
    verdict = verdict_on(paths)
    assert verdict.lead == "resident, CUDA graphs: 401 images/s"  # and no factor to dataloader_sync
    assert verdict.shown[0].startswith(
        "No other loader was measured with the step of resident, CUDA graphs, so these do not compare with "
        "it: dataloader_sync, eager; overlap"
    )
    assert not any(word in verdict.sentence for word in ("runner-up", "Fastest", "Highest", "1.80x"))
    shared = {**GPU, "experiment": "pipelining"}
    paths = made.write_speeds(tmp_path, free("overlap", 2, cuda_graphs=True, **shared), [400, 402])
    paths += made.write_speeds(tmp_path, free("dataloader_sync", cuda_graphs=False, **shared), [222, 223])
    verdict = verdict_on(paths)
    assert verdict.lead == "overlap, 2 workers, CUDA graphs: 401 images/s"
    assert "do not compare with it: dataloader_sync, eager" in verdict.shown[0]
    assert "1.80x" not in verdict.sentence


def test_the_plain_loader_counts_where_it_trains_by_the_same_step(tmp_path):
    paths = []
    for name, graphs, rate in (
        ("resident", True, 400),
        ("overlap", True, 300),
        ("dataloader_sync", False, 222),
    ):
        paths += made.write_speeds(tmp_path, free(name, cuda_graphs=graphs, **GPU), [rate, rate + 1])
    verdict = verdict_on(paths)
    assert verdict.lead == "resident: 400 images/s"
    assert "Fastest of 2 loaders measured with this step on this card, 1.33x the rate of" in verdict.shown[0]
    assert "they train by another step: dataloader_sync, eager." in verdict.shown[1]
    graphs = made.write_speeds(tmp_path, free("dataloader_sync", cuda_graphs=True, **GPU), [200, 201])
    verdict = verdict_on([*paths, *graphs])
    assert verdict.lead == "resident: 400 images/s, 2.00x the rate of dataloader_sync"


def test_a_ratio_of_pairs_below_one_is_level(tmp_path):
    """The median of the first is higher, 105 and 101, and in four of seven pairs the other was faster."""
    paths = in_blocks(tmp_path, free("resident", **GPU), (100, 101, 102, 105, 110, 110, 110))
    paths += in_blocks(tmp_path, free("overlap", **GPU), (101, 102, 103, 106, 80, 80, 80))
    said = "Highest rate of 2 loaders measured on this card, level with the runner-up, overlap."
    assert said in verdict_on(paths).shown[0]


def test_repeats_that_shared_their_gpu_are_named(tmp_path):
    def shared(of, number, most):
        told = made.telemetry(other_processes={"n": 9, "median": 0, "min": 0, "max": most})
        return replace(made.record(of, number), telemetry=told)

    of, alone = free("overlap", 2, **GPU), free("resident", augment="torch", **GPU)
    paths = made.write(tmp_path, *(shared(of, number, most) for number, most in enumerate((0, 1, 3))))
    paths += made.write(tmp_path, shared(alone, 0, 0), made.record(alone, 1))
    assert "Another process was on the GPU in 2 of 3 repeats of overlap, 2 workers: if it " in answer(paths)
    assert "Another process" not in answer(paths[3:])
    paths += made.write_speeds(tmp_path, free("overlap", 2, **GPU, pin_memory=False), [1])
    assert "in 2 of 3 repeats of overlap, 2 workers, pinned: if it " in answer(paths)


def test_memory_that_does_not_settle_is_named(tmp_path):
    slopes = {"epochs": 8, "mib_per_epoch": 150.0, "mib_per_1000_steps": 3.0}

    def grown(number, mib):
        told = made.telemetry()
        told["growth"] |= {"host": {**slopes, "suspected_leak_mib": mib}}
        return replace(made.record(free("overlap", 2, **GPU), number), telemetry=told)

    paths = made.write(tmp_path, *(grown(number, mib) for number, mib in enumerate((None, 900.0, 1100.0))))
    paths += made.write(tmp_path, made.record(free("resident", augment="torch", **GPU), 0))
    said = "Memory grew in every part of 2 of 3 repeats of overlap, 2 workers and did not settle"
    assert said in answer(paths)
    assert "Memory grew" not in answer(paths[:1] + paths[3:])


def test_overlapping_ranges_are_not_called_faster(tmp_path):
    paths = made.write_speeds(tmp_path, free("dataloader_sync"), [100, 120])
    paths += made.write_speeds(tmp_path, free("overlap", 2), [115, 130])
    verdict = verdict_on(paths)
    said = verdict.sentence
    assert "is faster" not in said
    plain = "dataloader_sync (augment cpu), which runs at 110 images/s"
    assert f"It is not shown to be faster than {plain}" in said
    assert "the ratio is 1.11x (range 0.96x to 1.30x, n = 2)." in said
    lead = "overlap, 2 workers: 122 images/s, not shown to be faster than dataloader_sync"
    assert verdict_on(paths).lead == lead
    assert "no replay cell was measured" in said


def test_one_repeat_is_too_few_to_call(tmp_path):
    paths = made.write_speeds(tmp_path, free("dataloader_sync"), [100])
    paths += made.write_speeds(tmp_path, free("overlap", 2), [900])
    said = answer(paths)
    assert "is faster" not in said
    assert "One repeat is too few to call it faster than dataloader_sync" in said
    assert "n = 1" in said
    assert verdict_on(paths).lead == (
        "overlap, 2 workers: 900 images/s, not shown to be faster than dataloader_sync (one repeat)"
    )


def test_nothing_finished_no_answer(tmp_path):
    paths = made.write(tmp_path, made.unfinished(free("overlap"), "skipped", "no GPU here"))
    assert verdicts.answers(cells_of(paths)) == []
    assert claims.notebook_claims(cells_of(paths)) == []


def test_pipelining_is_answered_for_the_host_first_then_overlap_then_resident(tmp_path):
    paths = made.write_speeds(tmp_path, free("dataloader_sync"), [100, 101])
    speeds = {1: ([90, 91], [70, 71]), 2: ([180, 181], [190, 191]), 4: ([300, 310], [290, 305])}
    for workers, (overlapped, plain) in speeds.items():
        paths += made.write_speeds(tmp_path, free("overlap", workers), overlapped)
        paths += made.write_speeds(tmp_path, free("dataloader_workers", workers), plain)
    paths += made.write_speeds(tmp_path, made.cell("resident", augment="torch", batch_size=32), [900, 910])
    paths += made.write_speeds(tmp_path, made.cell("replay", augment="torch", batch_size=32), [905, 950])
    said = answer(paths)
    parts = [
        "overlap, 4 workers, the highest median",
        "Its rate is 3.03x",
        "all else equal, overlap is ahead, its range above, at 1; behind, its range below, at 2; not shown "
        "to differ at 4.",
        "resident runs at 905 images/s",
        "not distinguishable from the compute-only limit (replay), 928 images/s (median, range 905 to 950",
    ]
    at = [said.find(part) for part in parts]
    assert -1 not in at
    assert at == sorted(at)


LEVEL = ("not distinguishable", "not distinguishable from", "not distinguishable from the limit")
BUSY = "machine too busy to tell it from the limit"


@pytest.mark.parametrize(
    ("speeds", "how", "said", "short"),
    [
        ([100, 110], "below", "51 % of the compute-only", "51 % of the limit"),
        ([190, 205], *LEVEL),
        ([200, 200], *LEVEL),
        ([220], *LEVEL),
        ([211, 213], "above", "3.4 % above the compute-only", "3.4 % above the limit"),
        ([580, 620], "disturbed", "293 % of the compute-only", "293 % of the limit: disturbed"),
        ([570], "disturbed", "278 % of the compute-only", "278 % of the limit: disturbed"),
        ([60, 1620], "disturbed", "410 % of the compute-only", "410 % of the limit: disturbed"),
        ([100, 205], "machine too busy", "74 % of the compute-only", BUSY),
        ([60, 300], "machine too busy", "88 % of the compute-only", BUSY),
    ],
)
def test_each_place_beside_the_ceiling_has_its_words(tmp_path, speeds, how, said, short):
    paths = made.write_speeds(tmp_path, free("overlap"), speeds)
    paths += made.write_speeds(tmp_path, free("replay"), [200, 210])
    row, ceiling = (cells_of(paths).iloc[number] for number in (0, 1))
    words = verdicts.to_ceiling(row)
    assert row["against_ceiling"] == how
    assert ceiling["against_ceiling"] == ""
    assert words.startswith(said)
    assert verdicts.short_ceiling(row) == short
    assert "205 images/s (median, range 200 to 210, n = 2)" in words
    assert ("one of the two was disturbed" in words.lower()) is (how in ("above", "disturbed"))
    again = how in ("above", "disturbed", "machine too busy")
    assert ("(--forcerun measure_cell) with nothing else on the machine" in words) is again
    assert ("too busy to answer" in words) is (how in ("disturbed", "machine too busy"))
    assert ("impossible" in words) is (how == "disturbed")


def test_from_six_repeats_on_the_interval_decides_on_the_ceiling_too(tmp_path):
    """Blocks differ by 40 %, and in each the pipeline has 98 % of its ceiling."""
    paths = around(tmp_path, free("overlap"), 98, 0.2) + around(tmp_path, free("replay"), 100, 0.2)
    assert cells_of(paths).iloc[0]["against_ceiling"] == "below"
    paths = around(tmp_path / "x", free("overlap"), 98, 0.2, 5)
    paths += around(tmp_path / "x", free("replay"), 100, 0.2, 5)
    assert cells_of(paths).iloc[0]["against_ceiling"] == "machine too busy"


def test_a_wide_interval_that_holds_the_ceiling_is_no_answer(tmp_path):
    """From six repeats on too: 96 to 104 % says that both are alike, 60 to 167 % says nothing."""
    narrow, wide = ([100 * way**sign for sign in (-1, 1)] * 4 for way in (1.04, 1.67))
    for number, (speeds, how) in enumerate([(narrow, "not distinguishable"), (wide, "machine too busy")]):
        paths = made.write_speeds(tmp_path / str(number), free("overlap"), speeds)
        paths += made.write_speeds(tmp_path / str(number), free("replay"), [100] * 8)
        verdict = verdict_on(paths)
        assert cells_of(paths).iloc[0]["against_ceiling"] == how
        assert ("not distinguishable" in verdict.lead) is (how == "not distinguishable")
        assert ("machine too busy" in verdict.lead) is (how != "not distinguishable")


@pytest.mark.parametrize("experiment", ["pipelining", "hybrid_gpu"])
def test_a_task_with_a_pipeline_far_above_its_ceiling_is_not_ranked(tmp_path, experiment):
    axes = {"experiment": experiment}
    paths = made.write_speeds(tmp_path, free("dataloader_sync", **axes), [100, 101])
    paths += made.write_speeds(tmp_path, free("overlap", 2, **axes), [2428, 2599, 2800])
    paths += made.write_speeds(tmp_path, free("replay", **axes), [699, 896, 946])
    verdict = verdict_on(paths)
    assert verdict.lead == "overlap, 2 workers: 290 % of the limit: the measurement was disturbed"
    assert "2,599 images/s (median, range 2,428 to 2,800, n = 3)" in verdict.sentence
    assert "896 images/s (median, range 699 to 946, n = 3)" in verdict.sentence
    assert "which is impossible" in verdict.sentence
    assert "no order of the pipelines" in verdict.sentence
    for word in ("faster", "beats", "not distinguishable"):
        assert word not in verdict.sentence + verdict.lead
    assert verdicts.disturbance(cells_of(paths)) in verdict.sentence
    sound = made.write_speeds(tmp_path / "sound", free("overlap", 2), [100, 101])
    assert verdicts.disturbance(cells_of(sound)) == ""


def test_the_answer_says_how_much_of_the_wait_is_the_first_batch_of_an_epoch(tmp_path):
    of = free("overlap", 2)
    paths = made.write_speeds(tmp_path, of, [100, 101], wait_share=0.5)
    for path in paths:
        steps = made.steps(Record.read(path), 48, epoch_batches=16, start_ms=9_000.0)
        steps.to_parquet(path.with_suffix(".steps.parquet"))
    cells = cells_of(paths, steps_of(paths))
    (verdict,) = verdicts.answers(cells)
    assert cells["epoch_start_share"][0] > verdicts.MOSTLY_AT_START
    assert "of its wait falls on the first batch of an epoch (16 batches an epoch)" in verdict.sentence
    within = wording.count(cells["within_epoch_images_per_s"][0])
    assert f"within an epoch it runs at {within} images/s." in verdict.sentence
    assert "first batch" not in answer(paths)  # without step tables nothing is said of it


def test_what_sharing_the_cores_hides_is_named_on_a_cpu_only(tmp_path):
    of, ceiling = free("overlap"), free("replay")
    paths = made.write_speeds(tmp_path, of, [100, 100], wait_share=0.5, gpu=None)
    paths += made.write_speeds(tmp_path, ceiling, [400, 400], wait_share=0.0, gpu=None)
    paths += made.write_speeds(tmp_path, free("resident"), [390, 390], wait_share=0.0, gpu=None)
    said = verdicts.shared_cores(cells_of(paths))  # of the pipeline in which it shows most
    assert "On device cpu loading and training share the cores" in said
    assert "train takes 160 ms a step with overlap, 80 ms at its limit, a difference of +80 ms" in said
    gpu = made.write_speeds(tmp_path / "gpu", of, [100, 100])
    assert verdicts.shared_cores(cells_of(gpu)) == ""


def test_augments_that_do_other_things_to_the_pixels_do_not_compete(tmp_path):
    paths = []
    for loader, augment, speed in (
        *(("dali_gpu", "dali", 900), ("dali_gpu", "torch", 500)),
        *(("resident", "torch", 300), ("dataloader_sync", "cpu", 100)),
    ):
        of = made.cell(loader, "gpu_decoding", augment=augment)
        paths += made.write_speeds(tmp_path, of, [speed, speed + 1])
    augmented, alone = verdicts.answers(cells_of(paths))
    assert augmented.subject.split("; ")[0].endswith(", augmented")
    assert augmented.sentence.startswith("dali_gpu: 500 images/s")
    assert "Its range lies above those of both other pipelines" in augmented.sentence
    assert alone.sentence.startswith("1 task with one pipeline")  # of 900 images/s, on other pixels


def test_comparisons_beyond_the_first_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(verdicts, "MOST_ANSWERS", 1)
    paths = []
    for batch_size in (64, 128, 256, 512):
        for loader, speed in (("dataloader_sync", 100), ("resident", 300)):
            of = free(loader, **GPU, batch_size=batch_size)
            paths += made.write_speeds(tmp_path, of, [speed, speed + 1])
    told = verdicts.answers(cells_of(paths))
    assert [(one.headline, one.compares) for one in told] == [(True, True), (False, True), (False, False)]
    assert told[-1].sentence == "2 more comparisons: the leaderboard has the numbers."


def test_tasks_in_which_nothing_is_compared_are_one_sentence(tmp_path):
    paths = made.write_speeds(tmp_path, free("dataloader_sync", **GPU), [100, 101])
    paths += made.write_speeds(tmp_path, free("resident", **GPU), [300, 310])
    for batch_size in (64, 128):
        paths += made.write_speeds(tmp_path, free("resident", **GPU, batch_size=batch_size), [300, 310])
    paths += made.write_speeds(tmp_path, free("resident", **GPU, batch_size=512), [300, 310])
    paths += made.write_speeds(tmp_path, free("replay", **GPU, batch_size=512), [300, 310])
    told = verdicts.answers(cells_of(paths))
    assert [(one.headline, one.compares) for one in told] == [(True, True), (False, True), (False, False)]
    assert told[-1].sentence == (
        "2 tasks with one pipeline and no limit, where nothing is compared: the leaderboard has them."
    )


STEP = {"cuda_graphs": "CUDA graphs", "compile": "compiled"}  # axis -> how it is said


@pytest.mark.parametrize(("axis", "said"), STEP.items())
def test_an_answer_says_once_how_the_step_of_its_pipelines_ran(tmp_path, axis, said):
    def told(name, *on):
        """The answer to a task of two loaders of which those in `on` have the axis."""
        paths = []
        for loader, speeds in {"resident": [300, 310], "dali_gpu": [100, 101], "replay": [400, 410]}.items():
            cell = free(loader, **GPU, **{axis: loader in on})
            paths += made.write_speeds(tmp_path / name, cell, speeds)
        verdict = verdict_on(paths)
        return verdict.subject.split("; ")[0], verdict.lead.split(":")[0]

    task, label = told("none")
    assert said not in task + label
    assert told("all", "resident", "dali_gpu", "replay") == (f"{task}, {said}", "resident")
    assert told("pipelines", "resident", "dali_gpu") == (f"{task}, {said}", "resident")
    assert told("one", "resident", "replay") == (task, f"resident, {said}")


def test_pipelines_that_the_fastest_is_not_shown_to_beat_are_listed(tmp_path):
    speeds = {"dataloader_sync": [100, 120], "resident": [115, 130], "host_cache": [112, 131]}
    for number in (2, 3):
        of = dict(list(speeds.items())[:number])
        paths = []
        for loader, rates in of.items():
            cell = made.cell(loader, "tensor_cache")
            paths += made.write_speeds(tmp_path / str(number), cell, rates)
        others = "dataloader_sync" if number == 2 else "host_cache or dataloader_sync"
        assert f"It is not shown to be faster than {others}." in answer(paths)


@pytest.mark.parametrize(
    ("speeds", "how"), [([580, 620], "disturbed"), ([580], "disturbed"), ([220], "not distinguishable")]
)
def test_one_repeat_accuses_only_of_what_no_noise_explains(tmp_path, speeds, how):
    paths = made.write_speeds(tmp_path, free("overlap"), speeds)
    paths += made.write_speeds(tmp_path, free("replay"), [200])
    assert cells_of(paths).iloc[0]["against_ceiling"] == how


def test_loaders_of_decoded_images_say_how_large_these_are_where_windows_are_cut_out_of_them(tmp_path):
    recipe = {"recipe": {"short_side": 300}}
    for hyper, said in (({}, 0), (recipe, 1)):
        paths = []
        for loader in ("resident", "host_cache", "overlap"):
            of = free(loader, experiment="gpu_decoding", hyper=hyper)
            paths += made.write_speeds(tmp_path / str(said), of, [100])
        assert answer(paths).count("host_cache read a cache of decoded images with short sides of") == said


@pytest.mark.parametrize(("au", "kind"), [(2.78, "machine too busy"), (0.97, "balanced")])
def test_an_au_of_a_busy_machine_is_not_said_without_that(au, kind):
    told = verdicts.distance(pd.Series({"au": au, "limited_by": kind}))
    assert told.startswith(f"AU {au * 100:.1f} %")
    assert ("machine too busy" in told) is (kind == "machine too busy")

import pytest
import record_fixtures as made
from report_fixtures import cells_of
from test_verdicts import GPU, free

from gpufeed.report import tables, wording


def test_settings_of_workers_are_named_only_where_there_are_workers(tmp_path):
    paths = made.write_speeds(tmp_path, free("overlap"), [100])
    paths += made.write_speeds(tmp_path, free("overlap", 2, persistent_workers=True), [300])
    assert wording.labels(cells_of(paths)).tolist() == ["overlap", "overlap, 2 workers"]
    drawn = cells_of(paths).assign(loader="webdataset_resampled")
    assert wording.labels(drawn)[1] == "webdataset_resampled, 2 workers, with replacement"
    paths += made.write_speeds(tmp_path, free("overlap", 4), [400])
    assert wording.labels(cells_of(paths)).tolist() == [
        "overlap",
        "overlap, 2 workers, persistent",
        "overlap, 4 workers, restarted",
    ]


def test_the_process_of_spdls_threads_is_said(tmp_path):
    paths = made.write_speeds(tmp_path, free("spdl", 8), [100])
    paths += made.write_speeds(tmp_path, free("spdl", 8, persistent_workers=True), [300])
    assert wording.labels(cells_of(paths)).tolist() == [
        "spdl, 8 threads, in the training process",
        "spdl, 8 threads, in a process of their own",
    ]


@pytest.mark.parametrize(
    ("recipe", "augment", "said"),
    [
        ("crop_flip", "none", "batch 32, not augmented,"),
        ("crop_flip", "torch", "batch 32, augmented,"),
        ("random_resized_crop", "none", "batch 32, random resized crops,"),
        ("random_resized_crop", "torch", "batch 32, random resized crops, augmented,"),
    ],
)
def test_a_task_says_what_happens_to_the_pixels(tmp_path, recipe, augment, said):
    of = free("resident", **{**GPU, "augment": augment}, recipe=recipe, cuda_graphs=True)
    assert said in wording.task(cells_of(made.write_speeds(tmp_path, of, [300])))


def test_a_task_names_how_many_devices_trained(tmp_path):
    cells = [free("resident", **GPU, trainer="lightning", devices=count) for count in (1, 2)]
    paths = [path for cell in cells for path in made.write_speeds(tmp_path, cell, [300, 310])]
    subjects = sorted(wording.task(rows) for rows in tables.tasks(cells_of(paths)))
    assert subjects[0].replace("batch 32, ", "batch 32, 2 devices, ") != subjects[0]
    assert sum("2 devices" in subject for subject in subjects) == 1


def test_what_most_steps_have_is_said_of_the_task_and_the_others_are_named(tmp_path):
    paths = []
    for loader, graphs in (("resident", True), ("dali_gpu", True), ("overlap", False)):
        paths += made.write_speeds(tmp_path, free(loader, **GPU, cuda_graphs=graphs), [100])
    (rows,) = tables.tasks(cells_of(paths))
    assert wording.labels(rows).tolist() == ["resident", "dali_gpu", "overlap, eager"]
    assert wording.task(rows).endswith(", CUDA graphs")
    few = rows[1:].assign(cuda_graphs=[False, True])
    assert wording.labels(few).tolist() == ["dali_gpu, eager", "overlap, CUDA graphs"]
    assert "CUDA graphs" not in wording.task(few)


@pytest.mark.parametrize(("share", "said"), [(0.0, "without JPEG engines"), (0.5, "50% of the files")])
def test_a_share_of_the_jpeg_engines_is_said(tmp_path, share, said):
    paths = made.write_speeds(tmp_path, free("dali_gpu", **GPU, hw_decoder_load=share), [100])
    assert said in wording.labels(cells_of(paths)).iloc[0]


def test_who_decodes_in_the_workers_is_said_where_it_differs(tmp_path):
    paths = []
    for decoder in ("pillow", "simplejpeg"):
        paths += made.write_speeds(tmp_path, free("dataloader_workers", 2, **GPU, decoder=decoder), [100])
    paths += made.write_speeds(tmp_path, free("fastai", 2, **GPU, decoder="simplejpeg"), [100])
    names = [f"dataloader_workers, 2 workers, decoded by {name}" for name in ("pillow", "simplejpeg")]
    assert wording.labels(cells_of(paths)).tolist() == [*names, "fastai, 2 workers"]


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.0949, "9.5 %"), (0.1, "10 %"), (-0.05, "-5.0 %"), (-0.1, "-10 %"), (None, "-"), (float("nan"), "-")],
)
def test_a_percentage_has_a_decimal_below_ten(share, text):
    assert wording.percent(share) == text

"""Who leads a task, who is not told apart from it, and whose numbers are of other GPUs."""

import copy

import ceilings_fixtures as made

from gpufeed.report.sections.ceilings_rows import headline, mixed_origins, named, origin


def measured(wait_s, compute_s=1.0, jitter=0.0, commit=None, count=8):
    found = copy.deepcopy(made.document(made.pairs(wait_s, count, compute_s=compute_s, jitter=jitter)))
    found["environment"]["commit"] = commit or found["environment"]["commit"]
    return found


def lead(*rows):
    """What the headline says before the verdict."""
    told, kind, _ = headline(rows).partition(". Compute-bound: the GPU waits ")
    assert kind
    return told


def test_the_first_has_its_rate_and_the_next_one_with_its_distance():
    assert lead(("a", measured(0.006)), ("b, 4 workers", measured(0.014)), ("c", measured(1.0))) == (
        "a: AU 99.4 %, 994 images/s, the highest AU of 3 pipelines; "
        "next b, 4 workers 98.6 %, 0.8 points below"
    )
    assert lead(("a", measured(0.006))) == "a: AU 99.4 %, 994 images/s"


def test_overlapping_intervals_crown_nobody():
    wide = [measured(wait, jitter=0.01) for wait in (0.004, 0.005, 0.006)]
    rows = [(name, found) for name, found in zip(("a", "b, 4 workers", "c"), wide, strict=True)]
    assert lead(*rows, ("d", measured(1.0))) == (
        "a: AU 99.1 %, 991 images/s, not told apart from b, 4 workers 99.0 % or c 98.9 %; "
        "next d 50.0 %, 49 points below"
    )
    few = measured(0.02, count=4)
    assert lead(("a", measured(0.006)), ("b", few)).endswith(", not told apart from b 98.0 %")


def test_a_pipeline_of_a_busy_moment_leads_no_task():
    busy, sound = measured(-0.64), measured(0.006)
    told = headline(named([busy, sound]))
    assert told.startswith("overlap")
    assert "AU 99.4 %, 994 images/s" in told
    assert "278" not in told.partition(". ")[0]
    alone = headline(named([busy]))
    assert "machine too busy" in alone.lower()


def test_more_images_per_second_of_another_pipeline_are_told():
    first, cheaper = measured(0.001), measured(0.02, compute_s=0.9)
    assert lead(("a", first), ("b", cheaper)).endswith("2.1 points below; most images/s: b, 1,087")
    abroad = measured(0.02, compute_s=0.97, commit="f" * 40)
    assert lead(("a", first), ("b", abroad)).endswith(
        "; most images/s: b, 1,010, on another GPU or by another version of gpufeed"
    )
    close = measured(0.02, compute_s=0.97, jitter=0.05)
    assert "most images/s" not in lead(("a", measured(0.001, jitter=0.02)), ("b", close))


def test_graphs_that_the_device_decided_on_are_called_what_they_came_to():
    cell, resolved = {"cuda_graphs": "auto"}, {"device": "cuda", "precision": "bf16", "threads": 16}
    pair = made.pairs(0.1)
    rows = [made.document(pair, cell=cell, resolved=resolved | {"cuda_graphs": on}) for on in (True, False)]
    assert sorted(name for name, _ in named(rows)) == ["overlap, CUDA graphs", "overlap, eager"]


def test_rows_of_several_gpus_or_versions_say_so():
    one = ("a, 4 workers", measured(0.1))
    assert mixed_origins([one, ("b", measured(0.2))]) == ""
    place = origin(one[1])[0]
    told = mixed_origins([one, ("b", measured(0.2, commit="f" * 40)), ("c", measured(0.3))])
    assert "of several GPUs or versions" in told
    assert f" on {place}: a, 4 workers; c. fffffffff on {place}: b." in told

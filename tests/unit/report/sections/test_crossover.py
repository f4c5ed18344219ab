"""The sentence about GPU and cores, on made-up rates whose answer is known."""

import pandas as pd
import pytest

from gpufeed.report.sections import crossover, decoding_tables
from gpufeed.report.sections.crossover import Rate, answer, cores_worth, say_worth, sizes


def row(decoder, side, rate, kind="cpu", cores=1, spread=0.01, n=5, **more):
    """A point whose passes spread by +-`spread` around its median."""
    of = {"decoder": decoder, "kind": kind, "cores": cores, "main": True, "cache": "warm", "status": "done"}
    images = {"dataset": f"mosaic_{side}", "height": side, "width": side, "side": float(side)}
    rates = {"images_per_s_min": rate * (1 - spread), "images_per_s_max": rate * (1 + spread)}
    rates |= {"n": n, "images_per_s": rate}
    node = {"device": "cuda", "hardware": "NVIDIA H200", "node_cores": 16}
    return dict.fromkeys(decoding_tables.COLUMNS) | of | images | rates | node | more


def gpu(side, rate, decoder="torchvision_cuda", **more):
    return row(decoder, side, rate, "gpu", cores=16, **more)


def cpus(side, one_core, counts=(1, 4, 16), decoder="simplejpeg", **more):
    """Rates that grow with the cores."""
    return [row(decoder, side, one_core * cores, cores=cores, **more) for cores in counts]


def table(*rows):
    return pd.DataFrame(rows, columns=decoding_tables.COLUMNS)


CROSSING = (
    *cpus(64, 20_000), gpu(64, 30_000), gpu(64, 25_000, "nvimgcodec"),
    *cpus(256, 2_000), gpu(256, 12_000),
    *cpus(1024, 100), gpu(1024, 2_000, "nvimgcodec"), gpu(1024, 900),
)  # fmt: skip


def test_a_crossing_is_told_for_each_core_count():
    found = answer(table(*CROSSING))
    assert found[0] == (
        "On this node (NVIDIA H200, 16 cores), decoding single JPEGs on the GPU pays from 1024 pixels a side "
        "on against 16 cores; from 256 pixels a side on against 4 cores; at every size measured against 1 "
        "core. At 64 and 256 pixels a side, 16 cores with simplejpeg are faster."
    )
    assert found[1] == (
        "By pixels a side, the best GPU decoder is worth 1.5 cores at 64, 6.0 cores at 256 "
        "and more than 16 cores at 1024."
    )
    assert len(found) == 2


def test_the_best_decoder_of_each_kind_speaks_for_it():
    slow = [row("pillow", side, 10, cores=cores) for side in (64, 256, 1024) for cores in (1, 4, 16)]
    assert answer(table(*CROSSING, *slow)) == answer(table(*CROSSING))
    found = sizes(table(*CROSSING, *slow))
    assert [size.gpu.decoder for size in found] == ["torchvision_cuda", "torchvision_cuda", "nvimgcodec"]


def test_no_crossover():
    never = answer(table(*cpus(64, 20_000), gpu(64, 100), *cpus(256, 2_000), gpu(256, 50)))
    assert "pays at no size measured against 16, 4 and 1 cores." in never[0]
    assert "less than 1 core at 64 and less than 1 core at 256" in never[1]
    always = answer(table(*cpus(64, 20), gpu(64, 1000), *cpus(256, 2), gpu(256, 500)))
    assert "pays at every size measured against 16, 4 and 1 cores." in always[0]
    assert "are faster" not in always[0]


def test_a_gpu_that_wins_on_small_images_only_is_no_threshold():
    found = answer(table(*cpus(64, 20), gpu(64, 1000), *cpus(256, 2_000), gpu(256, 500)))
    assert "pays only at 64 pixels a side against 16, 4 and 1 cores" in found[0]
    assert "from" not in found[0]


def test_one_core_count_and_one_size():
    found = answer(table(*cpus(64, 20, counts=[1]), gpu(64, 1000)))
    assert "pays at 64 pixels a side, the only size measured, against 1 core." in found[0]
    assert "more than 1 core at 64" in found[1]
    found = answer(table(*cpus(64, 2000, counts=[1]), gpu(64, 1000)))
    assert "At 64 pixels a side, 1 core with simplejpeg is faster." in found[0]


def test_ranges_that_touch_are_not_told_apart():
    found = answer(table(*cpus(64, 1000, counts=[1], spread=0.2), gpu(64, 1300, spread=0.2)))
    assert "pays at no size measured against 1 core." in found[0]
    assert "faster" not in found[0]
    assert any("cannot be told apart at 64 pixels a side against 1 core" in sentence for sentence in found)


def test_one_pass_is_no_evidence():
    found = answer(table(*cpus(64, 10, counts=[1], n=1, spread=0), gpu(64, 1300, n=1, spread=0)))
    assert "pays at no size measured" in found[0]
    assert any("cannot be told apart" in sentence for sentence in found)


def test_without_gpu_rows_nothing_is_claimed_of_it():
    found = answer(table(*cpus(64, 20_000, device="cpu", hardware="Some CPU")))
    assert "no GPU decoder was measured, so it cannot be said when the GPU pays" in found[0]
    assert "simplejpeg with 320,000 images/s at 64 pixels a side (16 cores)" in found[0]
    assert len(found) == 1


def test_without_cpu_rows_nothing_is_compared():
    found = answer(table(gpu(64, 1000)))
    assert "no CPU decoder was measured" in found[0]


def test_nothing_measured():
    failed = {**gpu(64, 1000), "status": "failed", "n": 0}
    for rows in (table(), table(failed)):
        assert answer(rows) == ["No decoder has a finished measurement, so there is nothing to compare."]


def test_strips_without_the_gpu_are_compared_with_single_files_on_as_many_cores():
    on_cores = [row("strips_cpu", 64, 25_000 * cores, "strips_cpu", cores) for cores in (1, 4, 16)]
    found = answer(table(*CROSSING, row("strips", 64, 1_200_000, "strips", 16), *on_cores))
    assert found[-1] == (
        "Without the GPU, strips on 16 cores reach 400,000 images/s there, faster than simplejpeg on 16 "
        "cores (1.25x)."
    )


def test_strips_change_it_by_the_true_ratio():
    strips = [row("strips", side, rate, "strips", 16) for side, rate in ((64, 1_200_000), (256, 9_000))]
    found = answer(table(*CROSSING, *strips))
    assert found[-1] == (
        "Strips change this: decoded on the GPU they are faster than every decoder of single files only "
        "at 64 pixels a side; at 64 pixels a side they reach 1,200,000 images/s, 40.0x torchvision_cuda on "
        "single files and 3.75x simplejpeg on 16 cores."
    )


def test_strips_that_win_nowhere_change_nothing():
    found = answer(table(*CROSSING, row("strips", 64, 1_000, "strips", 16)))
    assert found[-1] == (
        "Strips, decoded on the GPU, are faster than the best decoder of single files at no size measured."
    )


def test_strips_on_cores():
    strips = row("strips", 64, 1_000_000, "strips", 16, device="cpu")
    found = answer(table(*cpus(64, 20_000, device="cpu"), strips))
    assert "decoded on 16 cores they are faster" in found[-1]
    assert "3.12x simplejpeg on 16 cores" in found[-1]


def test_other_batches_and_cold_caches_do_not_count():
    more = [
        gpu(64, 900_000, batch_size=1024, main=False),
        gpu(64, 900_000, cache="cold"),
        {**gpu(64, 900_000), "status": "failed"},
    ]
    assert answer(table(*CROSSING, *more)) == answer(table(*CROSSING))


@pytest.mark.parametrize(
    ("rate", "sign", "cores", "words"),
    [
        (50, "<", 1, "less than 1 core"),
        (100, "=", 1.0, "1.0 cores"),
        (250, "=", 2.5, "2.5 cores"),
        (400, "=", 4.0, "4.0 cores"),
        # eight cores are no faster than four, so the way from 4 to 16 begins at 8
        (700, "=", 12.0, "12 cores"),
        (1001, ">", 16, "more than 16 cores"),
    ],
)
def test_worth_in_cores(rate, sign, cores, words):
    speeds = {1: 100.0, 4: 400.0, 16: 1000.0, 8: 350.0}
    cpu = {cores: Rate("a", speed, speed, speed, 5) for cores, speed in speeds.items()}
    found = cores_worth(Rate("b", float(rate), rate, rate, 5), cpu)
    assert found == (sign, pytest.approx(cores))
    assert say_worth(found) == words


def test_worth_without_the_one_or_the_other():
    assert cores_worth(Rate("b", 1.0, 1, 1, 5), {}) is None
    assert say_worth(None) == "-"
    assert crossover.rival(crossover.Size(64, "a", None, None, "", {}, {})) is None

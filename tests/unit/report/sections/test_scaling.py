"""What more devices bring: which cells are one training, speed-up and efficiency with their ranges."""

import pytest
import record_fixtures as made
from report_fixtures import cells_of

from gpufeed.report.sections import scaling


def cell(**axes):
    return made.cell("resident", trainer="lightning", precision="bf16", **axes)


def written(results, speeds, gpu=made.H200, **axes):
    """Records of {(devices, nodes): images a second of each repeat}."""
    paths = []
    for (devices, nodes), rates in speeds.items():
        of = cell(devices=devices, nodes=nodes, **axes)
        paths += made.write_speeds(results, of, rates, gpu=gpu)
    return paths


def found_in(paths):
    return scaling.section(cells_of(paths))


def test_speed_up_and_efficiency_are_over_the_fewest_devices(tmp_path):
    speeds = {(4, 1): [3600, 3800], (1, 1): [1000, 1000], (2, 1): [1900, 1980]}
    (series,) = found_in(written(tmp_path, speeds, batch_size=512))
    one, two, four = series["rows"]
    assert [row["devices"] for row in series["rows"]] == ["1 GPU", "2 GPUs", "4 GPUs"]
    assert [row["images_a_step"] for row in series["rows"]] == ["512", "1,024", "2,048"]
    assert (one["speed_up"], one["efficiency"], one["words"]) == (None, None, "")
    assert (two["speed_up"], two["efficiency"]) == (pytest.approx(1.94), pytest.approx(0.97))
    assert four["words"] == "3.70x (range 3.60x to 3.80x, n = 2)"
    assert four["efficiency_words"] == "92.5 % (90.0 to 95.0)"
    assert (four["rate"], four["rate_range"], four["n"]) == ("3,700", "3,600 to 3,800", 2)
    assert series["sentence"].startswith("Beside 1 GPU, 4 GPUs train 3.70x (range 3.60x to 3.80x, n = 2)")
    assert "an efficiency of 97.0 % (95.0 to 99.0)." in series["sentence"]
    assert series["title"].startswith("resident; simple_cnn on ")
    assert "device" not in series["title"]


def test_the_fewest_may_be_several_and_nodes_count(tmp_path):
    (series,) = found_in(written(tmp_path, {(2, 1): [2000], (2, 4): [7000]}))
    few, many = series["rows"]
    assert (few["devices"], many["devices"]) == ("2 GPUs", "8 GPUs on 4 nodes")
    assert (many["speed_up"], many["efficiency"]) == (pytest.approx(3.5), pytest.approx(0.875))
    assert (many["words"], many["efficiency_words"]) == ("3.50x (n = 1)", "87.5 %")  # no spread is known
    assert "device" not in series["title"]


def test_of_as_many_the_same_one_is_the_base_whatever_came_first(tmp_path):
    speeds = {(1, 2): [1800, 1810], (2, 1): [1900, 1910], (2, 2): [3700, 3720]}
    for order in (list(speeds), list(speeds)[::-1]):
        (series,) = found_in(written(tmp_path / str(order[0]), {key: speeds[key] for key in order}))
        devices = [row["devices"] for row in series["rows"]]
        assert devices == ["2 GPUs", "2 GPUs on 2 nodes", "4 GPUs on 2 nodes"]
        assert [row["words"] for row in series["rows"]][:2] == ["", ""]  # nothing is gained by none more
        assert series["rows"][2]["efficiency"] == pytest.approx(3710 / 1905 / 2)
        assert series["sentence"].count("efficiency") == 1


def test_other_cores_and_other_cards_are_told(tmp_path):
    paths = []
    for devices, cores in ((1, 16), (2, 64)):
        for repeat, rate in enumerate((1000 * devices, 1010 * devices)):
            one = made.record(cell(devices=devices), repeat, rate)
            paths += made.write(tmp_path, made.elsewhere(one, {"uuid": f"GPU-{cores}"}, cores_allowed=cores))
    (series,) = found_in(paths)
    assert [row["cores"] for row in series["rows"]] == ["16", "64"]
    assert series["sentence"].endswith(" CPU cores of a node beside them: 16 and 64.")
    assert "on other cards of this model" in series["rows"][1]["words"]


def test_a_cell_that_had_to_take_a_smaller_batch_is_none_of_those_that_have_it(tmp_path):
    paths = written(tmp_path, {(1, 1): [1100], (2, 1): [2100]}, batch_size=512)
    one = made.record(cell(batch_size=1024), images_per_s=1000)
    one.resolved["batch_size"] = 512
    (series,) = found_in([*paths, *made.write(tmp_path, one)])
    assert [row["rate"] for row in series["rows"]] == ["1,100", "2,100"]


def test_other_trainings_are_no_part_of_it(tmp_path):
    paths = written(tmp_path / "a", {(1, 1): [1000]}, batch_size=64)
    paths += written(tmp_path / "b", {(2, 1): [1900]}, batch_size=32)  # the images a step of one with 64
    assert found_in(paths) == []
    assert found_in(written(tmp_path / "c", {(1, 1): [1000, 1100]})) == []
    assert found_in([]) == []


def test_processes_on_the_cpu_are_not_called_gpus(tmp_path):
    (series,) = found_in(written(tmp_path, {(1, 1): [100], (2, 1): [150]}, gpu=None))
    assert [row["devices"] for row in series["rows"]] == ["1 process", "2 processes"]

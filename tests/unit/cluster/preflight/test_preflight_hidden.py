"""GPUs that the text of slurm_extra asks for, in each way in which sbatch takes an option."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufeed.cluster.preflight.asked_plan import Ask
from gpufeed.cluster.preflight.sbatch_options import GPUS_COUNTED_BY


def ask(extra: object, **resources) -> Ask:
    return Ask("gate", "", {"slurm_extra": extra, **resources}, own={"gpu": 1})


@pytest.mark.parametrize(
    ("extra", "gpus"),
    [
        ("--gpus=2", 2),
        ("--gpus 2", 2),
        ("-G 2", 2),
        ("-G2", 2),
        ("-GH200:2", 2),
        ("--gpus-per-node=2", 6),
        ("--gpus-per-node H200:2", 6),
        ("--gres=gpu:H200:2", 6),
        ("--gres=gpu", 3),
        ("--gres=tmp:9,gpu:2", 6),
        ("--gres=tmp:9", 0),
        ("--gpus-per-task=2", 12),
        ("--gpus-per-socket=2 --sockets-per-node=2", 12),
        ("--gpus-per-socket=2 --sockets-per-node=some", 6),
        ("--gpus=H200:2,A100:1", 3),
        ("--gpus=4 --gpus-per-node=2", 6),  # two ways of one request: the larger one
        ("--gpus-per-node=H200:0", 0),
        ("--mail-user='a b' --gpus=2", 2),
        ("--mail-user='a b --gpus=2", 2),  # a quote that is never closed
        ("--exclude=node-G2 --gpu-bind=closest --gpus-nope=3", 0),
        ("", 0),
        (None, 0),
    ],
)
def test_gpus_of_a_job_on_three_nodes_with_six_tasks(extra, gpus):
    assert ask(extra, nodes=3, tasks=6).gpus == gpus


def test_tasks_of_each_node_count():
    assert ask("--gpus-per-task=2", nodes=3, tasks_per_node=2).gpus == 12
    assert ask("--gpus-per-task=2").gpus == 2


def test_the_largest_of_several_requests_counts():
    assert ask("-G 4", gpu=1, gpu_model="H200").gpus == 4
    assert ask("-G 4", gpu=8, gpu_model="H200").gpus == 8
    assert ask("-G 4", gres="gpu:H200:8").gpus == 8


def test_models_of_slurm_extra_count():
    assert ask("--gpus-per-node=A100:1", gpu=1, gpu_model="H200").models == {"A100", "H200"}
    assert ask("--gpus-per-node=A100:0", gpu=1, gpu_model="H200").models == {"H200"}
    assert ask("-G A100:1,V100:1").models == {"A100", "V100"}
    assert ask("-G 1").models == {""}


@given(
    st.sampled_from(sorted(GPUS_COUNTED_BY)),
    st.sampled_from(["", "H200:", "RTX_6000:"]),
    st.integers(1, 64),
    st.sampled_from([" ", "="]),
    st.sampled_from(["", "--exclusive", "--mail-user=a --nice=5"]),
)
def test_a_request_is_found_however_it_is_written(option, model, number, between, other):
    behind = "gpu:" if option == "--gres" else ""
    between = " " if option == "-G" else between
    for extra in (
        f"{option}{between}{behind}{model}{number} {other}",
        f"{other} {option} {behind}{model}{number}",
    ):
        assert ask(extra).hidden == [(option, model.rstrip(":"), number)]
        assert ask(extra).gpus == number


@given(
    st.text()
    | st.lists(st.sampled_from([*GPUS_COUNTED_BY, "=", ":", ",", " ", "'", '"', "gpu", "9"])).map("".join)
)
def test_no_text_is_too_wild(extra):
    assert ask(extra).gpus >= 0
    assert ask(extra).models

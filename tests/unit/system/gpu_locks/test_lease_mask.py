"""Which GPUs CUDA_VISIBLE_DEVICES leaves, for masks of any form."""

import re

import pytest
import torch.cuda
from hypothesis import example, given
from hypothesis import strategies as st
from lease_fixtures import parts, planted, uuid

from gpufeed.system.gpu_locks.gpu_listing import visible

FOUR = planted(4)
MIXED = planted(4, "ba")  # an accelerator is the second and the fourth


def never():
    raise AssertionError("CUDA's order is asked for where all GPUs are of one kind")


def numbers(mask, gpus=FOUR, order=never):
    return [gpu.number for gpu in visible(mask, gpus, order)]


@pytest.mark.parametrize(
    ("mask", "left"),
    [
        (None, [0, 1, 2, 3]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),  # what Slurm has set for a job without a GPU
        ("2,1", [2, 1]),
        (" 2 , 1 ", [2, 1]),
        ("0,2,-1,1", [0, 2]),
        ("0,9,1", [0]),
        ("1,1", []),
        ("1gpu,2", [1, 2]),
        (uuid(3), [3]),
        (f"{uuid(3)},{uuid(0)}", [3, 0]),
        ("GPU-00000002", [2]),
        ("GPU-0", []),  # four begin so
        (f"{uuid(3)},GPU-none,{uuid(0)}", [3]),
        (f"{uuid(3)},{uuid(3)}", []),
        (f"{uuid(3)},GPU-00000003", []),
        (f"1,{uuid(3)}", [1]),
        (f"{uuid(3)},1", [3]),
    ],
)
def test_a_mask_leaves_what_cuda_leaves(mask, left):
    assert numbers(mask) == left


masks = st.one_of(
    st.text(),
    st.lists(
        st.one_of(
            st.integers(-2, 6).map(str),
            st.sampled_from(
                [gpu.uuid for gpu in FOUR] + ["GPU-", "MIG-", "GPU-00000001", "+1", "1x", "", " 3"]
            ),
            st.text(max_size=3),
        )
    ).map(",".join),
)


@given(mask=masks, gpus=st.sampled_from([[], FOUR, MIXED, parts(0, 3), [*FOUR[:2], *parts(2, 2)]]))
def test_any_mask_leaves_gpus_of_the_node_each_once(mask, gpus):
    order = [gpu.uuid[4:] for gpu in reversed(gpus)]
    found = visible(mask, gpus, lambda: order)
    assert set(found) <= set(gpus)
    assert len(set(found)) == len(found)


def seen_by_torch(mask: str) -> list[int]:
    """The same by torch, which reads the variable as the driver does, from what it has of it."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", mask)
        parsed = torch.cuda._parse_visible_devices()
    if parsed and isinstance(parsed[0], str):
        return torch.cuda._transform_uuid_to_ordinals(parsed, [gpu.uuid for gpu in FOUR])
    there = [index < len(FOUR) for index in parsed]
    return parsed[: there.index(False)] if False in there else parsed


entry = st.one_of(st.integers(-3, 6).map(str), st.from_regex(r"\A[0-9]{1,2}[a-z]?\Z"))
name = st.one_of(st.sampled_from([gpu.uuid for gpu in FOUR]), st.from_regex(r"\AGPU-0000000[0-5]\Z"))


@given(
    mask=st.one_of(st.lists(entry, max_size=5), st.lists(st.one_of(name, entry), min_size=1)).map(",".join)
)
@example(mask="0,9,0")
@example(mask="0,-1,0")
def test_torch_reads_a_mask_alike(mask):
    assert numbers(mask) == seen_by_torch(mask)


def test_indices_are_cudas_where_kinds_differ():
    order = [MIXED[number].uuid[4:] for number in (1, 3, 0, 2)]
    assert numbers("0,2", MIXED, lambda: order) == [1, 0]
    assert numbers("0,2", MIXED, lambda: []) == [0, 2]  # CUDA does not answer
    assert numbers(f"{uuid(2)},{uuid(1)}", MIXED, never) == [2, 1]


def test_without_a_mask_one_kind_is_left_that_of_cudas_first():
    assert numbers(None, MIXED, lambda: [MIXED[3].uuid[4:], MIXED[0].uuid[4:]]) == [1, 3]
    assert numbers(None, MIXED, lambda: []) == [0, 2]


def test_parts_of_a_gpu_are_named_by_their_own_uuid_or_their_older_name():
    here = [*planted(1), *parts(1, 3, planted(1)[0].kind)]
    assert visible(here[2].uuid, here, never) == [here[2]]
    assert visible(f"{here[3].names[0]},{here[1].uuid}", here, never) == [here[3], here[1]]
    assert visible("1", here, never) == here[1:]
    assert visible("MIG-0", here, never) == []
    assert all(re.fullmatch(r"MIG-GPU-[0-9a-f-]{36}/\d/0", gpu.names[0]) for gpu in here[1:])

"""Which GPUs CUDA_VISIBLE_DEVICES leaves, for masks of any form."""

import pytest
import torch.cuda
from hypothesis import example, given
from hypothesis import strategies as st
from lease_fixtures import parts, planted, uuid

from gpufeed.system.gpu_locks.gpu_listing import visible

FOUR = planted(4)
MIXED = planted(4, "ba")  # the second and the fourth have more memory


def numbers(mask, gpus=FOUR):
    return [gpu.number for gpu in visible(mask, gpus)]


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
        ("1gpu,2", []),
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
    found = visible(mask, gpus)
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


entry = st.integers(-3, 12).map(str)
name = st.one_of(st.sampled_from([gpu.uuid for gpu in FOUR]), st.from_regex(r"\AGPU-0000000[0-5]\Z"))


@given(
    mask=st.one_of(
        st.lists(entry, max_size=5, unique=True), st.lists(st.one_of(name, entry), min_size=1, unique=True)
    ).map(",".join)
)
@example(mask="1,1")
def test_torch_reads_a_mask_alike(mask):
    assert numbers(mask) == seen_by_torch(mask)


def test_numbers_are_those_of_nvidia_smi_where_kinds_differ():
    assert numbers("0,2", MIXED) == [0, 2]
    assert numbers(f"{uuid(2)},{uuid(1)}", MIXED) == [2, 1]


def test_without_a_mask_the_kind_with_the_most_memory_is_left():
    assert numbers(None, MIXED) == [1, 3]
    assert numbers(None, planted(3, "ab")) == [0, 2]
    assert numbers(None, []) == []


def test_parts_of_a_gpu_are_named_by_their_own_uuid():
    here = [*planted(1), *parts(1, 3, planted(1)[0].kind)]
    assert visible(here[2].uuid, here) == [here[2]]
    assert visible(f"{here[3].uuid},{here[1].uuid}", here) == [here[3], here[1]]
    assert visible("1", here) == here[1:]
    assert visible("MIG-0", here) == []

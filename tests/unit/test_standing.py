"""How two cells stand to each other, and whether their GPUs are told apart."""

from dataclasses import replace

import pytest
import record_fixtures as made

from gpufeed.analysis import records, tables
from gpufeed.analysis.standing import standing


def row(results, loader, rates, cards):
    """A row of the table of cells: a rate a repeat, on the GPU of that UUID, None for one that tells none."""
    of = made.cell(loader, "hybrid_gpu")
    repeats = []
    for number, (rate, card) in enumerate(zip(rates, cards, strict=True)):
        one = made.record(of, number, rate)
        gpu = one.environment["gpu"] | {"uuid": card}
        repeats.append(replace(one, environment=one.environment | {"gpu": gpu}))
    (found,) = tables.cells(records.read_records(made.write(results, *repeats))).to_dict("records")
    return found


@pytest.mark.parametrize(
    ("cards", "others", "told"),
    [
        (["GPU-a", "GPU-a"], ["GPU-b", "GPU-b"], True),
        (["GPU-a", "GPU-b"], ["GPU-b", "GPU-c"], False),
        (["GPU-a", "GPU-a"], ["GPU-b", None], False),
        ([None, None], [None, None], False),
    ],
)
def test_a_ratio_across_gpus_says_so(tmp_path, cards, others, told):
    fast, slow = (
        row(tmp_path, name, rates, of)
        for name, rates, of in (("overlap", [200, 201], cards), ("resident", [100, 101], others))
    )
    found = standing(fast, slow)
    assert (found.how, found.other_cards) == ("range above", told)
    assert found.words == (
        f"2.00x (range 1.98x to 2.01x{', on other cards of this model' if told else ''}, n = 2)"
    )

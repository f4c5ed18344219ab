"""How two cells stand to each other, and whether their GPUs are told apart."""

import pytest
import record_fixtures as made
from report_fixtures import cells_of

from gpufeed.report.significance import standing


def row(results, loader, rates, cards):
    """A row of the table of cells: a rate a repeat, on the GPU of that UUID, None for one that tells none."""
    of = made.cell(loader, "hybrid_gpu")
    repeats = [
        made.elsewhere(made.record(of, number, rate), {"uuid": card})
        for number, (rate, card) in enumerate(zip(rates, cards, strict=True))
    ]
    (found,) = cells_of(made.write(results, *repeats)).to_dict("records")
    return found


OTHER, PARTLY = "other cards of this model", "partly other cards of this model"


@pytest.mark.parametrize(
    ("cards", "others", "told"),
    [
        (["GPU-a", "GPU-a"], ["GPU-b", "GPU-b"], OTHER),
        (["GPU-a", "GPU-b"], ["GPU-b", "GPU-c"], PARTLY),
        (["GPU-a", "GPU-b"], ["GPU-b", "GPU-a"], ""),
        (["GPU-a", "GPU-a"], ["GPU-b", None], ""),
        ([None, None], [None, None], ""),
    ],
)
def test_a_ratio_across_gpus_says_so(tmp_path, cards, others, told):
    fast = row(tmp_path, "overlap", [200, 201], cards)
    found = standing(fast, row(tmp_path, "resident", [100, 101], others))
    assert (found.how, found.other_cards) == ("range above", told)
    assert found.words == f"2.00x (range 1.98x to 2.01x{', on ' + told if told else ''}, n = 2)"


@pytest.mark.parametrize(
    ("cards", "others", "how", "told"),
    [
        ("aaaaaa", "aaaaaa", "faster", ""),
        ("abcdab", "bcdabc", "range above", ""),  # each cell on the same four cards, in no block together
        ("aaabbb", "aaaaaa", "range above", PARTLY),
        ("aaaaaa", "bbbbbb", "range above", OTHER),
    ],
)
def test_six_repeats_are_faster_only_on_one_gpu(tmp_path, cards, others, how, told):
    rates = [100, 101, 102, 103, 104, 105]
    fast = row(tmp_path, "overlap", [2 * rate for rate in rates], [f"GPU-{card}" for card in cards])
    found = standing(fast, row(tmp_path, "resident", rates, [f"GPU-{card}" for card in others]))
    assert (found.how, found.other_cards) == (how, told)
    assert (found.ratio.interval is not None) == (how == "faster")
    assert found.why_no_more == (
        "repeats on several GPUs say no more" if found.ratio.n >= 6 else "fewer than 6 repeats say no more"
    )

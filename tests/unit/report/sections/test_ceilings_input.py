"""An input that alone is no faster than training with it is marked."""

import ceilings_fixtures as made
import pytest

from gpufeed.report.sections import ceilings
from gpufeed.report.sections.ceilings_verdict import ALIKE, BELOW, input_mark, input_sentence


def measured(input_s, count=8, jitter=0.0, wait_s=1.0):
    return made.document(made.pairs(wait_s, count, jitter=jitter), input_s=input_s)


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (measured(1.0), ""),
        (measured(2.0), ALIKE),
        (measured(2.05, jitter=0.1), ALIKE),  # within the interval of 476 to 500 images/s
        (measured(2.05, count=4, jitter=0.1), ALIKE),  # within the range
        (measured(2.2, jitter=0.1), BELOW),
    ],
)
def test_the_mark_goes_by_intervals_and_without_them_by_ranges(found, told):
    assert input_mark(found) == told
    line = ceilings.line("a", found)
    assert line["input"] == told
    assert ("The input alone" in line["evidence"]) == bool(told)
    (rate,) = (row.split(" | ")[6] for row in ceilings.markdown([line]).splitlines() if "| a |" in row)
    assert rate == (f"{line['rates'][-1]} ({told})" if told else line["rates"][-1])


def test_the_sentence_has_both_rates_and_says_who_is_the_limit():
    assert input_sentence(measured(2.05, jitter=0.1)) == (
        "The input alone is the limit: its 488 images/s (488 to 488) are not told apart from 488 images/s "
        "(476 to 500) end to end."
    )
    assert input_sentence(measured(2.2)) == (
        "The input alone, 455 images/s (455 to 455), lies below 500 images/s (500 to 500) end to end: it is "
        "the limit, and one of the two was disturbed."
    )
    assert input_sentence(measured(1.01, wait_s=0.01)).startswith(
        "The input alone is a limit as well: its 990"
    )


def test_tables_of_several_lengths_name_each_from_the_shortest_on():
    rows = [("a", measured(1.0, count=16)), ("b", measured(1.0, count=9))]
    assert ceilings.how(rows).startswith("9 and 16 pairs of segments of 1 epoch each")

"""What the terminal calls cells and times."""

import pytest

from gpufeed.core.cells import Cell
from gpufeed.workflow.terminal_words import labels, lasting, unsubmitted

CELLS = {
    "a": Cell("e", "d", "dataloader_workers", workers=2, augment="torch"),
    "b": Cell("e", "d", "resident", augment="torch"),
}


def test_a_label_names_what_varies():
    assert labels(CELLS) == {"a": "dataloader_workers, 2 workers", "b": "resident"}
    both = {"a": Cell("e", "d", "resident"), "b": Cell("e", "d", "resident", batch_size=64)}
    assert labels(both) == {"a": "resident, 128", "b": "resident, 64"}
    auto = {
        n: Cell("e", "d", "spdl", workers="auto", decoder=decoder)
        for n, decoder in zip("ab", "xy", strict=True)
    }
    auto["c"] = Cell("e", "d", "replay")
    assert labels(auto, lambda cell: 4 if cell.workers else 0) == {
        "a": "spdl, 4 threads, decoded by x",
        "b": "spdl, 4 threads, decoded by y",
        "c": "replay",
    }


@pytest.mark.parametrize(("seconds", "text"), [(40, "40 s"), (150, "2 min"), (9000, "2.5 h")])
def test_a_duration_has_the_unit_that_suits_it(seconds, text):
    assert lasting(seconds) == text


def test_what_slurm_refuses_is_shown_without_the_command_that_it_wraps():
    call = "sbatch -A coc --qos=nope -D /a/b --gpus=A100:1 --wrap='python base64//eA=='"
    text = f"SLURM sbatch failed. The error message was 'Invalid qos'.\n    sbatch call:\n        {call}\n"
    said = unsubmitted(f"{text}For further error details see the cluster/cloud log.")
    assert "Invalid qos" in said
    assert "--gpus=A100:1" in said
    assert "preflight" in said
    assert "base64" not in said
    job = "SLURM-job '7' failed, SLURM status is: 'TIMEOUT'."
    assert unsubmitted(f"{job} For further error details see the cluster/cloud log.") == job

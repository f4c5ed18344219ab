"""Documents: whole or not there, and errors that say what to do where they arise."""

import pytest

from gpufeed.errors import GpufeedError
from gpufeed.sweep.record import DOCUMENT


def test_a_document_that_breaks_the_schema_is_not_written_and_nobody_is_told_to_delete_it(tmp_path):
    path = tmp_path / "a.json"
    with pytest.raises(GpufeedError) as raised:
        DOCUMENT.write({"decoder": "pillow"}, path)
    assert "sweep.schema.yaml" in raised.value.expected
    assert "delete" not in raised.value.remedy
    assert "nothing was written" in raised.value.remedy
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["{", "{}"])
def test_a_damaged_document_on_disk_is_to_be_moved_away(tmp_path, text):
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(GpufeedError) as raised:
        DOCUMENT.read(path)
    assert "move it away and run snakemake" in raised.value.remedy

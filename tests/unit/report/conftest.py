"""What tests of pages need."""

import pytest

from gpufeed.report import style


@pytest.fixture
def sketched(monkeypatch):
    """Leaves the drawings out of figures, for tests of a page's words: drawing takes most of its time."""
    monkeypatch.setattr(style, "to_svg", lambda figure: "<svg ></svg>")

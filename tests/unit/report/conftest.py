"""What tests of pages need."""

import pytest

from gpufeed.report import style


@pytest.fixture
def drawn():
    """Keeps the drawings in the figures of a test."""


@pytest.fixture(autouse=True)
def sketched(request, monkeypatch):
    """Leaves the drawings out of figures, since drawing takes most of a page's time; figures are still made.

    Tests of the drawings themselves ask for `drawn`.
    """
    if "drawn" not in request.fixturenames:
        monkeypatch.setattr(style, "to_svg", lambda figure: "<svg ></svg>")

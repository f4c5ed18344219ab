"""What tests of pages need."""

from functools import cache

import pytest

from gpufeed.report import style

compiled_once = cache(style.templates)


@pytest.fixture
def drawn():
    """Keeps the drawings in the figures of a test."""


@pytest.fixture(autouse=True)
def quick_pages(request, monkeypatch):
    """Leaves out what takes most of a page's time: compiling its templates anew, and drawing.

    Figures are still made. Tests of the drawings themselves ask for `drawn`.
    """
    monkeypatch.setattr(style, "templates", compiled_once)
    if "drawn" not in request.fixturenames:
        monkeypatch.setattr(style, "to_svg", lambda figure: "<svg ></svg>")

"""Queries of NVML, without torch. Source: NVML API reference."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pynvml


def ask(query: Callable, *arguments) -> Any | None:
    """Return the answer of an NVML query; None if driver, product or permissions do not allow it."""
    try:
        return query(*arguments)
    except pynvml.NVMLError:
        return None


@contextmanager
def session() -> Iterator[None]:
    """Keep NVML open inside the block; without a driver, every `ask` in it returns None."""
    is_open = ask(lambda: pynvml.nvmlInit() or True)
    try:
        yield
    finally:
        if is_open:
            ask(pynvml.nvmlShutdown)

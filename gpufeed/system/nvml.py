"""How every module asks NVML, without torch. Source: NVML API reference."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pynvml


def ask(query: Callable, *arguments) -> Any | None:
    """The answer of an NVML query; None where driver, product or permissions do not give one."""
    try:
        return query(*arguments)
    except pynvml.NVMLError:
        return None


@contextmanager
def session() -> Iterator[None]:
    """Keep NVML open within the block; where no driver answers, every `ask` in it returns None."""
    is_open = ask(lambda: pynvml.nvmlInit() or True)
    try:
        yield
    finally:
        if is_open:
            ask(pynvml.nvmlShutdown)

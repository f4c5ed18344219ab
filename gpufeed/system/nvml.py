"""How every module asks NVML, without torch. Source: NVML API reference."""

from collections.abc import Callable
from typing import Any

import pynvml


def ask(query: Callable, *arguments) -> Any | None:
    """The answer of an NVML query; None where driver, product or permissions do not give one."""
    try:
        return query(*arguments)
    except pynvml.NVMLError:
        return None

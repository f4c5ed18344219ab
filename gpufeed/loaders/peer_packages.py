"""Packages that only a loader of another project needs, which a node may lack."""

from importlib import import_module
from types import ModuleType

from gpufeed.core.errors import Skip


def imported(
    loader: str, module: str, package: str, remedy: str = "pip install 'gpufeed[peers]'"
) -> ModuleType:
    """A module of a package; raises Skip with a sentence if this node has none.

    remedy: what brings the package, where that is not the extra `peers`.
    """
    try:
        return import_module(module)
    except (ImportError, OSError) as error:  # OSError: a library that the package loads by itself
        raise Skip(
            f"Loader {loader} needs the package {package}, which this node lacks ({error}): {remedy}."
        ) from error

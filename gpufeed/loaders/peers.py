"""Packages that only a loader of another project needs, which a node may lack."""

from importlib import import_module
from types import ModuleType

from gpufeed.errors import Skip


def imported(loader: str, module: str, package: str) -> ModuleType:
    """A module of a package of the extra `peers`; raises Skip with a sentence if this node has none."""
    try:
        return import_module(module)
    except ImportError as error:
        raise Skip(
            f"Loader {loader} needs the package {package}, which this node lacks ({error}): "
            "pip install 'gpufeed[peers]'."
        ) from error

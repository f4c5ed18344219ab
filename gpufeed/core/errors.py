"""The two ways to refuse: GpufeedError for wrong input, Skip for what a node lacks."""

from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from types import ModuleType

# imported name -> the extra of pyproject.toml that brings it, where a package is not in the base install
OF_ALL = (
    "fastai",
    "kornia",
    "lightning_utilities",
    "numba",
    "onnx",
    "onnxruntime",
    "onnxscript",
    "pytorch_lightning",
)
OF_ALL += ("spdl", "timm", "torchao", "wandb", "webdataset")
EXTRAS = dict.fromkeys(OF_ALL, "all")
EXTRAS |= {"cupy": "cuda12", "nvidia": "cuda12", "tensorrt_rtx_bindings": "rtx", "torchcodec": "cuda13"}


class GpufeedError(Exception):
    """Wrong input or a broken environment, reported as found / expected / what to do."""

    def __init__(self, found: str, expected: str, remedy: str):
        self.found, self.expected, self.remedy = found, expected, remedy
        super().__init__(f"found: {found}\nexpected: {expected}\nwhat to do: {remedy}")

    def __reduce__(self):  # pickled by worker processes
        return type(self), (self.found, self.expected, self.remedy)


class Skip(Exception):
    """This node lacks something (a GPU, a package); the record keeps the sentence."""


def install(module: str | None) -> str:
    """Return what to type for a missing package, by the name that is imported; None: an error without it.

    Records and pages that others read keep it, so it names no folder of this machine.
    """
    if module is None:
        return "install it"
    name = module.split(".")[0]
    if name not in EXTRAS:
        return f"pip install {name}"
    # pip finds the extras of a wheel where it is installed, and those of a checkout in its folder
    if (Path(__file__).parents[2] / "pyproject.toml").exists():
        return f"pip install '.[{EXTRAS[name]}]' in gpufeed's folder"
    return f"pip install 'gpufeed[{EXTRAS[name]}]'"


def import_or_skip(user: str, module: str, package: str, remedy: str | None = None) -> ModuleType:
    """Import a module of a package; raise Skip with a sentence if that fails on this node.

    user: what needs it, such as "Loader ffcv". remedy: how to install it, if `install` cannot know.
    """
    try:
        return import_module(module)
    except (ImportError, OSError) as error:  # OSError: a shared library does not load
        lacks = f"{user} needs the package {package}, which this node lacks ({error})"
        raise Skip(f"{lacks}: {remedy or install(module)}.") from error


def unknown(kind: str, name: object, choices, where: str = "the config") -> GpufeedError:
    """Return the error for a name that is not among the choices, with the nearest one as advice."""
    choices = sorted(str(choice) for choice in choices)
    ends = {choice.rpartition(".")[2]: choice for choice in choices}  # last part of dotted keys
    near = get_close_matches(str(name).rpartition(".")[2], list(ends), n=1)
    remedy = f"write {ends[near[0]]!r} instead" if near else f"choose one of them in {where}"
    return GpufeedError(f"{kind} {name!r} in {where}", f"one of: {', '.join(choices)}", remedy)


def require_known(kind: str, name: object, choices, where: str = "the config") -> None:
    """Raise the error of `unknown` for a name that is not among the choices."""
    if name not in choices:
        raise unknown(kind, name, choices, where)


def one_line(error: Exception) -> str:
    """Return an error as one line for a record or a verdict; the log has its traceback."""
    if isinstance(error, GpufeedError):
        return f"Found {error.found}; expected {error.expected}; what to do: {error.remedy}."
    return f"{type(error).__name__}: {first_line(error)}"


def first_line(error: Exception | str) -> str:
    """Return the first line of an error's message."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else "no message"

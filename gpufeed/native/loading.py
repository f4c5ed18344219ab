"""Which library of the ops this process uses: loaded once, when first needed, never at import."""

import logging
import threading
from dataclasses import dataclass
from pathlib import Path

import torch

from gpufeed.core.errors import GpufeedError, Skip, first_line
from gpufeed.core.file_writes import sha256_of
from gpufeed.native import gradients
from gpufeed.native.build import build, extension_folder, plan
from gpufeed.native.library import BUILD_AGAIN, NAME, About, read_about, refusal, runs_on
from gpufeed.system.build_once import one_builder

log = logging.getLogger("gpufeed")
INSTALLED = Path(__file__).with_name(f"{NAME}.so")  # where `pip install` puts it
lock = threading.RLock()


@dataclass(frozen=True)
class Status:
    """The implementation in use. sentence: None for the extension, else why not, and what to do."""

    implementation: str  # extension | reference
    sentence: str | None = None


@dataclass
class Loaded:
    """What this process has loaded: a library and its description, or the sentence why not."""

    library: Path | None = None
    about: About | None = None
    sentence: str | None = None


current = Loaded()
chosen: dict[str, bool] = {}  # device type -> whether its kernels are used


def load(path: str | Path | None = None) -> Status:
    """Load the extension, once per process: the one at `path`, the installed one, or one built just in time.

    A library of another torch or of other sources is refused. The reference is then in use, and the sentence
    says why. `path` is never replaced by another library. Raises GpufeedError for a missing file, and for a
    second, different library, since a process can only load one.
    """
    with lock:
        if path is not None:
            load_from(Path(path))
        elif current.library is None and current.sentence is None:
            find()
        return Status("extension" if current.library else "reference", current.sentence)


def status(device: torch.device | str = "cpu") -> Status:
    """Return the implementation for a device; load or build the extension if needed.

    device: a type or one device, such as "cuda:1", whose compute capability is checked.
    """
    with lock:
        found, device = load(), torch.device(device)
        if found.sentence:
            return found
        sentence = lacking(device, current.about)
        return Status("reference" if sentence else "extension", sentence)


def uses_extension(device_type: str) -> bool:
    """Return whether the extension has kernels for that type of device; log once if it has not."""
    if device_type not in chosen:
        found = status(device_type)
        chosen[device_type] = found.implementation == "extension"
        if found.sentence:
            log.warning(
                "PyTorch's own operations stand in for bias_gelu on %s: %s", device_type, found.sentence
            )
    return chosen[device_type]


# What torch.compiler.assume_constant_result sets: torch.compile calls the function instead of tracing it.
# The decorator would import torch's compiler, which takes seconds and is not needed for predicting.
uses_extension._dynamo_marked_constant = True


def lacking(device: torch.device, about: About) -> str | None:
    """Return why the loaded library has no kernels for the device, as a sentence; None if it has."""
    if device.type == "cpu":
        return None
    if device.type != "cuda":
        return f"The gpufeed.native extension has kernels for cpu and cuda, and the device is {device.type}."
    if about.cuda is None:
        return about.lack()
    if not torch.cuda.is_available():
        return None  # nothing can run there anyway
    capability = torch.cuda.get_device_capability(device)
    if runs_on(capability, about.architectures):
        return None
    return (
        f"The gpufeed.native extension was built for compute capability {', '.join(about.architectures)}"
        f", and this GPU has {capability[0]}.{capability[1]}: build it again with TORCH_CUDA_ARCH_LIST "
        "naming both."
    )


def load_from(path: Path) -> None:
    """Load the library at `path`, or keep the sentence why it is refused."""
    if not path.exists():
        raise GpufeedError(f"no file {path}", f"a {NAME}.so", "build it (snakemake's rule build_extension)")
    sentence, about = refusal(path), read_about(path)
    if current.library is not None:
        if sentence or not (about.same_build(current.about) or sha256_of(path) == current.about.library):
            raise GpufeedError(
                f"{path} to be loaded beside {current.library}" + (f" ({sentence})" if sentence else ""),
                "one library a process",
                "load it before anything uses the ops, or start another process",
            )
        return
    take(path, about, sentence)


def find() -> None:
    """Load the installed library if it fits, else one built just in time; keep the sentence if both fail."""
    if INSTALLED.exists():
        take(INSTALLED, read_about(INSTALLED), refusal(INSTALLED))
        if current.library is not None:
            return
        log.warning("%s", current.sentence)
    try:
        library = built_just_in_time()
    except Skip as skip:
        current.sentence = str(skip)
    except (GpufeedError, OSError) as error:
        log.exception("the extension could not be built")
        found = first_line(error).removeprefix("found: ")
        current.sentence = (
            f"The gpufeed.native extension could not be built (found {found}): "
            "the log has the compilers' output."
        )
    else:
        take(library, read_about(library), refusal(library))
        if current.sentence:
            current.sentence += (
                f" It was built just in time: without {library.parent} the next use builds it."
            )


def built_just_in_time() -> Path:
    """Return a library from torch's extension folder; one process compiles it if needed, others wait."""
    about = plan().about()
    folder = extension_folder(about)
    library = folder / f"{NAME}.so"
    if refusal(library):
        with one_builder(library):
            if refusal(library):
                log.warning("compiling the gpufeed.native extension into %s, once: about a minute", folder)
                build(folder)
    return library


def take(library: Path, about: About | None, sentence: str | None) -> None:
    """Load the library and register its shapes and derivatives, or keep the sentence.

    A library may fail to load if it was built with another glibc or libcublasLt, which gives a sentence, too.
    """
    chosen.clear()
    if sentence is None:
        try:
            torch.ops.load_library(library)
        except OSError as error:
            log.warning("the extension could not be loaded", exc_info=error)
            why = first_line(
                error.__cause__ or error
            )  # torch only names the file, the loader gives the reason
            sentence = f"{library} cannot be loaded on this node ({why}): {BUILD_AGAIN}."
        else:
            gradients.register()
            log.info("gpufeed.native extension: %s", library)
    current.library, current.about, current.sentence = (None if sentence else library), about, sentence

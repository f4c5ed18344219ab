"""The extension's sources, the built library, and the JSON file that describes its build."""

import json
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import torch

from gpufeed.core import source_digest
from gpufeed.core.file_writes import sha256_of, write_whole

FOLDER = Path(__file__).with_name("csrc")
NAME = "gpufeed_ops"
AGAIN = "snakemake --forcerun build_extension"
BUILD_AGAIN = f"build it again, in the workflow by `{AGAIN}`"


def source_files(cuda: bool) -> list[Path]:
    """Return the compiled files: the .cpp of csrc, and with CUDA also the .cpp and .cu of csrc/cuda."""
    cpu = sorted(FOLDER.glob("*.cpp"))
    return cpu + sorted(f for f in FOLDER.glob("cuda/*") if f.suffix in (".cpp", ".cu")) * cuda


def digest_of_sources() -> str:
    """Return a digest over all sources and headers and how they are compiled; 12 hex digits."""
    return source_digest.digest("native/csrc/**/*.[ch]*", "native/compile_job.py")


@dataclass(frozen=True)
class About:
    """What a library was built from and for; a library that could not be built has one, too.

    library: sha256 of the .so, None without one. cuda: the toolkit's version, None for a CPU build. sentence:
    why it has no CUDA kernels, or why there is no library; None if it lacks nothing. status: done | partial
    (CUDA kernels could not be built) | skipped (no library). planned_on: the node that planned the workflow's
    build, None for another build. attempt: the workflow's.
    """

    torch: str
    sources: str
    cuda: str | None = None
    architectures: tuple[str, ...] = ()
    compilers: tuple[str, ...] = ()
    sentence: str | None = None
    library: str | None = None
    status: str = "done"
    planned_on: str | None = None
    attempt: int = 1

    def write(self, library: Path) -> None:
        """Write the JSON beside the library, which is then complete."""
        write_whole(about_path(library), json.dumps(asdict(self), indent=2) + "\n", shared=True)

    def same_build(self, other: "About") -> bool:
        """Return whether both have the same sources, torch, toolkit and architectures."""
        own = {"library": None, "planned_on": None, "attempt": 1}
        return replace(self, **own) == replace(other, **own)

    def lack(self) -> str | None:
        """Return the sentence; after a build of the workflow, add how to build again."""
        if self.sentence is None or self.planned_on is None:
            return self.sentence
        return (
            f"{self.sentence} The workflow found so on {self.planned_on}. Once that has changed, "
            f"`{AGAIN}` builds the extension again; a run on another node does so by itself."
        )


def about_path(library: Path) -> Path:
    return library.with_suffix(".json")


def read_about(library: Path) -> About | None:
    """Return the description of a library; None if its JSON is missing or invalid."""
    try:
        found = json.loads(about_path(library).read_text())
        about = About(**{f.name: found[f.name] for f in fields(About)})
        return replace(about, architectures=tuple(about.architectures), compilers=tuple(about.compilers))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def refusal(library: Path) -> str | None:
    """Return why a library must not be loaded into this process, as a sentence; None if it may be."""
    about, again = read_about(library), BUILD_AGAIN
    if about is None:
        return f"{library} has no readable {about_path(library).name} that describes it: {again}."
    if about.torch != torch.__version__:
        return f"{library} was built for torch {about.torch}, and this is torch {torch.__version__}: {again}."
    if about.sources != digest_of_sources():
        ours = digest_of_sources()
        return f"{library} was built from other sources ({about.sources}) than these ({ours}): {again}."
    if about.library is None:
        return about.lack()
    try:
        found = sha256_of(library)
    except OSError as error:
        return f"{library} cannot be read ({error.strerror}): {again}."
    if found != about.library:
        return f"{library} is not the file that {about_path(library).name} describes: {again}."
    return None


def runs_on(capability: tuple[int, int], architectures: tuple[str, ...]) -> bool:
    """Return whether a GPU can run code for these architectures, such as 8.6 or 9.0+PTX.

    capability: of the GPU. Machine code runs on its major version from its minor one on, PTX on everything
    later. With a letter (9.0a), it runs on that GPU only. Names such as Hopper are accepted unchecked.
    """
    for architecture in architectures:
        number, _, ptx = architecture.partition("+")
        own = number[-1:].isalpha()
        try:
            built = tuple(int(part) for part in number.rstrip("af").split("."))
        except ValueError:
            return True
        if built == capability or (not own and (built[0] == capability[0] and built < capability)):
            return True
        if ptx and not own and built < capability:
            return True
    return False

"""Builds the extension: a library, and a JSON file that describes what it was built from and for."""

import json
import logging
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from gpufeed.core import retry_policy
from gpufeed.core.errors import GpufeedError, Skip
from gpufeed.core.file_writes import sha256_of, whole
from gpufeed.native import library as sources
from gpufeed.native.library import NAME, About, read_about, refusal
from gpufeed.native.toolkit import (
    Toolkit,
    architectures,
    cuda_toolkit,
    cxx,
    ninja,
    version_line,
    wheel_includes,
)
from gpufeed.system.build_once import one_builder

log = logging.getLogger("gpufeed")
OTHER_COMPILER = "name another compiler by CXX or CUDA_HOME"
READY = "GPUFEED_EXTENSION"  # a folder with a prebuilt library, as in our containers
SHOWN = 25  # lines of a compiler's output in an error; the log has all


@dataclass(frozen=True)
class Built:
    """A library and its description; about.library is None if nothing could be built (nothing_built)."""

    library: Path
    about: About


@dataclass(frozen=True)
class Plan:
    """What this node builds. toolkit: None for the CPU only; `sentence` then says why.

    declined: whether only the CPU was asked for, so that nothing is missing.
    """

    cxx: str
    toolkit: Toolkit | None = None
    architectures: tuple[str, ...] = ()
    sentence: str | None = None
    declined: bool = False

    def about(self) -> About:
        """Return the description of the library before it is built."""
        compilers = [self.cxx] + ([self.toolkit.nvcc] if self.toolkit else [])
        return About(
            torch=torch.__version__,
            sources=sources.digest_of_sources(),
            cuda=".".join(map(str, self.toolkit.version)) if self.toolkit else None,
            architectures=self.architectures,
            compilers=tuple(map(version_line, compilers)),
            sentence=self.sentence,
            status="done" if self.toolkit or self.declined else "partial",
        )


def plan(cuda: bool | None = None, arch_list: str | None = None) -> Plan:
    """Return what `build` would build here, and raise its errors, without compiling."""
    compiler = cxx()
    ninja()
    if cuda is False:
        sentence = "The extension was built for the CPU only, as asked for."
        return Plan(compiler, sentence=sentence, declined=True)
    toolkit, sentence = cuda_toolkit()
    chosen: tuple[str, ...] = ()
    if toolkit:
        chosen, sentence = architectures(toolkit, arch_list or os.environ.get("TORCH_CUDA_ARCH_LIST"))
    if sentence and cuda:
        raise GpufeedError(
            sentence, "CUDA kernels, which were asked for", "build without cuda=True for the CPU"
        )
    return Plan(compiler, None if sentence else toolkit, chosen, sentence)


def build(
    folder: str | Path, cuda: bool | None = None, arch_list: str | None = None, jobs: int | None = None
) -> Built:
    """Compile the extension into folder/gpufeed_ops.so, then write .json beside it.

    cuda: whether to build CUDA kernels; None: if torch has CUDA and there is an nvcc of its major version,
    else only the CPU's, with the reason in the JSON. arch_list: overrides TORCH_CUDA_ARCH_LIST; see
    toolkit.architectures. jobs: parallel compilers; None leaves ninja's choice.

    Object files stay in torch's extension folder (TORCH_EXTENSIONS_DIR), so that a rebuild is quick. Raises
    Skip if this node lacks a C++ compiler or ninja. Raises GpufeedError if the sources do not compile, or if
    CUDA kernels were asked for and cannot be built.
    """
    return build_planned(plan(cuda, arch_list), folder, jobs)


def build_planned(planned: Plan, folder: str | Path, jobs: int | None = None) -> Built:
    """Build a plan; compile nothing if GPUFEED_EXTENSION already has that library."""
    about = planned.about()
    if library := ready(about):
        return keep(library, about, Path(folder))
    objects = extension_folder(about) / "objects"
    with one_builder(objects):
        objects.mkdir(exist_ok=True)
        compiled = run_compilers(planned, objects, jobs)
        return keep(compiled, about, Path(folder))


def ready(about: About) -> Path | None:
    """Return the library in the folder GPUFEED_EXTENSION if a build here would give the same."""
    folder = os.environ.get(READY)
    library = Path(folder) / f"{NAME}.so" if folder else None
    if library is None or refusal(library):
        return None
    if not read_about(library).same_build(about):
        log.info("%s is another build: %s instead of %s", library, read_about(library), about)
        return None
    log.info("using %s", library)
    return library


def nothing_built(folder: str | Path, sentence: str) -> Built:
    """Write an empty file in place of a library that this node cannot build, and the reason beside it."""
    library = Path(folder) / f"{NAME}.so"
    library.parent.mkdir(parents=True, exist_ok=True)
    library.write_bytes(b"")
    about = About(
        torch=torch.__version__, sources=sources.digest_of_sources(), sentence=sentence, status="skipped"
    )
    about.write(library)
    return Built(library, about)


def extension_folder(about: About) -> Path:
    """Return the folder of that build in torch's extension folder.

    Its name includes the digest of the sources. ninja compares times, and sources of another checkout, or
    copied with their times, may be older than the objects of others.
    """
    stack = json.dumps((about.torch, about.cuda, about.architectures, about.compilers, about.sources))
    return (
        Path(os.environ.get("TORCH_EXTENSIONS_DIR") or default_root())
        / NAME
        / sha256(stack.encode()).hexdigest()[:12]
    )


def default_root() -> str:
    """Return torch's extension folder if no variable names one."""
    from torch.utils.cpp_extension import (
        get_default_build_root,
    )  # imports setuptools, and warns without a GPU

    return get_default_build_root()


def run_compilers(planned: Plan, folder: Path, jobs: int | None) -> Path:
    """Run compile_job.py for the plan; return the library that it loaded.

    Raises GpufeedError if it fails.
    """
    job = {
        "folder": str(folder),
        "name": NAME,
        "sources": [str(file) for file in sources.source_files(planned.toolkit is not None)],
        "cuda": planned.toolkit is not None,
        "includes": [str(include) for include in wheel_includes()] if planned.toolkit else [],
    }
    path = f"{os.environ.get('PATH', os.defpath)}{os.pathsep}{ninja().parent}"
    environment = {**os.environ, "CXX": planned.cxx, "PATH": path}
    environment |= {"MAX_JOBS": str(jobs)} if jobs else {}
    if planned.toolkit:
        environment |= {
            "CUDA_HOME": str(planned.toolkit.home),
            "TORCH_CUDA_ARCH_LIST": ";".join(planned.architectures),
        }
    program = Path(__file__).with_name("compile_job.py")
    command = [sys.executable, "-P", str(program), json.dumps(job)]
    done = subprocess.run(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    log.info("output of the compilers:\n%s", done.stdout)
    if done.returncode:
        lines = done.stdout.strip().splitlines()
        said = "\n".join(([line for line in lines if "error:" in line] or lines[-SHOWN:])[:SHOWN])
        compilers = ", ".join(planned.about().compilers)
        raise GpufeedError(
            f"an error (status {done.returncode}) from {compilers}:\n{said}",
            "a compiler that this torch supports, and memory for it",
            f"see the lines above; {OTHER_COMPILER}",
        )
    return folder / f"{NAME}.so"


def keep(compiled: Path, about: About, folder: Path) -> Built:
    """Copy the library into the folder and describe it there, each file whole or not at all."""
    library = folder / f"{NAME}.so"
    with whole(library, shared=True) as partial:
        shutil.copyfile(compiled, partial)
        about = replace(about, library=sha256_of(partial))
    about.write(library)
    return Built(library, about)


def build_or_say(
    folder: str | Path,
    cuda: bool | None = None,
    jobs: int | None = None,
    planned_on: str | None = None,
    attempt: int = 1,
) -> Built:
    """Build what this node can, for the workflow; what it cannot is described in the JSON.

    Like `build`, but if the CUDA compiler fails, build only the CPU's kernels. Without a working C++
    compiler, write a placeholder. planned_on, attempt: see About.
    """
    try:
        built = build_what_compiles(plan(cuda), folder, jobs)
    except Skip as skip:
        built = nothing_built(folder, str(skip))
    about = replace(built.about, planned_on=planned_on, attempt=attempt)
    about.write(built.library)
    return Built(built.library, about)


def build_what_compiles(planned: Plan, folder: str | Path, jobs: int | None) -> Built:
    """Build the plan, or else its CPU part, or else nothing; the sentence has the reason."""
    try:
        return build_planned(planned, folder, jobs)
    except GpufeedError as error:
        if isinstance(error.__cause__, OSError):  # a full disk is not the compiler's fault
            raise
        log.error("%s", error)
        found = " ".join(error.found.splitlines()[:2])  # the compilers, and their first line
        said = f"found {found}; the log has the rest; {OTHER_COMPILER}."
        if planned.toolkit is None:
            return nothing_built(folder, f"The gpufeed.native extension could not be built: {said}")
    sentence = f"The extension has no CUDA kernels: {said}"
    return build_what_compiles(Plan(planned.cxx, sentence=sentence), folder, jobs)


def for_job(job: Any) -> None:
    """Run rule build_extension. job: a gpufeed.job.Job."""
    built = build_or_say(
        Path(job.output.library).parent,
        cuda=False if job.params.cpu_alone else None,
        jobs=job.threads,
        planned_on=job.planned_on,
        attempt=job.params.attempt,
    )
    retry_policy.ended(job.output.about, built.about.attempt)
    log.info("%s: %s", built.library, built.about)
    if built.about.sentence:
        log.warning("%s", built.about.sentence)

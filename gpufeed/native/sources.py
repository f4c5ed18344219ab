"""The extension's C++ and CUDA sources."""

from pathlib import Path

from gpufeed.core import source_digest

FOLDER = Path(__file__).with_name("csrc")


def source_files(cuda: bool) -> list[Path]:
    """What is compiled: the .cpp of csrc, and with CUDA the .cpp and .cu of csrc/cuda too."""
    cpu = sorted(FOLDER.glob("*.cpp"))
    return cpu + sorted(f for f in FOLDER.glob("cuda/*") if f.suffix in (".cpp", ".cu")) * cuda


def digest() -> str:
    """One digest over all sources and headers and how they are compiled; 12 hex digits."""
    return source_digest.digest("native/csrc/**/*.[ch]*", "native/compile_job.py")

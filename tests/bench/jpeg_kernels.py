"""Each kernel of whole JPEGs by itself, for several choices of its constants.

python tests/bench/jpeg_kernels.py FOLDER [NAME=NUMBER,... ...]

FOLDER: JPEGs, at any depth. Compiles the kernels with nvcc once a choice, and decodes calls of 256 and of
1,024 files that lie on the device, whole and what random crops of 224 x 224 need of them. Prints ms of each
kernel, and images/s with calls on three streams.
All choices must give the pixels of the first; files that only one of them gave up do not count.
"""

import ctypes
import itertools
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch  # loads CUDA's runtime, for whose symbols the kernels look

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/fixtures")]

from jpeg_batch_fixtures import changed_sources  # noqa: E402

from gpufeed.augment.random_resized_crop import RandomResizedCrop  # noqa: E402
from gpufeed.decoders.encoded_file import read_header  # noqa: E402
from gpufeed.native.toolkit import cuda_toolkit, wheel_includes  # noqa: E402

CHOICES = [
    {},
    {"STEPS": 0},
    {"SUBSEQUENCE": 2048, "GROUP": 1, "STEPS": 0, "MOST_ROUNDS": 64},
    *({"SCAN_THREADS": threads} for threads in (128, 256)),
    *({"SUBSEQUENCE": bits, "GROUP": each} for bits, each in ((2048, 1), (1024, 2), (1024, 4), (512, 8))),
    {"SCAN_THREADS": 256, "SCAN_BLOCKS": 5},
    {"SCAN_THREADS": 256, "SCAN_BLOCKS": 6},
    {"SCAN_THREADS": 256, "SUBSEQUENCE": 1024},
    {"SCAN_THREADS": 128, "GROUP": 8, "SCAN_BLOCKS": 8},
]
COUNTS, CALLS, STREAMS = (256, 1024), 30, 3
NOT_SYNCHRONISED = 11


def compiled(choice: dict[str, int], folder: Path) -> ctypes.CDLL:
    """The kernels with the constants of a choice."""
    sources = changed_sources(folder, choice)
    toolkit, sentence = cuda_toolkit()
    if toolkit is None:
        sys.exit(sentence)
    library, source = folder / "kernels.so", ROOT / "tests/bench/jpeg_kernels.cu"
    command = [toolkit.home / "bin/nvcc", "-O3", "-lineinfo", "-std=c++17", "-arch=native", f"-I{sources}"]
    command += [f"-I{sources / 'cuda'}", *(f"-isystem={include}" for include in wheel_includes())]
    command += ["-cudart", "none", "-shared", "-Xcompiler", "-fPIC", source, "-o", library]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(library))


def windows_of(files: list[bytes]) -> np.ndarray:
    """What random crops need of each file, int32 (n, 4)."""
    sides = torch.tensor([(header.height, header.width) for header in map(read_header, files)])
    recipe = RandomResizedCrop(224, seed=1)
    return recipe.windows(torch.arange(len(files)), 0, *sides.unbind(1)).needed(224).numpy()


def measured(
    library: ctypes.CDLL, files: list[bytes], windows: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(times, pixels, faults) of one call."""
    data = np.frombuffer(b"".join(files), np.uint8)
    offsets = np.cumsum([0, *map(len, files)], dtype=np.int64)
    given = [ctypes.c_void_p(data.ctypes.data), ctypes.c_int64(len(data))]
    given += [ctypes.c_void_p(offsets.ctypes.data), ctypes.c_int64(len(files))]
    given += [None if windows is None else ctypes.c_void_p(windows.ctypes.data)]
    library.output_bytes.restype = ctypes.c_int64
    pixels, faults = np.zeros(library.output_bytes(*given), np.uint8), np.zeros(len(files), np.uint8)
    times = np.zeros(4, np.float32)
    results = (ctypes.c_void_p(array.ctypes.data) for array in (times, pixels, faults))
    error = library.measure(*given, CALLS, STREAMS, *results)
    if error:
        sys.exit(f"CUDA's error {error}")
    return times, pixels, faults


def main(folder: str, *choices: str) -> None:
    paths = [path for path in sorted(Path(folder).rglob("*")) if path.suffix.lower() in (".jpg", ".jpeg")]
    files = [path.read_bytes() for path in paths]
    own = [
        {name: int(number) for name, number in (part.split("=") for part in choice.split(","))}
        for choice in choices
    ]
    first: dict[tuple[int, bool], tuple[np.ndarray, np.ndarray]] = {}
    print(f"{len(files)} files; ms: entropy, DCT, colour, sum; images/s on {STREAMS} streams; given up")
    choices_here = own or CHOICES
    with tempfile.TemporaryDirectory() as build, ThreadPoolExecutor() as pool:
        folders = [Path(build) / str(number) for number in range(len(choices_here))]
        for folder_of_one in folders:
            folder_of_one.mkdir()
        libraries = list(pool.map(compiled, choices_here, folders))
        for choice, library in zip(choices_here, libraries, strict=True):
            for count, crops in itertools.product(COUNTS, (False, True)):
                part = list(itertools.islice(itertools.cycle(files), count))
                times, pixels, faults = measured(library, part, windows_of(part) if crops else None)
                right, right_faults = first.setdefault((count, crops), (pixels, faults))
                alone = (faults == NOT_SYNCHRONISED) != (right_faults == NOT_SYNCHRONISED)
                same = alone.any() or np.array_equal(pixels, right)
                kernels = "  ".join(f"{ms:.3f}" for ms in (*times[:3], times[:3].sum()))
                rate = 1000 * count / times[3]
                given_up = int((faults == NOT_SYNCHRONISED).sum())
                wrong = "" if same else "  WRONG PIXELS"
                name = f"{choice or 'as they are'} {count}{' crops' * crops}"
                print(
                    f"{name}: {kernels}  {rate:,.0f}  {given_up}{wrong}",
                    flush=True,
                )


if __name__ == "__main__":
    main(*sys.argv[1:])

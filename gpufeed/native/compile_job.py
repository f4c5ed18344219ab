"""Compiles the extension and loads the result, in its own process: python -P compile_job.py JOB.

JOB is JSON: folder, name, sources, cuda, includes. A fresh process is needed, since a library cannot be
loaded twice, and is kept only after it was loaded. It imports only torch: pip runs it before gpufeed is
installed.
"""

import json
import sys
from pathlib import Path

import torch
from torch.utils import cpp_extension

# no -ffast-math and no --use_fast_math: the ops must handle NaN and infinities correctly
CXX_FLAGS = ["-O3"]
NVCC_FLAGS = ["-O3", "-lineinfo"]


def compile_and_load(job: dict) -> Path:
    """Compile into job["folder"], load the library and return its path; errors propagate."""
    folder = Path(job["folder"])
    (folder / "lock").unlink(missing_ok=True)  # torch's own lock, left by a killed build; we hold ours
    openmp = ["-fopenmp"] if sys.platform == "linux" else []  # Apple's clang has no OpenMP: one thread
    # after the toolkit's own headers: adds what a bare nvcc lacks (cuBLAS; in CUDA 12 also the runtime)
    includes = [f"-isystem {include}" for include in job["includes"]]
    links = [*openmp, *(linked_to_torchs(folder / "link") if job["cuda"] else [])]
    cpp_extension.load(
        job["name"],
        job["sources"],
        extra_cflags=[*CXX_FLAGS, *openmp, *includes],
        extra_cuda_cflags=[*NVCC_FLAGS, *includes],
        extra_ldflags=links,
        build_directory=str(folder),
        with_cuda=job["cuda"],
        is_python_module=False,
        verbose=True,
    )
    check_kernels("CUDA" if job["cuda"] else "CPU")
    return folder / f"{job['name']}.so"


def linked_to_torchs(folder: Path) -> list[str]:
    """Return flags that link with the CUDA libraries that torch has loaded.

    Wheels contain only versioned names, which -l does not find, so `folder` gets links with plain names. The
    library stores no path of them, since torch always loads them first.
    """
    folder.mkdir(exist_ok=True)
    for name in ("libcudart.so", "libcublasLt.so"):
        if found := loaded(name):
            (folder / name).unlink(missing_ok=True)
            (folder / name).symlink_to(found)
    return [f"-L{folder}", "-lcublasLt"]


def loaded(name: str) -> str | None:
    """Return the path of the loaded library with that unversioned name."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.split(maxsplit=5)[-1]
        if Path(path).name.startswith(f"{name}."):
            return path
    return None


def check_kernels(key: str) -> None:
    """Raise RuntimeError unless every op of the library has a kernel for the dispatch key, or for all."""
    keys = (key, "CompositeExplicitAutograd")
    ops = [op for op in torch._C._dispatch_get_all_op_names() if op.startswith("gpufeed::")]
    lacking = [
        op for op in ops if not any(torch._C._dispatch_has_kernel_for_dispatch_key(op, key) for key in keys)
    ]
    if lacking or not ops:
        raise RuntimeError(f"the library has no {key} kernel for {', '.join(lacking) or 'any op'}")


if __name__ == "__main__":
    print(compile_and_load(json.loads(sys.argv[1])))

#!/bin/sh
# What Dockerfile and gpufeed.def both run, as root on a bare Debian 12:
#   sh containers/install.sh system      Debian's packages
#   sh containers/install.sh python      the CUDA stack of envs/constraints-cuda$CUDA.txt, in /opt/gpufeed/venv
#   sh containers/install.sh extension   bias-GELU for TORCH_CUDA_ARCH_LIST, in /opt/gpufeed/extension
# gpufeed itself is not installed: the checkout that runs brings its own.
set -eu
PREFIX=/opt/gpufeed
SOURCES=$(cd "$(dirname "$0")/.." && pwd)
CUDA=${CUDA:-12}

case $CUDA in
12 | 13) ;;
*)
    printf 'found: CUDA=%s\nexpected: 12 or 13\nwhat to do: build with CUDA=12, or CUDA=13 for GPUs from Turing on\n' "$CUDA" >&2
    exit 2
    ;;
esac

install_system() {
    # g++ compiles the extension, gcc and Python's headers what Triton starts kernels with; git tells the commit;
    # ffmpeg's libraries decode for the loader spdl
    apt-get update
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        ca-certificates ffmpeg g++ gcc git libc6-dev python3 python3-dev python3-venv
    rm -rf /var/lib/apt/lists/*
    # the checkout belongs to a user of the host, and git answers nobody else without this
    git config --system --add safe.directory '*'
}

install_python() {
    python3 -m venv "$PREFIX/venv"
    "$PREFIX/venv/bin/python" -m pip install --no-cache-dir "uv==$(sed -n 's/^UV_VERSION := //p' "$SOURCES/Makefile")"
    # nvcc: for CUDA 13 a Python package, in the version that torch's toolkit pins; for CUDA 12 Debian's package
    set --
    if [ "$CUDA" = 13 ]; then
        set -- 'cuda-toolkit[nvcc,crt,nvvm,cccl]'
    elif ! sh "$SOURCES/containers/nvcc12.sh" /usr/local/cuda-12.4; then
        echo "no nvcc of CUDA 12 could be downloaded: the extension is built with CPU kernels only" >&2
    fi
    # compiled: an image is read-only, and each job would compile all that it imports
    export UV_NO_CACHE="${UV_NO_CACHE:-true}" UV_COMPILE_BYTECODE="${UV_COMPILE_BYTECODE:-true}"
    "$PREFIX/venv/bin/uv" pip install --python "$PREFIX/venv/bin/python" \
        --constraint "$SOURCES/envs/constraints-cuda$CUDA.txt" --requirement "$SOURCES/pyproject.toml" \
        --extra "cuda$CUDA" --extra all "$@"
}

install_extension() {
    objects=$(mktemp -d)
    cd "$SOURCES"
    TORCH_EXTENSIONS_DIR=$objects PATH=$PREFIX/venv/bin:$PATH "$PREFIX/venv/bin/python" - "$PREFIX/extension" "$CUDA" <<'PYTHON'
import sys

from gpufeed.native.build import build

folder, cuda = sys.argv[1:]
about = build(folder, cuda=True if cuda == "13" else None).about
print(about.sentence or f"bias-GELU with CUDA {about.cuda} for {', '.join(about.architectures)}")
PYTHON
    rm -rf "$objects"
}

case ${1:-} in
system | python | extension) "install_$1" ;;
*)
    printf 'found: %s\nexpected: system, python or extension\nwhat to do: see the head of %s\n' "${1:-no step}" "$0" >&2
    exit 2
    ;;
esac

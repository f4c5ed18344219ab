#!/bin/sh
# Unpacks an nvcc of CUDA 12, Debian's package nvidia-cuda-toolkit, into a folder; installs nothing and needs no root:
#   sh containers/nvcc12.sh FOLDER && export CUDA_HOME=FOLDER
# The headers that it needs come with the CUDA 12 stack, as Python packages.
set -eu
FOLDER=${1:?no folder given; usage: sh containers/nvcc12.sh FOLDER}
SUITE=trixie # CUDA 12.4; Debian 12 has 11.8
KEYS=/usr/share/keyrings/debian-archive-keyring.gpg

# this machine's mirror, with Debian's non-free packages added; apt's own state is not changed
mirror=$(grep -rhoE '^(URIs:|deb .*) *https?://[^ ]+/debian/?( |$)' /etc/apt/sources.list /etc/apt/sources.list.d 2>/dev/null |
    grep -oE 'https?://[^ ]+' | head -n 1)
if [ -z "$mirror" ]; then
    printf 'found: no mirror of Debian in /etc/apt\nexpected: Debian 12 or later\nwhat to do: set CUDA_HOME to a CUDA 12 toolkit\n' >&2
    exit 2
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/parts"
echo "deb [signed-by=$KEYS] $mirror $SUITE non-free" >"$work/sources.list"
apt() {
    (cd "$work" && apt-get -qq -o Dir::Etc::SourceList="$work/sources.list" -o Dir::Etc::SourceParts="$work/parts" \
        -o Dir::State::Lists="$work/lists" -o Dir::Cache="$work/cache" -o APT::Sandbox::User=root "$@")
}
apt update
apt download nvidia-cuda-toolkit
dpkg -x "$work"/nvidia-cuda-toolkit_*.deb "$work/deb"

# the layout of NVIDIA's toolkit, without Debian's gcc and g++ wrappers, which choose another compiler
made=$work/toolkit
mkdir -p "$made/bin" "$made/include" "$made/lib64" "$made/nvvm/bin" "$made/nvvm/libdevice"
own=$work/deb/usr/lib/nvidia-cuda-toolkit
cp -R "$own/bin/nvcc" "$own/bin/crt" "$made/bin"
cp "$own/bin/cicc" "$made/nvvm/bin"
cp "$own"/libdevice/* "$made/nvvm/libdevice"
for program in bin2c cudafe++ fatbinary nvlink ptxas; do
    cp "$work/deb/usr/bin/$program" "$made/bin"
done
cat >"$made/bin/nvcc.profile" <<'PROFILE'
TOP = $(_HERE_)/..
NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice
PATH += $(TOP)/nvvm/bin:$(_HERE_):
INCLUDES += "-I$(TOP)/include" $(_SPACE_)
LIBRARIES =+ $(_SPACE_) "-L$(TOP)/lib64"
PROFILE
# copied last, and only if nvcc runs: a build would use an incomplete toolkit
"$made/bin/nvcc" --version
mkdir -p "$FOLDER"
cp -R "$made/." "$FOLDER"

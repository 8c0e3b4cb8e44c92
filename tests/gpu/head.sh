#!/usr/bin/env bash
# The output head on a GPU, from binaries built on another machine: its kernels against their reference, then the bench of
# memory and speed against libtorch's plain way, the bare products and, where this Python has it, Liger's kernel.
#
#   cargo test --release --workspace --test head_loss --no-run; cargo bench --workspace --bench head --no-run
#   bash tests/gpu/head.sh FOLDER      with head_loss and bench_head, stripped
#
# Reads:  PYTHON, a Python with torch 2.11 and, for the rival, triton and liger-kernel (pip install --no-deps liger-kernel)
# shellcheck disable=SC1091
set -euo pipefail
[ $# -eq 1 ] || { sed -n '2,/^[^#]/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 64; }
here=$(dirname "${BASH_SOURCE[0]}")
. "$here/env.sh"
export SLIME_BENCH_PYTHON=${SLIME_BENCH_PYTHON:-${PYTHON:-python3}} SLIME_BENCHES=$here/../benches
"$1/head_loss" --nocapture
"$1/bench_head"

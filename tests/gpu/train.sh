#!/usr/bin/env bash
# A training step on a GPU, from binaries built on another machine: the kernels of training against their definitions, then the
# bench of operations per second and memory, beside the same step in transformers where this Python has it.
#
#   cargo test --release --workspace --test train_ops --test adamw --no-run; cargo bench --workspace --bench train_gpu --no-run
#   bash tests/gpu/train.sh FOLDER      with train_ops, adamw and bench_train_gpu, stripped
#
# Reads:  SHAPES, BATCHES, REPEATS, RECOMPUTE as tests/benches/train_gpu.rs; PYTHON, a Python with torch 2.11 and transformers
# shellcheck disable=SC1091
set -euo pipefail
[ $# -eq 1 ] || { sed -n '2,/^[^#]/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 64; }
here=$(dirname "${BASH_SOURCE[0]}")
. "$here/env.sh"
export SLIME_BENCH_PYTHON=${SLIME_BENCH_PYTHON:-${PYTHON:-python3}} SLIME_BENCHES=$here/../benches
"$1/adamw" --nocapture
"$1/train_ops" --nocapture
"$1/bench_train_gpu"

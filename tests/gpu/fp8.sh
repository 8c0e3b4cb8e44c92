#!/usr/bin/env bash
# Training with products in fp8 on a GPU of sm_90, from binaries built on another machine: codes, scales and products against their
# definitions, the loss of 400 steps beside that of bf16, the rate of the products and of a step.
#
#   cargo test --release --workspace --test fp8_ops --test fp8 --no-run; cargo bench --workspace --bench fp8_gpu --bench train_gpu --no-run
#   bash tests/gpu/fp8.sh FOLDER      with fp8_ops, fp8, bench_fp8_gpu and bench_train_gpu, stripped
#
# Reads:  PYTHON, a Python with torch 2.11; SHAPES, BATCHES, REPEATS as tests/benches/train_gpu.rs
# shellcheck disable=SC1091
set -euo pipefail
[ $# -eq 1 ] || { sed -n '2,/^[^#]/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 64; }
here=$(dirname "${BASH_SOURCE[0]}")
. "$here/env.sh"
export BATCHES=${BATCHES:-4096} RECOMPUTE=none
"$1/fp8_ops" --nocapture --test-threads 1
"$1/bench_fp8_gpu"
"$1/fp8" --nocapture on_a_gpu
for fp8 in none tensor block; do
    echo "=== train.fp8 $fp8"
    FP8=$fp8 "$1/bench_train_gpu" | grep -v '^  '
done

#!/usr/bin/env bash
# Generation on a GPU, from binaries built on another machine: recorded steps against the CPU, then the bench of throughput
# beside its floor.
#
#   cargo test --release --workspace --test gpu --no-run; cargo bench --workspace --bench engine --no-run
#   bash tests/gpu/engine.sh FOLDER      with gpu and bench_engine, stripped
#
# Reads:  SHAPES, WORKLOADS, KV, REPEATS as tests/benches/engine.rs
# shellcheck disable=SC1091
set -euo pipefail
[ $# -eq 1 ] || { sed -n '2,/^[^#]/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 64; }
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
"$1/gpu" --nocapture
"$1/bench_engine"

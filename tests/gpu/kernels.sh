#!/usr/bin/env bash
# Everything that only a GPU shows, from binaries built on another machine: training steps against the CPU, every kernel
# against its reference, then the kernels' bench.
#
#   cargo test --release --workspace --test cuda --test paged_attention --test experts --no-run; cargo bench --workspace --bench paged_attention --no-run
#   bash tests/gpu/kernels.sh FOLDER      with cuda, paged_attention, experts and bench_paged_attention, stripped
# shellcheck disable=SC1091
set -euo pipefail
[ $# -eq 1 ] || { sed -n '2,/^[^#]/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 64; }
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
"$1/cuda" --nocapture
"$1/paged_attention" --nocapture
"$1/experts" --nocapture
"$1/bench_paged_attention"

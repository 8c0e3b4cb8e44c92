#!/usr/bin/env bash
# Builds slime and runs its tests; the last line counts them.
#
#   bash tests/run.sh          what continuous integration runs: the workspace's tests, then the loop under Slurm
#   bash tests/run.sh --all    format, lints and the long sweeps as well
#
# Exit: 0 when every test passed, 1 when one failed, else the code of what could not be built.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 66
all=()
# What is skipped are no tests: processes that tests start, and the writer of a golden file.
[ "${1:-}" = --all ] && all=(--include-ignored --skip rank_body --skip child_body --skip write_golden)

bash modules/bootstrap.sh --tests || exit
# The MPI that bootstrap chose, for the tests that start ranks.
mpicc=$(sed -n 's/^SLIME_MPICC = "\(.*\)"$/\1/p' .cargo/config.toml)
[ -n "$mpicc" ] && export PATH="${mpicc%/*}:$PATH"
command -v mpirun >/dev/null || echo "tests: no mpirun: the tests under mpirun check nothing"
# The compiler of CUDA kernels, for the tests that compile them.
nvrtc=${SLIME_DEPS:-${XDG_CACHE_HOME:-$HOME/.cache}/slime}/nvrtc/nvidia/cu13/lib
[ ! -d "$nvrtc" ] || export LD_LIBRARY_PATH=$nvrtc${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
# Threads that spin while another rank waits for the core cost more than they bring.
export OMP_WAIT_POLICY=passive OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

if [ ${#all[@]} -gt 0 ]; then
    cargo fmt --all --check || exit 1
    cargo clippy --release --workspace --all-targets -- -D warnings || exit 1
fi
cargo build --release --workspace --bins || exit

log=$(mktemp)
trap 'rm -f "$log"' EXIT
cargo test --release --workspace --no-fail-fast -- "${all[@]}" 2>&1 | tee "$log"
status=${PIPESTATUS[0]}
slow=()
[ ${#all[@]} -eq 0 ] || slow=(--all)
bash tests/cluster/run.sh "${slow[@]}" 2>&1 | tee -a "$log"
# Without a Slurm its cases count as skipped.
case ${PIPESTATUS[0]} in 0 | 69) ;; *) status=1 ;; esac
awk '/^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$/ { p += $1; f += $3; s += $5 }
     /^test result:/ { for (i = 1; i < NF; i++) { if ($(i + 1) ~ /^passed/) p += $i; if ($(i + 1) ~ /^failed/) f += $i; if ($(i + 1) ~ /^ignored/) s += $i } }
     END { printf "%d passed, %d failed, %d skipped\n", p, f, s }' "$log"
exit "$status"

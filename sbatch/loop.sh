#!/usr/bin/env bash
# The whole loop on one page: a resident trainer and a resident rollout that meet only in the run directory.
#
#   bash sbatch/loop.sh configs/quickstart.toml [--set key=value ...]
#
# Reads:  the configuration; SLIME_RUN_DIR (default runs/<name of the configuration>), SLIME_BIN (default
#         target/release), SLIME_HOME
# Writes: the run directory. Started again with the same run directory, it goes on where it was.
# Exit:   the highest code of the tools; 75 when the run was drained before its last step.
set -euo pipefail
[ $# -ge 1 ] || { echo "usage: loop.sh CONFIG [--set key=value ...]" >&2; exit 64; }
config=$1
shift
home=${SLIME_HOME:-${SLURM_SUBMIT_DIR:-$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)}}
bin=${SLIME_BIN:-$home/target/release}
run=${SLIME_RUN_DIR:-$home/runs/$(basename "$config" .toml)}
# OpenMP threads that spin while the other tool computes cost more than they bring.
export OMP_WAIT_POLICY=passive

mkdir -p "$run"
if [ ! -e "$run/run.toml" ]; then
    "$bin/slime-train" --config "$config" "$@" --dry-run >"$run/.run.toml.tmp"
    mv "$run/.run.toml.tmp" "$run/run.toml"
fi

"$bin/slime-rollout" --follow "$run" &
rollout=$!
"$bin/slime-train" --follow "$run" &
train=$!
# A signal for the script is a signal for its tools: they drain at the next step boundary.
trap 'kill -USR2 "$rollout" "$train" 2>/dev/null || true' USR1 USR2 TERM INT

code=0
finish() { # waits again when a trapped signal interrupted the wait
    local status=0
    while kill -0 "$1" 2>/dev/null; do wait "$1" && status=0 || status=$?; done
    wait "$1" 2>/dev/null || status=$?
    [ "$status" -le "$code" ] || code=$status
    # Without its partner a tool would wait for ever.
    [ "$status" -eq 0 ] || kill -USR2 "$rollout" "$train" 2>/dev/null || true
}
finish "$train"
finish "$rollout"
exit "$code"

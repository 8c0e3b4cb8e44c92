#!/usr/bin/env bash
# The whole loop on one page: a resident trainer and a resident rollout that meet only in the run directory.
#
#   bash sbatch/loop.sh configs/quickstart.toml [--set key=value ...]
#
# Reads:  the configuration; SLIME_RUN_DIR (default runs/<name of the configuration>) and what env.sh reads
# Writes: the run directory. Started again with the same run directory, it goes on where it was.
# Exit:   0, the code of the tool that failed, or 75 when the run was drained before its last step.
set -euo pipefail
[ $# -ge 1 ] || { echo "usage: loop.sh CONFIG [--set key=value ...]" >&2; exit 64; }
config=$1
shift
. "${SLIME_HOME:-${SLURM_SUBMIT_DIR:-$(dirname "${BASH_SOURCE[0]}")/..}}/sbatch/env.sh"
run=${SLIME_RUN_DIR:-$home/runs/$(basename "$config" .toml)}

if [ ! -e "$run/run.toml" ]; then
    resolved=$("$bin/slime-train" --config "$config" "$@" --dry-run)
    mkdir -p "$run"
    printf '%s\n' "$resolved" >"$run/.run.toml.tmp"
    mv "$run/.run.toml.tmp" "$run/run.toml"
fi

"$bin/slime-rollout" --follow "$run" &
rollout=$!
"$bin/slime-train" --follow "$run" &
train=$!
drain() { kill -USR2 "$rollout" "$train" 2>/dev/null || true; }
# A signal for the script is a signal for its tools: they drain at the next step boundary.
trap drain USR1 USR2 TERM INT

code=0
tools=("$rollout" "$train")
while [ ${#tools[@]} -gt 0 ]; do
    wait -n "${tools[@]}" || true # a trapped signal ends this wait too
    alive=()
    for tool in "${tools[@]}"; do
        if kill -0 "$tool" 2>/dev/null; then alive+=("$tool"); continue; fi
        status=0
        wait "$tool" || status=$?
        # The signal came before the tool could catch it: nothing was begun, which is a drain too.
        [ "$status" -ne $((128 + $(kill -l USR2))) ] || status=75
        # A failure says more than the drain of its partner, which without it would wait for ever.
        if [ "$status" -ne 0 ]; then
            case $code in 0 | 75) code=$status ;; esac
            drain
        fi
    done
    tools=("${alive[@]}")
done
exit "$code"

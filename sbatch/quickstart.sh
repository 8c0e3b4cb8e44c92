#!/usr/bin/env bash
# A small language model learns to add while you watch; everything from nothing, on this machine.
#
#   bash sbatch/quickstart.sh
#
# Builds the tools, fetches SmolLM2-135M-Instruct, trains it on sums of numbers below 10, then on sums of numbers
# below 100, and shows the answers to the same questions before and after. Started again, it goes on where it was.
#
# Reads:  SLIME_RUN_DIR (default runs/quickstart; the second stage is beside it, with -hundred), SLIME_BIN (when it is
#         set nothing is built), SLIME_WEIGHTS (default weights/SmolLM2-135M-Instruct; imported when it is missing),
#         PYTHON (default python3, for pip)
# Writes: both run directories; their loop.log has what the tools say
# Exit:   0, 75 when it was interrupted (it has drained: start it again), else the code of what failed
set -euo pipefail
. "${SLIME_HOME:-${SLURM_SUBMIT_DIR:-$(dirname "${BASH_SOURCE[0]}")/..}}/sbatch/env.sh" ||
    { echo "hint: start from the folder of slime, or set SLIME_HOME to it" >&2; exit 66; }
run=${SLIME_RUN_DIR:-$home/runs/quickstart}
weights=${SLIME_WEIGHTS:-$home/weights/SmolLM2-135M-Instruct}
if [ $# -ne 0 ]; then
    sed -n '2,/^[^#]/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
    case $1 in -h | --help) exit 0 ;; *) exit 64 ;; esac
fi
say() { printf 'quickstart: %s\n' "$*"; }

if [ -z "${SLIME_BIN:-}" ] && [ -e "$home/modules/bootstrap.sh" ]; then
    say "building the tools (minutes the first time)"
    bash "$home/modules/bootstrap.sh"
    (cd "$home" && cargo build --release --bins)
fi

. "$home/sbatch/fetch_smollm2.sh"
fetch_smollm2 "$weights"

# Trains one stage in the background and shows its progress in front.
stage() {
    local run=$1 code=0
    shift
    if [ -e "$run/control/done" ]; then
        say "$run is done already; remove it to train again"
        show "$run"
        return
    fi
    mkdir -p "$run"
    SLIME_RUN_DIR=$run bash "$home/sbatch/loop.sh" "$@" >>"$run/loop.log" 2>&1 &
    loop=$!
    # An interrupted quickstart drains: the tools end at the next step boundary.
    trap 'kill -TERM "$loop" 2>/dev/null || true' INT TERM
    while [ ! -e "$run/run.toml" ] && kill -0 "$loop" 2>/dev/null; do sleep 0.1; done
    local watch=
    if [ -e "$run/run.toml" ]; then
        "$bin/slime-stat" "$run" --watch &
        watch=$!
    fi
    # A trapped signal ends a wait too, so only the wait after the end has the loop's own code.
    while kill -0 "$loop" 2>/dev/null; do wait "$loop" || true; done
    wait "$loop" || code=$?
    if [ "$code" -ne 0 ]; then
        [ -z "$watch" ] || kill -TERM "$watch" 2>/dev/null || true
        wait
        if [ "$code" -eq 75 ]; then
            say "stopped between steps; the same command goes on from there"
            exit 75
        fi
        say "the loop ended with code $code; $run/loop.log ends with"
        tail -n 5 "$run/loop.log"
        exit "$code"
    fi
    if [ ! -e "$run/control/done" ]; then
        [ -z "$watch" ] || kill -TERM "$watch" 2>/dev/null || true
        wait
        say "stopped by control/stop; remove it and the same command goes on from there"
        exit 0
    fi
    [ -z "$watch" ] || wait "$watch"
    show "$run"
}

# The table and curves of a stage, and the same questions before and after.
show() {
    echo
    "$bin/slime-stat" "$1"
    "$bin/slime-stat" "$1" --answers greedy
}

say "stage 1: sums of numbers below 10"
stage "$run" "$home/configs/quickstart.toml" --set "model.path=$weights"
# Names order as numbers do: the last is the newest policy.
newest=$(find "$run/weights" -mindepth 1 -maxdepth 1 -type d -name '[0-9]*' | sort | tail -n 1)
echo
say "stage 2: sums of numbers below 100, from $newest"
stage "$run-hundred" "$home/configs/quickstart_hundred.toml" --set "model.path=$newest"
echo
say "the new policy is $(find "$run-hundred/weights" -mindepth 1 -maxdepth 1 -type d -name '[0-9]*' | sort | tail -n 1)"
say "look again with: $bin/slime-stat $run"

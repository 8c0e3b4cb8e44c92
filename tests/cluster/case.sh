# What every case has at hand: `bash case.sh NAME` runs cases/NAME.sh in the folder it is started in.
#
# A case is a script whose first line says what it claims. It ends with 0, with 77 after `skip`, or with a failure.
# shellcheck shell=bash disable=SC2034,SC2154
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
sbatch=$SLIME_HOME/sbatch
bin=$SLIME_BIN
jobs=()
trap 'code=$?; trap - EXIT; [ ${#jobs[@]} -eq 0 ] || scancel "${jobs[@]}" 2>/dev/null; exit $code' EXIT
trap 'echo "took too long"; exit 1' TERM

fail() { echo "FAILED: $*"; exit 1; }
skip() { echo "$*"; exit 77; }
needs_nodes() { [ "$TEST_NODES" -ge "$1" ] || skip "needs $1 nodes"; }
# Some accidents only an administrator can make happen.
needs_own_cluster() { [ "$TEST_HERE" = 0 ] || skip "only an administrator can make this happen"; }

# A model of random weights whose every token is a number, so that rewards have something to see.
model() {
    [ -e weights ] || bash "$SLIME_HOME/tests/fixtures/tiny_weights.sh" weights
}

# tiny NAME [KEY=VALUE ...]: a configuration for a run of that name; `run` is its directory from now on.
tiny() {
    model
    run=$PWD/$1
    config=$PWD/$1.toml
    shift
    local sets=() set
    for set in model.path="$PWD/weights" 'reward.types=["format:regex=[02468]$"]' rollout.rollout_batch_size=4 \
        rollout.n_samples_per_prompt=8 train.lr=3e-2 "$@"; do sets+=(--set "$set"); done
    "$bin/slime-train" --config "$SLIME_HOME/configs/tiny.toml" "${sets[@]}" --dry-run >"$config"
    export SLIME_RUN_DIR=$run
}

# submit ARGS...: `sbatch` of a script; `job` is its number.
submit() {
    job=$(command sbatch --parsable --time=20 --output="$PWD/%x-%j.out" "$@")
    job=${job%%;*}
    jobs+=("$job")
}

# until_true SECONDS WHAT COMMAND...: waits for a command to succeed.
until_true() {
    local deadline=$((SECONDS + $1)) what=$2
    shift 2
    until "$@"; do
        [ "$SECONDS" -lt "$deadline" ] || fail "$what: not within the time"
        if [ -n "${job:-}" ] && has_ended "$job"; then
            "$@" && return
            fail "$what: the job has ended without"
        fi
        sleep 0.2
    done
}
state() { squeue -h -j "$1" -o %T 2>/dev/null | head -n 1; }
is_in_state() { case " $2 " in *" $(state "$1") "*) ;; *) return 1 ;; esac; }
has_ended() { case $(scontrol -o show job "$1" | sed -n 's/.*JobState=\([A-Z_]*\).*/\1/p' | head -n 1) in PENDING | RUNNING | COMPLETING | CONFIGURING | SUSPENDED | REQUEUED) return 1 ;; esac; }
field() { scontrol -o show job "$1" | head -n 1 | tr ' ' '\n' | sed -n "s/^$2=//p" | head -n 1; }
# ends JOB STATE [SECONDS]: waits for the end of a job and compares.
ends() {
    local job= # its end is what is waited for
    until_true "${3:-240}" "the end of job $1" has_ended "$1"
    [ "$(field "$1" JobState)" = "$2" ] || fail "job $1 is $(field "$1" JobState), expected $2"
}
outcome() { [ "$(cat "$run/attempt-$1/outcome")" = "$2" ] || fail "attempt $1 of $run is '$(cat "$run/attempt-$1/outcome")', expected '$2'"; }
step_is_committed() { [ -e "$run/rollout/$(printf %06d "$1")/MANIFEST.json" ]; }
# is_whole NUM_STEPS: the run is done, each step was committed once and trained.
is_whole() {
    local k
    [ -e "$run/control/done" ] || fail "$run is not done"
    for ((k = 0; k < $1; k++)); do step_is_committed "$k" || fail "step $k was not committed"; done
    "$bin/slime-stat" "$run" --json | python3 -c '
import json, sys
stat, steps = json.load(sys.stdin), int(sys.argv[1])
assert stat["outcome"] == "done", stat["outcome"]
assert [row["step"] for row in stat["steps"]] == list(range(steps)), stat["steps"]
' "$1" || fail "slime-stat does not see $1 whole steps"
}

# shellcheck source=/dev/null
. "$here/cases/$1.sh"

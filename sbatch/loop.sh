#!/usr/bin/env bash
# The whole loop on one page: a trainer, replicas and rewards that meet only in the run directory.
#
#   bash sbatch/loop.sh configs/quickstart.toml [--set key=value ...]     on this machine
#   sbatch sbatch/loop.sh configs/quickstart.toml [--set key=value ...]   as steps of one job
#
# Reads:  the configuration; SLIME_RUN_DIR (default runs/<name of the configuration>; in a job array the task's number
#         is the seed and ends the name); SLIME_TRAIN_RANKS (1; with GPUs or several nodes one for each);
#         SLIME_ENGINES (addresses of servers that generate in place of our engine, which then takes neither GPUs nor nodes
#         of its own), SLIME_ENGINE_TOKEN_FILE (what they want to be shown), SLIME_ROLLOUT_NODES (the last half of several nodes), SLIME_REWARD_WORKERS (1), SLIME_REPLICA_GPUS (rollout.tp),
#         SLIME_COLOCATE (1: tools share GPUs and cores), SLIME_PREFLIGHT (0: nodes are not looked at first), and what
#         env.sh and job.sh read. In a heterogeneous job the trainer has the first component, replicas the second,
#         rewards the third.
# Writes: the run directory. Started again with the same run directory, it goes on where it was.
# Exit:   0 when the run is done or was stopped by control/stop, the code of the tool that failed, or 75 when it was
#         drained before its last step.
#SBATCH --job-name=slime
#SBATCH --nodes=1
#SBATCH --time=04:00:00
#SBATCH --signal=USR2@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,/^[^#]/{/^#SBATCH/d;s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 0 ;; esac
shopt -s nullglob
[ $# -ge 1 ] || { echo "usage: loop.sh CONFIG [--set key=value ...]" >&2; exit 64; }
config=$1
shift
sets=("$@")
. "${SLIME_HOME:-${SLURM_SUBMIT_DIR:-$(dirname "${BASH_SOURCE[0]}")/..}}/sbatch/env.sh" ||
    { echo "hint: start from the folder of slime, or set SLIME_HOME to it" >&2; exit 66; }
. "$home/sbatch/job.sh"

run=${SLIME_RUN_DIR:-$home/runs/$(basename "$config" .toml)}
if [ -n "${SLURM_ARRAY_TASK_ID:-}" ]; then
    run=$run-seed$SLURM_ARRAY_TASK_ID
    sets+=(--set "run.seed=$SLURM_ARRAY_TASK_ID")
fi
if [ -e "$run/control/done" ]; then
    say "$run is done"
    [ ${#sets[@]} -eq 0 ] || say "hint: settings change nothing there; SLIME_RUN_DIR chooses another folder for another run"
    exit 0
fi
if [ -e "$run/control/stop" ]; then say "$run was stopped; remove control/stop to go on"; exit 0; fi

# The configuration is resolved once; a run does not change under way.
resolved=$(tool slime-train --config "$config" "${sets[@]}" --dry-run)
if [ ! -e "$run/run.toml" ]; then
    mkdir -p "$run" || die 73 "cannot make $run" "SLIME_RUN_DIR chooses another place"
    printf '%s\n' "$resolved" >"$run/.run.toml.tmp"
    mv "$run/.run.toml.tmp" "$run/run.toml"
elif ! differs=$(diff <(grep -v '^#' "$run/run.toml") <(grep -v '^#' <<<"$resolved")); then
    say "warning: the run goes on with its own run.toml; not used: $(sed -n 's/^> //p' <<<"$differs" | tr '\n' ';')"
    say "hint: SLIME_RUN_DIR chooses another folder for another run"
fi

mkdir -p "$run/control"

num_replicas=$(setting rollout num_replicas)
engines=()
for address in ${SLIME_ENGINES:-}; do engines+=(--engine "$address"); done
if [ ${#engines[@]} -gt 0 ] && [ -n "${SLIME_ENGINE_TOKEN_FILE:-}" ]; then engines+=(--engine-token-file "$SLIME_ENGINE_TOKEN_FILE"); fi
num_workers=0
if [ "$(setting reward placement)" = separate ]; then num_workers=${SLIME_REWARD_WORKERS:-1}; fi
. "$home/sbatch/layout.sh"

# A signal for the script is a signal for its tools. TERM for a batch script means that the job is being ended.
trap drain USR1 USR2 INT
trap 'is_terminated=1; drain' TERM
attempts=$run
begin_attempt
if [ "$in_slurm" = 1 ] && [ "${SLIME_PREFLIGHT:-1}" != 0 ]; then
    bad=$(bash "$home/sbatch/preflight.sh" "$run" "$attempt") || {
        code=$?
        [ -z "$bad" ] || say "not fit: $bad; sbatch --exclude=$bad leaves them out"
        end_attempt
    }
fi

roles=(trainer builder.0)
# A single replica and the step builder are one process.
if [ "$num_replicas" -gt 1 ]; then for ((i = 0; i < num_replicas; i++)); do roles+=("replica.$i"); done; fi
for ((i = 0; i < num_workers; i++)); do roles+=("reward.$i"); done
command_of() {
    case $1 in
        trainer) words=("$bin/slime-train" --follow "$run") ;;
        builder.0) words=("$bin/slime-rollout" --follow "$run") ;;
        replica.*) words=("$bin/slime-rollout" --follow "$run" --replica "${1#*.}") ;;
        reward.*) words=("$bin/slime-reward" --follow "$run" --worker "${1#*.}" --num-workers "$num_workers") ;;
    esac
    if [ "$1" = builder.0 ] && [ "$num_replicas" -gt 1 ]; then words+=(--builder); fi
    case $1 in
        replica.* | builder.0) if [[ " ${words[*]} " != *" --builder "* ]]; then words+=("${engines[@]}"); fi ;;
    esac
}
for role in "${roles[@]}"; do launch "$role"; done
[ "$is_asked" = 0 ] || drain # a signal that came while they were started
supervise
end_attempt

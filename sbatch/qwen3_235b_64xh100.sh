#!/usr/bin/env bash
# Qwen3-235B-A22B on DAPO-Math-17k: 64 H100 that train, and servers that generate.
# 8 nodes for the trainer; published layout: TP 4, PP 4 (24, 24, 24 and 22 layers), CP 2, EP 16, DP 2. A copy of the model fits no single GPU, so that
# it is sampled from servers of SGLang or vLLM on nodes of their own (SLIME_ENGINES), which get new weights by disk.
#
#   SLIME_ENGINES="http://n9:30000 http://n11:30000" sbatch sbatch/qwen3_235b_64xh100.sh [--set key=value ...]
#   bash sbatch/qwen3_235b_64xh100.sh --dry-run [--set key=value ...]     what a rank holds, computes and sends, no GPU needed
#
# Reads:  SLIME_RUN_DIR (default runs/qwen3_235b), SLIME_WEIGHTS (default weights/Qwen3-235B-A22B), SLIME_DATA (default data: the folder
#         of dapo-math-17k.jsonl and aime-2024.jsonl), SLIME_ENGINES (addresses of the servers), and what loop.sh reads.
#         Fetch them on a node with network: bash sbatch/fetch.sh Qwen/Qwen3-235B-A22B weights/Qwen3-235B-A22B
# Writes: the run directory; look with slime-stat
# Exit:   as loop.sh; 64 without servers, 78 when a rank takes more than [cluster] of the configuration says it has
#SBATCH --job-name=qwen3_235b
#SBATCH --nodes=8
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --time=24:00:00
#SBATCH --signal=USR2@600
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out
# shellcheck disable=SC1091,SC2154
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,/^[^#]/{/^#SBATCH/d;s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 0 ;; esac
. "${SLIME_HOME:-${SLURM_SUBMIT_DIR:-$(dirname "${BASH_SOURCE[0]}")/..}}/sbatch/env.sh" ||
    { echo "hint: start from the folder of slime, or set SLIME_HOME to it" >&2; exit 66; }
config=$home/configs/qwen3_235b.toml data=${SLIME_DATA:-$home/data}
sets=(--set "model.path=${SLIME_WEIGHTS:-$home/weights/Qwen3-235B-A22B}"
    --set "data.prompts=$data/dapo-math-17k.jsonl" --set "eval.aime24.prompts=$data/aime-2024.jsonl")
if [ "${1:-}" = --dry-run ]; then
    tool slime-train --config "$config" "${sets[@]}" "$@"
    exit
fi
[ -n "${SLIME_ENGINES:-}" ] || die 64 "SLIME_ENGINES names no server" "http://HOST:PORT of every server of SGLang or vLLM that has the model"
export SLIME_TRAIN_RANKS=${SLIME_TRAIN_RANKS:-64} SLIME_ENGINES
exec bash "$home/sbatch/loop.sh" "$config" "${sets[@]}" "$@"

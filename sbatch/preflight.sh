#!/usr/bin/env bash
# Looks at every node of a job, and at the links between them, before tools start there; the loop calls it.
#
#   bash sbatch/preflight.sh RUN FOLDER          inside a job
#   sbatch --nodes=4 sbatch/preflight.sh runs/x runs/x/preflight     as a job of its own
#
# Reads:  SLIME_GPUS_PER_NODE (default what Slurm gives), SLIME_MIN_FREE_GB (10), SLIME_MIN_LINK_SHARE
#         (0.5 of the median bandwidth; 0 judges none), SLIME_MPI (pmix), and what env.sh reads
# Writes: FOLDER/{node.jsonl,link.jsonl,preflight.json}; the names of bad nodes on stdout, for sbatch --exclude
# Exit:   0, or 69 when a node is not fit
#SBATCH --job-name=preflight
#SBATCH --nodes=1
#SBATCH --time=00:10:00
#SBATCH --output=%x-%j.out
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,/^[^#]/{/^#SBATCH/d;s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 0 ;; esac
[ $# -eq 2 ] || { echo "usage: preflight.sh RUN FOLDER" >&2; exit 64; }
run=$1 folder=$2
. "${SLIME_HOME:-${SLURM_SUBMIT_DIR:-$(dirname "${BASH_SOURCE[0]}")/..}}/sbatch/env.sh" ||
    { echo "hint: start from the folder of slime, or set SLIME_HOME to it" >&2; exit 66; }
[ "$in_slurm" = 1 ] || die 64 "not inside a job" "sbatch --nodes=2 sbatch/preflight.sh RUN FOLDER"
mkdir -p "$run" "$folder" || die 73 "cannot make $folder" "is the run directory writable from $(hostname)?"
canary=$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}.$RANDOM
echo "$canary" >"$folder/canary"
num_gpus=${SLIME_GPUS_PER_NODE:-${SLURM_GPUS_ON_NODE:-0}}
gpus=() no_gpus=()
if [ "$num_gpus" -gt 0 ]; then gpus=(--gpus-per-node="$num_gpus") no_gpus=(--gpus-per-node=0); fi
mpi=()
: >"$folder/node.jsonl"
: >"$folder/link.jsonl"
expected=
links=()
for ((component = 0; component < ${SLURM_HET_SIZE:-1}; component++)); do
    list=SLURM_JOB_NODELIST_HET_GROUP_$component
    mapfile -t nodes < <(scontrol show hostnames "${!list:-$SLURM_JOB_NODELIST}")
    expected+=${expected:+,}$(IFS=, && echo "${nodes[*]}")
    group=()
    if [ "${SLURM_HET_SIZE:-1}" -gt 1 ]; then group=(--het-group="$component"); fi
    step=("${group[@]}" --overlap --mem=0 --cpus-per-task=1 --nodes="${#nodes[@]}" --ntasks="${#nodes[@]}" --ntasks-per-node=1)
    if [ ${#nodes[@]} -gt 1 ]; then mpi=(--mpi); fi
    # A node that does not answer is the verdict's matter, and so is one whose step fails.
    timeout 180 srun "${step[@]}" "${gpus[@]}" --job-name=preflight "${container_of_step[@]}" "${in_image[@]}" \
        "$bin/slime-sync" preflight node --run "$run" --canary "$canary" --canary-file "$folder/canary" \
        --gpus "$num_gpus" --min-free-gb "${SLIME_MIN_FREE_GB:-10}" "${mpi[@]}" >>"$folder/node.jsonl" </dev/null || true
    if [ ${#nodes[@]} -gt 1 ]; then
        if [ "${SLURM_HET_SIZE:-1}" -eq 1 ]; then links=(--expect-links); fi
        timeout 180 srun "${step[@]}" "${no_gpus[@]}" --mpi="${SLIME_MPI:-pmix}" --kill-on-bad-exit=1 --job-name=preflight \
            "${container_of_step[@]}" "${in_image[@]}" "$bin/slime-sync" preflight link --min-share "${SLIME_MIN_LINK_SHARE:-0.5}" >>"$folder/link.jsonl" </dev/null || true
    fi
done
cat "$folder/node.jsonl" "$folder/link.jsonl" |
    tool slime-sync preflight verdict --expect-nodes "$expected" "${links[@]}" --output "$folder/preflight.json"

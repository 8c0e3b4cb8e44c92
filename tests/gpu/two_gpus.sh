#!/usr/bin/env bash
# Data parallel on two GPUs: collectives over NCCL against their definition, links between GPUs, the same gradients on
# one and two ranks, and the loop with a trainer of two ranks.
#
#   cargo test --release --workspace --test nccl --no-run
#   bash tests/gpu/two_gpus.sh FOLDER      with nccl, stripped; mpirun on PATH
#
# Reads:  as quickstart.sh beside this; a tiny model of random weights stands in where the real one is not there
# Exit:   0 when all of it held
# shellcheck disable=SC2154,SC1091
set -euo pipefail
[ $# -eq 1 ] || { sed -n '2,/^[^#]/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 64; }
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
. "$(dirname "${BASH_SOURCE[0]}")/../../sbatch/env.sh"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mpirun -n 2 "$1/nccl" --nocapture 2>&1 | grep -E 'ranks:|test result|panicked'
bash "$home/tests/gpu/preflight.sh" "$bin/slime-sync"

weights=${SLIME_WEIGHTS:-$home/weights/SmolLM2-135M-Instruct} config=$home/configs/quickstart.toml
if [ ! -e "$weights/config.json" ]; then
    weights=$scratch/tiny config=$home/configs/tiny.toml
    bash "$home/tests/fixtures/tiny_weights.sh" "$weights"
fi
echo "--- one step on one and two ranks"
settings=(--config "$config" --set "model.path=$weights" --set run.device=cuda)
"$bin/slime-rollout" "${settings[@]}" --weights "$weights" --num-prompts 8 --set rollout.n_samples_per_prompt=8 --format jsonl --output - |
    "$bin/slime-reward" "${settings[@]}" --output "$scratch/samples.jsonl"
# A reward that differs within groups, whatever the model answers.
"${PYTHON:-python3}" - "$scratch/samples.jsonl" <<'PY'
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
with open(sys.argv[1], "w") as out:
    for i, row in enumerate(rows):
        row["reward"] = float(i % 3)
        out.write(json.dumps(row) + "\n")
PY
for ranks in 1 2; do
    mpirun -n "$ranks" "$bin/slime-train" "${settings[@]}" --set rollout.rollout_batch_size=8 --set rollout.n_samples_per_prompt=8 \
        --samples "$scratch/samples.jsonl" --dump "$scratch/dump$ranks"
done
"${PYTHON:-python3}" - "$scratch" <<'PY'
import json, sys
from safetensors.torch import load_file
one, two = (load_file(f"{sys.argv[1]}/dump{n}/grads.safetensors") for n in (1, 2))
distance = sum(((one[k].double() - two[k].double()) ** 2).sum() for k in one) ** 0.5
size = sum((one[k].double() ** 2).sum() for k in one) ** 0.5
print(f"gradients on two ranks differ from one by {distance / size:.2e} of their norm {size:.3f}")
sys.exit(0 if 0 < size and distance / size < 1e-4 else 1)
PY
echo "--- the loop with a trainer of two ranks"
SLIME_TRAIN_RANKS=2 SLIME_RUN_DIR=$scratch/run bash "$home/sbatch/loop.sh" "$config" --set "model.path=$weights" --set run.device=cuda \
    --set model.dtype=bf16 >"$scratch/loop.log" 2>&1 || { code=$?; tail -n 20 "$scratch/loop.log"; exit "$code"; }
grep -h 'computing in' "$scratch/loop.log" | sed 's/.*INFO //' | sort | uniq -c
"$bin/slime-stat" "$scratch/run" | head -n 16

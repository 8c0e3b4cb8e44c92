#!/usr/bin/env bash
# Stages, contexts, experts and tensors split over ranks that share one GPU (between them everything goes through the host):
# loss and gradients of one step against one rank, in f32 and bf16.
#
#   bash tests/gpu/split.sh      mpirun on PATH
#
# Reads:  SLIME_BIN (default target/release); SLIME_TORCH as sbatch/env.sh
# Exit:   0 when all of it held
# shellcheck disable=SC2154,SC1091
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
. "$(dirname "${BASH_SOURCE[0]}")/../../sbatch/env.sh"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"${PYTHON:-python3}" "$home/tests/fixtures/glm47_in_small.py" "$scratch/weights"
"${PYTHON:-python3}" - "$scratch/samples.jsonl" <<'PY'
import json, random, sys
draw = random.Random(3)
with open(sys.argv[1], "w") as out:
    for group in range(8):
        prompt = [draw.randrange(96) for _ in range(20 + 60 * group)]
        for index in range(4):
            response = [draw.randrange(96) for _ in range(draw.randrange(10, 300))]
            row = {"step": 0, "group": group, "index": index, "status": "completed", "tokens": prompt + response,
                   "prompt_len": len(prompt), "loss_mask": [1] * len(response),
                   "rollout_log_probs": [-4.5] * len(response), "reward": float(index % 3)}
            out.write(json.dumps(row) + "\n")
PY
# step NAME RANKS ARGS...: one step on some ranks, its loss and gradients in a folder of that name.
step() {
    local name=$1 ranks=$2
    shift 2
    mpirun -n "$ranks" "$bin/slime-train" --set "model.path=$scratch/weights" --set run.device=cuda --set rollout.rollout_batch_size=8 \
        --set rollout.n_samples_per_prompt=4 --set train.max_tokens_per_gpu=800 --set train.lr=1e-3 "$@" \
        --samples "$scratch/samples.jsonl" --dump "$scratch/$name" -q </dev/null
}
status=0
for dtype in f32 bf16; do
    step "$dtype" 1 --set "model.dtype=$dtype"
    while read -r name ranks sets; do
        # shellcheck disable=SC2086
        step "$dtype-$name" "$ranks" --set "model.dtype=$dtype" $sets
        "${PYTHON:-python3}" - "$scratch" "$dtype" "$name" <<'PY' || status=1
import json, sys
from safetensors.torch import load_file
scratch, dtype, name = sys.argv[1:]
one, many = (load_file(f"{scratch}/{at}/grads.safetensors") for at in (dtype, f"{dtype}-{name}"))
losses = [json.load(open(f"{scratch}/{at}/loss.json"))["loss"] for at in (dtype, f"{dtype}-{name}")]
distance = sum(((one[k].double() - many[k].double()) ** 2).sum() for k in one) ** 0.5
size = sum((one[k].double() ** 2).sum() for k in one) ** 0.5
bound = 1e-4 if dtype == "f32" else 5e-2
print(f"{dtype} {name}: gradients differ by {distance / size:.1e} of their norm, losses {losses[0]:.3e} and {losses[1]:.3e}")
sys.exit(0 if one.keys() == many.keys() and 0 < size and distance / size < bound else 1)
PY
    done <<'WAYS'
pp 2 --set parallel.pp=2
pp-interleaved 2 --set parallel.pp=2 --set parallel.virtual_pp=2 --set train.recompute=full
cp 2 --set parallel.cp=2
cp-p2p 2 --set parallel.cp=2 --set parallel.cp_comm_type=p2p --set train.recompute=selective
tp-ep 2 --set parallel.tp=2 --set parallel.ep=2
all 8 --set parallel.tp=2 --set parallel.pp=2 --set parallel.cp=2 --set parallel.ep=4
WAYS
done
exit "$status"

#!/usr/bin/env bash
# The loop of the quickstart on a GPU: bf16 with fp32 master weights, then f32, each held to what the CPU's must reach.
#
#   bash tests/gpu/quickstart.sh [FOLDER]      FOLDER gets the runs (default a temporary one)
#
# Reads:  SLIME_BIN (default target/release); SLIME_WEIGHTS (default weights/SmolLM2-135M-Instruct, imported from
#         SLIME_GGUF or fetched where there is network; without either a tiny model of random weights stands in, which
#         learns nothing: then only the loop itself is held to account); SLIME_TORCH as sbatch/env.sh, else this Python's
# Writes: FOLDER/{bf16,f32}; the tables and what each run must reach on stdout
# Exit:   0 when both runs reached it, 1 when one did not, else the code of the loop
# shellcheck disable=SC2154,SC1091
set -euo pipefail
folder=${1:-$(mktemp -d)}
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
. "$(dirname "${BASH_SOURCE[0]}")/../../sbatch/env.sh"
. "$home/sbatch/fetch_smollm2.sh"
weights=${SLIME_WEIGHTS:-$home/weights/SmolLM2-135M-Instruct}
config=$home/configs/quickstart.toml
if [ ! -e "$weights/config.json" ] && [ -n "${SLIME_GGUF:-}" ]; then
    "$bin/slime-convert" import "$SLIME_GGUF" "$weights"
fi
is_real=1
if ! (fetch_smollm2 "$weights"); then
    is_real=0 weights=$folder/tiny config=$home/configs/tiny.toml
    bash "$home/tests/fixtures/tiny_weights.sh" "$weights"
fi
mkdir -p "$folder"
failed=0
for dtype in bf16 f32; do
    run=$folder/$dtype
    echo "--- $dtype"
    SLIME_RUN_DIR=$run bash "$home/sbatch/loop.sh" "$config" --set "model.path=$weights" --set "model.dtype=$dtype" \
        --set run.device=cuda >"$folder/$dtype.log" 2>&1 || { code=$?; tail -n 20 "$folder/$dtype.log"; exit "$code"; }
    grep -h 'computing in' "$folder/$dtype.log" | sort | uniq -c
    "$bin/slime-stat" "$run"
    [ "$is_real" = 0 ] || "$bin/slime-stat" "$run" --answers greedy | head -n 12
    "$bin/slime-stat" "$run" --json | "${PYTHON:-python3}" -c '
import json, sys
is_real, dtype = sys.argv[1] == "1", sys.argv[2]
run = json.load(sys.stdin)
steps, outcome = run["steps"], run["outcome"]
first, best = steps[0]["reward_mean"], max(step["reward_mean"] for step in steps)
numbers = [value for step in steps for key, value in step.items() if "abs_diff" in key]
held_out = [row["reward_mean"] for row in run["eval"] if row["set"] == "held_out"] or [0]
print(f"{dtype}: outcome {outcome}, reward {first:.3f} to at most {best:.3f}, held out {held_out[0]:.3f} to {held_out[-1]:.3f},"
      f" largest log-prob difference {max(numbers):.2e}")
good = run["outcome"] == "done" and (not is_real or (first < 0.4 and best >= 0.8 and held_out[-1] > held_out[0]))
# In f32 generation and training must agree as they do on the CPU; bf16 is measured.
if dtype == "f32":
    good = good and max(numbers) <= 1e-3
sys.exit(0 if good else 1)
' "$is_real" "$dtype" || { echo "$dtype: did not reach what the CPU reaches"; failed=1; }
done
exit "$failed"

#!/usr/bin/env bash
# The whole loop beside TRL's GRPOTrainer, one after the other: the same weights, prompts (sums of two numbers below 10, after
# EXAMPLES worked ones, in the same order), groups, samples, response length, learning rate, AdamW and threads, synchronous.
#
#   bash tests/benches/loop_against_trl.sh WEIGHTS [FOLDER]      FOLDER gets the runs (default a temporary one)
#
# Reads:  SLIME_BIN (default target/release), SLIME_BENCH_PYTHON (default python3: one with torch, transformers 5, trl,
#         datasets and accelerate), STEPS (6), GROUPS_OF_STEP (8), SAMPLES (8), RESPONSE_LEN (10), LR (2e-5),
#         EXAMPLES (0), TRL_BATCH (all: samples that TRL trains at once, for its memory), EOS ("<|im_end|>"), THREADS (all cores),
#         TURNS (2: how often each runs, by turns, with seeds 1, 2, ...), DEVICE (cpu; cuda: trainer and generator share the
#         one GPU, as TRL's do), DTYPE (f32; bf16: ours generates and trains with bf16 weights and f32 masters, TRL with f32
#         weights under autocast, so small updates show in its answers sooner), TRANSPORT (disk: of the weights)
# Writes: FOLDER; one line a run and the ratios on stdout
# Exit:   0, or the code of what failed
# shellcheck disable=SC1091
set -euo pipefail
[ $# -ge 1 ] || { echo "usage: loop_against_trl.sh WEIGHTS [FOLDER]" >&2; exit 64; }
weights=$(cd "$1" && pwd)
folder=${2:-$(mktemp -d)}
benches=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bin=${SLIME_BIN:-$benches/../../target/release}
python=${SLIME_BENCH_PYTHON:-python3}
steps=${STEPS:-6} groups=${GROUPS_OF_STEP:-8} samples=${SAMPLES:-8} response_len=${RESPONSE_LEN:-10}
lr=${LR:-2e-5} eos=${EOS:-<|im_end|>} threads=${THREADS:-$(nproc)} turns=${TURNS:-2} examples=${EXAMPLES:-0}
trl_batch=${TRL_BATCH:-$((groups * samples))}
device=${DEVICE:-cpu} dtype=${DTYPE:-f32} transport=${TRANSPORT:-disk}
[ "$device" = cpu ] || . "$benches/../gpu/env.sh"
export OMP_NUM_THREADS=$threads OMP_WAIT_POLICY=passive
mkdir -p "$folder"

"$python" - "$((steps * groups))" "$examples" >"$folder/prompts.jsonl" <<'PY'
import json, random, sys
pairs = [(a, b) for a in range(10) for b in range(10)]
random.Random(1).shuffle(pairs)
rows, examples = map(int, sys.argv[1:])
ask = lambda a, b: f"<|im_start|>user\nCompute {a} + {b}. Reply with only the number.<|im_end|>\n<|im_start|>assistant\n"
shown = "".join(f"{ask(a, b)}{a + b}<|im_end|>\n" for a, b in pairs[len(pairs) - examples:])
for row in range(rows):
    a, b = pairs[row % (len(pairs) - examples)]
    print(json.dumps({"prompt": shown + ask(a, b), "label": str(a + b)}))
PY

# Ours: run, trainer and rollout beside each other, and what their step rows say.
ours() {
    local run=$1 seed=$2
    mkdir -p "$run"
    "$bin/slime-train" --config /dev/stdin --dry-run >"$run/run.toml" <<TOML
[run]
seed = $seed
num_steps = $steps
device = "$device"
[model]
path = "$weights"
dtype = "$dtype"
[data]
prompts = "$folder/prompts.jsonl"
apply_chat_template = false
shuffle = false
[rollout]
rollout_batch_size = $groups
n_samples_per_prompt = $samples
max_response_len = $response_len
[reward]
types = ["number"]
[train]
lr = $lr
[sync]
transport = "$transport"
TOML
    "$bin/slime-train" --follow "$run" >"$run/train.log" 2>&1 &
    local trainer=$!
    "$bin/slime-rollout" --follow "$run" >"$run/rollout.log" 2>&1 || { tail -n 5 "$run/rollout.log" >&2; kill "$trainer"; exit 70; }
    wait "$trainer" || { tail -n 5 "$run/train.log" >&2; exit 70; }
    # From the moment the trainer waits for the first step to the end of the last.
    "$python" - "$run" <<'PY'
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1] + "/metrics/train.jsonl")]
rows = [row for row in rows if "train/loss" in row]
wall = rows[-1]["time"] - rows[0]["time"] + rows[0]["perf/step_time"]
rest = rows[-1]["time"] - rows[0]["time"]
print(json.dumps({"wall_s": wall, "rest_s": rest, "rewards": [row["rollout/raw_reward"] for row in rows]}))
PY
}

for turn in $(seq "$turns"); do
    ours "$folder/ours-$turn" "$turn" >"$folder/ours-$turn.json"
    "$python" "$benches/rival_loop.py" "{\"weights\": \"$weights\", \"prompts\": \"$folder/prompts.jsonl\",
        \"output\": \"$folder/trl-$turn\", \"threads\": $threads, \"groups\": $groups, \"samples\": $samples,
        \"response_len\": $response_len, \"steps\": $steps, \"seed\": $turn, \"batch\": $trl_batch,
        \"device\": \"$device\", \"dtype\": \"$dtype\", \"lr\": $lr, \"eos\": \"$eos\"}" \
        2>"$folder/trl-$turn.log" | tail -n 1 >"$folder/trl-$turn.json" || { tail -n 5 "$folder/trl-$turn.log" >&2; exit 70; }
done

"$python" - "$folder" "$turns" "$steps" "$((groups * samples))" "$threads" <<'PY'
import json, statistics, sys
folder, turns, steps, samples, threads = sys.argv[1], *map(int, sys.argv[2:])
read = lambda name: [json.load(open(f"{folder}/{name}-{turn}.json")) for turn in range(1, turns + 1)]
print(f"{steps} steps of {samples} samples, {threads} threads, {turns} turns")
for name in ("ours", "trl"):
    for run in read(name):
        rewards = " ".join(f"{reward:.2f}" for reward in run["rewards"])
        print(f"{name:5} {steps * samples / run['wall_s']:7.2f} samples/s, behind the first step "
              f"{(steps - 1) * samples / run['rest_s']:7.2f}; reward {rewards}")
for key, what in (("wall_s", "all steps"), ("rest_s", "behind the first step")):
    ratios = [theirs[key] / mine[key] for mine, theirs in zip(read("ours"), read("trl"))]
    print(f"ours / TRL, {what}: {statistics.median(ratios):.2f}")
PY

#!/usr/bin/env bash
# The modes of building steps in the real loop, generator and trainer on a device each: throughput, how busy both are,
# staleness, where the tokens went, and the reward of tasks that training never saw.
#
#   bash tests/gpu/modes.sh [FOLDER]                         on two GPUs
#   SLIME_MODES_GPUS="0 0" bash tests/gpu/modes.sh [FOLDER]  on one, which both share
#   SLIME_MODES_DEVICE=cpu bash tests/gpu/modes.sh [FOLDER]  on the CPU, where both share the cores
#
# Reads:  SLIME_BIN (default target/release); SLIME_WEIGHTS (default weights/SmolLM2-135M-Instruct; without it a tiny model of
#         random weights, which learns to end with an even number); SLIME_MODES_STEPS (24), SLIME_MODES_LEN (256: longest
#         response), SLIME_MODES_GPUS ("0 1": of the trainer and of the generator); SLIME_TORCH as sbatch/env.sh
# Writes: FOLDER/<mode>, a run directory each; a row of the table for each mode on stdout
# Exit:   0, or the code of the tool that failed
# shellcheck disable=SC2154,SC1091
set -euo pipefail
folder=${1:-$(mktemp -d)}
device=${SLIME_MODES_DEVICE:-cuda}
read -r trainer_gpu rollout_gpu <<<"${SLIME_MODES_GPUS:-0 1}"
tests=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
[ "$device" = cpu ] || . "$tests/gpu/env.sh"
. "$tests/../sbatch/env.sh"
weights=${SLIME_WEIGHTS:-$home/weights/SmolLM2-135M-Instruct}
sets=(--set "run.device=$device" --set "run.num_steps=${SLIME_MODES_STEPS:-24}" --set checkpoint.interval=0
    --set "rollout.max_response_len=${SLIME_MODES_LEN:-256}" --set rollout.rollout_batch_size=16 --set rollout.n_samples_per_prompt=8)
config=$home/configs/quickstart.toml
if [ ! -e "$weights/config.json" ]; then
    weights=$folder/tiny config=$home/configs/tiny.toml
    bash "$home/tests/fixtures/tiny_weights.sh" "$weights"
    # Both parts of the tasks have the same right answers: an even number.
    sets+=(--set 'reward.types=["format:regex=[02468]$"]' --set train.lr=3e-2 --set eval.held_out.environment=arithmetic
        --set eval.held_out.num_prompts=15 --set eval.held_out.temperature=1.0 --set eval.held_out.n_samples_per_prompt=8
        --set eval.held_out.interval=1000 --set eval.held_out.at_start=false --set eval.held_out.max_response_len=4)
fi
sets+=(--set "model.path=$weights")
[ "$device" = cpu ] || sets+=(--set model.dtype=bf16)

# One mode: its name, then its settings.
mode() {
    local name=$1 run=$folder/${1// /-}
    shift
    mkdir -p "$run"
    "$bin/slime-train" --config "$config" "${sets[@]}" "${@/#/--set=}" --dry-run >"$run/run.toml"
    CUDA_VISIBLE_DEVICES=$trainer_gpu "$bin/slime-train" --follow "$run" 2>"$run/train.log" &
    local trainer=$! code=0
    CUDA_VISIBLE_DEVICES=$rollout_gpu "$bin/slime-rollout" --follow "$run" 2>"$run/rollout.log" || code=$?
    [ "$code" = 0 ] || { tail -n 5 "$run/rollout.log" >&2; kill "$trainer"; exit "$code"; }
    wait "$trainer" || { code=$?; tail -n 5 "$run/train.log" >&2; exit "$code"; }
    "${PYTHON:-python3}" - "$name" "$run" <<'PY'
import glob, json, sys
name, run = sys.argv[1:]
rows = lambda path: [json.loads(line) for line in open(path)]
train = [row for row in rows(run + "/metrics/train.jsonl") if "train/loss" in row]
rollout = [row for row in rows(run + "/metrics/rollout.jsonl") if "rollout/tokens/response" in row]
held_out = [row["reward_mean"] for row in rows(run + "/metrics/rollout.jsonl") if row.get("set") == "held_out"]
# Behind the first step, which waits for weights to be loaded and kernels to be compiled.
seconds = train[-1]["time"] - train[0]["time"]
of = lambda fate: sum(row[f"rollout/tokens/{fate}"] for row in rollout)
trained = sum(row["rollout/tokens/trained"] for row in rollout[1:])
train_busy = sum(row["perf/train_time"] for row in train[1:]) / seconds
engine = [row for path in glob.glob(run + "/metrics/engine*.jsonl") for row in rows(path) if "busy" in row]
engine_busy = sum(row["busy"] for row in engine) / max(len(engine), 1)
ages = {}
for row in rollout:
    for key, count in row.items():
        if key.startswith("rollout/staleness/"):
            ages[int(key.rsplit("/", 1)[1])] = ages.get(int(key.rsplit("/", 1)[1]), 0) + count
mean = sum(age * count for age, count in ages.items()) / max(sum(ages.values()), 1)
# Every sealed token has one fate; what the last step carries is left at the end.
last = rollout[-1]["rollout/tokens/carried"]
placed = of("response") - of("reused") + of("refused") + of("expired") + of("surplus") + last
fates = (of("trained") - of("reused"), of("masked"), of("refused") + of("expired") + of("surplus"), last)
assert placed == of("finished"), (placed, of("finished"))
shares = ", ".join(f"{100 * fate / of('finished'):.1f}" for fate in fates)
reward = f"{held_out[-1]:.3f}" if held_out else "-"
print(f"| {name} | {trained / seconds:.0f} | {100 * engine_busy:.0f} % | {100 * train_busy:.0f} % | {mean:.2f}, {max(ages)} | {shares} % | {reward} |", flush=True)
PY
}

asynchronous=(run.max_staleness=4 run.order=arrival)
partial=(run.max_staleness=1 run.order=arrival rollout.over_sampling_batch_size=20)
echo "| mode | trained tokens/s | generator busy | trainer busy | staleness: mean, most | trained, masked, dropped, left at the end | held out |"
echo "|---|---|---|---|---|---|---|"
mode "synchronous"
mode "one step off" run.max_staleness=1
mode "partial rollouts, 1" "${partial[@]}"
mode "partial rollouts, 1, early abort" "${partial[@]}" rollout.early_abort=true
mode "partial rollouts, 2" "${partial[@]}" run.max_staleness=2
mode "partial rollouts, 2, old part masked" "${partial[@]}" run.max_staleness=2 rollout.partial=mask
mode "asynchronous, 4" "${asynchronous[@]}"
mode "asynchronous, 4, without continuing" "${asynchronous[@]}" rollout.partial=off
mode "asynchronous, 4, newest first" "${asynchronous[@]}" rollout.buffer_order=newest
mode "asynchronous, 4, each group twice" "${asynchronous[@]}" rollout.max_reuse=2

# on a login node tools need no MPI and no GPU, pipe into each other, and slime-stat knows a live job
# shellcheck shell=bash disable=SC1010,SC2012,SC2015,SC2016,SC2154
model
clean=(env -i HOME="$HOME" PATH=/usr/bin:/bin SLURM_CONF="${SLURM_CONF:-}")
for tool in convert rollout reward train sync stat; do "${clean[@]}" "$bin/slime-$tool" --version >/dev/null || fail "slime-$tool"; done
for n in 1 2 3 4; do echo "{\"prompt\": \"$n $n\", \"label\": \"$n\"}"; done >prompts.jsonl
"${clean[@]}" "$bin/slime-rollout" --weights weights --prompts prompts.jsonl --set data.apply_chat_template=false \
    --set rollout.n_samples_per_prompt=3 --set rollout.max_response_len=4 |
    "${clean[@]}" "$bin/slime-reward" --type 'format:regex=[02468]$' | "${clean[@]}" "$bin/slime-stat" - --json >samples.json
python3 -c 'import json; s = json.load(open("samples.json")); assert s["samples"]["num_samples"] == 12, s' || fail "$(cat samples.json)"
tiny run run.num_steps=100000
submit "$sbatch/loop.sh" "$config"
until_true 120 "a step" step_is_committed 2
"${clean[@]}" "$bin/slime-stat" "$run" >live.txt
grep -q "job $job RUNNING on 1 node" live.txt || fail "$(cat live.txt)"
"${clean[@]}" "$bin/slime-stat" "$run" --json >live.json
python3 - "$job" <<'PY' || fail "$(cat live.json)"
import json, sys
stat = json.load(open("live.json"))
assert stat["job"]["id"] == sys.argv[1], stat["job"]
assert stat["job"]["state"] == "RUNNING", stat["job"]
assert stat["efficiency"], stat
PY
touch "$run/control/stop"
ends "$job" COMPLETED

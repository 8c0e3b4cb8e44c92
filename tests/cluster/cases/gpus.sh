# trainer and replicas get GPUs of their own, the builder and the rewards none
# shellcheck shell=bash disable=SC1010,SC2012,SC2015,SC2016,SC2154
needs_own_cluster
tiny few
submit --gpus-per-node=2 "$sbatch/loop.sh" "$config"
ends "$job" FAILED
grep -q 'error: too few cores' ./*-"$job".out || fail "$(cat ./*-"$job".out)"
tiny run run.num_steps=2 rollout.num_replicas=1 reward.placement=separate
mkdir tools
for tool in "$bin"/slime-*; do
    name=$(basename "$tool")
    printf '#!/bin/sh\ncase "$*" in *--follow*) echo "${CUDA_VISIBLE_DEVICES-none}" >%s ;; esac\nexec %s "$@"\n' "$PWD/$name.gpus" "$tool" >"tools/$name"
    chmod +x "tools/$name"
done
submit --gpus-per-node=2 --cpus-per-task=4 --export=ALL,SLIME_BIN="$PWD/tools" "$sbatch/loop.sh" "$config"
ends "$job" COMPLETED
is_whole 2
[ "$(sort slime-train.gpus slime-rollout.gpus | paste -sd ' ')" = "0 1" ] || fail "trainer: $(cat slime-train.gpus), replica: $(cat slime-rollout.gpus)"
case $(cat slime-reward.gpus) in none | '' | NoDevFiles) ;; *) fail "rewards: $(cat slime-reward.gpus)" ;; esac
grep -q '"name": *"gpus"' "$run/attempt-0/preflight.json" || fail "GPUs were not counted: $(cat "$run/attempt-0/preflight.json")"

# a trainer of 64 ranks starts, trains with the same bits on every rank, and ends
# shellcheck shell=bash disable=SC1010,SC2012,SC2015,SC2016,SC2154
needs_nodes 2
tiny run run.num_steps=2 rollout.rollout_batch_size=8
began=$SECONDS
submit --nodes=2 --export=ALL,SLIME_TRAIN_RANKS=64 "$sbatch/loop.sh" "$config"
until_true 240 "the first version" eval "ls '$run'/version/000000.* >/dev/null 2>&1"
echo "64 ranks up after $((SECONDS - began)) s"
ends "$job" COMPLETED 400
is_whole 2
[ "$(ls "$run"/attempt-0/rank/trainer.* | wc -l)" = 64 ] || fail "not 64 ranks"

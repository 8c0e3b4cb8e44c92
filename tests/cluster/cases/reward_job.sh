# reward workers are a job of their own, on other nodes, for a loop without any
# shellcheck shell=bash disable=SC1010,SC2012,SC2015,SC2016,SC2154
needs_nodes 2
tiny run reward.placement=separate run.num_steps=4
submit --export=ALL,SLIME_REWARD_WORKERS=0 "$sbatch/loop.sh" "$config"
loop=$job
until_true 60 "the run" test -e "$run/run.toml"
submit --ntasks=2 "$sbatch/reward.sh" "$run"
ends "$loop" COMPLETED
ends "$job" COMPLETED
is_whole 4
ls "$run"/column/reward/*/0.* "$run"/column/reward/*/1.* >/dev/null || fail "not both workers scored"

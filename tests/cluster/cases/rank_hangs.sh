# a rank that hangs is found: every rank's stack is written, the trainer alone is started again
# shellcheck shell=bash disable=SC1010,SC2012,SC2015,SC2016,SC2154
needs_nodes 3
tiny run run.num_steps=40 watchdog.step_s=8
submit --nodes=3 --export=ALL,SLIME_ROLLOUT_NODES=1 "$sbatch/loop.sh" "$config"
until_true 120 "a step" step_is_committed 1
note=$(ls "$run"/attempt-0/rank/trainer.1.*.json)
pid=$(sed 's/.*"pid":\([0-9]*\).*/\1/' "$note")
node=$(sed 's/.*"host":"\([^"]*\)".*/\1/' "$note")
srun --jobid="$job" --overlap --nodes=1 --ntasks=1 --mem=0 --nodelist="$node" kill -STOP "$pid"
until_true 90 "the stack of rank 0" test -e "$run/attempt-0/log/trainer.0.stack"
until_true 90 "the trainer's second life" test -e "$run/epoch/000002"
ends "$job" COMPLETED
is_whole 40
grep -q 'no progress in section' "$run"/attempt-0/log/failed.trainer.0.1 || fail "no record of the reason"
grep -q slime_train "$run/attempt-0/log/trainer.0.stack" || fail "a stack without functions"

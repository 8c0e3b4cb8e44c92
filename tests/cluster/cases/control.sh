# control/save takes a checkpoint, control/pause holds the run, control/stop ends it for good
# shellcheck shell=bash disable=SC1010,SC2012,SC2015,SC2016,SC2154
tiny run run.num_steps=100000 checkpoint.interval=0
submit "$sbatch/loop.sh" "$config"
until_true 120 "a step" step_is_committed 1
[ -z "$(ls "$run/checkpoint" 2>/dev/null)" ] || fail "a checkpoint that nobody asked for"
touch "$run/control/save"
until_true 60 "the end of the wish" test ! -e "$run/control/save"
ls "$run"/checkpoint/*/COMPLETE >/dev/null || fail "control/save went without a checkpoint"
touch "$run/control/pause"
still() { local before; before=$(ls "$run/rollout"); sleep 1.5; [ "$before" = "$(ls "$run/rollout")" ]; }
until_true 60 "the pause" still
still || fail "steps went on in the pause"
rm "$run/control/pause"
until_true 60 "the end of the pause" eval '! still'
touch "$run/control/stop"
until_true 120 "the end" has_ended "$job"
outcome 0 stopped
[ "$(field "$job" Restarts)" = 0 ] || fail "a stopped run was started again"
submit "$sbatch/loop.sh" "$config"
ends "$job" COMPLETED
[ ! -d "$run/attempt-1" ] || fail "a stopped run was started again"

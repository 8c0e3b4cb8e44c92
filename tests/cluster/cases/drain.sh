# USR2, USR1 and TERM each drain within a step; the job goes back into the queue and finishes
# shellcheck shell=bash disable=SC1010,SC2012,SC2015,SC2016,SC2154
tiny run run.num_steps=400 checkpoint.interval=1
submit "$sbatch/loop.sh" "$config"
attempt=0
for signal in USR2 USR1 TERM; do
    until_true 120 "a step of attempt $attempt" eval "[ -e '$run/attempt-$attempt/rank' ] && step_is_committed $((attempt * 3 + 2))"
    scancel --signal=$signal "$job" # to the steps, as --signal=USR2@120 does before the time limit
    until_true 120 "the outcome after $signal" test -e "$run/attempt-$attempt/outcome"
    outcome $attempt drained
    # Everything trained is in a checkpoint: nothing has to be done again. A step that is only committed waits.
    newest=$(ls "$run/checkpoint" | sort | tail -n 1)
    trained=$("$bin/slime-stat" "$run" --json | python3 -c 'import json, sys; print(1 + max(step["step"] for step in json.load(sys.stdin)["steps"] if any("grad_norm" in key for key in step)))')
    [ "$((10#${newest%%.*}))" -eq "$trained" ] || fail "$trained steps are trained, the newest checkpoint is $newest"
    attempt=$((attempt + 1))
    until_true 120 "the next start" test -d "$run/attempt-$attempt"
done
[ "$(field "$job" Restarts)" = 3 ] || fail "restarts: $(field "$job" Restarts)"
touch "$run/control/stop"
ends "$job" COMPLETED

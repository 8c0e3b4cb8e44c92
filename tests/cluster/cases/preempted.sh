# a preempted job drains in its grace time, waits, and finishes later
# shellcheck shell=bash disable=SC1010,SC2012,SC2015,SC2016,SC2154
needs_own_cluster
tiny run run.num_steps=12
submit --partition=low --nodes="$TEST_NODES" --exclusive "$sbatch/loop.sh" "$config"
first=$job
until_true 120 "a step" step_is_committed 1
submit --partition=main --nodes="$TEST_NODES" --exclusive --wrap 'srun true'
ends "$job" COMPLETED
ends "$first" COMPLETED
is_whole 12
[ "$(field "$first" Restarts)" = 1 ] || fail "restarts: $(field "$first" Restarts)"
outcome 0 drained
outcome 1 done

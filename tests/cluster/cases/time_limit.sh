# the time limit's own signal drains a run, which goes on in a new allotment
# shellcheck shell=bash disable=SC1010,SC2012,SC2015,SC2016,SC2154
# slow
tiny run run.num_steps=1000000
submit --time=1 --signal=USR2@45 "$sbatch/loop.sh" "$config"
until_true 200 "the end of the first allotment" test -e "$run/attempt-0/outcome"
outcome 0 drained
until_true 120 "the second" test -d "$run/attempt-1"
until_true 120 "its first step" eval "ls '$run'/epoch | grep -q 000002"
touch "$run/control/stop"
ends "$job" COMPLETED
outcome 1 stopped

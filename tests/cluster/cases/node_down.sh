# a node that dies in mid-step puts the job back into the queue, and the run goes on without it
# shellcheck shell=bash disable=SC1010,SC2012,SC2015,SC2016,SC2154
needs_own_cluster
needs_nodes 4
tiny run run.num_steps=12 rollout.num_replicas=2
submit --nodes=3 "$sbatch/loop.sh" "$config"
until_true 120 "a step" step_is_committed 1
node=$(scontrol show hostnames "$(field "$job" NodeList)" | tail -n 1)
scontrol update nodename="$node" state=down reason=test
until_true 120 "another start" test -d "$run/attempt-1"
ends "$job" COMPLETED
scontrol update nodename="$node" state=resume 2>/dev/null || true
is_whole 12
[ "$(field "$job" Restarts)" = 1 ] || fail "restarts: $(field "$job" Restarts)"
case $(field "$job" NodeList) in *"$node"*) fail "the dead node was used again" ;; esac

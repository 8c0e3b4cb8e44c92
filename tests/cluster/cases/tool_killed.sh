# a tool that is killed is started again alone, the others stay
# shellcheck shell=bash disable=SC1010,SC2012,SC2015,SC2016,SC2154
needs_nodes 3
tiny run run.num_steps=40 rollout.num_replicas=2
submit --nodes=3 "$sbatch/loop.sh" "$config"
kill_role() { # ROLE: its process, on its node
    local note pid node
    note=$(ls -t "$run/attempt-0/rank/$1".*.json | head -n 1)
    pid=$(sed 's/.*"pid":\([0-9]*\).*/\1/' "$note")
    node=$(sed 's/.*"host":"\([^"]*\)".*/\1/' "$note")
    srun --jobid="$job" --overlap --nodes=1 --ntasks=1 --mem=0 --nodelist="$node" kill -KILL "$pid"
}
until_true 120 "a step" step_is_committed 1
kill_role replica.1
until_true 60 "the replica's second life" test -e "$run/owner/replica.1/000002"
until_true 60 "more steps" step_is_committed 8
kill_role trainer.0
until_true 60 "the trainer's second life" test -e "$run/epoch/000002"
ends "$job" COMPLETED
is_whole 40
[ "$(ls "$run/owner/replica.1" | wc -l)/$(ls "$run/owner/replica.0" | wc -l)/$(ls "$run/owner/builder.0" | wc -l)/$(ls "$run/epoch" | wc -l)" = 2/1/1/2 ] ||
    fail "others were started again too"
[ ! -d "$run/attempt-1" ] || fail "the job was started again"

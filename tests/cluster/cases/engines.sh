# a server generates in place of our engine: the trainer has all nodes, and who asks the server runs beside it
# shellcheck shell=bash disable=SC1010,SC2012,SC2015,SC2016,SC2154
needs_nodes 2
tiny run run.num_steps=4
"$bin/slime-rollout" serve --weights weights --unix-socket "$PWD/engine.sock" --weight-root "$PWD" >serve.json 2>serve.log &
server=$!
until_true 60 "the server" test -s serve.json
submit --nodes=2 --export=ALL,SLIME_ENGINES="unix:$PWD/engine.sock" "$sbatch/loop.sh" "$config"
ends "$job" COMPLETED
is_whole 4
[ "$(ls "$run"/attempt-0/rank/trainer.* | sed 's/.*\(trainer\.[0-9]*\)\..*/\1/' | sort -u | wc -l)" = 2 ] || fail "the trainer has not both nodes"
kill -TERM "$server"
wait "$server" || true

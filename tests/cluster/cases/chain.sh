# import, train, evaluate and export as a chain of dependent jobs; a failed link cancels what waits for it
# shellcheck shell=bash disable=SC1010,SC2012,SC2015,SC2016,SC2154
tiny run run.num_steps=3 'eval.greedy.num_prompts=4' 'eval.held.num_prompts=3' 'eval.held.n_samples_per_prompt=2'
sed -i "s|^path = .*|path = \"$PWD/imported\"|" "$config"
after() { submit --kill-on-invalid-dep=yes --dependency="afterok:$job" "$@"; }
submit "$sbatch/convert.sh" import "$PWD/weights" "$PWD/imported"
after "$sbatch/loop.sh" "$config"
after "$sbatch/eval.sh" "$run" "$PWD/answers"
after "$sbatch/convert.sh" export "$run" "$PWD/exported"
ends "$job" COMPLETED
is_whole 3
"$bin/slime-convert" diff "$(echo "$run"/weights/000003.*)" exported || fail "what was exported is not the last version"
[ "$(wc -l <answers/greedy.jsonl)/$(wc -l <answers/held.jsonl)" = 4/6 ] || fail "answers: $(wc -l answers/*.jsonl)"
# The same weights answer the same: as the run's own evaluation of its last version did.
mean() { python3 -c 'import json, sys; print(json.load(sys.stdin)'"$1"')'; }
own=$("$bin/slime-stat" "$run" --json | mean '["eval"][-2:]')
for set in greedy held; do
    one=$(mean '["samples"]["reward_mean"]' <"answers/$set.json")
    case $own in *"'set': '$set'"*"'reward_mean': $one"*) ;; *) fail "$set: $one, the run itself says $own" ;; esac
done
submit "$sbatch/convert.sh" import "$PWD/nothing" "$PWD/never"
first=$job
after "$sbatch/loop.sh" "$config"
ends "$job" CANCELLED
ends "$first" FAILED

# a replica of two ranks is a step of its own and gets the weights of a trainer of two
# shellcheck shell=bash disable=SC1010,SC2012,SC2015,SC2016,SC2154
needs_nodes 4
tiny run rollout.num_replicas=2 rollout.tp=2 parallel.tp=2 reward.placement=separate
submit --nodes=4 "$sbatch/loop.sh" "$config"
ends "$job" COMPLETED
is_whole 4
outcome 0 done
for replica in 0 1; do ls "$run"/rollout/*/replica-$replica.*.arrow >/dev/null || fail "replica $replica generated nothing"; done
"$bin/slime-stat" "$run" --json | python3 -c '
import json, sys
for row in json.load(sys.stdin)["steps"]:
    assert row["train/train_rollout_logprob_abs_diff"] < 1e-5, row
' || fail "generation and training differ"

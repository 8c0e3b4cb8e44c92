# a heterogeneous job: trainer, replicas and rewards in components of their own
# shellcheck shell=bash disable=SC1010,SC2012,SC2015,SC2016,SC2154
needs_nodes 4
tiny run rollout.num_replicas=2 reward.placement=separate
submit --nodes=2 : --nodes=1 : --nodes=1 --ntasks=1 "$sbatch/loop.sh" "$config"
ends "$job" COMPLETED
is_whole 4
grep -q '"host":"' "$run"/attempt-0/rank/trainer.1.*.json || fail "no second rank"
hosts() { sed 's/.*"host":"\([^"]*\)".*/\1/' "$run"/attempt-0/rank/"$1".*.json | sort -u | paste -sd ' '; }
[ "$TEST_HERE" = 1 ] || [ "$(hosts trainer)/$(hosts replica)/$(hosts reward)" = "node1 node2/node3/node4" ] ||
    fail "trainer on $(hosts trainer), replicas on $(hosts replica), rewards on $(hosts reward)"

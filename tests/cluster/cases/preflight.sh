# a node that cannot see the run directory is named before anything hangs; a fit set of nodes passes
# shellcheck shell=bash disable=SC1010,SC2012,SC2015,SC2016,SC2154
needs_nodes 2
tiny run run.num_steps=2
submit --nodes=2 "$sbatch/loop.sh" "$config"
ends "$job" COMPLETED
python3 - "$run/attempt-0/preflight.json" <<'PY'
import json, sys
verdict = json.load(open(sys.argv[1]))
assert verdict["verdict"] != "bad", verdict
assert len(verdict["nodes"]) == 2, verdict
names = {check["name"] for node in verdict["nodes"] for check in node["checks"]}
assert len(names) >= 10, names
PY
needs_own_cluster
local=${SLURM_CONF%/*}/local # every node has its own
export SLIME_RUN_DIR=$local/run
submit --nodes=2 --export=ALL,SLIME_MIN_FREE_GB=0 "$sbatch/loop.sh" "$config"
ends "$job" FAILED 120
grep -q "node2" ./*-"$job".out || fail "the node is not named: $(cat ./*-"$job".out)"
grep -q "sbatch --exclude=node2" ./*-"$job".out || fail "no way out is named: $(cat ./*-"$job".out)"

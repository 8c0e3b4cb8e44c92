# wrong starts are refused with what to do: a busy run directory, too few GPUs, too few nodes, a wrong partition, no site.env module
# shellcheck shell=bash disable=SC1010,SC2012,SC2015,SC2016,SC2154
tiny run run.num_steps=100000
submit "$sbatch/loop.sh" "$config"
first=$job
until_true 120 "a step" step_is_committed 0
submit "$sbatch/loop.sh" "$config"
ends "$job" FAILED
grep -q "error: job $first is RUNNING on $run" ./*-"$job".out || fail "$(cat ./*-"$job".out)"
touch "$run/control/stop"
ends "$first" COMPLETED
tiny gpus rollout.num_replicas=2
submit --export=ALL,SLIME_GPUS_PER_NODE=2 "$sbatch/loop.sh" "$config"
ends "$job" FAILED
grep -q "error: too few GPUs: a node has 2" ./*-"$job".out || fail "$(cat ./*-"$job".out)"
tiny nodes
submit --nodes=2 --export=ALL,SLIME_ROLLOUT_NODES=2 "$sbatch/loop.sh" "$config"
ends "$job" FAILED
grep -q "SLIME_ROLLOUT_NODES is 2 of 2 nodes" ./*-"$job".out || fail "$(cat ./*-"$job".out)"
! command sbatch --partition=nosuch "$sbatch/loop.sh" "$config" 2>partition.txt || fail "a wrong partition was taken"
grep -qi 'invalid partition' partition.txt || fail "$(cat partition.txt)"
mkdir -p home/sbatch
cp -r "$sbatch"/* home/sbatch/
echo 'module load no-such-module || return' >home/sbatch/site.env
submit --export=ALL,SLIME_HOME="$PWD/home" "$sbatch/loop.sh" "$config"
ends "$job" FAILED
grep -q "site.env failed" ./*-"$job".out || fail "$(cat ./*-"$job".out)"

# trainer of two ranks, two replicas and two reward workers are steps of one job
# shellcheck shell=bash disable=SC1010,SC2012,SC2015,SC2016,SC2154
needs_nodes 4
tiny run rollout.num_replicas=2 reward.placement=separate
submit --nodes=4 --export=ALL,SLIME_REWARD_WORKERS=2 "$sbatch/loop.sh" "$config"
ends "$job" COMPLETED
is_whole 4
outcome 0 done
for log in trainer builder.0 replica.0 replica.1 reward.0 reward.1; do [ -e "$run/attempt-0/log/$log.log" ] || fail "no log of $log"; done
for note in trainer.0 trainer.1 builder.0 replica.0 replica.1 reward.0 reward.1; do
    ls "$run/attempt-0/rank/$note".*.json >/dev/null || fail "no note of $note"
done
grep -qx "SLURM_JOB_ID=$job" "$run/attempt-0/env.txt" || fail "env.txt does not name the job"
for replica in 0 1; do ls "$run"/rollout/*/replica-$replica.*.arrow >/dev/null || fail "replica $replica generated nothing"; done
[ -z "$(ls "$run"/attempt-0/failed.* 2>/dev/null)" ] || fail "failure records of a run that did not fail"

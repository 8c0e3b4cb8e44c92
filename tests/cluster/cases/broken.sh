# a broken job ends with its reason and is never started again for ever
# shellcheck shell=bash disable=SC1010,SC2012,SC2015,SC2016,SC2154
# 1. A setting that no restart cures.
tiny wrong
sed -i "s|^path = .*|path = \"$PWD/nowhere\"|" "$config"
submit "$sbatch/loop.sh" "$config"
ends "$job" FAILED
outcome 0 failed
grep -q "code 66" "$run/attempt-0/failed.trainer.0" || fail "no record: $(cat "$run"/attempt-0/failed.* 2>&1)"
[ "$(ls -d "$run"/attempt-* | wc -l)/$(field "$job" Restarts)" = 1/0 ] || fail "it was started again"
# 2. A tool that always dies.
tiny dying
mkdir tools
for tool in "$bin"/slime-*; do ln -s "$tool" tools/; done
rm tools/slime-train
printf '#!/bin/sh\ncase "$*" in *--dry-run*) exec %s "$@" ;; esac\nkill -SEGV $$\n' "$bin/slime-train" >tools/slime-train
chmod +x tools/slime-train
submit --export=ALL,SLIME_BIN="$PWD/tools" "$sbatch/loop.sh" "$config"
ends "$job" FAILED
outcome 0 failed
[ "$(grep -c 'trainer ended with code 139; starting it again' ./*-"$job".out)" = 3 ] || fail "not three more tries: $(cat ./*-"$job".out)"
[ ! -d "$run/attempt-1" ] || fail "it was started again"
grep -q 'trainer: killed or crashed' "$run/attempt-0/failed.trainer" || fail "no word of the crash"
# 3. A job that never gets as far as a checkpoint: as if its time limit were shorter than a step.
tiny fruitless run.num_steps=1000000 checkpoint.interval=0
printf '#!/bin/sh\ncase "$*" in *--follow*) trap "exit 75" USR1 USR2 TERM; while :; do sleep 0.1; done ;; esac\nexec %s "$@"\n' "$bin/slime-rollout" >tools/slime-rollout.new
chmod +x tools/slime-rollout.new
rm tools/slime-rollout tools/slime-train
mv tools/slime-rollout.new tools/slime-rollout
ln -s "$bin/slime-train" tools/
submit --export=ALL,SLIME_BIN="$PWD/tools" "$sbatch/loop.sh" "$config"
for attempt in 0 1 2; do
    until_true 120 "start $attempt" test -e "$run/attempt-$attempt/rank/$(ls "$run/attempt-$attempt/rank" 2>/dev/null | head -n 1)"
    until_true 60 "the trainer of start $attempt" eval "ls '$run/attempt-$attempt/rank/' | grep -q trainer"
    scancel --signal=USR2 "$job"
    until_true 60 "outcome $attempt" test -e "$run/attempt-$attempt/outcome"
done
ends "$job" FAILED
grep -q "3 starts of this job reached no checkpoint" ./*-"$job".out || fail "no reason: $(cat ./*-"$job".out)"
[ ! -d "$run/attempt-3" ] || fail "it was started a fourth time"

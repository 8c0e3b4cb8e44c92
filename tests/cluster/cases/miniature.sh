# the 64-GPU job in small: a GLM-4.7 of TP 8, PP 4, CP 2 and EP 16 on 64 ranks trains, loses one to SIGKILL, and finishes
# shellcheck shell=bash disable=SC1010,SC2012,SC2015,SC2016,SC2154
needs_nodes 2
python3 "$SLIME_HOME/tests/fixtures/glm47_in_small.py" glm47
tiny run model.path="$PWD/glm47" run.num_steps=2 rollout.rollout_batch_size=2 rollout.n_samples_per_prompt=4 \
    algorithm.advantage_estimator=gspo algorithm.eps_clip=1e-4 algorithm.eps_clip_high=2e-4 train.lr=1e-3 \
    train.max_tokens_per_gpu=16 train.recompute=full train.optimizer_offload=true \
    parallel.tp=8 parallel.pp=4 parallel.cp=2 parallel.ep=16
grep '^# a rank of tp 8 pp 4 cp 2 dp 1 ep 16' "$config" || fail "no such layout: $(head -n 5 "$config")"
submit --nodes=2 --export=ALL,SLIME_TRAIN_RANKS=64 "$sbatch/loop.sh" "$config"
until_true 400 "the first version after a step" eval "ls '$run'/version/000001.* >/dev/null 2>&1"
note=$(ls "$run"/attempt-0/rank/trainer.37.*.json | head -n 1)
pid=$(sed 's/.*"pid":\([0-9]*\).*/\1/' "$note")
node=$(sed 's/.*"host":"\([^"]*\)".*/\1/' "$note")
srun --jobid="$job" --overlap --nodes=1 --ntasks=1 --mem=0 --nodelist="$node" kill -KILL "$pid"
until_true 400 "the trainer's second life" test -e "$run/epoch/000002"
ends "$job" COMPLETED 600
is_whole 2
"$bin/slime-convert" diff glm47 "$(ls -d "$run"/weights/000002.* | tail -n 1)" >diff.txt && fail "two steps have changed nothing"
[ -s diff.txt ] || fail "the weights cannot be compared"

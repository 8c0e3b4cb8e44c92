# a job array trains one run for each seed, and the seeds differ
# shellcheck shell=bash disable=SC1010,SC2012,SC2015,SC2016,SC2154
tiny run run.num_steps=2
submit --array=1-3%2 "$sbatch/loop.sh" "$config"
until_true 240 "the array" eval '[ -z "$(squeue -h -j "$job" -t PENDING,RUNNING,COMPLETING -o %A 2>/dev/null)" ]'
base=$run
for seed in 1 2 3; do
    run=$base-seed$seed
    is_whole 2
    outcome 0 done
    grep -qx "seed = $seed" "$run/run.toml" || fail "run of seed $seed has another seed"
done
[ "$(cat "$base"-seed*/rollout/000001/MANIFEST.json | sort -u | wc -c)" -gt 0 ]
hashes=$(for seed in 1 2 3; do sha256sum <"$(ls -d "$base-seed$seed"/weights/000002.*)/model.safetensors"; done | sort -u | wc -l)
[ "$hashes" = 3 ] || fail "$hashes different policies of 3 seeds"

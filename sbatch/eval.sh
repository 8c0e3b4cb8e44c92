#!/usr/bin/env bash
# Answers every evaluation set of a configuration with some weights, and scores the answers.
#
#   sbatch sbatch/eval.sh RUN OUTPUT                     a run's newest weights on its own sets
#   sbatch sbatch/eval.sh WEIGHTS OUTPUT CONFIG [--set key=value ...]
#
# Writes: OUTPUT/<set>.jsonl (prompt, response, reward; a set that is there already is not answered again) and
#         OUTPUT/<set>.json, the numbers, OUTPUT/weights, whose they are; both tables on stdout
# Exit:   0, or the code of the tool that failed
#SBATCH --job-name=eval
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --time=02:00:00
#SBATCH --output=%x-%j.out
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,/^[^#]/{/^#SBATCH/d;s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 0 ;; esac
[ $# -ge 2 ] || { echo "usage: eval.sh RUN|WEIGHTS OUTPUT [CONFIG [--set key=value ...]]" >&2; exit 64; }
. "${SLIME_HOME:-${SLURM_SUBMIT_DIR:-$(dirname "${BASH_SOURCE[0]}")/..}}/sbatch/env.sh" ||
    { echo "hint: start from the folder of slime, or set SLIME_HOME to it" >&2; exit 66; }
weights=$(weights_of "$1") output=$2 config=${3:-$1/run.toml}
[ -r "$config" ] || die 66 "no configuration $config" "eval.sh WEIGHTS OUTPUT CONFIG"
shift $(($# > 3 ? 3 : $#))
mkdir -p "$output" || die 73 "cannot make $output" "choose another OUTPUT"
# Answers of other weights would be taken for those of these.
if [ -e "$output/weights" ] && [ "$(cat "$output/weights")" != "$weights" ]; then
    die 73 "$output has the answers of $(cat "$output/weights"), not of $weights" "choose another OUTPUT"
fi
echo "$weights" >"$output/weights"
mapfile -t sets < <(tool slime-rollout --config "$config" "$@" --dry-run | sed -n 's/^\[eval\.\(.*\)\]$/\1/p')
[ ${#sets[@]} -gt 0 ] || die 78 "$config has no evaluation set" "add a section [eval.NAME]"
for set in "${sets[@]}"; do
    if [ ! -e "$output/$set.jsonl" ]; then
        tool slime-rollout --config "$config" "$@" --weights "$weights" --eval "$set" |
            tool slime-reward --config "$config" "$@" --output "$output/$set.jsonl"
    fi
    tool slime-stat - --json <"$output/$set.jsonl" >"$output/$set.json"
    echo "$set, $weights"
    tool slime-stat - <"$output/$set.jsonl"
done

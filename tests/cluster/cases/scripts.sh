# Slurm takes every script's directives, and every script says what it wants when it is called wrongly
# shellcheck shell=bash disable=SC1010,SC2012,SC2015,SC2016,SC2154
for script in "$sbatch"/*.sh; do
    grep -q '^#SBATCH' "$script" || continue
    # The largest jobs want more nodes than there are.
    wanted=$(sed -n 's/^#SBATCH --nodes=//p' "$script")
    fewer=()
    [ "${wanted:-1}" -le "$TEST_NODES" ] || fewer=(--nodes="$TEST_NODES")
    command sbatch --test-only "${fewer[@]}" "$script" a b c 2>test-only.txt || fail "$script: $(cat test-only.txt)"
done
for script in convert eval loop preflight reward; do
    code=0
    bash "$sbatch/$script.sh" 2>usage.txt || code=$?
    [ "$code" = 64 ] || fail "$script.sh without arguments ends with $code"
    grep -q '^usage: ' usage.txt || fail "$script.sh: $(cat usage.txt)"
done
for script in convert eval loop preflight reward smollm2_1x; do
    bash "$sbatch/$script.sh" --help >help.txt || fail "$script.sh --help ends with $?"
    grep -q "sbatch sbatch/$script.sh\|sbatch/$script.sh" help.txt || fail "$script.sh --help: $(cat help.txt)"
done
# From another folder, without SLIME_HOME, the hint tells what to do.
submit --export=NONE --wrap true
cp "$sbatch/loop.sh" elsewhere.sh
(unset SLIME_HOME; command sbatch --wait --output="$PWD/elsewhere.out" elsewhere.sh x.toml) && fail "it found its home"
grep -q 'hint: start from the folder of slime' elsewhere.out || fail "$(cat elsewhere.out)"

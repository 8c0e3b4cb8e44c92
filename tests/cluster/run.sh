#!/usr/bin/env bash
# Runs the loop under Slurm in all the ways it may go wrong there, and ends with a table and a line that counts.
#
#   bash tests/cluster/run.sh [CASE ...]           on a Slurm of its own with pretended nodes (root, slurm-wlm, munge)
#   bash tests/cluster/run.sh --here [CASE ...]    on the cluster of this login node
#   bash tests/cluster/run.sh --all                the slow cases too (minutes of waiting for time limits)
#
# Reads:  SLIME_HOME and SLIME_BIN as sbatch/env.sh does; with --here sbatch/site.env and SBATCH_* say account, partition
#         and so on; SLIME_TEST_DIR, a folder on the shared filesystem (default runs/cluster-tests, with --here), is
#         kept; SLIME_TEST_NODES (4, or as many as there are): cases that need more are skipped
# Writes: below a folder that is removed again when every case passed
# Exit:   0 when no case failed, 1 when one did, 69 when no Slurm can be had (then every case counts as skipped)
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
is_here=0 wants_slow=0 names=()
for argument in "$@"; do
    case $argument in
        --here) is_here=1 ;;
        --all) wants_slow=1 ;;
        -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
        -*) echo "run: error: no option $argument; --help names them" >&2; exit 64 ;;
        *)
            [ -e "$here/cases/$argument.sh" ] || { echo "run: error: no case $argument; there are: $(basename -s .sh "$here"/cases/*.sh | tr '\n' ' ')" >&2; exit 64; }
            names+=("$argument")
            ;;
    esac
done
if [ ${#names[@]} -eq 0 ]; then
    for path in "$here"/cases/*.sh; do
        name=$(basename "$path" .sh)
        if [ "$wants_slow" = 1 ] || ! grep -q '^# slow$' "$path"; then names+=("$name"); fi
    done
fi
export SLIME_HOME=${SLIME_HOME:-$(cd "$here/../.." && pwd)}
SLIME_BIN=${SLIME_BIN:-$([ -x "$SLIME_HOME/bin/slime-train" ] && echo "$SLIME_HOME/bin" || echo "$SLIME_HOME/target/release")}
num_nodes=4
if [ "$is_here" = 1 ]; then
    there=$(sinfo -h -N -o %N | sort -u | wc -l)
    [ "$there" -ge 4 ] || num_nodes=$there
fi
export SLIME_BIN TEST_NODES=${SLIME_TEST_NODES:-$num_nodes} TEST_HERE=$is_here
[ -x "$SLIME_BIN/slime-train" ] || { echo "run: error: no tools in $SLIME_BIN; build first" >&2; exit 66; }

cluster=
if [ "$is_here" = 1 ]; then
    TEST_DIR=${SLIME_TEST_DIR:-$SLIME_HOME/runs/cluster-tests}
    mkdir -p "$TEST_DIR" || exit 73
    TEST_DIR=$(mktemp -d "$TEST_DIR/$(date +%Y%m%d-%H%M%S)-XXXX") || exit 73
    # shellcheck source=/dev/null
    [ ! -r "$SLIME_HOME/sbatch/site.env" ] || . "$SLIME_HOME/sbatch/site.env"
else
    TEST_DIR=$(mktemp -d) || exit 73
    cluster=$TEST_DIR/slurm
    if ! bash "$here/up.sh" "$cluster" "$TEST_NODES" 8; then
        bash "$here/down.sh" "$cluster"
        rm -rf "$TEST_DIR"
        echo "0 passed, 0 failed, ${#names[@]} skipped"
        exit 69
    fi
    trap 'bash "$here/down.sh" "$cluster"' EXIT
    # What preflight thinks of this machine's disk, and of links that are all the loopback, is no matter here.
    export SLURM_CONF=$cluster/slurm.conf OMP_NUM_THREADS=1 SLIME_MIN_FREE_GB=0 SLIME_MIN_LINK_SHARE=0
fi
export TEST_DIR
# What is around this script must not be taken for a job.
for variable in $(compgen -e | grep '^SLURM_' | grep -v '^SLURM_CONF$'); do unset "$variable"; done

passed=0 failed=0 skipped=0 table=
for name in "${names[@]}"; do
    mkdir -p "$TEST_DIR/$name"
    began=$SECONDS
    (cd "$TEST_DIR/$name" && exec timeout --signal=TERM "${SLIME_TEST_CASE_S:-420}" bash "$here/case.sh" "$name") >"$TEST_DIR/$name/case.log" 2>&1
    case $? in
        0) verdict=passed passed=$((passed + 1)) note= ;;
        77) verdict=skipped skipped=$((skipped + 1)) note=$(tail -n 1 "$TEST_DIR/$name/case.log") ;;
        *)
            verdict=FAILED failed=$((failed + 1)) note=$TEST_DIR/$name/case.log
            tail -n 40 "$TEST_DIR/$name/case.log"
            for log in "$TEST_DIR/$name"/*.out "$TEST_DIR/$name"/*/attempt-*/log/*.log; do
                [ ! -e "$log" ] || { echo "--- $log"; tail -n 15 "$log"; }
            done
            ;;
    esac
    line=$(printf '%-18s %-8s %4d s  %s' "$name" "$verdict" $((SECONDS - began)) "$(sed -n '1s/^# //p' "$here/cases/$name.sh")${note:+ [$note]}")
    echo "cluster: $line"
    table+=$line$'\n'
done
printf '\n%s' "$table"
if [ "$failed" -eq 0 ] && [ "$is_here" = 0 ]; then
    bash "$here/down.sh" "$cluster"
    trap - EXIT
    rm -rf "$TEST_DIR"
else
    echo "kept: $TEST_DIR"
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]

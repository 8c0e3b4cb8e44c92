#!/usr/bin/env bash
# Ends the Slurm that up.sh started in DIR, its jobs first, and removes DIR.
#
#   bash tests/cluster/down.sh DIR
set -uo pipefail
dir=${1:?usage: down.sh DIR}
[ -f "$dir/slurm.conf" ] || exit 0
export SLURM_CONF=$dir/slurm.conf
jobs=$(timeout 10 squeue -h -o %A 2>/dev/null | sort -u)
if [ -n "$jobs" ]; then
    # shellcheck disable=SC2086
    scancel --full --signal=KILL $jobs 2>/dev/null
    # shellcheck disable=SC2086
    scancel $jobs 2>/dev/null
    for ((look = 0; look < 100; look++)); do
        [ -n "$(timeout 10 squeue -h 2>/dev/null)" ] || break
        sleep 0.1
    done
fi
# Only processes whose numbers up.sh's daemons wrote down, and only while they are those programs.
for file in "$dir/pid/slurmctld" "$dir"/pid/slurmd-* "$dir/pid/munged"; do
    pid=$(cat "$file" 2>/dev/null) || continue
    case $(cat "/proc/$pid/comm" 2>/dev/null) in slurmd | slurmctld | munged) ;; *) continue ;; esac
    kill "$pid"
    for ((look = 0; look < 100; look++)); do
        kill -0 "$pid" 2>/dev/null || break
        [ "$look" -lt 99 ] || kill -KILL "$pid"
        sleep 0.1
    done
done
rm -rf "$dir"

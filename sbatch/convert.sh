#!/usr/bin/env bash
# slime-convert as a job: a checkpoint in, or the newest weights of a run out.
#
#   sbatch sbatch/convert.sh import SRC DST
#   sbatch sbatch/convert.sh export SRC DST       SRC is a weight directory or a run directory
#
# Exit:   that of slime-convert; 66 when a run has no weights
#SBATCH --job-name=convert
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --time=01:00:00
#SBATCH --output=%x-%j.out
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,/^[^#]/{/^#SBATCH/d;s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 0 ;; esac
[ $# -ge 3 ] || { echo "usage: convert.sh import|export SRC DST [OPTION ...]" >&2; exit 64; }
. "${SLIME_HOME:-${SLURM_SUBMIT_DIR:-$(dirname "${BASH_SOURCE[0]}")/..}}/sbatch/env.sh" ||
    { echo "hint: start from the folder of slime, or set SLIME_HOME to it" >&2; exit 66; }
what=$1 src=$2
shift 2
if [ "$what" = export ]; then src=$(weights_of "$src"); fi
tool slime-convert "$what" "$src" "$@"

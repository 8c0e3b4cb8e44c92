# What every script here needs to know; sourced, never run.
#
# Reads: SLIME_HOME, else SLURM_SUBMIT_DIR (sbatch copies a script before it runs it), else the script's own place;
#        SLIME_BIN (default target/release of the home); sbatch/site.env where a site keeps its own settings
# Sets:  home, bin
home=${SLIME_HOME:-${SLURM_SUBMIT_DIR:-$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)}}
bin=${SLIME_BIN:-$home/target/release}
# OpenMP threads that spin while the other tool computes cost more than they bring.
export OMP_WAIT_POLICY=passive
if [ -r "$home/sbatch/site.env" ]; then . "$home/sbatch/site.env"; fi

#!/usr/bin/env bash
# Trains a tiny model inside the root filesystem that the container definitions describe, with nothing else of this
# machine in sight: under bwrap from the folder, then as one squashfs file through the stand-in for Apptainer.
#
#   bash tests/container.sh [WORK]
#
# Reads:  WORK (default a temporary folder), SLIME_BIN and what modules/rootfs.sh reads
# Writes: WORK/{root,slime.sqsh} unless they are there already, WORK/run-bwrap, WORK/run-apptainer
# Exit:   0 when both runs trained to their end, else the code of what failed; 69 without bwrap
set -euo pipefail
home=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
say() { printf 'container: %s\n' "$*"; }
command -v bwrap >/dev/null || { say "no bwrap on PATH" >&2; exit 69; }
if [ $# -gt 0 ]; then
    mkdir -p "$1"
    work=$(cd "$1" && pwd)
else
    work=$(mktemp -d)
    trap 'rm -rf --one-file-system "$work"' EXIT
fi
root=$work/root image=$work/slime.sqsh
[ -e "$root" ] || [ -e "$image" ] || bash "$home/modules/rootfs.sh" "$root" "$image"

# Inside: what a user of the image types.
# shellcheck disable=SC2016 # for the shell inside
inside='set -eu
for hidden in "$@"; do [ ! -e "$hidden" ] || { echo "$hidden can be seen" >&2; exit 70; }; done
slime-train --version
SLIME_BIN=$SLIME_HOME/bin SLIME_RUN_DIR=/run/slime/run bash "$SLIME_HOME/sbatch/loop.sh" \
    "$SLIME_HOME/configs/tiny.toml" --set model.path=/run/slime/weights'
# The libraries that the build used, and the source tree.
deps=${SLIME_DEPS:-${XDG_CACHE_HOME:-$HOME/.cache}/slime}

# The run is whole: its last version, and the word of the trainer that it is done.
check() {
    [ -e "$1/run/control/done" ] || { say "$1 has no control/done" >&2; exit 1; }
    [ "$(find "$1/run/version" -name '000004.*' | wc -l)" -eq 1 ] || { say "$1 has no version 4" >&2; exit 1; }
}

say "the loop under bwrap"
rm -rf "$work/run-bwrap"
bash "$home/tests/fixtures/tiny_weights.sh" "$work/run-bwrap/weights"
bwrap --unshare-all --die-with-parent --clearenv --ro-bind "$root" / --proc /proc --dev /dev --tmpfs /tmp \
    --tmpfs /run --bind "$work/run-bwrap" /run/slime --setenv OMP_NUM_THREADS 1 \
    /bin/sh -c '. /.singularity.d/env/90-environment.sh && exec bash -c "$@"' sh "$inside" sh "$deps" "$home"
check "$work/run-bwrap"

say "the loop from one squashfs file, through $home/tests/cluster/shim/apptainer"
rm -rf "$work/run-apptainer"
bash "$home/tests/fixtures/tiny_weights.sh" "$work/run-apptainer/weights"
(cd / && OMP_NUM_THREADS=1 "$home/tests/cluster/shim/apptainer" exec --no-home --bind "$work/run-apptainer:/run/slime" \
    "$image" bash -c "$inside" sh "$deps") # /tmp is the host's, as with Apptainer
check "$work/run-apptainer"
say "both runs trained to their end"
